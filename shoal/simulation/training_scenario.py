"""The scenario TRAINING: whole runs with faults, by the classes that ship; and their checks.

    I1 exactly-once    every slot counts once, in the tally and (where weights count) in the model
    P3 same bits       sync: all evaluated models equal the serial run's after the same step
    P8, I9             a run rolls back only when all copies are lost, and never past a reported
                       checkpoint
    evaluations        are in order, at the right steps, and of the model that they name
    stop rules         the run ends by the rule that its evaluations call for, and says so
    order              events come in a possible order
    resume             a resumed run computes what its checkpoint lacks, and nothing else

Nothing is raised, so that a mutant is caught by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np

from shoal.errors import ShoalError
from shoal.events import Evaluated, RolledBack, Saved, Started, Stopped, Voided
from shoal.keys import Values
from shoal.limits import MILLISECOND, SECOND
from shoal.schedule.intervals import spread
from shoal.schedule.slot_queue import DEATHS
from shoal.schedule.stop_rules import ENDLESS
from shoal.simulation.cluster import calls_of, client_counts
from shoal.simulation.reference import weights_by_step
from shoal.simulation.scenarios import Scenario, Trace, Verdict, Violation, counters, judge
from shoal.simulation.training_plan import STEP, TrainingPlan, draw
from shoal.simulation.training_world import BEGINS_WITHIN, Origin, PartsWatch, TrainingWorld, paced
from shoal.simulation.world import World
from shoal.tables import TABLE, TALLY

WAYS = 1_000  # block-proximal: combinations of holders that are tried
LEGITIMATE = (  # ends that a plan may bring about, with the words that say so
    "no worker was there for the first slot",
    "no worker is left to compute",
)


class TrainingChecker:
    def __init__(self, run: TrainingWorld, weights: Values | None, tally: Values | None, resumed: bool) -> None:
        """``weights`` and ``tally`` are the tables at the end, None if they could not be read."""
        self.run, self.plan, self.weights, self.tally, self.resumed = run, run.plan, weights, tally, resumed
        self.work = run.scheduler.workload
        self.compared = 0  # models compared with the serial run
        self._limit, self._limit_reason = limit_of(run.plan)
        per_pass = run.plan.slots_per_pass or 1
        self._every = max(1, round(run.plan.evaluate * per_pass)) if run.plan.evaluate else ENDLESS
        self.rolled_back = any(isinstance(event, RolledBack) for event in run.events)

    def check(self) -> Iterator[Violation]:
        yield from self._ends()
        yield from self._order()
        yield from self._rollbacks()
        yield from self._evaluations()
        yield from self._exactly_once()
        yield from self._same_bits()
        if not self.run.scheduler.failed:
            yield from self._stop_rules()
        if self.resumed and not self.plan.faults and not self.plan.settings.get("second_copies"):
            yield from self._nothing_twice()

    def _nothing_twice(self) -> Iterator[Violation]:
        """A resumed run without faults computes what its checkpoint lacks, and nothing else."""
        computed = sum(trainer._done for trainer in self.run.nodes.trainers.values())
        lacked = self.work.done - self.run.resumed_slots
        if computed != lacked:
            what = f"{computed} slots were computed after a checkpoint with {self.run.resumed_slots}, expected {lacked}"
            yield Violation("resume", what)

    def _ends(self) -> Iterator[Violation]:
        for name, error in self.run.broken.items():
            what = f"{name} ended with {type(error).__name__}: {error}"
            yield Violation("P10 goes on" if isinstance(error, ShoalError) else f"raised {type(error).__name__}", what)
        failed = self.run.scheduler.failed
        if failed and not self._may_fail(failed):
            yield Violation("P10 goes on", f"the run failed: {failed}")
        if (self.weights is None or self.tally is None) and not self.plan.beyond:
            yield Violation("I13 live", "the tables could not be read after the run had ended")

    def _may_fail(self, why: str) -> bool:
        """Whether the plan explains a failure: no workers, or a lost model."""
        if self.plan.group and self.plan.beyond and "resume this run" in why:
            return True
        if len(self.run.schedulers) > 1 and "has taken the name" in why:  # see TrainingWorld._broke
            return True
        return bool(self.plan.faults) and any(one in why for one in LEGITIMATE)

    def _order(self) -> Iterator[Violation]:
        kinds = [type(event) for event in self.run.events]
        if Evaluated in kinds and (Started not in kinds or kinds.index(Evaluated) < kinds.index(Started)):
            yield Violation("order", "a model was evaluated before the run had started")
        # A scheduler may end between a line of its journal and the ack of its event; its next life
        # then repeats the event. So only events from before the end may come once more.
        stop = kinds.index(Stopped) if Stopped in kinds else len(kinds)
        before = [event for event in self.run.events[:stop] if isinstance(event, Evaluated)]
        if any(isinstance(event, Evaluated) and event not in before for event in self.run.events[stop:]):
            yield Violation("order", "a model was evaluated after the run had stopped")
        whys = {event.why for event in self.run.events if isinstance(event, Stopped)}
        if len(whys) > 1:
            yield Violation("order", f"the run reported several reasons to stop: {sorted(whys)}")

    def _rollbacks(self) -> Iterator[Violation]:
        saved = 0
        for event in self.run.events:
            if isinstance(event, Saved):
                saved = event.number
            elif isinstance(event, RolledBack):
                if (event.checkpoint or 0) < saved and not self.run.cluster.damaged:
                    back = event.checkpoint or "the beginning"
                    yield Violation("I9 durable", f"checkpoint {saved} was reported, but the run rolled back to {back}")
                if not self.plan.beyond:
                    yield Violation("P1 kept", f"the run rolled back although copies were left: {event.why}")
                saved = event.checkpoint or 0

    @cached_property
    def _valid_evaluations(self) -> list[tuple[Evaluated, Values | None]]:
        """Evaluations of the past that holds, each once; some may be reported again."""
        found: list[tuple[Evaluated, Values | None]] = []
        for event, weights in self.run.evaluated:
            while found and found[-1][0].number >= event.number:
                before = found.pop()
                if before[0].number == event.number:
                    weights = before[1] if weights is None else weights
            found.append((event, weights))
        return found

    def _evaluations(self) -> Iterator[Violation]:
        known: dict[int, Evaluated] = {}
        for event, _ in self.run.evaluated:
            again = known.get(event.number)
            same = again is None or (again.steps, again.test_loss) == (event.steps, event.test_loss)
            if not same and not self.rolled_back:
                yield Violation("evaluations", f"evaluation {event.number} was reported twice, with different results")
            known[event.number] = event
        evaluations = [event for event, _ in self._valid_evaluations]
        numbers = [event.number for event in evaluations]
        first = numbers[0] if self.resumed and numbers else 0
        if numbers != list(range(first, first + len(numbers))):
            yield Violation("evaluations", f"evaluations {numbers}: some are missing")
        if any(after.steps < before.steps for before, after in pairwise(evaluations)):
            yield Violation("evaluations", f"steps {[event.steps for event in evaluations]} are not in order")
        if self.work.step is not None:
            yield from self._at_their_steps(evaluations)
        elif self.plan.counts:
            for before, (event, weights) in zip([None, *evaluations], self._valid_evaluations, strict=False):
                yield from self._at_its_slots(before, event, weights)

    def _at_their_steps(self, evaluations: list[Evaluated]) -> Iterator[Violation]:
        """In step mode: before the first step, every so many slots, and after the last."""
        planned, every, at = [0], self._every, 0
        while every < ENDLESS and at < self._limit:
            at = self.work.slots_until(self.work.steps_until((at // every + 1) * every))
            planned.append(self.work.steps_until(at))
        if self.run.scheduler.counts["evaluations of a later step"]:
            if not self.resumed and self.run.evaluators < 2:
                yield Violation("evaluations", "one is of a later step than requested, but no evaluator was lost")
            return  # an evaluator died, and another evaluated what was there: bits are checked
        for event in evaluations:
            last = self.run.scheduler.ended and event is evaluations[-1]
            if event.steps not in planned and not last:
                yield Violation("evaluations", f"one is at step {event.steps}, expected only at {planned[:9]}")
        if self.run.scheduler.ended and not self.run.scheduler.failed:
            steps = [event.steps for event in evaluations]
            missing = [step for step in planned if steps and steps[0] <= step < steps[-1] and step not in steps]
            if missing:
                yield Violation("evaluations", f"there are none at steps {missing[:9]}")
            if not steps or steps[-1] != self.work.steps_until(self.work.limit):
                yield Violation("evaluations", f"the last is at step {steps[-1:]}, the run ended at {self.work.steps}")

    def _at_its_slots(self, before: Evaluated | None, event: Evaluated, weights: Values | None) -> Iterator[Violation]:
        """Where pushes count at once: all named slots are in it, and few others."""
        if weights is None:
            return
        inside, every = round(float(weights.astype(np.float64).sum() / STEP)), self._every
        events = self.run.events
        later = sum(isinstance(one, Voided) for one in events[events.index(event) :])
        named = event.steps - (len(self.work.voids) - later)  # slots are not done in order
        if inside < named:
            what = f"evaluation {event.number} names {named} slots, but only {inside} are in its model"
            yield Violation("evaluations", what)
        most = self._limit
        if every < ENDLESS and before is not None:
            most = min(most, (before.steps // every + 2) * every)
        if inside > most and not self._may_have_more:
            what = f"evaluation {event.number}, after {event.steps} slots, has {inside} in its model: at most {most} expected"
            yield Violation("evaluations", what)

    def _exactly_once(self) -> Iterator[Violation]:
        tally, work, failed = self.tally, self.work, bool(self.run.scheduler.failed)
        if tally is None:
            return
        counted = np.array([work.is_counted(slot) for slot in range(len(tally))], np.float32)
        # In step mode a checkpoint is of a step, and of the tally without what is in flight to it.
        back = work.step is not None and (self.resumed or self.rolled_back)
        more = failed or self._may_have_more
        wrong = np.flatnonzero((tally > 1) | ((tally < counted) & (not back)) | ((tally > counted) & (not more)))
        if len(wrong):
            found = ", ".join(f"slot {slot}: {tally[slot]:g}, not {counted[slot]:g}" for slot in wrong[:6].tolist())
            yield Violation("I1 exactly-once", f"{len(wrong)} slots have wrong counts: {found}")
        if not failed and work.done != work.limit:
            yield Violation("I1 exactly-once", f"{work.done} slots are counted, expected {work.limit}")
        if self.plan.counts and not failed and self.weights is not None:
            yield from self._counted_in_weights(self.weights)

    @property
    def _may_have_more(self) -> bool:
        """Slots may be in the model, but not in the journal of a scheduler that ended.

        They are found counted later, unless the run ends within an epoch without them.
        """
        return self.work.step is None and (self.run.scheduler._resumed or self.rolled_back)

    def _counted_in_weights(self, weights: Values) -> Iterator[Violation]:
        """Every counted slot is in the model once.

        A void slot may be in it, since a dead worker may have pushed it before. So may any
        assigned slot where the model may have more. The tally proves nothing about those: it is
        another push to other servers, and their worker may have died between the two.
        """
        order, expected = self.work.order, np.zeros(len(weights))
        either, dealt = np.zeros(len(weights)), self.run.dealt if self._may_have_more else set[int]()
        for slot in {*spread(self.work.counted(), ENDLESS), *self.work.voids, *dealt}:
            sure = self.work.is_counted(slot) and slot not in self.work.voids
            possible = slot in self.work.voids or slot in dealt
            content = order.content(*divmod(slot, self.work.per_pass))
            expected[content] += sure
            either[content] += possible and not sure
        found = weights.astype(np.float64) / STEP
        wrong = np.flatnonzero((found < expected) | (found > expected + either))
        if len(wrong):
            some = "; ".join(f"{found[one]:g}, expected {expected[one]:g}" for one in wrong[:6].tolist())
            yield Violation("I1 exactly-once", f"{len(wrong)} weights differ from the counted slots: {some}")

    @property
    def _is_exact(self) -> bool:
        """Whether no event happened that may change the bits."""
        died = any(why.startswith(f"{DEATHS} workers died") for why in self.work.voids.values())
        newer = self.run.scheduler.counts["slots with newer weights"]
        behind = self.plan.settings.get("max_delay")
        # a part that changes its holder begins with newer weights
        if self.plan.strategy == "block-proximal":
            behind = behind and (self.plan.faults or self.resumed)
            # it repeated a part of what was evaluated
            behind = behind or (self.rolled_back and self.run.scheduler.failed)
        return not (died or newer or behind)

    def _same_bits(self) -> Iterator[Violation]:
        if self.work.step is None or not self._is_exact:
            return
        models = [
            (event.steps, f"the model of evaluation {event.number}", weights)
            for event, weights in self._valid_evaluations
            if weights is not None
        ]
        self.compared += len(models)
        if not self.run.scheduler.failed and self.weights is not None:
            models.append((self.work.steps_until(self.work.limit), "the model", self.weights))
        wrong, run, starts = "", self.run, self.run.starts
        # The serial run's weights by step: several ways where a part changed its holder.
        for way, holders in enumerate(run.parts.holders(len(starts))):
            serial = weights_by_step(run.job, run.dataset, self.work.voids, holders, starts)
            expected = list(islice(serial, self.work.steps_until(self.work.limit) + 1))
            other = next((one for one in models if not np.array_equal(one[2], expected[one[0]])), None)
            if other is None:
                return
            if way == WAYS:
                run.world.counts["rare: too many possible holders to compare models"] += 1
                return
            wrong = wrong or f"{other[1]} differs from the serial run after step {other[0]}"
        yield Violation("P3 same bits", wrong)

    def _stop_rules(self) -> Iterator[Violation]:
        why = next((event for event in self.run.events if isinstance(event, Stopped)), None)
        if why is None:
            yield Violation("stop rules", "the run ended without reporting a reason")
            return
        limit, reason = self._limit, self._limit_reason
        if self.work.done > limit:
            yield Violation("stop rules", f"{self.work.done} slots were counted, at most {limit} expected")
        if why.why == reason and self.work.done != limit:
            yield Violation("stop rules", f"stopped with {reason!r} after {self.work.done} of {limit} slots")
        seconds = self.plan.stop.get("seconds")
        if why.why.endswith("seconds are over") and (seconds is None or why.seconds < seconds):
            yield Violation("stop rules", f"stopped with {why.why!r} after {why.seconds:g} seconds")
        if not self.rolled_back and not self.resumed:
            yield from self._by_loss(why.why)

    def _by_loss(self, why: str) -> Iterator[Violation]:
        """The first evaluation that calls for an end causes it: at most one more follows."""
        rules: dict[str, Any] = self.plan.stop
        evaluations = [event for event, _ in self._valid_evaluations]
        ends, reason = len(evaluations) - 1, ""
        mark, without = float("inf"), 0
        for place, event in enumerate(evaluations):
            better = event.test_loss < mark - rules.get("min_delta", 0.0)
            mark, without = (event.test_loss, 0) if better else (mark, without + 1)
            if event.test_loss <= rules.get("target_loss", -1.0):
                reason = f"target loss {rules['target_loss']:g} reached"
            elif without >= rules.get("patience", ENDLESS):
                reason = f"no improvement in {rules['patience']} evaluations"
            if reason:
                ends = place
                break
        if reason and len(evaluations) - 1 > ends + 1:
            yield Violation("stop rules", f"{reason!r} at evaluation {ends}, but the last is {len(evaluations) - 1}")
        by_loss = why.startswith(("target loss", "no improvement"))
        if by_loss and why != reason:
            yield Violation("stop rules", f"stopped with {why!r}, but evaluations call for {reason or 'nothing'!r}")
        if reason and not by_loss and ends < len(evaluations) - 2:
            yield Violation("stop rules", f"stopped with {why!r}, long after evaluations called for {reason!r}")


def limit_of(plan: TrainingPlan) -> tuple[int, str]:
    """The slots of a run by its epochs or steps, and its reason; computed independently."""
    per_pass, stop = plan.slots_per_pass or 1, plan.stop
    in_step: int = plan.settings.get("slots_per_step") or plan.settings.get("parts") or 1
    steps_in_pass = -(-per_pass // in_step)

    def slots(steps: int) -> int:
        passes, rest = divmod(steps, steps_in_pass)
        return passes * per_pass + min(rest * in_step, per_pass)

    found: list[tuple[int, str]] = []
    if (epochs := stop.get("epochs")) is not None:
        passes, rest = divmod(max(1, round(epochs * per_pass)), per_pass)
        whole = slots(passes * steps_in_pass + -(-rest // in_step))
        found.append((whole, f"{epochs:g} epoch{'' if epochs == 1 else 's'} done"))
    if (steps := stop.get("steps")) is not None:
        found.append((slots(steps), f"{steps} step{'' if steps == 1 else 's'} done"))
    return min(found)


_WORDS = ("epoch", "step", "target", "improvement", "seconds")
AFTER = 30 * SECOND  # the last fault, and all nodes are back


class TrainingScenario:
    def __init__(self, plan: TrainingPlan, trace: Trace | None = None) -> None:
        self.plan, self.trace = plan, trace
        self.lives: list[TrainingWorld] = []
        self.worlds: list[World] = []
        self.counts: Counter[str] = Counter()  # of all lives
        self.parts = PartsWatch()

    def verdict(self) -> Verdict:
        with paced(self.plan), self.parts.watching():
            found = judge(self.plan, self._run, self.worlds)
        found.counts.update(self.counts)
        for one in self.lives:
            one.close()
            found.counts.update(_counts(one))
        return found

    def _run(self) -> list[Violation]:
        first = self._life(self.plan)
        found = self._live(first, None)
        if found is None and not self.plan.ends and self.plan.group and "resume" in first.scheduler.failed:
            self.counts["runs of a group that were resumed"] += 1
        elif found is not None or not self.plan.ends:
            return found or []
        plan = self.plan.resumed()
        second = self._life(plan, first)
        # On the disk after the crash: an unreported checkpoint may look complete in the cache only.
        origin = second.newest_checkpoint()
        self.counts["runs resumed from a checkpoint" if origin else "runs started again"] += 1
        return [*_lost(first, origin), *(self._live(second, origin) or [])]

    def _life(self, plan: TrainingPlan, former: TrainingWorld | None = None) -> TrainingWorld:
        run = TrainingWorld(plan, self.trace, len(self.lives), self.parts)
        if former is not None:
            run.cluster.disk = run.world.disk = former.cluster.disk.crash(f"{plan.seed}/{plan.ends}")
            run.dealt |= former.dealt
        self.lives.append(run)
        self.worlds.append(run.world)
        return run

    def _live(self, run: TrainingWorld, origin: Origin | None) -> list[Violation] | None:
        """The violations of this life; None if it ended early without checks."""
        if not run.set_up(origin, self.plan.job):
            return [Violation("I13 live", "no tables after 30 s without any fault")]
        nemesis = run.moves.nemesis
        if "early faults" not in self.plan.habits:
            run.until(lambda: run.has_event(Started), BEGINS_WITHIN)
        began = run.world.now
        nemesis.begin()
        if run.plan.ends:
            ends = began + run.plan.ends * MILLISECOND
            run.world.at(ends, lambda: None)
            bare = run.plan.seed % 8 == 0  # it may end before there is any checkpoint
            run.until(lambda: (run.world.now >= ends and (bare or run.has_event(Saved))) or run.scheduler.ended, AFTER)
            if not run.scheduler.ended:
                return None
        run.until(lambda: nemesis.over or run.over, run.plan.lasts * MILLISECOND + AFTER)
        nemesis.heal()
        run.until(lambda: nemesis.over, AFTER)
        slots = min(run.scheduler.workload.limit, 4 * run.plan.slots)
        within = (40_000 + slots * run.plan.think) * MILLISECOND  # to notice deaths and compute
        if not run.until(lambda: run.over, within):
            return [Violation("I13 live", f"not over {within // SECOND} s after the last fault: {self._stuck(run)}")]
        if run.plan.group and "resume this run" in run.scheduler.failed and run.plan.beyond:
            return None
        checker = TrainingChecker(run, run.pull(TABLE), run.pull(TALLY), origin is not None)
        found = [*run.staleness.violations[:3], *run.delays.violations[:3], *run.moves.violations, *checker.check()]
        if run.auditor is not None:
            found += run.auditor.violations[:3]
            self.counts["reads of the tally"] += run.auditor.reads
        self.counts["models compared with the serial run"] += checker.compared
        return found

    def _stuck(self, run: TrainingWorld) -> str:
        scheduler = run.scheduler
        work = scheduler.workload
        parts = [f"{work.done} of {work.limit} slots, over {scheduler.over!r}, failed {scheduler.failed!r}"]
        parts.append(f"{run.world.events} events")
        for name, task in run.nodes.ends.items():
            if not task.done and name in run.world.hosts:
                worker = next(one for one in reversed(run.nodes.all_workers) if one.name == name)
                parts.append(f"{name}: {'; '.join(calls_of(worker)[:3])}")
        return ", ".join(parts)


def _lost(run: TrainingWorld, found: Origin | None) -> list[Violation]:
    """I9: a reported checkpoint, or a later one, survives this life, unless a fault damaged it."""
    reported = 0
    for event in run.events:
        if isinstance(event, Saved):
            reported = event.number
        elif isinstance(event, RolledBack):
            reported = event.checkpoint or 0
    newest = 0 if found is None else found[1].number
    if newest >= reported or run.cluster.damaged:
        return []
    return [Violation("I9 durable", f"checkpoint {reported} was reported, and the newest is {newest or 'none'}")]


def _counts(run: TrainingWorld) -> Counter[str]:
    counts = Counter(type(event).__name__.lower() for event in run.events)
    if run.cluster.coordinators:
        scheduler = run.scheduler
        counts.update({f"run: {what}": n for what, n in scheduler.counts.items() if len(what) < 40})
        counts["void slots"] += len(scheduler.workload.voids)
    for event in run.events:
        if isinstance(event, Stopped):
            counts.update(f"stopped: {word}" for word in _WORDS if word in event.why)
    counts["workers that left"] += len(run.left & run.leaving.keys())
    counts["schedulers started again"] += max(0, len(run.schedulers) - 1)
    counts["evaluators started again"] += run.evaluators - 1
    counts["answers checked for staleness"] += run.staleness.checked
    counts["delays that changed"] += run.delays.changes
    for part in client_counts(run.nodes.all_workers):
        counts.update(part)
    return counts


TRAINING = Scenario(
    name="training",
    draw=draw,
    run=lambda plan, trace: TrainingScenario(plan, trace).verdict(),
    sometimes=counters("""
        answers checked for staleness; delays that changed; evaluators started again
        models compared with the serial run; reads of the tally; runs resumed from a checkpoint
        schedulers started again; void slots; workers that left
        client: fenced; resent
        disk: writes torn by a crash
        fault: crash coordinator; crash evaluator; crash group/scheduler; crash server; crash worker
        fault: cut worker; drain server; full coordinator; halting worker; hire worker; join server
        fault: leave worker; pause worker; power; rot; slower worker; stall worker; twin worker
        network: lost; repeated
        rare: one of two processes of a name ended
        run: coordinator restarts; rollbacks; second copies; second copies first; slots dealt again
        run: slots with newer weights; workers lost
        stopped: epoch; improvement; seconds; step; target
    """),
)
