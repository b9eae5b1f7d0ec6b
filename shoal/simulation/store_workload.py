"""Simulated clients and workers that push and pull in the counting model.

In the counting model every client (or slot) has a key of its own in each segment and adds 1 to it.
So a pulled vector shows which slots, or how many pushes of which client, it contains. One more key
per segment gets numbers whose sum depends on the order of addition, down to the last bit.

``BackgroundLoad`` is a client with a table of its own: every value that it pulls lies between its
acknowledged and its sent pushes. It does not run in plans that roll back.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from unittest import mock

import numpy as np

from shoal import limits
from shoal.errors import BadValues, ShoalError
from shoal.events import Begin, End, Event, Note
from shoal.keys import KeyList, Keys, Values
from shoal.limits import MILLISECOND
from shoal.nodes.worker import Worker
from shoal.simulation.faults import FaultPlan
from shoal.simulation.scenarios import Violations
from shoal.simulation.store_checker import delicate, slot_name
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.tables import Dense, Sparse, Step
from shoal.wire import messages as m

TABLE = "model"
COLUMNS = 64  # keys in one segment, as the table is made: more than any plan has slots


def small_limits(plan: FaultPlan) -> AbstractContextManager[object]:
    """Limits for short runs: low rates of load, and by the plan small or few of something."""
    seed, habits = plan.seed, plan.habits
    return mock.patch.multiple(
        limits,
        FILL_BYTES=64 if "small pieces" in habits else limits.FILL_BYTES,  # many
        MOVE_BYTES=3 * 4 * COLUMNS if "small batches" in habits else limits.MOVE_BYTES,
        HANDLE_BYTES=8_000 if seed // 4 % 2 else limits.HANDLE_BYTES,  # most key lists are dropped
        COPIES_HELD=2_000 if seed // 16 % 2 else limits.COPIES_HELD,  # pushes wait for the log
        LOAD_LEAST=200.0,
        LOAD_ABOVE=1.0,  # a few rows more or less must not count
    )


class IncarnationEnded(Exception):
    """This life of a worker has ended; it restarts as another."""


class SimulatedDealer:
    """Assigns slots: in order, again when a worker is gone, and now and then twice."""

    def __init__(self, plan: FaultPlan) -> None:
        self._random = Random(f"{plan.seed}/dealer")
        self._new = deque(range(plan.slots))
        self._again: deque[int] = deque()
        self._out: dict[int, list[str]] = {}
        self._copies = "second copies" in plan.habits
        self.done: set[int] = set()
        self.void = {slot for slot in range(plan.slots) if "void" in plan.habits and self._random.random() < 0.2}
        self._all = plan.slots

    @property
    def finished(self) -> bool:
        return len(self.done) == self._all

    def take(self, worker: str) -> int | None:
        if (slot := self.take_again(worker)) is not None:
            return slot
        if self._copies and self._out and self._random.random() < 0.25:
            slot = self._random.choice(sorted(self._out))
            if worker not in self._out[slot]:
                return self._deal(slot, worker)
        return self._deal(self._new.popleft(), worker) if self._new else None

    def take_again(self, worker: str) -> int | None:
        return self._deal(self._again.popleft(), worker) if self._again else None

    def _deal(self, slot: int, worker: str) -> int:
        self._out.setdefault(slot, []).append(worker)
        return slot

    def counted(self, slot: int) -> None:
        self.done.add(slot)
        self._out.pop(slot, None)

    def give_back(self, worker: str) -> None:
        for slot in sorted(self._out):
            if worker in self._out[slot]:
                self._out[slot] = [holder for holder in self._out[slot] if holder != worker]
                if not self._out[slot]:
                    del self._out[slot]
                    self._again.append(slot)


class HistoryRecorder:
    """Records the history, and knows the keys of all clients and slots."""

    def __init__(self, plan: FaultPlan, now: Callable[[], int]) -> None:
        self.plan, self.now = plan, now
        self.history: list[Event] = []
        self._calls = 0
        self.on_broken: Callable[[Worker], None] = lambda worker: None  # a push failed for good
        self.duration: Callable[[str, int], int] = lambda worker, computing: computing
        self._steps: dict[tuple[Worker, int], int] = {}  # last step, by worker and number of fences
        self.columns = plan.slots if plan.kind != "clients" else plan.workers
        self._lists: dict[int, KeyList] = {}  # reused by all lives of all workers

    def note(self, what: str, client: str = "", incarnation: int = 0, value: int | None = None) -> None:
        self.history.append(Note(self.now(), what, client, incarnation, value))  # type: ignore[arg-type]

    def starts(self, layout: Layout) -> Keys:
        """The first keys of the original segments, some of which may be split."""
        return np.arange(0, layout.spec.span, COLUMNS, dtype=np.uint64)

    def everything(self, layout: Layout) -> Keys:
        columns: Keys = np.arange(self.columns + 1, dtype=np.uint64)
        return (self.starts(layout)[:, None] + columns).reshape(-1)

    def listed(self, column: int, keys: Keys) -> Keys | KeyList:
        """These keys, as a list that servers may know by a number: in every other pair of seeds."""
        if self.plan.seed // 2 % 2 == 0:
            return keys
        listed = self._lists.get(column)
        if listed is None or not np.array_equal(listed.keys, keys):
            listed = self._lists[column] = KeyList(keys)
        return listed

    def table(self, values: Values) -> Values:
        """By segment: the counts of all columns, then the sum of all values."""
        return values.reshape(-1, self.columns + 1)

    async def pull(self, worker: Worker, layout: Layout, clock: int | None, enter: bool = False) -> None:
        client = worker.client
        task = client.pull(TABLE, self.listed(-1, self.everything(layout)), clock=clock)
        call = self._begin(worker, "pull", clock=client.session.clock if clock is None else clock, enter=enter)
        task.then(lambda task: self._ended(call, task))
        await _or_stop(task)

    def push(
        self, worker: Worker, layout: Layout, column: int, amounts: Values, number: int, void: bool = False
    ) -> Task:
        plan = self.plan
        starts = self.starts(layout)
        keys: Keys = np.sort(np.concatenate([starts + np.uint64(column), starts + np.uint64(self.columns)]))
        slot = None if plan.kind == "clients" else slot_name(plan, number)
        step = self._next_step(worker) if plan.kind == "each" else None
        task = worker.client.push(TABLE, self.listed(column, keys), amounts, slot=slot, step=step, void=void)
        call = self._begin(worker, "push", number=number, step=step or 0)
        task.then(lambda task: self._ended(call, task))
        task.then(lambda task: self.on_broken(worker) if task.error is not None else None)
        return task

    def _next_step(self, worker: Worker) -> int:
        """Numbers a step when it is made, not when it is sent: several may be in flight.

        Numbers restart with each incarnation, which has no number while the worker waits to be
        welcomed.
        """
        client = worker.client
        incarnation = worker, client.session.counts["fenced"]
        step = self._steps[incarnation] = max(self._steps.get(incarnation, 0), client.session.clock) + 1
        return step

    def _begin(self, worker: Worker, kind: str, **facts: int) -> int:
        self._calls += 1
        client = worker.client
        self.history.append(Begin(self.now(), self._calls, worker.name, client.session.incarnation, kind, **facts))  # type: ignore[arg-type]
        return self._calls

    def _ended(self, call: int, task: Task) -> None:
        if task.error is not None:
            self.history.append(End(self.now(), call, "unknown", f"{type(task.error).__name__}: {task.error}"))
            return
        seen = [] if task.value is None else self.table(task.value)[:, :-1].astype(np.int64).tolist()
        self.history.append(End(self.now(), call, "ok", seen=seen))


async def client_life(worker: Worker, recorder: HistoryRecorder, column: int, done: list[int], random: Random) -> None:
    """A plain client that pushes and pulls. ``done`` counts its pushes over all its lives."""
    plan = recorder.plan
    layout = await _table(worker)
    ones = np.tile(np.array([1.0, 0.0], np.float32), len(recorder.starts(layout)))
    in_flight: deque[Task] = deque()
    while done[0] < plan.slots:
        done[0] += 1
        await _think(worker, recorder, random)
        if random.random() < 0.4:
            await recorder.pull(worker, layout, None)
        if random.random() < 0.1:
            _push_nonsense(worker, layout)
        in_flight.append(recorder.push(worker, layout, column, ones, done[0]))
        await _finish_down_to(in_flight, 3 if "pipeline" in plan.habits else 0)
    await _finish_down_to(in_flight, 0)


async def worker_life(worker: Worker, recorder: HistoryRecorder, dealer: SimulatedDealer, random: Random) -> None:
    """A worker: pull, compute, push, slot after slot, until all are counted."""
    plan = recorder.plan
    layout = await _table(worker)
    client, entered = worker.client, False
    in_flight: deque[Task] = deque()
    # A step closes when all its slots are here, so a worker must go on before its slot counts.
    ahead = 4 * plan.slots_per_step + 4 if plan.kind == "step" else 4 if "pipeline" in plan.habits else 0
    while not dealer.finished:
        slot = dealer.take(worker.name)
        if slot is None or ("park" in plan.habits and random.random() < 0.1):
            if slot is not None:
                dealer.give_back(worker.name)
            elif plan.kind == "each":
                await _finish_down_to(in_flight, 0)
            if entered:
                await _park(worker, recorder)
                entered = False
            await worker.sleep(random.randrange(20, 200) * MILLISECOND)
            continue
        if plan.kind == "each":
            await recorder.pull(worker, layout, None, enter=not entered)
            if not entered:
                entered = True
                recorder.note("entered", worker.name, client.session.incarnation, client.session.clock)
        else:
            await recorder.pull(worker, layout, _step(layout, plan, slot))
        await _think(worker, recorder, random)
        in_flight.append(_push_slot(worker, recorder, dealer, layout, slot))
        await _finish_down_to(in_flight, ahead)
    if entered:
        await _park(worker, recorder)


async def returned_slots_life(
    worker: Worker, recorder: HistoryRecorder, dealer: SimulatedDealer, random: Random
) -> None:
    """Computes returned slots of a step that the worker itself is waiting for."""
    layout = await _table(worker)
    while not dealer.finished:
        slot = dealer.take_again(worker.name)
        if slot is None:
            await worker.sleep(50 * MILLISECOND)
        else:  # on a lane of its own: an earlier one may come back while this one waits
            worker.start(_once_more(worker, recorder, dealer, layout, slot))


async def _once_more(
    worker: Worker, recorder: HistoryRecorder, dealer: SimulatedDealer, layout: Layout, slot: int
) -> None:
    try:
        await recorder.pull(worker, layout, _step(layout, recorder.plan, slot))
    except IncarnationEnded:
        recorder.on_broken(worker)
        return
    _push_slot(worker, recorder, dealer, layout, slot)


def _push_slot(worker: Worker, recorder: HistoryRecorder, dealer: SimulatedDealer, layout: Layout, slot: int) -> Task:
    """One for the slot's own key and a delicate number for the common one, in every segment."""
    amounts = np.tile(np.array([1.0, delicate(recorder.plan, slot)], np.float32), len(recorder.starts(layout)))
    task = recorder.push(worker, layout, slot, amounts, slot, void=slot in dealer.void)
    task.then(lambda task: dealer.counted(slot) if task.error is None else None)
    return task


async def _park(worker: Worker, recorder: HistoryRecorder) -> None:
    recorder.note("parking", worker.name, worker.client.session.incarnation)
    await _or_stop(worker.client.park())


async def _finish_down_to(in_flight: deque[Task], most: int) -> None:
    while len(in_flight) > most:
        await _or_stop(in_flight.popleft())


def _step(layout: Layout, plan: FaultPlan, slot: int) -> int:
    return layout.spec.apply.step_of(slot_name(plan, slot))  # type: ignore[union-attr]


async def _table(worker: Worker) -> Layout:
    while TABLE not in worker.client.session.layouts:
        await worker.sleep(20 * MILLISECOND)
    return worker.client.session.layout(TABLE)


async def _think(worker: Worker, recorder: HistoryRecorder, random: Random) -> None:
    longest = recorder.plan.think * MILLISECOND
    duration = recorder.duration(worker.name, random.randrange(longest // 10, longest))
    await worker.sleep(duration)


async def _or_stop(task: Task) -> None:
    try:
        await task
    except ShoalError as error:
        raise IncarnationEnded from error


def _push_nonsense(worker: Worker, layout: Layout) -> None:
    try:
        worker.client.push(TABLE, layout.starts, np.full(len(layout.starts), np.nan))
    except BadValues:
        return
    raise AssertionError("a push that is not finite left the client")


def nonsense(plan: FaultPlan, worker: Worker, how: str) -> tuple[m.Push, list[m.Array]] | None:
    """A push that must have no effect, as no client sends it; None: no table yet."""
    client = worker.client
    layout = client.session.layouts.get(TABLE)
    if layout is None or not client.session.incarnation:
        return None
    keys = layout.starts[:2].copy()
    values = np.ones(len(keys), np.float32)
    match how:
        case "nan":
            values[-1] = np.nan
        case "unsorted":
            keys = np.concatenate([keys, keys])[::-1].copy()
            values = np.ones(len(keys), np.float32)
        case "short":
            values = values[:-1]
        case "far":
            keys = keys + np.uint64(1 << 40)
    if isinstance(layout.spec.apply, Step):
        stream, number = slot_name(plan, plan.slots - 1)
    else:
        stream, number = -client.session.incarnation, 1 << 18
    push = m.Push(
        1 << 50, layout.number, client.session.view.number, client.session.view.generation, client.session.incarnation, stream, number, 0, 0, 0, 0,
        0, m.EVERYWHERE, len(keys),
    )  # fmt: skip
    return push, [keys, values]


ASIDE = "aside"
WIDTH = 64  # keys in a segment
NAME = "bystander"


class BackgroundLoad:
    def __init__(self, plan: FaultPlan, segments: int) -> None:
        self.plan, self._random = plan, Random(f"{plan.seed}/bystander")
        self.sent = self.acked = 0
        self.violations = Violations()
        self.stopped = False
        self._span, self._pause = WIDTH * segments, 60 if plan.balance == "load" else 300
        hot = plan.balance == "load"  # it pushes to the first segment only, which is split for it
        self._keys: Keys = np.arange(0, WIDTH if hot else self._span, 1 if hot else WIDTH, dtype=np.uint64)

    async def life(self, worker: Worker, came_to_rest: Callable[[], bool]) -> None:
        while ASIDE not in worker.client.session.layouts:
            await worker.sleep(50 * MILLISECOND)
            spec = Sparse(keys=self._span) if self.plan.dense else Dense(rows=self._span)
            with contextlib.suppress(ShoalError):  # too late an answer, or done by a former life
                await worker.client.create(ASIDE, spec)
        while not self.stopped or not came_to_rest():
            await worker.sleep(self._random.randrange(20, self._pause) * MILLISECOND)
            await self._once(worker)
        while not await self._check_values(worker):  # the last word
            await worker.sleep(100 * MILLISECOND)
        await worker.sleep(100 * MILLISECOND)

    async def _once(self, worker: Worker) -> None:
        if self._random.random() < 0.3:
            await self._check_values(worker)
            return
        self.sent += 1
        try:
            await worker.client.push(ASIDE, self._keys, np.ones(len(self._keys), np.float32))
        except ShoalError:
            await worker.sleep(100 * MILLISECOND)
        else:
            self.acked += 1

    async def _check_values(self, worker: Worker) -> bool:
        least = self.acked
        try:
            found = await worker.client.pull(ASIDE, self._keys)
        except ShoalError:
            return False
        if not ((least <= found) & (found <= self.sent)).all():
            what = f"the bystander's table has {found.tolist()}: {least} of {self.sent} pushes were acknowledged"
            self.violations.add("I1 exactly once", what)
        return True
