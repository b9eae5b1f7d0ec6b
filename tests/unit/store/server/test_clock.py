"""Clocks decide which worker waits for which."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.limits import LEDGER_WINDOW
from shoal.store.server.clock import Clocks
from shoal.store.server.ledger import Mask

ANN, BOB, EVE = 1, 2, 3
NAMES = {ANN: "ann", BOB: "bob", EVE: "eve"}
ONE = np.ones(1, np.bool_)


def clocks(max_delay: int | None, *workers: int, segments: int = 1) -> Clocks:
    """Returns clocks which these workers have entered, all at 0."""
    made = Clocks(segments, max_delay)
    for worker in workers:
        made.enter(worker, NAMES[worker], spell=0)
    return made


def walk(made: Clocks, worker: int, upto: int, segments: Mask = ONE) -> None:
    for step in range(1, upto + 1):
        made.tick(worker, step, segments)


def most(made: Clocks, segments: Mask = ONE) -> int:
    """Returns the highest clock that may pull now."""
    return max(clock for clock in range(100) if made.may_pull(clock, segments))


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_nobody_runs_further_ahead_of_the_slowest_than_the_delay(delay: int) -> None:
    made = clocks(delay, ANN, BOB)
    for slowest in range(3):
        assert most(made) == slowest + delay
        made.tick(BOB, slowest + 1, ONE)
        assert most(made) == slowest + delay  # bob is fast, ann decides
        made.tick(ANN, slowest + 1, ONE)


def test_without_a_bound_nobody_ever_waits() -> None:
    made = clocks(None, ANN, BOB)
    walk(made, ANN, 50)
    assert made.may_pull(50, ONE)
    assert made.laggards(50) == []


def test_with_nobody_at_work_nobody_waits() -> None:
    assert clocks(0).may_pull(1_000_000, ONE)


def test_the_bound_can_be_changed_while_workers_wait() -> None:
    made = clocks(0, ANN, BOB)
    assert not made.may_pull(2, ONE)
    made.max_delay = 2
    assert made.may_pull(2, ONE)


def test_a_newcomer_enters_level_with_the_slowest() -> None:
    made = clocks(1, ANN, BOB)
    walk(made, ANN, 5)
    walk(made, BOB, 4)
    assert made.enter(EVE, "eve", spell=0) == 4
    assert made.slowest().tolist() == [4]  # nobody waits longer because of eve
    made.tick(EVE, 5, ONE)  # its first step is the one after the clock it was given
    made.tick(BOB, 5, ONE)
    assert made.slowest().tolist() == [5]


def test_a_newcomer_is_told_the_highest_of_its_segments() -> None:
    made = clocks(0, ANN, segments=2)
    walk(made, ANN, 3, np.array([True, False]))
    assert made.enter(BOB, "bob", spell=0) == 3
    assert made.slowest().tolist() == [3, 0]


def test_a_newcomer_among_parked_workers_enters_level_with_the_furthest() -> None:
    made = clocks(0, ANN, BOB)
    walk(made, ANN, 7)
    walk(made, BOB, 2)
    made.park(ANN, 0)
    made.park(BOB, 0)
    assert made.enter(EVE, "eve", spell=0) == 7


def test_a_worker_that_has_a_clock_already_keeps_it() -> None:
    made = clocks(2, ANN)
    assert made.enter(BOB, "bob", spell=0, level=9) == 9  # it has entered another table before
    walk(made, ANN, 9)
    assert made.slowest().tolist() == [9]


def test_the_same_question_has_the_same_answer() -> None:
    made = clocks(0, ANN)
    assert made.enter(BOB, "bob", spell=0) == 0
    walk(made, ANN, 3)
    walk(made, BOB, 3)
    assert made.enter(BOB, "bob", spell=0) == 0  # a repeated pull: bob stays where it was
    assert made.slowest().tolist() == [3]


def test_the_floor_a_worker_heard_of_elsewhere_holds_here_too() -> None:
    made = clocks(0, ANN)
    walk(made, ANN, 5)
    made.park(ANN, 0)
    made.enter(BOB, "bob", spell=0)
    made.raise_floor(BOB, 0, 8)  # bob entered at 8 on another server
    made.tick(BOB, 9, ONE)
    assert made.slowest().tolist() == [9]


def test_what_was_heard_in_another_spell_is_ignored() -> None:
    made = clocks(0, ANN)
    made.raise_floor(ANN, 1, 50)
    made.raise_floor(BOB, 0, 50)  # bob has not entered
    assert made.slowest().tolist() == [0]


def test_nobody_waits_for_a_parked_worker() -> None:
    made = clocks(0, ANN, BOB)
    walk(made, ANN, 3)
    assert not made.may_pull(3, ONE)
    made.park(BOB, 0)
    assert made.may_pull(3, ONE)
    assert made.laggards(3) == []


def test_a_worker_that_comes_back_is_level_with_the_slowest_and_never_behind_itself() -> None:
    made = clocks(0, ANN, BOB)
    walk(made, BOB, 2)
    made.park(BOB, 0)
    walk(made, ANN, 6)
    assert made.is_parked(BOB, 1)
    assert made.enter(BOB, "bob", spell=1) == 6
    made.park(ANN, 0)
    walk(made, BOB, 9)
    made.enter(EVE, "eve", spell=0, level=3)
    made.park(BOB, 1)
    assert made.enter(BOB, "bob", spell=2) == 9  # the slowest is at 3, but bob has done nine steps


def test_a_late_park_of_an_earlier_spell_is_ignored() -> None:
    made = clocks(0, ANN, BOB)
    made.park(BOB, 0)
    made.enter(BOB, "bob", spell=1)
    made.park(BOB, 0)  # duplicated by the network
    assert not made.may_pull(1, ONE)
    assert made.laggards(1) == ["ann at step 0", "bob at step 0"]


def test_a_late_enter_of_an_earlier_spell_is_ignored() -> None:
    made = clocks(0, ANN, BOB)
    made.park(BOB, 0)
    made.enter(BOB, "bob", spell=0)
    assert made.laggards(1) == ["ann at step 0"]  # still parked
    assert not made.is_parked(BOB, 0)
    made.enter(BOB, "bob", spell=1)
    made.enter(BOB, "bob", spell=0)
    assert made.laggards(1) == ["ann at step 0", "bob at step 0"]  # still working


def test_a_park_that_overtakes_its_enter_counts() -> None:
    made = clocks(0, ANN, BOB)
    made.park(BOB, 1)  # bob came back and parked again; its enter is still in flight
    made.enter(BOB, "bob", spell=1)
    assert made.laggards(1) == ["ann at step 0"]


def test_a_stranger_can_neither_park_nor_tick() -> None:
    made = clocks(0, ANN)
    made.park(BOB, 3)
    made.tick(BOB, 1, ONE)
    assert not made.is_ahead(BOB, 5)
    assert made.fits(BOB, 1 << 60)
    assert made.enter(BOB, "bob", spell=0) == 0


def test_a_clock_is_a_mark_and_not_a_count() -> None:
    made = clocks(0, ANN, BOB)
    walk(made, ANN, 5)
    for step in (2, 3, 5):
        made.tick(BOB, step, ONE)
    assert made.slowest().tolist() == [0]  # three steps are counted, but not the first
    made.tick(BOB, 1, ONE)
    assert made.slowest().tolist() == [3]
    made.tick(BOB, 4, ONE)
    assert made.slowest().tolist() == [5]


def test_a_step_that_was_counted_before_changes_nothing() -> None:
    made = clocks(0, ANN)
    for step in (1, 1, 1, 0):
        made.tick(ANN, step, ONE)
    assert made.slowest().tolist() == [1]


def test_a_pull_waits_only_for_the_segments_it_covers() -> None:
    made = clocks(0, ANN, segments=2)
    walk(made, ANN, 2, np.array([True, False]))
    assert made.may_pull(2, np.array([True, False]))
    assert not made.may_pull(2, np.array([False, True]))
    assert not made.may_pull(2, np.array([True, True]))
    assert made.is_ahead(ANN, 3)
    walk(made, ANN, 2, np.array([False, True]))
    assert made.may_pull(2, np.array([True, True]))
    assert not made.is_ahead(ANN, 3)


def test_nobody_waits_for_the_departed() -> None:
    made = clocks(0, ANN, BOB)
    walk(made, ANN, 2)
    assert not made.drop_departed({ANN: "ann", BOB: "bob"})
    assert not made.may_pull(2, ONE)
    assert made.drop_departed({ANN: "ann"})
    assert made.may_pull(2, ONE)
    made.tick(BOB, 1, ONE)  # a late push of a removed worker
    assert made.slowest().tolist() == [2]


def test_those_who_are_waited_for_are_named_with_their_steps() -> None:
    made = clocks(2, ANN, BOB, EVE)
    walk(made, ANN, 6)
    walk(made, BOB, 3)
    walk(made, EVE, 4)
    assert made.laggards(6) == ["bob at step 3"]
    assert made.laggards(7) == ["bob at step 3", "eve at step 4"]
    assert made.laggards(5) == []


def test_a_step_far_beyond_the_mark_does_not_fit() -> None:
    made = clocks(0, ANN)
    assert made.fits(ANN, LEDGER_WINDOW)
    assert not made.fits(ANN, LEDGER_WINDOW + 1)
    assert made.fits(ANN, 0)
