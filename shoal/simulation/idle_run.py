"""The run of a simulated store: the real one, which nobody asks for slots.

A coordinator tells what happens to its servers through the run it coordinates (``Handed``, ``Gone``, ``RolledBack``). In the
store scenarios clients push and pull by themselves, so this run never begins; what trains is in ``training_run``.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.events import RolledBack, RunEvent
from shoal.job import Job
from shoal.nodes.factory import make_dealing
from shoal.nodes.scheduling import Scheduler
from shoal.simulation.checker import Violation

_JOB = Job.of({"data": {"source": "none", "batch": 1}, "strategy": "async", "stop": {"epochs": 1}})


class IdleRun:
    """What the coordinator deals, over all its lives: nothing. And what it may never tell of."""

    def __init__(self) -> None:
        self.damaged: set[int] = set()
        self.generation: Callable[[], int] = lambda: 0
        self.violations: list[Violation] = []

    def as_dealing(self) -> Scheduler:
        return make_dealing(_JOB, "none", rows=1, test_rows=1, features=1, elsewhere=True)

    def told(self, event: RunEvent) -> None:
        if isinstance(event, RolledBack):  # no plan of a store takes the last copy
            self.violations.append(Violation("P1 kept", f"the run went back although copies were left: {event.why}"))
