"""One rank of an all-reduce run: every step is the mean of everybody's gradients, and all apply it to weights of their own.

The same sum and the same rule at every rank, so the weights are the same, bit by bit, and never travel; where the model is judged
their checksums are compared. A rank that is lost takes its slot of one step with it, which is dealt again (over MPI).
"""

from __future__ import annotations

import threading
import time
import zlib

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.errors import BadValues, RanksDiffer
from shoal.job import Job
from shoal.models.learner import Data, Learner
from shoal.models.linear import Floats
from shoal.models.torch_module import Module
from shoal.strategies.averaging.collective import name_of
from shoal.strategies.averaging.settings import AllReduce, over_of
from shoal.strategies.averaging.step_model import StepModel
from shoal.strategies.averaging.step_slots import StepSlots
from shoal.strategies.averaging.worker import AveragingRank, RoundOrder

_HALF = 1 << 16  # of a checksum: exact in a float32


class StepRank(AveragingRank):
    """One rank's side; called as ``AveragingRank``."""

    def _prepare(
        self, job: Job, train: Data, learner: Learner, slots: Slots, position: tuple[int, Ids] | None, anew: bool
    ) -> int:
        assert isinstance(job.strategy, AllReduce)
        of_pass, left = position or (0, None)
        self.parts = self._steps = StepSlots(slots, self.group.size, of_pass, left)
        ddp = None
        if job.strategy.ddp and over_of(job) == "gloo" and isinstance(job.model, Module):
            from shoal.strategies.averaging.ddp import Ddp

            ddp = Ddp(learner, self.group)
        self.core = self._step = StepModel(job, train, learner, slots, ddp)
        return self._step.size

    def round(self, go: RoundOrder) -> Floats:
        slab = super().round(go)
        self._compare()
        return slab

    def _period(self, go: RoundOrder) -> RoundOrder:
        """One step."""
        mine = self._steps.plan(self._room)[self.group.rank]
        gradient = self._vector[: self._step.size]
        loss, busy, bad = self._compute(mine, gradient)
        said = self._word(time.perf_counter() - self._mark)
        cells = self._vector[-self._cells :]
        self._fill(cells, loss, busy, bad=bad, stop=said.stop)
        if self._step.ddp is None:
            total = self.group.total(self._vector)
            met = self._read(total[-self._cells :])
        else:
            total, met = self._vector, self._read(self.group.total(cells))
        self._settle(met)
        if met.bad:
            self.core.slab[:] = np.nan
        elif met.slots:
            self._step.apply(total[: self._step.size], met.slots)
        now = time.perf_counter()
        met.seconds, self._mark = now - self._mark, now
        self._heard(met)
        return RoundOrder(met.go.stop or met.bad)

    def _compute(self, mine: Ids, gradient: Floats) -> tuple[float, float, bool]:
        """Loss, seconds, and whether it is no number."""
        if not len(mine):
            self._step.no_gradient(gradient)
            return 0.0, 0.0, False
        began = time.perf_counter()
        try:
            loss, bad = self._step.gradient(self._steps.named(int(mine[0])), gradient), False
        except BadValues:
            gradient[:] = 0.0
            loss, bad = 0.0, True
        bad = bad or not bool(np.isfinite(gradient).all())
        took = time.perf_counter() - began
        if self._pace is not None:
            held = self._pace.extra(self._steps.rows(mine), took)
            threading.Event().wait(held)
            took += held
        return loss, took, bad

    def _compare(self) -> None:
        """Everybody's weights are the same; who is lost meanwhile is missed in the next sum."""
        size = self.group.size
        sums = np.zeros(3 * size, np.float32)
        high, low = divmod(zlib.crc32(np.ascontiguousarray(self.core.slab).data), _HALF)
        sums[self.group.rank :: size] = 1, high, low
        inside, high_all, low_all = self.group.total(sums).reshape(3, size)
        for other in np.flatnonzero(inside > 0.5).tolist():
            if (high_all[other], low_all[other]) != (high, low):
                raise RanksDiffer(name_of(other), name_of(self.group.rank))
