"""The controller of a gossip run: deals slots, tracks workers, collects their models.

    begin        the first leg has no slots: every worker shows its initial model
    next_leg     slots for every living worker, at most ``room``; ``LegPace`` says how long a leg is
    end_leg      all rest: what was done in this leg cannot be lost any more
    lose         a worker is gone: the others compute its unfinished slots from the next leg on

``GossipController`` is a node, which a loop or the simulator holds; ``Controller`` inside it talks
to the workers, ``GossipProgress`` adds up their reports. The run (``run``) evaluates and keeps
models between ``end_leg`` and ``next_leg``. Nothing here reads a clock or starts a process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from shoal import limits
from shoal.data.batch import Ids
from shoal.models.linear import Floats
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip.model import from_frames
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
KINDS = ("compute", "communicate", "wait")  # of time
LEG = {"sync": 1.0, "async": 4.0}  # seconds of a leg, about
SHARE = 20  # least length of a leg, in lengths of the pause before it
FASTER = 4  # most growth of the rounds from leg to leg
MEASURED = 0.05  # seconds: a shorter leg says nothing about speed
NEW = 0.5  # weight of the last leg in the speed of a worker
_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class WorkerState:
    """The state of one worker in this leg."""

    slots: Ids
    reported: bool = False  # it has reported in this leg
    rounds: int = 0
    rows: int = 0  # of the slots that are done
    loss: float = 0.0
    lacks: list[str] = field(default_factory=list)  # neighbours that it waits for
    rest: LegDone | None = None  # it is done with its slots
    slab: Floats | None = None  # in one row
    without: list[str] = field(default_factory=list)  # lost workers of which it must know

    @property
    def done(self) -> int:
        """Slots."""
        return min(self.rounds, len(self.slots))


class Controller:
    """Directs the workers in the current leg; the run decides on the next one.

    It sends a leg to each worker until it reports in it, always the same: the mixing weights must
    be the same for all, or means would not keep the sum of the models. It tells the others of a
    lost worker until they rest. When the last is done it asks all for their models (``Show``), so
    these are of one moment. A report that comes twice changes nothing.
    """

    name = HOME

    def __init__(self, names: list[str], addresses: Mapping[str, str], timing: TimingSettings = DEFAULT) -> None:
        self._names, self._addresses = names, addresses
        self._again = timing.resend_first // 2
        self.leg = 0  # its number
        self.rounds = 0
        self.states: dict[str, WorkerState] = {}  # of the living
        self._graph: Graph | None = None  # of this leg, with those that were lost since it began,
        self._left: Graph | None = None  # and without them
        self._apart_then = False  # ``was_apart`` when the leg began
        # The living workers were not connected at some time. From then on weights of push-sum mean
        # nothing: where they were only given away they went to 0.
        self.was_apart = False
        self._mixing = np.zeros((0, 0))
        self.on_report: Callable[[str, GossipProgressReport | LegDone], None] = lambda name, said: None
        """Called with each new report, before it is noted."""

    @property
    def resting(self) -> bool:
        """All workers rest, and their models are here."""
        return all(one.slab is not None for one in self.states.values())

    def set_off(self, now: int, graph: Graph, slots: Mapping[str, Ids]) -> list[Effect]:
        """Start the next leg, with these slots for each living worker."""
        self.leg = self.leg + 1
        self._graph, self._mixing = graph, graph.mixing()
        self._look_at(graph)
        self._apart_then = self.was_apart
        self.rounds = max((len(ids) for ids in slots.values()), default=0)
        self.states = {name: WorkerState(ids) for name, ids in slots.items()}
        return [*self._legs(self.states), Wake(now + self._again)]

    def lose(self, now: int, name: str) -> list[Effect]:
        """A worker is gone: until the next leg its neighbours keep its weight themselves."""
        self.states.pop(name, None)
        if self._left is not None:
            self._look_at(self._left.without(self._names.index(name)))
        for one in self.states.values():
            one.without.append(name)
        return [*self._withouts(), *self._shows(), Wake(now + self._again)]

    def dismiss(self) -> list[Effect]:
        """It was the last leg."""
        return [Send(name, LegReceived(self.leg, over=True)) for name in self.states]

    def handle(self, now: int, event: Event) -> list[Effect]:
        match event:
            case Received(sender, GossipProgressReport() as along):
                return self._along(sender, along)
            case Received(sender, LegDone() as rest, arrays):
                return self._rest(sender, rest, from_frames(arrays) if arrays else None)
            case Tick():
                silent = [name for name, one in self.states.items() if not one.reported]
                return [*self._legs(silent), *self._withouts(), *self._shows(), Wake(now + self._again)]
        return []

    # ------------------------------------------------------------ reports

    def _along(self, sender: str, along: GossipProgressReport) -> list[Effect]:
        one = self.states.get(sender)
        if one is not None and along.leg == self.leg:
            one.reported = True
            if one.rest is None:
                self.on_report(sender, along)
        elif one is not None and along.leg == 0 and not one.reported:
            return self._legs([sender])  # it was not connected when the leg was sent
        return []

    def _rest(self, sender: str, rest: LegDone, slab: Floats | None) -> list[Effect]:
        one = self.states.get(sender)
        if one is None or rest.leg != self.leg:
            return [Send(sender, LegReceived(rest.leg))]
        if one.slab is None:
            one.reported = True
            self.on_report(sender, rest)
            was, one.rest, one.slab = one.rest, rest, slab
            if was is None and slab is None:
                return self._shows()
        return [] if slab is None else [Send(sender, LegReceived(rest.leg))]

    # ------------------------------------------------------------ messages to workers

    def _legs(self, names: Mapping[str, WorkerState] | list[str]) -> list[Effect]:
        found: list[Effect] = []
        assert self._graph is not None
        rides = 0 if not self._graph.directed else 2 if self._apart_then else 1
        for name in names:
            own, hears, tells = self._links(name)
            leg = Leg(self.leg, self.rounds, own, hears, tells, rides)
            found.append(Send(name, leg, (self.states[name].slots.astype(np.uint64),)))
        return found

    def _withouts(self) -> list[Effect]:
        states = self.states.items()
        return [Send(name, Without(self.leg, gone)) for name, one in states if one.slab is None for gone in one.without]

    def _shows(self) -> list[Effect]:
        """Ask for the models when all are done."""
        if any(one.rest is None for one in self.states.values()):
            return []
        return [Send(name, Show(self.leg)) for name, one in self.states.items() if one.slab is None]

    def _look_at(self, graph: Graph) -> None:
        self._left = graph
        self.was_apart |= len(graph.parts()) > 1

    def _links(self, name: str) -> tuple[float, list[GossipLink], list[GossipLink]]:
        """The own weight of a worker, its in-neighbours and its out-neighbours."""
        graph, names, mixing = self._graph, self._names, self._mixing
        assert graph is not None
        me = names.index(name)
        hears = [GossipLink(names[i], self._addresses[names[i]], float(mixing[me, i])) for i in graph.hears(me)]
        tells = [GossipLink(names[i], self._addresses[names[i]], float(mixing[i, me])) for i in graph.tells(me)]
        return float(mixing[me, me]), hears, tells


@dataclass(slots=True)
class NewProgress:
    """What workers reported since the last call."""

    steps: int = 0  # of any kind; 0 if reports only repeat
    slots: int = 0
    rows: int = 0
    loss: float = 0.0
    sent: int = 0
    received: int = 0
    spent: dict[str, float] = field(default_factory=dict)


class GossipProgress:
    """Adds up reports, which count from the start of a leg, or of a worker."""

    def __init__(self, rows: Callable[[Ids], int]) -> None:
        """``rows``: the number of rows in some slots."""
        self._rows = rows
        self._fresh = NewProgress()
        self._moved: dict[str, list[int]] = {}  # bytes sent, received; microseconds

    def fresh(self) -> NewProgress:
        """The reports since the last call."""
        found, self._fresh = self._fresh, NewProgress()
        return found

    def add(self, name: str, one: WorkerState, said: GossipProgressReport | LegDone) -> None:
        """Add a report in this leg to the state ``one`` of its worker."""
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
            loss *= one.rows / rows if rows else 0.0  # it may count a round that is not done
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


class LegPace:
    """How long the next leg is, and who gets how much of it.

    A leg takes about a second, so that a run can be stopped and kept in between, and many times as
    long as the pause before it. In async mode only the end of a leg waits for slow workers: so legs
    are longer, and each worker gets as many slots as it does in the same time.
    """

    def __init__(self, mode: Literal["sync", "async"]) -> None:
        self._mode: Literal["sync", "async"] = mode
        self._rounds = 1
        self._began = self._ended = 0.0
        self._done: dict[str, float] = {}  # when each was done in this leg
        self._speed: dict[str, float] = {}  # slots in a second

    def begin(self, now: float) -> None:
        self._began, self._done = now, {}

    def is_done(self, name: str, now: float) -> None:
        """This worker is done with the leg."""
        self._done.setdefault(name, now)

    def end(self, now: float, slots: Mapping[str, int]) -> None:
        """End the leg; each worker has done so many slots."""
        self._ended = now
        for name, count in slots.items():
            took = self._done.get(name, now) - self._began
            if count and took >= MEASURED:
                before = self._speed.get(name, count / took)
                self._speed[name] = (1 - NEW) * before + NEW * count / took

    def rounds(self, now: float, last: int, left: float | None) -> int:
        """Rounds of the next leg; the last had so many. ``left``: seconds until the run stops."""
        if last:
            wanted = max(LEG[self._mode], SHARE * (now - self._ended))
            wanted = wanted if left is None else min(wanted, max(0.0, left))
            took = max(self._ended - self._began, 1e-9)
            self._rounds = max(1, min(int(last * wanted / took), FASTER * self._rounds))
        return self._rounds

    def shares(self, names: list[str]) -> list[float] | None:
        """How much each worker gets; None if all get the same, or not all speeds are known."""
        if self._mode == "sync" or any(name not in self._speed for name in names):
            return None
        return [self._speed[name] for name in names]


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """What follows from the loss of a worker."""

    again: int  # slots that are dealt again
    apart: bool  # the living are in more pieces than before
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
        """``names``: in the order of the graph. ``by_speed``: fast workers may get more slots."""
        self.graph, self.parts = graph, parts
        self.home = Controller(names, addresses, timing)
        self.home.on_report = self._take
        self.mixed = 0  # rounds of the legs that are over
        self.counted = [0, 0]  # slots and rows that were counted in this leg
        self.on_ready: Callable[[str], None] = lambda name: None
        """Called once for each worker, when it is done with the first leg."""
        self.on_failed: Callable[[str, str], None] = lambda name, why: None
        """Called when a worker reports an error: end it, and call ``lose``."""
        self._names, self._by_speed = names, by_speed
        self._pace, self._progress = LegPace(mode), GossipProgress(parts.rows)
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
        while room > 0:  # a leg may span epochs
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
        """End the leg: all workers rest."""
        assert self.resting
        self._pace.end(now / limits.SECOND, {name: one.done for name, one in self.home.states.items()})
        self.mixed += self.home.rounds
        self.parts.commit()

    def dismiss(self) -> list[Effect]:
        """It was the last leg."""
        return self.home.dismiss()

    # ------------------------------------------------------------ what workers have done

    def fresh(self) -> NewProgress:
        """What workers reported since the last time."""
        found = self._progress.fresh()
        self.counted = [self.counted[0] + found.slots, self.counted[1] + found.rows]
        return found

    def exchanges(self) -> tuple[int, float]:
        """After a leg: its meetings, and how much at most was newly lost with neighbours."""
        rests = {name: one.rest for name, one in self.home.states.items() if one.rest is not None}
        lost = sum(rest.lost - self._lost.get(name, 0.0) for name, rest in rests.items())
        self._lost |= {name: rest.lost for name, rest in rests.items()}
        return sum(rest.met for rest in rests.values()), lost

    def lose(self, now: int, name: str) -> WorkerLoss | None:
        """This worker is gone; None if that was known."""
        if name not in self.living:
            return None
        number, state, before = self._names.index(name), self.home.states.get(name), self.graph
        again = self.parts.lose(number, 0 if state is None else state.done)
        self.graph = before.without(number)
        apart = bool(self.graph.living) and len(self.graph.parts()) > len(before.parts())
        return WorkerLoss(again, apart, self.home.lose(now, name))

    def _take(self, name: str, said: GossipProgressReport | LegDone) -> None:
        one = self.home.states[name]
        if isinstance(said, LegDone):
            if said.error:
                self.on_failed(name, said.error)
                return
            if self.home.leg == 1 and one.rest is None:
                self.on_ready(name)
        self._progress.add(name, one, said)
        # Rounds in which only others have slots do not count for its speed: a worker with few slots
        # would seem slow, and get few again.
        if isinstance(said, LegDone) or 0 < len(one.slots) < one.rounds:
            self._pace.is_done(name, self._now / limits.SECOND)
