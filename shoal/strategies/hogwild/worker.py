"""The workers of a Hogwild run, each a process or a thread, and the memory that they share.

A worker has a number (worker-3) and a seat (its lines of the desk, free again when it has ended).
It waits for a command, takes slots off the cursor that all share until none is left, reports that
it is done, and waits again:

    commands    a pipe of its own: GO (there is a round), LEAVE (finish your slot, and leave)
    reports     a pipe that all write to: READY, DONE, LEAVING (as asked), with the worker's number

The other end of both is the process that tracks the run (``run``), which computes nothing. It
writes the ends of workers to the same pipe: all is read in the order in which it happened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from shoal.data.datasets import Dataset
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.errors import Invalid, StartFailed
from shoal.job import Job
from shoal.launch.serverless_pool import (
    BY_ITSELF,
    PoolWorkerSpec,
    WorkerPool,
    name_of,
)
from shoal.launch.shared_memory import SharedLayout, SharedMemory, open_of
from shoal.launch.worker_process import number_of
from shoal.models.learner import Data, Learner, learner_of
from shoal.models.linear import Linear
from shoal.nodes.batches import DenseBatches
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.update import rule_named
from shoal.strategies.hogwild import BEATS, CANARY, CELLS, CURSOR, LIMIT, LINE, ROWS, SLOTS, STOP, Hogwild, desk
from shoal.strategies.hogwild.loop import HogwildLoop, loops

if TYPE_CHECKING:
    from shoal.launch.process_main import Process, ProcessOrders

MAIN = "shoal.strategies.hogwild.worker"
GO, LEAVE = b"g", b"l"
READY, DONE, ENDED, LEAVING = range(4)
REPORT = struct.Struct("<IB")  # worker and what it reports, in one write, so that none is torn
LOSS, BUSY = 0, 1  # columns of ``sums``
PLAN = "plan "  # before the names of arrays that are the same in every epoch

_AT_ONCE = 0.05  # seconds of computing between two looks at the commands


class HogwildSpec(PoolWorkerSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    module: str  # the module, as the process that tracks the run has it
    place: SharedLayout
    seat: int
    commands: tuple[int, int]  # both ends: on SIGTERM it writes a command to itself
    reports: int


# Computes at most so many slots; fewer only if none is left, or all are to stop. How many it did.
Compute = Callable[[int], int]


def linear_compute(hogwild: HogwildLoop, memory: SharedMemory, seat: int) -> Compute:
    slab, desk, sums, tally, order = (memory[name] for name in ("slab", "desk", "sums", "tally", "order"))
    return partial(hogwild.run, slab, desk, sums, tally, order, seat)


class ModuleCompute:
    """Computes slots of a module whose parameters are the shared memory; the rule writes there."""

    def __init__(self, job: Job, data: Data, memory: SharedMemory, seat: int, number: int, about: str) -> None:
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
        self._rule_settings = np.array(rule.settings(update.settings), np.float64)
        self._slab, self._desk, self._tally = memory["slab"], memory["desk"], memory["tally"]
        self._of_pass, self._numbers = memory["pass"], memory["numbers"]
        self._cell, self._sums = self._desk[CELLS + seat], memory["sums"][seat]
        self._weights = self._slab[0, : learner.keys * learner.width].reshape(learner.keys, learner.width)
        learner.live_on(self._weights)

    def __call__(self, most: int) -> int:
        for done in range(most):
            if self._desk[STOP, 0] or (i := self._next()) >= self._desk[LIMIT, 0]:
                return done
            local = self._slices.local((int(self._of_pass[0]), int(self._numbers[i])))
            loss, gradient = self._learner.gradient(local, self._weights, self._mean)
            self._push(self._slab, 0, 0, gradient.reshape(1, -1), self._rule_settings)
            if self._canary:
                self._desk[CANARY, 0] += 1  # no lock, as for the weights
                self._cell[BEATS] += 1
            self._tally[i] = 1
            self._cell[SLOTS] += 1
            self._cell[ROWS] += len(local)
            self._sums[LOSS] += loss
        return most

    def _next(self) -> int:
        """The next number off the cursor; no other worker gets it."""
        from shoal.strategies.hogwild.kernels import changed

        while True:
            number = int(self._desk[CURSOR, 0])
            if changed(self._desk.reshape(-1), CURSOR * LINE, number, number + 1) == number:
                return number


def loop_of(job: Job, data: Data, plan: dict[str, Any] | None = None) -> HogwildLoop:
    """The compiled loop over these rows; ``plan``: what another process has made already."""
    assert isinstance(job.strategy, Hogwild) and isinstance(job.model, Linear)
    train, counts = sparse(data), None
    if job.model.l2_per_count:
        counts = np.ones(job.model.keys(train.features), np.float32)
        counts[: train.features] = train.counts
    rows, mean = train.slice(0, train.rows), job.strategy.combine == "mean"
    return HogwildLoop(
        job.model, job.update.update(), job.strategy, rows, job.data.batch, train.features, mean=mean, counts=counts, plan=plan
    )  # fmt: skip


def work(compute: Compute, memory: SharedMemory, seat: int, job: Job, number: int, commands: int, reports: int) -> None:
    """Be worker ``number`` until LEAVE comes, at once or in the middle of a round."""
    pace, cell, sums = job.emulate.pace(number, job.seed), memory["desk"][CELLS + seat], memory["sums"][seat]
    poll, most = select.poll(), 1  # slots between two looks
    poll.register(commands, select.POLLIN)
    os.write(reports, REPORT.pack(number, READY))
    while os.read(commands, 1) == GO:
        while not poll.poll(0):
            began, rows = time.perf_counter(), int(cell[ROWS])
            done = compute(most)
            took = time.perf_counter() - began
            if pace is not None and done:
                delay = pace.extra(int(cell[ROWS]) - rows, took)
                threading.Event().wait(delay)
                took += delay
            sums[BUSY] += took
            if done < most:
                break
            if pace is None:
                most = max(1, min(2 * most, int(most * _AT_ONCE / max(took, 1e-9))))
        os.write(reports, REPORT.pack(number, DONE))
    os.write(reports, REPORT.pack(number, LEAVING))


Report = tuple[int, int, str]  # worker; READY, DONE or ENDED; why it ended, "" if it was asked to


class HogwildWorkers:
    def __init__(
        self, job: Job, rows: str, module: str, memory: SharedMemory, seats: int, loop: HogwildLoop | None
    ) -> None:
        """``loop``: what threads run; None: they are processes."""
        self._job, self._rows, self._module, self._memory, self._loop = job, rows, module, memory, loop
        self.pool = WorkerPool(job, MAIN, self._ended)
        self._lock = threading.Lock()
        self._numbers = 0
        self._free = list(range(seats))
        self._living: dict[int, tuple[int, tuple[int, int]]] = {}  # seat, and both ends of a pipe
        self._why: dict[int, str] = {}  # it ended
        self._leaving: set[int] = set()  # they leave on request
        self._inbox, self._reports = os.pipe()
        os.set_blocking(self._inbox, False)
        self._poll = select.poll()
        self._poll.register(self._inbox, select.POLLIN)

    @property
    def numbers(self) -> list[int]:
        with self._lock:
            return list(self._living)

    def add(self, on_number: Callable[[int], None]) -> str:
        """Start one more. ``on_number`` gets its number before it can report. Thread-safe."""
        with self._lock:
            if not self._free:
                raise Invalid(f"there is room for {len(self._living)} workers: end one, or start the run with more")
            with enough_files(name_of(self._numbers)):
                pipe = os.pipe()
            number, self._numbers = self._numbers, self._numbers + 1
            seat = self._free.pop(0)
            self._living[number] = seat, pipe
        on_number(number)
        name = name_of(number)
        if self._loop is not None:
            compute, memory = linear_compute(self._loop, self._memory, seat), self._memory
            self.pool.run_thread(name, partial(work, compute, memory, seat, self._job, number, pipe[0], self._reports))
            return name
        spec = HogwildSpec(
            job=self._job.toml(), rows=self._rows, module=self._module, place=self._memory.place, seat=seat,
            commands=pipe, reports=self._reports,
        )  # fmt: skip
        try:
            self.pool.fork(name, spec)
            self.pool.wait_until_running([name])
        except BaseException as error:
            self._ended(name, str(error))
            raise
        return name

    def send(self, number: int, command: bytes) -> None:
        with self._lock:
            if number in self._living:
                os.write(self._living[number][1][1], command)

    def receive(self, seconds: float) -> list[Report]:
        if not self._poll.poll(1000 * seconds):
            return []
        found = []
        for number, what in REPORT.iter_unpack(os.read(self._inbox, REPORT.size * 4_096)):
            if what == LEAVING:
                self._leaving.add(number)
                continue
            why = ""
            if what == ENDED:
                why = self._why.get(number, "") or ("" if number in self._leaving else BY_ITSELF)
            found.append((number, what, why))
        return found

    def release(self, number: int) -> int:
        """It has ended: close its pipe, and free its seat, which is returned."""
        with self._lock:
            seat, pipe = self._living.pop(number)
            for descriptor in pipe:
                os.close(descriptor)
            self._free.append(seat)
        return seat

    def close(self) -> None:
        if self.pool.closed:
            return
        if not self.pool.has_processes:
            for number in self.numbers:
                self.send(number, LEAVE)
        try:
            self.pool.close()
        finally:
            for number in self.numbers:
                self.release(number)
            os.close(self._inbox)
            os.close(self._reports)
            self._loop = None  # it is as large as the rows

    def _ended(self, name: str, why: str) -> None:
        number = number_of(name)
        self._why[number] = why
        if not self.pool.closed:
            os.write(self._reports, REPORT.pack(number, ENDED))


@contextlib.contextmanager
def enough_files(who: str) -> Iterator[None]:
    """Say what to do if there are no file descriptors left."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise StartFailed(
            f"{who} cannot start: too many files are open, and each worker takes two: raise the limit "
            f"(ulimit -n 4096), or take fewer workers"
        ) from None


def make_shared(
    job: Job, dataset: Dataset, learner: Learner, slots: int, seats: int
) -> tuple[SharedMemory, HogwildLoop | None]:
    """The shared memory, with the initial weights, for rounds of at most ``slots`` slots.

    slab        of a linear model a row for each key: its weight, and the state of the update rule;
                of a module one row: all weights, then the state of the rule for each
    desk, sums, tally, order        as ``loop`` has them
    pass, numbers                   which slots these are, for the random numbers of a module
    plan ...                        what is the same in every epoch, made once

    For threads the loop that they run comes with it.
    """
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "desk": (desk(seats), "int64"),
        "sums": ((seats, LINE), "float64"),
        "tally": ((slots,), "int8"),
        "order": ((slots,), "int64"),
        "numbers": ((slots,), "int64"),
        "pass": ((1,), "int64"),
    }
    if not isinstance(job.model, Linear):
        count, state = learner.keys * learner.width, rule_named(job.update.update().name).state
        memory = SharedMemory.make({"slab": ((1, count * (1 + state)), "float32"), **shapes})
        start = learner.start()
        assert start is not None
        memory["slab"][0, :count] = start[0].reshape(-1)
        return memory, None
    hogwild, plan = loop_of(job, dataset.train), {}
    if job.launch.how != "threads":
        plan = {PLAN + name: one for name, one in hogwild.plan.items()}
    of_plan = {name: (one.shape, one.dtype.str) for name, one in plan.items()}
    memory = SharedMemory.make({"slab": (hogwild.shape, "float32"), **shapes, **of_plan})
    for name, one in plan.items():
        memory[name][...] = one
    return memory, hogwild if job.launch.how == "threads" else None


def prefork(work: dict[str, Any]) -> None:
    """Load the kernels before the forkserver forks: in each worker they would take 0.2 s."""
    job = msgspec.convert(work, HogwildSpec).load_job()
    assert isinstance(job.strategy, Hogwild)
    rule = rule_named(job.update.update().name)
    if isinstance(job.model, Linear):
        loops(rule, job.strategy.way or "example")
    else:
        dense_kernels(rule)


def main(orders: ProcessOrders, process: Process) -> None:
    """A worker in a process of its own. On SIGTERM it finishes the slot that it has, and leaves."""
    spec = msgspec.convert(orders.work, HogwildSpec)
    number, pid = number_of(orders.name), spec.place.pid
    commands, own = open_of(pid, spec.commands[0], os.O_RDONLY), open_of(pid, spec.commands[1], os.O_WRONLY)
    signal.signal(signal.SIGTERM, lambda *_: os.write(own, LEAVE))
    process.ready()
    memory, reports = SharedMemory.open(spec.place), open_of(pid, spec.reports, os.O_WRONLY)
    job, data = spec.load()
    compute: Compute
    if isinstance(job.model, Linear):
        arrays = memory.arrays.items()
        plan = {name.removeprefix(PLAN): one for name, one in arrays if name.startswith(PLAN)}
        compute = linear_compute(loop_of(job, data, plan), memory, spec.seat)
    else:
        compute = ModuleCompute(job, data, memory, spec.seat, number, spec.module)
    work(compute, memory, spec.seat, job, number, commands, reports)
