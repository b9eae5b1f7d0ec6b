"""Each rule that ends a run is checked on its own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.errors import Invalid
from shoal.schedule.stop_rules import ENDLESS, StopDecision, StopRules


def whys(rules: StopRules, *losses: float) -> list[str]:
    stopping = StopDecision(rules)
    return [stopping.judged(loss)[1] for loss in losses]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": -1.5},
        {"epochs": math.nan},
        {"steps": 0},
        {"seconds": 0.0},
        {"patience": 0},
        {"min_delta": -0.1},
        {"min_delta": math.inf},
        {"min_delta": math.nan},
        {"target_loss": math.nan},
        {"target_loss": math.inf},
        {"objective": 0.0},
        {"violation": -1.0},
    ],
)
def test_rules_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(wrong))):
        StopRules(**wrong)


@pytest.mark.parametrize(
    ("rules", "passes"),
    [
        (StopRules(), 5),
        (StopRules(epochs=0.5), 0.5),
        (StopRules(steps=9), math.inf),
        (StopRules(seconds=1), math.inf),
        (StopRules(target_loss=0.1), 100),
        (StopRules(patience=2), 100),
        (StopRules(patience=2, steps=9), math.inf),
        (StopRules(epochs=2, steps=9, seconds=1), 2),
        (StopRules(objective=1e-4), 1000),
        (StopRules(violation=0.1, epochs=7), 7),
    ],
)
def test_without_a_rule_there_are_five_passes_and_with_a_loss_to_reach_a_hundred(
    rules: StopRules, passes: float
) -> None:
    assert rules.passes == passes


@pytest.mark.parametrize(
    ("rules", "slots", "limit", "why"),
    [
        (StopRules(epochs=2), None, 20, "2 epochs done"),
        (StopRules(epochs=0.5), None, 5, "0.5 epochs done"),
        (StopRules(epochs=0.001), None, 1, "0.001 epochs done"),  # at least one slot
        (StopRules(epochs=2, steps=3), 12, 12, "3 steps done"),
        (StopRules(epochs=1, steps=3), 12, 10, "1 epoch done"),
        (StopRules(seconds=1), None, ENDLESS, ""),
        (StopRules(epochs=math.inf), None, ENDLESS, ""),
        (StopRules(epochs=1e300), None, ENDLESS, ""),
    ],
)
def test_the_limit_is_the_nearest_of_passes_and_steps(
    rules: StopRules, slots: int | None, limit: int, why: str
) -> None:
    assert StopDecision(rules).limit(10, slots) == (limit, why)


def test_patience_counts_evaluations_in_a_row_without_improvement() -> None:
    rules = StopRules(patience=2)
    assert whys(rules, 0.9, 0.8, 0.8, 0.7, 0.7, 0.7) == [""] * 5 + ["no improvement in 2 evaluations"]


def test_an_improvement_is_more_than_min_delta_below_the_last_one_that_counted() -> None:
    rules = StopRules(patience=2, min_delta=0.1)
    # Each loss is a little better than the one before, but together they are no improvement.
    assert whys(rules, 0.90, 0.85, 0.81)[-1] == "no improvement in 2 evaluations"
    assert whys(rules, 0.90, 0.85, 0.79, 0.75)[-1] == ""


def test_the_best_is_the_lowest_however_little_lower() -> None:
    stopping = StopDecision(StopRules(patience=9, min_delta=0.1))
    assert [stopping.judged(loss)[0] for loss in (0.9, 0.89, 0.89, 0.95, 0.88)] == [True, True, False, False, True]
    assert stopping.best == 0.88


def test_a_target_is_reached_at_it_or_below() -> None:
    rules = StopRules(target_loss=0.5)
    assert whys(rules, 0.6, 0.50001, 0.5) == ["", "", "target loss 0.5 reached"]
    assert whys(rules, 0.3) == ["target loss 0.5 reached"]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_run_and_is_never_the_best(loss: float) -> None:
    stopping = StopDecision(StopRules(patience=5, target_loss=0.1))
    stopping.judged(0.7)
    best, why = stopping.judged(loss)
    assert not best and "take a smaller step" in why
    assert stopping.best == 0.7


def test_time_is_over_when_it_is() -> None:
    stopping = StopDecision(StopRules(seconds=1.5))
    assert (stopping.out_of_time(1.49), stopping.out_of_time(1.5)) == ("", "1.5 seconds are over")
    assert StopDecision(StopRules()).out_of_time(1e9) == ""


def test_only_patience_keeps_the_best_weights() -> None:
    assert StopRules(patience=1).keeps_best and not StopRules(target_loss=0.1).keeps_best


def solved(rules: StopRules, *found: tuple[float, float]) -> list[str]:
    stopping = StopDecision(rules)
    return [stopping.judged(1.0, {"objective": objective, "violation": violation})[1] for objective, violation in found]


def test_an_objective_is_solved_when_it_hardly_changes_from_one_evaluation_to_the_next() -> None:
    whys = solved(StopRules(objective=1e-3), (100.0, 9.0), (90.0, 9.0), (90.1, 9.0), (90.09, 9.0))
    assert whys == ["", "", "", "the objective changes by no more than 0.001 of itself"]


def test_an_objective_is_solved_when_the_conditions_of_a_minimum_are_met() -> None:
    assert solved(StopRules(violation=0.1), (100.0, 0.2), (50.0, 0.1)) == ["", "its conditions are met to 0.1 of l1"]


def test_where_both_are_set_both_must_hold() -> None:
    whys = solved(StopRules(objective=1e-3, violation=0.1), (100.0, 0.0), (100.0, 0.2), (50.0, 0.0), (50.0, 0.1))
    assert whys[:3] == ["", "", ""]
    assert whys[3] == "the objective changes by no more than 0.001 of itself, and its conditions are met to 0.1 of l1"


def test_a_run_that_is_taken_up_again_remembers_the_last_objective() -> None:
    before, after = StopDecision(StopRules(objective=1e-3)), StopDecision(StopRules(objective=1e-3))
    before.judged(1.0, {"objective": 7.0})
    after.restore(before.state())
    assert after.judged(1.0, {"objective": 7.0})[1] != ""
    assert StopDecision(StopRules(objective=1e-3)).judged(1.0, {"objective": 7.0})[1] == ""
