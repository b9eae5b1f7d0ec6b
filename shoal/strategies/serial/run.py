"""A run on one core, with nobody to talk to: ``strategy = "serial"``.

It tells the same events as any other run, and knows the same stop rules. Its clock stands still while the model is judged and
while key lists are made, which no run of several nodes can say of itself: who is faster than this is faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.data.batch import Ids
from shoal.data.datasets import Dataset
from shoal.events import RunEvent
from shoal.job import Job
from shoal.training.local_model import LocalModel
from shoal.training.preflight import check
from shoal.training.result import RunResult
from shoal.training.tracker import Tracker
from shoal.training.underway import RunStart
from shoal.wire.messages import RunProgress

_AT_ONCE = 0.05  # seconds in one piece: nothing else is heard meanwhile


class SerialRun:
    """One run. Use as a context, as ``Training``."""

    def __init__(
        self, job: Job, dataset: Dataset, listener: Callable[[RunEvent], None], folder: Path | None = None
    ) -> None:
        self.learner = check(job, dataset)
        self.job, self.dataset = job, dataset
        self.score = Tracker(job, dataset, self.learner, listener, folder)
        self._slots = self.score.slots
        self._pace = job.emulate.pace(0, job.seed)
        self._core: LocalModel
        self._order: Ids | None = None  # of the slots in this pass

    def __enter__(self) -> SerialRun:
        self.learner.settle()
        self._core = LocalModel(self.job, self.dataset.train, self.learner, self._slots)
        return self

    def __exit__(self, *exception: object) -> None:
        self.learner.release()

    @property
    def pids(self) -> dict[str, int]:
        return {}

    @property
    def workers(self) -> list[str]:
        return []

    @property
    def course(self) -> RunProgress:
        return self.score.course()

    def wait(self, seconds: float | None = None) -> RunResult:
        """Run it to its end."""
        score = self.score
        score.begin(workers=1)
        score.judge(self._core.weights)
        at_once = 1
        while not score.why:
            took = self._compute(min(at_once, score.room()))
            at_once = max(1, min(2 * at_once, int(at_once * _AT_ONCE / max(took, 1e-9))))
            if score.due:
                score.judge(self._core.weights)
        if score.unjudged:
            score.judge(self._core.weights)
        return score.end()

    def interrupted(self) -> RunResult:
        self.score.why = self.score.why or "interrupted"
        if self.score.done:
            self.score.judge(self._core.weights)
        return self.outcome()

    def outcome(self) -> RunResult:
        return self.score.outcome()

    # ------------------------------------------------------------ inside

    def _compute(self, most: int) -> float:
        """So many slots at most, none of another pass; seconds."""
        of_pass, first = divmod(self.score.done, self._slots.per_pass)
        if first == 0 or self._order is None:
            self._order = self._slots.contents(of_pass)
        contents = self._order[first : first + most]
        rows = self._slots.rows_in(contents)
        began = time.perf_counter()
        loss = self._core.run(of_pass, np.arange(first, first + len(contents)), contents)
        took = time.perf_counter() - began
        if self._pace is not None:
            held = self._pace.extra(rows, took)
            threading.Event().wait(held)
            took += held
        self.score.add(len(contents), rows, loss, took, {"compute": took})  # its clock stands still otherwise
        return took


def open_run(start: RunStart, begin: Callable[[], None]) -> SerialRun:
    """The run, not yet begun; it is never taken up again."""
    run = SerialRun(start.job, start.dataset, start.listener, start.folder)
    begin()
    return run
