"""Feature ids that were hashed to fewer, and the same hash for rows that come later.

A model that was trained on hashed ids has a weight for each hash, not for each id. So what was
hashed, and to how many bits, is kept with the packed set and with the model, and rows to predict
are hashed by the function that read the training rows.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Ids


class Hashing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ids became hashes of so many bits."""

    bits: int
    # criteo: fields of text, which no column of a matrix stands for
    format: Literal["libsvm", "criteo"]

    @property
    def features(self) -> int:
        return 1 << self.bits


def hash_ids(indptr: Ids, ids: npt.NDArray[np.uint64], values: Floats, bits: int, labels: Floats) -> Batch:
    """Rows of LIBSVM ids (from 1) as rows of hashes; values that fall together are added up."""
    from shoal.data import libsvm_kernels

    longest = int(np.diff(indptr).max(initial=0))
    indptr_to, scratch = np.empty_like(indptr), np.empty(longest, np.uint64)
    columns, hashed = np.empty(len(ids), np.uint32), np.empty(len(ids), np.float32)
    found = libsvm_kernels.hash_rows(
        indptr, ids, values, np.uint64((1 << bits) - 1), scratch, indptr_to, columns, hashed
    )
    columns, hashed = columns[:found].copy(), hashed[:found].copy()
    return Batch(indptr_to, columns, None if (hashed == 1).all() else hashed, labels)
