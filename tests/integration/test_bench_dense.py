"""The benchmark measures dense, sparse and all-reduce, and reports where they cross.

Speed is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from benchmarks import dense
from benchmarks.dense import Case, Results, Settings, crossing, verdicts
from benchmarks.harness import machine
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code

TINY = Settings(weights=(2_000,), densities=(0.01, 1.0), rounds=1, seconds=0.01)


def _sparse(*milliseconds: float) -> list[Case]:
    return [Case("sparse", 100, 10.0 ** (at - 2), took, 1, 1) for at, took in enumerate(milliseconds)]


def test_the_command_prints_and_draws_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(dense, "QUICK", TINY)
    path, picture = tmp_path / "all.json", tmp_path / "lines.svg"
    told = CliRunner().invoke(main, ["bench", "dense", "--quick", "--json", str(path), "--picture", str(picture)])
    assert told.exit_code == 0, told.output
    assert "2,000 weights:" in told.output and b"all-reduce" in picture.read_bytes()
    found = msgspec.json.decode(path.read_bytes(), type=Results)
    assert [(one.way, one.density) for one in found.cases] == [
        ("all-reduce", 1.0),
        ("dense", 1.0),
        ("sparse", 0.01),
        ("sparse", 1.0),
    ]
    assert all(one.milliseconds > 0 and one.sent > 0 for one in found.cases)
    assert [one.memory > 0 for one in found.cases] == [False, True, True, True]


def test_the_lines_cross_between_two_measured_densities() -> None:
    assert crossing(_sparse(1.0, 10.0, 100.0), 10.0) == pytest.approx(0.1)
    assert crossing(_sparse(1.0, 100.0), 10.0) == pytest.approx(10**-1.5)
    assert crossing(_sparse(1.0, 2.0), 10.0) is None and crossing(_sparse(20.0, 30.0), 10.0) is None


@pytest.mark.parametrize(
    ("reduced", "said"),
    [(0.5, "all-reduce is faster at every"), (50.0, "sparse updates are faster at"), (5.0, "below")],
)
def test_a_verdict_says_who_is_faster_where(reduced: float, said: str) -> None:
    cases = [*_sparse(1.0, 10.0), Case("all-reduce", 100, 1.0, reduced, 1, 0)]
    (told,) = verdicts(Results(machine(), Settings(weights=(100,)), 1.0, cases))
    assert said in told
