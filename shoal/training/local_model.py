"""What one process learns with when it has the whole model to itself: a linear model's compiled loop, or a module.

``slab`` has the weights and, beside them, what the update rule keeps of each. Of a linear model the key lists are made beforehand,
for the contents that will be asked for; others may be asked for, too, and then all are made.
"""

from __future__ import annotations

import numpy as np

from shoal.data.batch import Ids
from shoal.data.dense_file import sparse
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.models.learner import Data, Learner
from shoal.models.linear import Floats, Linear
from shoal.nodes.dense_batches import DenseBatches
from shoal.training.local_module import LocalModule
from shoal.training.one_core import OneCore


class LocalModel:
    """One process's."""

    def __init__(
        self, job: Job, train: Data, learner: Learner, slots: Slots, reach: tuple[int, int] | None = None
    ) -> None:
        """``reach``: the contents that will be asked for; without it, all."""
        self._job, self._train, self._learner, self._slots = job, train, learner, slots
        self._first, self._beyond = reach or (0, slots.per_pass)
        self._linear: OneCore | None = None
        if isinstance(job.model, Linear):
            if self._first == self._beyond:
                self._first, self._beyond = 0, 1  # nothing is to be done, yet
            self._linear = self._made(job.model)
        else:
            slices = DenseBatches(train, slots, learner.keys)
            self._module = LocalModule(learner, job.update.update(), slices, job.strategy.combine == "mean")

    @property
    def slab(self) -> Floats:
        """A row for each key; the array itself, to be read and written."""
        return self._module.slab if self._linear is None else self._linear.slab

    @property
    def weights(self) -> Floats:
        """As they are now; a copy."""
        return self.weights_in(self.slab).copy()

    def weights_in(self, slab: Floats) -> Floats:
        """The weights of such a slab, as a learner takes them."""
        return slab[:, 0] if self._linear is not None else slab[:, : self._learner.width]

    @property
    def key_lists(self) -> tuple[Ids, Ids, int] | None:
        """Of a linear model: where each content's keys start, the keys, and the content that comes first there."""
        return None if self._linear is None else (self._linear.starts, self._linear.keys, self._first)

    def run(self, of_pass: int, numbers: Ids, contents: Ids) -> float:
        """A step for each of these slots of a pass; the sum of the losses, each before its own step."""
        if self._linear is None:
            return self._module.run(of_pass, numbers)
        if len(contents) and not self._first <= contents.min() <= contents.max() < self._beyond:
            before, self._first, self._beyond = self.slab, 0, self._slots.per_pass
            assert isinstance(self._job.model, Linear)
            self._linear = self._made(self._job.model)
            self._linear.slab[:] = before
        return self._linear.run(contents - self._first)

    def _made(self, model: Linear) -> OneCore:
        train = sparse(self._train)
        counts = None
        if model.l2_per_count:
            counts = np.ones(self._learner.keys, np.float32)
            counts[: train.features] = train.counts
        start, stop = self._slots.span(self._first)[0], self._slots.span(self._beyond - 1)[1]
        return OneCore(
            model,
            self._job.update.update(),
            train.slice(start, stop),
            self._slots.batch,
            train.features,
            mean=self._job.strategy.combine == "mean",
            counts=counts,
        )
