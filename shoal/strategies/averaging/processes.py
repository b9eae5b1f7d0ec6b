"""The ranks besides the one that was called: threads of this process, or processes forked by a forkserver.

Over the store they are clients of a cluster of this run's own (``StoreProcesses``); over gloo there are the processes alone
(``group_gloo.OverGloo``). However this process ends, they end with it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.data.mapped import train_rows
from shoal.errors import ShoalError
from shoal.job import Job
from shoal.launch.local import Cluster, ThreadCluster
from shoal.launch.process_main import Process, ProcessOrders, transport_of
from shoal.launch.processes import ProcessCluster, safety_of
from shoal.launch.worker_process import number_of
from shoal.nodes.journal import JournalFile
from shoal.strategies.averaging.collective import Collective, RankProcesses, name_of
from shoal.strategies.averaging.over_store import StoreCollective, client
from shoal.strategies.averaging.settings import over_of

_REMIND = 10.0  # seconds after which a wait is told, then twice that, ...
_LOOK = 1.0  # seconds between two looks at who is silent
_JOIN = 30.0  # seconds: who has not joined by then will not
_SOON = 0.005
MAIN = "shoal.strategies.averaging.processes"
SILENT = "it was silent for too long"

Warn = Callable[[str], None]
ServerLost = Callable[[str, str], None]  # its name, and why


class RankSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank needs to know, as plain data."""

    job: str  # as TOML
    rows: str  # the folder of the packed set
    size: int
    kept: str = ""  # what to go on from


def others_of(job: Job, dataset: Dataset, kept: Path | None, warn: Warn, server_lost: ServerLost) -> RankProcesses:
    """Not started yet. ``kept``: what they go on from; ``warn`` is told of waits that take long."""
    if over_of(job) == "gloo":
        from shoal.strategies.averaging.gloo import GlooProcesses

        return GlooProcesses(job, dataset, kept, warn)
    if over_of(job) == "mpi":
        from shoal.strategies.averaging.mpi_ranks import MpiProcesses

        return MpiProcesses(msgspec.to_builtins(work_of(job, dataset, kept)), warn)
    return StoreProcesses(job, dataset, kept, warn, server_lost)


def work_of(job: Job, dataset: Dataset, kept: Path | None) -> RankSpec:
    return RankSpec(job.toml(), str(dataset.train.folder), job.workers, str(kept or ""))


class RankStates:
    """What is known of ranks that were started here, and of their ends."""

    def __init__(self, job: Job, dataset: Dataset, kept: Path | None, warn: Warn) -> None:
        self._job, self._warn = job, warn
        self._orders = work_of(job, dataset, kept)
        self._ended: dict[int, str] = {}
        self._remind = _REMIND

    @property
    def pids(self) -> dict[str, int]:
        return {}

    def why(self, rank: int) -> str:
        return self._ended.get(rank, SILENT)

    def finish(self) -> None:
        """They have heard that it is over; one that does not go is ended when all are."""
        deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        while time.monotonic() < deadline and any(name.startswith("worker") for name in self.pids):
            threading.Event().wait(_SOON)

    @property
    def _work(self) -> dict[str, object]:
        found: dict[str, object] = msgspec.to_builtins(self._orders)
        return found

    def _on_ended(self, name: str, why: str) -> None:
        """On the thread that listens to the forkserver."""
        if name.startswith("worker"):
            self._ended.setdefault(number_of(name), why)

    def _missing(self) -> list[str]:
        return [name_of(rank) for rank in range(1, self._job.workers) if rank not in self._ended]

    def _tell_long_wait(self, waited: float) -> None:
        if waited < _REMIND:
            self._remind = _REMIND
        elif waited >= self._remind:
            self._remind *= 2
            self._warn(f"the mean waits for one of {', '.join(self._missing())}, for {waited:.0f} s now")


class StoreProcesses(RankStates):
    """Clients of a cluster."""

    def __init__(self, job: Job, dataset: Dataset, kept: Path | None, warn: Warn, server_lost: ServerLost) -> None:
        super().__init__(job, dataset, kept, warn)
        self._server_lost = server_lost
        self._servers_ended: deque[tuple[str, str]] = deque()  # to be told by the thread that computes
        self._threads: list[threading.Thread] = []
        self._groups: list[StoreCollective] = []
        self._cluster = _cluster_of(job)
        self._look = _LOOK
        self._came: set[str] = set()
        if isinstance(self._cluster, ProcessCluster):
            self._cluster.on_ended = self._on_ended

    @property
    def pids(self) -> dict[str, int]:
        return self._cluster.pids if isinstance(self._cluster, ProcessCluster) else {}

    def start(self) -> Collective:
        cluster, job = self._cluster, self._job
        cluster.start()
        for rank in range(1, job.workers):
            if isinstance(cluster, ProcessCluster):
                cluster.fork(name_of(rank), MAIN, self._work)
            else:
                self._start_thread(rank)
        self._kv = cluster.client(name_of(0))
        return StoreCollective(self._kv, 0, job.workers, self._gone)

    def finish(self) -> None:
        super().finish()
        for thread in self._threads:
            thread.join(limits.DRAIN / limits.SECOND)

    def close(self) -> None:
        for group in self._groups:  # a thread that still waits for a sum hears that it is over
            with contextlib.suppress(ShoalError):
                group.close()
        self._cluster.close()
        for thread in self._threads:
            thread.join(limits.DRAIN / limits.SECOND)

    # ------------------------------------------------------------ inside

    def _start_thread(self, rank: int) -> None:
        group = StoreCollective(self._cluster.client(name_of(rank)), rank, self._job.workers)
        self._groups.append(group)

        def run() -> None:
            try:
                follow(self._orders, group)
            except Exception as error:
                self._ended[rank] = f"{type(error).__name__}: {error}"

        thread = threading.Thread(target=run, name=name_of(rank), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _on_ended(self, name: str, why: str) -> None:
        super()._on_ended(name, why)
        if name.startswith("server"):
            self._servers_ended.append((name, why))

    def _gone(self, waited: float) -> Collection[int]:
        """Who has ended; and who is silent, which ends it. A wait that takes long is told."""
        while self._servers_ended:
            self._server_lost(*self._servers_ended.popleft())
        if waited < _LOOK:
            self._look = _LOOK
        elif waited >= self._look:
            self._look = waited + _LOOK
            self._end_silent(waited)
        self._tell_long_wait(waited)
        return list(self._ended)

    def _end_silent(self, waited: float) -> None:
        """Whom the coordinator holds for dead can take no part any more, though its process may be there: stopped, say."""
        if not isinstance(self._cluster, ProcessCluster):
            return
        self._kv.tables()  # the newest view
        here = set(self._kv.members)
        for name in self._missing():
            if name not in here and (name in self._came or waited > _JOIN):
                self._ended[number_of(name)] = SILENT
                self._cluster.signal(name, signal.SIGKILL)
        self._came |= here


def follow(work: RankSpec, group: Collective) -> None:
    """Be one of the others to the end, whatever the strategy."""
    from shoal.strategies.averaging import worker as rank
    from shoal.training.local_checkpoint import read

    try:
        job = Job.of(tomllib.loads(work.job))
        data = train_rows(Path(work.rows), job.data, job.seed)
        if work.kept:
            found = read(Path(work.kept))
            rank.follow(job, data, group, found.position, found.slab)
        else:
            rank.follow(job, data, group)
    finally:
        group.close()


def main(orders: ProcessOrders, process: Process) -> None:
    """A rank in a process of its own."""
    work = msgspec.convert(orders.work, RankSpec)
    job, rank = Job.of(tomllib.loads(work.job)), number_of(orders.name)
    process.ready()
    group: Collective
    if over_of(job) == "gloo":
        from shoal.strategies.averaging.gloo import GlooCollective

        group = GlooCollective(Path(orders.folder), rank, work.size)
    else:
        group = StoreCollective(client(orders.name, orders.token, transport_of(orders)), rank, work.size)
    follow(work, group)


def _cluster_of(job: Job) -> Cluster:
    modules, journal = tuple(job.launch.modules), JournalFile(None)
    if job.launch.how == "threads":
        return ThreadCluster(job.servers, modules, journal, job.copies)
    return ProcessCluster(
        job.servers, job.launch.transport, modules, journal, job.copies, job.copies > 1, safety_of(job)
    )
