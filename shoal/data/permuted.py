"""Some rows of a mapped set in another order, as a set; rows are copied when read.

Rows are gathered one by one, so reading costs more than from the set itself. Nothing here writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from shoal.data.batch import Batch, Ids
from shoal.data.csr_file import CsrFile
from shoal.data.dense_file import DenseExamples, DenseFile
from shoal.errors import Invalid


@dataclass(frozen=True, slots=True, eq=False)
class PermutedCsr(CsrFile):
    """Permuted sparse rows."""

    whole: CsrFile
    order: Ids

    def slice(self, start: int, stop: int) -> Batch:
        return self.whole.take(_piece(self.order, start, stop))

    def take(self, rows: Ids) -> Batch:
        return self.whole.take(self.order[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        return ordered, (self.whole, self.order)


@dataclass(frozen=True, slots=True, eq=False)
class PermutedDense(DenseFile):
    """Permuted dense rows."""

    whole: DenseFile
    order: Ids

    def slice(self, start: int, stop: int) -> DenseExamples:
        return self.whole.take(_piece(self.order, start, stop))

    def take(self, rows: Ids) -> DenseExamples:
        return self.whole.take(self.order[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        return ordered, (self.whole, self.order)


def ordered(rows: CsrFile | DenseFile, order: Ids) -> CsrFile | DenseFile:
    """These rows of a set, in this order."""
    labels = rows.labels[order]
    if isinstance(rows, DenseFile):
        meta = msgspec.structs.replace(rows.meta, rows=len(order))
        return PermutedDense(rows.folder, meta, rows.inputs, labels, rows, order)
    facts = msgspec.structs.replace(rows.meta, rows=len(order))
    arrays = (rows.indptr, rows.columns, rows.values)
    return PermutedCsr(rows.folder, facts, *arrays, labels, rows.counts, rows, order)


def _piece(order: Ids, start: int, stop: int) -> Ids:
    if not 0 <= start <= stop <= len(order):
        raise Invalid(f"rows {start}..{stop}: the set has {len(order):,}, numbered from 0")
    return order[start:stop]
