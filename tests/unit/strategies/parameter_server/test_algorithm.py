"""A strategy pulls, computes gradients and pushes; the test answers as the servers would.

What it sends, in which order, and what it waits for.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from shoal.data.batch import Local
from shoal.data.slots import Slot
from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.limits import SECOND
from shoal.nodes.worker import Worker
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.store.table.update import SGD
from shoal.strategies.parameter_server.algorithm import (
    _INFLIGHT,
    Async,
    Bounded,
    ParameterServer,
    Sync,
)
from shoal.tables import TABLE, Dense, Each, Sparse, Step
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Send, Tick

START = 50 * SECOND
ROWS, PER_PASS = 100, 20


class Paper:
    """A lane of slots, each with one row; the test plays the server."""

    def __init__(self, strategy: ParameterServer, slots: int) -> None:
        self.worker = Worker("me", "worker", "token")
        self.queue: deque[Slot] = deque((0, number) for number in range(slots))
        self.ended = False
        self.void: set[Slot] = set()
        self.bad: set[int] = set()
        self.refused: dict[Slot, str] = {}
        self.newers = 0
        self.left: set[Slot] = set()
        # Whether the scheduler admits newer weights at once.
        self.heard, self.admitting = (
            True,
            Task("admit"),
        )
        self.counted: list[Slot] = []
        self.losses: list[float] = []
        self.sent: list[Any] = []
        self._waits: Task | None = None
        table = strategy.table(ROWS, SGD(0.1), PER_PASS)
        members = [m.Member("ann", 1, "server", "memory:ann"), m.Member("me", 7, "worker", "")]
        view = m.View(1, 3, 0, members, [m.TablePlaces(1, TABLE, table, [0], [m.Replicas(1, ["ann"])])])
        self.feed(Tick())
        self.feed(Received("coordinator", m.Welcome("token.0", 7, view)))
        self.whole = self.worker.start(strategy.run(self))
        self.feed(Tick())

    @property
    def client(self) -> Client:
        return self.worker.client

    @property
    def over(self) -> bool:
        return self.ended and not self.queue

    def next(self) -> Slot | None:
        return self.queue.popleft() if self.queue else None

    def put_back(self, slot: Slot | None) -> None:
        if slot is not None:
            self.queue.appendleft(slot)

    def more(self) -> Task:
        self._waits = Task("another slot")
        return self._waits

    def is_void(self, slot: Slot) -> bool:
        return slot in self.void

    def local(self, slot: Slot) -> Local:
        keys = np.array([slot[1]], np.uint64)
        row = np.array([0, 1], np.int64)
        return Local(keys, row, np.zeros(1, np.uint32), None, np.ones(1, np.float32))

    def gradient(self, local: Local, weights: Any, mean: bool) -> Task:
        task = Task("compute")
        value = np.nan if int(local.keys[0]) in self.bad else 1.0 + mean
        task.finish((float(local.keys[0]), np.array([value], np.float32)))
        return task

    def early(self, local: Local, weights: Any, mean: bool) -> Task | None:
        return None

    def push(self, slot: Slot, local: Local | None, loss: float, task: Task) -> None:
        self.losses.append(loss)
        task.then(lambda task: self.counted.append(slot))

    def waited(self, task: Task) -> None:
        pass

    def give_back(self, slot: Slot) -> bool:
        self.newers += 1
        return slot in self.left

    def report_newer(self) -> Task:
        self.admitting = Task("admit")
        if self.heard:
            self.admitting.finish()
        return self.admitting

    def refuse(self, slot: Slot, why: str) -> None:
        self.refused[slot] = why

    def feed(self, event: Any) -> None:
        effects: list[Effect] = self.worker.handle(START, event)
        self.sent += [one.message for one in effects if isinstance(one, Send) and one.to == "ann"]

    def wake(self) -> None:
        assert self._waits is not None
        self._waits.finish()
        self.feed(Tick())

    def take(self, kind: type[Any]) -> list[Any]:
        found = [message for message in self.sent if isinstance(message, kind)]
        self.sent = [message for message in self.sent if not isinstance(message, kind)]
        return found

    def answer(self, pull: m.Pull, versions: list[int] | None = None) -> None:
        # In a step table the version is that of the step which the pull waits for, unless that
        # step was taken already.
        versions = [max(pull.clock, 0)] if versions is None else versions
        values = m.Values(pull.request, pull.count, versions, entered=0 if pull.enter else m.NO_CLOCK)
        self.feed(Received("ann", values, [np.zeros(pull.count, np.float32)]))

    def count(self, push: m.Push) -> None:
        if push.ahead < 0:
            self.feed(Received("ann", m.Counted(push.request, new=True)))
        else:  # it also asked for the weights of the next slot
            values = m.Values(push.request, push.ahead, [1])
            self.feed(Received("ann", values, [np.zeros(push.ahead, np.float32)]))


def play(lane: Paper, counting: bool = True) -> list[m.Push]:
    """Answer every message as it arrives; return the pushes, in order."""
    pushes: list[m.Push] = []
    while lane.sent:
        message = lane.sent.pop(0)
        match message:
            case m.Pull():
                lane.answer(message)
            case m.Push():
                pushes.append(message)
                if counting:
                    lane.count(message)
            case m.Park():
                lane.feed(Received("ann", m.Done(message.request)))
    return pushes


STRATEGIES = [Sync(slots_per_step=2), Bounded(max_delay=3), Async()]
ALL = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)


# ---------------------------------------------------------------- described


def test_the_three_famous_forms_are_points_of_one_table() -> None:
    assert [(one.name, one.in_steps) for one in STRATEGIES] == [("sync", True), ("bounded", False), ("async", False)]
    sync, bounded, free = (one.table(ROWS, SGD(0.1), PER_PASS) for one in STRATEGIES)
    assert sync == Dense(rows=ROWS, update=SGD(0.1), apply=Step(2, "mean", PER_PASS), max_delay=0)
    assert bounded == Dense(rows=ROWS, update=SGD(0.1), apply=Each(), max_delay=3)
    assert free == Dense(rows=ROWS, update=SGD(0.1), apply=Each(), max_delay=None)


def test_very_many_rows_are_born_when_they_are_pushed() -> None:
    assert isinstance(Async().table(1 << 24, SGD(0.1), 1), Dense)
    assert Async().table((1 << 24) + 1, SGD(0.1), 1) == Sparse(keys=(1 << 24) + 1, update=SGD(0.1))


def test_sums_are_combined_as_sums() -> None:
    table = Sync(combine="sum").table(ROWS, SGD(0.1), PER_PASS)
    assert isinstance(table.apply, Step) and table.apply.combine == "sum"


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Async, {"prefetch": -1}),
        (Async, {"prefetch": 65}),
        (Bounded, {"max_delay": -1}),
        (Sync, {"max_delay": -1}),
        (Sync, {"slots_per_step": 0}),
        (Sync, {"slots_per_step": 4_097}),
    ],
)
def test_settings_that_cannot_be_are_refused(kind: Any, wrong: dict[str, int]) -> None:
    with pytest.raises(Invalid, match=f"strategy.{next(iter(wrong))}"):
        kind(**wrong)


# ---------------------------------------------------------------- run


@ALL
def test_every_slot_is_pushed_once_in_order_and_then_it_is_over(strategy: ParameterServer) -> None:
    lane = Paper(strategy, slots=6)
    lane.ended = True
    pushes = play(lane)
    assert [(push.stream, push.number) for push in pushes] == [(0, number) for number in range(6)]
    assert lane.counted == [(0, number) for number in range(6)]
    assert lane.losses == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert lane.whole.done and lane.whole.error is None


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_so_many_pulls_are_under_way_beyond_the_one_that_is_needed(prefetch: int) -> None:
    lane = Paper(Sync(prefetch=prefetch), slots=10)
    pulls = lane.take(m.Pull)
    assert [pull.count for pull in pulls] == [1] * (prefetch + 1)
    lane.answer(pulls[0])
    assert len(lane.take(m.Push)) == 1
    assert len(lane.take(m.Pull)) == 1  # one is used up, one more is requested


class Beside(Paper):
    """A lane that computes beside its loop: a computation ends only when ``compute`` is called."""

    def __init__(self, strategy: ParameterServer, slots: int) -> None:
        self.computing: list[tuple[int, Task]] = []
        super().__init__(strategy, slots)

    def gradient(self, local: Local, weights: Any, mean: bool) -> Task:
        task = Task("compute")
        self.computing.append((int(local.keys[0]), task))
        return task

    early = gradient

    def compute(self) -> int:
        """Finish the first computation that was begun."""
        slot, task = self.computing.pop(0)
        bad = np.nan if slot in self.bad else 1.0
        task.finish((float(slot), np.array([bad], np.float32)))
        self.feed(Tick())
        return slot

    @property
    def begun(self) -> list[int]:
        return [slot for slot, _ in self.computing]


@ALL
def test_the_next_slot_is_begun_while_one_is_computed(strategy: ParameterServer) -> None:
    lane = Beside(strategy, slots=6)
    lane.ended = True
    pushes = play(lane)
    done = []
    while lane.computing:
        assert len(lane.computing) <= 2 and (done == [] or lane.begun == sorted(lane.begun))
        done.append(lane.compute())
        pushes += play(lane)
    assert done == [push.number for push in pushes] == [0, 1, 2, 3, 4, 5]
    assert lane.losses == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert lane.whole.done and lane.whole.error is None


def test_a_slot_is_begun_early_only_with_weights_that_are_here() -> None:
    lane = Beside(Sync(slots_per_step=1), slots=4)
    first, second = lane.take(m.Pull)
    lane.answer(first)
    assert lane.begun == [0]  # the weights of the second wait for the step of the first
    lane.answer(second)
    assert lane.begun == [0, 1]


def test_a_slot_of_which_some_weights_are_newer_is_not_begun_early() -> None:
    lane = Beside(Sync(slots_per_step=2), slots=4)
    first, second = lane.take(m.Pull)
    lane.answer(first)
    lane.answer(second, [0, 1])
    assert lane.begun == [0] and lane.newers == 0


def test_a_gradient_that_is_refused_leaves_the_one_that_was_begun_early() -> None:
    lane = Beside(Async(), slots=4)
    lane.bad = {1}
    lane.ended = True
    pushes = play(lane)
    while lane.computing:
        lane.compute()
        pushes += play(lane)
    assert [push.number for push in pushes] == [0, 2, 3] and list(lane.refused) == [(0, 1)]


def test_weights_that_are_newer_than_their_step_are_reported() -> None:
    lane = Paper(Sync(slots_per_step=2, prefetch=0), slots=3)
    # Slots 0 and 1 are of step 0: either one segment had taken it, or all had, and then nothing
    # counts. Slot 2 is of step 1.
    for versions, newers in (([0, 1], 1), ([1, 1], 1), ([1, 1], 1)):
        (pull,) = lane.take(m.Pull)
        lane.answer(pull, versions)
        assert lane.newers == newers


def test_a_slot_of_which_some_weights_are_newer_is_pushed_when_that_is_known() -> None:
    """The worker that pushed it may die right after that.

    The model would differ from the serial run's, and nobody could say why.
    """
    lane = Paper(Sync(slots_per_step=2, prefetch=0), slots=1)
    lane.heard = False
    (pull,) = lane.take(m.Pull)
    lane.answer(pull, [0, 1])
    assert lane.take(m.Push) == []
    lane.admitting.finish()
    lane.feed(Tick())
    assert [push.number for push in lane.take(m.Push)] == [0]


def test_a_slot_of_which_some_weights_are_newer_is_left_to_who_pushed_it() -> None:
    lane = Paper(Sync(slots_per_step=2, prefetch=0), slots=2)
    lane.left = {(0, 0)}
    (pull,) = lane.take(m.Pull)
    lane.answer(pull, [0, 1])
    assert lane.take(m.Push) == [] and lane.losses == []
    (pull,) = lane.take(m.Pull)  # the lane goes on with the next slot
    lane.answer(pull, [0, 0])
    assert len(lane.take(m.Push)) == 1


class Whole(Paper):
    """A lane whose slots all need the same range."""

    def local(self, slot: Slot) -> Any:
        class One:
            listed, nonzeros, keys = KeyRange(0, ROWS), 1, np.array([slot[1]])

            def __len__(self) -> int:
                return 1

        return One()

    def gradient(self, local: Any, weights: Any, mean: bool) -> Task:
        assert np.size(weights) == ROWS
        task = Task("compute")
        task.finish((float(local.keys[0]), np.ones(ROWS, np.float32)))
        return task


def test_a_push_of_a_range_brings_it_back_for_the_slot_after_the_next() -> None:
    lane = Whole(Async(), slots=6)
    lane.ended = True
    pulls, pushes = 0, []
    while lane.sent:
        message = lane.sent.pop(0)
        if isinstance(message, m.Pull):
            pulls += 1
            lane.answer(message)
        elif isinstance(message, m.Push):
            pushes.append(message)
            values = m.Values(message.request, ROWS, [1])
            answer = m.Counted(message.request, new=True)
            lane.feed(
                Received("ann", values, [np.zeros(ROWS, np.float32)]) if message.pull else Received("ann", answer)
            )
        else:
            lane.feed(Received("ann", m.Done(message.request)))
    assert [push.number for push in pushes] == [0, 1, 2, 3, 4, 5] and lane.losses == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    # Only the first slots need a separate pull.
    assert pulls == 2 and sum(push.pull for push in pushes) == 4
    assert lane.whole.done and lane.whole.error is None


def test_a_synchronous_pull_waits_for_the_step_of_its_slot() -> None:
    lane = Paper(Sync(slots_per_step=2, prefetch=3), slots=4)
    assert [pull.clock for pull in lane.take(m.Pull)] == [0, 0, 1, 1]


def test_a_bounded_pull_carries_the_clock_at_which_it_will_be_used() -> None:
    lane = Paper(Bounded(prefetch=2), slots=9)
    (enter,) = lane.take(m.Pull)  # the others follow: this one decides the clock
    assert enter.enter
    lane.answer(enter)
    clocks: list[int] = []
    while lane.sent:
        message = lane.sent.pop(0)
        if isinstance(message, m.Pull) or (isinstance(message, m.Push) and message.ahead >= 0):
            clocks.append(message.clock)
        if isinstance(message, m.Pull):
            lane.answer(message)
        elif isinstance(message, m.Push):
            lane.count(message)
    assert sorted(clocks) == [1, 2, 3, 4, 5, 6, 7, 8]  # slot n is used when n slots are pushed


@pytest.mark.parametrize("strategy", [Bounded(), Async()], ids=lambda strategy: strategy.name)
def test_where_pushes_count_at_once_only_so_many_are_not_counted_yet(strategy: ParameterServer) -> None:
    lane = Paper(strategy, slots=PER_PASS)
    out = deque(play(lane, counting=False))
    while out:
        assert len(out) <= _INFLIGHT + 1
        lane.count(out.popleft())
        out.extend(play(lane, counting=False))
    assert len(lane.counted) == PER_PASS


@pytest.mark.parametrize("strategy", [Bounded(), Async()], ids=lambda strategy: strategy.name)
def test_who_has_nothing_to_do_parks_and_comes_back(strategy: ParameterServer) -> None:
    lane = Paper(strategy, slots=1)
    (pull,) = lane.take(m.Pull)
    lane.answer(pull)
    (push,) = lane.take(m.Push)
    assert lane.take(m.Park) == []  # not before everything is counted
    lane.count(push)
    (park,) = lane.take(m.Park)
    lane.feed(Received("ann", m.Done(park.request)))
    lane.queue.append((0, 5))
    lane.wake()
    (pull,) = lane.take(m.Pull)
    assert pull.enter and pull.spell == park.spell + 1


def test_in_steps_nobody_waits_for_workers_so_nobody_parks() -> None:
    lane = Paper(Sync(), slots=1)
    play_out = play(lane)
    lane.ended = True
    lane.wake()
    assert len(play_out) == 1 and lane.whole.done and lane.take(m.Park) == []


@ALL
def test_a_void_slot_is_pushed_empty_and_pulls_nothing(strategy: ParameterServer) -> None:
    lane = Paper(strategy, slots=0)
    lane.void, lane.ended = {(0, 3)}, True
    lane.queue.append((0, 3))
    lane.wake() if lane._waits else play(lane)  # it may have parked first
    if lane._waits:
        lane.wake()
    pushes = play(lane)
    assert [(push.number, push.void, push.count) for push in pushes] == [(3, True, 0)]
    assert lane.counted == [(0, 3)] and lane.losses == [0.0]


@ALL
def test_a_gradient_that_is_no_number_is_refused_and_the_next_one_pushed(strategy: ParameterServer) -> None:
    lane = Paper(strategy, slots=0)
    play(lane)
    lane.bad, lane.ended = {1}, True
    lane.queue.extend([(0, 0), (0, 1), (0, 2)])
    lane.wake()
    pushes = play(lane)
    assert [push.number for push in pushes] == [0, 2]
    assert list(lane.refused) == [(0, 1)] and "not finite" in lane.refused[0, 1]
    assert lane.whole.done and lane.whole.error is None


@ALL
def test_a_push_that_fails_for_good_ends_the_run_of_the_lane(strategy: ParameterServer) -> None:
    lane = Paper(strategy, slots=4)
    for _ in range(3):
        for pull in lane.take(m.Pull):
            lane.answer(pull)
    (push, *_) = lane.take(m.Push)
    lane.feed(Received("ann", m.Refusal(push.request, "full", "no memory")))
    lane.ended = True
    if lane._waits is not None:
        lane.wake()
    play(lane)
    assert "no memory" in str(lane.whole.error)
