"""The model of one peer: it learns from slots, extracts its changes, adds those of others.

A key is the number of a weight, counted row by row. Beside the weights lies their *shadow*: the
weights as all other peers know them. A weight that differs from its shadow was changed here;
``take`` returns these differences and updates the shadow. Changes of others go to both. One thread
at a time uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.errors import BadKeys, Invalid
from shoal.job import Job
from shoal.models.learner import Data, Learner
from shoal.strategies.peers.compute import Change, Floats, Keys
from shoal.training.local_model import LocalModel

# All weights are compared unless there are so many times more of them than keys in the rows.
_SCAN = 32


class PeerLocalModel:
    """A replica (``compute.Replica``)."""

    def __init__(self, job: Job, train: Data, learner: Learner, slots: Slots) -> None:
        self._core = LocalModel(job, train, learner, slots)
        self._slots, self._width = slots, learner.width
        self.size = learner.keys * learner.width
        self._shadow = self._flat()
        self._contents = lru_cache(1)(slots.contents)  # of one epoch
        self._since: list[Ids] = []  # contents that were learned since the last ``take``

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
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

    def take(self) -> Change:
        """What was changed here since the last call; the keys in order, each once."""
        lists, now, shadow = self._core.key_lists, self._core.slab[:, : self._width].reshape(-1), self._shadow
        since, self._since = np.concatenate([np.empty(0, np.int64), *self._since]), []
        if lists is not None and _SCAN * int((lists[0][(at := since - lists[2]) + 1] - lists[0][at]).sum()) < self.size:
            starts, found, _ = lists
            some = [found[starts[slot] : starts[slot + 1]] for slot in at.tolist()]
            touched = np.concatenate([np.empty(0, np.int64), *some])
            keys = np.unique(touched[now[touched] != shadow[touched]])
        else:
            keys = np.flatnonzero(now != shadow)
        change = now[keys] - shadow[keys]
        shadow[keys] = now[keys]
        return keys.astype(np.uint64), change

    def add(self, keys: Keys, values: Floats) -> None:
        if len(keys) != len(values):
            raise BadKeys(f"{len(keys)} keys and {len(values)} values: one value for each key is needed")
        if len(keys) and int(keys.max()) >= self.size:
            raise BadKeys(f"key {keys.max()}: this model has {self.size:,} weights: is it the same one everywhere?")
        places = keys.astype(np.int64)
        slab, width = self._core.slab, self._width
        np.add.at(slab.reshape(-1), places // width * slab.shape[1] + places % width, values)
        np.add.at(self._shadow, places, values)

    def snapshot(self) -> Floats:
        return self._core.slab.copy()

    def restore(self, slab: Floats) -> None:
        if slab.size != self._core.slab.size:
            raise Invalid(f"a model of {slab.size:,} numbers, and this one has {self._core.slab.size:,}: not the same")
        self._core.slab[:] = slab.reshape(self._core.slab.shape)
        self._shadow[:] = self._flat()
        self._since.clear()

    def weights(self) -> Floats:
        return self._core.weights

    def _flat(self) -> Floats:
        return np.ascontiguousarray(self._core.slab[:, : self._width]).reshape(-1).copy()
