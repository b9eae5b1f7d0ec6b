"""A checksum of the arrays behind a header: 32 bits, and little time.

A short array has the CRC-32 of its bytes. A long one is cut into rows of 521 words (4 KB; a prime, so that pages of memory that change
places do not cancel out), all rows are added up, and what that leaves has the CRC-32: numpy adds as fast as memory is read, some ten times as
fast as zlib goes over the bytes. Whatever is damaged within 4 KB changes the sums for certain, and is missed by the CRC-32 of these once in
four thousand million times; damage in two places more than 4 KB apart is missed if it adds up to nothing, bit by bit in the same column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

_ROW = 521  # words
_WORD = 8  # bytes
_LONG = 16_384  # bytes: from here on adding up is faster


def checksum(arrays: Sequence[npt.NDArray[Any] | memoryview | bytes]) -> int:
    """Of all of them and their lengths. Never zero: that stands for none."""
    total = 0
    for array in arrays:
        size = array.nbytes if isinstance(array, np.ndarray | memoryview) else len(array)
        total = _add(array, size, crc32(size.to_bytes(8, "little"), total))
    return total or 1


def _add(array: Any, size: int, total: int) -> int:
    if size < _LONG:
        return crc32(array, total) if size else total
    octets: Any = np.frombuffer(array, np.uint8)
    whole = size - size % (_ROW * _WORD)
    sums = np.add.reduce(octets[:whole].view("<u8").reshape(-1, _ROW), axis=0)
    return crc32(octets[whole:], crc32(sums, total))
