"""Stragglers in simulated clusters are slow, get help, and break no promise (S3-07)."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.events import Stopped
from shoal.limits import SECOND
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.faults import STRAGGLING, Fault, FaultPlan, Stragglers
from shoal.simulation.scenarios import Verdict
from shoal.simulation.store_scenario import StoreRun
from shoal.simulation.training_plan import TrainingPlan
from shoal.simulation.training_world import TrainingWorld, paced
from shoal.tables import TABLE

STEPS = {"kind": "step", "workers": 3, "servers": 2, "slots": 24, "slots_per_step": 4, "max_delay": 0, "lasts": 9_000}
SLOW = Fault("slower", 0, 9_000, "worker-0", rate=10)


def run(**facts: object) -> Verdict:
    verdict = StoreRun(FaultPlan(seed=1, **facts)).verdict()  # type: ignore[arg-type]
    assert verdict.ok, verdict.violations
    return verdict


@pytest.mark.parametrize("kind", ["clients", "each", "step"])
@pytest.mark.parametrize("how", STRAGGLING)
def test_a_straggler_is_slow_and_alive(kind: str, how: str) -> None:
    fault = Fault(how, 100, 4_000, "worker-1", rate={"slower": 10.0, "halting": 0.5, "stall": 0.0}[how])
    one = run(**{**STEPS, "kind": kind, "faults": (fault,)})
    assert one.counts[f"fault: {how} worker"] == 1
    assert one.counts["slots that took longer"] > 0
    assert not one.counts["coordinator: removed"]


def train(strategy: str, **facts: Any) -> TrainingWorld:
    """Runs the real scheduler and trainers to the end."""
    kind = "step" if strategy == "sync" else "each"
    plan = TrainingPlan(
        seed=1, strategy=strategy, kind=kind, workers=3, servers=2, slots_per_pass=24, stop={"epochs": 3}, ahead=4,
        think=300, lasts=9_000, **facts,
    )  # fmt: skip
    one = TrainingWorld(plan)
    with paced(plan):
        assert one.set_up()
        one.moves.nemesis.begin()
        assert one.until(lambda: one.over, 120 * SECOND)
    one.close()
    assert [event.why for event in one.events if isinstance(event, Stopped)] == ["3 epochs done"]
    assert one.scheduler.workload.done == 72
    return one


def test_slots_of_a_slow_worker_are_lent_and_counted_once() -> None:
    steps = {"slots_per_step": 4, "prefetch": 0}
    alone, helped = (
        train("sync", settings={**steps, "second_copies": second}, faults=(SLOW,)) for second in (False, True)
    )
    assert alone.scheduler.counts["second copies"] == 0 < helped.scheduler.counts["second copies"]
    # How long the whole run takes is random: 72 slots, and evaluations.
    assert helped.scheduler.counts["second copies first"] > 0


@pytest.mark.parametrize("crashes", [(), (400, 1_100, 1_900)])
def test_a_delay_is_found_while_they_run_and_every_server_hears_of_it(crashes: tuple[int, ...]) -> None:
    faults = (SLOW, *(Fault("crash", at, 300, "coordinator") for at in crashes))
    one = train("bounded", settings={"max_delay": "auto"}, faults=faults)
    assert one.world.counts["fault: crash coordinator"] == len(crashes)
    assert one.scheduler.auto is not None
    assert one.delays.changes > 0 and delays(one.cluster) == {one.scheduler.auto.delay}


def delays(cluster: SimulatedCluster) -> set[int | None]:
    """The delay bounds of all primaries."""
    number = cluster.coordinator.roster.tables[TABLE].number
    servers = [server for name, server in cluster.servers.items() if name in cluster.world.hosts]
    primaries = [server.tables[number].primary for server in servers if number in server.tables]
    return {primary.spec.max_delay for primary in primaries if primary is not None}


def test_only_who_is_struck_is_slow_and_only_for_a_while() -> None:
    now = [0]
    slow = Stragglers(FaultPlan(seed=3), lambda: now[0])
    slow.straggle(Fault("slower", who="worker-0", rate=5), 1_000)
    slow.straggle(Fault("stall", who="worker-2"), 800)
    assert [slow.duration(f"worker-{n}", 100) for n in range(3)] == [500, 100, 900]
    now[0] = 900
    assert [slow.duration(f"worker-{n}", 100) for n in range(3)] == [500, 100, 100]
    slow.heal()
    assert slow.duration("worker-0", 100) == 100
    assert slow.counts["slots that took longer"] == 3


def test_a_plan_with_stragglers_can_be_read_back() -> None:
    drawn = [plan for plan in map(FaultPlan.draw, range(60)) if any(fault.kind in STRAGGLING for fault in plan.faults)]
    assert {fault.kind for plan in drawn for fault in plan.faults} >= set(STRAGGLING)
    assert all(FaultPlan.read(repr(plan)) == plan for plan in drawn)
