"""Which keys of a push get in: those that have a row, and those that came often enough (the tail of a click log is half its keys).

The primary decides, before a change is made: what it leaves out no copy ever hears of. It counts in one byte per key where the keys
that it holds are not too many; otherwise in a sketch (two cells per key, shared with others), which may count too much, never too little:
a key may get in too early, none too late. The sketch is small until so many keys have come that it would be wrong often, and then as
large as it may be. What was counted is in no copy and no checkpoint: another primary begins anew, and rows stay. Segments that stay where they
are keep their counts, whatever comes and goes beside them (``hold``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys, KeyValues
from shoal.limits import ADMISSION_BYTES, ADMISSION_FIRST
from shoal.store.ranges import shared
from shoal.store.slab import SparseRows

Cells = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]


class Admission:
    """How often keys without a row were pushed."""

    def __init__(self, rows: SparseRows, wanted: int) -> None:
        from shoal.store import rare_kernels

        self._kernels, self._rows, self._wanted = rare_kernels, rows, wanted
        self._segments = rows.segments
        self._offsets = self._one_after_another()
        span = sum(map(_size, self._segments))
        self._cells: Cells = np.zeros(ADMISSION_FIRST if self._offsets is None else span, np.uint8)
        self._before: Cells = np.empty(0, np.uint8)
        self._new = 0

    def hold(self) -> None:
        """Other segments are on the ground: of keys that were here before and still are, what was counted stays.

        A sketch stays as it is: keys that are elsewhere do not come, and should they come back, they were counted.
        """
        before, self._segments = self._segments, self._rows.segments
        if self._offsets is None or before == self._segments:
            return
        offsets, cells = self._offsets, self._cells
        self._offsets = self._one_after_another()
        if self._offsets is None:
            self._cells, self._new = np.zeros(ADMISSION_FIRST, np.uint8), 0
            self._enter(before, cells)
            return
        self._cells = np.zeros(sum(map(_size, self._segments)), np.uint8)
        for there, here, keys in shared(before, self._segments):
            old = int(offsets[there]) + keys.start - before[there].start
            new = int(self._offsets[here]) + keys.start - self._segments[here].start
            self._cells[new : new + len(keys)] = cells[old : old + len(keys)]

    def _one_after_another(self) -> Offsets | None:
        """Where the cells of each segment begin; None if they would be too many."""
        *before, span = accumulate(map(_size, self._segments), initial=0)
        return np.array(before, np.int64) if span <= ADMISSION_BYTES else None

    def _enter(self, segments: Sequence[KeyRange], cells: Cells) -> None:
        """What cells of these segments, one after another, have counted goes into the sketch."""
        names, times, at = list[Keys](), list[Cells](), 0
        for keys in segments:
            some = cells[at : at + len(keys)]
            found = np.flatnonzero(some)
            names.append(found.astype(np.uint64) + np.uint64(keys.start))
            times.append(some[found])
            at += len(keys)
        every, counted = np.concatenate(names), np.concatenate(times)
        for time in range(min(self._wanted, int(counted.max(initial=0)))):  # more says no more than so many
            again = np.ascontiguousarray(every[counted > time])
            self._count(again, np.zeros(len(again), np.bool_))

    @property
    def memory(self) -> int:
        return self._cells.nbytes + self._before.nbytes

    def admit(self, given: KeyValues) -> KeyValues | None:
        """The rows of a push whose keys get in; None if there are none. Each of the others is counted once."""
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
            # One cell in five would be taken: what they say so far is kept, and counted on elsewhere.
            self._before, self._cells = self._cells, np.zeros(ADMISSION_BYTES, np.uint8)
        found, new = self._kernels.count_hashed(keys, self._before, self._cells, self._wanted, chosen)
        self._new += new
        return int(found)


def _size(keys: KeyRange) -> int:
    return keys.stop - keys.start  # it may be too long to have a length
