"""Rows in CSR form, with global feature ids or indices into their own key list."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.keys import KeyList, Keys
from shoal.limits import FEATURES

Ids = npt.NDArray[np.int64]
Columns = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows: row i has ``columns[indptr[i]:indptr[i + 1]]``, ascending. No values: all are 1."""

    indptr: Ids
    columns: Columns
    values: Floats | None
    labels: Floats

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nonzeros(self) -> int:
        return len(self.columns)


_NOTHING = np.empty(0, np.float32)


def take(batch: Batch, rows: Ids) -> Batch:
    from shoal.data import kernels

    indptr = np.empty(len(rows) + 1, np.int64)
    total = kernels.measure(batch.indptr, len(batch.columns), rows, indptr)
    if total < 0:
        row = int(rows[-1 - total])
        if 0 <= row < len(batch):
            raise Invalid(f"row {row:,} ends before it starts, so the set is damaged: delete it and load again")
        raise Invalid(f"row {row:,} asked for: there are {len(batch):,}, numbered from 0")
    columns, labels = np.empty(total, np.uint32), np.empty(len(rows), np.float32)
    values, given = (_NOTHING, _NOTHING) if batch.values is None else (np.empty(total, np.float32), batch.values)
    kernels.gather(batch.indptr, batch.columns, given, rows, indptr, columns, values)
    kernels.pick(batch.labels, rows, labels)
    return Batch(indptr, columns, None if batch.values is None else values, labels)


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """Rows whose columns are indices into ``keys``, their sorted feature ids.

    The key of a bias is the last one and in no row: the model adds it.
    """

    keys: Keys
    indptr: Ids
    columns: Columns
    values: Floats | None
    labels: Floats
    listed: KeyList = field(init=False, repr=False)  # the keys, checked once

    def __post_init__(self) -> None:
        object.__setattr__(self, "listed", KeyList(self.keys))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nonzeros(self) -> int:
        return len(self.columns)

    @property
    def nbytes(self) -> int:
        arrays = (self.keys, self.indptr, self.columns, self.values, self.labels)
        return sum(array.nbytes for array in arrays if array is not None)


class Hashing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How ids were hashed; kept with set and model, so that rows to predict are hashed alike."""

    bits: int
    format: Literal["libsvm", "criteo"]  # criteo: text fields, which no matrix column represents

    @property
    def features(self) -> int:
        return 1 << self.bits


def hash_ids(indptr: Ids, ids: npt.NDArray[np.uint64], values: Floats, bits: int, labels: Floats) -> Batch:
    """Hash rows of LIBSVM ids (from 1); values with equal hashes are added."""
    from shoal.data import text_kernels

    longest = int(np.diff(indptr).max(initial=0))
    indptr_to, scratch = np.empty_like(indptr), np.empty(longest, np.uint64)
    columns, hashed = np.empty(len(ids), np.uint32), np.empty(len(ids), np.float32)
    found = text_kernels.hash_rows(indptr, ids, values, np.uint64((1 << bits) - 1), scratch, indptr_to, columns, hashed)
    columns, hashed = columns[:found].copy(), hashed[:found].copy()
    return Batch(indptr_to, columns, None if (hashed == 1).all() else hashed, labels)


class Localiser:
    """Maps global feature ids to indices into a short key list, which is pulled and pushed.

    It runs once per slot of a first epoch, so it must not cost more than the gradient: one bit per
    feature, a count per 64 of them (Jacobson's rank), and no sorting. It takes a quarter byte of
    address space per feature, of which only the touched pages use memory. For one thread.
    """

    def __init__(self, features: int) -> None:
        if not 0 < features <= FEATURES:
            raise Invalid(f"{features:,} features: 1 to {FEATURES:,} are possible; hash the ids to fewer (hash_bits)")
        self.features = features
        ranks, groups, tops = (-(-features // (1 << bits)) for bits in (6, 12, 18))
        self._ranks = np.zeros((ranks, 2), np.uint64)
        self._groups, self._tops = np.zeros(groups, np.uint64), np.zeros(tops, np.uint64)
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
