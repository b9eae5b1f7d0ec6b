"""The parts of the rows that a worker holds, column by column.

A part is made from the packed rows when it is first asked for, off the loop, and kept while it is
used. A part that moved to another worker is released two epochs later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from shoal.data.csr_file import CsrFile
from shoal.models.columns import ColumnBlocks, CscColumns
from shoal.models.linear import Loss
from shoal.strategies.block_proximal.order import BlockOrder

_UNUSED = 2  # epochs that an unused part is kept


class ColumnParts:
    def __init__(self, data: CsrFile, turns: BlockOrder, blocks: ColumnBlocks, bias: bool, loss: Loss) -> None:
        self._data, self._turns, self._blocks, self._bias, self._loss = data, turns, blocks, bias, loss
        self._cache: dict[int, CscColumns] = {}  # by part
        self._used: dict[int, int] = {}  # the epoch of its last use

    def local(self, slot: tuple[int, int]) -> ColumnPart:
        turns = self._turns
        part, of_pass = turns.part(slot), slot[0]
        self._used[part] = of_pass
        for old in [one for one, last in self._used.items() if last < of_pass - _UNUSED]:
            del self._used[old]
            self._cache.pop(old, None)
        start, stop = turns.span(slot[1])
        first, last = turns.part_rows(part)
        nonzeros = int(self._data.indptr[last] - self._data.indptr[first]) + self._bias * (last - first)
        return ColumnPart(turns, stop - start, nonzeros, partial(self._columns, part))

    def make_ready(self, queue: Iterable[int]) -> None:
        """A part is made once, and then there."""

    def _columns(self, part: int) -> CscColumns:
        found = self._cache.get(part)
        if found is None:
            rows = self._data.slice(*self._turns.part_rows(part))
            found = self._cache[part] = CscColumns(rows, self._blocks, self._bias, self._data.features, self._loss)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPart:
    turns: BlockOrder
    counts: int  # rows, of this slot
    nonzeros: int  # of the whole part
    columns: Callable[[], CscColumns]  # to be called off the loop
    listed: None = None  # which keys are pulled depends on the pushes

    def __len__(self) -> int:
        return self.counts
