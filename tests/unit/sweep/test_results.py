"""The figures of made-up runs are right, and unknown figures are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shoal.sweep.disk import Sweep
from shoal.sweep.results import Spread, figures
from shoal.sweep.study import PlannedRun

Make = Callable[..., Sweep]
GRID = {"grid": {"workers": [1, 2, 4]}}


def test_the_time_to_the_target_is_when_the_first_weights_that_met_it_were_read(made: Make, told: Any) -> None:
    of = figures(made({**GRID, "seeds": 1, "target": 0.45}, lambda run: told(half=1.0, every=0.5)))
    # 0.4 + 0.3 / 2^t is 0.45 at 2.58 s; it was evaluated at 2.5 and at 3.0 s, and reported a tenth
    # of a second later.
    assert [one.time_to_target for point in of.points for one in point.runs] == [3.0] * 3
    assert [one.rows_to_target for point in of.points for one in point.runs] == [3_000] * 3


def test_over_seeds_there_is_a_median_with_the_lowest_and_the_highest(made: Make, told: Any) -> None:
    of = figures(made({**GRID, "seeds": 3, "target": 0.55}, lambda run: told(half=1.0 + run.seed)))
    assert of.points[0].spread("time_to_target") == Spread(2.0, 1.0, 3.0)


def test_a_point_that_one_seed_did_not_reach_has_no_time(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        return told(floor=0.5 if run.job.workers == 2 and run.seed == 1 else 0.4)

    of = figures(made({**GRID, "seeds": 3, "target": 0.45}, tells))
    one, two, four = of.points
    assert one.spread("time_to_target") is not None and four.spread("time_to_target") is not None
    assert two.censored and two.reached == 2
    assert [two.spread(name) for name in ("time_to_target", "rows_to_target", "rate", "speedup")] == [None] * 4


@pytest.mark.parametrize("state", ["failed", "to do", "unfinished"])
def test_a_point_that_is_not_whole_has_no_time_and_is_not_called_censored(made: Make, told: Any, state: str) -> None:
    def tells(run: PlannedRun) -> Any:
        return told(state=state if run.seed == 1 else "finished")

    of = figures(made({**GRID, "seeds": 2, "target": 0.45}, tells))
    assert all(one.spread("time_to_target") is None and not one.censored and one.done == 1 for one in of.points)
    assert of.best is None


def test_a_loss_that_ran_away_reached_nothing_and_is_never_the_best(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        return told(floor=0.1, state="diverged") if run.job.workers == 4 else told(half=run.job.workers)

    of = figures(made({**GRID, "seeds": 2, "target": 0.45}, tells))
    assert of.points[-1].spread("time_to_target") is None and of.points[-1].spread("last_loss") is None
    assert of.best is of.points[0]
    of = figures(made({**GRID, "seeds": 2}, tells))
    assert of.best is of.points[0] and of.best_by == "lowest median test loss"


def test_speedup_is_against_the_best_serial_run_and_is_the_product_of_its_two_reasons(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        if run.point.serial:
            return told(half=8.0 if run.job.update.step == 0.1 else 4.0, rate=500.0, end=60.0, every=1.0)
        return told(half=4.0 / run.job.workers, rate=600.0 * run.job.workers, end=60.0, every=1.0)

    tree = {**GRID, "seeds": 2, "target": 0.45, "serial": {"update.step": [0.1, 0.2]}}
    of = figures(made(tree, tells))
    assert of.best_serial is of.serial[1]
    four = of.points[-1]
    fast = four.spread("speedup")
    assert fast is not None and fast.median == pytest.approx(11 / 3)
    for run in four.runs:
        assert run.hardware_efficiency is not None and run.statistical_efficiency is not None
        assert run.hardware_efficiency * run.statistical_efficiency == pytest.approx(run.speedup)
    assert of.best is four


def test_a_seed_is_held_against_the_serial_run_with_the_same_seed(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        slower = 1 + 4 * run.seed  # other seeds have harder rows, for all points
        return told(half=float(slower if run.point.serial else slower / 2), every=0.1, end=50.0)

    of = figures(made({**GRID, "seeds": 3, "target": 0.45, "serial": {}}, tells))
    fast = of.points[0].spread("speedup")
    assert fast is not None
    assert fast.low == pytest.approx(2.0, rel=0.1) == fast.high


def test_a_target_above_the_serial_run_is_that_of_the_same_seed(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        return told(floor=0.4 + 0.05 * run.seed, end=20.0)  # every seed has its own rows

    of = figures(made({**GRID, "seeds": 2, "target": "serial + 10%", "serial": {}}, tells))
    assert of.best_serial is not None and of.alone("time_to_target") is not None
    goals = {one.result.run.seed: one.target for one in of.points[0].runs}
    assert goals[0] == pytest.approx(0.44, rel=1e-3) and goals[1] == pytest.approx(0.495, rel=1e-3)
    assert all(point.spread("time_to_target") is not None for point in of.points)


def test_without_the_serial_run_there_is_no_target_yet(made: Make, told: Any) -> None:
    def tells(run: PlannedRun) -> Any:
        return told(state="to do" if run.point.serial else "finished")

    of = figures(made({**GRID, "seeds": 2, "target": "serial + 10%", "serial": {}}, tells))
    assert of.best_serial is None
    assert all(point.spread("time_to_target") is None and not point.censored for point in of.points)


def test_without_a_target_the_best_has_the_lowest_median_loss(made: Make, told: Any) -> None:
    of = figures(made({**GRID, "seeds": 3}, lambda run: told(floor=0.4 + 0.01 * abs(run.job.workers - 2))))
    assert of.best is of.points[1]
