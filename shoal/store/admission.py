"""Which keys of a push get in: those that have a row, and those that came often enough (the tail of a click log is half its keys).

The primary decides, before a change is made: what it leaves out no copy ever hears of. It counts in one byte per key where the keys
that it holds are not too many; otherwise in a sketch (two cells per key, shared with others), which may count too much, never too little:
a key may get in too early, none too late. The sketch is small until so many keys have come that it would be wrong often, and then as
large as it may be. What was counted is in no copy and no checkpoint: another primary begins anew, and rows stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.keys import Keys, KeyValues
from shoal.limits import ADMISSION_BYTES, ADMISSION_FIRST
from shoal.store.slab import SparseRows

Cells = npt.NDArray[np.uint8]


class Admission:
    """How often keys without a row were pushed."""

    def __init__(self, rows: SparseRows, wanted: int) -> None:
        from shoal.store import rare_kernels

        self._kernels, self._rows, self._wanted = rare_kernels, rows, wanted
        sizes = (rows.stops - rows.starts).astype(object)  # they may add up to more than 64 bits hold
        span = int(sum(sizes))
        self._exact = span <= ADMISSION_BYTES
        self._offsets = np.cumsum([0, *sizes[:-1]]).astype(np.int64) if self._exact else None
        self._cells: Cells = np.zeros(span if self._exact else ADMISSION_FIRST, np.uint8)
        self._before: Cells = np.empty(0, np.uint8)
        self._new = 0

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
