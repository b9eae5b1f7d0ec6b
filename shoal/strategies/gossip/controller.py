"""The controller of a gossip run: assigns slots, tracks workers, collects their models.

    begin        the first leg has no slots: every worker shows its initial model
    next_leg     slots for every living worker, at most ``room``; ``LegPace`` says how long a leg is
    end_leg      all rest: what was done in this leg cannot be lost any more
    lose         a worker is gone: the others compute its unfinished slots from the next leg on

Nothing here reads a clock or starts a process.
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
from shoal.strategies.gossip.topology import Graph, Matrix
from shoal.strategies.gossip.worker import HOME
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Effect, Event, Received, Send, Tick, Wake
from shoal.wire.messages import gossip as g

KINDS = ("compute", "communicate", "wait")  # of time
LEG = {"sync": 1.0, "async": 4.0}  # seconds of a leg, about
SHARE = 20  # least length of a leg, in lengths of the pause before it
FASTER = 4  # most growth of the rounds from leg to leg
MEASURED = 0.05  # seconds: a shorter leg says nothing about speed
NEW = 0.5  # weight of the last leg in the speed of a worker
_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class WorkerState:
    slots: Ids
    leg: Send  # repeated until it reports
    reported: bool = False  # it has reported in this leg
    rounds: int = 0
    rows: int = 0  # of the slots that are done
    loss: float = 0.0
    waits_for: list[str] = field(default_factory=list)  # neighbours that it waits for
    result: g.LegDone | None = None  # it is done with its slots
    slab: Floats | None = None  # in one row

    @property
    def done(self) -> int:
        return min(self.rounds, len(self.slots))


@dataclass(slots=True)
class NewProgress:
    steps: int = 0  # of any kind; 0 if reports only repeat
    slots: int = 0
    rows: int = 0
    loss: float = 0.0
    sent: int = 0
    received: int = 0
    spent: dict[str, float] = field(default_factory=dict)


class LegPace:
    """How long the next leg is, and who gets how much of it.

    In async mode only the end of a leg waits for slow workers: so legs are longer, and each worker
    gets as many slots as it does in the same time.
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
        self._done.setdefault(name, now)

    def end(self, now: float, slots: Mapping[str, int]) -> None:
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


class GossipController:
    """Directs the workers of a run, leg by leg.

    Each worker is sent its leg until it reports in it, always the same: the mixing weights must
    be the same for all, or means would not keep the sum of the models. When the last is done all
    are asked for their models (``Show``), so these are of one moment. A report that comes twice
    changes nothing.
    """

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
        self._names, self._addresses, self._by_speed = names, addresses, by_speed
        self._resend_after, self._pace = timing.resend_first // 2, LegPace(mode)
        self.leg = self.rounds = 0  # the number of the leg, and its rounds
        self.mixed = 0  # rounds of the legs that are over
        self.states: dict[str, WorkerState] = {}  # of the living
        self.counted = [0, 0]  # slots and rows that were counted in this leg
        # The living workers were not connected at some time. From then on weights of push-sum mean
        # nothing: where they were only given away they went to 0.
        self.was_apart = False
        self.on_ready: Callable[[str], None] = lambda name: None
        """Called once for each worker, when it is done with the first leg."""
        self.on_failed: Callable[[str, str], None] = lambda name, why: None
        """Called when a worker reports an error: end it, and call ``lose``."""
        self._lost_in_leg: list[str] = []  # lost in this leg
        self._new = NewProgress()
        self._moved: dict[str, list[int]] = {}  # bytes sent, received; microseconds
        self._lost: dict[str, float] = {}  # what each says went with lost neighbours, in its life
        self._now = 0

    @property
    def living(self) -> list[str]:
        return [self._names[number] for number in self.graph.living]

    @property
    def resting(self) -> bool:
        return all(one.slab is not None for one in self.states.values())

    # ------------------------------------------------------------ legs

    def begin(self, now: int) -> list[Effect]:
        return self.set_off(now, dict.fromkeys(self.living, _NOTHING))

    def next_leg(self, now: int, room: int, left: float | None) -> list[Effect]:
        """At most ``room`` slots, and no longer than ``left`` seconds."""
        parts, living = self.parts, self.living
        room = min(room, self._pace.rounds(now / limits.SECOND, self.rounds, left) * len(living))
        if self._by_speed and (shares := self._pace.shares(living)) is not None:
            parts.share(shares)
        assigned: dict[int, list[Ids]] = {rank: [_NOTHING] for rank in parts.living}
        while room > 0:  # a leg may span epochs
            for rank, ids in parts.plan(room).items():
                assigned[rank].append(ids)
                room -= len(ids)
            parts.settle(parts.living)
        self.counted = [0, 0]
        self._pace.begin(now / limits.SECOND)
        return self.set_off(now, {self._names[rank]: np.concatenate(ids) for rank, ids in assigned.items()})

    def set_off(self, now: int, slots: Mapping[str, Ids]) -> list[Effect]:
        self.leg, self._lost_in_leg = self.leg + 1, []
        self.rounds = max((len(ids) for ids in slots.values()), default=0)
        self.was_apart |= len(self.graph.parts) > 1
        mixing = self.graph.mixing()
        self.states = {name: WorkerState(ids, self._leg(name, ids, mixing)) for name, ids in slots.items()}
        return [*(one.leg for one in self.states.values()), Wake(now + self._resend_after)]

    def _leg(self, name: str, slots: Ids, mixing: Matrix) -> Send:
        graph, names, me = self.graph, self._names, self._names.index(name)
        hears = [g.GossipLink(names[i], self._addresses[names[i]], float(mixing[me, i])) for i in graph.senders[me]]
        tells = [g.GossipLink(names[i], self._addresses[names[i]], float(mixing[i, me])) for i in graph.receivers[me]]
        push_sum = 0 if not graph.directed else 2 if self.was_apart else 1
        leg = g.Leg(self.leg, self.rounds, float(mixing[me, me]), hears, tells, push_sum)
        return Send(name, leg, (slots.astype(np.uint64),))

    def end_leg(self, now: int) -> None:
        assert self.resting
        self._pace.end(now / limits.SECOND, {name: one.done for name, one in self.states.items()})
        self.mixed += self.rounds
        self.parts.commit()

    def lose(self, now: int, name: str) -> tuple[int, bool, list[Effect]] | None:
        """This worker is gone; None if that was known.

        Returns how many slots are assigned again, and whether the living fell apart. Until the next
        leg its neighbours keep its weight themselves.
        """
        if name not in self.living:
            return None
        number, state, before = self._names.index(name), self.states.pop(name, None), self.graph
        again = self.parts.lose(number, 0 if state is None else state.done)
        self.graph = before.without(number)
        apart = len(self.graph.parts)
        self.was_apart |= apart > 1
        self._lost_in_leg.append(name)
        return again, bool(self.graph.living) and apart > len(before.parts), self._reminders(now)

    def dismiss(self) -> list[Effect]:
        return [Send(name, g.LegReceived(self.leg, over=True)) for name in self.states]

    # ------------------------------------------------------------ messages

    def handle(self, now: int, event: Event) -> list[Effect]:
        self._now = now
        match event:
            case Received(sender, g.GossipProgressReport() as report):
                return self._on_progress(sender, report)
            case Received(sender, g.LegDone() as result, arrays):
                return self._on_leg_done(sender, result, from_frames(arrays) if arrays else None)
            case Tick():
                return [*(one.leg for one in self.states.values() if not one.reported), *self._reminders(now)]
        return []

    def _on_progress(self, sender: str, report: g.GossipProgressReport) -> list[Effect]:
        one = self.states.get(sender)
        if one is not None and report.leg == self.leg:
            one.reported = True
            if one.result is None:
                self._count(sender, one, report)
        elif one is not None and report.leg == 0 and not one.reported:
            return [one.leg]  # it was not connected when the leg was sent
        return []

    def _on_leg_done(self, sender: str, result: g.LegDone, slab: Floats | None) -> list[Effect]:
        one = self.states.get(sender)
        if one is None or result.leg != self.leg:
            return [Send(sender, g.LegReceived(result.leg))]
        if one.slab is None:
            one.reported = True
            if result.error:
                self.on_failed(sender, result.error)
            else:
                if self.leg == 1 and one.result is None:
                    self.on_ready(sender)
                self._count_result(sender, one, result)
            was, one.result, one.slab = one.result, result, slab
            if was is None and slab is None:
                return self._shows()
        return [] if slab is None else [Send(sender, g.LegReceived(result.leg))]

    def _reminders(self, now: int) -> list[Effect]:
        """Tell those that do not rest of all losses, and ask for models if all are done."""
        working = [name for name, one in self.states.items() if one.slab is None]
        losses = [Send(name, g.Without(self.leg, gone)) for name in working for gone in self._lost_in_leg]
        return [*losses, *self._shows(), Wake(now + self._resend_after)]

    def _shows(self) -> list[Effect]:
        if any(one.result is None for one in self.states.values()):
            return []
        return [Send(name, g.Show(self.leg)) for name, one in self.states.items() if one.slab is None]

    # ------------------------------------------------------------ what workers have done

    def take_progress(self) -> NewProgress:
        found, self._new = self._new, NewProgress()
        self.counted = [self.counted[0] + found.slots, self.counted[1] + found.rows]
        return found

    def exchanges(self) -> tuple[int, float]:
        """After a leg: its meetings, and how much at most was newly lost with neighbours."""
        results = {name: one.result for name, one in self.states.items() if one.result is not None}
        lost = sum(result.lost - self._lost.get(name, 0.0) for name, result in results.items())
        self._lost |= {name: result.lost for name, result in results.items()}
        return sum(result.met for result in results.values()), lost

    def _count_result(self, name: str, one: WorkerState, result: g.LegDone) -> None:
        rounds, rows, loss, sent, received, *spent = result.along
        self._new.steps += one.result is None
        report = g.GossipProgressReport(
            result.leg, int(rounds), int(rows), loss, [int(one) for one in spent], int(sent), int(received)
        )
        self._count(name, one, report)
        self._pace.is_done(name, self._now / limits.SECOND)

    def _count(self, name: str, one: WorkerState, report: g.GossipProgressReport) -> None:
        """Add what is new in a report, which counts from the start of the leg, or of the worker."""
        new = self._new
        new.steps += report.rounds > one.rounds
        one.waits_for = report.lacks
        if report.rounds >= one.rounds:
            before, one.rounds = one.done, report.rounds
            rows = self.parts.rows(one.slots[before : one.done])
            one.rows += rows
            # It may count a round that is not done.
            loss = report.loss * one.rows / report.rows if report.rows else 0.0
            new.slots += one.done - before
            new.rows += rows
            new.loss += loss - one.loss
            one.loss = loss
        now = [report.sent, report.received, *report.spent]
        old = self._moved.setdefault(name, [0] * (2 + len(KINDS)))
        sent, received, *spent = (max(0, new - known) for new, known in zip(now, old, strict=False))
        self._moved[name] = [*map(max, now, old), *old[len(now) :]]
        new.sent += sent
        new.received += received
        for kind, more in zip(KINDS, spent, strict=False):
            new.spent[kind] = new.spent.get(kind, 0.0) + more / 1e6
