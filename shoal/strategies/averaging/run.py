"""An averaging or all-reduce run: rank 0's side, which is the process that was called.

It computes as any other rank does, and tracks the run besides: it evaluates the model while the
others wait and the clock stands still. Checkpoints hold the last mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal import limits
from shoal.data.slots import Slots
from shoal.errors import ClusterError, Invalid, RankLost, SegmentsLost, StoreError
from shoal.launch.mpirun_rank import rank
from shoal.launch.worker_pool import name_of
from shoal.models.linear import Floats
from shoal.strategies.averaging import AllReduce, Averaging, over_of
from shoal.strategies.averaging.processes import make_other_ranks
from shoal.strategies.averaging.shards import unseen
from shoal.strategies.averaging.worker import AveragingRank, RoundOrder, RoundResult, make_shards, rank_class
from shoal.training.local_checkpoint import Snapshot
from shoal.training.run import RunHandle, RunStart, TrackedRun
from shoal.training.tracker import RunResult

_REPORT = 1.0  # seconds between two sums of figures where no rank continues from the mean
_MOST = 1 << 16  # own slots between them


class AveragingRun(TrackedRun):
    def __init__(self, start: RunStart) -> None:
        job = start.job
        self._in_steps = isinstance(job.strategy, AllReduce)
        super().__init__(start, job.workers if self._in_steps else 1)
        self._others = make_other_ranks(job, self.dataset, self.resume, self.tracker)
        self._living = list(range(job.workers))
        self._most = 1
        self._unseen = np.zeros(limits.STALENESS_BUCKETS, np.int64)
        self._alone: dict[int, int] = {}  # steps of each since the last mean
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
                f"goes on from what was kept; with --servers 2 --copies 2 the run would have continued"
            )
        except (ClusterError, StoreError) as error:
            why = f"{error}; shoal train --resume goes on from what was kept"
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
            self._judge()

    def _round(self) -> None:
        order = self._rank.go(RoundOrder(room=self.tracker.room(), most=self._most))
        self._remember(self._rank.round(order))
        if self.tracker.unjudged:
            self._judge()
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
        """Staleness: the steps of other ranks since the last mean that a step did not know of."""
        before = [self._alone.get(rank, 0) for rank in result.inside]
        self._unseen += unseen(before, result.each, limits.STALENESS_BUCKETS - 1)
        self.tracker.staleness = np.trim_zeros(self._unseen, "b").tolist()
        if self._rank.at_end:
            steps = zip(result.inside, before, result.each, strict=True)
            self._alone = {rank: past + now for rank, past, now in steps}

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
        make_shards(job, Slots(start.dataset.train.rows, job.data.batch, job.seed), job.workers)  # refuses wrong shares
    if over_of(job) == "mpi" and rank() is None:
        from shoal.strategies.averaging.mpirun import MpirunRun

        opened: RunHandle = MpirunRun(start)
    else:
        opened = AveragingRun(start)
    begin()
    return opened
