"""``shoal bench copies`` runs, and copies cost the expected bytes.

Speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import copies
from benchmarks.copies import KINDS, Results, Settings, measure
from shoal.cli.main import main
from shoal.errors import Invalid

pytestmark = pytest.mark.slow  # other tests cover the measured code

SMALL = Settings(floats=48_000, keys=20_000, drawn=4_000, flying=8, dense_pushes=16, sparse_pushes=16, repeat=2)


def test_copies_cost_the_bytes_that_they_should(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(copies, "QUICK", SMALL)
    told = CliRunner().invoke(main, ["bench", "copies", "--quick", "--json", str(tmp_path / "all.json")])
    assert told.exit_code == 0, told.output
    assert "KB between" in told.output
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Results)
    assert [(case.kind, case.copies) for case in found.cases] == [(kind, n) for kind in KINDS for n in (1, 2, 3)]
    for case in found.cases:
        assert len(case.rates) == 2 and min(case.rates) > 0
        assert case.pushed > 4 * 48_000 if case.kind.startswith("dense") else case.pushed > 0
        assert 1 <= case.union <= 8
        if case.copies == 1:
            assert case.share < 0.1 and case.ratio == 1.0
        else:
            # On a busy machine servers may send it twice, but never less than all of it. 0.98,
            # because the header of a push is larger than that of a change.
            assert case.share > 0.98 * case.expected
    step = {case.copies: case for case in found.cases if case.kind == "dense step"}
    assert step[2].limit == pytest.approx(1.3 / 8) and step[3].limit == pytest.approx(2.6 / 8)
    assert step[1].limit is None


def test_what_would_wait_for_ever_or_say_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="flying must be at least slots"):
        measure(Settings(flying=7))
    with pytest.raises(Invalid, match="one copy first"):
        measure(Settings(copies=(2, 3)))
    with pytest.raises(Invalid, match="a multiple of 8"):
        measure(Settings(dense_pushes=12))
