"""The model of one peer: it learns from slots, says what it changed, and takes what others changed.

A key is the number of a weight, counted row by row. ``take`` gives what was changed here since the last time and no one else's
changes: beside the weights lies a shadow of them, as all others know them. Of a large model that few rows touched only the keys of
these rows are compared.

One thread at a time uses it. What is not its own (keys beyond the model, arrays that do not match) changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.errors import BadKeys, Invalid
from shoal.job import Job
from shoal.models.learner import Data, Learner
from shoal.models.linear import Floats
from shoal.strategies.peers import kernels
from shoal.training.local_model import LocalModel

Keys = npt.NDArray[np.uint64]
_SCAN = 32  # all weights are compared unless there are so many times more than keys in the rows: those are sorted afterwards


class PeerLocalModel:
    """One peer's."""

    def __init__(self, job: Job, train: Data, learner: Learner, slots: Slots) -> None:
        self._core = LocalModel(job, train, learner, slots)
        self._slots, self._width = slots, learner.width
        self.size = learner.keys * learner.width
        self._shadow = self._flat()
        self._order: tuple[int, Ids] = (-1, np.empty(0, np.int64))  # a pass, and what its slots contain
        self._since: list[Ids] = []  # contents that were learned since the last time that it was told
        self._keys, self._values = np.empty(self.size, np.uint64), np.empty(self.size, np.float32)

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
        """Learn from these, counted over all passes: the sum of the losses, and the rows."""
        loss, rows, per_pass = 0.0, 0, self._slots.per_pass
        for first, beyond in slots:
            while first < beyond:
                of_pass, number = divmod(first, per_pass)
                until = min(beyond - of_pass * per_pass, per_pass)
                numbers = np.arange(number, until, dtype=np.int64)
                contents = self._contents(of_pass)[number:until]
                loss += self._core.run(of_pass, numbers, contents)
                rows += self._slots.rows_in(contents)
                self._since.append(contents)
                first = of_pass * per_pass + until
        return loss, rows

    def take(self) -> tuple[Keys, Floats]:
        """What was changed here since the last time; the keys in order, each once."""
        lists, slab = self._core.key_lists, self._core.slab
        since = np.concatenate([np.empty(0, np.int64), *self._since])
        self._since.clear()
        if lists is not None:
            starts, keys, first = lists
            since = since - first
            if _SCAN * int((starts[since + 1] - starts[since]).sum()) < self.size:
                count = kernels.changed_in(slab, self._shadow, starts, keys, since, self._keys, self._values)
                order = np.argsort(self._keys[:count])
                return self._keys[:count][order], self._values[:count][order]
        count = kernels.changed(slab, self._width, self._shadow, self._keys, self._values)
        return self._keys[:count].copy(), self._values[:count].copy()

    def add(self, keys: Keys, values: Floats) -> None:
        """What others changed."""
        if len(keys) != len(values):
            raise BadKeys(f"{len(keys)} keys and {len(values)} values: one value for each key is needed")
        if len(keys) and int(keys.max()) >= self.size:
            raise BadKeys(f"key {keys.max()}: this model has {self.size:,} weights: is it the same one everywhere?")
        kernels.add(self._core.slab, self._width, self._shadow, keys, values)

    def snapshot(self) -> Floats:
        """All of it, with what the update rule keeps; a copy."""
        return self._core.slab.copy()

    def restore(self, slab: Floats) -> None:
        """Be as this one was, of which all others know."""
        if slab.size != self._core.slab.size:
            raise Invalid(f"a model of {slab.size:,} numbers, and this one has {self._core.slab.size:,}: not the same")
        self._core.slab[:] = slab.reshape(self._core.slab.shape)
        self._shadow[:] = self._flat()
        self._since.clear()

    def weights(self) -> Floats:
        """As a learner takes them; a copy."""
        return self._core.weights

    def weights_in(self, slab: Floats) -> Floats:
        """Those of such a snapshot."""
        return self._core.weights_in(slab.reshape(self._core.slab.shape))

    def _flat(self) -> Floats:
        return np.ascontiguousarray(self._core.slab[:, : self._width]).reshape(-1).copy()

    def _contents(self, of_pass: int) -> Ids:
        if self._order[0] != of_pass:
            self._order = (of_pass, self._slots.contents(of_pass))
        return self._order[1]
