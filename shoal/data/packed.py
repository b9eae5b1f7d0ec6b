"""Functions of mapped sets, sparse or dense: open and reorder them, check their labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from shoal.data.batch import Floats, Ids
from shoal.data.csr_file import CsrFile, LabelCount
from shoal.data.dense_file import META, DenseFile
from shoal.errors import Invalid

CLASSES = ({-1.0, 1.0}, {0.0, 1.0})


def open_rows(folder: Path) -> CsrFile | DenseFile:
    return DenseFile.open(folder) if (folder / META).exists() else CsrFile.open(folder)


def sparse(rows: CsrFile | DenseFile) -> CsrFile:
    if isinstance(rows, CsrFile):
        return rows
    shape = " x ".join(map(str, rows.shape)) or "single numbers"
    raise Invalid(f"{rows.meta.source or rows.folder} has dense rows ({shape}): take a set of sparse rows")


class _Permuted:
    """Some rows of a set in another order, gathered one by one when read."""

    __slots__ = ()
    whole: Any
    order: Ids

    def slice(self, start: int, stop: int) -> Any:
        return self.whole.take(_piece(self.order, start, stop))

    def take(self, rows: Ids) -> Any:
        return self.whole.take(self.order[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        return ordered, (self.whole, self.order)


@dataclass(frozen=True, slots=True, eq=False)
class PermutedCsr(_Permuted, CsrFile):
    whole: CsrFile
    order: Ids


@dataclass(frozen=True, slots=True, eq=False)
class PermutedDense(_Permuted, DenseFile):
    whole: DenseFile
    order: Ids


def ordered(rows: CsrFile | DenseFile, order: Ids) -> CsrFile | DenseFile:
    """These rows of a set, in this order, as a set. They are gathered one by one when read."""
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


def signs(labels: Floats) -> Floats:
    """-1 or +1 for each label of two classes, in either notation: labels are stored as read."""
    return np.where(labels > 0, np.float32(1), np.float32(-1))


def are_classes(packed: CsrFile | DenseFile) -> bool:
    """Whether all labels are of two classes (one of them may be missing)."""
    found = {label.value for label in packed.meta.labels}
    return not packed.meta.more_labels and any(found <= pair for pair in CLASSES)


def check_labels(packed: CsrFile | DenseFile, kind: Literal["classes", "numbers"], both: bool = True) -> None:
    """Raise Invalid for labels of the wrong kind. ``both``: each class must occur (training)."""
    if kind == "numbers":
        return  # readers reject NaN and infinite labels
    where = packed.meta.source or str(packed.folder)
    if not are_classes(packed):
        odd = _odd_one(packed.meta.labels)
        raise Invalid(
            f"{where}, line {odd.line}: label {odd.value:g}, and two classes are -1 and +1 or 0 and 1: "
            f"choose model squared for numbers, or write other labels"
        )
    if both and len(packed.meta.labels) == 1:
        (only,) = packed.meta.labels
        raise Invalid(f"{where}: all {only.rows:,} labels are {only.value:g}: rows of both classes are needed to train")


def _odd_one(labels: list[LabelCount]) -> LabelCount:
    """The label that fits neither notation; if -1 and 0 both occur, the later one."""
    strange = [label for label in labels if label.value not in (-1.0, 0.0, 1.0)]
    return min(strange, key=lambda label: label.line) if strange else max(labels, key=lambda label: label.line)
