"""Which rows a slot holds: a function of the seed, the pass and the slot's number, whoever computes it.

    content = the slot's place in a shuffle of the contents that differs from pass to pass, and with the seed
    rows    = content * batch .. (content + 1) * batch of the packed set, whose rows are in an order of chance

So key lists repeat from pass to pass, in another order, and a slot is one piece of memory. The
shuffle is computed and never stored: a billion slots cost as little as ten.
"""

from __future__ import annotations

import operator
from typing import Protocol

import numpy as np

from shoal.data.batch import Ids
from shoal.errors import Invalid

_MASK = (1 << 64) - 1


class SlotOrder(Protocol):
    """What an epoch is cut into, whatever a strategy makes of it."""

    total: int  # rows
    batch: int  # rows that a slot computes with, at most
    seed: int
    per_pass: int  # slots
    turns: int  # slot j is for the worker whose turn j modulo this is

    def content(self, of_pass: int, number: int) -> int: ...
    def contents(self, of_pass: int) -> Ids: ...
    def span(self, content: int) -> tuple[int, int]: ...
    def rows_in(self, contents: Ids) -> int: ...


class Slots:
    """The slots of a set of ``rows`` rows, ``batch`` rows in each; the last content may have fewer."""

    def __init__(self, rows: int, batch: int, seed: int) -> None:
        rows, batch = operator.index(rows), operator.index(batch)
        if rows < 1 or batch < 1:
            raise Invalid(f"{rows} rows in slots of {batch}: at least one row in a set and in a slot is needed")
        self.total, self.batch, self.seed = rows, batch, operator.index(seed)
        self.per_pass = self.turns = -(-rows // batch)
        # the pass that was asked for last, and its key
        self._last: tuple[int, np.uint64] | None = None

    def content(self, of_pass: int, number: int) -> int:
        """Which group of rows the slot has."""
        from shoal.data import kernels

        self._within(number, "slot")
        return int(kernels.permuted(number, self.per_pass, self._key(of_pass)))

    def contents(self, of_pass: int) -> Ids:
        """The contents of all slots of a pass, in the order of the slots."""
        from shoal.data import kernels

        out = np.empty(self.per_pass, np.int64)
        kernels.permute(0, self.per_pass, self._key(of_pass), out)
        return out

    def span(self, content: int) -> tuple[int, int]:
        """The rows of a group: from the first up to, not including, the second."""
        self._within(content, "content")
        return content * self.batch, min((content + 1) * self.batch, self.total)

    def rows_in(self, contents: Ids) -> int:
        """How many rows all of these have, each named once."""
        short = self.per_pass * self.batch - self.total  # in the last
        return len(contents) * self.batch - short * int((contents == self.per_pass - 1).any())

    def rows(self, content: int) -> Ids:
        """The same, one by one."""
        return np.arange(*self.span(content), dtype=np.int64)

    def _within(self, number: int, what: str) -> None:
        if not 0 <= number < self.per_pass:
            raise Invalid(f"{what} {number}: a pass has {self.per_pass:,}, numbered from 0")

    def _key(self, of_pass: int) -> np.uint64:
        from shoal.jit import mix

        last = self._last
        if last is None or last[0] != of_pass:
            key = mix(np.uint64(self.seed & _MASK))
            key = np.uint64(mix(np.uint64((int(key) + of_pass * 0x9E3779B97F4A7C15) & _MASK)))
            self._last = last = (of_pass, key)
        return last[1]
