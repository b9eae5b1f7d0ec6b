"""A client that reads the account of all slots while a simulated run goes on.

I1    no slot is counted twice, at any moment
I3    what the scheduler knew to be counted when a pull began is in what it read
I4    what was read once stays, until the run goes back to a checkpoint (another generation)
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from shoal.errors import ShoalError
from shoal.keys import Values
from shoal.limits import MILLISECOND
from shoal.nodes.scheduling import Scheduler
from shoal.nodes.strategy import TALLY
from shoal.nodes.worker import Worker
from shoal.simulation.checker import Violation
from shoal.simulation.training_plan import TrainingPlan


class TrainingAudit:
    """Of one life of a run, which may have been resumed from a checkpoint."""

    def __init__(self, reader: Worker, dealing: Callable[[], Scheduler], plan: TrainingPlan, resumed: bool) -> None:
        self._reader, self._dealing, self._random = reader, dealing, Random(f"{plan.seed}/audit")
        # In step mode a checkpoint is of a step, but of the account as it was then, without what is on its way to it.
        self._restored_whole, self._resumed = plan.kind == "each", resumed
        self._last: tuple[tuple[int, int], Values] | None = None
        self.violations: list[Violation] = []
        self.reads = 0

    def start(self) -> None:
        self._reader.start(self._life())

    async def _life(self) -> None:
        client = self._reader.client
        await self._reader.joined
        while True:
            await self._reader.sleep(self._random.randrange(50, 400) * MILLISECOND)
            before, counted = self._generations(), self._counted()
            try:
                found = await client.pull(TALLY, slice(None), exact=True)
            except ShoalError:
                continue
            if self._generations() == before:
                self._check(before, counted, found)

    def _generations(self) -> tuple[int, int]:
        """As this client knows it, and as the scheduler does: between the two a run is going back."""
        return self._reader.client.view.generation, self._dealing().generation

    def _counted(self) -> list[int]:
        work = self._dealing().workload
        return [slot for slot in range(min(work.limit, 1 << 12)) if work.is_counted(slot)]

    def _check(self, generations: tuple[int, int], counted: list[int], found: Values) -> None:
        self.reads += 1
        twice = np.flatnonzero(found > 1)
        if len(twice):
            self._broken("I1 exactly-once", f"slots {twice[:6].tolist()} are counted more than once")
        missing = [slot for slot in counted if not found[slot]]
        restored = self._resumed or any(generations)
        if missing and (self._restored_whole or not restored):
            self._broken("I3 real time", f"slots {missing[:6]} were counted before the pull began, and are not in it")
        if self._last is not None and self._last[0] == generations and (found < self._last[1]).any():
            less = np.flatnonzero(found < self._last[1])
            self._broken("I4 monotone", f"slots {less[:6].tolist()} were read before, and are not there any more")
        self._last = generations, found

    def _broken(self, rule: str, what: str) -> None:
        self.violations.append(Violation(rule, what))
