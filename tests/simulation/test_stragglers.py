"""Workers that are slow in simulated clusters: they are slow, they are helped, and every promise holds (S3-07)."""

from __future__ import annotations

import pytest

from shoal.events import Begin, End
from shoal.simulation.faults import STRAGGLING, Fault, Plan
from shoal.simulation.run import Run
from shoal.simulation.stragglers import Stragglers

STEPS = {"kind": "step", "workers": 3, "servers": 2, "slots": 24, "slots_per_step": 4, "max_delay": 0, "lasts": 9_000}
EACH = {"kind": "each", "workers": 3, "servers": 2, "slots": 40, "max_delay": 0, "lasts": 9_000}
SLOW = Fault("slower", 0, 9_000, "worker-0", rate=10)


def run(**facts: object) -> Run:
    one = Run(Plan(seed=1, **facts))  # type: ignore[arg-type]
    verdict = one.verdict()
    assert verdict.ok, verdict.violations
    return one


def done(one: Run) -> int:
    """When the last slot was counted, whoever computed it."""
    history = one.scribe.history
    ends = {record.call: record.time for record in history if isinstance(record, End) and record.outcome == "ok"}
    begun = [record for record in history if isinstance(record, Begin) and record.kind == "push"]
    pushes = [(begin.number, ends[begin.call]) for begin in begun if begin.call in ends]
    return max(dict(sorted(pushes, key=lambda push: -push[1])).values())


@pytest.mark.parametrize("kind", ["clients", "each", "step"])
@pytest.mark.parametrize("how", STRAGGLING)
def test_a_straggler_is_slow_and_alive(kind: str, how: str) -> None:
    fault = Fault(how, 100, 4_000, "worker-1", rate={"slower": 10.0, "halting": 0.5, "stall": 0.0}[how])
    one = run(**{**STEPS, "kind": kind, "faults": (fault,)})
    assert one.counts[f"fault: {how} worker"] == 1
    assert one.counts["slots that took longer"] > 0
    assert not one.counts["coordinator: removed"]


def test_slots_of_a_slow_worker_are_lent_and_counted_once() -> None:
    alone, helped = (run(**STEPS, faults=(SLOW,), habits=habits) for habits in ((), ("lend",)))
    assert alone.lending.lent == 0 < helped.lending.lent
    assert helped.counts["client: counted before"] + helped.counts["server: held again"] > 0  # the slow one came, too
    assert done(helped) < done(alone)


def test_a_delay_is_found_while_they_run_and_every_server_hears_of_it() -> None:
    one = run(**EACH, faults=(SLOW,), habits=("auto delay",))
    assert one.auto.changes > 0 and one.cluster.delays() == {one.auto._auto.delay} and one.auto._auto.delay > 0


def test_a_coordinator_that_is_started_again_asks_for_the_delay_again() -> None:
    one = run(**EACH, faults=(SLOW, *(Fault("crash", at, 300, "coordinator") for at in (400, 1_100, 1_900))),
              habits=("auto delay",))  # fmt: skip
    assert one.counts["fault: crash coordinator"] == 3 and one.auto.changes > 0
    assert len(one.cluster.delays()) == 1


def test_only_who_is_struck_is_slow_and_only_for_a_while() -> None:
    now = [0]
    slow = Stragglers(Plan(seed=3), lambda: now[0])
    slow.straggle(Fault("slower", who="worker-0", rate=5), 1_000)
    slow.straggle(Fault("stall", who="worker-2"), 800)
    assert [slow.takes(f"worker-{n}", 100) for n in range(3)] == [500, 100, 900]
    now[0] = 900
    assert [slow.takes(f"worker-{n}", 100) for n in range(3)] == [500, 100, 100]
    slow.hurry()
    assert slow.takes("worker-0", 100) == 100
    assert slow.counts["slots that took longer"] == 3


def test_a_plan_with_stragglers_can_be_read_back() -> None:
    drawn = [plan for plan in map(Plan.draw, range(60)) if any(fault.kind in STRAGGLING for fault in plan.faults)]
    assert {fault.kind for plan in drawn for fault in plan.faults} >= set(STRAGGLING)
    assert {habit for plan in drawn for habit in plan.habits} >= {"lend", "auto delay"}
    assert all(Plan.read(repr(plan)) == plan for plan in drawn)
