"""The workers of a Hogwild run, and the memory that they share.

A worker has a number (worker-3), a seat (its lines of the desk, free again when it has ended) and a
pipe by which it gets commands. All workers report through one pipe, and so are their ends: reports
are read in the order in which things happened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections.abc import Callable, Iterator

from shoal.data.datasets import Dataset
from shoal.errors import Invalid, StartFailed
from shoal.job import Job
from shoal.launch.shared_memory import SharedMemory
from shoal.launch.worker_pool import BY_ITSELF, WorkerPool, name_of
from shoal.launch.worker_process import number_of
from shoal.models.learner import Learner
from shoal.models.linear import Linear
from shoal.store.table.update import rule_named
from shoal.strategies.hogwild import desk
from shoal.strategies.hogwild.loop import HogwildLoop
from shoal.strategies.hogwild.worker import (
    ENDED,
    LEAVE,
    LEAVING,
    PLAN,
    REPORT,
    Compute,
    HogwildSpec,
    HogwildWorker,
    loop_of,
)

MAIN = "shoal.strategies.hogwild.worker"


Report = tuple[int, int, str]  # worker; READY, DONE or ENDED; why it ended, "" if it was asked to


class HogwildWorkers:
    def __init__(
        self,
        job: Job,
        rows: str,
        module: str,
        memory: SharedMemory,
        seats: int,
        compute: Callable[[int], Compute] | None,
    ) -> None:
        """``compute`` makes what a thread computes with, for a seat; None: they are processes."""
        self._job, self._rows, self._module, self._memory, self._compute = job, rows, module, memory, compute
        self.pool = WorkerPool(job, MAIN, self._ended)
        self._lock = threading.Lock()
        self._numbers = 0
        self._free = list(range(seats))  # seats
        self.seats: dict[int, int] = {}  # by worker
        self._commands: dict[int, tuple[int, int]] = {}  # both ends of a pipe, by worker
        self._why: dict[int, str] = {}  # it ended
        self._leaving: set[int] = set()  # they leave on request
        self._inbox, self._reports = os.pipe()
        os.set_blocking(self._inbox, False)
        self._poll = select.poll()
        self._poll.register(self._inbox, select.POLLIN)

    @property
    def numbers(self) -> list[int]:
        with self._lock:
            return list(self.seats)

    def add(self, known: Callable[[int], None]) -> str:
        """Start one more. ``known`` gets its number before it can report. Thread-safe."""
        with self._lock:
            if not self._free:
                raise Invalid(f"all {len(self.seats)} seats are taken: end one, or begin with more workers")
            with enough_files(name_of(self._numbers)):
                pipe = os.pipe()
            number, self._numbers = self._numbers, self._numbers + 1
            self.seats[number] = seat = self._free.pop(0)
            self._commands[number] = pipe
        known(number)
        name = name_of(number)
        if self._compute is not None:
            compute, job, memory = self._compute(seat), self._job, self._memory
            worker = HogwildWorker(number, pipe[0], self._reports, job.emulate.pace(number, job.seed))
            self.pool.run_thread(name, lambda: worker.work(compute, memory, seat))
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
            if number in self._commands:
                os.write(self._commands[number][1], command)

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

    def let_go(self, number: int) -> int:
        """It has ended: close its pipe, and free its seat, which is returned."""
        with self._lock:
            for descriptor in self._commands.pop(number, ()):
                os.close(descriptor)
            seat = self.seats.pop(number)
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
                self.let_go(number)
            os.close(self._inbox)
            os.close(self._reports)

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
        "desk": (desk.desk(seats), "int64"),
        "sums": ((seats, desk.LINE), "float64"),
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
