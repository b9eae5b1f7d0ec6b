"""``shoal bench consensus``: the distance falls as the graph predicts (S3-10).

It falls at once in a complete graph, and never between disconnected parts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import consensus
from benchmarks.consensus import APART, Case, Results, Settings, measure
from shoal.cli.main import main
from shoal.errors import Invalid

pytestmark = pytest.mark.slow  # other tests cover the measured code


def test_the_measured_gap_is_within_a_tenth_of_the_predicted_one() -> None:
    settings = Settings(
        topologies=("ring", "star", "one-way", "complete", APART), nodes=(4,), how="threads", features=1_000
    )
    cases = {case.topology: case for case in measure(settings).cases}
    for name in ("ring", "star", "one-way"):
        ratio = cases[name].ratio
        assert ratio is not None and abs(ratio - 1) <= 0.1, cases[name]
    assert cases["complete"].left[1] < 1e-6
    assert cases[APART].pieces == 2 and cases[APART].left[-1] > 0.1
    assert all(case.kept for case in cases.values())


def made_up(left: list[float], predicted: float, measured: float | None = None, pieces: int = 1) -> Case:
    return Case(
        topology="ring",
        nodes=4,
        links=4,
        pieces=pieces,
        predicted=predicted,
        measured=measured,
        distances=[2 * one for one in left],
        seconds=1.0,
    )


def test_a_promise_is_kept_or_it_is_not() -> None:
    assert made_up([1, 0.5], 0.5, 0.46).kept and not made_up([1, 0.5], 0.5, 0.44).kept
    assert not made_up([1, 0.5], 0.5).kept
    assert made_up([1, 1e-8], 1).kept and not made_up([1, 1e-5], 1).kept
    assert made_up([1, 0.4, 0.4], 0, pieces=2).kept
    assert not made_up([1, 0.4, 0.2], 0, pieces=2).kept and not made_up([1, 0, 0.0], 0, pieces=2).kept


@pytest.mark.parametrize("nodes", [(), (1,), (5,), (2,)])
def test_workers_that_cannot_all_have_a_slot_in_a_round_are_refused(nodes: tuple[int, ...]) -> None:
    with pytest.raises(Invalid):
        measure(Settings(nodes=nodes))


def test_the_command_writes_what_it_found_and_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    few = Settings(topologies=("torus", "complete"), nodes=(4,), how="threads", features=1_000)
    monkeypatch.setattr(consensus, "QUICK", few)
    file, picture = tmp_path / "consensus.json", tmp_path / "consensus.png"
    result = CliRunner().invoke(main, ["bench", "consensus", "--quick", "--json", str(file), "--picture", str(picture)])
    assert result.exit_code == 0, result.output
    assert "predicted gap" in result.output and picture.stat().st_size > 5_000
    assert msgspec.json.decode(file.read_bytes(), type=Results).cases


def test_the_decay_is_that_of_the_slowest_mode_and_not_of_what_goes_before_or_is_rounding() -> None:
    found = [(float(at), 5 * 0.3**at + 0.8**at + 1e-7) for at in range(100)]
    assert consensus.decay(found) == pytest.approx(0.8, abs=0.005)


@pytest.mark.parametrize("found", [[], [(0.0, 1.0)], [(0.0, 1.0), (1.0, 0.9)], [(0.0, 0.0), (1.0, 0.0)]])
def test_where_too_little_fell_nothing_is_said_of_the_decay(found: list[tuple[float, float]]) -> None:
    assert consensus.decay(found) is None
