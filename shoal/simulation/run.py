"""One seed, from the plan to the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

import numpy as np

from shoal import limits
from shoal.errors import ShoalError
from shoal.events import Event
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.server import Server
from shoal.nodes.worker import Worker
from shoal.simulation.checker import Violation, check, check_end, client_name, steps_of
from shoal.simulation.faults import Nemesis, Plan
from shoal.simulation.workload import (
    TABLE,
    Dealer,
    Scribe,
    Stop,
    client_life,
    delicate,
    second_hand,
    slot_name,
    worker_life,
)
from shoal.simulation.world import World
from shoal.store.task import Task
from shoal.tables import Dense, Each, Sparse, Step, Table
from shoal.wire import messages as m

COLUMNS = 64  # keys in one segment: more than any plan has slots
MOST_EVENTS = 60_000
LIVE_WITHIN = 40 * limits.SECOND  # after all is healed: 30 s, and what a dead worker costs to be noticed


@dataclass(slots=True)
class Verdict:
    """What came of one seed."""

    plan: Plan
    violations: list[Violation]
    events: int
    seconds: float  # virtual
    digest: str
    counts: Counter[str] = field(default_factory=Counter)
    history: list[Event] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run one seed and check everything that can be checked."""
    return Run(Plan.draw(seed), trace).verdict()


class Run:
    """One cluster, its workers and what befalls them."""

    def __init__(self, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.scribe = Scribe(plan, lambda: self.world.now)
        self.world.trace = trace
        self.world.after_event = self._after_event
        self.world.on_crash = lambda name: self.scribe.note("crashed", name, self.workers[name].client.incarnation)
        self.random = Random(f"{plan.seed}/run")
        self.dealer = Dealer(plan)
        self.counts: Counter[str] = Counter()
        self.coordinator = Coordinator()
        self.servers = [Server(f"server-{i}", "only", f"memory:server-{i}", plan.inline) for i in range(plan.servers)]
        self.workers: dict[str, Worker] = {}
        self.pushed: dict[str, list[int]] = {}  # plain clients: pushes begun over all lives
        self._lives: dict[str, Task] = {}
        self._hands: dict[str, Task] = {}
        self._life = 0
        self._members: dict[str, int] = {}
        self._silent = False
        self._everyone: list[Worker] = []

    def verdict(self) -> Verdict:
        violations = self._run()
        self._count()
        return Verdict(
            self.plan,
            violations,
            self.world.events,
            self.world.now / limits.SECOND,
            self.world.digest,
            self.counts,
            self.scribe.history,
        )

    def _run(self) -> list[Violation]:
        operator = self._set_up()
        if not self._until(lambda: TABLE in operator.client.layouts, 20 * limits.SECOND):
            return [Violation("I13 live", "no table after 20 s without any fault")]
        nemesis = Nemesis(self.world, self.plan, [client_name(i) for i in range(self.plan.workers)])
        for i in range(self.plan.workers):
            self._start(client_name(i))
        nemesis.begin()
        if "change delay" in self.plan.habits and self.plan.kind == "each":
            operator.start(self._change_delay(operator))
        if "rogue" in self.plan.faults:
            for _ in range(3):
                self.world.at(self.world.now + self.random.randrange(nemesis.lasts), self._rogue)
        self._until(lambda: nemesis.over and self._restart(nemesis), nemesis.lasts + 30 * limits.SECOND)
        self.scribe.note("healed")
        if not self._until(lambda: self._restart(nemesis) and self._finished(), LIVE_WITHIN):
            return [
                Violation(
                    "I13 live", f"not done {LIVE_WITHIN // limits.SECOND} s after all was healed: {self._stuck()}"
                )
            ]
        violations = check(self.plan, self.scribe.history, self.dealer.void)
        violations += self._check_end(operator)
        if self._silent:
            violations.append(Violation("I14 no hang", "a call was silent past its deadline"))
        return violations

    # ------------------------------------------------------------ the cluster

    def _set_up(self) -> Worker:
        drift = "drift" in self.plan.faults
        self._add(self.coordinator, drift)
        for server in self.servers:
            self._add(server, drift)
        operator = Worker("operator", "client", "only")
        self._add(operator, False)
        operator.start(self._create(operator))
        return operator

    def _add(self, node: Coordinator | Server | Worker, drift: bool) -> None:
        random = self.random
        self.world.add(
            node, random.uniform(-0.1, 0.1) if drift else 0.0, random.randrange(limits.SECOND) if drift else 0
        )

    async def _create(self, operator: Worker) -> None:
        while sum(member.role == "server" for member in operator.client.view.members) < self.plan.servers:
            await operator.sleep(10 * limits.MILLISECOND)
        await operator.client.create(TABLE, self._spec())

    def _spec(self) -> Table:
        plan = self.plan
        apply: Each | Step = Each()
        if plan.kind == "step":
            apply = Step(plan.slots_per_step, slots_per_pass=plan.slots_per_pass)
        keys = COLUMNS * limits.SEGMENTS_PER_SERVER * plan.servers
        if plan.dense:
            return Dense(rows=keys, apply=apply, max_delay=plan.max_delay)
        return Sparse(keys=keys, apply=apply, max_delay=plan.max_delay)

    async def _change_delay(self, operator: Worker) -> None:
        for _ in range(3):
            await operator.sleep(self.random.randrange(100, 1_000) * limits.MILLISECOND)
            delay = self.random.choice([0, 1, 2, 5, None])
            self.scribe.note("delay asked", value=delay)
            try:
                await operator.client.set_max_delay(TABLE, delay)
            except ShoalError:
                return  # either may be in force from now on: the note above says so
            self.scribe.note("delay set", value=delay)

    # ------------------------------------------------------------ the workers

    def _start(self, name: str) -> None:
        """A new life of a worker, under its old name."""
        self._life += 1
        role = "client" if self.plan.kind == "clients" else "worker"
        worker = self.workers[name] = Worker(name, role, f"life-{self._life}", seed=self._life)
        self._everyone.append(worker)
        worker.on_fenced = lambda: self._counted("fenced workers")
        random = Random(f"{self.plan.seed}/{name}/{self._life}")
        if self.plan.kind == "clients":
            column = int(name.rpartition("-")[2])
            life = client_life(worker, self.scribe, column, self.pushed.setdefault(name, [0]), random)
        else:
            life = worker_life(worker, self.scribe, self.dealer, random)
            if self.plan.kind == "step":
                self._hands[name] = worker.start(second_hand(worker, self.scribe, self.dealer, random))
        self._lives[name] = worker.start(life)
        self._add(worker, "drift" in self.plan.faults)

    def _restart(self, nemesis: Nemesis) -> bool:
        """Start again those whose life is over before its work is. True if none is still to come."""
        for name, back in [one for one in nemesis.crashed if one[1] <= self.world.now]:
            nemesis.crashed.remove((name, back))
            self.scribe.broken.discard(name)
            self.dealer.give_back(name)
            self._start(name)
        for name, life in list(self._lives.items()):
            if name not in self.world.hosts:
                continue
            hand = self._hands.get(name)
            stopped = isinstance(life.error, Stop) or (hand is not None and isinstance(hand.error, Stop))
            if stopped or name in self.scribe.broken:
                self._counted("lives that stopped")
                self.scribe.broken.discard(name)
                self.world.crash(name)
                self.dealer.give_back(name)
                self._start(name)
            elif life.done and life.error is not None:
                raise life.error
        return not nemesis.crashed

    def _finished(self) -> bool:
        return all(life.done and life.error is None for life in self._lives.values())

    def _stuck(self) -> str:
        parts = []
        for name, life in self._lives.items():
            if not life.done:
                client = self.workers[name].client
                tasks = [repr(op.task) for op in dict.fromkeys(client._running.values())]
                parts.append(f"{name}: {'; '.join(tasks) or 'nothing under way'}")
        return ", ".join(parts)

    def _rogue(self) -> None:
        """Somebody sends what no client of ours would: nothing may come of it."""
        name = self.random.choice(sorted(self.workers))
        worker, server = self.workers[name], self.random.choice(self.servers)
        layout = worker.client.layouts.get(TABLE)
        if layout is None or not worker.client.incarnation:
            return
        keys = server_keys = layout.starts[: self.random.randrange(1, 4)].copy()
        values = np.ones(len(keys), np.float32)
        match self.random.randrange(4):
            case 0:
                values[-1] = np.nan
            case 1:
                keys = np.concatenate([server_keys, server_keys])[::-1].copy()
                values = np.ones(len(keys), np.float32)
            case 2:
                values = values[:-1]
            case 3:
                keys = keys + np.uint64(1 << 40)
        if isinstance(layout.spec.apply, Step):
            stream, number = slot_name(self.plan, self.plan.slots - 1)
        else:
            stream, number = -worker.client.incarnation, 1 << 18
        view = worker.client.view
        push = m.Push(
            1 << 50, layout.number, view.number, 0, worker.client.incarnation, stream, number, 0, 0, 0, 0, 0,
            m.EVERYWHERE, len(keys),
        )  # fmt: skip
        self._counted("rogue pushes")
        self.world.send(name, server.name, push, [keys, values])

    # ------------------------------------------------------------ watching

    def _until(self, done: Callable[[], bool], within: int) -> bool:
        return self.world.run(done, self.world.now + within, MOST_EVENTS)

    def _counted(self, what: str) -> None:
        self.counts[what] += 1

    def _after_event(self, name: str) -> None:
        if name == "coordinator":
            members = {member.name: member.incarnation for member in self.coordinator.roster.view().members}
            for gone, incarnation in self._members.items():
                if members.get(gone) != incarnation:
                    self.scribe.note("removed", gone, incarnation)
            self._members = members
        elif (worker := self.workers.get(name)) is not None and worker.client.flight.letters:
            now = worker.now
            longest = max(now - letter.heard for letter in worker.client.flight.letters.values())
            self._silent |= longest > limits.SILENCE + limits.RESEND_MOST

    def _check_end(self, operator: Worker) -> list[Violation]:
        layout = operator.client.layout(TABLE)
        found: list[np.ndarray] = []

        async def look() -> None:
            while not found:
                try:
                    found.append(await operator.client.pull(TABLE, self.scribe.everything(layout)))
                except ShoalError:  # it was paused, and is a new incarnation by now
                    await operator.sleep(100 * limits.MILLISECOND)

        whole = operator.start(look())
        self.world.poke("operator")
        if not self._until(lambda: whole.done, LIVE_WITHIN) or not found:
            return [Violation("I13 live", f"the last pull: {whole.error or 'no answer'}")]
        values = found[0].reshape(-1, self.scribe.columns + 1)
        sums = [float(value) for value in values[:, -1]]
        return check_end(
            self.plan, self.scribe.history, self.dealer.void, self.scribe.seen(found[0]), sums, self._sum()
        )

    def _sum(self) -> float:
        """What one process would have: each step's slots added in order, then one update."""
        total = np.float32(0)
        for slots in steps_of(self.plan):
            step = 0.0
            for slot in slots:
                step += float(np.float32(delicate(self.plan, slot))) if slot not in self.dealer.void else 0.0
            total = np.float32(float(total) + float(np.float32(step)))
        return float(total)

    def _count(self) -> None:
        for part in self._parts():
            self.counts.update(part)
        self.counts.update({f"network: {what}": n for what, n in self.world.counts.items()})

    def _parts(self) -> Iterator[dict[str, int]]:
        yield {f"coordinator: {what}": n for what, n in self.coordinator.counts.items()}
        for server in self.servers:
            yield {f"server: {what}": n for what, n in server.counts.items()}
            for holding in server.tables.values():
                yield {f"server: {what}": n for what, n in holding.counts.items()}
                if holding.own is not None:
                    yield {f"server: {what}": n for what, n in holding.own.counts.items()}
        for worker in self._everyone:
            yield {f"client: {what}": n for what, n in worker.client.counts.items()}
            yield {"client: resent": worker.client.flight.resent}
