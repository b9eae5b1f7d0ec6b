"""Hashing of feature ids to fewer features, the same for training and prediction.

A model trained on hashed ids has a weight per hash, not per id. So the kind of ids and the number
of bits are stored with the packed set and the model, and rows to predict are hashed by the same
function.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Ids


class Hashing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How ids were hashed: their kind, and the number of bits."""

    bits: int
    # criteo: text fields, which no matrix column represents
    format: Literal["libsvm", "criteo"]

    @property
    def features(self) -> int:
        return 1 << self.bits


def hash_ids(indptr: Ids, ids: npt.NDArray[np.uint64], values: Floats, bits: int, labels: Floats) -> Batch:
    """Hash rows of LIBSVM ids (from 1); values with equal hashes are added."""
    from shoal.data import libsvm_kernels

    longest = int(np.diff(indptr).max(initial=0))
    indptr_to, scratch = np.empty_like(indptr), np.empty(longest, np.uint64)
    columns, hashed = np.empty(len(ids), np.uint32), np.empty(len(ids), np.float32)
    found = libsvm_kernels.hash_rows(
        indptr, ids, values, np.uint64((1 << bits) - 1), scratch, indptr_to, columns, hashed
    )
    columns, hashed = columns[:found].copy(), hashed[:found].copy()
    return Batch(indptr_to, columns, None if (hashed == 1).all() else hashed, labels)
