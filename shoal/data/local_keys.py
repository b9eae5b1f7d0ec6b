"""Global feature ids become places in a short key list: what is pulled, computed with and pushed.

Runs once for every slot of a first pass, so it must cost no more than the gradient itself: a bit
for each feature, a count for each 64 of them (Jacobson's rank), and no sorting. Takes a quarter
byte of address space a feature, of which only what rows touch becomes memory.
"""

from __future__ import annotations

import numpy as np

from shoal.data.batch import Batch, Local
from shoal.errors import Invalid
from shoal.limits import FEATURES


class Localiser:
    """Scratch for one thread: it is written to while ``local`` runs."""

    def __init__(self, features: int) -> None:
        if not 0 < features <= FEATURES:
            raise Invalid(f"{features:,} features: 1 to {FEATURES:,} are possible; hash the ids to fewer (hash_bits)")
        self.features = features
        self._ranks = np.zeros((_parts(features, 6), 2), np.uint64)
        self._groups = np.zeros(_parts(features, 12), np.uint64)
        self._tops = np.zeros(_parts(features, 18), np.uint64)
        self._keys = np.empty(1, np.uint64)

    def local(self, batch: Batch, bias: bool) -> Local:
        """The same rows over their own keys; with ``bias``, the key one past the last feature comes last."""
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
