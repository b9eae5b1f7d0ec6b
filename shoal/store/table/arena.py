"""Memory for rows: address space for dense tables, slabs and indexes for sparse ones.

A dense table reserves address space for all its rows, and only what is written costs memory. The
row of a key is its number, so a segment that comes or goes moves no rows; what goes is given back
to the system page by page. All that a server has of a table (its own segments, backups, what
arrives) lies in one arena. Each holder claims its ranges, and the last claim wins: so a backup
becomes a primary's segment without touching a row. Sparse slabs and indexes grow in fixed steps.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys, Values, joined, without
from shoal.limits import ADDRESS_BYTES, KEY_LIMIT, MB

_SMALL = 1 * MB  # smaller arenas are ordinary arrays
_HUGE = 2 * MB  # a large page of most machines
_FLAGS = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
# Named since Python 3.13.
_FLAGS |= getattr(mmap, "MAP_NORESERVE", 0x4000 if hasattr(mmap, "MADV_DONTNEED") else 0)


class DenseArena:
    """Room for so many rows of so many words, all zero."""

    def __init__(self, rows: int, words: int) -> None:
        self._entered = 0
        self._claims: dict[int, list[KeyRange]] = {}  # by holder, if it has any
        size = rows * words * 4
        if size > ADDRESS_BYTES:
            raise MemoryError(f"{rows} rows of {words} words: more than a process can address; narrow the table")
        self._is_mapped = size >= _SMALL and hasattr(mmap.mmap, "madvise")
        if not self._is_mapped:
            self.slab: Values = np.zeros((rows, words), np.float32)
            return
        try:
            self.slab = np.frombuffer(mmap.mmap(-1, size, flags=_FLAGS), np.float32).reshape(rows, words)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no address space for {rows} rows of {words} words ({error}): add servers") from error

    def new_holder(self) -> int:
        self._entered += 1
        return self._entered

    def claim(self, holder: int, ranges: Sequence[KeyRange]) -> None:
        """Give these ranges to this holder."""
        for other, claimed in list(self._claims.items()):
            self._set_claims(other, without(claimed, ranges))
        mine = [*self._claims.get(holder, ()), *ranges]
        self._set_claims(holder, joined(sorted(mine, key=lambda keys: keys.start)))

    def release(self, holder: int, keys: KeyRange) -> None:
        """Free those of these rows that still belong to this holder."""
        claimed = self._claims.get(holder, [])
        left = without(claimed, [keys])
        self._set_claims(holder, left)
        for gone in without(claimed, left):
            if self._is_mapped:
                release_pages(self.slab, gone.start, gone.stop)

    def _set_claims(self, holder: int, ranges: list[KeyRange]) -> None:
        if ranges:
            self._claims[holder] = ranges
        else:
            self._claims.pop(holder, None)

    def advise_huge_pages(self, low: int, high: int) -> None:
        """These rows will be used: ask for large pages."""
        if self._is_mapped:
            _advise(self.slab, low, high, "MADV_HUGEPAGE", _HUGE)


T = TypeVar("T", bound=np.generic)

LINE_BYTES = 64
FIRST_ROWS = 1_024  # capacity of a slab at first


def fitting(capacity: int, rows: int) -> int:
    """The capacity of a slab, in rows, that holds this many."""
    while capacity < rows:
        capacity += capacity // 2
    return capacity


def places_for(rows: int) -> int:
    """The size of an index for this many rows."""
    places = 2 * FIRST_ROWS
    while places * 3 // 4 < rows:
        places *= 2
    return places


def most(index: Keys) -> int:
    """Rows that an index may hold: three quarters, so that probes stay short."""
    return len(index) * 3 // 4


def new_slab(rows: int, words: int) -> Values:
    if rows * words >= KEY_LIMIT // 8:  # numpy would say ValueError
        raise MemoryError(f"{rows} rows of {words} words: more than any machine has; add servers or narrow the table")
    bare = np.empty(rows * words + LINE_BYTES // 4, np.float32)
    return _on_line(bare)[: rows * words].reshape(rows, words)


def new_index(places: int) -> Keys:
    return _on_line(np.zeros(places + LINE_BYTES // 8, np.uint64))[:places]


def _on_line(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """The array from its first cache-line boundary on: few rows straddle two lines."""
    return array[-array.ctypes.data % LINE_BYTES // array.itemsize :]


def release_pages(slab: npt.NDArray[Any], first: int, last: int) -> None:
    """Rows first..last are unused: return their pages to the system. They may read as anything."""
    _advise(slab, first, last, "MADV_DONTNEED", mmap.PAGESIZE)


def _advise(slab: npt.NDArray[Any], first: int, last: int, advice: str, page: int) -> None:
    """Advise the system, if it knows how, on the whole pages of these rows."""
    start = -(-(slab.ctypes.data + first * slab.strides[0]) // page) * page
    stop = (slab.ctypes.data + last * slab.strides[0]) // page * page
    if start < stop and hasattr(mmap, advice):
        with suppress(OSError, AttributeError, TypeError):
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), getattr(mmap, advice))
