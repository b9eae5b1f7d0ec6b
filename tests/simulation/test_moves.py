"""Servers join and leave while segments move, in thousands of clusters (P9).

These are FAULTS F10 to F13, and mutants of the move.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from shoal.events import End
from shoal.limits import SECOND
from shoal.simulation.faults import Fault, FaultPlan
from shoal.simulation.moves_driver import (
    PLANNED,
    RUSHED,
    draw,
    rushed,
    with_moves,
)
from shoal.simulation.store_scenario import MOVES, StoreRun
from shoal.simulation.store_workload import COLUMNS
from tests.harness.seeds import by_tier, check, check_caught

FIRST, SEEDS = 16, 56  # `make soak` runs tens of thousands
# Rare even in hundreds of seeds; `shoal simulate --of moves` prints what never happened.
SELDOM = ("coordinator: segments split",)
CATCHES = {
    "view takes the waiting back": 23,
    "queued changes sent as they were": 11,
    "queued changes dropped": 6,
    "clocks not moved": 5,
    "full before it is required": 4,
}
PLANS = Path(__file__).parent / "plans"
FOUND_BY = {  # Drawn seeds show these too rarely. Each bug has a unit test of its own, too.
    "demoted with less than it has": 2001073,
    "cut off and blames the others": 2006280,
    "new table on the last that stays": 2000312,
}


@pytest.mark.timeout(3_600)
@by_tier(FIRST, SEEDS, seldom=SELDOM)
def test_nothing_is_lost_or_doubled_while_servers_come_and_go(seeds: range, seldom: tuple[str, ...] | None) -> None:
    check(seeds, "moves", seldom)


@pytest.mark.variants(
    slow=[
        "full before it is required",
        "view takes the waiting back",
        "old owner goes on",
        "view told before it is on disk",
        "queued changes dropped",
        "queued changes sent as they were",
        "released too early",
        "copies not dropped",
        "segments not dropped",
        "move does not change the epoch",
        "former share answered",
        "heirs not asked",
        "leave said only once",
        "gone before it is let go",
        "let go by a word to its former life",
        "clocks not moved",
        "version not moved",
    ]
)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MOVES.mutants)
def test_a_mutant_of_the_move_is_caught(name: str) -> None:
    check_caught(name, MOVES.mutated(name), lambda seed: StoreRun(_plan(name, seed)).verdict(), CATCHES, within=60)


def _plan(mutant: str, seed: int) -> FaultPlan:
    """The plan that catches a mutant.

    Some mutants show at a rare moment only: their plan is made for it, or is the one that found
    the bug.
    """
    if mutant in FOUND_BY:
        found = FaultPlan.read((PLANS / f"{FOUND_BY[mutant]}-shrunk.txt").read_text())
        return replace(found, seed=seed) if seed else found
    busy = FaultPlan(
        seed=seed, servers=2, copies=1 + seed % 2, workers=4, kind="clients", slots=24, think=50, delay=3, lasts=4_000
    )
    join = Fault("join", 200, who="server-2")
    if mutant == "view told before it is on disk":
        crash = Fault("ambush", 0, 1_500, "coordinator", ("crash",), how="handed")
        return replace(busy, faults=(join, crash))
    if mutant == "leave said only once":
        loss = Fault("loss", lasts=3_000, rate=0.3)
        return replace(busy, faults=(loss, Fault("drain", 500, 0, "server-1", how="leave")))
    if mutant == "let go by a word to its former life":
        repeat, late = Fault("repeat", lasts=4_000, rate=0.9), Fault("late", lasts=4_000, rate=0.9)
        return replace(busy, faults=(repeat, late, Fault("drain", 500, 100, "server-1", how="leave")))
    if mutant == "former share answered":
        return replace(busy, faults=(join,))
    if mutant == "full before it is required":
        slow = Fault("slow", lasts=3_000, rate=0.2)
        busier = replace(busy, copies=1, workers=8, slots=40, think=10, delay=10, lasts=3_000)
        return replace(busier, faults=(slow, join), habits=("pipeline", "small batches"))
    return draw(seed)


@pytest.mark.slow
def test_a_seed_always_means_the_same_schedule() -> None:
    for seed in range(4):
        assert MOVES.simulate(seed).digest == MOVES.simulate(seed).digest


def test_plans_with_moves_are_read_back_as_they_print_themselves() -> None:
    for seed in range(50):
        assert FaultPlan.read(repr(draw(seed))) == draw(seed)


def test_some_plans_have_nothing_but_comings_and_goings() -> None:
    """In these plans no call may fail."""
    drawn = [draw(seed) for seed in range(100)]
    quiet = [plan for plan in drawn if all(fault.kind in PLANNED for fault in plan.faults)]
    assert 10 < len(quiet) < 60
    assert all(any(fault.kind in (*PLANNED, "ambush") for fault in plan.faults) for plan in drawn)


def test_one_plan_in_five_is_a_rush_in_which_nothing_else_goes_wrong() -> None:
    """Rushes find a deposed primary that still counts alone.

    12 of the 59 rushes among the first 300 seeds did.
    """
    hurried = [plan for plan in map(draw, range(300)) if any(fault.kind == "far" for fault in plan.faults)]
    assert len(hurried) == sum(Random(f"{seed}/rush").random() < RUSHED for seed in range(300)) > 40
    for plan in hurried:
        kinds = [fault.kind for fault in plan.faults]
        assert kinds.count("join") >= 2 and set(kinds) <= {"join", "drain", "far", "slow"}
        assert (plan.kind, plan.beyond, plan.balance) == ("clients", False, "count")
        assert {"pipeline", "small batches"} <= set(plan.habits) and plan.slots < COLUMNS


def test_what_one_node_says_to_another_takes_longer_if_they_are_far_from_each_other() -> None:
    near = FaultPlan(seed=3, servers=1, workers=1, kind="clients", slots=8, think=5, delay=1, lasts=2_000)
    far = replace(near, faults=(Fault("far", 0, 2_000, "server-0", ("worker-0",), rate=200, how="out"),))
    one, other = StoreRun(near).verdict(), StoreRun(far).verdict()
    assert one.ok and other.ok and not one.counts["network: far"]
    ended = [max(end.time for end in verdict.history if isinstance(end, End)) / SECOND for verdict in (one, other)]
    assert other.counts["network: far"] >= 8 and ended[1] > ended[0] + 8 * 0.2


def test_a_rush_is_a_cluster_of_its_own_whatever_it_is_made_of() -> None:
    for seed in range(20):
        plan = rushed(draw(seed), Random(seed))
        assert plan.seed == seed and plan.copies <= plan.servers <= 3


def test_what_is_drawn_for_moves_leaves_the_rest_of_a_plan_alone() -> None:
    plan = FaultPlan.draw(3)
    more = with_moves(plan)
    assert (more.servers, more.copies, more.workers, more.kind, more.slots) == (
        plan.servers, plan.copies, plan.workers, plan.kind, plan.slots,
    )  # fmt: skip


def test_without_a_word_of_it_nothing_moves() -> None:
    verdict = StoreRun(FaultPlan(seed=1, servers=3, copies=2, workers=2)).verdict()
    assert verdict.ok
    assert not any(what.startswith("moves: ") for what, count in verdict.counts.items() if count)
