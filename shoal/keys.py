"""Keys, ranges of keys, and keys with their values: the currency of weights and gradients.

A key list is sorted and has no key twice. A user's keys may be neither: ``tidy`` sorts them and
adds up values of the same key, in the order given, and remembers how to undo that for answers.
A ``KeyList`` is for keys that are used repeatedly.

Hashed tables store ids spread evenly over 63 bits by a fixed bijection (``mixed``, ``unmixed``),
so that ranges of equal length hold about equally many. Multiplying by an odd number and folding
the upper half onto the lower are each one-to-one on 63 bits.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.errors import BadKeys, BadValues
from shoal.limits import KEY_LIMIT

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]
_lists = itertools.count(1)


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= KEY_LIMIT:
            raise BadKeys(f"range {self.start}..{self.stop}: needs 0 <= start <= stop <= 2^63")

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


@dataclass(frozen=True, slots=True, eq=False)
class KeyValues:
    """Keys (sorted, unique, or one range) and one row of values for each."""

    keys: Keys | KeyRange
    values: Values

    def __len__(self) -> int:
        return len(self.keys)


class KeyList:
    """Keys that will be used again: sorted, each once, checked only when the list is made.

    A server that was sent such a list knows it by a number, so the second push or pull of it
    carries no keys, and its rows need not be searched for. It is known as long as this object
    exists: make it once and keep it. Do not write to its array.
    """

    __slots__ = ("__weakref__", "hashed", "keys", "last", "which")

    def __init__(self, keys: Any) -> None:
        array = as_keys(keys)
        if not is_sorted(array):
            raise BadKeys("a KeyList is made of sorted keys, each once: make them so with np.unique(keys)")
        self.keys = array
        self.which = next(_lists)  # unique in this process
        self.last = int(array[-1]) if len(array) else -1
        # As a hashed table orders them.
        self.hashed: tuple[KeyList, npt.NDArray[np.intp] | None] | None = None

    def __len__(self) -> int:
        return len(self.keys)


def as_range(keys: object, end: int | None = None) -> KeyRange | None:
    """A KeyRange, a slice or a Python range as a KeyRange; else None. ``end`` is where keys end."""
    match keys:
        case KeyRange():
            return keys
        case range() if keys.step == 1:
            return KeyRange(keys.start, max(keys.start, keys.stop))
        case slice(start=start, stop=stop, step=None | 1) if stop is not None or end is not None:
            return KeyRange(operator.index(start or 0), end if stop is None else operator.index(stop))  # type: ignore[arg-type]
        case slice() | range():
            raise BadKeys(f"{keys!r}: a range of keys needs an end and has step 1")
    return None


def as_keys(keys: Any) -> Keys:
    """Integers from 0 to 2^63 - 1 as an array of uint64; not sorted yet."""
    array = np.asarray(keys)
    if array.ndim == 0:
        array = array.reshape(1)
    if array.ndim != 1:
        raise BadKeys(f"keys have shape {array.shape}: one dimension is needed")
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind not in "iu":
        raise BadKeys(f"keys are {array.dtype}: whole numbers from 0 to 2^63 - 1 are needed")
    if array.dtype.kind == "i" and array.min() < 0:
        raise BadKeys(f"key {array.min()} is negative: keys are 0 to 2^63 - 1")
    unsigned: Keys = np.ascontiguousarray(array, dtype=np.uint64)
    if array.dtype == np.uint64 and unsigned.max() >= KEY_LIMIT:
        raise BadKeys(f"key {unsigned.max()} is past the limit: keys are 0 to 2^63 - 1")
    return unsigned


def as_values(values: Any, rows: int, width: int) -> Values:
    """A contiguous float32 array of ``rows`` rows; refuses values that are not finite."""
    if isinstance(values, np.ma.MaskedArray):
        raise BadValues("values are masked: say what stands in for what is missing, with .filled(0)")
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise BadValues(f"values are {array.dtype}: numbers are needed")
    if array.size != rows * width or (array.ndim > 1 and array.shape != (rows, width)):
        shape = f"({rows},)" if width == 1 else f"({rows}, {width})"
        raise BadValues(f"values have shape {array.shape}: these keys need {shape}")
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):  # too large becomes infinite: refused below
            array = array.astype(np.float32)
    flat: Values = np.ascontiguousarray(array).reshape(rows, width)
    if not np.isfinite(flat).all():
        bad = int(np.flatnonzero(~np.isfinite(flat).all(axis=1))[0])
        raise BadValues(f"values of row {bad} are not finite (NaN or infinite): nothing was sent")
    return flat


def is_sorted(keys: Keys) -> bool:
    return len(keys) < 2 or bool((keys[1:] > keys[:-1]).all())


def distinct(keys: Keys) -> Keys:
    """The same keys in order, each once.

    numpy's own ``unique`` uses a hash table from 2.3 on: five to fifteen times slower.
    """
    ordered = np.sort(keys)
    if len(ordered) < 2:
        return ordered
    first = np.empty(len(ordered), np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: Keys = ordered[first]
    return found


def tidy(keys: Keys) -> tuple[Keys, npt.NDArray[np.intp] | None]:
    """Sorted keys without repeats, and each given key's place in them (None: no change)."""
    if is_sorted(keys):
        return keys, None
    unique, places = np.unique(keys, return_inverse=True)
    return unique, places.reshape(-1)


def add_up(values: Values, places: npt.NDArray[np.intp], rows: int) -> Values:
    """Add rows that go to the same place, in the order given."""
    total = np.zeros((rows, values.shape[1]), np.float64)
    np.add.at(total, places, values)
    with np.errstate(over="ignore"):  # too large becomes infinite: refused by the caller
        summed: Values = total.astype(np.float32)
    return summed


_MASK = np.uint64((1 << 63) - 1)
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)
_INVERSES = tuple(np.uint64(pow(factor, -1, 1 << 63)) for factor in _FACTORS)
_HALF = np.uint64(32)


def mixed(ids: Keys) -> Keys:
    keys = ids
    for factor in _FACTORS:
        keys = (keys * np.uint64(factor)) & _MASK
        keys = keys ^ (keys >> _HALF)
    return keys


def as_hashed(keys: KeyList) -> tuple[KeyList, npt.NDArray[np.intp] | None]:
    """The same list in a hashed table's order, and the place of each key; made once."""
    if keys.hashed is None:
        listed, places = tidy(mixed(keys.keys))
        keys.hashed = KeyList(listed), places
    return keys.hashed


def unmixed(keys: Keys) -> Keys:
    ids = keys
    for inverse in reversed(_INVERSES):
        ids = ids ^ (ids >> _HALF)  # its own inverse, since the shift is over half of 63
        ids = (ids * inverse) & _MASK
    return ids


def joined(segments: Iterable[KeyRange]) -> list[KeyRange]:
    """The same keys, with adjacent ranges joined. Ranges are sorted and disjoint."""
    runs: list[KeyRange] = []
    for one in segments:
        if runs and runs[-1].stop == one.start:
            runs[-1] = KeyRange(runs[-1].start, one.stop)
        else:
            runs.append(one)
    return runs


def without(these: Iterable[KeyRange], those: Iterable[KeyRange]) -> list[KeyRange]:
    """The keys of these ranges that are in none of those."""
    left: list[KeyRange] = []
    others = joined(those)
    for one in joined(these):
        low = one.start
        for other in others[max(0, bisect_right(others, low, key=lambda other: other.start) - 1) :]:
            if other.start >= one.stop:
                break
            if low < other.start:
                left.append(KeyRange(low, other.start))
            low = max(low, other.stop)
        if low < one.stop:
            left.append(KeyRange(low, one.stop))
    return left
