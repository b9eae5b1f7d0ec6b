"""Runs a job and watches it from start to end, while something is done to it.

    watched = watch(job, meanwhile=lambda training: kill(training, "worker-1", at=0.3))
    watched.check_counted_once()

What is done happens in a thread beside the run; the watcher reports its errors. Moments are shares
of the work, not of time, so that they are the same on a slow machine.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shoal.data.datasets import Dataset, load
from shoal.events import Evaluated, RunEvent
from shoal.job import Job
from shoal.models.learner import learner_of
from shoal.run.folder import EventLog
from shoal.run.run import make_run, summarise
from shoal.strategies.parameter_server.run import ServerRun
from shoal.tables import TABLE
from shoal.training.tracked_run import RunHandle, RunStart
from shoal.training.tracker import RunResult
from shoal.wire.messages import RunProgress

PATIENCE = 150.0  # seconds: a guard against hanging, not a measure; a busy machine may take long
_LOOK = 0.002  # seconds

Kind = TypeVar("Kind", bound=RunEvent)
Meanwhile = Callable[[RunHandle], None]


@dataclass(frozen=True, slots=True, eq=False)
class Watched:
    job: Job
    dataset: Dataset = field(repr=False)
    outcome: RunResult = field(repr=False)
    events: list[RunEvent] = field(repr=False)
    servers: dict[str, dict[str, Any]] = field(repr=False)  # what each of them counted
    workload: RunProgress = field(repr=False)  # how far it came

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        assert self.outcome.judged is not None
        return self.outcome.judged.weights

    @property
    def loss(self) -> float:
        """On the test rows, of the model that is kept."""
        return self.loss_of(self.weights)

    @property
    def summary(self) -> dict[str, Any]:
        return summarise(self.job, self.dataset, self.outcome, self.events)

    @property
    def losses(self) -> list[float]:
        """On the test rows, evaluation after evaluation."""
        return [event.test_loss for event in self.all(Evaluated)]

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def loss_of(self, weights: npt.NDArray[np.float32]) -> float:
        learner = learner_of(self.job.model, self.dataset.train, self.job.seed)
        return learner.evaluate(self.dataset.test, weights)[0]

    def check_counted_once(self) -> None:
        """Every slot was dealt until it was counted, and every server counted it once."""
        work = self.workload
        assert work.done == work.limit, f"{work.limit - work.done} of {work.limit} slots are not counted"
        assert not work.voids, f"void: {work.voids}"
        rows, batch = self.dataset.train.rows, self.job.data.batch
        passes, rest = divmod(work.limit, work.per_pass)
        most = passes * rows + rest * batch
        if self.job.strategy.solves:
            most, batch = passes * rows + self.job.slots(rows).rows_in(np.arange(rest)), 1
        short = -rows % batch if rest else 0  # the slot that is not full may be among the rest
        assert self.outcome.examples in (most, most - short), f"{self.outcome.examples} examples of {most}"
        for name, counts in self.servers.items():
            if not work.in_steps:
                assert counts["counted"] == work.limit, f"{name} counted {counts['counted']} slots of {work.limit}"
            else:
                assert counts["steps"] == work.steps, f"{name} took {counts['steps']} steps of {work.steps}"
            assert counts["version"] == work.steps, f"{name} is at version {counts['version']}"
            assert counts["held"] == counts["waiting"] == counts.get("void", 0) == 0, f"{name}: {counts}"


def watch(job: Job, meanwhile: Meanwhile | None = None, patience: float = PATIENCE) -> Watched:
    dataset, log = load(job.data, job.seed), EventLog(None, None)
    training = make_run(RunStart(job, dataset, log))
    beside = BesideRun(training, meanwhile)
    with training:
        beside.start()
        outcome = training.wait(patience)
        beside.join(patience)
        assert outcome is not None, f"not over after {patience:g} s: {log.events[-1:]}, {training.workers}"
        course = training.course
        servers = {}
        if isinstance(training, ServerRun) and not outcome.failed:
            servers = training._client.stats(TABLE)["servers"]
    if beside.error is not None:
        raise beside.error
    return Watched(job, dataset, outcome, log.events, servers, course)


class BesideRun(threading.Thread):
    def __init__(self, training: RunHandle, what: Meanwhile | None) -> None:
        super().__init__(name="shoal-beside", daemon=True)
        self._training, self._what = training, what
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            if self._what is not None:
                self._what(self._training)
        except BaseException as error:
            self.error = error


def reach(training: RunHandle, share: float) -> None:
    """Wait until so much of the work is counted."""
    deadline = time.monotonic() + PATIENCE
    while (course := training.course).done < max(share * course.limit, share > 0):
        assert not course.ended, f"the run ended before {share:.0%} of it was counted: {course.over}"
        assert time.monotonic() < deadline, f"only {course.done} slots counted in {PATIENCE:g} s"
        time.sleep(_LOOK)


def kill(training: RunHandle, name: str, at: float = 0.0) -> None:
    """SIGKILL a process when so much of the work is counted."""
    reach(training, at)
    assert name in training.pids, f"{name} is not there to be killed: {training.pids}"
    os.kill(training.pids[name], signal.SIGKILL)
