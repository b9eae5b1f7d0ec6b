"""Which keys of a push get in: those that have a row, and those that came often enough.

The tail of a click log is half its keys. The primary decides, before a change is made: backups
never hear of the rest. It counts in one byte per key if the keys it holds are few enough (of
reserved addresses, so only what is touched costs memory), else in a sketch (two cells per key,
shared with others), which may count too much, never too little: a key may get in too early, never
too late. The sketch starts small and grows once. Counts are in no replica and no checkpoint: a new
primary starts from nothing, and rows stay. Segments that stay keep their counts (``hold``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys, KeyValues, without
from shoal.limits import ADMISSION_BYTES, ADMISSION_FIRST
from shoal.store.table.arena import DenseArena, release_pages
from shoal.store.table.slab import SparseRows

Cells = npt.NDArray[np.uint8]


class Admission:
    """How often keys without a row were pushed."""

    def __init__(self, rows: SparseRows, threshold: int, span: int) -> None:
        """``span``: the table's keys are below this."""
        self._rows, self._threshold = rows, threshold
        self._segments = rows.segments
        self._cells: Cells = np.zeros(ADMISSION_FIRST, np.uint8)
        self._before: Cells = np.empty(0, np.uint8)
        self._new = 0
        self._by_key = False
        if self._key_count <= ADMISSION_BYTES:
            with suppress(MemoryError):  # without address space it is a sketch
                self._cells = DenseArena(-(-span // 4), 1).slab.reshape(-1).view(np.uint8)
                self._by_key = True

    def keep_held(self) -> None:
        """The segments have changed: keep the counts of keys that were here before and still are.

        In a sketch nothing changes: keys that moved away do not come.
        """
        before, self._segments = self._segments, self._rows.segments
        if not self._by_key:
            return
        if self._key_count > ADMISSION_BYTES:
            cells, self._cells, self._by_key = self._cells, np.zeros(ADMISSION_FIRST, np.uint8), False
            self._enter(before, cells)
            return
        for gone in without(before, self._segments):
            release_pages(self._cells.reshape(-1, 1), gone.start, gone.stop)

    @property
    def _key_count(self) -> int:
        return sum(keys.stop - keys.start for keys in self._segments)  # len() may overflow

    def _enter(self, segments: Sequence[KeyRange], cells: Cells) -> None:
        """Put the counts of these segments into the sketch."""
        parts = [np.flatnonzero(cells[keys.start : keys.stop]) + keys.start for keys in segments]
        every = np.concatenate(parts).astype(np.uint64)
        counted = cells[every]
        # Higher counts do not matter.
        for time in range(min(self._threshold, int(counted.max(initial=0)))):
            again = np.ascontiguousarray(every[counted > time])
            self._count(again, np.zeros(len(again), np.bool_))

    @property
    def memory(self) -> int:
        return self._key_count if self._by_key else self._cells.nbytes + self._before.nbytes

    def admit(self, pushed: KeyValues) -> KeyValues | None:
        """The rows of a push whose keys get in, or None. Each of the others is counted once."""
        keys, table = np.ascontiguousarray(pushed.keys), self._rows
        rows = np.empty(len(keys), np.int64)
        table.kernels.find_rows(table.index, table.slots, table.rows, keys, rows)
        chosen = rows >= 0
        self._count(keys, chosen)
        if chosen.all():
            return pushed
        return KeyValues(keys[chosen], np.ascontiguousarray(pushed.values[chosen])) if chosen.any() else None

    def _count(self, keys: Keys, chosen: npt.NDArray[np.bool_]) -> None:
        kernels = self._rows.kernels
        if self._by_key:
            kernels.count_each(keys, self._cells, self._threshold, chosen)
            return
        if not len(self._before) and self._new + len(keys) > ADMISSION_FIRST // 8:
            # One cell in five would be taken: keep these counts, and go on in larger cells.
            self._before, self._cells = self._cells, np.zeros(ADMISSION_BYTES, np.uint8)
        self._new += kernels.count_hashed(keys, self._before, self._cells, self._threshold, chosen)
