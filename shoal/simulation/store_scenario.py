"""The scenarios STORE (servers fail) and MOVES (servers join and leave).

A plan is run from its cluster to the verdict. Clients count (see ``store_workload``), so that what
a pull returns says which pushes it contains; ``store_checker`` reads the promises off the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from shoal import limits
from shoal.errors import ShoalError
from shoal.events import RolledBack, RunEvent
from shoal.job import Job
from shoal.limits import COORDINATOR
from shoal.nodes.factory import make_scheduler
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.worker import Worker
from shoal.simulation import moves_driver
from shoal.simulation import store_workload as workload
from shoal.simulation.cluster import (
    SimulatedCluster,
    calls_of,
    client_counts,
    close_coroutines,
    pull_until_answered,
    servers_joined,
)
from shoal.simulation.faults import Fault, FaultPlan
from shoal.simulation.moves_driver import MovesDriver
from shoal.simulation.scenarios import Scenario, Trace, Verdict, Violation, counters, judge
from shoal.simulation.store_checker import OwnershipChecker, check, check_end, differences, left_behind, settled
from shoal.simulation.store_workload import COLUMNS, NAME, TABLE, BackgroundLoad, HistoryRecorder, SimulatedDealer
from shoal.simulation.world import World
from shoal.store.client.task import Task
from shoal.tables import Dense, Each, Filter, Sparse, Step, Table, Wire

MOST_EVENTS = 200_000  # only a guard: the largest plans need a third, and promises are about time
REST = 3 * limits.SECOND  # until nothing is in flight
LIVE_WITHIN = 40 * limits.SECOND  # 30 s, and the time to notice a dead worker


_JOB = Job.of({"data": {"source": "none", "batch": 1}, "strategy": "async", "stop": {"epochs": 1}})


def idle_scheduler() -> Scheduler:
    """The coordinator's run in a store: the real one, which no worker asks for slots."""
    return make_scheduler(_JOB, "none", rows=1, test_rows=1, features=1, elsewhere=True)


class StoreRun:
    def __init__(self, plan: FaultPlan, trace: Trace | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed, trace)
        self.world.after_event = self._after_event
        self.world.on_crash = self._crashed
        self.recorder = HistoryRecorder(plan, lambda: self.world.now)
        self.recorder.on_broken = self._stopped
        self.random = Random(f"{plan.seed}/run")
        self.dealer = SimulatedDealer(plan)
        self.cluster = SimulatedCluster(self.world, plan, idle_scheduler)
        self.rollbacks: list[Violation] = []
        self.owners, self.moves = OwnershipChecker(self.cluster), MovesDriver(self.cluster, plan, self)
        self.recorder.duration = self.moves.stragglers.duration
        self.world.on_tell = self._on_event
        self.bystander = BackgroundLoad(plan, limits.SEGMENTS_PER_SERVER * plan.servers)
        self.workers: dict[str, Worker] = {}
        self.pushed: dict[str, list[int]] = {}  # plain clients: pushes begun over all lives
        self._lives: dict[str, Task] = {}
        self._life = 0
        self._members: dict[str, int] = {}
        self._view = (0, 0)
        self._hangs: set[str] = set()
        self._healed = 0  # when, if all is
        self._unanswered: dict[Worker, int] = {}  # calls of each that ended so
        self._failure: Exception | None = None
        self.all_workers: list[Worker] = []

    def verdict(self) -> Verdict:
        with workload.small_limits(self.plan):
            found = judge(self.plan, self._run, [self.world], self.recorder.history)
        close_coroutines(self.all_workers)
        for part in _counters(self):
            found.counts.update(part)
        return found

    def _run(self) -> list[Violation]:
        self.cluster.set_up()
        operator = Worker("operator", "client", "only")
        self.cluster.add(operator)
        operator.start(self._create(operator))
        if not self._until(lambda: TABLE in operator.client.session.layouts, 20 * limits.SECOND):
            return [Violation("I13 live", "no table after 20 s without any fault")]
        for name in self.plan.worker_names:
            self._start(name)
        nemesis = self.moves.nemesis
        nemesis.begin()
        if "bystander" in self.plan.habits:
            self._start_bystander()
        if "change delay" in self.plan.habits and self.plan.kind == "each":
            operator.start(self._change_delay(operator))
        self._until(lambda: nemesis.over, self.plan.lasts * limits.MILLISECOND + 30 * limits.SECOND)
        self.recorder.note("healed")
        self._healed = self.world.now
        if not self._until(self._at_rest, self._live_within):
            many = f", and after {self.world.events:,} events" if self.world.events >= MOST_EVENTS else ""
            since = (self.world.now - self._healed) / limits.SECOND
            what = f"not done {since:.0f} s after the last fault{many}: {self._stuck()}"
            return [*self.rollbacks, *self.moves.violations, Violation("I13 live", what)]
        violations = [*self.rollbacks, *check(self.plan, self.recorder.history, self.dealer.void)]
        violations += [*self.bystander.violations, *self.moves.check(self.recorder.history)]
        violations += self._check_end(operator)
        violations += self._check_copies()
        return violations + [Violation("I14 no hang", what) for what in sorted(self._hangs)]

    async def _create(self, operator: Worker) -> None:
        await servers_joined(operator, self.plan.servers)
        await operator.client.create(TABLE, self._spec())

    def _spec(self) -> Table:
        plan = self.plan
        apply: Each | Step = Each()
        if plan.kind == "step":
            apply = Step(plan.slots_per_step, slots_per_pass=plan.slots_per_pass)
        keys = COLUMNS * limits.SEGMENTS_PER_SERVER * plan.servers
        # All pushed values are exact in 16 bits, except the sums that tell steps apart.
        wire: Wire = "bfloat16" if plan.seed % 2 and plan.kind != "step" else "float32"
        pressed = [Filter("delta")] if plan.seed // 8 % 2 else []  # it loses nothing
        if plan.dense:
            return Dense(rows=keys, apply=apply, max_delay=plan.max_delay, wire=wire, filters=pressed)
        return Sparse(keys=keys, apply=apply, max_delay=plan.max_delay, wire=wire, filters=pressed)

    async def _change_delay(self, operator: Worker) -> None:
        for _ in range(3):
            await operator.sleep(self.random.randrange(100, 1_000) * limits.MILLISECOND)
            delay = self.random.choice([0, 1, 2, 5, None])
            self.recorder.note("delay asked", value=delay)
            try:
                await operator.client.set_max_delay(TABLE, delay)
            except ShoalError:
                return  # either may be in force from now on: the note above says so
            self.recorder.note("delay set", value=delay)

    def crash(self, fault: Fault) -> bool:
        if fault.who in self.workers:
            self.world.crash(fault.who)
            return True
        return self.cluster.crash(fault.who, fault.how == "seen")

    def restart(self, name: str) -> None:
        if name in self.workers:
            self.dealer.give_back(name)
            self._start(name)
        else:
            self.cluster.restart(name)

    def carry_out(self, fault: Fault, until: int) -> bool:
        if fault.kind == "twin" and fault.who in self.workers:
            worker, _ = self._worker(fault.who)
            self.world.add_twin(worker, until - self.world.now)
            self.world.at(until, lambda: self._twin_ended(worker))
        elif fault.kind == "rogue":
            if (sent := workload.nonsense(self.plan, self.workers[fault.who], fault.how)) is not None:
                self.world.counts["rogue pushes"] += 1
                self.world.send(fault.who, fault.others[0], *sent)
        else:
            return self.moves.carry_out(fault, until)
        return True

    def heal(self) -> None:
        self.moves.heal()
        self.bystander.stopped = True

    def _start(self, name: str) -> None:
        self.workers[name], self._lives[name] = self._worker(name)
        self.cluster.add(self.workers[name])

    def _worker(self, name: str) -> tuple[Worker, Task]:
        self._life += 1
        role = "client" if self.plan.kind == "clients" else "worker"
        worker = Worker(name, role, f"life-{self._life}", seed=self._life)
        self.all_workers.append(worker)
        worker.on_fenced = lambda: self.world.counts.update(["fenced workers"])
        random = Random(f"{self.plan.seed}/{name}/{self._life}")
        if self.plan.kind == "clients":
            column = int(name.rpartition("-")[2])
            pushed = self.pushed.setdefault(name, [0])
            life = worker.start(workload.client_life(worker, self.recorder, column, pushed, random))
        else:
            if self.plan.kind == "step":
                hand = worker.start(workload.returned_slots_life(worker, self.recorder, self.dealer, random))
                hand.then(lambda task: self._on_life_end(worker, task))
            life = worker.start(workload.worker_life(worker, self.recorder, self.dealer, random))
        life.then(lambda task: self._on_life_end(worker, task))
        return worker, life

    def _on_life_end(self, worker: Worker, task: Task) -> None:
        if isinstance(task.error, workload.IncarnationEnded):
            self._stopped(worker)
        elif task.error is not None and self._failure is None:
            assert isinstance(task.error, Exception)
            self._failure = task.error

    def _stopped(self, worker: Worker) -> None:
        """Ends this incarnation of a worker and starts the next."""
        self.world.at(self.world.now, lambda: self._restart_worker(worker))

    def _restart_worker(self, worker: Worker) -> None:
        if self.workers[worker.name] is worker and worker.name in self.world.hosts:
            self.world.counts["lives that stopped"] += 1
            self.world.crash(worker.name)
            self.restart(worker.name)

    def _crashed(self, name: str) -> None:
        if name in self.workers:
            self._note_end(self.workers[name])

    def _twin_ended(self, worker: Worker) -> None:
        self._note_end(worker)
        self.dealer.give_back(worker.name)  # its twin's slots too: computed twice, counted once

    def _note_end(self, worker: Worker) -> None:
        self.recorder.note("crashed", worker.name, worker.client.session.incarnation)

    def _start_bystander(self) -> None:
        worker = Worker(NAME, "client", "only", seed=self.plan.seed)
        self.all_workers.append(worker)
        self.workers[NAME] = worker
        self._lives[NAME] = worker.start(self.bystander.life(worker, self.cluster.is_complete))
        self.cluster.add(worker)

    def _at_rest(self) -> bool:
        """All work is done, every node is back, and segments are balanced."""
        done = self.plan.kind == "clients" or self.dealer.finished
        done = done and all(life.done and life.error is None for life in self._lives.values())
        return done and self.moves.settled and self.cluster.is_complete() and not self.moves.uneven()

    def _stuck(self) -> str:
        parts = []
        for name, life in self._lives.items():
            if not life.done:
                parts.append(f"{name}: {'; '.join(calls_of(self.workers[name]))}")
        if not self.cluster.is_complete():
            sets = {str(place) for table in self.cluster.tables() for place in table.places}
            parts.append(f"copies are missing: {', '.join(sorted(sets)[:4])}")
        return ", ".join([*parts, *self.moves.stuck()])

    @property
    def _live_within(self) -> int:
        return round(LIVE_WITHIN * max(1.0, self.plan.scale))

    def _until(self, done: Callable[[], bool], within: int) -> bool:
        ended = self.world.run(done, self.world.now + within, MOST_EVENTS)
        if self._failure is not None:
            raise self._failure
        return ended

    def _on_event(self, event: RunEvent) -> None:
        if isinstance(event, RolledBack):  # no plan of a store takes the last copy
            why = f"the run rolled back although copies were left: {event.why}"
            self.rollbacks.append(Violation("P1 kept", why))
        self.moves.on_event(event)

    def _after_event(self, name: str) -> None:
        self.moves.after_event(name)
        if name == COORDINATOR:
            self._see_members()
        elif (worker := self.workers.get(name)) is not None:
            pending = worker.client.dispatcher.inflight.requests.values()
            deadline = worker.now - worker.member.timing.silence - worker.member.timing.resend_most
            if any(one.last_sign < deadline for one in pending):
                self._hangs.add("a call had no sign of an answer past its deadline")
            self._see_unanswered(worker)

    def _see_unanswered(self, worker: Worker) -> None:
        """Notes servers that are reported silent although all faults ended long ago."""
        count = worker.client.session.counts["unanswered"]
        if count > self._unanswered.get(worker, 0):
            self._unanswered[worker] = count
            if 0 < self._well_since() < self.world.now - 2 * worker.member.timing.silence:
                self._hangs.add("a reachable server was reported silent long after the last fault")
            self.world.counts["unanswered"] += 1

    def _well_since(self) -> int:
        """When the last fault ended; 0: not yet. A pause may last longer than the others."""
        return max([self._healed, *(host.paused_until for host in self.world.hosts.values())]) if self._healed else 0

    def _see_members(self) -> None:
        roster = self.cluster.coordinator.roster
        if self._view == (roster.term, roster.number):
            return
        self._view = (roster.term, roster.number)
        members = {member.name: member.incarnation for member in roster.view().members}
        for gone, incarnation in self._members.items():
            if members.get(gone) != incarnation:
                self.recorder.note("removed", gone, incarnation)
        self._members = members

    def _check_end(self, operator: Worker) -> list[Violation]:
        layout = operator.client.session.layout(TABLE)
        task = operator.start(pull_until_answered(operator, TABLE, self.recorder.everything(layout)))
        self.world.tell("operator")
        if not self._until(lambda: task.done, self._live_within) or task.error is not None:
            return [Violation("I13 live", f"the final pull failed: {task.error or 'no answer'}")]
        return check_end(self.plan, self.recorder.history, self.dealer.void, self.recorder.table(task.value))

    def _check_copies(self) -> list[Violation]:
        """I7; and I8 and I12 a little later, when nothing is in flight."""
        later = self.world.now + REST
        self.world.at(later, lambda: None)
        self._until(lambda: self.world.now >= later, 2 * REST)
        # something may have moved since
        self._until(lambda: self._at_rest() and settled(self.cluster), self._live_within)
        return [*self.owners.violations, *differences(self.cluster), *left_behind(self.cluster)]


def _counters(run: StoreRun) -> Iterator[dict[str, int]]:
    yield run.moves.stragglers.counts
    for coordinator in run.cluster.coordinators:
        yield {f"coordinator: {what}": n for what, n in coordinator.counts.items()}
    for server in [*run.cluster.former, *run.cluster.servers.values()]:
        yield {f"server: {what}": n for what, n in server.counts.items()}
        yield server.key_lists.facts("server: lists")
        for table_server in server.tables.values():
            yield {f"server: {what}": n for what, n in table_server.counts.items()}
            if table_server.primary is not None:
                yield {f"server: {what}": n for what, n in table_server.primary.counts.items()}
    yield from client_counts(run.all_workers)
    for worker in run.all_workers:
        yield {f"client: lists, {what}": n for what, n in worker.client.session.key_cache.counts.items()}


def run_plan(plan: FaultPlan, trace: Trace | None = None) -> Verdict:
    return StoreRun(plan, trace).verdict()


STORE = Scenario(
    name="store",
    draw=FaultPlan.draw,
    run=run_plan,
    sometimes=counters("""
        fenced workers; lives that stopped; rogue pushes; slots that took longer
        client: busy; counted before; fenced; late answers; lists, forgotten; lists, hits; resent
        client: unanswered
        coordinator: fenced; filled; late hello; removed; shrunk
        disk: records refused by a full disk
        disk: records that were never acknowledged, and survived
        fault: clog; crash coordinator; crash server; crash worker; cut coordinator; cut server
        fault: cut worker; pause coordinator; pause server; pause worker; full coordinator; rogue
        fault: halting worker; slower worker; stall worker; twin server; twin worker; withheld
        network: clogged; cut off; dropped; lost; repeated; slow; very late
        rare: adopt with changes; coordinator crashed during a failover; levels with changes
        rare: coordinator crashed during a fill; duplicate reached the new primary
        rare: filled with counted pushes; server crashed during a fill; acknowledged by a deposed server
        server: lists let go; another life; fenced; held again; levelled; moved; opening
        server: out of order; promoted; refused; repeated; returned from parking; steps
        server: view behind; void; waited
        servers that ended: refused
    """),
)
MOVES = Scenario(
    name="moves",
    draw=moves_driver.draw,
    run=run_plan,
    sometimes=counters("""
        coordinator: segments split
        fault: ambush; drain server; far server; freeze server; join server; roll
        fault: sluggish coordinator
        moves: named; copied; full; handed; given up; rolled through all servers
        moves: servers that left; servers that came back; hand-over reported
        network: far
        servers that ended: refused
    """),
)
