"""The slots of a step: held until all have arrived, then added in slot order.

Slots arrive in any order, from any worker, perhaps twice and perhaps for some segments only. Per
key they are added in slot order, in double precision, and rounded once. So the sum has the same
bits whichever worker computed a slot: a sync run is repeatable on any number of workers and
servers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys, KeyValues, Values, distinct
from shoal.store.server.ledger import Mask


@dataclass(slots=True)
class SlotPiece:
    segments: Mask  # the segments it is for
    rows: KeyValues | None  # None: nothing for this server
    void: bool


@dataclass(slots=True)
class OpenStep:
    """A step some of whose slots are missing."""

    step: int
    arrived: Mask  # [segment, slot]
    slots: list[list[SlotPiece]]
    size: int = 0

    @classmethod
    def of(cls, step: int, slots: int, segments: int) -> OpenStep:
        return cls(step, np.zeros((segments, slots), np.bool_), [[] for _ in range(slots)])

    def add(self, slot: int, piece: SlotPiece) -> None:
        self.slots[slot].append(piece)
        self.arrived[piece.segments, slot] = True
        if piece.rows is not None:
            self.size += piece.rows.values.nbytes

    def complete(self) -> Mask:
        """The segments for which every slot is here."""
        full: Mask = np.logical_and.reduce(self.arrived, axis=1)
        return full

    def missing(self) -> list[int]:
        return [int(slot) for slot in np.flatnonzero(~self.arrived.all(axis=0))]

    def total(self, mean: bool, listed: Callable[[KeyRange], Keys]) -> KeyValues | None:
        """The sum of all slots, in slot order; None if there is nothing to add."""
        parts = [piece.rows for pieces in self.slots for piece in pieces if piece.rows is not None]
        if not parts:
            return None
        divisor = 1
        if mean:  # over the slots this step has; a void one has no gradient to take part with
            divisor = max(1, sum(not any(piece.void for piece in pieces) for pieces in self.slots))
        if all(isinstance(one.keys, KeyRange) and one.keys == parts[0].keys for one in parts):
            return KeyValues(parts[0].keys, _add_rows([one.values for one in parts], divisor))
        lists = [listed(one.keys) if isinstance(one.keys, KeyRange) else one.keys for one in parts]
        return _add_by_key(lists, [one.values for one in parts], divisor)


def _add_rows(rows: list[Values], divisor: int) -> Values:
    total = rows[0].astype(np.float64)
    for more in rows[1:]:
        total += more
    return _rounded(total, divisor)


def _add_by_key(lists: list[Keys], rows: list[Values], divisor: int) -> KeyValues:
    keys = distinct(np.concatenate(lists))
    total = np.zeros((len(keys), rows[0].shape[1]), np.float64)
    for mine, values in zip(lists, rows, strict=True):
        total[np.searchsorted(keys, mine)] += values  # no key is twice in one list
    return KeyValues(keys, _rounded(total, divisor))


def _rounded(total: npt.NDArray[np.float64], divisor: int) -> Values:
    if divisor != 1:
        total /= divisor
    most = float(np.finfo(np.float32).max)  # finite slots never make an infinite sum
    rounded: Values = np.clip(total, -most, most, out=total).astype(np.float32)
    return rounded
