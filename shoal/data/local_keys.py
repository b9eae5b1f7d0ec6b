"""Maps global feature ids to indices into a short key list, which is pulled and pushed.

It runs once per slot of a first epoch, so it must not cost more than the gradient: one bit per
feature, a count per 64 of them (Jacobson's rank), and no sorting. It takes a quarter byte of
address space per feature, of which only the touched pages use memory.
"""

from __future__ import annotations

import numpy as np

from shoal.data.batch import Batch, Local
from shoal.errors import Invalid
from shoal.limits import FEATURES


class Localiser:
    """Scratch memory for one thread; ``local`` writes to it."""

    def __init__(self, features: int) -> None:
        if not 0 < features <= FEATURES:
            raise Invalid(f"{features:,} features: 1 to {FEATURES:,} are possible; hash the ids to fewer (hash_bits)")
        self.features = features
        self._ranks = np.zeros((_parts(features, 6), 2), np.uint64)
        self._groups = np.zeros(_parts(features, 12), np.uint64)
        self._tops = np.zeros(_parts(features, 18), np.uint64)
        self._keys = np.empty(1, np.uint64)

    def local(self, batch: Batch, bias: bool) -> Local:
        """The same rows over their own keys; with ``bias``, its key (the largest) comes last."""
        from shoal.data import kernels

        most = min(len(batch.columns), self.features)
        if len(self._keys) < most:
            self._keys = np.empty(most, np.uint64)
        places = np.empty(len(batch.columns), np.uint32)
        found = kernels.localise(
            batch.columns, self.features, self._ranks, self._groups, self._tops, self._keys, places
        )
        if found < 0:
            worst = int(batch.columns.max())
            raise Invalid(f"a row has feature {worst:,}, the set has {self.features:,}: load the set again")
        keys = np.empty(found + bias, np.uint64)
        keys[:found] = self._keys[:found]
        if bias:
            keys[found] = self.features
        return Local(keys, batch.indptr, places, batch.values, batch.labels)


def _parts(features: int, shift: int) -> int:
    return (features + (1 << shift) - 1) >> shift
