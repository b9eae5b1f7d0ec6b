"""Tracks the workers of one model: which have joined and which are gone.

A worker is *gone* when it joined once and is not a member now (it finished, ended or was declared
dead), or when the launcher saw its process end before it joined. A worker that waits for all others
polls who is gone, and goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.errors import Invalid, TimedOut
from shoal.launch.script import ENDED
from shoal.store.client.task import Task
from shoal.store.table.update import Sum
from shoal.tables import Dense
from shoal.torch.rank import Place, call_at_exit, ensure

log = logging.getLogger("shoal")
LOOK = 0.25  # seconds between two polls
_REMIND = 10.0  # seconds until a wait is reported, then twice that, ...
_SOON = 0.02


class WorkerGroup:
    """``worker`` is this process's client for the model's table, ``store`` for all else."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self._name = place, name
        self._client = f"-{name}"
        self.store = place.join("client", f"{place.name}{self._client}-store")
        self.worker = place.join("worker", place.name + self._client)
        self._came = f"{name}.came"
        ensure(self.store, self._came, Dense(rows=place.world, update=Sum()))
        call_at_exit(self.close)

    def has_come(self) -> bool:
        return bool(self.store.pull(self._came, [self.place.rank]).result()[0])

    def come(self) -> None:
        """Announce this worker: others may wait for it until it is gone."""
        self.store.push(self._came, [self.place.rank], [1.0]).result()

    def gone(self) -> list[int]:
        came = self.store.pull(self._came, slice(None)).result()
        # queried afterwards: a worker that had come is here now, or gone
        tables = self.store.tables()
        here = set(self.store.members)
        ended = self.store.pull(ENDED, slice(None)).result() if ENDED in tables else np.zeros(self.place.world)
        away = [f"worker-{rank}{self._client}" not in here for rank in range(self.place.world)]
        return [rank for rank in range(self.place.world) if ended[rank] or (came[rank] and away[rank])]

    def wait(self, task: Task, late: Callable[[list[int]], Any]) -> Any:
        """The result of a task that involves others; ``late`` gets the ranks that are gone."""
        reminder = _Reminder()
        while True:
            try:
                return task.result(LOOK)
            except TimedOut as error:
                if task.error is error:  # the task itself timed out, not our poll
                    raise
                if task.done:  # finished meanwhile
                    continue
            late(self.gone())
            reminder(f"{task.what} waits for {task.waits_for or 'an answer'}")

    def until(self, what: str, there: Callable[[], bool]) -> None:
        """Poll until it holds; say what it waits for if that takes long."""
        reminder = _Reminder()
        while not there():
            reminder(f"worker {self.place.rank} waits for {what}")
            threading.Event().wait(_SOON)

    def first(self) -> bool:
        gone = self.gone()
        return all(rank in gone for rank in range(self.place.rank))

    def leave(self) -> None:
        """Leave, so that no worker waits for this one, and wait until all have left or are gone."""
        self.worker.close()
        self.until("the others to finish", lambda: len(self.gone()) == self.place.world)

    def close(self) -> None:
        self.worker.close()
        self.store.close()

    def check_here(self) -> None:
        if self.worker.closed:
            raise Invalid("this worker has finished: distribute the model again, under another name, to go on")


class _Reminder:
    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = _REMIND

    def __call__(self, what: str) -> None:
        waited = time.monotonic() - self._began
        if waited >= self._next:
            log.warning("%s, for %.0f s now", what, waited)
            self._next *= 2
