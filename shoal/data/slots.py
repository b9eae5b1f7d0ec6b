"""The rows of each slot: a function of the seed, the epoch and the slot's number.

    content = the slot's position in a shuffle of the contents, by epoch and seed
    rows    = content * batch .. (content + 1) * batch of the packed set, which is shuffled

So key lists repeat in each epoch, in another order, and a slot is one range of memory. The shuffle
is computed, never stored: a billion slots cost as little as ten.
"""

from __future__ import annotations

import operator
from typing import Any, Protocol

import numpy as np

from shoal.data.batch import Ids
from shoal.errors import Invalid

Slot = tuple[int, int]  # epoch, number
_MASK = (1 << 64) - 1


class SlotRows(Protocol):
    """The rows of a slot, and the keys whose weights they need."""

    @property
    def listed(self) -> Any: ...  # a KeyList or a KeyRange
    @property
    def nonzeros(self) -> int: ...  # how long a gradient takes, more or less
    def __len__(self) -> int: ...


class SlotOrder(Protocol):
    total: int  # rows
    batch: int  # largest number of rows of a slot
    seed: int
    per_pass: int  # slots
    turns: int  # slot j is for the worker whose turn is j modulo this

    def content(self, of_pass: int, number: int) -> int: ...
    def contents(self, of_pass: int) -> Ids: ...
    def span(self, content: int) -> tuple[int, int]: ...
    def rows_in(self, contents: Ids) -> int: ...


class Slots:
    """The slots of a set of ``rows`` rows, ``batch`` each; the last content may have fewer."""

    def __init__(self, rows: int, batch: int, seed: int) -> None:
        rows, batch = operator.index(rows), operator.index(batch)
        if rows < 1 or batch < 1:
            raise Invalid(f"{rows} rows in slots of {batch}: at least one row in a set and in a slot is needed")
        self.total, self.batch, self.seed = rows, batch, operator.index(seed)
        self.per_pass = self.turns = -(-rows // batch)
        self._last: tuple[int, np.uint64] | None = None  # the last epoch that was used, and its key

    def content(self, of_pass: int, number: int) -> int:
        from shoal.data import kernels

        self._within(number, "slot")
        return int(kernels.permuted(number, self.per_pass, self._key(of_pass)))

    def contents(self, of_pass: int) -> Ids:
        from shoal.data import kernels

        out = np.empty(self.per_pass, np.int64)
        kernels.permute(0, self.per_pass, self._key(of_pass), out)
        return out

    def span(self, content: int) -> tuple[int, int]:
        self._within(content, "content")
        return content * self.batch, min((content + 1) * self.batch, self.total)

    def rows_in(self, contents: Ids) -> int:
        short = self.per_pass * self.batch - self.total  # missing in the last content
        return len(contents) * self.batch - short * int((contents == self.per_pass - 1).any())

    def rows(self, content: int) -> Ids:
        return np.arange(*self.span(content), dtype=np.int64)

    def _within(self, number: int, what: str) -> None:
        if not 0 <= number < self.per_pass:
            raise Invalid(f"{what} {number}: an epoch has {self.per_pass:,}, numbered from 0")

    def _key(self, of_pass: int) -> np.uint64:
        from shoal.jit import mix

        last = self._last
        if last is None or last[0] != of_pass:
            key = mix(np.uint64(self.seed & _MASK))
            key = np.uint64(mix(np.uint64((int(key) + of_pass * 0x9E3779B97F4A7C15) & _MASK)))
            self._last = last = (of_pass, key)
        return last[1]
