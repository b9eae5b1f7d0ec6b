"""Dense rows (images, arrays of one shape) on disk, mapped into memory.

    inputs.u8 or inputs.f32    labels.f32    arrays.json

Inputs are stored as in the file, bytes as bytes; ``inputs * factor + shift`` normalises them when
a batch is used. All arrays are little-endian and not compressed; a folder exists whole or not at
all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.data import csr_file
from shoal.data.batch import Floats, Ids
from shoal.data.csr_file import LabelCount, SetMeta, StagingFolder, damaged
from shoal.errors import Invalid

Inputs = npt.NDArray[Any]  # uint8 or float32

FORMAT = 1  # of folder and contents; sets of another format are packed again
META = "arrays.json"
KINDS: dict[str, tuple[str, type[np.generic]]] = {
    "uint8": ("inputs.u8", np.uint8),
    "float32": ("inputs.f32", np.float32),
}
CLASSES = 1 << 16  # larger labels are numbers, not classes
AXES = 8  # of one row


@dataclass(frozen=True, slots=True, eq=False)
class DenseExamples:
    """Rows: inputs uint8 or float32 of shape (n, *shape), and a label each."""

    inputs: Inputs
    labels: Floats

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.labels.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class DensePair:
    """Everything that was read: training rows, and test rows if the source has them."""

    train: DenseExamples
    test: DenseExamples | None = None
    scale: tuple[float, float] | None = None  # factor and shift, if the source has them
    classes: int | None = None  # the number of classes, if the source has it


class DenseMeta(SetMeta, frozen=True):
    shape: list[int]  # of one row
    kind: Literal["uint8", "float32"]
    factor: float  # the model's input is inputs * factor + shift
    shift: float
    classes: int  # labels are 0..classes-1; 0: labels are numbers
    labels: list[LabelCount]  # sorted by value, as in ``CsrMeta``
    more_labels: bool
    source: str  # where the rows were read from, for messages


@dataclass(frozen=True, slots=True, eq=False)
class DenseFile:
    """A packed set of dense rows, mapped. Labels are as in the file."""

    folder: Path
    meta: DenseMeta
    inputs: Inputs
    labels: Floats

    @classmethod
    def open(cls, folder: Path) -> DenseFile:
        """Map a folder of ``write``; detects truncated files by their sizes."""
        meta = csr_file.read_meta(folder / META, DenseMeta, FORMAT)
        if meta.rows < 0 or min(meta.shape, default=1) < 1 or len(meta.shape) > AXES:
            raise damaged(folder / META, f"{meta.rows} rows of shape {meta.shape}")
        name, kind = KINDS[meta.kind]
        inputs = csr_file.map_file(folder, name, kind, meta.rows * math.prod(meta.shape))
        labels = csr_file.map_file(folder, "labels.f32", np.float32, meta.rows)
        return cls(folder, meta, inputs.reshape(meta.rows, *meta.shape), labels)

    @property
    def rows(self) -> int:
        return self.meta.rows

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.meta.shape)

    @property
    def features(self) -> int:
        return math.prod(self.meta.shape)

    @property
    def nonzeros(self) -> int:
        return self.rows * self.features

    def __len__(self) -> int:
        return self.meta.rows

    def slice(self, start: int, stop: int) -> DenseExamples:
        if not 0 <= start <= stop <= self.rows:
            raise Invalid(f"rows {start}..{stop}: the set has {self.rows:,}, numbered from 0")
        return DenseExamples(self.inputs[start:stop], self.labels[start:stop])

    def take(self, rows: Ids) -> DenseExamples:
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.rows:
            row = int(rows[(rows < 0) | (rows >= self.rows)][0])
            raise Invalid(f"{self.folder}: row {row:,} asked for: there are {self.rows:,}, numbered from 0")
        return DenseExamples(self.inputs[rows], self.labels[rows])

    def __reduce__(self) -> tuple[Any, ...]:
        return DenseFile.open, (self.folder,)  # another process maps the folder itself


def write(
    folder: Path,
    parts: Iterable[tuple[DenseExamples, Ids]],
    source: str = "",
    factor: float = 1.0,
    shift: float = 0.0,
    classes: int = 0,
) -> DenseFile:
    """Write rows with their source row numbers (from 1) to a folder, whole or not at all."""
    with StagingFolder(folder) as aside:
        first: DenseExamples | None = None
        known: dict[float, tuple[int, int]] = {}
        rows, more = 0, False
        with (aside.path / "inputs").open("wb") as inputs, (aside.path / "labels.f32").open("wb") as labels:
            for part, numbers in parts:
                first = first or part
                inputs.write(np.ascontiguousarray(part.inputs).data)
                labels.write(np.ascontiguousarray(part.labels).data)
                order = np.argsort(numbers)  # the first row of each label
                more |= csr_file.note_labels(known, part.labels[order], numbers[order])
                rows += len(part)
            csr_file.sync(inputs, labels)
        if first is None or not rows:
            raise Invalid(f"{source or folder} has no rows: at least one is needed")
        kind: Any = str(first.inputs.dtype)
        os.rename(aside.path / "inputs", aside.path / KINDS[kind][0])
        shape = list(first.inputs.shape[1:])
        meta = DenseMeta(FORMAT, rows, shape, kind, factor, shift, classes, csr_file.label_counts(known), more, source)
        csr_file.write_json(aside.path / META, meta)
        aside.settle()
    return DenseFile.open(folder)


def classes_of(*labels: Floats) -> int:
    """The number of classes if all labels are integers from 0 on; else 0."""
    if any(
        len(some) and not (some.min() >= 0 and some.max() < CLASSES and (some == np.floor(some)).all())
        for some in labels
    ):
        return 0
    return 1 + int(max((some.max() for some in labels if len(some)), default=-1))
