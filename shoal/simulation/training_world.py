"""Runs one training run in a simulated world: all nodes are the classes that ship.

Only network, disk, clocks and the launcher are simulated. A process that has nothing left to
compute leaves; if its coroutine raised, the launcher reports its end to the scheduler. A name that
is hired again is another incarnation. ``TrainingWorld`` puts the nodes on hosts and carries out
faults; ``training_scenario`` checks what must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from shoal import limits
from shoal.cluster import placement
from shoal.data.datasets import Dataset
from shoal.data.slots import Slot
from shoal.errors import Refused, ShoalError
from shoal.events import Delayed, Evaluated, RunEvent, Warned
from shoal.job import Job
from shoal.keys import Values
from shoal.limits import COORDINATOR, MILLISECOND, SECOND
from shoal.models.learner import Learner
from shoal.nodes import evaluator as evaluating
from shoal.nodes import trainer as training
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.factory import (
    make_checkpoints,
    make_table,
    make_test_learner,
    make_trainer,
    scheduler_for,
    state_to_resume,
)
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_journal import JournalSnapshot, counted_everywhere
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.nodes.trainer import SlotStream, Trainer
from shoal.nodes.worker import Worker
from shoal.schedule import stragglers
from shoal.schedule.intervals import spread
from shoal.simulation.cluster import ROOT, SimulatedCluster, close_coroutines, pull_until_answered, servers_joined
from shoal.simulation.faults import Fault
from shoal.simulation.moves_driver import MovesDriver
from shoal.simulation.reference import BlocksBegun, BlockTurn, PartHolders
from shoal.simulation.scenarios import Trace, Violations
from shoal.simulation.training_plan import EVALUATOR, LAUNCHER, TrainingPlan, mixed, separate
from shoal.simulation.world import SimulatedJournal, World
from shoal.store.checkpoint import manifest as checkpoint
from shoal.store.checkpoint.manifest import Manifest
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.strategies.block_proximal import algorithm
from shoal.strategies.block_proximal.algorithm import BlockProximal, HeldPart
from shoal.strategies.block_proximal.order import BlockOrder
from shoal.strategies.parameter_server.algorithm import is_newer
from shoal.tables import TABLE, TALLY, Dense, Update
from shoal.wire import messages as m
from shoal.wire.effects import Node, ProcessEnd, Send
from shoal.wire.messages.groups import dealer, member_name, whole

CACHE = 1 << 30  # bytes of rows that a worker keeps
TALLIED = 1 << 12  # keys of the tally: more than any slot's number
Origin = tuple[Path, Manifest]


class TrainingNodes:
    def __init__(
        self, world: World, job: Job, dataset: Dataset, group: str = "", add: Callable[[Node], object] | None = None
    ) -> None:
        """``add`` puts a node on a host of its own; by default one whose clock is right."""
        self.world, self.job, self.dataset, self.group = world, job, dataset, group
        self.learner: Learner = make_test_learner(job, dataset.train)
        self.per_pass = job.slots(dataset.train.rows).per_pass
        self.cache = CACHE
        self.trainers: dict[str, Trainer] = {}  # the present life of each
        self.ends: dict[str, Task] = {}  # of trainers and evaluators: done when they have finished
        self.evaluator: Evaluator | None = None
        self.all_workers: list[Worker] = []  # all lives
        # a process ended with an error
        self.on_broken: Callable[[str, Exception], None] = lambda name, error: None
        self.left: set[str] = set()  # processes that have finished
        self._add = add or world.add
        self._lives = 0

    def hire(self, name: str) -> Trainer:
        trainer = self.trainer(name)
        self.trainers[trainer.worker.name] = trainer
        self.ends[trainer.worker.name] = trainer.start()
        self._add(trainer.worker)
        return trainer

    def trainer(self, name: str) -> Trainer:
        last, worker = name.rpartition("-")[2], self._worker(name, "worker")
        number = int(last) if last.isdecimal() else 0
        return make_trainer(self.job, worker, self.dataset.train, self.cache, number=number)

    def start_evaluator(self) -> Evaluator:
        worker = self._worker(EVALUATOR, "evaluator")
        self.evaluator = Evaluator(worker, self.learner, self.dataset.test)
        self.ends[worker.name] = self.evaluator.start()
        self._add(worker)
        return self.evaluator

    def client(self, name: str = LAUNCHER) -> Worker:
        """A plain member of the cluster, such as who creates the tables."""
        worker = self._worker(name, "client")
        self._add(worker)
        return worker

    def _worker(self, name: str, role: str) -> Worker:
        self._lives += 1
        name, token = member_name(name, self.group), f"{name}-{self._lives}"
        worker = Worker(name, role, token, seed=self._lives, group=self.group)
        self.all_workers.append(worker)
        return worker

    def after_event(self, name: str) -> None:
        task = self.ends.get(name)
        if task is None or not task.done or name not in self.world.hosts:
            return
        node = self.world.hosts[name].node
        if task.error is None and name in self.trainers and isinstance(node, Worker):
            for effect in node.leave():
                if isinstance(effect, Send):
                    self.world.send(name, effect.to, effect.message, effect.arrays)
        self.world.end(name)
        if task.error is None:
            self.left.add(name)
        else:
            self.on_broken(name, task.error)

    async def create_tables(
        self, launcher: Worker, servers: int, tally: bool = False, origin: Origin | None = None
    ) -> None:
        """Creates the tables, with the count of every slot (``tally``), from ``origin``."""
        await servers_joined(launcher, servers)
        specs = {TABLE: make_table(self.job, self.learner, self.per_pass)}
        if tally:
            specs[TALLY] = Dense(rows=TALLIED, update=Update("sum"), max_delay=None)
        known = {} if origin is None else {one.name: one for one in origin[1].tables}
        for name, spec in specs.items():
            was = known.get(name)  # a group's checkpoint names tables as the group does
            if was is None or origin is None:
                await launcher.client.create(name, spec)
            else:
                await launcher.client.create(name, spec, starts=was.starts, origin=str(origin[0]))


MOST_EVENTS = 60_000
BEGINS_WITHIN = 30 * SECOND
SEEN_AFTER = 10 * MILLISECOND  # a process has ended: reported to the scheduler
AGAIN_AFTER = 300 * MILLISECOND  # a process gave way to another of its name, which has ended


class TrainingWorld:
    def __init__(
        self, plan: TrainingPlan, trace: Trace | None = None, number: int = 0, parts: PartsWatch | None = None
    ) -> None:
        """``number`` counts lives, ``parts`` watches all of them."""
        self.plan, self.job, self.dataset = plan, plan.job, data_of(plan)
        self.world = World(plan.seed + (number << 40), trace)
        self.world.after_event = self._after_event
        self.world.on_tell = self._on_event
        self.world.weather.delay = plan.delay * MILLISECOND
        self.cluster = SimulatedCluster(self.world, plan, lambda: None if plan.group else self._scheduler())
        self.cluster.job = self.job.identity
        self.moves = MovesDriver(self.cluster, plan, self)
        self.nodes = TrainingNodes(self.world, self.job, self.dataset, plan.group, self.cluster.add)
        self.nodes.on_broken, self.left = self._broke, self.nodes.left
        bounded = plan.strategy == "bounded" and plan.settings["max_delay"] != "auto"
        self.staleness = StalenessWatch(self.world, plan.settings["max_delay"] if bounded else None)
        self.delays, self.parts = DelayWatch(), parts or PartsWatch()
        self.parts.life = number
        self.auditor: TrainingAudit | None = None
        self.world.duration = self._duration
        self.schedulers: list[SchedulerNode] = []  # all lives, the last one is the present
        self.events: list[RunEvent] = []
        # with the weights, if the evaluator is still there
        self.evaluated: list[tuple[Evaluated, Values | None]] = []
        self.resumed_slots = 0  # slots in the checkpoint that this run was resumed from
        self.broken: dict[str, Exception] = {}  # processes that ended with an error
        self.leaving: dict[str, int] = {}  # workers that were asked to go, and of which life
        # ends of processes that no scheduler was running to receive
        self._unreported: list[ProcessEnd] = []
        self._shared_until: dict[str, int] = {}  # names that two processes share, until then
        self.dealt: set[int] = set()  # all slots that were ever assigned
        self.world.watch(self._dealt, m.Deal)

    @property
    def dealer(self) -> str:
        return dealer(self.plan.group)

    @property
    def scheduler(self) -> Scheduler:
        scheduler = self.schedulers[-1].scheduler if self.plan.group else self.cluster.coordinator.scheduler
        assert scheduler is not None
        return scheduler

    @property
    def starts(self) -> list[int]:
        tables = self.cluster.coordinator.roster.tables
        return list(tables[whole(TABLE, self.plan.group)].starts)

    @property
    def evaluators(self) -> int:
        return sum(one.client.session.role == "evaluator" for one in self.nodes.all_workers)

    @property
    def over(self) -> bool:
        ends = self.nodes.ends.items()
        return self.scheduler.ended and all(task.done or name not in self.world.hosts for name, task in ends)

    def local(self, name: str) -> str:
        return name.removeprefix(f"{self.plan.group}/") if self.plan.group else name

    def set_up(self, origin: Origin | None = None, was: Job | None = None) -> bool:
        """Starts all nodes, with new tables or from ``origin``; False: it took too long."""
        if origin is not None:
            self.resumed_slots = _slots_in(origin[1], self._scheduler())
            state = state_to_resume(origin[1], was or self.job, self.job, self.dataset.train.rows)
            record = msgspec.msgpack.encode(JournalSnapshot(state))
            self.world.journals[self.dealer] = SimulatedJournal([record])
        self.cluster.set_up()
        launcher = self.nodes.client(LAUNCHER)
        if self.plan.group:
            self._start_scheduler()
        made = launcher.start(self.nodes.create_tables(launcher, self.plan.servers, tally=True, origin=origin))
        if not self.until(lambda: made.done, BEGINS_WITHIN) or made.error is not None:
            return False
        self.nodes.start_evaluator()
        for name in self.plan.worker_names:
            self.nodes.hire(self.local(name))
        if self.plan.seed % 3 == 0:  # not in all: it takes time
            auditor = self.nodes.client("auditor")
            self.auditor = TrainingAudit(auditor, lambda: self.scheduler, self.plan, origin is not None)
            auditor.start(self.auditor.life())
        return True

    def _scheduler(self) -> Scheduler:
        found = scheduler_for(self.job, self.dataset)
        found.elsewhere = "elsewhere" in self.plan.habits
        return found

    def _start_scheduler(self) -> None:
        records = self.world.durable_records(self.dealer)
        writer = make_checkpoints(self.job, ROOT, self.cluster.disk).writer if self.plan.checkpoint else None
        token = f"scheduler-{len(self.schedulers)}"
        node = SchedulerNode(self.plan.group, token, f"memory:{self.dealer}", self._scheduler(), writer, records)
        self.schedulers.append(node)
        self.cluster.add(node)

    def has_event(self, kind: type[RunEvent]) -> bool:
        return any(isinstance(event, kind) for event in self.events)

    def until(self, done: Callable[[], bool], within: int) -> bool:
        return self.world.run(done, self.world.now + within, MOST_EVENTS)

    def _duration(self, name: str, nanoseconds: int) -> int:
        """How long a node computes: a worker up to what the plan says, all others briefly."""
        if name not in self.nodes.trainers:
            return nanoseconds
        nanoseconds = nanoseconds * self.plan.think * MILLISECOND // self.world.computing[1]
        return self.moves.stragglers.duration(name, nanoseconds)

    def _on_event(self, event: RunEvent) -> None:
        self.events.append(event)
        if isinstance(event, Evaluated):
            last = None if self.nodes.evaluator is None else self.nodes.evaluator.last
            known = last is not None and last.number == event.number
            self.evaluated.append((event, last.weights if known and last is not None else None))
        elif isinstance(event, Warned) and "it goes on when one comes" in event.what:
            self.world.at(self.world.now, self._hire_one)
        self.moves.on_event(event)
        self.delays.on_event(event)

    def _hire_one(self) -> None:
        """Hires a worker for a run that lost its model after all workers had left."""
        name = self.plan.newcomer_worker(len(self.left) + len(self.nodes.all_workers))
        self.world.counts["workers hired when none was left"] += 1
        self.nodes.hire(self.local(name))

    def _after_event(self, name: str) -> None:
        self.moves.after_event(name)
        self.nodes.after_event(name)

    def _dealt(self, sender: str, to: str, deal: m.Deal) -> None:
        self.dealt.update(spread([*deal.slots, *deal.again], limits.LEDGER_WINDOW))

    def _broke(self, name: str, error: Exception) -> None:
        self._ended(name, f"{type(error).__name__}: {error}")
        # Two processes share the name, and the other one is a member. Here a reply reaches either
        # process, so a late hello of a dead life may refuse the next; a real socket would not.
        if isinstance(error, Refused) and name in self._shared_until:
            self.world.counts["rare: one of two processes of a name ended"] += 1
            self.world.at(max(self.world.now, self._shared_until[name]) + AGAIN_AFTER, lambda: self.restart(name))
        else:
            self.broken[name] = error

    def _ended(self, name: str, reason: str) -> None:
        """Report the end of a process to the scheduler, or to its next life."""
        ended = ProcessEnd(name, reason)
        later = self.world.now + SEEN_AFTER

        def tell() -> None:
            if self.dealer in self.world.hosts:
                self.world.tell(self.dealer, ended)
            else:
                self._unreported.append(ended)

        self.world.at(later, tell)

    def crash(self, fault: Fault) -> bool:
        name = fault.who
        if name == COORDINATOR or name in self.cluster.servers:
            return self.cluster.crash(name, fault.how == "seen")
        if name in self.left:
            return False
        self.world.crash(name)
        self._shared_until.setdefault(name, self.world.now)
        if fault.how == "seen" and name != self.dealer:
            self._ended(name, "it was killed")
        return True

    def restart(self, name: str) -> None:
        if name in self.world.hosts:
            return
        if name == self.dealer and self.plan.group:
            self._start_scheduler()
        elif name == COORDINATOR or name in self.cluster.servers:
            self.cluster.restart(name)
        elif self.local(name) == EVALUATOR:
            self.nodes.start_evaluator()
        else:
            self.nodes.hire(self.local(name))
            self.leaving.pop(name, None)
        if name == self.dealer:
            self.delays.delay = None
            ended, self._unreported = self._unreported, []
            for one in ended:
                self.world.tell(name, one)

    def heal(self) -> None:
        self.moves.heal()

    def carry_out(self, fault: Fault, until: int) -> bool:
        name = fault.who
        match fault.kind:
            case "twin" if name in self.nodes.trainers:
                trainer = self.nodes.trainer(self.local(name))
                trainer.start()
                self.world.add_twin(trainer.worker, until - self.world.now)
                self._shared_until[name] = until
            case "power":
                # A group's scheduler writes checkpoints too.
                others = [self.dealer] if self.plan.group else []
                self.moves.nemesis.bring_back(self.cluster.power_cut(f"{self.plan.seed}/{fault.at}", *others), until)
            case "rot":
                self.cluster.rot(fault.at)
            case "hire":
                if name in self.world.hosts or name in self.left or self.scheduler.ended:
                    return False
                self.nodes.hire(self.local(name))
            case "leave":
                trainers = self.nodes.trainers
                others = [one for one in trainers if one in self.world.hosts and one not in self.leaving]
                if name not in trainers or name not in self.world.hosts or others in ([], [name]):
                    return False  # the last one stays
                self.leaving[name] = self.world.hosts[name].life
                trainers[name].leave()
            case _:
                return self.moves.carry_out(fault, until)
        return True

    def newest_checkpoint(self) -> Origin | None:
        return checkpoint.newest(self.cluster.disk, ROOT, self.job.identity)[0]

    def pull(self, table: str, within: int = BEGINS_WITHIN) -> Any:
        """All rows of a table, as the servers have them; None if they do not answer."""
        reader = self.nodes.client(f"reader-{len(self.nodes.all_workers)}")

        async def look() -> Any:
            await reader.joined
            return await pull_until_answered(reader, table, slice(None), exact=True)

        task = reader.start(look())
        self.until(lambda: task.done, within)
        return task.value if task.done else None

    def close(self) -> None:
        close_coroutines(self.nodes.all_workers)


def _slots_in(manifest: Manifest, scheduler: Scheduler) -> int:
    """The number of slots in a checkpoint's model, by its step or its segments' ledgers."""
    work = scheduler.workload
    if work.step is not None:
        return work.slots_until(manifest.steps)
    everywhere = counted_everywhere((one.books for one in manifest.segments), work.per_pass)
    return sum(stop - first for first, stop in everywhere)


def data_of(plan: TrainingPlan) -> Dataset:
    if plan.counts:
        return separate(plan.slots_per_pass or 1, plan.batch)
    rows = plan.batch * (plan.settings["parts"] if plan.strategy == "block-proximal" else plan.slots_per_pass or 1)
    return mixed(max(2, rows), plan.features, plan.seed & 0xFFFF, poisoned=plan.poisoned)


@contextmanager
def paced(plan: TrainingPlan) -> Iterator[None]:
    """Adapts the pace to short runs: few slots at a time, and computing takes time."""
    inline = limits.INLINE_ELEMENTS if "inline" in plan.habits else -1
    with (
        mock.patch.multiple(stragglers, FEWEST=1, WINDOW=100 * MILLISECOND, SETTLING=30 * MILLISECOND),
        mock.patch.object(stragglers, "LONGEST", 3),  # some runs reach it
        mock.patch.multiple(training, _FIRST=plan.ahead, _SOON=10 * MILLISECOND, _LATER=100 * MILLISECOND),
        mock.patch.object(evaluating, "_ASK", 80 * MILLISECOND),
        # Fewer segments are fewer messages and files: a checkpoint is there before the run is over.
        mock.patch.object(placement, "SEGMENTS_PER_SERVER", 2),
        mock.patch.object(limits, "INLINE_ELEMENTS", inline),
    ):
        yield


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
        self.violations = Violations()
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
            case m.Pull(request, incarnation=client, clock=clock, enter=False) if clock >= 0:
                self._clocks[sender, to, request] = (clock, client)  # a new worker does not wait
            case m.Park(incarnation=one, spell=spell) if one in self._paces:
                if spell >= self._paces[one].spell:
                    self._paces[one].spell, self._paces[one].parked = spell, True
            case m.Counted(request):
                if (whose := self._steps.pop((to, sender, request), None)) is not None:
                    self._paces[whose].known_to.add(sender)
            case m.Values():
                self._answered(sender, to, message)

    def _pushed(self, sender: str, to: str, push: m.Push) -> None:
        pace = self._paces.setdefault(push.incarnation, _PaceWatch(sender))
        if push.spell > pace.spell:
            pace.spell, pace.sent = push.spell, 0
            pace.known_to.clear()
        if push.spell == pace.spell:
            pace.parked = False
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
        clock, client = found
        member = getattr(getattr(host.node, "node", host.node), "member", None)
        here = {one.incarnation for one in member.view.members} if member is not None else set()
        self.checked += 1
        for incarnation, pace in self._paces.items():
            known = incarnation in here and not pace.parked and sender in pace.known_to
            if incarnation != client and known and pace.sent < clock - self._max_delay:
                behind = f"{pace.name} has pushed up to step {pace.sent}: max_delay is {self._max_delay}"
                self.violations.add("P4 staleness", f"{sender} answered {to} at clock {clock}, but {behind}")


class DelayWatch:
    def __init__(self) -> None:
        self.violations = Violations()
        self.changes = 0
        self.delay: int | None = 0  # None: unknown, since the scheduler restarted

    def on_event(self, event: RunEvent) -> None:
        if not isinstance(event, Delayed):
            return
        before, self.delay = self.delay, event.max_delay
        self.changes += 1
        if not 0 <= event.max_delay <= stragglers.LONGEST:
            self.violations.add("P11 delay", f"{event.max_delay} steps, at most {stragglers.LONGEST} allowed")
        if before is not None and (event.waiting > stragglers.MOST_WAITING) != (event.max_delay > before):
            what = f"from {before} to {event.max_delay} steps, with {event.waiting:.0%} of the time spent waiting"
            self.violations.add("P11 delay", what)


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

        patched = mock.patch.multiple(BlockProximal, _begin=begun, _iterate=iterated)
        with patched, mock.patch.object(algorithm, "is_newer", looked):
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
        self.violations = Violations()
        self.reads = 0

    async def life(self) -> None:
        client = self._reader.client
        await self._reader.joined
        while True:
            await self._reader.sleep(self._random.randrange(50, 400) * MILLISECOND)
            before, work = self._generations(), self._scheduler().workload
            counted = [slot for slot in range(min(work.limit, TALLIED)) if work.is_counted(slot)]
            try:
                found = await client.pull(TALLY, slice(None), exact=True)
            except ShoalError:
                continue
            if self._generations() == before:
                self._check(before, counted, found)

    def _generations(self) -> tuple[int, int]:
        """The generations known to this client and to the scheduler; a rollback is between."""
        return self._reader.client.session.view.generation, self._scheduler().generation

    def _check(self, generations: tuple[int, int], counted: list[int], found: Values) -> None:
        self.reads += 1
        twice = np.flatnonzero(found > 1)
        if len(twice):
            self.violations.add("I1 exactly-once", f"slots {twice[:6].tolist()} are counted more than once")
        missing = [slot for slot in counted if not found[slot]]
        restored = self._resumed or any(generations)
        if missing and (self._restored_whole or not restored):
            self.violations.add("I3 real time", f"slots {missing[:6]} were counted before the pull, but are not in it")
        if self._last is not None and self._last[0] == generations and (found < self._last[1]).any():
            less = np.flatnonzero(found < self._last[1])
            self.violations.add("I4 monotone", f"slots {less[:6].tolist()} were read before, but are missing now")
        self._last = generations, found
