"""A module trained on one core, with no store under it: the rival of a cluster.

The update is the very kernel of a server, on one array; the gradient is a worker's own.
"""

from __future__ import annotations

import numpy as np

from shoal.data.batch import Ids
from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.nodes.dense_batches import DenseBatches
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.update import rule_named
from shoal.tables import Update


class LocalModule:
    """Weights, and the one core that changes them."""

    def __init__(self, learner: Learner, update: Update, slices: DenseBatches, mean: bool) -> None:
        rule = rule_named(update.name)
        self._learner, self._slices, self._mean = learner, slices, mean
        self._kernels = dense_kernels(rule)
        self._given = np.array(rule.settings(update.settings), np.float64)
        self._slab = np.zeros((learner.keys, learner.width * (1 + rule.state)), np.float32)
        start = learner.start()
        if start is not None:
            self._slab[:, : learner.width] = start[0]

    @property
    def weights(self) -> Floats:
        """As they are now; a copy."""
        return self._slab[:, : self._learner.width].copy()

    @property
    def slab(self) -> Floats:
        """Weights and what the rule keeps beside them: the array itself, to be read and written."""
        return self._slab

    def run(self, of_pass: int, numbers: Ids) -> float:
        """A step for each of these slots of a pass; the sum of the losses."""
        total = 0.0
        for number in numbers.tolist():
            loss, gradient = self._learner.gradient(self._slices.local((of_pass, number)), self.weights, self._mean)
            self._kernels.push_range(self._slab, 0, 0, gradient, self._given)
            total += loss
        return total
