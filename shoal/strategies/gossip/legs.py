"""Runs the legs of a gossip run: deals slots to workers, counts what they report, and goes on without those that are lost.

    begin        the first leg has no slots: every worker shows the model that it starts with
    next_leg     slots for every living worker, at most as many as there is room for (``LegPace`` says how long a leg is)
    end_leg      everybody rests: what was done in this leg cannot be lost any more
    lose         a worker is gone: its slots that are not done go to the others from the next leg on

It is a node: ``Controller`` inside it speaks to the workers, and a loop (or the simulator) holds it. Judging and keeping models is done by
whoever holds it (``launch.gossip``), between ``end_leg`` and ``next_leg``. It reads no clock and starts no process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shoal import limits
from shoal.data.batch import Ids
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip.controller import HOME, Controller
from shoal.strategies.gossip.pacing import LegPace
from shoal.strategies.gossip.progress import GossipProgress, NewProgress
from shoal.strategies.gossip.topology import Graph
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Effect, Event
from shoal.wire.messages.gossip import GossipProgressReport, LegDone

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """What follows from the loss of a worker."""

    again: int  # slots that others do again
    apart: bool  # those who are left are in more pieces than before
    effects: list[Effect]


class GossipController:
    """The legs of one run."""

    name = HOME

    def __init__(
        self,
        names: list[str],
        addresses: Mapping[str, str],
        graph: Graph,
        parts: Shards,
        mode: Literal["sync", "async"],
        by_speed: bool,
        timing: TimingSettings = DEFAULT,
    ) -> None:
        """``names`` and ``addresses`` of the workers, by their numbers in the graph. ``by_speed``: fast ones may get more slots."""
        self.graph, self.parts = graph, parts
        self.home = Controller(names, addresses, timing)
        self.home.heard = self._heard
        self.mixed = 0  # rounds of the legs that are over
        self.counted = [0, 0]  # slots and rows that were counted in this leg
        self.on_ready: Callable[[str], None] = lambda name: None
        """Called once for each worker, when it is done with the first leg."""
        self.on_failed: Callable[[str, str], None] = lambda name, why: None
        """Called when a worker says that it cannot go on. Whoever holds this ends it and calls ``lose``."""
        self._names, self._by_speed = names, by_speed
        self._pace, self._tally = LegPace(mode), GossipProgress(parts.rows)
        self._lost: dict[str, float] = {}  # what each says went with lost neighbours, in its life
        self._now = 0

    @property
    def living(self) -> list[str]:
        return [self._names[number] for number in self.graph.living]

    @property
    def resting(self) -> bool:
        """Every living worker is done with the leg, and its model is here."""
        return self.home.resting

    def handle(self, now: int, event: Event) -> list[Effect]:
        self._now = now
        return self.home.handle(now, event)

    # ------------------------------------------------------------ legs

    def begin(self, now: int) -> list[Effect]:
        """The first leg."""
        return self.home.set_off(now, self.graph, dict.fromkeys(self.living, _NOTHING))

    def next_leg(self, now: int, room: int, left: float | None) -> list[Effect]:
        """At most ``room`` slots, and no longer than ``left`` seconds."""
        parts, living = self.parts, self.living
        rounds = self._pace.rounds(now / limits.SECOND, self.home.rounds, left)
        room = min(room, rounds * len(living))
        if self._by_speed and (shares := self._pace.shares(living)) is not None:
            parts.share(shares)
        dealt: dict[int, list[Ids]] = {rank: [_NOTHING] for rank in parts.living}
        while room > 0:  # a leg may have more than one pass
            for rank, ids in parts.plan(room).items():
                dealt[rank].append(ids)
                room -= len(ids)
            parts.settle(parts.living)
        self.counted = [0, 0]
        self._pace.begin(now / limits.SECOND)
        return self.home.set_off(
            now, self.graph, {self._names[rank]: np.concatenate(ids) for rank, ids in dealt.items()}
        )

    def end_leg(self, now: int) -> None:
        """Everybody rests."""
        assert self.resting
        self._pace.end(now / limits.SECOND, {name: one.done for name, one in self.home.told.items()})
        self.mixed += self.home.rounds
        self.parts.fed()

    def dismiss(self) -> list[Effect]:
        """It was the last leg."""
        return self.home.dismiss()

    # ------------------------------------------------------------ what workers have done

    def fresh(self) -> NewProgress:
        """What workers reported since the last time."""
        found = self._tally.fresh()
        self.counted = [self.counted[0] + found.slots, self.counted[1] + found.rows]
        return found

    def exchanges(self) -> tuple[int, float]:
        """When a leg is over: its meetings, and at most how much newly went with lost neighbours (P12)."""
        rests = {name: one.rest for name, one in self.home.told.items() if one.rest is not None}
        lost = sum(rest.lost - self._lost.get(name, 0.0) for name, rest in rests.items())
        self._lost |= {name: rest.lost for name, rest in rests.items()}
        return sum(rest.met for rest in rests.values()), lost

    def lose(self, now: int, name: str) -> WorkerLoss | None:
        """This worker is gone; None if that was known."""
        if name not in self.living:
            return None
        number, told, before = self._names.index(name), self.home.told.get(name), self.graph
        again = self.parts.lose(number, 0 if told is None else told.done)
        self.graph = before.without(number)
        apart = bool(self.graph.living) and len(self.graph.parts()) > len(before.parts())
        return WorkerLoss(again, apart, self.home.lose(now, name))

    def _heard(self, name: str, said: GossipProgressReport | LegDone) -> None:
        one = self.home.told[name]
        if isinstance(said, LegDone):
            if said.error:
                self.on_failed(name, said.error)
                return
            if self.home.leg == 1 and one.rest is None:
                self.on_ready(name)
        self._tally.hear(name, one, said)
        # The rounds in which only others have slots are not held against it: else who was dealt little seems slow, is dealt
        # little again, and the others have the more to do.
        if isinstance(said, LegDone) or 0 < len(one.slots) < one.rounds:
            self._pace.is_done(name, self._now / limits.SECOND)
