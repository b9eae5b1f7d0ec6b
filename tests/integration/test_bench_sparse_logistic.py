"""The benchmark measures block-proximal beside liblinear on synthetic rows.

Speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

pytest.importorskip("sklearn")

from benchmarks import sparse_logistic
from benchmarks.sparse_logistic import Results, Settings
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code

TINY = Settings(data=("rcv1-like",), rows=2_000, l1=0.5, workers=(2,), delays=(0, 1), blocks=4, parts=2, rivals=())


def test_the_command_solves_what_liblinear_solves_with_and_without_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sparse_logistic, "QUICK", TINY)
    path, picture = tmp_path / "all.json", tmp_path / "dots.svg"
    given = ["bench", "sparse-logistic", "--quick", "--json", str(path), "--picture", str(picture)]
    told = CliRunner().invoke(main, given)
    assert told.exit_code == 0, told.output
    assert picture.stat().st_size > 0
    found = msgspec.json.decode(path.read_bytes(), type=Results)
    assert [(one.name, one.blocks) for one in found.cases] == [
        ("liblinear", 0),
        ("one thread, delay 0", 4),
        ("2 workers, delay 0", 4),
        ("one thread, delay 1", 8),
        ("2 workers, delay 1", 8),
    ]
    assert all(one.solved and one.nonzeros > 10 for one in found.cases)
    for alone, together in (found.cases[1:3], found.cases[3:5]):
        assert alone.objective == together.objective  # the same run, with one thread or two workers


def test_an_unknown_set_is_refused_in_words() -> None:
    told = CliRunner().invoke(main, ["bench", "sparse-logistic", "--data", "rcv11"])
    assert told.exit_code == 1
    assert "did you mean rcv1?" in told.output
