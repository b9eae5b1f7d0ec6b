"""Which keys of a push get in: those that have a row, and those that came often enough.

The tail of a click log is half its keys. The primary decides, before a change is made: backups
never hear of the rest. It counts in one byte per key if the keys it holds are few enough, else in
a sketch (two cells per key, shared with others), which may count too much, never too little: a key
may get in too early, never too late. The sketch starts small and grows once. Counts are in no
replica and no checkpoint: a new primary starts from nothing, and rows stay. Segments that stay
keep their counts (``hold``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys, KeyValues, shared
from shoal.limits import ADMISSION_BYTES, ADMISSION_FIRST
from shoal.store.table.slab import SparseRows

Cells = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


class Admission:
    """How often keys without a row were pushed."""

    def __init__(self, rows: SparseRows, wanted: int, span: int) -> None:
        """``span``: the table's keys are below this."""
        self._kernels, self._rows, self._wanted = rows.kernels, rows, wanted
        self._segments = rows.segments
        self._by_key = span <= ADMISSION_BYTES  # by key: untouched pages cost no memory
        self._offsets = self._places()
        self._cells: Cells = self._room(span)
        self._before: Cells = np.empty(0, np.uint8)
        self._new = 0

    def hold(self) -> None:
        """The segments have changed: keep the counts of keys that were here before and still are.

        By key, and in a sketch, nothing changes: keys that moved away do not come.
        """
        before, self._segments = self._segments, self._rows.segments
        if self._offsets is None or before == self._segments:
            return
        offsets, self._offsets = self._offsets, self._places()
        if self._by_key:
            return
        cells, self._cells = self._cells, self._room()
        if self._offsets is None:
            self._enter(before, cells)
            return
        for there, here, keys in shared(before, self._segments):
            old = int(offsets[there]) + keys.start - before[there].start
            new = int(self._offsets[here]) + keys.start - self._segments[here].start
            self._cells[new : new + len(keys)] = cells[old : old + len(keys)]

    def _places(self) -> Offsets | None:
        """Where the cells of each segment begin; None if they would be too many."""
        if self._by_key:
            return self._rows.starts.astype(np.int64)
        *before, total = accumulate(map(_size, self._segments), initial=0)
        return np.array(before, np.int64) if total <= ADMISSION_BYTES else None

    def _room(self, span: int = 0) -> Cells:
        if self._offsets is None:
            return np.zeros(ADMISSION_FIRST, np.uint8)
        return np.zeros(span if self._by_key else self._held, np.uint8)

    @property
    def _held(self) -> int:
        return sum(map(_size, self._segments))

    def _enter(self, segments: Sequence[KeyRange], cells: Cells) -> None:
        """Put the counts of these segments' cells, one after another, into the sketch."""
        names, times, at = list[Keys](), list[Cells](), 0
        for keys in segments:
            some = cells[at : at + len(keys)]
            found = np.flatnonzero(some)
            names.append(found.astype(np.uint64) + np.uint64(keys.start))
            times.append(some[found])
            at += len(keys)
        every, counted = np.concatenate(names), np.concatenate(times)
        # Higher counts do not matter.
        for time in range(min(self._wanted, int(counted.max(initial=0)))):
            again = np.ascontiguousarray(every[counted > time])
            self._count(again, np.zeros(len(again), np.bool_))

    @property
    def memory(self) -> int:
        return self._cells.nbytes + self._before.nbytes if self._offsets is None else self._held

    def admit(self, given: KeyValues) -> KeyValues | None:
        """The rows of a push whose keys get in, or None. Each of the others is counted once."""
        keys = np.ascontiguousarray(given.keys)
        chosen = np.empty(len(keys), np.bool_)
        rows = self._rows
        self._kernels.have_rows(rows.index, rows.slots, rows.rows, keys, chosen)
        found = self._count(keys, chosen)
        if found == len(keys):
            return given
        return KeyValues(keys[chosen], np.ascontiguousarray(given.values[chosen])) if found else None

    def _count(self, keys: Keys, chosen: npt.NDArray[np.bool_]) -> int:
        if self._offsets is not None:
            places = np.empty(len(keys), np.int64)
            rows = self._rows
            rows.kernels.dense_rows(keys, rows.starts, rows.stops, self._offsets, places)
            return int(self._kernels.count_each(places, self._cells, self._wanted, chosen))
        if not len(self._before) and self._new + len(keys) > ADMISSION_FIRST // 8:
            # One cell in five would be taken: keep these counts, and go on in larger cells.
            self._before, self._cells = self._cells, np.zeros(ADMISSION_BYTES, np.uint8)
        found, new = self._kernels.count_hashed(keys, self._before, self._cells, self._wanted, chosen)
        self._new += new
        return int(found)


def _size(keys: KeyRange) -> int:
    return keys.stop - keys.start  # len() may overflow
