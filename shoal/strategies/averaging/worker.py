"""One rank of an averaging or all-reduce run; the same code at every rank.

    rank.begin()                        the mean of the initial models
    while not (go := rank.go()).stop:   all begin at once, or the run is over: rank 0 says so
        rank.round(go)                  periods until the next evaluation; then the mean of all

A period ends with one sum over the group: of averaging the model of each rank, weighted by the rows
it learned from; of all-reduce the gradients, by whose mean every rank takes the same step. Figures
are summed beside it, and who is in it: a rank that is not is gone, for all alike. Rank 0 decides
what only one can: when time is up, and how far it is to the next evaluation.
"""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.errors import BadValues, RanksDiffer
from shoal.job import Job
from shoal.launch.serverless_pool import PoolWorkerSpec, name_of
from shoal.models.learner import Data, Learner, learner_of
from shoal.models.linear import Floats
from shoal.models.torch_module import Module
from shoal.strategies.averaging import AllReduce, Averaging, over_of
from shoal.strategies.averaging.collective import Collective
from shoal.strategies.averaging.shards import LostRank, Shards, StepSlots
from shoal.training.local_checkpoint import LocalCheckpoint, is_finite
from shoal.training.local_model import LocalModel, StepModel, own_start

# Figures summed beside the model; then two cells for each rank: inside, busy.
CELLS = ("loss", "loss_rest", "bad", "stop", "room", "most", "sent", "received")
ROOM = 1 << 20  # most slots between two orders of rank 0: exact in a float32
_RUNAWAY = 1e30  # a higher loss has diverged; a float32 can hold it
_HALF = 1 << 16  # of a checksum: exact in a float32


@dataclass(frozen=True, slots=True)
class RoundOrder:
    """What comes next, as rank 0 says."""

    stop: bool = False
    room: int = 0  # slots until the next evaluation
    most: int = 0  # own slots until the next sum, where no rank continues from the mean


@dataclass(slots=True)
class RoundResult:
    inside: list[int]
    busy: list[float]  # seconds that each computed
    loss: float
    bad: bool  # the weights of some rank are not finite
    go: RoundOrder
    sent: int  # bytes, by all ranks
    received: int
    each: list[int]  # slots that each rank inside learned from
    slots: int  # all of these
    rows: int
    lost: list[LostRank]
    seconds: float = 0.0  # since the last one


Position = tuple[int, Ids | None]  # an epoch, and its slots that are left; None: all
START: Position = (0, None)
_NONE = np.empty(0, np.int64)
_NOTHING = RoundOrder()


class AveragingRank:
    parts: Shards
    model: StepModel
    at_end = _own = _resets = False

    def __init__(
        self,
        job: Job,
        train: Data,
        learner: Learner,
        group: Collective,
        resume: LocalCheckpoint | None = None,
        on_result: Callable[[RoundResult], None] = lambda result: None,
        next_order: Callable[[float], RoundOrder] = lambda seconds: _NOTHING,
    ) -> None:
        """With ``resume`` a run is resumed. Of rank 0: ``on_result`` gets the figures of each sum;
        ``next_order`` is called before a sum, with the seconds since the last one.
        """
        self.group, self._on_result, self._next_order = group, on_result, next_order
        slots = Slots(train.rows, job.data.batch, job.seed)
        size = self._prepare(job, train, learner, slots, START if resume is None else resume.position)
        if resume is not None:
            self._own = False
            self.model.slab[:] = resume.slab
        self._vector = np.zeros(size + len(CELLS) + 2 * group.size, np.float32)
        self._pace = job.emulate.pace(group.rank, job.seed)
        self._moved = (0, 0)  # bytes that were reported
        self._mark = 0.0
        self._room = 0

    def _prepare(self, job: Job, train: Data, learner: Learner, slots: Slots, position: Position) -> int:
        """Make ``parts`` and ``model``; how many numbers are summed beside the cells."""
        assert isinstance(job.strategy, Averaging)
        self.parts = self._shards = make_shards(job, slots, self.group.size, position)
        self.model = self._local = LocalModel(job, train, learner, slots, self._shards.reach(self.group.rank))
        self.at_end, self._own = job.strategy.every == "end", job.strategy.start == "own"
        if self._own:
            self.model.weights_in(self.model.slab)[:] = own_start(job, train, learner, self.group.rank)
        self._resets = job.strategy.state == "reset"
        return self._averaged(self.model.slab).size

    def begin(self) -> Floats:
        return self._mean() if self._own else self.model.slab

    def go(self, go: RoundOrder = _NOTHING) -> RoundOrder:
        """Wait for all ranks; the order that rank 0 gives is what all get."""
        self._room = 0
        result = self._read(self.group.total(self._fill(stop=go.stop, room=min(go.room, ROOM), most=go.most)))
        self._room += result.go.room
        self._on_result(result)
        self._mark = time.perf_counter()
        return result.go

    def round(self, go: RoundOrder) -> Floats:
        """Learn until the next evaluation, or until time is up; then the mean of all, a slab."""
        while True:
            while self._room > 0 and not go.stop:
                go = self._period(go)
            if not self.at_end:
                return self.model.slab
            mean = self._mean()
            if self._room <= 0 or go.stop:  # otherwise a rank was lost in it
                return mean

    # ------------------------------------------------------------ a period

    def _period(self, go: RoundOrder) -> RoundOrder:
        mine = self.parts.plan(self._room, max(1, go.most) if self.at_end else None)[self.group.rank]
        began, loss, bad = time.perf_counter(), 0.0, True
        with contextlib.suppress(BadValues):
            loss, bad = self._learn(mine)
        busy = self._slowed(mine, time.perf_counter() - began) if len(mine) else 0.0
        order = self._next_order(time.perf_counter() - self._mark)
        result = self._combine(self._fill(loss, busy, bad=bad, stop=order.stop, most=order.most), bad)
        if result.bad:
            self.model.slab[:] = np.nan
        now = time.perf_counter()
        result.seconds, self._mark = now - self._mark, now
        self._on_result(result)
        return RoundOrder(result.go.stop or result.bad, most=result.go.most)

    def _learn(self, mine: Ids) -> tuple[float, bool]:
        """Learn from these slots; the sum of their losses, and whether the result is bad."""
        loss = sum(self._local.run(*piece) for piece in self._shards.pieces(mine))
        if not abs(loss) < _RUNAWAY:
            raise BadValues(f"the loss is {loss}")
        return loss, not is_finite(self.model.slab)

    def _combine(self, cells: Floats, bad: bool) -> RoundResult:
        """Sum; all continue from the mean, unless there is one at the end only."""
        if self.at_end:
            return self._read(self.group.total(cells))
        result, mean = self._sum(bad)
        if mean is not None:
            self._averaged(self.model.slab)[:] = mean
            if self._resets:
                weights = self.model.weights
                self.model.slab[:] = 0.0
                self.model.weights_in(self.model.slab)[:] = weights
        self._shards.commit()
        return result

    def _slowed(self, slots: Ids, took: float) -> float:
        """Wait as long as the emulation of slow workers says; the seconds altogether."""
        if self._pace is None:
            return took
        delay = self._pace.extra(self.parts.rows(slots), took)
        threading.Event().wait(delay)
        return took + delay

    # ------------------------------------------------------------ means and sums

    def _averaged(self, slab: Floats) -> Floats:
        return self.model.weights_in(slab) if self._resets else slab

    def _mean(self) -> Floats:
        """The mean of all models, from which no rank continues: a slab of its own."""
        bad = not is_finite(self.model.slab)
        self._fill(bad=bad)
        result, mean = self._sum(bad)
        self._on_result(result)
        slab = np.zeros_like(self.model.slab)
        if result.bad:
            slab[:] = np.nan
        elif mean is not None:
            self._averaged(slab)[:] = mean
        return slab

    def _sum(self, bad: bool) -> tuple[RoundResult, Floats | None]:
        """The mean, weighted by rows; None if no rank inside has any. The cells are filled."""
        mine = self._averaged(self.model.slab)
        weights = self._shards.weights()
        share = np.float32(0.0 if bad else weights[self.group.rank])
        np.multiply(0.0 if bad else mine, share, out=self._vector[: mine.size].reshape(mine.shape))
        total = self.group.total(self._vector)
        result = self._read(total)
        there = [weights[rank] for rank in result.inside]
        mean: Floats = total[: mine.size].reshape(mine.shape)
        if len(there) < len(weights):
            mean = mean / np.float32(sum(there)) if sum(there) else mean
        return result, mean if sum(there) else None

    def _fill(self, loss: float = 0.0, busy: float = 0.0, **figures: float) -> Floats:
        group, rough = self.group, float(np.float32(loss))
        sent, received = self._moved
        figures |= {"loss": rough, "loss_rest": loss - rough}
        figures |= {"sent": group.sent - sent, "received": group.received - received}
        self._moved = (group.sent, group.received)
        cells = self._vector[-len(CELLS) - 2 * group.size :]
        cells[:] = 0.0
        cells[: len(CELLS)] = [figures.get(name, 0.0) for name in CELLS]
        cells[len(CELLS) + group.rank] = 1.0
        cells[len(CELLS) + group.size + group.rank] = busy
        return cells

    def _read(self, total: Floats) -> RoundResult:
        """The figures of a sum; what was planned is done, or its rank is lost."""
        size = self.group.size
        figures, inside, busy = np.split(total[-len(CELLS) - 2 * size :], [len(CELLS), len(CELLS) + size])
        loss, rest, bad, stop, room, most, sent, received = figures.astype(np.float64).tolist()
        go = RoundOrder(stop > 0.5, round(room), round(most))
        there = np.flatnonzero(inside > 0.5).tolist()
        done = [self.parts.planned.get(rank, _NONE) for rank in there]
        each, rows = list(map(len, done)), sum(map(self.parts.rows, done))
        lost = self.parts.settle(there)
        self._room += sum(one.back for one in lost) - sum(each)
        moved = (round(sent), round(received))
        return RoundResult(there, busy.tolist(), loss + rest, bad > 0.5, go, *moved, each, sum(each), rows, lost)


class StepRank(AveragingRank):
    def _prepare(self, job: Job, train: Data, learner: Learner, slots: Slots, position: Position) -> int:
        assert isinstance(job.strategy, AllReduce)
        self.parts = self._steps = StepSlots(slots, self.group.size, (), None, *position)
        ddp = None
        if job.strategy.ddp and over_of(job) == "gloo" and isinstance(job.model, Module):
            from shoal.strategies.averaging.gloo import Ddp

            ddp = Ddp(learner, self.group)
        self.model = StepModel(job, train, learner, slots, ddp)
        return self.model.size

    def round(self, go: RoundOrder) -> Floats:
        slab = super().round(go)
        self._compare()
        return slab

    def _learn(self, mine: Ids) -> tuple[float, bool]:
        """The loss, and whether the gradient is not finite."""
        gradient, loss = self._vector[: self.model.size], 0.0
        if not len(mine):
            self.model.no_gradient(gradient)
            return 0.0, False
        try:
            loss = self.model.gradient(self._steps.named(int(mine[0])), gradient)
        except BadValues:
            gradient[:] = 0.0
            raise
        return loss, not bool(np.isfinite(gradient).all())

    def _combine(self, cells: Floats, bad: bool) -> RoundResult:
        """Sum the gradients, unless PyTorch has, and take the step."""
        total = self.group.total(self._vector if self.model.summed is None else cells)
        result = self._read(total)
        if result.slots and not result.bad:
            gradient = total if self.model.summed is None else self._vector
            self.model.apply(gradient[: self.model.size], result.slots)
        return result

    def _compare(self) -> None:
        size = self.group.size
        sums = np.zeros(3 * size, np.float32)
        high, low = divmod(zlib.crc32(np.ascontiguousarray(self.model.slab).data), _HALF)
        sums[self.group.rank :: size] = 1, high, low
        inside, high_all, low_all = self.group.total(sums).reshape(3, size)
        for other in np.flatnonzero(inside > 0.5).tolist():
            if (high_all[other], low_all[other]) != (high, low):
                raise RanksDiffer(name_of(other), name_of(self.group.rank))


def make_shards(job: Job, slots: Slots, ranks: int, position: Position = START) -> Shards:
    assert isinstance(job.strategy, Averaging)
    every = None if job.strategy.every == "end" else job.strategy.every
    return Shards(slots, ranks, job.strategy.shares, every, *position)


def rank_class(job: Job) -> type[AveragingRank]:
    return AveragingRank if isinstance(job.strategy, Averaging) else StepRank


def run_rank(spec: PoolWorkerSpec, group: Collective) -> None:
    """Be one of the other ranks, until rank 0 says that the run is over."""
    try:
        job, train = spec.load()
        learner = learner_of(job.model, train, job.seed, group.rank)
        learner.settle(alone=True)
        rank = rank_class(job)(job, train, learner, group, spec.load_checkpoint())
        rank.begin()
        while not (go := rank.go()).stop:
            rank.round(go)
    finally:
        group.close()
