"""What one rank computes with when every step is the sum over all ranks: a gradient, and the rule that is applied to the sum.

A rule may change a weight that had no gradient (momentum rolls on), and a linear model's rule is only for the keys of the step's
rows, as a server has it. So where it matters, which keys those are is summed beside the gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal import limits
from shoal.data.batch import Local
from shoal.data.dense_file import sparse
from shoal.data.local_keys import Localiser
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.models.learner import Data, Learner
from shoal.models.linear import Floats, Linear
from shoal.nodes.dense_batches import DenseBatches
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.update import UpdateRule, rule_named

if TYPE_CHECKING:
    from shoal.strategies.averaging.ddp import Ddp


class StepModel:
    """Weights, and what changes them."""

    def __init__(self, job: Job, train: Data, learner: Learner, slots: Slots, ddp: Ddp | None = None) -> None:
        """With ``ddp`` a gradient is the sum over all ranks as it is computed."""
        self.ddp = ddp
        rule, update = rule_named(job.update.update().name), job.update.update()
        self._learner, self._slots, self._mean = learner, slots, job.strategy.combine == "mean"
        self._kernels = dense_kernels(rule)
        self._given = np.array(rule.settings(update.settings), np.float64)
        self.slab = np.zeros((learner.keys, learner.width * (1 + rule.state)), np.float32)
        start = learner.start()
        if start is not None:
            self.slab[:, : learner.width] = start[0]
        self._rows: StepBatches | None = None
        self._slices = DenseBatches(train, slots, learner.keys)
        self._marks = False
        if isinstance(job.model, Linear):
            self._rows = StepBatches(job, train, slots)
            self._marks = not _is_idle(rule, self._given)
        self._size = self.slab[:, : learner.width].size

    @property
    def size(self) -> int:
        """Numbers in a gradient, as it is summed."""
        return self._size * (2 if self._marks else 1)

    @property
    def weights(self) -> Floats:
        """As they are now; a copy."""
        return self.weights_in(self.slab).copy()

    def weights_in(self, slab: Floats) -> Floats:
        """The weights of such a slab, as a learner takes them."""
        return slab[:, 0] if self._rows is not None else slab[:, : self._learner.width]

    def gradient(self, slot: tuple[int, int], out: Floats) -> float:
        """Put a slot's gradient at the weights as they are into ``out``; the sum of its losses."""
        weights = self.weights_in(self.slab)
        if self.ddp is not None:
            loss, found = self.ddp.gradient(self._slices.local(slot), np.ascontiguousarray(weights), self._mean)
            out[:] = found.reshape(-1)
            return loss
        if self._rows is None:
            loss, found = self._learner.gradient(self._slices.local(slot), np.ascontiguousarray(weights), self._mean)
            out[:] = found.reshape(-1)
            return loss
        local = self._rows.local(self._slots.content(*slot))
        keys = local.keys.astype(np.int64)
        loss, found = self._learner.gradient(local, weights[keys], self._mean)
        out[:] = 0.0
        out[keys] = found
        if self._marks:
            out[self._size + keys] = 1.0
        return loss

    def no_gradient(self, out: Floats) -> None:
        """There is no slot for this rank in the step; PyTorch wants it to take part all the same."""
        out[:] = 0.0
        if self.ddp is not None:
            some, weights = self._slices.local((0, 0)), np.ascontiguousarray(self.weights_in(self.slab))
            out[:] = self.ddp.gradient(some, weights, self._mean, share=0.0)[1].reshape(-1)

    def apply(self, total: Floats, slots: int) -> None:
        """A step by the sum of so many slots' gradients."""
        gradient = total[: self._size]
        if self._mean and slots > 1:
            gradient = gradient / np.float32(slots)
        if self._rows is None:
            self._kernels.push_range(self.slab, 0, 0, gradient.reshape(len(self.slab), -1), self._given)
            return
        keys = np.flatnonzero(total[self._size : 2 * self._size] if self._marks else gradient)
        self._kernels.push_rows(self.slab, 0, keys, gradient[keys].reshape(-1, 1), self._given)


class StepBatches:
    """A linear model's slots in places of their own key lists, kept for the next pass as far as there is room."""

    def __init__(self, job: Job, train: Data, slots: Slots) -> None:
        self._data, self._slots, self._bias = sparse(train), slots, job.linear.bias
        self._localiser = Localiser(self._data.features)
        given = job.launch.cache_mb
        self._room = limits.SLOT_CACHE if given is None else given * limits.MB
        self._kept: dict[int, Local] = {}

    def local(self, content: int) -> Local:
        local = self._kept.get(content)
        if local is None:
            local = self._localiser.local(self._data.slice(*self._slots.span(content)), self._bias)
            if local.nbytes <= self._room:
                self._room -= local.nbytes
                self._kept[content] = local
        return local


def _is_idle(rule: UpdateRule, given: object) -> bool:
    """It leaves everything as it is where the gradient is 0: tried on all kinds of numbers."""
    slab = np.random.default_rng(0).normal(0.0, 1.0, (256, 1 + rule.state)).astype(np.float32)
    slab[:, 1:] = np.abs(slab[:, 1:])  # most rules keep squares there
    before = slab.copy()
    dense_kernels(rule).push_range(slab, 0, 0, np.zeros((len(slab), 1), np.float32), given)
    return bool(np.array_equal(slab, before))
