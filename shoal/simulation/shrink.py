"""Shrinks a plan that breaks a promise to the shortest one that breaks the same promise.

It drops whole families of faults first, then single faults, habits, workers, servers, copies and
slots, and keeps each cut if the plan still fails by the same rule. It stops when no cut is left, or
after a number of tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from shoal.simulation.faults import FaultPlan, SeedPlan
from shoal.simulation.scenarios import Trace, Verdict, Violation, scenario

MOST_TRIES = 400


def broken_rule(plan: SeedPlan) -> str:
    return getattr(first_violation(plan), "rule", "")


def first_violation(plan: SeedPlan) -> Violation | None:
    return next(iter(verdict_of(plan).violations), None)


def verdict_of(plan: SeedPlan, trace: Trace | None = None) -> Verdict:
    return scenario(plan.of).run(plan, trace)


def shrink(
    plan: SeedPlan, tried: Callable[[int, SeedPlan], None] = lambda tries, plan: None, most: int = MOST_TRIES
) -> SeedPlan:
    """The shortest plan found that breaks the same rule; the plan itself if it breaks none."""
    rule, tries = broken_rule(plan), 0
    if not rule:
        return plan
    while True:
        for smaller in _smaller(plan):
            if tries >= most:
                return plan
            tries += 1
            if broken_rule(smaller) == rule:
                plan = smaller
                tried(tries, plan)
                break  # find the possible cuts again
        else:
            return plan


def _smaller(plan: SeedPlan) -> Iterator[SeedPlan]:
    """All plans with one cut, the most promising first."""
    for kind in dict.fromkeys(fault.kind for fault in plan.faults):
        without = tuple(fault for fault in plan.faults if fault.kind != kind)
        if len(plan.faults) - len(without) > 1:
            yield replace(plan, faults=without)
    for i in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    if not isinstance(plan, FaultPlan):
        return
    for habit in plan.habits:
        yield replace(plan, habits=tuple(one for one in plan.habits if one != habit))
    if plan.workers > 1:
        yield _without(plan.worker_names[-1], replace(plan, workers=plan.workers - 1))
    if plan.servers > max(1, plan.copies):
        yield _without(plan.server_names[-1], replace(plan, servers=plan.servers - 1))
    if plan.copies > 1:
        yield replace(plan, copies=plan.copies - 1)
    if plan.of != "store":
        return
    unit = (plan.slots_per_pass or plan.slots_per_step) if plan.kind == "step" else 1
    for slots in (plan.slots // 2 // unit * unit, plan.slots - unit):
        if 0 < slots < plan.slots:
            yield replace(plan, slots=slots)
    if plan.dense:
        yield replace(plan, dense=False)


def _without(name: str, plan: FaultPlan) -> FaultPlan:
    left = [fault for fault in plan.faults if fault.who != name and name not in fault.others]
    return replace(plan, faults=tuple(left))


def as_test(plan: SeedPlan, violation: str) -> str:
    faults = "".join(f"\n            {fault!r}," for fault in plan.faults)
    text = repr(replace(plan, faults=()))[:-1]
    if plan.faults:
        text += f", faults=({faults}\n        )"
    return f"""def test_seed_{plan.seed}_keeps_its_promises() -> None:
    # {" ".join(violation.split())[:200]}
    plan = (
        {text})
    )
    assert verdict_of(plan).violations == []
"""
