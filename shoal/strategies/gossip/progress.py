"""What workers that gossip have told of their work, and how much of it is new since it was last asked for.

A worker tells rounds and losses since its leg began, and times and bytes since it began itself: what is told twice, or late, adds
nothing. What a worker that is lost had told stays counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.data.batch import Ids
from shoal.strategies.gossip.controller import WorkerState
from shoal.wire.messages.gossip import GossipProgressReport, LegDone

KINDS = ("compute", "communicate", "wait")  # what time goes for


@dataclass(slots=True)
class NewProgress:
    """What is new."""

    steps: int = 0  # of any kind: that somebody says the same again is none
    slots: int = 0
    rows: int = 0
    loss: float = 0.0
    sent: int = 0
    received: int = 0
    spent: dict[str, float] = field(default_factory=dict)


class GossipProgress:
    """Of one run."""

    def __init__(self, rows: Callable[[Ids], int]) -> None:
        """``rows``: how many some slots have."""
        self._rows = rows
        self._fresh = NewProgress()
        self._moved: dict[str, list[int]] = {}  # bytes sent and received, and microseconds by kind, of each worker

    def fresh(self) -> NewProgress:
        """What was told since the last time."""
        found, self._fresh = self._fresh, NewProgress()
        return found

    def hear(self, name: str, one: WorkerState, said: GossipProgressReport | LegDone) -> None:
        """A word of this leg; ``one`` is what its worker had told of it before."""
        if isinstance(said, LegDone):
            rounds, rows, sent, received, *spent = (int(one) for one in (*said.along[:2], *said.along[3:]))
            loss = said.along[2]
        else:
            rounds, rows, loss = said.rounds, said.rows, said.loss
            sent, received, spent = said.sent, said.received, said.spent
        fresh = self._fresh
        fresh.steps += rounds > one.rounds or (isinstance(said, LegDone) and one.rest is None)
        one.lacks = [] if isinstance(said, LegDone) else said.lacks
        if rounds >= one.rounds:
            before, one.rounds = one.done, rounds
            done = self._rows(one.slots[before : one.done])
            one.rows += done
            loss *= one.rows / rows if rows else 0.0  # what it says may have a round more that is not done
            fresh.slots += one.done - before
            fresh.rows += done
            fresh.loss += loss - one.loss
            one.loss = loss
        moved = self._more(name, [sent, received, *spent])
        fresh.sent += moved[0]
        fresh.received += moved[1]
        for kind, more in zip(KINDS, moved[2:], strict=False):
            fresh.spent[kind] = fresh.spent.get(kind, 0.0) + more / 1e6

    def _more(self, name: str, now: list[int]) -> list[int]:
        """How much these figures have grown."""
        before = self._moved.setdefault(name, [0] * (2 + len(KINDS)))
        more = [max(0, new - old) for new, old in zip(now, before, strict=False)]
        before[: len(more)] = [old + new for old, new in zip(before, more, strict=False)]
        return more
