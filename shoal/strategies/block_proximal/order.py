"""The order of feature blocks, and the parts of the rows that every iteration asks.

    iteration t = step t of the table; its slots are the parts:
                  slot (epoch, number), t = epoch * blocks + number // parts
    an epoch    = every block once, in an order that depends on the seed and the epoch
    part p      = rows p * rows // parts .. (p + 1) * rows // parts, in every iteration

A block has its next turn no sooner than ``gap`` iterations after its last, also over epochs: the
order is shuffled in windows. A slot counts ``1 / blocks`` of its part's rows.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from shoal.errors import Invalid

Numbers = npt.NDArray[np.int64]


class BlockOrder:
    def __init__(self, rows: int, parts: int, blocks: int, seed: int, gap: int = 1) -> None:
        if not 1 <= parts <= rows:
            raise Invalid(f"{rows:,} rows in {parts} parts: take fewer (--set strategy.parts={max(1, rows)})")
        if not 1 <= gap <= blocks:
            raise Invalid(f"{blocks} blocks, none of which comes again within {gap} iterations: take more blocks")
        self.total, self.parts, self.blocks, self.seed = rows, parts, blocks, seed
        self.per_pass, self.batch = parts * blocks, -(-rows // parts)  # most rows of a slot
        self.turns = parts  # slot j is for worker j modulo this: a part stays with its worker
        windows = -(-blocks // (blocks - gap + 1))
        self._windows = [blocks * i // windows for i in range(windows + 1)]
        self._base = self._draw(0).permutation(blocks)
        self._order = lru_cache(maxsize=3)(self._shuffled)  # of the last used epochs

    def iteration(self, slot: tuple[int, int]) -> int:
        return slot[0] * self.blocks + slot[1] // self.parts

    def part(self, slot: tuple[int, int]) -> int:
        return slot[1] % self.parts

    def block(self, iteration: int) -> int:
        of_pass, place = divmod(iteration, self.blocks)
        return int(self._order(of_pass)[place])

    def part_rows(self, part: int) -> tuple[int, int]:
        return self.total * part // self.parts, self.total * (part + 1) // self.parts

    def contents(self, of_pass: int) -> Numbers:
        return np.arange(self.per_pass, dtype=np.int64)

    def content(self, of_pass: int, number: int) -> int:
        return number

    def span(self, content: int) -> tuple[int, int]:
        """The rows that a slot counts: its share of its part's."""
        place, part = divmod(content, self.parts)
        start, stop = self.part_rows(part)
        rows = stop - start
        return start + rows * place // self.blocks, start + rows * (place + 1) // self.blocks

    def rows_in(self, contents: Numbers) -> int:
        """How many rows all of these count, each named once."""
        return sum(stop - start for start, stop in map(self.span, contents.tolist()))

    def _shuffled(self, of_pass: int) -> Numbers:
        draw, order = self._draw(1 + of_pass), self._base.copy()
        for start, stop in pairwise(self._windows):
            order[start:stop] = draw.permutation(order[start:stop])
        return order

    def _draw(self, number: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self.seed, number]))
