"""A model inside one process: weights, state of the update rule, steps.

    StepModel       the gradient of a slot into a vector, and a step by the sum of such vectors
    LocalModel      also a step for each of many slots; of a linear model by a compiled loop

``slab`` is one array: the weights, and beside each the state of the update rule. Both take the same
steps as one worker and one server, by the same kernels.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from shoal import limits
from shoal.data.batch import Ids, Local, Localiser
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.models.learner import Data, Learner, learner_of
from shoal.models.linear import Floats, Linear
from shoal.nodes.batches import DenseBatches, seed_of
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.update import rule_named
from shoal.training.one_core import OneCore

_DEVIATION = 0.01  # of initial weights of a linear model that differ by worker


class StepModel:
    """Computes gradients and takes steps."""

    def __init__(self, job: Job, train: Data, learner: Learner, slots: Slots, summed: Any = None) -> None:
        self._job, self._train, self._learner, self._slots = job, train, learner, slots
        self.summed = summed  # its ``gradient`` is summed over all ranks; None: the learner's own
        self._linear = job.model if isinstance(job.model, Linear) else None
        self._mean = job.strategy.combine == "mean"
        update = job.update.update()
        self._rule = rule_named(update.name)
        self._settings = np.array(self._rule.settings(update.settings), np.float64)
        self.slab = np.zeros((learner.keys, learner.width * (1 + self._rule.state)), np.float32)
        start = learner.start()
        if start is not None:
            self.slab[:, : learner.width] = start[0]
        self._size = learner.keys * learner.width
        self._cache: dict[int, Local] = {}  # of a linear model: the rows of slots
        given = job.launch.cache_mb
        self._cache_room = limits.SLOT_CACHE if given is None else given * limits.MB

    @property
    def weights(self) -> Floats:
        return self.weights_in(self.slab).copy()

    def weights_in(self, slab: Floats) -> Floats:
        """The weights of a slab in the form of a learner; no copy."""
        return slab[:, 0] if self._linear is not None else slab[:, : self._learner.width]

    @property
    def size(self) -> int:
        return self._size * (2 if self._marks else 1)

    def gradient(self, slot: tuple[int, int], out: Floats) -> float:
        """Write the gradient of a slot to ``out``; returns the sum of its losses."""
        if self._linear is None:
            loss, found = self._dense_gradient(slot)
            out[:] = found.reshape(-1)
            return loss
        local = self._local_rows(self._slots.content(*slot))
        keys = local.keys.astype(np.int64)
        loss, found = self._learner.gradient(local, self.weights_in(self.slab)[keys], self._mean)
        out[:] = 0.0
        out[keys] = found
        if self._marks:
            out[self._size + keys] = 1.0
        return loss

    def no_gradient(self, out: Floats) -> None:
        """This rank has no slot in the step; PyTorch's sum still needs it to take part."""
        out[:] = 0.0
        if self.summed is not None:
            weights = np.ascontiguousarray(self.weights_in(self.slab))
            out[:] = self.summed.gradient(self._batches.local((0, 0)), weights, self._mean, share=0.0)[1].reshape(-1)

    def apply(self, total: Floats, slots: int) -> None:
        gradient = total[: self._size]
        if self._mean and slots > 1:
            gradient = gradient / np.float32(slots)
        if self._linear is None:
            self._step(gradient)
            return
        keys = np.flatnonzero(total[self._size : 2 * self._size] if self._marks else gradient)
        self._kernels.push_rows(self.slab, 0, keys, gradient[keys].reshape(-1, 1), self._settings)

    def _dense_gradient(self, slot: tuple[int, int]) -> tuple[float, Floats]:
        source = self._learner if self.summed is None else self.summed
        weights = np.ascontiguousarray(self.weights_in(self.slab))
        loss, found = source.gradient(self._batches.local(slot), weights, self._mean)
        return loss, found

    def _step(self, gradient: Floats) -> None:
        self._kernels.push_range(self.slab, 0, 0, gradient.reshape(len(self.slab), -1), self._settings)

    @cached_property
    def _kernels(self) -> Any:
        return dense_kernels(self._rule)

    @cached_property
    def _batches(self) -> DenseBatches:
        return DenseBatches(self._train, self._slots, self._learner.keys)

    @cached_property
    def _marks(self) -> bool:
        """The keys of the rows are summed beside the gradient.

        A rule may change a weight whose gradient is 0 (momentum), but only at keys of the step.
        """
        if self._linear is None:
            return False
        slab = np.random.default_rng(0).normal(0.0, 1.0, (256, 1 + self._rule.state)).astype(np.float32)
        slab[:, 1:] = np.abs(slab[:, 1:])  # most rules keep squares there
        before = slab.copy()
        self._kernels.push_range(slab, 0, 0, np.zeros((len(slab), 1), np.float32), self._settings)
        return not np.array_equal(slab, before)

    def _local_rows(self, content: int) -> Local:
        local = self._cache.get(content)
        if local is None:
            rows = sparse(self._train).slice(*self._slots.span(content))
            local = self._localiser.local(rows, self._job.linear.bias)
            if local.nbytes <= self._cache_room:
                self._cache_room -= local.nbytes
                self._cache[content] = local
        return local

    @cached_property
    def _localiser(self) -> Localiser:
        return Localiser(sparse(self._train).features)


class LocalModel(StepModel):
    """Takes a step for each of many slots.

    Of a linear model the key lists of slots within ``reach`` (default: all) are made beforehand.
    """

    def __init__(
        self, job: Job, train: Data, learner: Learner, slots: Slots, reach: tuple[int, int] | None = None
    ) -> None:
        super().__init__(job, train, learner, slots)
        self._first, self._beyond = reach or (0, slots.per_pass)
        if self._first == self._beyond:
            self._first, self._beyond = 0, 1  # no slots yet
        self._loop: OneCore | None = None if self._linear is None else self._make_loop(self._linear)

    @property
    def key_lists(self) -> tuple[Ids, Ids, int] | None:
        """Of a linear model: where each slot's keys start, the keys, and the first slot there."""
        return None if self._loop is None else (self._loop.starts, self._loop.keys, self._first)

    def run(self, of_pass: int, numbers: Ids, contents: Ids) -> float:
        """Take a step for each of these slots; the sum of the losses, each before its step."""
        if self._loop is None or self._linear is None:
            total = 0.0
            for number in numbers.tolist():
                loss, gradient = self._dense_gradient((of_pass, number))
                self._step(gradient)
                total += loss
            return total
        if len(contents) and not self._first <= contents.min() <= contents.max() < self._beyond:
            self._first, self._beyond = 0, self._slots.per_pass
            self._loop = self._make_loop(self._linear)
        return self._loop.run(contents - self._first)

    def _make_loop(self, model: Linear) -> OneCore:
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
            mean=self._mean,
            counts=counts,
            slab=self.slab,
        )


def own_start(job: Job, train: Data, learner: Learner, number: int) -> Floats:
    """Initial weights that differ from worker to worker; those of worker 0 are the usual ones."""
    seed = seed_of(job.seed, (number, 0)) if number else job.seed
    if isinstance(job.model, Linear):
        drawn: Floats = np.random.default_rng(seed).normal(0.0, _DEVIATION, learner.keys).astype(np.float32)
        return drawn
    start = (learner if not number else learner_of(job.model, train, seed, number)).start()
    assert start is not None
    return start[0]
