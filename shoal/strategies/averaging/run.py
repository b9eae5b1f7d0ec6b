"""A run in which everybody learns alone and all take means: rank 0's side, which is the process that was called.

It computes as any other rank does, and besides keeps the score: the model is judged here, while the others wait and the clock stands
still. What is kept of the run, and what is judged when it is interrupted, is the last mean. With ``every = "end"`` a mean is
taken where the model is judged, and a run that is taken up again goes on from that, all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal import limits
from shoal.data.batch import Ids
from shoal.data.datasets import Dataset
from shoal.errors import ClusterError, Invalid, RankLost, SegmentsLost, StoreError
from shoal.events import Gone, RunEvent, Warned
from shoal.job import Job
from shoal.models.linear import Floats
from shoal.strategies.averaging.collective import RankProcesses, name_of
from shoal.strategies.averaging.processes import others_of
from shoal.strategies.averaging.settings import AllReduce, over_of
from shoal.strategies.averaging.shards import unseen
from shoal.strategies.averaging.worker import (
    AveragingRank,
    RoundOrder,
    RoundResult,
    parts_of,
    rank_of,
)
from shoal.training.local_checkpoint import LocalCheckpoint, LocalCheckpoints, LocalProgress
from shoal.training.preflight import check
from shoal.training.result import RunResult
from shoal.training.tracker import Tracker
from shoal.training.underway import RunHandle, RunStart
from shoal.wire.messages import RunProgress

_WORD = 1.0  # seconds between two sums of figures where nobody goes on from the mean
_MOST = 1 << 16  # own slots between them


class AveragingRun:
    """One run. Use as a context, as ``Training``."""

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None],
        folder: Path | None = None,
        kept: LocalCheckpoint | None = None,
        others: RankProcesses | None = None,
    ) -> None:
        """``others``: the ranks besides this one; those that the job says, unless they are there already."""
        self.learner = check(job, dataset)
        self.job, self.dataset, self._listener, self._kept = job, dataset, listener, kept
        self._in_steps = in_steps = isinstance(job.strategy, AllReduce)
        self.score = Tracker(job, dataset, self.learner, listener, folder, job.workers if in_steps else 1)
        start = self.learner.start()
        self._keeper = LocalCheckpoints(folder, job, "" if start is None else start[1], listener)
        if kept is not None:
            self.score.restore(kept.facts.standing)
        if not in_steps:
            parts_of(job, self.score.slots, job.workers)  # says what is wrong with the shares
        path = None if kept is None else kept.path
        self._others = others or others_of(job, dataset, path, self._warn, self._server_lost)
        self._living = list(range(job.workers))
        self._most = 1
        self._unseen = np.zeros(limits.STALENESS_BUCKETS, np.int64)
        self._alone: dict[int, int] = {}  # steps of each since the last mean that all went on from
        self._rank: AveragingRank
        self._mean: Floats | None = None  # the last one: what is kept, and judged when it is interrupted
        self._spare: Floats | None = None  # memory of the one before
        self._at: tuple[LocalProgress, int, int, Ids] | None = None  # how far it was then

    def __enter__(self) -> AveragingRun:
        self.learner.settle()
        try:
            group, kept = self._others.start(), self._kept
            position, slab = (None, None) if kept is None else (kept.position, kept.slab)
            self._rank = rank_of(self.job)(
                self.job, self.dataset.train, self.learner, group, position, slab, self._heard, self._word
            )
        except BaseException:
            self._others.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.learner.release()
        self._others.close()

    @property
    def pids(self) -> dict[str, int]:
        return self._others.pids

    @property
    def workers(self) -> list[str]:
        return [name_of(rank) for rank in self._living]

    @property
    def course(self) -> RunProgress:
        return self.score.course()

    def wait(self, seconds: float | None = None) -> RunResult:
        """Run it to its end."""
        score = self.score
        score.begin(len(self._living), self.job.servers if self.job.has_servers else 0)
        try:
            self._begin(self._rank.begin())
            while not (go := self._rank.go(RoundOrder(bool(score.why), score.room(), self._most))).stop:
                self._judge(self._rank.round(go))
                if self._keeper.due:
                    self._keep()
            if self._keeper.has_some:
                self._keep()
            self._others.finish()
        except RankLost as error:
            self._tell_gone([(error.who, error.why, 0)])
            self._fail(str(error))
        except SegmentsLost as error:
            self._fail(
                f"{error.server} is gone, and with it the only copy of its part of a mean: shoal train --resume goes on from what "
                f"was kept; with --servers 2 --copies 2 the others would go on"
            )
        except (ClusterError, StoreError) as error:
            self._fail(f"{error}; shoal train --resume goes on from what was kept")
        except Exception:  # of the module, say
            self._keep()
            raise
        return score.end()

    def interrupted(self) -> RunResult:
        """What was learned up to the last mean is judged, and kept."""
        self.score.why = self.score.why or "interrupted"
        self._keep()
        if self.score.unjudged and self.score.done and self._mean is not None:
            self.score.judge(self._weights(self._mean))
        return self.outcome()

    def outcome(self) -> RunResult:
        return self.score.outcome()

    # ------------------------------------------------------------ inside

    def _begin(self, mean: Floats) -> None:
        self._remember(mean)
        if self._kept is None or self.score.room() <= 0:  # otherwise it was judged in its former life
            self.score.judge(self._weights(mean))

    def _judge(self, mean: Floats) -> None:
        self._remember(mean)
        if self.score.unjudged:
            self.score.judge(self._weights(mean))

    def _weights(self, slab: Floats) -> Floats:
        return self._rank.core.weights_in(slab).copy()

    def _word(self, seconds: float) -> RoundOrder:
        """Before a sum: so long the clock has run since the last."""
        if self._rank.at_end:
            wanted = int(self._most * _WORD / max(seconds, 1e-9))
            self._most = max(1, min(2 * self._most, wanted, _MOST))
        score = self.score  # after a loss there are fewer slots in so many steps than was said
        is_last = self._in_steps and score.done + len(self._living) >= score.limit
        return RoundOrder(is_last or score.is_late(seconds), most=self._most)

    def _heard(self, met: RoundResult) -> None:
        """After a sum: the figures of all."""
        score, living = self.score, len(met.inside)
        for one in met.lost:
            score.take_back(one.back, one.rows)
        self._tell_gone([(name_of(one.rank), self._others.why(one.rank), one.again) for one in met.lost])
        self._living = met.inside
        score.workers = living
        if self._in_steps:
            score.step_by(living)
        score.sent += met.sent
        score.received += met.received
        if not met.slots:
            return
        if not self._in_steps:
            self._count_unseen(met)
        slowest = max(met.busy)
        spent = {
            "compute": sum(met.busy),
            "wait": slowest * living - sum(met.busy),
            "communicate": max(0.0, met.seconds - slowest) * living,
        }
        score.add(met.slots, met.rows, met.loss, met.seconds, spent, 1 if self._in_steps else None)
        if not self._rank.at_end:
            self._remember(self._rank.core.slab)
            if self._keeper.due:
                self._keep()

    def _count_unseen(self, met: RoundResult) -> None:
        """Staleness, where everybody learns alone: the steps of others since the last mean that a step did not know of."""
        before = [self._alone.get(rank, 0) for rank in met.inside]
        self._unseen += unseen(before, met.each, limits.STALENESS_BUCKETS - 1)
        self.score.staleness = np.trim_zeros(self._unseen, "b").tolist()
        if self._rank.at_end:
            steps = zip(met.inside, before, met.each, strict=True)
            self._alone = {rank: past + now for rank, past, now in steps}

    def _remember(self, mean: Floats) -> None:
        """This is the mean now; who is interrupted while it is copied still has the one before."""
        if self._spare is None:
            self._spare = np.empty_like(mean)
        self._spare[:] = mean
        self._mean, self._spare = self._spare, self._mean
        self._at = self._position() if self._rank.at_end else None

    def _position(self) -> tuple[LocalProgress, int, int, Ids]:
        parts = self._rank.parts
        return self.score.state(), self.score.steps, parts.of_pass, parts.left()

    def _keep(self) -> None:
        if self._mean is not None and self.score.done and np.isfinite(self._mean).all():
            standing, steps, of_pass, left = self._at or self._position()
            self._keeper.keep(self._mean, of_pass, left, standing, steps)

    def _tell_gone(self, gone: list[tuple[str, str, int]]) -> None:
        for name, why, again in gone:
            self.score.counts["workers lost"] += 1
            self.score.counts["slots dealt again"] += again
            self._listener(Gone(seconds=self.score.seconds, name=name, role="worker", why=why, slots=again))

    def _server_lost(self, name: str, why: str) -> None:
        self.score.counts["servers lost"] += 1
        self._listener(Gone(seconds=self.score.seconds, name=name, role="server", why=why))

    def _fail(self, why: str) -> None:
        self._keep()
        self.score.fail(why)

    def _warn(self, what: str) -> None:
        self._listener(Warned(seconds=self.score.seconds, what=what))


def open_run(start: RunStart, begin: Callable[[], None]) -> RunHandle:
    """The run, not yet begun: by mpirun, or by ranks of our own."""
    from shoal.strategies.averaging.mpi_ranks import rank

    job = start.job
    if over_of(job) == "mpi" and job.launch.how == "threads":
        raise Invalid("over MPI every rank is a process: leave --on threads away, or strategy.over=mpi")
    opened: RunHandle
    if over_of(job) == "mpi" and rank() is None:
        from shoal.strategies.averaging.mpirun import MpirunRun

        opened = MpirunRun(job, start.dataset, start.listener, start.folder, start.resume)
    else:
        opened = AveragingRun(job, start.dataset, start.listener, start.folder, start.resume)
    begin()
    return opened
