"""The rows of a worker's slots for a module: pieces of the mapped set, and all of the weights.

Nothing is kept but the map: a slot is one piece of it. Its seed is a function of the run's seed, the pass and the number, so what
a module draws (dropout) is the same whoever computes the slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.data.slots import Slots
from shoal.keys import KeyRange
from shoal.models.inputs import ModelInputs, RowsPiece


class DenseBatches:
    """What one worker reads."""

    def __init__(self, data: Any, slots: Slots, keys: int) -> None:
        self._data, self._slots, self._whole = data, slots, KeyRange(0, keys)
        self._inputs = ModelInputs.of(data)

    def local(self, slot: tuple[int, int]) -> RowsPiece:
        start, stop = self._slots.span(self._slots.content(*slot))
        return RowsPiece(self._data, self._inputs, start, stop, seed_of(self._slots.seed, slot), self._whole)

    def make_ready(self, queue: Iterable[int]) -> None:
        """The map is ready as it is."""


def seed_of(seed: int, slot: tuple[int, int]) -> int:
    """Below 2^63, as PyTorch wants it."""
    from shoal.jit import mix

    found = np.uint64(seed)
    for part in slot:
        found = mix(np.uint64(int(found) ^ part))
    return int(found) >> 1
