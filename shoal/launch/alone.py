"""A run on one core, with nobody to talk to: ``strategy = "serial"``.

It tells the same events as any other run, and knows the same stop rules. Its clock stands still while the model is judged and
while key lists are made, which no run of several nodes can say of itself: who is faster than this is faster.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal.cluster.stopping import ENDLESS, Stopping
from shoal.data.arrays import sparse
from shoal.data.batch import Ids
from shoal.data.datasets import Dataset
from shoal.data.slots import Slots
from shoal.events import Evaluated, Progress, RunEvent, Started, Stopped
from shoal.job import Job
from shoal.launch.beginning import check
from shoal.launch.best import Best
from shoal.launch.one_module import OneModule
from shoal.launch.training import Outcome
from shoal.models.linear import Linear
from shoal.nodes.evaluator import Judged
from shoal.nodes.slices import Slices
from shoal.strategies.serial import OneCore

_AT_ONCE = 0.05  # seconds in one piece: nothing else is heard meanwhile
_TELL = 0.25  # seconds between two records of progress


class Alone:
    """One run. Use as a context, as ``Training``."""

    def __init__(
        self, job: Job, dataset: Dataset, listener: Callable[[RunEvent], None], folder: Path | None = None
    ) -> None:
        self.learner = check(job, dataset)
        self.job, self.dataset, self._listener = job, dataset, listener
        self._slots = Slots(dataset.train.rows, job.data.batch, job.seed)
        self._stopping = Stopping(job.stop)
        self._limit, self._reason = self._stopping.limit(self._slots.per_pass, job.stop.steps)
        every = job.evaluate.every
        self._every = max(1, round(every * self._slots.per_pass)) if every < ENDLESS / self._slots.per_pass else ENDLESS
        self._pace = job.emulate.pace(0, job.seed)
        self._best = None
        if folder is not None and job.stop.keeps_best:
            self._best = Best(folder / "best.safetensors", self.learner, listener)
        self._done = self._examples = self._number = 0
        self._seconds = self._told = 0.0
        self._since, self._between = [0, 0.0], [0, 0.0]  # examples and losses
        self._why, self._failed, self._ended = "", False, False
        self._core: OneCore | OneModule
        self._order: Ids | None = None  # of the slots in this pass
        self._judged_at = -1  # slots that were done then
        self._last: Judged | None = None
        self._kept: Judged | None = None

    def __enter__(self) -> Alone:
        job, mean = self.job, self.job.strategy.combine == "mean"
        self.learner.settle()
        if not isinstance(job.model, Linear):
            slices = Slices(self.dataset.train, self._slots, self.learner.keys)
            self._core = OneModule(self.learner, job.update.update(), slices, mean)
            return self
        train = sparse(self.dataset.train)
        counts = None
        if job.model.l2_per_count:
            counts = np.ones(self.learner.keys, np.float32)
            counts[: train.features] = train.counts
        rows = train.slice(0, train.rows)
        self._core = OneCore(
            job.model, job.update.update(), rows, job.data.batch, train.features, mean=mean, counts=counts
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self.learner.release()

    def wait(self) -> Outcome:
        """Run it to its end."""
        self._tell_started()
        self._judge()
        at_once = 1
        while not self._why:
            room = min(self._limit, (self._done // self._every + 1) * self._every) - self._done
            took = self._compute(min(at_once, room))
            at_once = max(1, min(2 * at_once, int(at_once * _AT_ONCE / max(took, 1e-9))))
            if self._done % self._every == 0 or self._done >= self._limit:
                self._judge()
            if self._done >= self._limit:
                self._why = self._why or self._reason
            self._why = self._why or self._stopping.out_of_time(self._seconds)
        if self._judged_at != self._done:
            self._judge()
        self._ended = True
        self._tell_progress()
        self._listener(Stopped(seconds=self._seconds, why=self._why))
        return self.outcome()

    def interrupted(self) -> Outcome:
        self._why = self._why or "interrupted"
        if self._done:
            self._judge()
        return self.outcome()

    def outcome(self) -> Outcome:
        judged = self._kept if self.job.stop.keeps_best or self._failed else self._last
        return Outcome(
            judged,
            self._why or "interrupted",
            self._failed or not self._ended,
            self._seconds,
            self._seconds,
            self._done,
            self._examples,
            0,
            0,
            [self._done] if self._ended else [],
            {},
        )

    # ------------------------------------------------------------ inside

    def _compute(self, most: int) -> float:
        """So many slots at most, none of another pass; seconds."""
        of_pass, first = divmod(self._done, self._slots.per_pass)
        if first == 0 or self._order is None:
            self._order = self._slots.contents(of_pass)
        contents = self._order[first : first + most]
        last = self._slots.per_pass - 1
        start, stop = self._slots.span(last)
        rows = len(contents) * self._slots.batch
        rows -= (self._slots.batch - (stop - start)) * int((contents == last).any())
        began = time.perf_counter()
        loss = self._core.run(contents) if isinstance(self._core, OneCore) else self._core.run(of_pass, first, contents)
        took = time.perf_counter() - began
        if self._pace is not None:
            held = self._pace.extra(rows, took)
            threading.Event().wait(held)
            took += held
        self._seconds += took
        self._done += len(contents)
        self._examples += rows
        for tally in (self._since, self._between):
            tally[0] += rows
            tally[1] += loss
        if self._seconds - self._told >= _TELL:
            self._tell_progress()
        return took

    def _judge(self) -> None:
        weights = self._core.weights
        loss, metrics = self.learner.judge(self.dataset.test, weights) if np.isfinite(weights).all() else (math.inf, {})
        judged = Judged(self._number, weights, loss, metrics)
        best, why = self._stopping.judged(loss)
        self._last, self._judged_at = judged, self._done
        if best:
            self._kept = judged
            if self._best is not None:
                self._best.write(judged)
        if not math.isfinite(loss):
            self._failed = True
        self._listener(
            Evaluated(
                seconds=self._seconds,
                number=self._number,
                passes=self._done / self._slots.per_pass,
                steps=self._done,
                examples=self._examples,
                train_loss=self._between[1] / self._between[0] if self._between[0] else None,
                test_loss=loss,
                metrics=metrics,
                workers=1,
                best=best,
                read=self._seconds,
            )
        )
        self._number += 1
        self._between = [0, 0.0]
        self._why = self._why or why

    def _tell_progress(self) -> None:
        since, self._told = self._told, self._seconds
        self._listener(
            Progress(
                seconds=self._seconds,
                passes=self._done / self._slots.per_pass,
                steps=self._done,
                examples=self._examples,
                train_loss=self._since[1] / self._since[0] if self._since[0] else None,
                workers=1,
                spent={"compute": self._seconds - since},  # its clock stands still otherwise
            )
        )
        self._since = [0, 0.0]

    def _tell_started(self) -> None:
        job, dataset = self.job, self.dataset
        self._listener(
            Started(
                seconds=0.0,
                data=dataset.name,
                model=job.model.told,
                strategy="serial",
                workers=1,
                servers=0,
                seed=job.seed,
                cores=len(os.sched_getaffinity(0)),
                rows=dataset.train.rows,
                test_rows=dataset.test.rows,
                features=dataset.features,
                batch=job.data.batch,
                slots=self._slots.per_pass,
                emulated=job.emulate.words(),
            )
        )
