"""One worker of a Hogwild run, in a process or a thread of its own.

It waits for its bell, takes slots off the cursor that all share until none is left, says that it is done, and waits again:

    bell    a pipe of its own: GO (there is a round), LEAVE (finish the slot you have, and go)
    news    a pipe that all write to: READY, DONE, LEAVING (as it was asked to), each with the worker's number

Whoever rings is the process that keeps the score (``hogwild``); it computes nothing, and workers say nothing else.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import threading
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from shoal.data.dense_file import sparse
from shoal.data.mapped import train_rows
from shoal.data.slots import Slots
from shoal.emulation import Slowdown
from shoal.errors import Invalid
from shoal.job import Job
from shoal.launch.shared_memory import SharedLayout, SharedMemory, open_of
from shoal.launch.worker_process import number_of
from shoal.models.learner import Data, learner_of
from shoal.models.linear import Linear
from shoal.nodes.dense_batches import DenseBatches
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.update import rule_named
from shoal.strategies.hogwild import loop
from shoal.strategies.hogwild.loop import (
    BEATS,
    CANARY,
    CELLS,
    CURSOR,
    LIMIT,
    LINE,
    ROWS,
    SLOTS,
    STOP,
    HogwildLoop,
)
from shoal.strategies.hogwild.settings import Hogwild

if TYPE_CHECKING:
    from shoal.launch.process_main import Process, ProcessOrders

GO, LEAVE = b"g", b"l"
READY, DONE, ENDED, LEAVING = range(4)
NEWS = struct.Struct("<IB")  # worker and what it says, in one write: the kernel keeps it whole
LOSS, BUSY = 0, 1  # columns of ``sums``
PLAN = "plan "  # before the names of what repeats

_AT_ONCE = 0.05  # seconds in one piece: it is not heard meanwhile that the worker is to leave


class HogwildSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process needs to know, as plain data."""

    job: str  # as TOML
    rows: str  # the folder of the packed set
    about: str  # the module, as the process that keeps the score has it
    place: SharedLayout
    seat: int
    bell: tuple[int, int]  # both ends: it rings its own when it is sent a SIGTERM
    news: int


class HogwildCompute(Protocol):
    """What computes."""

    def run(self, most: int) -> int:
        """So many slots at most; fewer only if none is left, or all are to stop."""


class LinearCompute:
    """Slots of sparse rows, by the compiled loop."""

    def __init__(self, race: HogwildLoop, segment: SharedMemory, seat: int) -> None:
        slab, desk, sums, tally, order = (segment[name] for name in ("slab", "desk", "sums", "tally", "order"))
        self._run = partial(race.run, slab, desk, sums, tally, order, seat)

    def run(self, most: int) -> int:
        return self._run(most)


class ModuleCompute:
    """Slots of a module: its parameters are the shared memory, and the rule writes there."""

    def __init__(self, job: Job, data: Data, segment: SharedMemory, seat: int, number: int, about: str) -> None:
        from shoal.models.torch_learner import ModuleLearner

        learner = learner_of(job.model, data, job.seed, number)
        assert isinstance(learner, ModuleLearner) and isinstance(job.strategy, Hogwild)
        if learner.about != about:
            raise Invalid(f"the module is not the same in every process: {learner.about} here, {about} in the first")
        learner.settle(alone=True)
        self._learner, self._mean, self._canary = learner, job.strategy.combine == "mean", job.strategy.canary > 0
        self._slices = DenseBatches(data, Slots(data.rows, job.data.batch, job.seed), learner.keys)
        update = job.update.update()
        rule = rule_named(update.name)
        self._push = dense_kernels(rule).push_range
        self._given = np.array(rule.settings(update.settings), np.float64)
        self._slab, self._desk, self._tally = segment["slab"], segment["desk"], segment["tally"]
        self._of_pass, self._numbers = segment["pass"], segment["numbers"]
        self._cell, self._sums = self._desk[CELLS + seat], segment["sums"][seat]
        self._weights = self._slab[0, : learner.keys * learner.width].reshape(learner.keys, learner.width)
        learner.live_on(self._weights)

    def run(self, most: int) -> int:
        for done in range(most):
            if self._desk[STOP, 0] or (i := _next(self._desk)) >= self._desk[LIMIT, 0]:
                return done
            local = self._slices.local((int(self._of_pass[0]), int(self._numbers[i])))
            loss, gradient = self._learner.gradient(local, self._weights, self._mean)
            self._push(self._slab, 0, 0, gradient.reshape(1, -1), self._given)
            if self._canary:
                self._desk[CANARY, 0] += 1  # as unguarded as the weights
                self._cell[BEATS] += 1
            self._tally[i] = 1
            self._cell[SLOTS] += 1
            self._cell[ROWS] += len(local)
            self._sums[LOSS] += loss
        return most


def _next(desk: Any) -> int:
    """The next number off the cursor, which nobody else gets."""
    from shoal.strategies.hogwild.atomics import changed

    words = desk.reshape(-1)
    while True:
        number = int(desk[CURSOR, 0])
        if changed(words, CURSOR * LINE, number, number + 1) == number:
            return number


def race_of(job: Job, data: Data, plan: dict[str, Any] | None = None) -> HogwildLoop:
    """The compiled loop over these rows; with ``plan``, what repeats as another one has made it."""
    assert isinstance(job.strategy, Hogwild) and isinstance(job.model, Linear)
    train, counts = sparse(data), None
    if job.model.l2_per_count:
        counts = np.ones(job.model.keys(train.features), np.float32)
        counts[: train.features] = train.counts
    rows, mean = train.slice(0, train.rows), job.strategy.combine == "mean"
    return HogwildLoop(
        job.model, job.update.update(), job.strategy, rows, job.data.batch, train.features, mean=mean, counts=counts, plan=plan
    )  # fmt: skip


def plan_in(segment: SharedMemory) -> dict[str, Any]:
    return {name.removeprefix(PLAN): one for name, one in segment.arrays.items() if name.startswith(PLAN)}


class HogwildWorker:
    """A worker at its bell."""

    def __init__(self, number: int, bell: int, news: int, pace: Slowdown | None) -> None:
        self._number, self._bell, self._news, self._pace = number, bell, news, pace
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        self._most = 1  # slots in one piece

    def say(self, what: int) -> None:
        os.write(self._news, NEWS.pack(self._number, what))

    def work(self, lane: HogwildCompute, segment: SharedMemory, seat: int) -> None:
        """Until it is to leave."""
        cell, sums = segment["desk"][CELLS + seat], segment["sums"][seat]
        self.say(READY)
        while os.read(self._bell, 1) == GO:
            self._round(lane, cell, sums)
            self.say(DONE)
        self.say(LEAVING)

    def _round(self, lane: HogwildCompute, cell: Any, sums: Any) -> None:
        while not self._poll.poll(0):  # in the middle of a round nothing is said but that it is to leave
            most, began, rows = self._most, time.perf_counter(), int(cell[ROWS])
            done = lane.run(most)
            took = time.perf_counter() - began
            if self._pace is not None and done:
                held = self._pace.extra(int(cell[ROWS]) - rows, took)
                threading.Event().wait(held)
                took += held
            sums[BUSY] += took
            if done < most:
                return
            if self._pace is None:
                self._most = max(1, min(2 * most, int(most * _AT_ONCE / max(took, 1e-9))))


def prefork(work: dict[str, Any]) -> None:
    """Load what such workers run, in the process that they are forked from: each would take a fifth of a second for it."""
    job = Job.of(tomllib.loads(msgspec.convert(work, HogwildSpec).job))
    assert isinstance(job.strategy, Hogwild)
    rule = rule_named(job.update.update().name)
    if isinstance(job.model, Linear):
        loop.loops(rule, job.strategy.way or "example")
    else:
        dense_kernels(rule)


def main(orders: ProcessOrders, process: Process) -> None:
    """A worker in a process of its own. SIGTERM asks it to finish the slot that it has, and go."""
    facts = msgspec.convert(orders.work, HogwildSpec)
    number, pid = number_of(orders.name), facts.place.pid
    bell, own = open_of(pid, facts.bell[0], os.O_RDONLY), open_of(pid, facts.bell[1], os.O_WRONLY)
    signal.signal(signal.SIGTERM, lambda *_: os.write(own, LEAVE))
    process.ready()
    segment, news = SharedMemory.open(facts.place), open_of(pid, facts.news, os.O_WRONLY)
    job = Job.of(tomllib.loads(facts.job))
    data = train_rows(Path(facts.rows), job.data, job.seed)
    lane: HogwildCompute
    if isinstance(job.model, Linear):
        lane = LinearCompute(race_of(job, data, plan_in(segment)), segment, facts.seat)
    else:
        lane = ModuleCompute(job, data, segment, facts.seat, number, facts.about)
    HogwildWorker(number, bell, news, job.emulate.pace(number, job.seed)).work(lane, segment, facts.seat)
