"""Which rank computes which slot of a step, when every step is the sum over all ranks.

A step has one slot for each living rank: the next ones of the pass, in its order of chance. The last step of a pass has what is
left of it. Who is not in the sum of a step is gone; its slot comes first in the next one. Every rank keeps one of these and tells
it the same facts, so they all agree, and nobody has to ask. A slot is known here by one number: pass * slots in a pass + its
number there.

Nothing here computes, sends or reads the time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.strategies.averaging.shards import LostRank

_NONE = np.empty(0, np.int64)


class StepSlots:
    """The slots of a run among ranks; the same calls as ``Parts``."""

    def __init__(self, slots: Slots, ranks: int, of_pass: int = 0, left: Ids | None = None) -> None:
        """``left`` are those of a run that is taken up in pass ``of_pass``."""
        self._slots = slots
        self.living = list(range(ranks))
        self.of_pass = of_pass
        self.planned: dict[int, Ids] = {}  # what each does now
        self._queue = self._whole(of_pass) if left is None else left

    def plan(self, room: int, most: int | None = None) -> Mapping[int, Ids]:
        """The next slot of every living rank, as far as there is room."""
        if not len(self._queue):
            self.of_pass += 1
            self._queue = self._whole(self.of_pass)
        step, self._queue = np.split(self._queue, [min(room, len(self.living))])
        self.planned = {rank: step[at : at + 1] for at, rank in enumerate(self.living)}
        return self.planned

    def rows(self, ids: Ids) -> int:
        """How many rows these slots have."""
        return sum(self._slots.rows_in(np.array([self._slots.content(*self.named(one))])) for one in ids.tolist())

    def named(self, slot: int) -> tuple[int, int]:
        """Its pass, and its number there."""
        return divmod(slot, self._slots.per_pass)

    def settle(self, inside: Collection[int]) -> list[LostRank]:
        """These were in the sum, the others are gone."""
        gone = [rank for rank in self.living if rank not in inside]
        self.living = [rank for rank in self.living if rank in inside]
        again = {rank: self.planned.get(rank, _NONE) for rank in gone}
        self._queue = np.concatenate([*again.values(), self._queue])
        self.planned = {}
        return [LostRank(rank, len(ids), 0, 0) for rank, ids in again.items()]

    def fed(self) -> None:
        """A step is nobody's own."""

    def left(self) -> Ids:
        """What of this pass is not settled."""
        return np.sort(np.concatenate([*self.planned.values(), self._queue]))

    def _whole(self, of_pass: int) -> Ids:
        return np.arange(self._slots.per_pass, dtype=np.int64) + of_pass * self._slots.per_pass
