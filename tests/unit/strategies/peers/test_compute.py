"""Visits to a model, and rows that take as long as the emulation says."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.emulation import Emulation
from shoal.errors import BadValues
from shoal.limits import SECOND
from shoal.strategies.peers.compute import (
    Floats,
    Pacer,
    Visit,
    run_visit,
)
from tests.unit.strategies.peers.peers_in_a_world import Counting, weights_of


def change(*slots: int) -> tuple[np.ndarray, Floats]:
    weights = weights_of(slots)
    keys = np.flatnonzero(weights)
    return keys.astype(np.uint64), weights[keys]


def test_learning_and_taking_are_one_thing_so_nothing_is_lost_between_them() -> None:
    replica = Counting()
    found = run_visit(replica, Visit(add=[change(7)], run=[(0, 3)], take=True), None)
    assert (found.loss, found.rows) == (3.0, 3)
    assert found.change is not None
    taken = np.zeros_like(replica.weights_now)
    taken[found.change[0]] = found.change[1]
    np.testing.assert_array_equal(taken, weights_of([0, 1, 2]))  # only its own changes
    np.testing.assert_array_equal(replica.weights_now, weights_of([0, 1, 2, 7]))
    again = run_visit(replica, Visit(take=True), None)
    assert again.change is not None and not len(again.change[0])


def test_a_copy_lacks_what_is_on_its_way_into_what_all_have_and_the_model_keeps_it() -> None:
    replica = Counting()
    run_visit(replica, Visit(run=[(0, 2)], take=True), None)
    found = run_visit(replica, Visit(run=[(2, 3)], take=True, copy=True, owned=True, without=[change(1)]), None)
    np.testing.assert_array_equal(found.slab, weights_of([0]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(replica.weights_now, weights_of([0, 1, 2]))


def test_what_is_not_finite_is_told_to_nobody() -> None:
    class Wild(Counting):
        def run(self, slots: object) -> tuple[float, int]:
            self.unsaid[3] = self.weights_now[3] = np.inf
            return 1.0, 1

    with pytest.raises(BadValues, match="take a smaller step"):
        run_visit(Wild(), Visit(run=[(0, 1)], take=True), None)

    class Lost(Counting):
        def run(self, slots: object) -> tuple[float, int]:
            return float("nan"), 1

    with pytest.raises(BadValues, match="the loss is nan"):
        run_visit(Lost(), Visit(run=[(0, 1)]), None)


def test_rows_take_as_long_as_they_are_to_be_emulated_without_drift() -> None:
    """A thousand rows take a second, without drift.

    Every wait is 3 ms too long, and 1 ms passes between two visits.
    """
    now = [0]

    def wait(seconds: float) -> None:
        now[0] += round(seconds * SECOND) + 3_000_000

    pace = Emulation(per_example=1e-3).pace(0, 1)
    assert pace is not None
    pacer, replica = Pacer(pace, lambda: now[0], wait), Counting()
    for number in range(40):
        run_visit(replica, Visit(run=[(25 * number, 25 * number + 25)], continues=number > 0), pacer)
        now[0] += 1_000_000
    assert now[0] / SECOND == pytest.approx(1.0, abs=0.01)


def test_time_without_work_is_not_made_up_for() -> None:
    now = [0]

    def wait(seconds: float) -> None:
        now[0] += round(seconds * SECOND)

    pace = Emulation(per_example=1e-3).pace(0, 1)
    assert pace is not None
    pacer, replica = Pacer(pace, lambda: now[0], wait), Counting()
    now[0] += 5 * SECOND
    run_visit(replica, Visit(run=[(0, 100)]), pacer)
    assert now[0] == pytest.approx(5.1 * SECOND)
