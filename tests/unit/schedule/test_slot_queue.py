"""The slot queue deals and counts slots; each case is written by hand.

``tests/property/test_workload_laws.py`` has the laws that hold for any sequence of calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from shoal.schedule.intervals import runs, spread
from shoal.schedule.slot_queue import (
    AHEAD,
    DEATHS,
    IN_HAND,
    MOST,
    SlotQueue,
)
from shoal.tables import Step


@dataclass
class Cards:
    """Groups of rows in the order of their numbers; every second pass reverses the order."""

    per_pass: int
    asked: int = 0

    @property
    def turns(self) -> int:
        return self.per_pass

    def contents(self, of_pass: int) -> npt.NDArray[np.int64]:
        self.asked += 1
        order = np.arange(self.per_pass, dtype=np.int64)
        return order[::-1].copy() if of_pass % 2 else order


def each(per_pass: int = 8, limit: int = 24, workers: int = 2) -> SlotQueue:
    return entered(SlotQueue(Cards(per_pass), limit), workers)


def steps(per_pass: int = 10, slots: int = 4, limit: int = 30, workers: int = 2) -> SlotQueue:
    return entered(SlotQueue(Cards(per_pass), limit, Step(slots=slots, slots_per_pass=per_pass)), workers)


def entered(work: SlotQueue, workers: int) -> SlotQueue:
    for worker in range(1, workers + 1):
        work.enter(worker, f"worker-{worker}")
    return work


def all_of(work: SlotQueue, worker: int) -> list[int]:
    """Deals to one worker until nothing comes, and counts nothing."""
    found: list[int] = []
    while any(dealt := work.deal(worker, 5)):
        found += [*dealt[0], *dealt[1]]
    return found


# ---------------------------------------------------------------- each mode


def test_a_pass_is_dealt_in_ever_smaller_pieces() -> None:
    work = each(per_pass=64, limit=64)
    pieces = [len(work.deal(1 + turn % 2, 64)[1]) for turn in range(30)]
    assert pieces[:4] == [16, 12, 9, 6]
    assert all(a >= b for a, b in pairwise(pieces))
    assert sum(pieces) == 64


def test_a_worker_gets_the_rows_it_had_before() -> None:
    work = each(per_pass=8, limit=16)
    had: dict[int, set[int]] = {1: set(), 2: set()}
    while work.done != 8:
        for worker in had:
            slots = work.deal(worker, 1)[1]
            had[worker] |= {int(work.order.contents(0)[slot]) for slot in slots}
            work.count(worker, slots)
    (first,) = work.deal(2, 1)[1]
    assert int(work.order.contents(1)[first - 8]) in had[2]
    assert {int(work.order.contents(1)[slot - 8]) for slot in all_of(work, 1)} >= had[1]


def test_who_has_nothing_left_of_its_own_helps_the_one_that_has_most() -> None:
    work = each(per_pass=8, limit=16)
    work.count(1, all_of_pass(work, 1, 8))
    assert work.done == 8  # worker 2 has got no slots at all
    assert len(all_of_pass(work, 2, 8)) == 8


def all_of_pass(work: SlotQueue, worker: int, most: int) -> list[int]:
    found: list[int] = []
    while len(found) < most:
        found += work.deal(worker, most - len(found))[1]
    return found


def test_the_next_pass_begins_when_all_of_this_one_is_dealt_not_when_it_is_counted() -> None:
    work = each(per_pass=4, limit=8)
    assert sorted(all_of_pass(work, 1, 8)) == list(range(8))
    assert work.done == 0


def test_no_more_than_the_limit_is_dealt_and_it_may_lie_within_a_pass() -> None:
    work = each(per_pass=8, limit=11)
    slots = all_of(work, 1)
    assert len(slots) == 11
    assert sorted(slots)[:8] == list(range(8))
    work.count(1, slots)
    assert work.finished and work.deal(1, 5) == ([], [])


def test_a_wish_for_ever_so_many_slots_is_met_with_a_bounded_number() -> None:
    work = each(per_pass=1, limit=1 << 60)  # passes of one slot each: any number could be opened
    assert len(work.deal(1, 1 << 61)[1]) == MOST


# ---------------------------------------------------------------- step mode


def test_the_slots_of_a_step_go_round_among_the_workers() -> None:
    work = steps(workers=2)
    assert work.deal(1, 3) == ([], [0, 2, 4])
    assert work.deal(2, 3) == ([], [1, 3, 5])


def test_the_last_step_of_a_pass_may_have_fewer_slots() -> None:
    work = steps(per_pass=10, slots=4, limit=30)
    assert [work.steps_until(slot) for slot in (0, 1, 4, 5, 8, 9, 10, 11, 20)] == [0, 1, 1, 2, 2, 3, 3, 4, 6]
    assert [work.slots_until(step) for step in range(7)] == [0, 4, 8, 10, 14, 18, 20]


def test_a_step_is_whole_when_all_its_slots_are_counted() -> None:
    work = steps(workers=1)
    work.deal(1, 8)
    work.count(1, [0, 1, 3, 4, 5, 6, 7])
    assert (work.steps, work.done) == (0, 7)
    work.count(1, [2])
    assert (work.steps, work.done) == (2, 8)


def test_nothing_is_dealt_past_a_barrier() -> None:
    work = steps(workers=1)
    work.barrier = 0
    assert work.deal(1, 9) == ([], [])
    work.barrier = 8
    assert work.deal(1, 9) == ([], list(range(8)))
    assert work.deal(1, 9) == ([], [])
    work.barrier = None
    assert work.deal(1, 2) == ([], [8, 9])


def test_a_slot_that_was_dealt_comes_again_although_its_number_is_past_the_barrier() -> None:
    work = each(per_pass=8, limit=16)
    work.barrier = 8
    # The first of the pass: in the next pass their rows are the last.
    work.count(1, work.deal(1, 4)[1])
    work.count(2, all_of(work, 2))
    work.barrier = 10
    dealt = all_of(work, 1)
    assert len(dealt) == 2 and max(dealt) >= work.barrier
    work.leave(1, died=True)
    assert work.deal(2, 8) == (sorted(dealt), [])
    assert work.deal(2, 8) == ([], [])


def test_no_more_slots_of_a_pass_that_is_taken_up_come_again_than_lie_before_the_barrier() -> None:
    work = each(per_pass=8, limit=16)
    work.resume([1, 6], dealt=0)
    work.barrier = 5
    again, new = work.deal(1, 8)
    assert (len(again), new) == (3, [])
    assert work.deal(2, 8) == ([], [])


def test_nobody_runs_further_ahead_than_servers_can_hold() -> None:
    work = steps(per_pass=4, slots=1, limit=1_000, workers=1)
    assert all_of(work, 1) == list(range(AHEAD))
    work.count(1, range(1, AHEAD))
    assert work.deal(1, 5) == ([], [])  # step 0 is not complete
    work.count(1, [0])
    assert work.deal(1, 5) == ([], list(range(AHEAD, AHEAD + 5)))


def test_what_was_meant_for_one_that_is_gone_goes_to_another() -> None:
    work = steps(per_pass=8, slots=8, limit=8, workers=2)
    assert work.deal(1, 2) == ([], [0, 2])
    assert work.leave(2, died=False) == 0  # slot 1 was meant for it, but it never had it
    assert work.deal(1, 9) == ([1], [3, 4, 5, 6, 7])


def test_stopping_makes_whole_what_is_begun() -> None:
    work = steps(per_pass=10, slots=4, limit=30, workers=1)
    work.deal(1, 9)
    work.stop()
    assert work.limit == 10  # slot 8 is in a step with one more slot
    assert all_of(work, 1) == [9]
    plain = each(limit=24)
    dealt = len(plain.deal(1, 3)[1])
    plain.stop()
    assert plain.limit == dealt and plain.deal(1, 3) == ([], [])


def test_stopping_twice_or_late_lets_nothing_more_in() -> None:
    work = steps(limit=6)
    work.limit = 8
    work.stop()
    assert work.limit == 0 and work.finished  # no slot was dealt
    work.stop()
    assert work.limit == 0


# ---------------------------------------------------------------- dealt again


def test_slots_of_the_dead_come_again_before_new_ones() -> None:
    work = each(per_pass=32, limit=32)
    lost = work.deal(1, 5)[1]
    assert work.leave(1, died=True) == 5
    again, new = work.deal(2, 6)
    assert again == sorted(lost) and len(new) == 1


def test_slots_that_come_again_are_dealt_even_to_one_that_asked_for_nothing() -> None:
    work = each()
    lost = work.deal(1, 2)[1]
    work.leave(1, died=True)
    assert work.deal(2, 0) == (sorted(lost), [])


def test_what_is_given_back_is_dealt_again_and_only_by_who_had_it() -> None:
    work = each()
    (slot,) = work.deal(1, 1)[1]
    work.give_back(2, [slot, 77])
    assert work.deal(2, 0) == ([], [])
    work.give_back(1, [slot, 77])
    work.give_back(1, [slot])  # reported twice
    assert work.has(1) == 0
    assert work.deal(2, 0) == ([slot], [])


def test_a_count_is_believed_of_who_has_the_slot_and_once() -> None:
    work = each()
    (slot,) = work.deal(1, 1)[1]
    assert work.count(2, [slot]) == []
    assert work.count(99, [slot]) == []  # an unknown worker
    assert work.count(1, [slot, slot, 1 << 61]) == [slot]
    assert work.count(1, [slot]) == []
    assert (work.done, work.has(1)) == (1, 0)


def test_a_slot_that_is_refused_twice_is_void() -> None:
    work = each()
    (slot,) = work.deal(1, 1)[1]
    work.refuse(2, slot, "not mine")
    work.refuse(1, slot, "nan")
    assert work.voids == {}
    assert work.deal(2, 0) == ([slot], [])
    work.refuse(2, slot, "still nan")
    work.refuse(2, slot, "told twice")
    assert work.voids == {slot: "still nan"}
    assert work.deal(1, 0) == ([slot], [])  # a void slot must be pushed, too, without a gradient
    assert work.count(1, [slot]) == [slot]


def test_a_slot_in_whose_hands_three_died_is_void_and_what_lay_behind_it_is_not() -> None:
    work = each(per_pass=32, limit=32, workers=DEATHS)
    work.deal(1, IN_HAND + 1)
    for worker in range(1, DEATHS + 1):
        work.leave(worker, died=True)
        if worker < DEATHS:
            assert work.deal(worker + 1, IN_HAND + 1)[0] == list(range(IN_HAND + 1))
    assert sorted(work.voids) == list(range(IN_HAND))
    assert "worker-3 the last" in work.voids[0]


def test_those_that_leave_in_peace_make_nothing_void() -> None:
    work = each(workers=DEATHS)
    work.deal(1, 1)
    for worker in range(1, DEATHS + 1):
        work.leave(worker, died=False)
        if worker < DEATHS:
            work.deal(worker + 1, 0)
    assert work.voids == {}


def test_a_worker_that_is_unknown_or_enters_twice_changes_nothing() -> None:
    work = each()
    slots = work.deal(1, 2)[1]
    work.enter(1, "worker-1")
    assert work.has(1) == len(slots) == 2
    assert work.leave(99, died=True) == 0


# ---------------------------------------------------------------- resuming


def test_a_pass_of_which_nothing_is_counted_is_not_forgotten_if_a_later_one_is_begun() -> None:
    for work in (each(per_pass=1, limit=5, workers=1), steps(per_pass=1, slots=1, limit=5, workers=1)):
        work.resume([0, 3])
        assert (work.done, work.lowest) == (2, 1)
        assert work.deal(1, 9) == ([1, 2], [4])


def test_a_run_that_ends_within_a_pass_ends_there_also_when_it_is_taken_up_again() -> None:
    work = each(per_pass=8, limit=5, workers=1)
    work.resume([0, 7])
    again, new = work.deal(1, 9)
    assert (len(again), new) == (3, [])
    work.count(1, again)
    assert work.finished and work.done == 5


def test_steps_are_taken_up_again_where_they_were_left() -> None:
    work = steps(per_pass=10, slots=4, limit=20, workers=1)
    work.resume([0, 1, 2, 3, 5])
    assert (work.steps, work.next) == (1, 6)
    assert work.deal(1, 5) == ([4], [6, 7, 8, 9])


def test_a_run_that_went_past_a_limit_set_later_ends_where_it_is() -> None:
    for work in (each(per_pass=8, limit=8, workers=1), steps(per_pass=8, slots=4, limit=8, workers=1)):
        work.resume(range(20))
        assert work.finished and work.deal(1, 9) == ([], [])
        if work.step is not None:
            assert work.slots_until(work.steps) == work.done == 20


@pytest.mark.parametrize("done", [0, 8, 16])
def test_whole_passes_are_taken_up_with_the_next(done: int) -> None:
    work = each(per_pass=8, limit=24, workers=1)
    work.resume(range(done))
    assert (work.done, work.next, work.lowest) == (done, done, done)
    slots = all_of(work, 1)
    assert sorted(slots) == list(range(done, 24))


# ---------------------------------------------------------------- runs


def test_runs_are_neighbours_in_the_order_given() -> None:
    assert runs([3, 4, 5, 9, 1, 2]) == [(3, 6), (9, 10), (1, 3)]
    assert runs([]) == []
    assert spread([(3, 6), (9, 10), (1, 3)], 6) == [3, 4, 5, 9, 1, 2]


def test_runs_that_are_too_long_or_backwards_are_nothing() -> None:
    assert spread([(0, 1 << 61)], 1 << 20) == []
    assert spread([(9, 2), (3, 4)], 5) == [3]


def test_absurd_runs_open_no_passes() -> None:
    cards = Cards(8)
    work = entered(SlotQueue(cards, 24), 1)
    work.deal(1, 2)
    asked = cards.asked
    for slots in (work.among(1, [(0, 1 << 61), (1 << 60, 1 << 61), (7, 0)]), [1 << 60, 1 << 61]):
        work.count(1, slots)
        work.give_back(1, slots)
        for slot in slots:
            work.refuse(1, slot, "no")
    assert cards.asked == asked and work.done == 2


def test_what_is_meant_for_a_worker_that_goes_is_dealt_to_those_it_may_wait_for() -> None:
    work = steps(per_pass=8, slots=4, limit=8, workers=2)
    _, mine = work.deal(1, 1)  # the other slots of its turn are kept for it
    assert mine == [0]
    work.goes(1)
    again, new = work.deal(2, 8)
    assert sorted([*again, *new]) == [1, 2, 3, 4, 5, 6, 7], "or the step that it waits for would never be whole"
    assert work.leave(1, died=False) == 1
    assert work.deal(2, 8)[0] == [0]


def taken_up(counted: list[int], limit: int) -> SlotQueue:
    """The queue of a restarted coordinator, which learns from its workers what they hold."""
    work = entered(SlotQueue(Cards(8), limit), 2)
    work.resume(counted, dealt=0)
    return work


def test_what_a_worker_had_counted_unheard_takes_no_room_from_what_comes_again() -> None:
    work = taken_up([0, 1, 2], limit=8)
    assert work.claim(1, [(3, 5)]) == [3, 4]
    work.adopt(2, [(5, 6)])
    assert work.deal(1, 8) == ([6, 7], [])


def test_a_run_that_is_stopped_does_not_wait_for_slots_that_were_counted_unheard() -> None:
    work = taken_up([0, 1, 2], limit=8)
    work.claim(1, [(3, 5)])
    work.adopt(2, [(5, 6)])
    work.stop()
    assert work.limit == 8 and work.done == 5
    work.count(2, [5])
    assert not work.finished
    assert work.deal(1, 8) == ([6, 7], [])
    work.count(1, [6, 7])
    assert work.finished
