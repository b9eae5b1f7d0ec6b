"""What stands between the coordinator and the simulated workers: the part of a run that checkpoints and rollbacks ask for.

The real dealing has tests of its own. Here slots are dealt by a ``Dealer`` that all workers can see, so that a run stays small;
this answers in the dealing's place (which step can be cut, what a checkpoint says of the run) and hears of a rollback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from shoal.cluster.membership import Roster
from shoal.cluster.runs import Runs, runs, spread
from shoal.events import RunEvent, Saved
from shoal.nodes.dealing import Dealing
from shoal.nodes.dealt import State
from shoal.simulation.checker import Violation, steps_of
from shoal.simulation.faults import Plan
from shoal.simulation.stragglers import Auto
from shoal.simulation.workload import Dealer, Scribe
from shoal.tables import Step
from shoal.wire import messages as m
from shoal.wire.effects import Effect

COORDINATORS_OWN = ("started_again", "joined", "gone", "never_came", "warn")  # said, and of no consequence here


@dataclass(slots=True)
class Shape:
    """What a checkpoint has to know of the workload."""

    step: Step | None
    per_pass: int


class Deals:
    """One run, as far as its checkpoints are concerned. It outlives the coordinators."""

    def __init__(self, plan: Plan, dealer: Dealer, scribe: Scribe) -> None:
        self.plan, self.dealer, self.scribe = plan, dealer, scribe
        step = Step(plan.slots_per_step, slots_per_pass=plan.slots_per_pass) if plan.kind == "step" else None
        self.workload = Shape(step, plan.slots_per_pass or plan.slots)
        self.saved = 0  # the newest checkpoint that was told of
        self.damaged: set[int] = set()  # since
        self.violations: list[Violation] = []
        self.failed = ""
        self.rollbacks = self.checkpoints = self.older = 0
        self.auto: Auto | None = None
        self.on_rollback: Callable[[], None] = lambda: None
        self.generation: Callable[[], int] = lambda: 0
        self._steps = steps_of(plan)

    def as_dealing(self) -> Dealing:
        return cast(Dealing, self)

    def __getattr__(self, name: str) -> Any:
        if name in COORDINATORS_OWN:
            return lambda *facts: []
        raise AttributeError(name)

    def tick(self, now: int) -> list[Effect]:
        if self.auto is not None:
            self.auto.tick(now)
        return []

    def set_delay(self, roster: Roster) -> None:
        if self.auto is not None:
            self.auto.set_delay(roster)

    # ------------------------------------------------------------ what a checkpoint asks

    @property
    def seconds(self) -> float:
        return 0.0

    @property
    def steps(self) -> int:
        return len(self.dealer.done)

    @property
    def alone(self) -> bool:
        return False

    @property
    def ended(self) -> bool:
        return bool(self.failed)

    @property
    def cut(self) -> int | None:
        """The first step of which no slot was dealt: none has passed it, and all before it will be whole."""
        if self.plan.kind != "step":
            return m.NO_CLOCK
        return next((n for n, slots in enumerate(self._steps) if slots[0] >= self.dealer.reached), len(self._steps))

    def state(self, cut: int) -> State:
        if self.plan.kind == "step":
            return State(counted=[(0, sum(len(slots) for slots in self._steps[:cut]))])
        return State(counted=runs(sorted(self.dealer.done)))

    def told(self, event: RunEvent) -> None:
        """What the coordinator told whoever looks at the run."""
        if isinstance(event, Saved):
            self.saved = event.number
            self.checkpoints += 1

    # ------------------------------------------------------------ back

    def fail(self, why: str) -> list[Effect]:
        self.failed = why
        return []

    def rollback(
        self, now: int, state: State | None, counted: Runs, why: str, checkpoint: int | None = None
    ) -> list[Effect]:
        """Everything that is not in the checkpoint is dealt again (P8); none that was told of may be lost (I9)."""
        self.rollbacks += 1
        if (checkpoint or 0) < self.saved and not self.damaged:
            what = (
                f"checkpoint {self.saved} was said to be on disk, the run went back to {checkpoint or 'the beginning'}"
            )
            self.violations.append(Violation("I9 durable", what))
        if not self.plan.beyond:
            self.violations.append(Violation("P1 kept", f"the run went back although copies were left: {why}"))
        slots, generation = set(spread(counted, self.plan.slots)), self.generation()
        self.dealer.roll_back(slots, generation)
        self.scribe.past.restored[generation] = slots
        self.older += (checkpoint or 0) < self.saved
        self.saved, self.damaged = checkpoint or 0, set()
        self.on_rollback()
        return []
