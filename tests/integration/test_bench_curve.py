"""``shoal bench curve`` runs in all modes, and refused callers learn the reason.

Speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import encryption
from benchmarks.encryption import Results, Settings, measure
from shoal.cli.main import main
from shoal.errors import Invalid

pytestmark = pytest.mark.slow  # other tests cover the measured code

SMALL = Settings(floats=20_000, pushes=4, trips=5, rows=2_000, repeat=2, runs=1, refusals=1)


def test_checksums_and_keys_are_measured_against_none_and_every_refusal_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(encryption, "QUICK", SMALL)
    told = CliRunner().invoke(main, ["bench", "curve", "--quick", "--json", str(tmp_path / "all.json")])
    assert told.exit_code == 0, told.output
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Results)
    assert [case.what for case in found.cases] == ["push", "pull", "round trip of 1 KB", "training, 2 workers"]
    assert all(min(min(turns) for turns in case.found.values()) > 0 for case in found.cases)
    assert all(list(case.found) == ["bare", "clear", "keys"] for case in found.cases)
    assert [len(refusal.seconds) for refusal in found.refusals] == [1, 1, 1]
    words = [refusal.told for refusal in found.refusals]
    assert all(
        part in said for part, said in zip(("not on the list", "another key", "runs with keys"), words, strict=True)
    )


def test_a_ratio_is_that_of_the_figures_beside_it() -> None:
    speed = encryption.Case("push", "MB/s", {"bare": [100.0, 400.0, 200.0], "keys": [50.0, 100.0, 120.0]})
    assert speed.ratio("keys") == 0.5 and speed.spread("keys") == (0.25, 0.6)
    assert speed.compared("keys") == "0.50 (0.25-0.60)"
    time = encryption.Case("round trip", "us", {"bare": [100.0], "clear": [200.0]})
    assert time.ratio("clear") == 0.5 and time.compared("clear") == "0.50"


def test_nothing_is_measured_from_no_repeats() -> None:
    with pytest.raises(Invalid, match="at least one repeat"):
        measure(Settings(repeat=0))
