"""When a run ends: epochs, steps, seconds, a target loss, patience, or a solved objective.

Epochs and steps bound the work that is dealt; the others are asked as the run goes on. A loss lower
than the best by more than ``min_delta`` is an improvement; ``patience`` evaluations in a row
without one end the run, and then the best weights are kept, not the last (S4-15, S4-16).

An objective (block-proximal) is solved when it changed by no more than ``objective`` of itself
between two evaluations, and no key is further than ``violation`` * l1 from the conditions of a
minimum. If both are set both must hold: while the KKT filter leaves keys out the objective may
stand still.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shoal.errors import Invalid
from shoal.events import counted

ENDLESS = 1 << 60


class StopRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stop rules of a job; the first that is met ends it.

    ``objective`` and ``violation`` together are one rule: both must hold. Without any rule a run
    has 5 epochs; with a loss to reach, at most 100; with an objective to solve, at most 1000.
    """

    epochs: float | None = None  # passes over the data
    steps: int | None = None
    seconds: float | None = None
    target_loss: float | None = None
    patience: int | None = None  # evaluations in a row without improvement
    min_delta: float = 0.0
    objective: float | None = None  # relative change between two evaluations
    violation: float | None = None  # of the conditions of a minimum, in units of l1

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "seconds", "patience", "objective", "violation"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise Invalid(f"stop.{name}={value!r}: needs a number above 0, or leave it out")
        if not 0 <= self.min_delta < math.inf or (self.target_loss is not None and not math.isfinite(self.target_loss)):
            raise Invalid("stop.min_delta needs 0 or more, stop.target_loss a finite number")

    @property
    def passes(self) -> float:
        if self.epochs is not None:
            return self.epochs
        if self.steps is not None or self.seconds is not None:
            return math.inf
        if self.is_solved_by_rule:
            return 1000.0
        return 5.0 if self.target_loss is None and self.patience is None else 100.0

    @property
    def is_solved_by_rule(self) -> bool:
        return self.objective is not None or self.violation is not None

    @property
    def keeps_best(self) -> bool:
        """The result is the best model, not the last one."""
        return self.patience is not None

    @property
    def saves_best(self) -> bool:
        """Whether the best model is saved, too; a run that solves an objective has one model."""
        return not self.is_solved_by_rule


class Patience(msgspec.Struct, frozen=True):
    """What the rules remember. None: nothing was evaluated yet (JSON has no infinity)."""

    best: float | None = None
    mark: float | None = None  # what counts as an improvement on the best
    without: int = 0
    objective: float | None = None  # at the last evaluation


@dataclass(slots=True)
class StopDecision:
    rules: StopRules
    best: float = math.inf
    _mark: float = math.inf  # what an evaluation must beat to count as an improvement
    _without: int = 0
    _objective: float | None = None  # at the last evaluation

    def judged(self, loss: float, metrics: Mapping[str, float | None] | None = None) -> tuple[bool, str]:
        """Is this the best loss so far; and why the run ends now, or nothing."""
        rules, best = self.rules, loss < self.best
        if best:
            self.best = loss
        if loss < self._mark - rules.min_delta:
            self._mark, self._without = loss, 0
        else:
            self._without += 1
        if rules.target_loss is not None and loss <= rules.target_loss:
            return best, f"target loss {rules.target_loss:g} reached"
        if not math.isfinite(loss):
            return best, f"the loss is {loss}: take a smaller step (--set update.step=...)"
        if rules.patience is not None and self._without >= rules.patience:
            return best, f"no improvement in {rules.patience} evaluations"
        return best, self._solved(metrics or {})

    def _solved(self, metrics: Mapping[str, float | None]) -> str:
        rules, now, violation = self.rules, metrics.get("objective"), metrics.get("violation")
        before, self._objective = self._objective, now
        why: list[str] = []
        if rules.objective is not None:
            if now is None or before is None or abs(before - now) > rules.objective * abs(before):
                return ""
            why.append(f"the objective changes by no more than {rules.objective:g} of itself")
        if rules.violation is not None:
            if violation is None or violation > rules.violation:
                return ""
            why.append(f"its conditions are met to {rules.violation:g} of l1")
        return ", and ".join(why)

    def state(self) -> Patience:
        best, mark = (value if math.isfinite(value) else None for value in (self.best, self._mark))
        return Patience(best, mark, self._without, self._objective)

    def restore(self, state: Patience) -> None:
        self.best, self._mark = (math.inf if value is None else value for value in (state.best, state.mark))
        self._without, self._objective = state.without, state.objective

    def out_of_time(self, seconds: float) -> str:
        limit = self.rules.seconds
        return f"{limit:g} seconds are over" if limit is not None and seconds >= limit else ""

    def limit(self, per_pass: int, slots_of_steps: int | None) -> tuple[int, str]:
        """How many slots may be dealt at all, and what the reason is called when they are done."""
        found = [(ENDLESS, "")]
        if (passes := self.rules.passes) < ENDLESS / per_pass:
            found.append((max(1, round(passes * per_pass)), f"{counted(passes, 'epoch')} done"))
        if slots_of_steps is not None:
            found.append((slots_of_steps, f"{counted(self.rules.steps or 0, 'step')} done"))
        return min(found)
