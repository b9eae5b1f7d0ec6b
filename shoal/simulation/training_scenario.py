"""The scenario TRAINING: whole runs with faults, by the classes that ship."""

from __future__ import annotations

from collections import Counter

from shoal.events import RolledBack, Saved, Stopped
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.nodes.server import Server
from shoal.nodes.strategy import TABLE, TALLY
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.simulation.scenarios import Scenario, Trace, Verdict, Violation, each, raised
from shoal.simulation.training_checker import FinalTables, TrainingChecker, patience_of
from shoal.simulation.training_plan import TrainingPlan, draw
from shoal.simulation.training_watch import PartsWatch
from shoal.simulation.training_world import BEGINS_WITHIN, Origin, TrainingWorld, nemesis_of, paced
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.parameter_server.algorithm import Async, Bounded, Sync

_WORDS = ("epoch", "step", "target", "improvement", "seconds")
AFTER = 30 * SECOND  # the last fault, and all nodes are back


class TrainingScenario:
    """One plan, from its first node to the verdict."""

    def __init__(self, plan: TrainingPlan, trace: Trace | None = None) -> None:
        self.plan, self.trace = plan, trace
        self.lives: list[TrainingWorld] = []
        self.counts: Counter[str] = Counter()
        self.parts = PartsWatch()

    def verdict(self) -> Verdict:
        try:
            with paced(self.plan), self.parts.watching():
                violations = self._run()
        except Exception as error:
            violations = [raised(error)]
        finally:
            for one in self.lives:
                one.close()
        for one in self.lives:
            self.counts.update(_counts(one))
        return Verdict(
            self.plan,
            violations,
            sum(one.world.events for one in self.lives),
            sum(one.world.now for one in self.lives) / SECOND,
            "".join(one.world.digest for one in self.lives),
            self.counts,
        )

    def _run(self) -> list[Violation]:
        first = self._life(self.plan)
        found = self._live(first, None)
        if found is None and not self.plan.ends and self.plan.group and "resume" in first.scheduler.failed:
            self.counts["runs of a group that were resumed"] += 1
        elif found is not None or not self.plan.ends:
            return found or []
        plan = self.plan.taken_up()
        second = self._life(plan, first)
        # On the disk after the crash: an unreported checkpoint may look complete in the cache only.
        origin = second.newest_checkpoint()
        self.counts["runs taken up from a checkpoint" if origin else "runs begun again"] += 1
        return [*_lost(first, origin), *(self._live(second, origin) or [])]

    def _life(self, plan: TrainingPlan, former: TrainingWorld | None = None) -> TrainingWorld:
        disk = None if former is None else former.cluster.disk.crash(f"{plan.seed}/{plan.ends}")
        run = TrainingWorld(plan, self.trace, disk=disk, number=len(self.lives), parts=self.parts)
        run.dealt |= set() if former is None else former.dealt
        self.lives.append(run)
        return run

    def _live(self, run: TrainingWorld, origin: Origin | None) -> list[Violation] | None:
        """The violations of this life; None if it ended early without checks."""
        if not run.set_up(origin, self.plan.job):
            return [Violation("I13 live", "no tables 30 s after the beginning, without any fault")]
        nemesis = nemesis_of(run)
        if "early faults" not in self.plan.habits:
            run.until(run.begun, BEGINS_WITHIN)
        began = run.world.now
        nemesis.begin()
        if run.plan.ends:
            ends = began + run.plan.ends * MILLISECOND
            run.world.at(ends, lambda: None)
            bare = run.plan.seed % 8 == 0  # it may end before there is any checkpoint
            run.until(lambda: (run.world.now >= ends and (bare or run.saved)) or run.scheduler.ended, AFTER)
            if not run.scheduler.ended:
                return None
        run.until(lambda: nemesis.over or run.over, run.plan.lasts * MILLISECOND + AFTER)
        nemesis.stop()
        run.until(lambda: nemesis.over, AFTER)
        within = patience_of(run.plan, min(run.scheduler.workload.limit, 4 * run.plan.slots)) * MILLISECOND
        if not run.until(lambda: run.over, within):
            return [Violation("I13 live", f"not over {within // SECOND} s after all was healed: {self._stuck(run)}")]
        if run.plan.group and "resume this run" in run.scheduler.failed and run.plan.beyond:
            return None
        ends_with = FinalTables(run.pull(TABLE), run.pull(TALLY))
        checker = TrainingChecker(run, ends_with, origin is not None)
        found = [*run.staleness.violations[:3], *run.delays.violations[:3], *run.elastic.violations, *checker.check()]
        if run.auditor is not None:
            found += run.auditor.violations[:3]
            self.counts["reads of the account"] += run.auditor.reads
        self.counts["models held against the serial run"] += checker.held
        return found

    def _stuck(self, run: TrainingWorld) -> str:
        scheduler = run.scheduler
        work = scheduler.workload
        parts = [f"{work.done} of {work.limit} slots, over {scheduler.over!r}, failed {scheduler.failed!r}"]
        parts += [f"events {run.world.events}"]
        for name, task in run.nodes.ends.items():
            if not task.done and name in run.world.hosts:
                worker = next(one for one in reversed(run.nodes.everyone) if one.name == name)
                tasks = [repr(op.task) for op in dict.fromkeys(worker.client.dispatcher.running.values())]
                parts.append(f"{name}: {'; '.join(tasks[:3]) or 'nothing under way'}")
        return ", ".join(parts)


def _lost(run: TrainingWorld, found: Origin | None) -> list[Violation]:
    """I9: a reported checkpoint, or a later one, survives this life, unless a fault damaged it."""
    told = 0
    for event in run.told:
        if isinstance(event, Saved):
            told = event.number
        elif isinstance(event, RolledBack):
            told = event.checkpoint or 0
    newest = 0 if found is None else found[1].number
    if newest >= told or run.cluster.damaged:
        return []
    return [Violation("I9 durable", f"checkpoint {told} was told of, and {newest or 'none'} is there after a crash")]


def _counts(run: TrainingWorld) -> Counter[str]:
    """The counters of one life."""
    counts = Counter({w if ":" in w else f"network: {w}": n for w, n in run.world.counts.items()})
    counts.update(type(event).__name__.lower() for event in run.told)
    if run.cluster.coordinators:
        scheduler = run.scheduler
        counts.update({f"run: {what}": n for what, n in scheduler.counts.items() if len(what) < 40})
        counts["void slots"] += len(scheduler.workload.voids)
    for event in run.told:
        if isinstance(event, Stopped):
            counts.update(f"stopped: {word}" for word in _WORDS if word in event.why)
    counts["workers that left"] += len(run.left & run.leaving.keys())
    counts["schedulers started again"] += max(0, len(run.schedulers) - 1)
    counts["evaluators started again"] += (
        sum(one.client.session.role == "evaluator" for one in run.nodes.everyone[1:]) - 1
    )
    counts["answers held against the staleness bound"] += run.staleness.checked
    counts["delays that changed"] += run.delays.changes
    for worker in run.nodes.everyone:
        counts.update({f"client: {what}": n for what, n in worker.client.session.counts.items()})
        counts["client: resent"] += worker.client.dispatcher.inflight.resent
    return counts


TRAINING = Scenario(
    name="training",
    draw=draw,
    run=lambda plan, trace: TrainingScenario(plan, trace).verdict(),
    nodes=(
        *(Async, BlockProximal, Bounded, Sync),
        *(Coordinator, Scheduler, Evaluator, DrainableNode, SchedulerNode, Server, Trainer, Worker),
    ),
    sometimes=(
        "answers held against the staleness bound",
        "delays that changed",
        "evaluators started again",
        "models held against the serial run",
        "reads of the account",
        "runs taken up from a checkpoint",
        "schedulers started again",
        "void slots",
        "workers that left",
        "client: fenced",
        "client: resent",
        "disk: writes torn by a crash",
        *each("fault", "crash coordinator", "crash evaluator", "crash group/scheduler", "crash server"),
        *each("fault", "crash worker", "cut worker", "drain server", "full coordinator", "halting worker"),
        *each("fault", "hire worker", "join server", "leave worker", "pause worker", "power", "rot"),
        *each("fault", "slower worker", "stall worker", "twin worker"),
        "network: lost",
        "network: repeated",
        "rare: one of two of a name gave way",
        *each("run", "coordinator restarts", "rollbacks", "second copies", "second copies first"),
        *each("run", "slots dealt again", "slots with newer weights", "workers lost"),
        *each("stopped", "epoch", "improvement", "seconds", "step", "target"),
    ),
)
