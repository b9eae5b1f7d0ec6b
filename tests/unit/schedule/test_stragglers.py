"""max_delay = auto finds the smallest delay at which workers hardly wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND
from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stragglers import KNOWN, LONGEST, STUCK, AutoDelay, SpeculativeCopies
from shoal.tables import Step


def run(auto: AutoDelay, share: Callable[[int, float], float], seconds: float) -> list[tuple[float, int]]:
    """The changes of the delay, where ``share`` gives the waiting at a delay and a time."""
    changes = []
    for tick in range(int(seconds * 10)):
        now = (tick + 1) * 100 * MILLISECOND
        auto.take(int(share(auto.delay, tick / 10) * 100_000), 100_000, 10)
        if auto.look(now, 4):
            changes.append((tick / 10, auto.delay))
    return changes


@pytest.mark.parametrize("enough", [0, 1, 2, 3, 5, 8, 13, 40])
def test_the_smallest_delay_that_is_enough_is_found_and_kept(enough: int) -> None:
    auto = AutoDelay()
    changes = run(auto, lambda delay, _: 0.5 / (1 + delay) if delay < enough and 0.5 / (1 + delay) > 0.05 else
                  0.06 if delay < enough else 0.01, 120)  # fmt: skip
    assert auto.delay in (enough, enough - 1)  # the one below is tried now and then
    late = [delay for at, delay in changes if at > 14]
    assert set(late) <= {enough, enough - 1} and len(late) < 20


def test_a_worker_that_is_far_slower_than_the_others_is_no_matter_of_the_delay() -> None:
    auto = AutoDelay()
    run(auto, lambda delay, _: 0.6, 30)
    assert auto.delay == LONGEST and auto._short >= LONGEST


def test_room_that_is_still_being_used_up_is_not_taken_for_enough() -> None:
    """A fast worker does not wait until it is as far ahead as it may be.

    To get there takes as many steps as the delay allows.
    """
    auto, ahead, delays = AutoDelay(), 0.0, [0]
    for tick in range(3_000):  # two workers: one takes a step in one tick, the other one in five
        waits = ahead >= auto.delay
        ahead += -0.2 if waits else 0.8
        auto.take(100_000 * waits, 200_000, 1)
        if auto.look((tick + 1) * 10 * MILLISECOND, 2):
            delays.append(auto.delay)
    assert delays == sorted(delays) and delays[-1] == LONGEST and auto._short >= LONGEST


def test_when_the_slow_one_has_gone_the_delay_gets_smaller_again() -> None:
    auto = AutoDelay()
    run(auto, lambda delay, at: (0.3 if delay < 8 else 0.0) if at < 20 else (0.3 if delay < 1 else 0.0), 400)
    assert auto.delay in (0, 1)


def test_a_single_bad_moment_changes_nothing() -> None:
    auto = AutoDelay()
    changes = run(auto, lambda delay, at: 0.3 if delay < 4 or 15 <= at < 15.1 else 0.0, 18)
    assert auto.delay == 4 and not [at for at, _ in changes if at > 14]


def test_nothing_is_decided_on_few_steps() -> None:
    auto = AutoDelay()
    for tick in range(100):
        auto.take(100, 100, 0)
        assert not auto.look((tick + 1) * 100 * MILLISECOND, 4)


def steps(workers: int = 4, slots: int = 8, passes: int = 4) -> SlotQueue:
    per_pass = 80
    work = SlotQueue(Slots(per_pass, 1, 0), passes * per_pass, Step(slots, slots_per_pass=per_pass))
    for worker in range(1, workers + 1):
        work.enter(worker, f"worker-{worker}")
    return work


def known(copies: SpeculativeCopies, slow: float = 5.0) -> None:
    """Worker 1 takes ``slow`` times as long as the others."""
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
    assert copies.choose(1, 2, work) == []  # they have copies already
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
            for _ in range(20):  # it waits for the others, and keeps reporting
                copies.take(worker, 0, 0)
    assert copies.slow() == {3}
