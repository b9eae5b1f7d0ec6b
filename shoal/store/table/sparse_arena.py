"""Memory for sparse rows: how much is taken for so many, where it begins, and how what is not in use goes back to the system.

Always the same steps, so the peak is known. Nothing here knows what lies there.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.keys import Keys, Values
from shoal.limits import KEY_LIMIT

T = TypeVar("T", bound=np.generic)

LINE_BYTES = 64
FIRST_ROWS = 1_024  # capacity of a slab at first


def fitting(capacity: int, rows: int) -> int:
    """Rows that a slab has, for so many."""
    while capacity < rows:
        capacity += capacity // 2
    return capacity


def places_for(rows: int) -> int:
    """Places that an index has, for so many rows."""
    places = 2 * FIRST_ROWS
    while places * 3 // 4 < rows:
        places *= 2
    return places


def most(index: Keys) -> int:
    """Rows that an index may hold: three quarters full, probes stay short."""
    return len(index) * 3 // 4


def new_slab(rows: int, words: int) -> Values:
    if rows * words >= KEY_LIMIT // 8:  # numpy would say ValueError
        raise MemoryError(f"{rows} rows of {words} words: more than any machine has; add servers or narrow the table")
    bare = np.empty(rows * words + LINE_BYTES // 4, np.float32)
    return _on_line(bare)[: rows * words].reshape(rows, words)


def new_index(places: int) -> Keys:
    return _on_line(np.zeros(places + LINE_BYTES // 8, np.uint64))[:places]


def _on_line(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """The array from the first place on that begins a cache line, so that a row or a line of slots is seldom in two."""
    return array[-array.ctypes.data % LINE_BYTES // array.itemsize :]


def give_back(slab: Values, first: int, last: int) -> None:
    """Rows first..last are not in use, and may read as anything: the pages that they fill cost nothing until they are written to."""
    page, row = mmap.PAGESIZE, slab.strides[0]
    start = -(-(slab.ctypes.data + first * row) // page) * page
    stop = (slab.ctypes.data + last * row) // page * page
    if start < stop and (advise := _advise()) is not None:
        advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)


def _advise() -> Any:
    """The system's own, where it is one that means by this what is meant here."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return None
    with suppress(OSError, AttributeError, TypeError):
        return ctypes.CDLL(None).madvise
    return None
