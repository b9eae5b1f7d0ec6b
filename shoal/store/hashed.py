"""Ids of any kind, spread evenly over 63 bits by a fixed bijection, and back.

Tables that are ``hashed`` store mixed ids, so that ranges of equal length hold about equally many of them, whatever ids a
user has. Multiplying by an odd number and folding the upper half onto the lower are each one-to-one on 63 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyList, Keys, tidy

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
    """The same list as a hashed table has it, in the order that it has there, and the place of each key; made once."""
    if keys.hashed is None:
        listed, places = tidy(mixed(keys.keys))
        keys.hashed = KeyList(listed), places
    return keys.hashed


def unmixed(keys: Keys) -> Keys:
    ids = keys
    for inverse in reversed(_INVERSES):
        ids = ids ^ (ids >> _HALF)  # its own inverse: the shift is more than half of 63
        ids = (ids * inverse) & _MASK
    return ids
