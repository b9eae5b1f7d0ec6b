"""Watches a simulated training run while it goes on.

P4 staleness    bounded: what a server answers at clock c has the steps up to c - max_delay of every
                worker that it knows, that is a member and not parked; such a worker has sent them
P11 delay       an automatic delay grows where workers wait too much, shrinks where they hardly
                wait, and stays within its bounds
I1, I3, I4      a client reads the count of all slots: none is counted twice at any moment; what the
                scheduler knew when a pull began is in it; what was read stays, until a rollback

``PartsWatch`` checks nothing: it records who pushed which slot of a part that changes its holder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from shoal.errors import ShoalError
from shoal.events import Delayed, RunEvent
from shoal.keys import Values
from shoal.limits import MILLISECOND
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.strategy import TALLY, Slot
from shoal.nodes.trainer import SlotStream
from shoal.nodes.worker import Worker
from shoal.schedule import stragglers
from shoal.simulation.reference import BlocksBegun, BlockTurn, PartHolders
from shoal.simulation.scenarios import Violation
from shoal.simulation.training_plan import TrainingPlan
from shoal.simulation.world import World
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.strategies.block_proximal import algorithm
from shoal.strategies.block_proximal.algorithm import BlockProximal, HeldPart
from shoal.strategies.block_proximal.order import BlockOrder
from shoal.strategies.parameter_server.algorithm import is_newer
from shoal.wire import messages as m


@dataclass(slots=True)
class _PaceWatch:
    """One incarnation of a worker, by what it sent."""

    name: str
    spell: int = 0
    parked: bool = True
    sent: int = 0  # the highest step of this spell
    known_to: set[str] = field(default_factory=set)  # servers that answered a push of this spell


class StalenessWatch:
    """Watches the staleness of a run with this bound on delay; None: unbounded."""

    def __init__(self, world: World, max_delay: int | None) -> None:
        self._world, self._max_delay = world, max_delay
        self.violations: list[Violation] = []
        self.checked = 0
        self._paces: dict[int, _PaceWatch] = {}
        # of a pull: clock, incarnation
        self._clocks: dict[tuple[str, str, int], tuple[int, int]] = {}
        self._steps: dict[tuple[str, str, int], int] = {}  # of a push: whose it is
        if max_delay is not None:
            world.watch(self._sent, m.Push, m.Pull, m.Park, m.Values, m.Counted)

    def _sent(self, sender: str, to: str, message: m.Message) -> None:
        match message:
            case m.Push() if message.step:
                self._pushed(sender, to, message)
            case m.Pull(request, incarnation=asker, clock=clock, enter=False) if clock >= 0:
                self._clocks[sender, to, request] = (clock, asker)  # a new worker does not wait
            case m.Park(incarnation=one, spell=spell) if one in self._paces:
                if spell >= self._paces[one].spell:
                    self._paces[one].spell, self._paces[one].parked = spell, True
            case m.Counted(request):
                if (whose := self._steps.pop((to, sender, request), None)) is not None:
                    self._paces[whose].known_to.add(sender)
            case m.Values():
                self._answered(sender, to, message)

    def _pace(self, name: str, incarnation: int, spell: int) -> _PaceWatch:
        pace = self._paces.setdefault(incarnation, _PaceWatch(name))
        if spell > pace.spell or (pace.parked and spell == pace.spell):
            if spell > pace.spell:
                pace.spell, pace.sent = spell, 0
                pace.known_to.clear()
            pace.parked = False
        return pace

    def _pushed(self, sender: str, to: str, push: m.Push) -> None:
        pace = self._pace(sender, push.incarnation, push.spell)
        if push.spell == pace.spell:
            pace.sent = max(pace.sent, push.step)
            self._steps[sender, to, push.request] = push.incarnation
        if push.pull and push.clock >= 0:
            self._clocks[sender, to, push.request] = (push.clock, push.incarnation)

    def _answered(self, sender: str, to: str, values: m.Values) -> None:
        found = self._clocks.pop((to, sender, values.request), None)
        self._steps.pop((to, sender, values.request), None)
        host = self._world.hosts.get(sender)
        if found is None or self._max_delay is None or host is None:
            return
        clock, asker = found
        member = getattr(getattr(host.node, "node", host.node), "member", None)
        here = {one.incarnation for one in member.view.members} if member is not None else set()
        self.checked += 1
        for incarnation, pace in self._paces.items():
            known = incarnation in here and not pace.parked and sender in pace.known_to
            if incarnation != asker and known and pace.sent < clock - self._max_delay:
                what = (
                    f"{sender} answered {to} at clock {clock}, and {pace.name} has pushed up to step {pace.sent}: "
                    f"max_delay is {self._max_delay}"
                )
                self.violations.append(Violation("P4 staleness", what))


class DelayWatch:
    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.changes = 0
        self._delay: int | None = 0

    def told(self, event: RunEvent) -> None:
        if not isinstance(event, Delayed):
            return
        before, self._delay = self._delay, event.max_delay
        self.changes += 1
        if not 0 <= event.max_delay <= stragglers.LONGEST:
            self.violations.append(Violation("P11 delay", f"{event.max_delay} steps, of at most {stragglers.LONGEST}"))
        if before is not None and (event.waiting > stragglers.MOST_WAITING) != (event.max_delay > before):
            what = f"from {before} to {event.max_delay}, with {event.waiting:.0%} of the time waited"
            self.violations.append(Violation("P11 delay", what))

    def forget(self) -> None:
        self._delay = None


class PartsWatch:
    """Notes who pushed each slot of block-proximal, and when they took its part."""

    def __init__(self) -> None:
        self.life = 0
        self._began: dict[HeldPart, BlocksBegun] = {}
        # steps in the weights that a part began with
        self._read: dict[tuple[Client, Slot], int] = {}
        # generation, and who pushed
        self._pushed: dict[BlockTurn, tuple[tuple[int, int], set[BlocksBegun]]] = {}

    def holders(self, segments: int) -> Iterator[PartHolders]:
        """Whose pushes may have counted: one holder in all segments, then any mix."""
        pushed = {turn: sorted(began) for turn, (_, began) in self._pushed.items()}
        for alike in product(*pushed.values()):
            yield {turn: (began,) * segments for turn, began in zip(pushed, alike, strict=True)}
        if any(len(began) > 1 for began in pushed.values()):
            for mixed in product(*(product(began, repeat=segments) for began in pushed.values())):
                yield dict(zip(pushed, mixed, strict=True))

    @contextmanager
    def watching(self) -> Iterator[None]:
        begin, iterate = BlockProximal._begin, BlockProximal._iterate

        def looked(client: Client, pull: Task, slot: Slot) -> bool:
            self._read[client, slot] = min(pull.steps, default=0)
            return is_newer(client, pull, slot)

        async def begun(strategy: BlockProximal, lane: SlotStream, slot: Slot, part: Any) -> HeldPart | None:
            client = lane.client
            held = await begin(strategy, lane, slot, part)
            if held is not None:
                self._began[held] = BlocksBegun(held.next, self._read.pop((client, slot), 0))
            return held

        async def iterated(
            strategy: BlockProximal, lane: SlotStream, slot: Slot, held: dict[int, HeldPart]
        ) -> Task | None:
            push = await iterate(strategy, lane, slot, held)
            turns: BlockOrder = lane.local(slot).turns  # type: ignore[attr-defined]
            if push is not None and (one := held.get(turns.part(slot))) is not None:
                turn = BlockTurn(turns.iteration(slot), turns.part(slot))
                self._note(turn, (self.life, lane.client.session.view.generation), self._began[one])
            return push

        with ExitStack() as stack:
            stack.enter_context(mock.patch.multiple(BlockProximal, _begin=begun, _iterate=iterated))
            stack.enter_context(mock.patch.object(algorithm, "is_newer", looked))
            yield

    def _note(self, turn: BlockTurn, past: tuple[int, int], began: BlocksBegun) -> None:
        """Notes a push; one of an earlier past counts no more after a rollback or a resume."""
        known, those = self._pushed.get(turn, (past, set[BlocksBegun]()))
        if past > known:
            those = set()
        if past >= known:
            self._pushed[turn] = past, {*those, began}


class TrainingAudit:
    def __init__(self, reader: Worker, scheduler: Callable[[], Scheduler], plan: TrainingPlan, resumed: bool) -> None:
        self._reader, self._scheduler, self._random = reader, scheduler, Random(f"{plan.seed}/audit")
        # In step mode a checkpoint is of a step, and of the count without what is in flight to it.
        self._restored_whole, self._resumed = plan.kind == "each", resumed
        self._last: tuple[tuple[int, int], Values] | None = None
        self.violations: list[Violation] = []
        self.reads = 0

    def start(self) -> None:
        self._reader.start(self._life())

    async def _life(self) -> None:
        client = self._reader.client
        await self._reader.joined
        while True:
            await self._reader.sleep(self._random.randrange(50, 400) * MILLISECOND)
            before, counted = self._generations(), self._counted()
            try:
                found = await client.pull(TALLY, slice(None), exact=True)
            except ShoalError:
                continue
            if self._generations() == before:
                self._check(before, counted, found)

    def _generations(self) -> tuple[int, int]:
        """The generations known to this client and to the scheduler; a rollback is between."""
        return self._reader.client.session.view.generation, self._scheduler().generation

    def _counted(self) -> list[int]:
        work = self._scheduler().workload
        return [slot for slot in range(min(work.limit, 1 << 12)) if work.is_counted(slot)]

    def _check(self, generations: tuple[int, int], counted: list[int], found: Values) -> None:
        self.reads += 1
        twice = np.flatnonzero(found > 1)
        if len(twice):
            self._broken("I1 exactly-once", f"slots {twice[:6].tolist()} are counted more than once")
        missing = [slot for slot in counted if not found[slot]]
        restored = self._resumed or any(generations)
        if missing and (self._restored_whole or not restored):
            self._broken("I3 real time", f"slots {missing[:6]} were counted before the pull began, and are not in it")
        if self._last is not None and self._last[0] == generations and (found < self._last[1]).any():
            less = np.flatnonzero(found < self._last[1])
            self._broken("I4 monotone", f"slots {less[:6].tolist()} were read before, and are not there any more")
        self._last = generations, found

    def _broken(self, rule: str, what: str) -> None:
        self.violations.append(Violation(rule, what))
