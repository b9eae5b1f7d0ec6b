"""Rows in CSR form, with global feature ids or indices into their own key list."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid
from shoal.keys import KeyList, Keys

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
    """Copy these rows of a batch, in this order."""
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
