"""Servers join, leave or lose contact: each row of the fault matrix alone.

Each row runs on many small clusters. The seeds of ``test_moves`` mix all of this; here one row
happens for sure, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from shoal.simulation.faults import Fault, FaultPlan
from shoal.simulation.moves_driver import STAGES
from shoal.simulation.store_scenario import StoreRun

SHAPES = [("each", False), ("step", True), ("clients", False)]


def _plans(*faults: Fault, copies: tuple[int, ...] = (1, 2, 3), servers: int = 3) -> Iterator[FaultPlan]:
    """One plan for each number of copies, each of another shape."""
    for seed, number in enumerate(copies):
        kind, dense = SHAPES[(seed + len(faults)) % len(SHAPES)]
        yield FaultPlan(
            seed=seed,
            servers=servers,
            copies=number,
            workers=3,
            kind=kind,  # type: ignore[arg-type]
            max_delay=1,
            slots_per_step=3,
            slots=24,
            dense=dense,
            think=300,
            delay=3,
            lasts=7_000,
            faults=faults,
            habits=("bystander", "small batches"),
        )


def _held(plans: Iterator[FaultPlan]) -> Counter[str]:
    """Runs all plans and checks that every promise holds; returns the counts."""
    counts: Counter[str] = Counter()
    for plan in plans:
        verdict = StoreRun(plan).verdict()
        assert verdict.violations == [], str(plan)
        counts.update(verdict.counts)
    return counts


@pytest.mark.variants(slow=["drain"])
@pytest.mark.parametrize("how", ["drain", "leave"])
def test_f10_a_rolling_restart_of_all_servers_fails_no_call(how: str) -> None:
    counts = _held(_plans(Fault("roll", 200, 100, how=how)))
    assert counts["moves: rolled through all servers"] == 3
    assert counts["moves: servers that came back"] == 9
    assert counts["lives that stopped"] == 0


def test_f11_a_server_that_joins_under_load_gets_its_share() -> None:
    counts = _held(_plans(Fault("join", 500, who="server-3"), servers=2, copies=(1, 2)))
    assert counts["moves: handed"] >= 2 * 4
    assert counts["moves: given up"] == 0


def test_f12_a_server_leaves_under_load_and_nothing_of_it_is_missed() -> None:
    counts = _held(_plans(Fault("drain", 500, who="server-1", how="drain"), Fault("join", 2_000, who="server-3")))
    assert counts["moves: servers that left"] == 3


@pytest.mark.variants(
    slow=[
        "target-full",
        "target-handed",
        "other-named",
        "other-copied",
        "other-full",
        "other-handed",
        "coordinator-named",
        "coordinator-copied",
        "coordinator-full",
        "coordinator-handed",
        "source-copied",
        "source-handed",
        "source-full",
    ]
)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("who", ["source", "target", "other", "coordinator"])
def test_f13_whoever_is_killed_at_whatever_stage_of_a_move_one_owner_is_left(who: str, stage: str) -> None:
    ambush = Fault("ambush", 0, 1_500, who, ("crash",), how=stage)
    counts = _held(_plans(Fault("join", 500, who="server-3"), ambush, copies=(2, 3)))
    assert counts[f"moves: crash of {who} when {stage}"] == 2
    assert counts["fault: crash coordinator"] + counts["fault: crash server"] + counts["fault: withheld"] == 2


def test_f16_a_worker_that_does_not_reach_a_server_goes_on_afterwards() -> None:
    counts = _held(_plans(Fault("cut", 300, 4_000, "worker-0", ("server-1",))))
    assert counts["network: cut off"]


def test_f17_a_primary_that_does_not_reach_its_backup_goes_on_without_it_by_the_coordinators_word_alone() -> None:
    cuts = [Fault("cut", 300, 6_000, "server-0", ("server-1",))]
    counts = _held(_plans(*cuts, copies=(2, 3)))
    assert counts["coordinator: shrunk"]


def test_f18_a_primary_that_only_workers_reach_counts_nothing() -> None:
    alone = Fault("cut", 300, 6_500, "server-0", ("server-1", "server-2", "coordinator"))
    counts = _held(_plans(alone, copies=(2, 3)))
    assert counts["coordinator: removed"] >= 2


@pytest.mark.parametrize("how", ["in", "out"])
@pytest.mark.parametrize("other", ["server-1", "coordinator"])
def test_f19_where_only_one_side_hears_the_other_nothing_flaps(how: str, other: str) -> None:
    for plan in _plans(Fault("cut", 300, 6_500, "server-0", (other,), how=how), copies=(2, 3)):
        verdict = StoreRun(plan).verdict()
        assert verdict.violations == [], str(plan)
        assert verdict.counts["coordinator: removed"] + verdict.counts["coordinator: shrunk"] <= 2, str(plan)


def test_f28_clocks_that_drift_or_stand_still_make_timers_late_and_nothing_wrong() -> None:
    names = ["coordinator", "server-0", "server-1", "server-2", "worker-0", "worker-1"]
    drifts = [Fault("drift", lasts=100 * i, who=name, rate=(-0.1, 0.1)[i % 2]) for i, name in enumerate(names)]
    freezes = [Fault("freeze", 400 * i, 1_500, name) for i, name in enumerate(names)]
    counts = _held(_plans(*drifts, *freezes, Fault("join", 1_000, who="server-3")))
    assert counts["fault: freeze server"] == 9


def test_f32_a_disk_that_takes_its_time_holds_up_what_is_told_and_nothing_else() -> None:
    slow = [Fault("sluggish", at, 1_500, "coordinator") for at in (300, 2_500, 5_000)]
    counts = _held(
        _plans(*slow, Fault("join", 400, who="server-3"), Fault("drain", 2_600, who="server-0", how="leave"))
    )
    assert counts["fault: sluggish coordinator"] == 9
