"""Which rank learns from which slots.

    period = parts.plan(room)           what each rank does next; together at most so many slots
    ... all compute, and sum; some ranks were in the sum ...
    lost = parts.settle(inside)         the others are gone: their slots are dealt again
    parts.commit()                      all continue from the mean: it cannot be lost any more

``Shards`` divides an epoch among the living ranks, by their shares. ``StepSlots``, of all-reduce,
gives every living rank the next slot of the epoch in each step; the slot of a rank that is lost
comes first in the next step. Every rank has one of these and gives it the same facts, so all agree
without asking. A slot is one number here: epoch * slots in an epoch + its number there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.errors import Invalid

_NONE = np.empty(0, np.int64)
_LEAST = 1e-300  # of the largest share


@dataclass(frozen=True, slots=True)
class LostRank:
    rank: int
    again: int  # slots that it had begun, and others compute now
    back: int  # of these, the ones that were counted,
    rows: int  # and their rows


class Shards:
    def __init__(
        self,
        slots: Slots,
        ranks: int,
        shares: Sequence[float] = (),
        every: int | None = None,
        of_pass: int = 0,
        left: Ids | None = None,
    ) -> None:
        """``every``: most own slots between two means. ``left``: where a run is resumed."""
        if shares and len(shares) != ranks:
            raise Invalid(
                f"strategy.shares has {len(shares)} numbers for {ranks} ranks: give one for each, or leave it "
                f"out (a resumed run needs as many ranks as before: --workers {len(shares)})"
            )
        self._slots, self._every = slots, every
        self._shares = np.array(shares or [1.0] * ranks)
        self._shares = np.maximum(self._shares / self._shares.max(), _LEAST)  # a finite sum
        self.living = list(range(ranks))
        self.of_pass = of_pass
        self.planned: dict[int, Ids] = {}  # what each rank does now
        self._since: dict[int, list[Ids]] = {rank: [] for rank in self.living}
        self._rows_since = dict.fromkeys(self.living, 0)
        self._order = lru_cache(2)(slots.contents)  # of an epoch: contents by number
        self._queues: dict[int, Ids] = {}
        self._cut(_epoch(self._slots, of_pass) if left is None else left)

    def plan(self, room: int, most: int | None = None) -> Mapping[int, Ids]:
        """The next slots of every rank: at most ``most`` each, and ``room`` together."""
        if not any(len(queue) for queue in self._queues.values()):
            self.of_pass += 1
            self._cut(_epoch(self._slots, self.of_pass))
        least = min(one for one in (self._every, most, self._slots.per_pass) if one is not None)
        wanted = [min(least, len(self._queues[rank])) for rank in self.living]
        for rank, count in zip(self.living, _within(wanted, room), strict=True):
            self.planned[rank], self._queues[rank] = np.split(self._queues[rank], [count])
        return self.planned

    def rows(self, ids: Ids) -> int:
        return sum(self._slots.rows_in(contents) for _, _, contents in self.pieces(ids))

    def weights(self) -> dict[int, float]:
        """The weight of each rank in a mean: its share of the rows learned from since the last."""
        rows = {rank: self._rows_since[rank] + self.rows(self.planned.get(rank, _NONE)) for rank in self.living}
        total = sum(rows.values())
        return {rank: count / total if total else 1 / len(rows) for rank, count in rows.items()}

    def settle(self, inside: Collection[int]) -> list[LostRank]:
        """Mark the planned slots of these ranks as done; the others are lost."""
        lost = []
        for rank in [rank for rank in self.living if rank not in inside]:
            self.living.remove(rank)
            before, planned = np.concatenate([_NONE, *self._since.pop(rank)]), self.planned.pop(rank, _NONE)
            lost.append(LostRank(rank, len(before) + len(planned), len(before), self.rows(before)))
            self._deal(np.concatenate([before, planned, self._queues.pop(rank)]))
        for rank, ids in self.planned.items():
            if len(ids):
                self._since[rank].append(ids)
                self._rows_since[rank] += self.rows(ids)
        self.planned = {}
        return lost

    def share(self, shares: Sequence[float]) -> None:
        """Change the shares of the living ranks, from the rest of this epoch on."""
        self._shares[self.living] = np.maximum(np.array(shares) / max(shares), _LEAST)
        self._cut(np.sort(np.concatenate(list(self._queues.values()))))

    def lose(self, rank: int, done: int) -> int:
        """A rank is gone, all but ``done`` of its slots are dealt again: how many."""
        self.living.remove(rank)
        again = np.concatenate([*self._since.pop(rank), self.planned.pop(rank, _NONE)])[done:]
        queue = self._queues.pop(rank)
        if self.living:
            self._deal(np.concatenate([again, queue]))
        return len(again)

    def commit(self) -> None:
        for rank, since in self._since.items():
            since.clear()
            self._rows_since[rank] = 0

    def left(self) -> Ids:
        """Slots of this epoch (and, after a loss, of earlier ones) that are not settled."""
        return np.sort(np.concatenate([*self.planned.values(), *self._queues.values()]))

    def reach(self, rank: int) -> tuple[int, int]:
        """The range of contents that this rank gets, as long as none is lost."""
        cuts = self._cuts()
        at = self.living.index(rank)
        return int(cuts[at]), int(cuts[at + 1])

    def pieces(self, ids: Ids) -> Iterator[tuple[int, Ids, Ids]]:
        """For each epoch: which, the numbers of the slots there, and their contents."""
        passes = ids // self._slots.per_pass
        for of_pass in np.unique(passes).tolist():
            numbers = ids[passes == of_pass] - of_pass * self._slots.per_pass
            yield of_pass, numbers, self._order(of_pass)[numbers]

    def _cuts(self) -> Ids:
        shares = np.cumsum(self._shares[self.living])
        cuts: Ids = np.rint(np.append(0.0, shares / shares[-1]) * self._slots.per_pass).astype(np.int64)
        return cuts

    def _cut(self, ids: Ids) -> None:
        contents = np.empty(len(ids), np.int64)
        for of_pass, _, found in self.pieces(ids):
            contents[ids // self._slots.per_pass == of_pass] = found
        owner = np.searchsorted(self._cuts(), contents, side="right") - 1
        self._queues = {rank: ids[owner == at] for at, rank in enumerate(self.living)}

    def _deal(self, ids: Ids) -> None:
        shares = np.cumsum(self._shares[self.living])
        pieces = np.split(ids, np.rint(shares / shares[-1] * len(ids)).astype(np.int64)[:-1])
        for rank, piece in zip(self.living, pieces, strict=True):
            self._queues[rank] = np.concatenate([self._queues[rank], piece])


class StepSlots(Shards):
    """The slots of an all-reduce among ranks: one queue for all of them."""

    def plan(self, room: int, most: int | None = None) -> Mapping[int, Ids]:
        """The next slot of every living rank, within the room."""
        if not len(self._queues[0]):
            self.of_pass += 1
            self._cut(_epoch(self._slots, self.of_pass))
        step, self._queues[0] = np.split(self._queues[0], [min(room, len(self.living))])
        self.planned = {rank: step[at : at + 1] for at, rank in enumerate(self.living)}
        return self.planned

    def named(self, slot: int) -> tuple[int, int]:
        return divmod(slot, self._slots.per_pass)

    def settle(self, inside: Collection[int]) -> list[LostRank]:
        """These were in the sum, the others are gone."""
        gone = [rank for rank in self.living if rank not in inside]
        self.living = [rank for rank in self.living if rank in inside]
        again = {rank: self.planned.get(rank, _NONE) for rank in gone}
        self._queues[0] = np.concatenate([*again.values(), self._queues[0]])
        self.planned = {}
        return [LostRank(rank, len(ids), 0, 0) for rank, ids in again.items()]

    def _cut(self, ids: Ids) -> None:
        self._queues = {0: ids}


def unseen(before: Sequence[int], now: Sequence[int], most: int) -> Ids:
    """Staleness: how many steps did not know of 0, 1, ... ``most`` or more steps of other ranks.

    Since the last mean each rank took ``before`` steps and then ``now``, all at the same pace.
    """
    found = np.zeros(most + 1, np.int64)
    for rank, count in enumerate(now):
        own = before[rank] + np.arange(count)
        others = (before[one] + now[one] for one in range(len(now)) if one != rank)
        missed = sum((np.minimum(own, steps) for steps in others), np.zeros(count, np.int64))
        found += np.bincount(np.minimum(missed, most), minlength=most + 1)
    return found


def _within(wanted: Sequence[int], room: int) -> list[int]:
    """As many as are wanted; if there is less room, each gets the same share of it."""
    total = sum(wanted)
    if total <= room:
        return list(wanted)
    ends = [round(room * end / total) for end in np.cumsum(wanted).tolist()]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _epoch(slots: Slots, of_pass: int) -> Ids:
    return np.arange(slots.per_pass, dtype=np.int64) + of_pass * slots.per_pass
