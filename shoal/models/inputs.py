"""Converts rows to the inputs of a module: arrays of one shape, normalised.

Byte images with two axes get a third, their channel. Sparse rows become dense if they are not too
wide. Labels -1 and +1 become 0 and 1, since classes are numbered from 0 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Hashing
from shoal.data.csr_file import CsrFile
from shoal.data.dense_file import DenseFile
from shoal.data.packed import are_classes
from shoal.data.user_rows import spread
from shoal.errors import Invalid
from shoal.keys import KeyRange

Floats = npt.NDArray[np.float32]
WIDEST = 1 << 17  # most features of a sparse set that is made dense


class ModelInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of a set's rows as inputs of a module."""

    shape: tuple[int, ...]  # of one example
    factor: float = 1.0
    shift: float = 0.0
    bytes: bool = False  # stored as bytes
    classes: int = 0  # labels are 0..classes-1; 0: labels are numbers
    sparse: bool = False  # the rows were sparse and are made dense
    hashing: Hashing | None = None  # of sparse rows: how ids were hashed

    @classmethod
    def of(cls, rows: CsrFile | DenseFile) -> ModelInputs:
        if isinstance(rows, DenseFile):
            image = len(rows.shape) == 2 and rows.meta.kind == "uint8"
            shape = (1, *rows.shape) if image else rows.shape
            return cls(shape, rows.meta.factor, rows.meta.shift, rows.meta.kind == "uint8", rows.meta.classes)
        if rows.features > WIDEST:
            raise Invalid(
                f"{rows.features:,} sparse features are too many to make dense for a module (at most {WIDEST:,}): take a linear "
                f"model, hash them to fewer (--set data.hash_bits=12), or keep their rows in a table (shoal.torch.EmbeddingBag)"
            )
        classes = 2 if are_classes(rows) else 0
        return cls((rows.features,), classes=classes, sparse=True, hashing=rows.hashing)

    def read(self, rows: Any, start: int, stop: int) -> tuple[npt.NDArray[Any], Floats]:
        """Inputs of this shape, not normalised yet, and labels."""
        part = rows.slice(start, stop)
        if isinstance(part, Batch):
            labels = (part.labels > 0).astype(np.float32) if self.classes else part.labels
            return spread(part, self.shape[0]), labels
        return part.inputs.reshape(len(part), *self.shape), part.labels


@dataclass(frozen=True, slots=True, eq=False)
class RowsPiece:
    data: Any
    inputs: ModelInputs
    start: int
    stop: int
    seed: int
    listed: KeyRange

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def nonzeros(self) -> int:
        """A huge number: computing a module always takes longer than microseconds."""
        return 1 << 40

    def read(self) -> tuple[Any, Any]:
        return self.inputs.read(self.data, self.start, self.stop)
