"""A run on one core: ``strategy = "serial"``.

It sends the same events as any other run, and follows the same stop rules. Its clock stands still
while the model is evaluated and while key lists are made, which helps it: a run that is faster than
this one is faster.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from shoal.data.batch import Ids
from shoal.models.linear import Floats
from shoal.training.local_model import LocalModel
from shoal.training.tracked_run import RunStart, TrackedRun

_AT_ONCE = 0.05  # seconds of computing between checks of the stop rules


class SerialRun(TrackedRun):
    """One run. It is not resumed, so it writes no checkpoints."""

    resumable = False

    def __init__(self, start: RunStart) -> None:
        super().__init__(start)
        self._slots = self.tracker.slots
        self._pace = self.job.emulate.pace(0, self.job.seed)
        self._model: LocalModel
        self._order: Ids | None = None  # of the slots in this epoch
        self._most = 1  # slots at once

    def __enter__(self) -> SerialRun:
        self.learner.settle()
        self._model = LocalModel(self.job, self.dataset.train, self.learner, self._slots)
        return self

    def _begin(self) -> None:
        self.tracker.begin(workers=1)
        self._evaluate()

    def _weights(self) -> Floats:
        return self._model.weights

    def _round(self) -> None:
        took = self._compute(min(self._most, self.tracker.room()))
        self._most = max(1, min(2 * self._most, int(self._most * _AT_ONCE / max(took, 1e-9))))
        if self.tracker.due:
            self._evaluate()

    def _compute(self, most: int) -> float:
        """Compute at most so many slots of one epoch; returns the seconds."""
        of_pass, first = divmod(self.tracker.done, self._slots.per_pass)
        if first == 0 or self._order is None:
            self._order = self._slots.contents(of_pass)
        contents = self._order[first : first + most]
        rows = self._slots.rows_in(contents)
        began = time.perf_counter()
        loss = self._model.run(of_pass, np.arange(first, first + len(contents)), contents)
        took = time.perf_counter() - began
        if self._pace is not None:
            held = self._pace.extra(rows, took)
            threading.Event().wait(held)
            took += held
        self.tracker.add(len(contents), rows, loss, took, {"compute": took})
        return took


open_run = SerialRun.open
