"""The workers of a run without servers, and a run that waits for them.

    WorkerPool      starts, signals and closes workers (threads or processes), reports their ends
    PoolWorkerSpec  what a worker process gets to know about its job, as plain data
    PoolRun         a run that listens to its pool and handles silent and lost workers

However this process ends, its worker processes end with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
import tomllib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from shoal import limits
from shoal.data.datasets import Dataset, train_rows
from shoal.errors import Invalid
from shoal.job import Job
from shoal.launch.cluster import START_WITHIN
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.process_main import ProcessMessage, ProcessOrders, state_of, sweep
from shoal.launch.process_pool import DONE, ProcessPool
from shoal.models.learner import Data
from shoal.training.local_checkpoint import LocalCheckpoint, read
from shoal.training.tracked_run import RunStart, TrackedRun

BY_ITSELF = "its process ended (exit code 0) without being asked to"
LEFT = "it left"
LOOK = 0.05  # seconds between two looks at what workers report
_SHOWN = 300  # characters of a reason that is repeated
_KILLED = "(killed by signal "


def name_of(number: int) -> str:
    return f"worker-{number}"


class PoolWorkerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    job: str  # as TOML, which knows infinity
    rows: str  # the folder of the packed set
    kept: str = ""  # the checkpoint to continue from

    @classmethod
    def of(cls, job: Job, dataset: Dataset, kept: LocalCheckpoint | None = None) -> PoolWorkerSpec:
        return cls(job=job.toml(), rows=str(dataset.train.folder), kept="" if kept is None else str(kept.path))

    def load(self) -> tuple[Job, Data]:
        job = self.load_job()
        return job, train_rows(Path(self.rows), job.data, job.seed)

    def load_job(self) -> Job:
        return Job.of(tomllib.loads(self.job))

    def load_checkpoint(self) -> LocalCheckpoint | None:
        return read(Path(self.kept)) if self.kept else None


class WorkerPool:
    """The workers of one run: threads of this process, or processes of a forkserver of its own."""

    def __init__(self, job: Job, main: str, ended: Callable[[str, str], None], sockets: bool = False) -> None:
        """``main``: the module that a process runs. ``sockets``: processes share a private folder.

        ``ended`` gets the name of a worker and why it ended, "" if by itself; on some other thread.
        """
        self._job, self._main, self._on_ended = job, main, ended
        self.closed = False
        self._threads: dict[str, threading.Thread] = {}
        self._pool: ProcessPool | None = None
        self.folder = ""
        if job.launch.how != "threads":
            self._pool = ProcessPool(lambda name, why: None, self._ended)
            if sockets:  # the forkserver makes it, and removes it if this process is killed
                from shoal.launch.processes import short_folder  # late: workers need no cluster

                self.folder = short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")

    @property
    def has_processes(self) -> bool:
        return self._pool is not None

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._pool is None else self._pool.pids

    def start(self, label: str, modules: Sequence[str] = ()) -> None:
        if self._pool is not None:
            setup = ForkserverSetup(os.getpid(), self.folder, [*self._job.launch.modules, *modules], sys.path)
            self._pool.start(setup, label)

    def wait_until_started(self) -> None:
        self._processes.wait_until_started(time.monotonic() + START_WITHIN)

    def fork(self, name: str, spec: PoolWorkerSpec, **orders: Any) -> None:
        """Start a worker process; see ``wait_until_running``. ``orders``: of ``ProcessOrders``."""
        self.wait_until_started()
        work = msgspec.to_builtins(spec)
        self._processes.order(ProcessOrders(name, self._main, folder=self.folder, work=work, **orders))

    def wait_until_running(self, names: Sequence[str]) -> list[str]:
        """The addresses of these worker processes, as soon as all run."""
        self._processes.wait_until_running(names, time.monotonic() + START_WITHIN)
        return [self._processes.states[name].address for name in names]

    def pass_on(self, name: str, line: ProcessMessage) -> None:
        self._processes.pass_on(name, line)

    def run_thread(self, name: str, call: Callable[[], None]) -> None:
        def run() -> None:
            why = DONE
            try:
                call()
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"
            self._ended(name, why)

        self._threads[name] = thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()

    def signal(self, name: str, number: int) -> None:
        if self._pool is None:
            raise Invalid("a run of threads has no processes: set launch.how to 'processes'")
        self._pool.signal(name, number)

    def is_stopped(self, name: str) -> bool:
        pid = self.pids.get(name)
        return pid is not None and state_of(pid) == "T"

    def close(self) -> None:
        """End all processes. Threads were asked to stop before: this waits for them."""
        if self.closed:
            return
        self.closed = True
        for thread in list(self._threads.values()):
            thread.join(limits.DRAIN / limits.SECOND)
        try:
            if self._pool is not None:
                self._pool.close()
        finally:
            sweep(self.folder)

    @property
    def _processes(self) -> ProcessPool:
        assert self._pool is not None
        return self._pool

    def _ended(self, name: str, why: str) -> None:
        self._on_ended(name, "" if why == DONE else why)


class PoolRun(TrackedRun):
    """A run whose workers compute, while this process waits for them. A strategy adds these:

    _listen         count what workers reported for ``LOOK`` seconds; whether there was progress
    _awaited        the workers that everybody waits for, and which of them to name in a warning
    _is_starting    no worker computes yet
    _announce       tell what is special about this run when it starts
    """

    progress_word: ClassVar[str]  # nobody "finished a slot"
    dealt_again: ClassVar[str]  # what happens to the slots of a killed worker
    pool: WorkerPool

    def __init__(self, start: RunStart) -> None:
        super().__init__(start)
        # Seconds without progress until a warning names the awaited; stopped ones are killed.
        self.patience = 2 * self.job.timing.intervals().dead / limits.SECOND
        self._announced = self._begun = False  # Started was sent; all workers were ready
        self._last, self._last_why = "", ""  # the worker that ended last, and why
        self._quiet, self._reminders = 0.0, 0  # seconds without progress; warnings since

    @property
    def pids(self) -> dict[str, int]:
        return self.pool.pids

    def signal(self, name: str, number: int) -> None:
        self.pool.signal(name, number)

    @abstractmethod
    def _listen(self) -> bool: ...

    @abstractmethod
    def _awaited(self) -> tuple[list[str], list[str]]: ...

    @abstractmethod
    def _is_starting(self) -> bool: ...

    @abstractmethod
    def _start_done(self) -> bool: ...

    def _announce(self) -> None: ...

    def _ready(self) -> None:
        """All workers are ready, and the first model is evaluated next."""

    def _begin(self) -> None:
        """Wait until all workers are ready or lost, then evaluate the first model."""
        if not self._announced:
            self._announced = True
            self.tracker.begin(self.job.workers)
            self._announce()
        if self._begun:
            return
        while not self._start_done():
            self._attend()
        self._begun = True
        if not self._workers_left():
            self.tracker.fail(f"no worker was there for the first slot (the last was {self._last})")
            return
        self._ready()
        # A resumed run may have no slots left: it was killed just before its end.
        if self.tracker.unevaluated or self.tracker.room() <= 0:
            self._evaluate()

    def _workers_left(self) -> bool:
        return bool(self.workers)

    def _reset_patience(self) -> None:
        self._quiet, self._reminders = 0.0, 0

    def _attend(self) -> None:
        began = time.perf_counter()
        if self._listen():
            self._reset_patience()
        else:
            # At most as long as was waited: if this process itself stood still, nobody is to blame.
            self._quiet += min(time.perf_counter() - began, 2 * LOOK)
            self._handle_silence()
        self._check_deadline()

    def _handle_silence(self) -> None:
        starting = self._is_starting()
        patience = 3 * self.patience if starting else self.patience  # PyTorch's import is slow
        if self._quiet < patience * 2**self._reminders:
            return
        self._reminders += 1
        awaited, named = self._awaited()
        stopped = [name for name in awaited if self.pool.is_stopped(name)]
        for name in stopped:
            self.tracker.warn(f"{name} is stopped, and everybody waits for it: it is killed{self.dealt_again}")
            self.pool.signal(name, signal.SIGKILL)
        if awaited and not stopped:
            what = "was ready to begin" if starting else self.progress_word
            self.tracker.warn(f"nobody {what} for {self._quiet:.0f} s: waiting for {', '.join(named)}")

    def _lose(self, name: str, why: str, slots: int) -> None:
        """A worker ended, "" if it was asked to; others compute ``slots`` of its slots again."""
        self._last = f"{name}: {(why or LEFT)[:_SHOWN]}{'...' * (len(why) > _SHOWN)}"
        self._last_why = why
        self.tracker.gone(name, why or LEFT, slots, lost=bool(why))

    def _nobody_left(self) -> None:
        # A worker that failed by an error of its own would fail again, however many there are.
        killed = not self._last_why or _KILLED in self._last_why
        how = "with more workers" if killed else "when the cause is fixed"
        self.tracker.fail(f"no worker is left to compute: start it again, {how} (the last was {self._last})")
