"""Slots of a worker that is much slower than the others are dealt to a second one."""

from __future__ import annotations

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.speculative import KNOWN, STUCK, SpeculativeCopies
from shoal.tables import Step


def steps(workers: int = 4, slots: int = 8, passes: int = 4) -> SlotQueue:
    per_pass = 80
    work = SlotQueue(Slots(per_pass, 1, 0), passes * per_pass, Step(slots, slots_per_pass=per_pass))
    for worker in range(1, workers + 1):
        work.enter(worker, f"worker-{worker}")
    return work


def known(copies: SpeculativeCopies, slow: float = 5.0) -> None:
    """Worker 1 takes so many times as long as the others."""
    for worker in range(1, 5):
        copies.take(worker, int(1_000 * (slow if worker == 1 else 1) * KNOWN * 2), KNOWN * 2)


def test_who_takes_more_than_twice_as_long_as_the_others_is_slow() -> None:
    copies = SpeculativeCopies()
    assert copies.slow() == set()
    known(copies, 1.9)
    assert copies.slow() == set()
    known(copies, 8)
    known(copies, 8)
    assert copies.slow() == {1}
    copies.gone(1)
    assert copies.slow() == set()


def test_its_slots_are_shared_among_the_others_each_once() -> None:
    work, copies = steps(), SpeculativeCopies()
    known(copies)
    for worker in range(1, 5):
        work.deal(worker, 12)
    slow = work.held(1)
    lent = {worker: copies.choose(1, worker, work) for worker in (2, 3, 4, 1)}
    assert lent[1] == []
    together = [slot for slots in lent.values() for slot in slots]
    assert len(together) == len(set(together)) and set(together) <= set(slow)
    assert len(together) >= len(slow) - 4 and all(lent[worker] for worker in (2, 3, 4))
    assert copies.choose(1, 2, work) == []  # they have been copied
    assert copies.lent == len(together)


def test_whoever_is_first_counts_and_the_other_may_leave_it() -> None:
    work, copies = steps(), SpeculativeCopies()
    known(copies)
    for worker in range(1, 5):
        work.deal(worker, 12)
    slot, *others = copies.choose(1, 2, work)
    own = next(one for one in work.held(2) if one not in (slot, *others))
    assert work.count(2, [slot]) == [slot]
    assert work.late(1) == [slot] and work.late(1) == []
    assert work.count(1, [slot]) == []
    assert slot not in work.held(1)
    assert (copies.first(2, [slot]), copies.first(1, [slot]), copies.first(2, [own])) == (1, 0, 0)


def test_nobody_slow_means_no_copies() -> None:
    work, copies = steps(), SpeculativeCopies()
    known(copies, 1.0)
    for worker in range(1, 5):
        work.deal(worker, 12)
    assert [copies.choose(1, worker, work) for worker in range(1, 5)] == [[], [], [], []]


def test_a_step_that_stands_still_is_helped_whoever_has_its_slots() -> None:
    work, copies = steps(), SpeculativeCopies()
    known(copies, 1.0)
    for worker in range(1, 5):
        work.deal(worker, 20)
    now = 0
    for step in range(3):  # steps of 20 ms
        now += 20 * MILLISECOND
        for worker in range(1, 5):
            work.count(worker, [slot for slot in work.held(worker) if work.step_of(slot) == step])
        assert copies.choose(now, 2, work) == []
    mine = {worker: [slot for slot in work.held(worker) if work.step_of(slot) == 3] for worker in range(1, 5)}
    for worker in (2, 3, 4):
        work.count(worker, mine[worker])
    assert copies.choose(now + STUCK // 2, 2, work) == []
    assert copies.choose(now + 2 * STUCK, 2, work) == mine[1]
    assert copies.choose(now + 2 * STUCK, 3, work) == []


def test_slots_of_one_who_left_with_copies_elsewhere_are_not_dealt_a_third_time() -> None:
    work, copies = steps(), SpeculativeCopies()
    known(copies)
    for worker in range(1, 5):
        work.deal(worker, 12)
    lent = {slot for worker in (2, 3, 4) for slot in copies.choose(1, worker, work)}
    work.leave(1, died=True)
    again, _ = work.deal(2, 100)
    assert not lent & set(again)


def test_reports_of_no_slot_take_nothing_from_what_is_known() -> None:
    copies = SpeculativeCopies()
    for _ in range(12):
        for worker, took in enumerate((1_000, 1_000, 9_000), start=1):
            copies.take(worker, took, 1)
            for _ in range(20):  # it waits for the others, and reports all the while
                copies.take(worker, 0, 0)
    assert copies.slow() == {3}
