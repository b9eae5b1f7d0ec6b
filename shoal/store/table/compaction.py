"""How the rows of segments that went are cleared away: piece by piece, while pushes and pulls of what stays go on.

Such rows lie among others on a sparse ground, and to find all of them every row has to be looked at. So much at once would keep a server
from answering; a piece of it does not. In this order:

    rows        from the last one down: one that has to go is overwritten by the last, and nobody is looked for beyond that
    the index   its places whose rows went find nobody, but they are taken: another one is made, without them, and takes its place
    pages       of the slab that are behind the last row go back to the system

Whoever reads a whole range meanwhile leaves out what has to go (``hidden``). Should a segment come back before its rows are gone, or should all
rows be gone through anyway, the rest is done at once (``slab``). Nothing here reads the time: whoever holds this says when to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys
from shoal.limits import CLEAR_BYTES
from shoal.store.ranges import joined, without
from shoal.store.table import sparse_arena

if TYPE_CHECKING:
    from shoal.store.table.slab import SparseRows

_ENTERING = 4  # rows looked at in the time that it takes to enter one


class Compaction:
    """What lies on one ground and is nobody's any more."""

    def __init__(self) -> None:
        from shoal.store.table.admission_kernels import drop_some

        self._drop_some = drop_some
        self.ranges: list[KeyRange] = []  # whose rows have to go
        self.starts: Keys = np.empty(0, np.uint64)
        self.stops: Keys = np.empty(0, np.uint64)
        self._row = 0  # from here on all have been looked at
        self.stale = 0  # places of the index whose rows went
        self._fresh: Keys | None = None  # the index that there will be
        self._touched = self._entered = 0  # places of it that are zero in memory, rows that are in it
        self._used = 0  # rows that the slab had once: behind the last one their pages are of no use

    def begin(self, ground: SparseRows, ranges: Iterable[KeyRange]) -> None:
        """These have to go, too."""
        self._name(joined(sorted([*self.ranges, *ranges], key=lambda keys: keys.start)))
        self._row, self._fresh = ground.rows, None
        self._used = max(self._used, ground.rows)

    def _name(self, ranges: list[KeyRange]) -> None:
        self.ranges = ranges
        self.starts = np.array([keys.start for keys in ranges], np.uint64)
        self.stops = np.array([keys.stop for keys in ranges], np.uint64)

    def meets(self, ranges: Iterable[KeyRange]) -> bool:
        """Some of these keys have rows that have to go."""
        return bool(self.ranges) and without(self.ranges, ranges) != self.ranges

    def hidden(self, names: Keys) -> npt.NDArray[np.bool_]:
        """Which of these keys, in any order, are of rows that have to go."""
        if not self.ranges:
            return np.zeros(len(names), np.bool_)
        at = np.searchsorted(self.starts, names, side="right") - 1
        found: npt.NDArray[np.bool_] = (at >= 0) & (names < self.stops[at])
        return found

    def go_on(self, ground: SparseRows, rows: int) -> bool:
        """One piece: as long as it takes to look at so many rows. False if that was all."""
        if self.ranges:
            self._drop(ground, rows)
        elif self.stale:
            self._enter(ground, max(1, rows // _ENTERING))
        elif self._used > ground.rows:
            self._give_back(ground)
        return bool(self.ranges or self.stale or self._used > ground.rows)

    def _drop(self, ground: SparseRows, rows: int) -> None:
        before = ground.rows
        self._row, ground.rows = self._drop_some(
            ground.index, ground.slots, self._row, before, rows, self.starts, self.stops
        )
        if ground.rows < before:
            ground.layout += 1
            self.stale += before - ground.rows
        if not self._row:
            self._name([])

    def _enter(self, ground: SparseRows, rows: int) -> None:
        if self._fresh is None or ground.rows > sparse_arena.most(self._fresh):
            try:
                places = min(sparse_arena.places_for(ground.rows + ground.rows // 2), len(ground.index))
                self._fresh, self._touched, self._entered = sparse_arena.new_index(places), 0, 0
            except MemoryError:  # at once, then, and where it is
                ground.index[:] = 0
                ground.kernels.enter(ground.index, ground.slots, 0, ground.rows)
                self.entered()
                return
        if self._touched < len(self._fresh):
            # Memory is the system's until it is written to: the first rows, which fall anywhere, would bring all of it at once.
            upto = self._touched + CLEAR_BYTES // self._fresh.itemsize
            self._fresh[self._touched : upto] = 0
            self._touched = upto
            return
        upto = min(ground.rows, self._entered + rows)
        ground.kernels.enter(self._fresh, ground.slots, self._entered, upto)
        self._entered = upto
        if upto == ground.rows:
            ground.index = self._fresh
            self.entered()

    def _give_back(self, ground: SparseRows) -> None:
        first = max(ground.rows, self._used - max(1, CLEAR_BYTES // ground.slab.strides[0]))
        sparse_arena.give_back(ground.slab, first, self._used)
        self._used = first

    def entered(self) -> None:
        """The ground has a new index, with all rows in it."""
        self.stale, self._fresh = 0, None

    def moved(self) -> None:
        """The ground has a new slab: behind the last row it was never written to."""
        self._used = 0

    def dropped(self) -> None:
        """All that had to go is gone."""
        self._name([])
