"""The ranks besides rank 0, which is the process that was called.

    StoreRanks      clients of a cluster of this run's own: threads, or processes
    GlooRanks       processes that sum over gloo; none can be lost
    MpiRanks        processes that mpirun has started (``mpi``)

However this process ends, they end with it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.errors import Invalid, RankLost, ShoalError
from shoal.job import Job, LaunchSettings
from shoal.launch.cluster import Cluster
from shoal.launch.local import ThreadCluster
from shoal.launch.process_main import Process, ProcessOrders, transport_of
from shoal.launch.processes import ProcessCluster, safety_of
from shoal.launch.worker_pool import (
    BY_ITSELF,
    PoolWorkerSpec,
    WorkerPool,
    name_of,
)
from shoal.launch.worker_process import number_of
from shoal.models import needs_torch
from shoal.nodes.journal import JournalFile
from shoal.strategies.averaging import Averaging, over_of
from shoal.strategies.averaging.collective import Collective, StoreCollective, client
from shoal.strategies.averaging.worker import follow
from shoal.training.local_checkpoint import LocalCheckpoint
from shoal.training.tracker import Tracker

if TYPE_CHECKING:
    from shoal.strategies.averaging.gloo import GlooCollective
    from shoal.strategies.averaging.mpi import MpiCollective

_REMIND = 10.0  # seconds until a warning names the awaited rank; then doubled
_LOOK = 1.0  # seconds between checks for silent ranks
_JOIN = 30.0  # seconds: a rank that has not joined by then will not
_SOON = 0.005
MAIN = "shoal.strategies.averaging.processes"
SILENT = "it was silent for too long"


def make_other_ranks(job: Job, dataset: Dataset, kept: LocalCheckpoint | None, tracker: Tracker) -> OtherRanks:
    kinds: dict[str, type[OtherRanks]] = {"gloo": GlooRanks, "mpi": MpiRanks, "store": StoreRanks}
    return kinds[over_of(job)](job, PoolWorkerSpec.of(job, dataset, kept), tracker)


class OtherRanks(ABC):
    """Starts and ends the other ranks, and explains losses."""

    def __init__(self, job: Job, spec: PoolWorkerSpec, tracker: Tracker) -> None:
        self._job, self._spec, self._tracker = job, spec, tracker
        self._ended: dict[int, str] = {}
        self._remind = _REMIND

    @property
    def pids(self) -> dict[str, int]:
        """Their known live processes by name, worker-1 and so on."""
        return {}

    @abstractmethod
    def start(self) -> Collective:
        """Start them; what rank 0 sums by. All of them are in it, or this raises."""

    def why(self, rank: int) -> str:
        return self._ended.get(rank, SILENT)

    def finish(self) -> None:
        """They know that the run is over. One that does not end is ended by ``close``."""
        deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        while time.monotonic() < deadline and any(name.startswith("worker") for name in self.pids):
            threading.Event().wait(_SOON)

    @abstractmethod
    def close(self) -> None:
        """End them at once, and remove their files."""

    def _on_ended(self, name: str, why: str) -> None:
        if name.startswith("worker"):
            self._ended.setdefault(number_of(name), why or BY_ITSELF)

    def _missing(self) -> list[str]:
        return [name_of(rank) for rank in range(1, self._job.workers) if rank not in self._ended]

    def _warn_of_long_wait(self, waited: float) -> None:
        if waited < _REMIND:
            self._remind = _REMIND
        elif waited >= self._remind:
            self._remind *= 2
            self._tracker.warn(f"the mean has waited {waited:.0f} s for one of {', '.join(self._missing())}")


class StoreRanks(OtherRanks):
    def __init__(self, job: Job, spec: PoolWorkerSpec, tracker: Tracker) -> None:
        super().__init__(job, spec, tracker)
        self._servers_ended: deque[tuple[str, str]] = deque()  # not reported yet
        self._threads: dict[threading.Thread, StoreCollective] = {}
        self._look = _LOOK
        self._joined: set[str] = set()
        modules, journal = tuple(job.launch.modules), JournalFile(None)
        self._processes: ProcessCluster | None = None
        self._cluster: Cluster
        if job.launch.how == "threads":
            self._cluster = ThreadCluster(job.servers, modules, journal, job.copies)
        else:
            how = LaunchSettings(transport=job.launch.transport, modules=job.launch.modules)
            self._cluster = self._processes = ProcessCluster(
                job.servers, how, journal, job.copies, job.copies > 1, safety_of(job)
            )
            self._processes.on_ended = self._on_ended

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._processes is None else self._processes.pids

    def start(self) -> Collective:
        self._cluster.start()
        for rank in range(1, self._job.workers):
            if self._processes is not None:
                self._processes.fork(name_of(rank), MAIN, msgspec.to_builtins(self._spec))
                continue
            group = StoreCollective(self._cluster.client(name_of(rank)), rank, self._job.workers)
            thread = threading.Thread(target=self._follow, args=(group,), name=name_of(rank), daemon=True)
            self._threads[thread] = group
            thread.start()
        self._kv = self._cluster.client(name_of(0))
        return StoreCollective(self._kv, 0, self._job.workers, self._gone)

    def finish(self) -> None:
        super().finish()
        self._join_threads()

    def close(self) -> None:
        for group in self._threads.values():  # which ends the sum that a thread may wait for
            with contextlib.suppress(ShoalError):
                group.close()
        self._cluster.close()
        self._join_threads()

    def _follow(self, group: StoreCollective) -> None:
        try:
            follow(self._spec, group)
        except Exception as error:
            self._ended[group.rank] = f"{type(error).__name__}: {error}"

    def _join_threads(self) -> None:
        for thread in self._threads:
            thread.join(limits.DRAIN / limits.SECOND)

    def _on_ended(self, name: str, why: str) -> None:
        super()._on_ended(name, why)
        if name.startswith("server"):
            self._servers_ended.append((name, why))

    def _gone(self, waited: float) -> Collection[int]:
        """The ranks that ended, while a sum is awaited; one that is silent is ended."""
        while self._servers_ended:
            self._tracker.gone(*self._servers_ended.popleft(), role="server")
        if waited < _LOOK:
            self._look = _LOOK
        elif waited >= self._look and self._processes is not None:
            self._look = waited + _LOOK
            self._end_silent(self._processes, waited)
        self._warn_of_long_wait(waited)
        return list(self._ended)

    def _end_silent(self, processes: ProcessCluster, waited: float) -> None:
        """End the process of a rank that the coordinator takes for dead."""
        self._kv.tables()  # the newest view
        here = set(self._kv.members)
        for name in self._missing():
            if name not in here and (name in self._joined or waited > _JOIN):
                self._ended[number_of(name)] = SILENT
                processes.signal(name, signal.SIGKILL)
        self._joined |= here


class GlooRanks(OtherRanks):
    def __init__(self, job: Job, spec: PoolWorkerSpec, tracker: Tracker) -> None:
        if job.launch.how == "threads":
            store = ", or strategy.over to 'store'" if isinstance(job.strategy, Averaging) else ""
            raise Invalid(f"over gloo every rank is a process: set launch.how to 'processes'{store}")
        if find_spec("torch") is None:
            needs_torch("strategy.over='gloo'")  # says what to install, before anything is started
        super().__init__(job, spec, tracker)
        self._pool = WorkerPool(job, MAIN, self._on_ended, sockets=True)
        self._group: GlooCollective | None = None
        self._stopped: dict[str, float] = {}  # since when

    @property
    def pids(self) -> dict[str, int]:
        return self._pool.pids

    def start(self) -> Collective:
        # Ranks are forked after the import of PyTorch, which starts no threads until it is used.
        self._pool.start("ranks", ["torch.distributed"])
        needs_torch("strategy.over='gloo'")  # here, while the forkserver imports it as well
        names = [name_of(rank) for rank in range(1, self._job.workers)]
        for name in names:
            self._pool.fork(name, self._spec)
        self._pool.wait_until_running(names)
        from shoal.strategies.averaging.gloo import GlooCollective

        self._group = GlooCollective(Path(self._pool.folder), 0, self._job.workers, self._check)
        return self._group

    def close(self) -> None:
        self._pool.close()
        if self._group is not None:
            self._group.close()

    def _check(self, waited: float) -> None:
        """Raise RankLost if a rank ended or is stopped, while a sum is awaited."""
        for rank, why in self._ended.items():  # the one that ended first
            raise RankLost(name_of(rank), why)
        now = time.monotonic()
        for name in self.pids:
            if not self._pool.is_stopped(name):
                self._stopped.pop(name, None)
            elif now - self._stopped.setdefault(name, now) > self._job.timing.intervals().dead / limits.SECOND:
                raise RankLost(name, "its process is stopped")
        self._warn_of_long_wait(waited)


class MpiRanks(OtherRanks):
    _group: MpiCollective | None = None

    @property
    def pids(self) -> dict[str, int]:
        group = self._group
        return {} if group is None else {name_of(one): group.pids[one] for one in group.living if one}

    def start(self) -> Collective:
        from shoal.strategies.averaging.mpi import world

        world().order(self._spec)
        self._group = world().group(self._tracker.warn)
        return self._group

    def why(self, rank: int) -> str:
        return "its process ended"

    def finish(self) -> None:
        """All have finished the last sum; they wait for the next orders."""
        if self._group is not None:
            self._group.part()

    def close(self) -> None:
        """A rank that still waits for a sum gives up."""
        from shoal.strategies.averaging.mpi import OVER, world

        if self._group is not None and not self._group.parted:
            world().order(OVER)


def main(orders: ProcessOrders, process: Process) -> None:
    spec = msgspec.convert(orders.work, PoolWorkerSpec)
    job, rank = spec.load_job(), number_of(orders.name)
    process.ready()
    group: Collective
    if over_of(job) == "gloo":
        from shoal.strategies.averaging.gloo import GlooCollective

        group = GlooCollective(Path(orders.folder), rank, job.workers)
    else:
        group = StoreCollective(client(orders.name, orders.token, transport_of(orders)), rank, job.workers)
    follow(spec, group)
