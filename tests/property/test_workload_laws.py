"""A workload agrees with plain sets: every slot is dealt until it is counted, once.

This holds whatever the workers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.schedule.intervals import runs, spread
from shoal.schedule.slot_queue import (
    AGAIN,
    AHEAD,
    MOST,
    SlotQueue,
)
from shoal.tables import Step

LAWS = settings(max_examples=200, deadline=None)
ABSURD = st.one_of(st.integers(0, 12), st.sampled_from([40, 1 << 20, 1 << 60, 1 << 61]))
Act = tuple[str, int, int]


@cache
def _shuffle(of_pass: int, per_pass: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(of_pass).permutation(per_pass).astype(np.int64)


@dataclass
class Cards:
    """A number of groups of rows, in a different order in every pass."""

    per_pass: int

    @property
    def turns(self) -> int:
        return self.per_pass

    def rows_in(self, contents: npt.NDArray[np.int64]) -> int:
        return sum(stop - start for start, stop in map(self.span, contents.tolist()))

    def contents(self, of_pass: int) -> npt.NDArray[np.int64]:
        return _shuffle(of_pass, self.per_pass)

    def content(self, of_pass: int, number: int) -> int:
        return int(self.contents(of_pass)[number])

    def span(self, content: int) -> tuple[int, int]:
        """Each group has three rows, the last one two."""
        return 3 * content, min(3 * content + 3, 3 * self.per_pass - 1)


@dataclass
class Book:
    """The same run in plain sets, and the laws that are checked after every action."""

    work: SlotQueue
    counted: set[int] = field(default_factory=set)
    hands: dict[int, set[int]] = field(default_factory=dict)  # by worker: the slots it has
    dealt: list[int] = field(default_factory=list)

    def act(self, what: str, worker: int, amount: int) -> None:
        if what == "enter":
            self.work.enter(worker, f"worker-{worker}")
            self.hands.setdefault(worker, set())
        elif what == "stop":
            self.work.stop()
        elif what == "barrier" and self.work.step is not None:
            # The next evaluation is this many steps ahead.
            ahead = self.work.steps_until(self.work.next) + amount
            self.work.barrier = self.work.slots_until(ahead) if amount % 3 else None
        elif worker in self.hands:
            getattr(self, f"_{what}", self._deal)(worker, amount)
        self.check()

    def _die(self, worker: int, amount: int) -> None:
        self.work.leave(worker, died=True)
        del self.hands[worker]

    def _leave(self, worker: int, amount: int) -> None:
        self.work.leave(worker, died=False)
        del self.hands[worker]

    def _back(self, worker: int, amount: int) -> None:
        back = sorted(self.hands[worker])[-amount:]
        self.work.give_back(worker, back)
        self.hands[worker] -= set(back)

    def _refuse(self, worker: int, amount: int) -> None:
        for slot in [*sorted(self.hands[worker])[:amount], 1 << 60, amount]:
            self.work.refuse(worker, slot, "not a number")
            self.hands[worker].discard(slot)

    def _count(self, worker: int, amount: int) -> None:
        self.report(worker, sorted(self.hands[worker])[:amount])

    def _recount(self, worker: int, amount: int) -> None:
        """Reports slots that it has, slots that it had, and slots of nobody."""
        self.report(worker, range(amount * 7))

    def report(self, worker: int, slots: Iterable[int]) -> None:
        told = set(slots) & self.hands[worker]
        new = self.work.count(worker, self.work.among(worker, runs(sorted(slots))))
        assert set(new) == told - self.counted and len(new) == len(set(new))
        self.counted |= told
        self.hands[worker] -= told

    def _deal(self, worker: int, amount: int) -> None:
        work, before, begun = self.work, set(self.dealt), self.work.next
        steps = work.steps if work.step is not None else 0
        again, new = work.deal(worker, amount)
        assert len(again) <= max(amount, AGAIN) and len(again) + len(new) <= max(amount, len(again))
        assert again == sorted(again)
        if work.step is None:
            assert set(again) <= before
        else:  # this includes slots that were meant for a worker that left before it asked
            assert all(slot < begun for slot in again)
        assert not before & set(new)
        for slot in (*again, *new):
            assert slot not in self.counted
            assert not any(slot in had for had in self.hands.values()), f"{slot} is in two hands"
            if work.step is not None:
                assert slot < work.limit and (work.barrier is None or slot < work.barrier)
                assert work.step_of(slot) < steps + AHEAD
        self.hands[worker] |= {*again, *new}
        self.dealt += [*(slot for slot in again if slot not in before), *new]

    def check(self) -> None:
        work = self.work
        assert work.done == len(self.counted)
        assert work.lowest == next(slot for slot in range(len(self.counted) + 1) if slot not in self.counted)
        assert work.finished == (len(self.counted) >= work.limit)
        if work.step is not None:
            assert work.finished == self.counted.issuperset(range(work.limit))
        for worker, had in self.hands.items():
            assert work.has(worker) == len(had)
        assert spread(work.counted(), 1 << 20) == sorted(self.counted)
        assert work.rows_counted == work.rows(self.counted)

    def bring_home(self) -> None:
        """One healthy worker does all that is left."""
        self.work.barrier = None
        for worker in list(self.hands):
            self.act("leave", worker, 0)
        self.act("enter", 99, 0)
        for _ in range(2 * self.work.limit + 2):
            if not self.work.finished:
                self._deal(99, 3)
                self._count(99, 2)
                self.check()
        self._count(99, MOST)
        self.check()
        assert self.work.finished and self.work.done == self.work.limit
        passes, rest = divmod(self.work.limit, self.work.per_pass)
        assert self.counted.issuperset(range(passes * self.work.per_pass))
        # Which slots of the last pass are dealt is up to the workers.
        if rest and self.work.step is None:
            assert max(self.counted) < (passes + 1) * self.work.per_pass


def workload(per_pass: int, slots: int, limit: int, in_steps: bool) -> SlotQueue:
    step = Step(slots=slots, slots_per_pass=per_pass) if in_steps else None
    work = SlotQueue(Cards(per_pass), limit, step)
    work.limit = work.slots_until(work.steps_until(limit))
    return work


WORKLOADS = st.tuples(st.integers(1, 13), st.integers(1, 5), st.one_of(st.integers(0, 60), st.just(99)), st.booleans())
AMOUNTS = st.one_of(st.integers(0, 9), st.integers(2, 3), st.just(99))
FAULTS = ["enter", "deal", "count", "recount", "back", "refuse", "die", "leave", "stop", "barrier"]


def acts(names: list[str]) -> st.SearchStrategy[list[Act]]:
    weighted = st.one_of(st.sampled_from(names), st.sampled_from(["deal", "count"]))
    here: list[Act] = [("enter", worker, 0) for worker in range(3)]
    return st.lists(st.tuples(weighted, st.integers(0, 3), AMOUNTS), min_size=3, max_size=40).map(here.__add__)


@LAWS
@given(WORKLOADS, acts(FAULTS))
def test_every_slot_is_dealt_until_it_is_counted_and_none_is_counted_twice(
    made: tuple[int, int, int, bool], story: list[Act]
) -> None:
    book = Book(workload(*made))
    for act in story:
        book.act(*act)
    book.bring_home()


@LAWS
@given(WORKLOADS, acts(["enter", "deal", "count"]))
def test_while_nobody_fails_every_slot_is_dealt_once(made: tuple[int, int, int, bool], story: list[Act]) -> None:
    book = Book(workload(*made))
    for act in story:
        book.act(*act)
    for worker in (0, 1):
        book.act("enter", worker, 0)
    while not book.work.finished:
        for worker in sorted(book.hands):
            book.act("deal", worker, 4)
            book.act("count", worker, 4)
    assert len(book.dealt) == len(set(book.dealt)) == book.work.limit
    for number in range(book.work.limit // book.work.per_pass):
        first = number * book.work.per_pass
        assert set(range(first, first + book.work.per_pass)) <= set(book.dealt)


@LAWS
@given(WORKLOADS, acts([name for name in FAULTS if name != "stop"]))
def test_a_run_that_is_taken_up_again_loses_and_repeats_nothing(
    made: tuple[int, int, int, bool], story: list[Act]
) -> None:
    book = Book(workload(*made))
    for act in story:
        book.act(*act)
    resumed = workload(*made)
    resumed.resume(spread(runs(sorted(book.counted)), 1 << 60))
    again = Book(resumed, set(book.counted))
    again.dealt = list(range(resumed.next))  # dealt before the restart, to any worker
    again.check()
    again.act("enter", 0, 0)
    resumed.barrier = 0  # the first weights after the restart are not read yet
    assert resumed.deal(0, 9) == ([], [])
    again.bring_home()


@LAWS
@given(WORKLOADS, acts(FAULTS), st.integers(0, 40), st.integers(0, 9), st.data())
def test_any_prefix_of_a_journal_resumes_and_workers_keep_what_they_had(
    made: tuple[int, int, int, bool], story: list[Act], prefix: int, ahead: int, data: st.DataObject
) -> None:
    """The journal ends anywhere; workers go on, some with slots that no record shows.

    Some workers are lost. In step mode nothing may hang: a worker computes its own slots in order,
    and a slot of step t only when all steps before are complete.
    """
    book = Book(workload(*made))
    written: set[int] = set()
    dealt = 0
    for number, act in enumerate(story):
        book.act(*act)
        if number < prefix:
            written, dealt = set(book.counted), book.work.next
    resumed = workload(*made)
    resumed.limit = book.work.limit
    resumed.voids.update(book.work.voids)
    resumed.resume(written, dealt)
    pushed = set(book.counted)  # the ledgers know more than the journal
    hands = {worker: sorted(had) for worker, had in book.hands.items() if data.draw(st.booleans())}
    hands[99] = []  # a new worker
    for worker in hands:
        resumed.enter(worker, f"worker-{worker}")
    lanes = {worker: [list(had)] for worker, had in hands.items()}
    for _ in range(20 * (resumed.limit + 4)):
        for worker, mine in lanes.items():
            busy = {slot for lane in mine for slot in lane}
            room = max(0, 3 - len(mine[0]))
            again, new = resumed.deal(worker, room)
            again, new = ([slot for slot in dealt if slot not in busy] for dealt in (again, new))
            behind = [slot for slot in new if mine[0] and slot < mine[0][-1]] if resumed.step is not None else []
            mine += [again, behind] if resumed.step is not None else [again]
            mine[0] += [slot for slot in new if slot not in behind]
            done = []
            for lane in mine:
                while lane and (resumed.step is None or _open_step(resumed, pushed) >= resumed.step_of(lane[0])):
                    done.append(lane.pop(0))
            pushed |= set(done)
            if worker == 99:
                resumed.count(worker, resumed.among(worker, runs(sorted(done))))
            else:
                told = runs(sorted(done))
                resumed.count(worker, resumed.among(worker, told))
                resumed.claim(worker, told)
        if resumed.finished:
            break
    assert resumed.finished
    if resumed.step is not None or resumed.limit % resumed.per_pass == 0:
        assert resumed.done == resumed.limit and pushed.issuperset(range(resumed.limit))
    # Nothing counts as counted that was not pushed.
    assert pushed.issuperset(spread(resumed.counted(), 1 << 20))


def _open_step(work: SlotQueue, pushed: set[int]) -> int:
    """The first step that is not complete."""
    lowest = next(slot for slot in range(len(pushed) + 1) if slot not in pushed)
    return work.step_of(lowest)


@LAWS
@given(WORKLOADS, acts(FAULTS), st.lists(st.tuples(ABSURD, ABSURD), max_size=5))
def test_runs_that_make_no_sense_name_only_what_a_worker_has(
    made: tuple[int, int, int, bool], story: list[Act], absurd: list[tuple[int, int]]
) -> None:
    book = Book(workload(*made))
    for act in story:
        book.act(*act)
    book.act("enter", 0, 0)
    for worker, had in book.hands.items():
        named = {slot for slot in had if any(first <= slot < stop for first, stop in absurd)}
        assert set(book.work.among(worker, absurd)) == named
    assert book.work.among(77, absurd) == []
    for worker in book.hands:
        book.report(worker, book.work.among(worker, [*absurd, (0, 1 << 61)]))
        book.check()
    book.bring_home()


@LAWS
@given(st.lists(st.integers(0, 40), max_size=30))
def test_runs_are_spread_into_the_slots_they_were_made_of(slots: list[int]) -> None:
    assert spread(runs(slots), len(slots)) == slots
    assert len(runs(sorted(set(slots)))) <= len(slots)
