"""The ranks besides the one that was called: threads of this process, or processes forked by a nursery.

Over the store they are clients of a cluster of this run's own; over gloo there are the processes alone. However this process ends,
they end with it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal import limits
from shoal.data.arrays import open_rows
from shoal.data.datasets import Dataset
from shoal.errors import ShoalError
from shoal.job import Job
from shoal.launch.group import Group, Others, name_of
from shoal.launch.group_store import StoreGroup, client
from shoal.launch.local import Cluster, ThreadCluster
from shoal.launch.processes import ProcessCluster
from shoal.launch.work import number_of
from shoal.nodes.storage import Journal
from shoal.wire.zmq import ZmqTransport

if TYPE_CHECKING:
    from shoal.launch.child import Orders

_REMIND = 10.0  # seconds after which a wait is told, then twice that, ...
_LOOK = 1.0  # seconds between two looks at who is silent
_JOIN = 30.0  # seconds: who has not joined by then will not


class RankWork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank needs to know, as plain data."""

    job: str  # as TOML
    rows: str  # the folder of the packed set
    size: int
    kept: str = ""  # what to go on from


def others_of(job: Job, dataset: Dataset, kept: Path | None, warn: Callable[[str], None]) -> Others:
    """Not started yet."""
    if job.over == "mpi":
        from shoal.launch.mpi import MpiOthers

        return MpiOthers(msgspec.to_builtins(work_of(job, dataset, kept)), warn)
    return OverStore(job, dataset, kept, warn)


def work_of(job: Job, dataset: Dataset, kept: Path | None) -> RankWork:
    return RankWork(job.toml(), str(dataset.train.folder), job.workers, str(kept or ""))


class OverStore:
    """Clients of a cluster."""

    def __init__(self, job: Job, dataset: Dataset, kept: Path | None, warn: Callable[[str], None]) -> None:
        self._job, self._dataset, self._kept, self._warn = job, dataset, kept, warn
        self._ended: dict[int, str] = {}
        self.servers_ended: list[tuple[str, str]] = []  # and why, to be told by whoever asks
        self._threads: list[threading.Thread] = []
        self._groups: list[StoreGroup] = []
        self._cluster = _cluster_of(job)
        self._remind, self._look = _REMIND, _LOOK
        self._came: set[str] = set()
        if isinstance(self._cluster, ProcessCluster):
            self._cluster.on_ended = self._on_ended

    @property
    def pids(self) -> dict[str, int]:
        if not isinstance(self._cluster, ProcessCluster):
            return {}
        return self._cluster.pids

    def start(self) -> Group:
        cluster, job = self._cluster, self._job
        cluster.start()
        work = work_of(job, self._dataset, self._kept)
        for rank in range(1, job.workers):
            if isinstance(cluster, ProcessCluster):
                cluster.fork(name_of(rank), "rank", msgspec.to_builtins(work))
            else:
                self._start_thread(rank)
        self._kv = cluster.client(name_of(0))
        return StoreGroup(self._kv, 0, job.workers, self._gone)

    def why(self, rank: int) -> str:
        return self._ended.get(rank, "it was silent for too long")

    def finish(self) -> None:
        deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        while time.monotonic() < deadline and any(name.startswith("worker") for name in self.pids):
            threading.Event().wait(0.005)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        for group in self._groups:  # a thread that still waits for a sum hears that it is over
            with contextlib.suppress(ShoalError):
                group.close()
        self._cluster.close()
        for thread in self._threads:
            thread.join(limits.DRAIN / limits.SECOND)

    # ------------------------------------------------------------ inside

    def _start_thread(self, rank: int) -> None:
        group = StoreGroup(self._cluster.client(name_of(rank)), rank, self._job.workers)
        self._groups.append(group)

        def run() -> None:
            try:
                with contextlib.closing(group):
                    _follow(self._job, Path(self._dataset.train.folder), group, str(self._kept or ""))
            except Exception as error:
                self._ended[rank] = f"{type(error).__name__}: {error}"

        thread = threading.Thread(target=run, name=name_of(rank), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _on_ended(self, name: str, why: str) -> None:
        """On the thread that listens to the nursery."""
        if name.startswith("worker"):
            self._ended.setdefault(number_of(name), why)
        elif name.startswith("server"):
            self.servers_ended.append((name, why))

    def _gone(self, waited: float) -> Collection[int]:
        """Who has ended; and who is silent, which ends it. A wait that takes long is told."""
        if waited < _LOOK:
            self._remind, self._look = _REMIND, _LOOK
        elif waited >= self._look:
            self._look = waited + _LOOK
            self._end_silent(waited)
        if waited >= self._remind:
            self._remind *= 2
            self._warn(f"the mean waits for {', '.join(self._missing()) or 'the servers'}, for {waited:.0f} s now")
        return list(self._ended)

    def _missing(self) -> list[str]:
        return [name_of(rank) for rank in range(1, self._job.workers) if rank not in self._ended]

    def _end_silent(self, waited: float) -> None:
        """Whom the coordinator holds for dead can take no part any more, though its process may be there: stopped, say."""
        if not isinstance(self._cluster, ProcessCluster):
            return
        self._kv.tables()  # the newest view
        here = set(self._kv.members)
        for name in self._missing():
            if name not in here and (name in self._came or waited > _JOIN):
                self._ended[number_of(name)] = "it was silent for too long"
                self._cluster.signal(name, signal.SIGKILL)
        self._came |= here


def follow_run(plain: Mapping[str, Any], group: Group) -> None:
    """Do what such a work says, to the end of the run."""
    work = msgspec.convert(plain, RankWork)
    _follow(Job.of(tomllib.loads(work.job)), Path(work.rows), group, work.kept)


def _follow(job: Job, rows: Path, group: Group, kept: str) -> None:
    from shoal.launch.kept_slab import read
    from shoal.launch.rank import follow

    if kept:
        found = read(Path(kept))
        follow(job, open_rows(rows), group, found.position, found.slab)
    else:
        follow(job, open_rows(rows), group)


def be_rank(orders: Orders, ready: Callable[[], None]) -> None:
    """In a process of its own."""
    work = msgspec.convert(orders.work, RankWork)
    ready()
    transport = ZmqTransport(orders.name)
    transport.connect("coordinator", orders.coordinator)
    group = StoreGroup(client(orders.name, orders.token, transport), number_of(orders.name), work.size)
    with contextlib.closing(group):
        follow_run(orders.work, group)


def _cluster_of(job: Job) -> Cluster:
    modules, journal = tuple(job.launch.modules), Journal(None)
    if job.launch.how == "threads":
        return ThreadCluster(job.servers, modules, journal, job.copies)
    return ProcessCluster(job.servers, job.launch.transport, modules, journal, job.copies, restart=job.copies > 1)
