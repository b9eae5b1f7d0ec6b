"""The node that workers who gossip call home: it sends them off on a leg, hears how far they are, and has their models when all rest.

A leg is told to each until something is heard of it from them, in the same words, whoever is lost meanwhile: the weights of a leg are
the same for all, or means would not keep the sum of the models. That somebody is gone is told to the others until they rest. When the
last has said that it is done everybody is asked for its model (``Show``): so they are of one moment, also where those who are done still
take means with those who are not. What is heard twice changes nothing, and whoever says its model again and again is told that it was
heard.

It computes nothing and decides nothing: whoever holds it (``gossip_controller``) says what comes next. It reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.data.batch import Ids
from shoal.models.linear import Floats
from shoal.strategies.gossip.model import whole
from shoal.strategies.gossip.topology import Graph
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Effect, Event, Received, Send, Tick, Wake
from shoal.wire.messages.gossip import (
    GossipLink,
    GossipProgressReport,
    Leg,
    LegDone,
    LegReceived,
    Show,
    Without,
)

HOME = "home"  # its name


@dataclass(slots=True)
class WorkerState:
    """What is known of one worker in this leg."""

    slots: Ids
    heard: bool = False  # it has said something of this leg
    rounds: int = 0
    rows: int = 0  # of the slots that are done
    loss: float = 0.0
    lacks: list[str] = field(default_factory=list)  # neighbours that it waits for
    rest: LegDone | None = None  # it is done with its slots
    slab: Floats | None = None  # in one row
    without: list[str] = field(default_factory=list)  # those that it must hear are gone

    @property
    def done(self) -> int:
        """Slots."""
        return min(self.rounds, len(self.slots))


class Controller:
    """Its books of the leg that is under way."""

    name = HOME

    def __init__(self, names: list[str], addresses: Mapping[str, str], timing: TimingSettings = DEFAULT) -> None:
        self._names, self._addresses = names, addresses
        self._again = timing.resend_first // 2
        self.leg = 0  # its number
        self.rounds = 0
        self.told: dict[str, WorkerState] = {}  # of the living
        self._graph: Graph | None = None  # of this leg, with those that were lost since it began,
        self._left: Graph | None = None  # and without them
        self._apart_then = False  # when the leg began: a leg is told in the same words
        self.was_apart = False
        """At some time not all living workers heard of each other: weights of push-sum mean nothing from then on, since they went
        to nothing where they were only given away. They do not come back when those who are left are connected again."""
        self._mixing = np.zeros((0, 0))
        self.heard: Callable[[str, GossipProgressReport | LegDone], None] = lambda name, said: None
        """Told of all that is new, before it is noted."""

    @property
    def resting(self) -> bool:
        """Everybody does, and has shown its model."""
        return all(one.slab is not None for one in self.told.values())

    def set_off(self, now: int, graph: Graph, slots: Mapping[str, Ids]) -> list[Effect]:
        """The next leg: these slots for each of the living."""
        self.leg = self.leg + 1
        self._graph, self._mixing = graph, graph.mixing()
        self._look_at(graph)
        self._apart_then = self.was_apart
        self.rounds = max((len(ids) for ids in slots.values()), default=0)
        self.told = {name: WorkerState(ids) for name, ids in slots.items()}
        return [*self._legs(self.told), Wake(now + self._again)]

    def lose(self, now: int, name: str) -> list[Effect]:
        """It is gone: until the next leg its weight is that of those who heard it."""
        self.told.pop(name, None)
        if self._left is not None:
            self._look_at(self._left.without(self._names.index(name)))
        for one in self.told.values():
            one.without.append(name)
        return [*self._withouts(), *self._shows(), Wake(now + self._again)]

    def dismiss(self) -> list[Effect]:
        """It was the last leg."""
        return [Send(name, LegReceived(self.leg, over=True)) for name in self.told]

    def handle(self, now: int, event: Event) -> list[Effect]:
        match event:
            case Received(sender, GossipProgressReport() as along):
                return self._along(sender, along)
            case Received(sender, LegDone() as rest, arrays):
                return self._rest(sender, rest, whole(arrays) if arrays else None)
            case Tick():
                unheard = [name for name, one in self.told.items() if not one.heard]
                return [*self._legs(unheard), *self._withouts(), *self._shows(), Wake(now + self._again)]
        return []

    # ------------------------------------------------------------ what they say

    def _along(self, sender: str, along: GossipProgressReport) -> list[Effect]:
        one = self.told.get(sender)
        if one is not None and along.leg == self.leg:
            one.heard = True
            if one.rest is None:
                self.heard(sender, along)
        elif one is not None and along.leg == 0 and not one.heard:
            return self._legs([sender])  # what was sent before it spoke had no way to it
        return []

    def _rest(self, sender: str, rest: LegDone, slab: Floats | None) -> list[Effect]:
        one = self.told.get(sender)
        if one is None or rest.leg != self.leg:
            return [Send(sender, LegReceived(rest.leg))]
        if one.slab is None:
            one.heard = True
            self.heard(sender, rest)
            was, one.rest, one.slab = one.rest, rest, slab
            if was is None and slab is None:
                return self._shows()
        return [] if slab is None else [Send(sender, LegReceived(rest.leg))]

    # ------------------------------------------------------------ what they are told

    def _legs(self, names: Mapping[str, WorkerState] | list[str]) -> list[Effect]:
        found: list[Effect] = []
        assert self._graph is not None
        rides = 0 if not self._graph.directed else 2 if self._apart_then else 1
        for name in names:
            own, hears, tells = self._links(name)
            leg = Leg(self.leg, self.rounds, own, hears, tells, rides)
            found.append(Send(name, leg, (self.told[name].slots.astype(np.uint64),)))
        return found

    def _withouts(self) -> list[Effect]:
        told = self.told.items()
        return [Send(name, Without(self.leg, gone)) for name, one in told if one.slab is None for gone in one.without]

    def _shows(self) -> list[Effect]:
        """All are done: let us see."""
        if any(one.rest is None for one in self.told.values()):
            return []
        return [Send(name, Show(self.leg)) for name, one in self.told.items() if one.slab is None]

    def _look_at(self, graph: Graph) -> None:
        self._left = graph
        self.was_apart |= len(graph.parts()) > 1

    def _links(self, name: str) -> tuple[float, list[GossipLink], list[GossipLink]]:
        """Its own weight in a mean, whom it hears and whom it tells."""
        graph, names, mixing = self._graph, self._names, self._mixing
        assert graph is not None
        me = names.index(name)
        hears = [GossipLink(names[i], self._addresses[names[i]], float(mixing[me, i])) for i in graph.hears(me)]
        tells = [GossipLink(names[i], self._addresses[names[i]], float(mixing[i, me])) for i in graph.tells(me)]
        return float(mixing[me, me]), hears, tells
