"""An averaging or all-reduce run: rank 0's side, which is the process that was called.

It computes as any other rank does, and tracks the run besides: it evaluates the model while the
others wait and the clock stands still. Checkpoints hold the last mean. However this process ends,
the other ranks end with it:

    StoreRanks      clients of a cluster of this run's own: threads, or processes
    GlooRanks       processes that sum over gloo; none can be lost
    MpiRanks        processes that mpirun has started (``mpi``)
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from shoal import limits
from shoal.data.slots import Slots
from shoal.errors import ClusterError, Invalid, RankLost, SegmentsLost, ShoalError, StoreError
from shoal.job import Job, LaunchSettings
from shoal.launch import mpirun_rank
from shoal.launch.cluster import Cluster
from shoal.launch.local import ThreadCluster
from shoal.launch.process_main import Process, ProcessOrders, transport_of
from shoal.launch.processes import ProcessCluster, safety_of
from shoal.launch.serverless_pool import (
    BY_ITSELF,
    PoolWorkerSpec,
    WorkerPool,
    name_of,
)
from shoal.launch.worker_process import number_of
from shoal.models import needs_torch
from shoal.models.linear import Floats
from shoal.nodes.journal import JournalFile
from shoal.strategies.averaging import AllReduce, Averaging, over_of
from shoal.strategies.averaging.collective import Collective, StoreCollective, client
from shoal.strategies.averaging.shards import unseen
from shoal.strategies.averaging.worker import AveragingRank, RoundOrder, RoundResult, make_shards, rank_class, run_rank
from shoal.training.local_checkpoint import Snapshot
from shoal.training.tracked_run import RunHandle, RunStart, TrackedRun
from shoal.training.tracker import RunResult, Tracker

if TYPE_CHECKING:
    from shoal.strategies.averaging.gloo import GlooCollective
    from shoal.strategies.averaging.mpi import MpiCollective

_REPORT = 1.0  # seconds between two sums of figures where no rank continues from the mean
_MOST = 1 << 16  # own slots between them
_REMIND = 10.0  # seconds until a warning names the awaited rank; then doubled
_LOOK = 1.0  # seconds between checks for silent ranks
_JOIN = 30.0  # seconds: a rank that has not joined by then will not
_SOON = 0.005
MAIN = "shoal.strategies.averaging.run"
SILENT = "it was silent for too long"


class AveragingRun(TrackedRun):
    def __init__(self, start: RunStart) -> None:
        job = start.job
        self._in_steps = isinstance(job.strategy, AllReduce)
        super().__init__(start, job.workers if self._in_steps else 1)
        kinds: dict[str, type[OtherRanks]] = {"gloo": GlooRanks, "mpi": MpiRanks, "store": StoreRanks}
        spec = PoolWorkerSpec.of(job, self.dataset, self.resume)
        self._others = kinds[over_of(job)](job, spec, self.tracker)
        self._living = list(range(job.workers))
        self._most = 1
        self._unseen = np.zeros(limits.STALENESS_BUCKETS, np.int64)
        self._steps_since_mean: dict[int, int] = {}  # steps of each since the last mean
        self._rank: AveragingRank
        self._mean: Floats | None = None  # the last one
        self._spare: Floats | None = None  # memory of the one before
        self._at: Snapshot | None = None  # the last mean, and how far the run was then

    def __enter__(self) -> AveragingRun:
        self.learner.settle()
        try:
            self._rank = rank_class(self.job)(
                self.job, self.dataset.train, self.learner, self._others.start(), self.resume, self._count, self._order
            )
        except BaseException:
            self._others.close()
            raise
        return self

    def close(self) -> None:
        super().close()
        self._others.close()

    @property
    def pids(self) -> dict[str, int]:
        return self._others.pids

    @property
    def workers(self) -> list[str]:
        return [name_of(rank) for rank in self._living]

    def wait(self, seconds: float | None = None) -> RunResult | None:
        try:
            return super().wait()
        except RankLost as error:
            self.tracker.gone(error.who, error.why)
            why = str(error)
        except SegmentsLost as error:
            why = (
                f"{error.server} is gone, and with it the only copy of its segments of a mean: shoal train --resume "
                f"resumes from the last checkpoint; with --servers 2 --copies 2 the run would have continued"
            )
        except (ClusterError, StoreError) as error:
            why = f"{error}; shoal train --resume resumes from the last checkpoint"
        except Exception:  # of the module, say
            self._keep()
            raise
        self._keep()
        self.tracker.fail(why)
        return self.tracker.end()

    # ------------------------------------------------------------ rounds

    def _begin(self) -> None:
        self.tracker.begin(len(self._living), self.job.servers if self.job.has_servers else 0)
        self._remember(self._rank.begin())
        if self.resume is None or self.tracker.room() <= 0:  # otherwise it was evaluated before
            self._evaluate()

    def _round(self) -> None:
        order = self._rank.go(RoundOrder(room=self.tracker.room(), most=self._most))
        self._remember(self._rank.round(order))
        if self.tracker.unevaluated:
            self._evaluate()
        if self.checkpoints.due:
            self._keep()

    def _finish(self) -> None:
        self._rank.go(RoundOrder(stop=True))
        if self.checkpoints.has_some:
            self._keep()
        self._others.finish()

    def _order(self, seconds: float) -> RoundOrder:
        if self._rank.at_end:
            wanted = int(self._most * _REPORT / max(seconds, 1e-9))
            self._most = max(1, min(2 * self._most, wanted, _MOST))
        tracker = self.tracker  # after a loss these steps have fewer slots than announced
        is_last = self._in_steps and tracker.done + len(self._living) >= tracker.limit
        return RoundOrder(is_last or tracker.is_late(seconds), most=self._most)

    def _count(self, result: RoundResult) -> None:
        tracker, living = self.tracker, len(result.inside)
        for one in result.lost:
            tracker.take_back(one.back, one.rows)
        for one in result.lost:
            tracker.counts["slots dealt again"] += one.again
            tracker.gone(name_of(one.rank), self._others.why(one.rank), one.again)
        self._living = result.inside
        tracker.workers = living
        if self._in_steps:
            tracker.step_by(living)
        tracker.sent += result.sent
        tracker.received += result.received
        if not result.slots:
            return
        if not self._in_steps:
            self._count_unseen(result)
        slowest = max(result.busy)
        spent = {
            "compute": sum(result.busy),
            "wait": slowest * living - sum(result.busy),
            "communicate": max(0.0, result.seconds - slowest) * living,
        }
        steps = 1 if self._in_steps else None
        tracker.add(result.slots, result.rows, result.loss, result.seconds, spent, steps)
        if not self._rank.at_end:
            self._remember(self._rank.model.slab)
            if self.checkpoints.due:
                self._keep()

    def _count_unseen(self, result: RoundResult) -> None:
        before = [self._steps_since_mean.get(rank, 0) for rank in result.inside]
        self._unseen += unseen(before, result.each, limits.STALENESS_BUCKETS - 1)
        self.tracker.staleness = np.trim_zeros(self._unseen, "b").tolist()
        if self._rank.at_end:
            steps = zip(result.inside, before, result.each, strict=True)
            self._steps_since_mean = {rank: past + now for rank, past, now in steps}

    # ------------------------------------------------------------ the last mean

    def _remember(self, mean: Floats) -> None:
        """Store the mean; an interruption during the copy still finds the previous one."""
        if self._spare is None:
            self._spare = np.empty_like(mean)
        self._spare[:] = mean
        self._mean, self._spare = self._spare, self._mean
        self._at = self._position(self._mean) if self._rank.at_end else None

    def _position(self, mean: Floats) -> Snapshot:
        parts = self._rank.parts
        return mean, parts.of_pass, parts.left(), self.tracker.state(), self.tracker.steps

    def _weights(self) -> Floats | None:
        return None if self._mean is None else self._rank.model.weights_in(self._mean).copy()

    def _snapshot(self) -> Snapshot | None:
        mean = self._mean
        if mean is None or not self.tracker.done or not np.isfinite(mean).all():
            return None
        return self._at or self._position(mean)


def open_run(start: RunStart, begin: Callable[[], None]) -> RunHandle:
    """The run, not yet begun: by mpirun, or by ranks of our own."""
    job = start.job
    if over_of(job) == "mpi" and job.launch.how == "threads":
        raise Invalid("over MPI every rank is a process: leave out --on threads, or strategy.over=mpi")
    if isinstance(job.strategy, Averaging):
        slots = Slots(start.dataset.train.rows, job.data.batch, job.seed)
        make_shards(job, slots, job.workers)  # refuses wrong shares
    if over_of(job) == "mpi" and mpirun_rank.rank() is None:
        from shoal.strategies.averaging.mpirun import MpirunRun

        opened: RunHandle = MpirunRun(start)
    else:
        opened = AveragingRun(start)
    begin()
    return opened


class OtherRanks(ABC):
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
        self._threads: WorkerPool | None = None
        self._groups: list[StoreCollective] = []  # of threads
        self._next_check = _LOOK
        self._joined: set[str] = set()
        modules, journal = tuple(job.launch.modules), JournalFile(None)
        self._processes: ProcessCluster | None = None
        self._cluster: Cluster
        if job.launch.how == "threads":
            self._cluster = ThreadCluster(job.servers, modules, journal, job.copies)
            self._threads = WorkerPool(job, MAIN, self._on_ended)
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
            elif self._threads is not None:
                group = StoreCollective(self._cluster.client(name_of(rank)), rank, self._job.workers)
                self._groups.append(group)
                self._threads.run_thread(name_of(rank), partial(run_rank, self._spec, group))
        self._kv = self._cluster.client(name_of(0))
        return StoreCollective(self._kv, 0, self._job.workers, self._ended_ranks)

    def finish(self) -> None:
        super().finish()
        if self._threads is not None:
            self._threads.close()  # waits for them

    def close(self) -> None:
        for group in self._groups:  # which ends the sum that a thread may wait for
            with contextlib.suppress(ShoalError):
                group.close()
        self._cluster.close()
        if self._threads is not None:
            self._threads.close()

    def _on_ended(self, name: str, why: str) -> None:
        super()._on_ended(name, why)
        if name.startswith("server"):
            self._servers_ended.append((name, why))

    def _ended_ranks(self, waited: float) -> Collection[int]:
        """The ranks that ended, while a sum is awaited; one that is silent is ended."""
        while self._servers_ended:
            self._tracker.gone(*self._servers_ended.popleft(), role="server")
        if waited < _LOOK:
            self._next_check = _LOOK
        elif waited >= self._next_check and self._processes is not None:
            self._next_check = waited + _LOOK
            self._end_silent(self._processes, waited)
        self._warn_of_long_wait(waited)
        return list(self._ended)

    def _end_silent(self, processes: ProcessCluster, waited: float) -> None:
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
        from shoal.strategies.averaging.mpi import MpiTask, world

        world().order(MpiTask(msgspec.to_builtins(self._spec)))
        self._group = world().group(self._tracker.warn)
        return self._group

    def why(self, rank: int) -> str:
        return "its process ended"

    def finish(self) -> None:
        """All have finished the last sum; they wait for the next orders."""
        if self._group is not None:
            self._group.finish()

    def close(self) -> None:
        """A rank that still waits for a sum gives up."""
        from shoal.strategies.averaging.mpi import MpiDone, world

        if self._group is not None and not self._group.finished:
            world().order(MpiDone())


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
    run_rank(spec, group)
