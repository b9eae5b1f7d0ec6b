"""The run that is broken: the one place that knows how a training is reached from outside.

What is asked of the coordinator is asked through a client of our own, and never waited for longer than told: it may be dead.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.chaos import account
from shoal.chaos.account import Account, Probes
from shoal.data.datasets import Dataset
from shoal.errors import ShoalError, TimedOut
from shoal.events import RunEvent
from shoal.job import Job
from shoal.launch.training import Outcome, Training
from shoal.nodes.blocking import KV
from shoal.store.task import Task
from shoal.strategies import TABLE, TALLY
from shoal.wire import messages as m

READ_WITHIN = 30.0  # seconds: the account may have to wait for a failover


class Counting(Training):
    """A training that keeps an account beside its model."""

    def _start_evaluator(self) -> None:
        self._client.create(TALLY, account.TABLE)  # before any worker is there
        super()._start_evaluator()


@dataclass(slots=True)
class Course:
    """How far a run is."""

    done: int  # slots that are acknowledged
    limit: int
    per_pass: int
    sent: int  # slots that were dealt, each time they were
    steps: int
    in_steps: bool
    counts: dict[str, int] = field(default_factory=dict)


class Stage:
    """Use as a context: leaving it ends everything that was started, also what is stopped."""

    def __init__(self, job: Job, dataset: Dataset, listener: Callable[[RunEvent], None], folder: Path | None = None):
        self.job = job
        self.training = Counting(job, dataset, listener, folder)
        self.copies: int = getattr(job, "copies", 1)
        self.probes = Probes()
        self._kv: KV | None = None
        self._asked: tuple[Task, float] | None = None
        self._stopped: set[str] = set()

    def __enter__(self) -> Stage:
        self.training.__enter__()
        try:
            self._kv = self.training._cluster.client("nemesis")
            self._kv.tables()
            placed = next(one for one in self._view().tables if one.name == TALLY)
            self.probes = Probes.for_segments(placed.starts)
        except BaseException:
            self.training.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self._stopped):
            self.resume(name)  # what is stopped cannot end
        self.training.close()

    # ------------------------------------------------------------ what is done to it

    @property
    def pids(self) -> dict[str, int]:
        return self.training.pids

    def kill(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        self._stopped.add(name)
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._stopped.discard(name)
        self._signal(name, signal.SIGCONT)

    def add_worker(self) -> str:
        return self.training.add_worker()

    def _signal(self, name: str, number: int) -> None:
        pid = self.pids.get(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # ------------------------------------------------------------ what is known of it

    def wait(self, seconds: float) -> Outcome | None:
        return self.training.wait(seconds)

    def look(self) -> tuple[m.View, float] | None:
        """A view that has arrived since the last time, and when it was asked for. Never waits."""
        assert self._kv is not None
        if self._asked is None:
            self._ask()
            return None
        task, asked = self._asked
        if not task.done:
            return None
        self._ask()
        return None if task.error is not None else (self._view(), asked)

    def look_now(self, seconds: float) -> m.View | None:
        """The newest view; None if the coordinator does not say within so many seconds."""
        assert self._kv is not None
        try:
            self._kv._do(self._kv._client.refresh).result(seconds)
        except (TimedOut, ShoalError):
            return None
        return self._view()

    def course(self) -> Course:
        dealing = self.training.dealing
        work = dealing.workload
        sent = work.done + dealing.counts["slots dealt again"]
        return Course(
            work.done, work.limit, work.per_pass, sent, work.steps, work.step is not None, dict(dealing.counts)
        )

    def _ask(self) -> None:
        assert self._kv is not None
        self._asked = self._kv._do(self._kv._client.refresh), time.monotonic()

    def _view(self) -> m.View:
        assert self._kv is not None
        view: m.View = self._kv._client.view
        return view

    # ------------------------------------------------------------ the account

    def owned(self, view: m.View, server: str) -> list[int]:
        """Segments of the tally that this server is the primary of."""
        placed = next((one for one in view.tables if one.name == TALLY), None)
        if placed is None:
            return []
        return [i for i, place in enumerate(placed.places) if place.servers[:1] == [server]]

    def probe(self, segments: list[int], done: Callable[[], None]) -> None:
        """Push to these segments; ``done`` is called, on another thread, when all have counted it."""
        assert self._kv is not None
        keys, at = self.probes.keys[segments], np.array(segments)
        self.probes.sent[at] += 1

        def ended(task: Task) -> None:
            if task.error is None:
                self.probes.acknowledged[at] += 1
            done()

        self._kv.push(TALLY, keys, np.ones(len(keys), np.float32)).then(ended)

    def balance(self) -> Account:
        """Read what the servers hold. Raises what is in the way."""
        assert self._kv is not None
        course = self.course()
        tally: Any = self._kv.pull(TALLY, slice(None)).result(READ_WITHIN)
        task = self._kv.pull(TABLE, slice(None))
        task.result(READ_WITHIN)
        # A run that is stopped by the clock ends with whatever was dealt: which slots these were is not told.
        whole = self.job.stop.steps is not None and course.done >= course.limit
        versions, per_pass = (self._versions(task, course), course.per_pass) if whole else ({}, 0)
        return account.balance(tally.keys, tally.values, course.done, course.sent, self.probes, versions, per_pass)

    def _versions(self, task: Task, course: Course) -> dict[str, int]:
        """What the model's segments have counted, in slots."""
        per_version = course.done / course.steps if course.in_steps and course.steps else 1.0
        return {
            f"segment {i} on {server}": round(version * per_version)
            for server, versions in task.versions.items()
            for i, version in enumerate(versions)
        }
