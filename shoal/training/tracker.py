"""Tracks a run that has no scheduler: progress, evaluations, stop rules, events.

    tracker.begin(workers)              Started
    while not tracker.why:
        ... at most tracker.room() slots ...
        tracker.add(slots, rows, loss, seconds, spent)      Progress, now and then
        if tracker.due:
            tracker.evaluate(weights)      Evaluated
    tracker.end()                       Stopped

Its clock is the sum of the seconds that ``add`` was given, so it stands still while the model is
evaluated. One thread uses it.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from shoal.data.datasets import Dataset
from shoal.data.slots import Slots
from shoal.events import Evaluated, Gone, Joined, Progress, RunEvent, Stopped, Warned
from shoal.job import Job
from shoal.models.learner import Learner
from shoal.models.linear import Floats
from shoal.nodes.evaluator import EvaluatedModel
from shoal.nodes.factory import started_event
from shoal.schedule.stop_rules import ENDLESS, StopDecision
from shoal.training.local_checkpoint import BestModel, LocalProgress, is_finite
from shoal.wire.messages import RunProgress

_REPORT = 0.25  # seconds between two Progress events


@dataclass(frozen=True, slots=True)
class RunResult:
    """The final model and the figures of a run."""

    judged: EvaluatedModel | None  # the model that is kept
    why: str  # it stopped
    failed: bool
    seconds: float  # from the first slot to the end
    computing: float  # to the last slot
    steps: int
    examples: int
    sent: int
    received: int
    staleness: list[int]  # how many pushes were counted that stale
    counts: dict[str, int]
    filtered: dict[str, list[int]] = field(default_factory=dict)  # bytes in and out
    left: tuple[float, float] = (0.0, 0.0)  # held back by filters; and the lost share of it


def result_of(
    course: RunProgress, judged: EvaluatedModel | None, why: str, failed: bool, staleness: list[int]
) -> RunResult:
    counted = (course.seconds, course.computing, course.steps, course.examples, course.sent, course.received)
    return RunResult(judged, why, failed, *counted, staleness, course.counts, course.filtered, course.left)


class Tracker:
    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        learner: Learner,
        listener: Callable[[RunEvent], None],
        folder: Path | None = None,
        slots_per_step: int = 1,
    ) -> None:
        self.job, self.dataset, self.learner, self._listener = job, dataset, learner, listener
        self.slots = Slots(dataset.train.rows, job.data.batch, job.seed)
        self._per_step = slots_per_step
        self._stopping = StopDecision(job.stop)
        self.done = self.examples = self.steps = self._number = 0  # slots, rows, steps, evaluations
        self._find_limit()
        every, per_pass = job.evaluate.every, self.slots.per_pass
        self._every = max(1, round(every * per_pass)) if every < ENDLESS / per_pass else ENDLESS
        self._best = None
        if folder is not None and job.stop.saves_best:
            self._best = BestModel(folder / "best.safetensors", learner, listener)
        self.seconds = self._reported_at = 0.0
        self.workers = 1  # that take part
        self.counts: Counter[str] = Counter()
        self.sent = self.received = 0
        self.staleness: list[int] = []
        self._since, self._between = [0, 0.0], [0, 0.0]  # examples and losses
        self._spent: Counter[str] = Counter()
        self.why, self.failed, self.ended = "", False, False
        self._evaluated_at = -1  # slots that were done then
        self._last: EvaluatedModel | None = None
        self._kept: EvaluatedModel | None = None

    def room(self) -> int:
        until = min(self.limit, (self.done // self._every + 1) * self._every)
        return min(self.limit, self._slots_in(self._steps_in(until))) - self.done

    def step_by(self, slots: int) -> None:
        if slots != self._per_step:
            self._per_step = slots
            self._find_limit()

    def _find_limit(self) -> None:
        steps = self.job.stop.steps
        until = None if steps is None else self._slots_in(max(0, steps - self.steps))
        self.limit, self._reason = self._stopping.limit(self.slots.per_pass, until)

    def _steps_in(self, until: int) -> int:
        """Steps from here up to so many slots; the last step of an epoch has what is left of it."""
        left = -self.done % self.slots.per_pass
        if until - self.done <= left:
            return -(-(until - self.done) // self._per_step)
        passes, rest = divmod(until - self.done - left, self.slots.per_pass)
        per_pass = -(-self.slots.per_pass // self._per_step)
        return -(-left // self._per_step) + passes * per_pass + -(-rest // self._per_step)

    def _slots_in(self, steps: int) -> int:
        """How many slots are done after so many more steps."""
        left = -self.done % self.slots.per_pass
        first = -(-left // self._per_step)
        if steps <= first:
            return self.done + min(left, steps * self._per_step)
        passes, rest = divmod(steps - first, -(-self.slots.per_pass // self._per_step))
        return self.done + left + passes * self.slots.per_pass + rest * self._per_step

    @property
    def due(self) -> bool:
        return self.unevaluated and (
            self.done // self._every > self._evaluated_at // self._every or self.done >= self.limit
        )

    @property
    def unevaluated(self) -> bool:
        """Whether the model changed since the last evaluation."""
        return self._evaluated_at != self.done

    def begin(self, workers: int, servers: int = 0) -> None:
        self.workers, data = workers, self.dataset
        facts = (data.name, data.train.rows, data.test.rows, data.features, len(os.sched_getaffinity(0)))
        self._listener(replace(started_event(self.job, *facts, workers, servers), seconds=self.seconds))

    def add(
        self,
        slots: int,
        rows: int,
        loss: float,
        seconds: float,
        spent: Mapping[str, float],
        steps: int | None = None,
        timed: bool = True,
    ) -> None:
        """Count slots, rows, the sum of losses, seconds, and what time was spent on.

        Each slot was a step, unless ``steps`` says otherwise. ``timed``: seconds may end the run.
        """
        self.seconds += seconds
        self.done += slots
        self.steps += slots if steps is None else steps
        self.examples += rows
        self._spent.update(spent)
        for tally in (self._since, self._between):
            tally[0] += rows
            tally[1] += loss
        if timed and self.done < self.limit:  # otherwise it is evaluated next, and ends then
            self.why = self.why or self._stopping.out_of_time(self.seconds)
        if self.seconds - self._reported_at >= _REPORT:
            self.report_progress()

    def take_back(self, slots: int, rows: int) -> None:
        self.done -= slots
        self.steps -= slots
        self.examples -= rows

    def is_late(self, seconds: float) -> bool:
        """Whether time is up, so many seconds after the last ``add``."""
        return bool(self._stopping.out_of_time(self.seconds + seconds))

    def state(self) -> LocalProgress:
        figures = (self.done, self.examples, self._number, self.seconds, self._stopping.state())
        return LocalProgress(*figures, dict(self.counts), self.sent, self.received, self.steps)

    def restore(self, state: LocalProgress) -> None:
        self.done, self.examples, self._number = state.done, state.examples, state.evaluations
        self.steps = state.done if state.steps is None else state.steps
        self._find_limit()
        self.seconds = self._reported_at = state.seconds
        self.sent, self.received = state.sent, state.received
        self._stopping.restore(state.patience)
        self.counts.update(state.counts)
        self._evaluated_at = state.done  # or before
        if self._best is not None:
            self._kept = self._best.read()

    def evaluate(self, weights: Floats, spread: Mapping[str, float] | None = None) -> EvaluatedModel:
        """Evaluate these weights; ``spread``: how models differ, where every worker has one."""
        loss, metrics = self.learner.evaluate(self.dataset.test, weights) if is_finite(weights) else (math.inf, {})
        number, self._number = self._number, self._number + 1  # now: a listener may interrupt
        judged = EvaluatedModel(number, weights, loss, metrics)
        best, why = self._stopping.judged(loss, metrics)
        self._evaluated_at = self.done
        self.keep(judged, best)
        if not math.isfinite(loss):
            self.fail(why)  # before any listener knows
        self._listener(
            Evaluated(
                seconds=self.seconds,
                number=number,
                passes=self.done / self.slots.per_pass,
                steps=self.steps,
                examples=self.examples,
                train_loss=self._between[1] / self._between[0] if self._between[0] else None,
                test_loss=loss,
                metrics=metrics,
                workers=self.workers,
                best=best,
                read=self.seconds,
                spread=dict(spread or {}),
            )
        )
        self._between = [0, 0.0]
        self.why = self.why or why or (self._reason if self.done >= self.limit else "")
        return judged

    def keep(self, judged: EvaluatedModel, best: bool) -> None:
        """The last model that was evaluated, and maybe the best one."""
        self._last = judged
        if best:
            self._kept = judged
            if self._best is not None:
                self._best.write(judged)

    def end(self) -> RunResult:
        self.ended = True
        if not self.failed and self.why != self._reason:
            self.limit = self.done
        self.report_progress()
        self._listener(Stopped(seconds=self.seconds, why=self.why))
        return self.outcome()

    def fail(self, why: str) -> None:
        self.failed, self.why = True, why

    def outcome(self) -> RunResult:
        judged = self._kept if self.job.stop.keeps_best or self.failed else self._last
        staleness = self.staleness if self.staleness or not self.ended else [self.done]
        return result_of(self.course(), judged, self.why or "interrupted", self.failed or not self.ended, staleness)

    def course(self) -> RunProgress:
        slots = (self.done, self.limit, self.slots.per_pass, self.steps, self.job.strategy.in_steps)
        figures = (self.examples, self.seconds, self.seconds, self.sent, self.received)
        end = (self.why, self.why if self.failed else "", self.ended)
        return RunProgress(*slots, *figures, *end, {}, dict(self.counts))

    def warn(self, what: str) -> None:
        self._listener(Warned(seconds=self.seconds, what=what))

    def joined(self, name: str) -> None:
        self._listener(Joined(seconds=self.seconds, name=name, role="worker"))

    def gone(self, name: str, why: str, slots: int = 0, role: str = "worker", lost: bool = True) -> None:
        """A node ended, and others repeat ``slots`` slots. ``lost``: it was not asked to end."""
        if lost:
            self.counts[f"{role}s lost"] += 1
        self._listener(Gone(seconds=self.seconds, name=name, role=role, why=why, slots=slots))

    def report_progress(self) -> None:
        self._reported_at = self.seconds
        self._listener(
            Progress(
                seconds=self.seconds,
                passes=self.done / self.slots.per_pass,
                steps=self.steps,
                examples=self.examples,
                train_loss=self._since[1] / self._since[0] if self._since[0] else None,
                workers=self.workers,
                spent=dict(self._spent),
            )
        )
        self._since = [0, 0.0]
        self._spent.clear()
