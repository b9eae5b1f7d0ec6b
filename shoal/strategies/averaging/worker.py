"""One rank of an averaging run: it learns from slots of its own, and now and then all take the mean. The same code at every rank.

    rank.begin()                        the mean of what they begin with
    while not (go := rank.go()).stop:   everybody begins at once, or it is over: rank 0 says so
        rank.round(go)                  periods, until the model is to be judged: the mean of all then

A period is one sum over the group: the model of each, weighted by the rows it learned from; its loss; how long it computed; and
who is in it. Whoever is not in it is gone, for all alike. With ``every = "end"`` nobody goes on from a mean: in between only
figures are summed, and where the model is judged its mean is taken, and everybody goes on with their own.

Rank 0 decides what only one can: when time is up, how far until the model is judged.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.errors import BadValues
from shoal.job import Job
from shoal.models.learner import Data, Learner, learner_of
from shoal.models.linear import Floats, Linear
from shoal.nodes.dense_batches import seed_of
from shoal.strategies.averaging.collective import Collective
from shoal.strategies.averaging.settings import Averaging
from shoal.strategies.averaging.shards import LostRank, Shards
from shoal.training.local_model import LocalModel

CELLS = ("loss", "loss_rest", "bad", "stop", "room", "most", "sent", "received")  # then two for each rank: inside, busy
ROOM = 1 << 20  # slots at most between two words of rank 0: exact in a float32
_RUNAWAY = 1e30  # no loss is as high as this, and a float32 can still say it
_DEVIATION = 0.01  # of a linear model's weights where every rank begins with its own


@dataclass(frozen=True, slots=True)
class RoundOrder:
    """What comes next, by rank 0's word."""

    stop: bool = False
    room: int = 0  # slots until the model is judged
    most: int = 0  # own slots until the next sum, where nobody goes on from the mean


@dataclass(slots=True)
class RoundResult:
    """What a sum said, besides the model."""

    inside: list[int]
    busy: list[float]  # seconds that each computed
    loss: float
    bad: bool  # somebody's weights are not finite
    go: RoundOrder
    sent: int  # bytes, by all of them
    received: int
    each: list[int] = field(default_factory=list)  # slots that each inside learned from
    slots: int = 0  # all of these
    rows: int = 0
    seconds: float = 0.0  # since the last one
    lost: list[LostRank] = field(default_factory=list)


_NONE = np.empty(0, np.int64)
Heard = Callable[[RoundResult], None]
_NOTHING = RoundOrder()


def _unheard(met: RoundResult) -> None:
    return


class SlotDeal(Protocol):
    """Who learns from which slots: ``Shards``, or the ``Steps`` of an all-reduce."""

    living: list[int]
    of_pass: int
    planned: dict[int, Ids]

    def rows(self, ids: Ids) -> int: ...

    def settle(self, inside: Collection[int]) -> list[LostRank]: ...

    def left(self) -> Ids: ...


class RankModel(Protocol):
    """Has the model: ``LocalModel`` or ``StepCore``."""

    @property
    def slab(self) -> Floats: ...

    @property
    def weights(self) -> Floats: ...

    def weights_in(self, slab: Floats) -> Floats: ...


class AveragingRank:
    """One rank's side."""

    parts: SlotDeal
    core: RankModel

    def __init__(
        self,
        job: Job,
        train: Data,
        learner: Learner,
        group: Collective,
        position: tuple[int, Ids] | None = None,
        slab: Floats | None = None,
        heard: Heard = _unheard,
        word: Callable[[float], RoundOrder] = lambda seconds: _NOTHING,
    ) -> None:
        """With ``position``, pass and slots that are left, and a slab, a run is taken up again.

        Of rank 0: ``heard`` is told after each sum, ``word`` is asked before, with the seconds since the last.
        """
        self.group, self._heard, self._word = group, heard, word
        self._own = self.at_end = self._resets = False
        size = self._prepare(job, train, learner, Slots(train.rows, job.data.batch, job.seed), position, slab is None)
        if slab is not None:
            self.core.slab[:] = slab
        self._vector = np.zeros(size + len(CELLS) + 2 * group.size, np.float32)
        self._pace = job.emulate.pace(group.rank, job.seed)
        self._moved = (0, 0)  # bytes that were told
        self._mark = 0.0
        self._room = 0

    def _prepare(
        self, job: Job, train: Data, learner: Learner, slots: Slots, position: tuple[int, Ids] | None, anew: bool
    ) -> int:
        """Who learns from what, and with what; how many numbers are summed besides the cells."""
        assert isinstance(job.strategy, Averaging)
        self.parts = self._mine = parts_of(job, slots, self.group.size, position)
        self.core = self._alone = LocalModel(job, train, learner, slots, self._mine.reach(self.group.rank))
        self.at_end, self._own = job.strategy.every == "end", anew and job.strategy.start == "own"
        if self._own:
            self.core.weights_in(self.core.slab)[:] = own_start(job, train, learner, self.group.rank)
        self._resets = job.strategy.state == "reset"
        return self._travels(self.core.slab).size

    def begin(self) -> Floats:
        """What all begin with, to be judged: a slab."""
        return self._mean() if self._own else self.core.slab

    def go(self, go: RoundOrder = _NOTHING) -> RoundOrder:
        """Wait for everybody, and for rank 0's word: what it gives is what all get."""
        cells = self._vector[-self._cells :]
        self._fill(cells, stop=go.stop, room=min(go.room, ROOM), most=go.most)
        met = self._read(self.group.total(cells))
        self._room = met.go.room
        self._settle(met)
        self._heard(met)
        self._mark = time.perf_counter()
        return met.go

    def round(self, go: RoundOrder) -> Floats:
        """Learn until the model is to be judged, or time is up; the mean of all then, a slab."""
        while True:
            while self._room > 0 and not go.stop:
                go = self._period(go)
            if not self.at_end:
                return self.core.slab
            mean = self._mean()
            if self._room <= 0 or go.stop:  # otherwise somebody was lost in it, and there is more to do
                return mean

    # ------------------------------------------------------------ inside

    @property
    def _cells(self) -> int:
        return len(CELLS) + 2 * self.group.size

    def _travels(self, slab: Floats) -> Floats:
        """The part of a slab of which means are taken."""
        return self.core.weights_in(slab) if self._resets else slab

    def _period(self, go: RoundOrder) -> RoundOrder:
        """Some slots of one's own, then the sum."""
        mine = self._mine.plan(self._room, max(1, go.most) if self.at_end else None)[self.group.rank]
        loss, busy = self._learn(mine)
        said = self._word(time.perf_counter() - self._mark)
        bad = not _is_finite(self.core.slab)
        cells = self._vector[-self._cells :]
        self._fill(cells, loss, busy, bad=bad, stop=said.stop, most=said.most)
        if self.at_end:
            met = self._read(self.group.total(cells))
            self._settle(met)
        else:
            met, mean = self._sum(bad)
            if mean is not None:
                self._travels(self.core.slab)[:] = mean
                if self._resets:
                    self._forget()
            self._mine.fed()
        if met.bad:
            self.core.slab[:] = np.nan
        now = time.perf_counter()
        met.seconds, self._mark = now - self._mark, now
        self._heard(met)
        return RoundOrder(met.go.stop or met.bad, most=met.go.most)

    def _learn(self, mine: Ids) -> tuple[float, float]:
        """These slots: the sum of their losses, and seconds."""
        began, loss = time.perf_counter(), 0.0
        try:
            for of_pass, numbers, contents in self._mine.pieces(mine):
                loss += self._alone.run(of_pass, numbers, contents)
            if not abs(loss) < _RUNAWAY:
                raise BadValues(f"the loss is {loss}")
        except BadValues:
            loss = 0.0
            self.core.slab[:] = np.nan  # as a step that was too long leaves it: everybody hears of it
        took = time.perf_counter() - began
        if self._pace is not None:
            held = self._pace.extra(self.parts.rows(mine), took)
            threading.Event().wait(held)
            took += held
        return loss, took

    def _mean(self) -> Floats:
        """Of what everybody has, while nobody goes on from it: a slab of its own."""
        bad = not _is_finite(self.core.slab)
        self._fill(self._vector[-self._cells :], bad=bad)
        met, mean = self._sum(bad)
        self._heard(met)
        slab = np.zeros_like(self.core.slab)
        if met.bad:
            slab[:] = np.nan
        elif mean is not None:
            self._travels(slab)[:] = mean
        return slab

    def _sum(self, bad: bool) -> tuple[RoundResult, Floats | None]:
        """The cells are filled; the mean by the weights that the parts say, or nothing if nobody inside has any."""
        mine = self._travels(self.core.slab)
        weights = self._mine.weights()
        share = np.float32(0.0 if bad else weights[self.group.rank])
        np.multiply(0.0 if bad else mine, share, out=self._vector[: mine.size].reshape(mine.shape))
        total = self.group.total(self._vector)
        met = self._read(total[-self._cells :])
        there = [weights[rank] for rank in met.inside]
        mean: Floats = total[: mine.size].reshape(mine.shape)
        if len(there) < len(weights):
            mean = mean / np.float32(sum(there)) if sum(there) else mean
        self._settle(met)
        return met, mean if sum(there) else None

    def _fill(
        self,
        cells: Floats,
        loss: float = 0.0,
        busy: float = 0.0,
        *,
        bad: bool = False,
        stop: bool = False,
        room: int = 0,
        most: int = 0,
    ) -> None:
        group, rough = self.group, float(np.float32(loss))
        moved = (group.sent, group.received)
        new = [now - before for now, before in zip(moved, self._moved, strict=True)]
        self._moved = moved
        cells[:] = 0.0
        cells[: len(CELLS)] = (rough, loss - rough, bad, stop, room, most, *new)
        cells[len(CELLS) + group.rank] = 1.0
        cells[len(CELLS) + group.size + group.rank] = busy

    def _read(self, cells: Floats) -> RoundResult:
        told, each = cells[: len(CELLS)].astype(np.float64).tolist(), cells[len(CELLS) :]
        loss, rest, bad, stop, room, most, sent, received = told
        inside = np.flatnonzero(each[: self.group.size] > 0.5).tolist()
        busy = each[self.group.size :].tolist()
        go = RoundOrder(stop > 0.5, round(room), round(most))
        return RoundResult(inside, busy, loss + rest, bad > 0.5, go, round(sent), round(received))

    def _settle(self, met: RoundResult) -> None:
        done = [self.parts.planned.get(rank, _NONE) for rank in met.inside]
        met.each = list(map(len, done))
        met.slots, met.rows = sum(met.each), sum(map(self.parts.rows, done))
        met.lost = self.parts.settle(met.inside)
        self._room += sum(one.back for one in met.lost) - met.slots

    def _forget(self) -> None:
        """What the rule keeps beside the weights begins anew."""
        weights = self.core.weights
        self.core.slab[:] = 0.0
        self.core.weights_in(self.core.slab)[:] = weights


def parts_of(job: Job, slots: Slots, ranks: int, position: tuple[int, Ids] | None = None) -> Shards:
    assert isinstance(job.strategy, Averaging)
    every = None if job.strategy.every == "end" else job.strategy.every
    of_pass, left = position or (0, None)
    return Shards(slots, ranks, job.strategy.shares, every, of_pass, left)


def rank_of(job: Job) -> type[AveragingRank]:
    """What a rank of this job is."""
    if isinstance(job.strategy, Averaging):
        return AveragingRank
    from shoal.strategies.averaging.allreduce import StepRank

    return StepRank


def follow(
    job: Job, train: Data, group: Collective, position: tuple[int, Ids] | None = None, slab: Floats | None = None
) -> None:
    """Be one of the others, until rank 0 says that it is over."""
    learner = learner_of(job.model, train, job.seed, group.rank)
    learner.settle(alone=True)
    rank = rank_of(job)(job, train, learner, group, position, slab)
    rank.begin()
    while not (go := rank.go()).stop:
        rank.round(go)


def own_start(job: Job, train: Data, learner: Learner, rank: int) -> Floats:
    """Other weights at every rank; those of rank 0 are the ones that all would have."""
    seed = seed_of(job.seed, (rank, 0)) if rank else job.seed
    if isinstance(job.model, Linear):
        drawn: Floats = np.random.default_rng(seed).normal(0.0, _DEVIATION, learner.keys).astype(np.float32)
        return drawn
    start = (learner if not rank else learner_of(job.model, train, seed, rank)).start()
    assert start is not None
    return start[0]


def _is_finite(slab: Floats) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(slab.sum())  # a third of the time that it takes to look at each
    return math.isfinite(total) or bool(np.isfinite(slab).all())
