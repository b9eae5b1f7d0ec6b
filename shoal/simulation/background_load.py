"""One more table, and a client of its own that only adds to it: what happens to it while all else goes on.

It pushes one to every segment (or, where segments move by load, to all keys of the first one), pulls now and then, and counts. So any value it pulls lies between what was acknowledged before and
what was ever sent. Not in plans that go back to a checkpoint: what is lost then is for the other table to show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from unittest import mock

import numpy as np

from shoal import limits
from shoal.errors import ShoalError
from shoal.keys import Keys
from shoal.limits import MILLISECOND
from shoal.nodes.worker import Worker
from shoal.simulation.checker import Violation
from shoal.simulation.faults import FaultPlan
from shoal.tables import Dense, Sparse, Table

ASIDE = "aside"
WIDTH = 64  # keys in a segment
NAME = "bystander"


def little_load() -> AbstractContextManager[object]:
    """Runs are short here. But few rows are pushed, by chance more here or there: that must not count."""
    return mock.patch.multiple(limits, LOAD_LEAST=200.0, LOAD_ABOVE=1.0)


class BackgroundLoad:
    """Adds to its table until it is told to stop."""

    def __init__(self, plan: FaultPlan, segments: int) -> None:
        self.plan, self._random = plan, Random(f"{plan.seed}/bystander")
        self.sent = self.acked = self.failed = 0
        self.violations: list[Violation] = []
        self.stopped = False
        self.done = False
        self._span, self._pause = WIDTH * segments, 60 if plan.balance == "load" else 300
        hot = plan.balance == "load"  # then all that it pushes is for the first segment, which is split for it
        self._keys: Keys = np.arange(0, WIDTH if hot else self._span, 1 if hot else WIDTH, dtype=np.uint64)

    def spec(self) -> Table:
        """Of the other shape than the workers' table."""
        return Sparse(keys=self._span) if self.plan.dense else Dense(rows=self._span)

    async def life(self, worker: Worker, came_to_rest: Callable[[], bool]) -> None:
        await self._create(worker)
        while not self.stopped or not came_to_rest():
            await worker.sleep(self._random.randrange(20, self._pause) * MILLISECOND)
            await self._once(worker)
        while not self.done:  # the last word
            self.done = await self._look(worker)
            await worker.sleep(100 * MILLISECOND)

    async def _create(self, worker: Worker) -> None:
        while ASIDE not in worker.client.layouts:
            await worker.sleep(50 * MILLISECOND)
            with contextlib.suppress(ShoalError):  # too late an answer, or done by a former life
                await worker.client.create(ASIDE, self.spec())

    async def _once(self, worker: Worker) -> None:
        if self._random.random() < 0.3:
            await self._look(worker)
            return
        self.sent += 1
        try:
            await worker.client.push(ASIDE, self._keys, np.ones(len(self._keys), np.float32))
        except ShoalError:
            self.failed += 1
            await worker.sleep(100 * MILLISECOND)
        else:
            self.acked += 1

    async def _look(self, worker: Worker) -> bool:
        least = self.acked
        try:
            found = await worker.client.pull(ASIDE, self._keys)
        except ShoalError:
            return False
        if not ((least <= found) & (found <= self.sent)).all():
            what = f"the table aside has {found.tolist()}, acknowledged were {least} pushes of {self.sent}"
            self.violations.append(Violation("I1 exactly once", what))
        return True
