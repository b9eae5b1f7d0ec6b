"""Rows stored by column, for solvers that process the features block by block.

A block is a range of keys, the same on every node: blocks have equally many nonzeros of the
training set (``count``) or equally many keys (``range``). A shard is a range of rows;
``CscColumns`` has its nonzeros sorted by key, so a block is contiguous. The bias is the last key,
with the value 1 in every row.

Nothing here changes after it is made, so several ``BlockMargins`` can share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.data.batch import Batch, Floats, Ids, Localiser
from shoal.data.batch import Columns as Places
from shoal.errors import Invalid
from shoal.keys import KeyList, Keys
from shoal.models.linear import KINDS, NONE, Loss

By = Literal["count", "range"]
SOLVED = ("logistic", "squared")  # losses whose curvature is bounded


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBlocks:
    """Block b has the keys from ``starts[b]`` up to, not including, ``starts[b + 1]``."""

    starts: Keys

    @classmethod
    def cut(cls, by: By, number: int, counts: npt.NDArray[np.uint32], bias: bool, rows: int) -> ColumnBlocks:
        """Divide the keys. ``counts``: rows per feature; a bias key is in all ``rows``."""
        keys = len(counts) + bias
        if not 1 <= number <= keys:
            raise Invalid(f"{number:,} blocks of {keys:,} keys: none may be empty, take 1 to {keys:,}")
        ends = np.arange(number + 1, dtype=np.int64)
        if by == "range":
            return cls((keys * ends // number).astype(np.uint64))
        weight = np.append(counts.astype(np.int64), [rows] * bias)
        before = np.concatenate([[0], np.cumsum(weight)])
        starts = np.searchsorted(before, before[-1] * ends / number)
        starts[0], starts[-1] = 0, keys
        # at least one key each, even after a very common key
        starts = np.maximum.accumulate(starts - ends) + ends
        return cls(np.minimum(starts, keys - number + ends).astype(np.uint64))

    def __len__(self) -> int:
        return len(self.starts) - 1


class CscColumns:
    def __init__(self, rows: Batch, blocks: ColumnBlocks, bias: bool, features: int, loss: Loss = "logistic") -> None:
        if loss not in SOLVED:
            raise Invalid(f"loss={loss!r} has no curvature to step by: take {' or '.join(SOLVED)}")
        from shoal.models import column_kernels as kernels

        self.rows, self.kind = len(rows), KINDS.index(loss)
        self.labels = np.where(rows.labels > 0, 1.0, -1.0).astype(np.float32) if self.kind == 0 else rows.labels
        local = Localiser(features).local(rows, bias)
        self.keys = local.keys
        self.listed = KeyList(self.keys)
        self.nonzeros = local.nonzeros + bias * self.rows
        self.indptr: Ids = np.zeros(len(self.keys) + 1, np.int64)
        self.at: Places = np.empty(self.nonzeros, np.uint32)
        self.values: Floats = NONE if local.values is None else np.empty(self.nonzeros, np.float32)
        given = NONE if local.values is None else local.values
        kernels.turn(bias, local.indptr, local.columns, given, self.indptr, self.at, self.values)
        self.cuts = np.searchsorted(self.keys, blocks.starts)
        self.blocks = len(blocks)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.keys, self.indptr, self.at, self.values, self.labels))

    def span(self, block: int) -> tuple[int, int]:
        """The index range of a block's keys: first, and one past the last."""
        return int(self.cuts[block]), int(self.cuts[block + 1])

    def keys_of(self, block: int) -> Keys:
        first, last = self.span(block)
        return self.keys[first:last]

    def nonzeros_of(self, block: int) -> int:
        first, last = self.span(block)
        return int(self.indptr[last] - self.indptr[first])
