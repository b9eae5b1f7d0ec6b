"""Thousands of clusters whose servers come and go while segments are on their way (FAULTS F10 to F13; P9), and mutants of the move."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from shoal.simulation.faults import Fault, Plan
from shoal.simulation.many import run_chunk
from shoal.simulation.move_mutants import MUTANTS
from shoal.simulation.moves_plan import PLANNED, draw, with_moves
from shoal.simulation.moving import simulate
from shoal.simulation.run import Run

SEEDS = 120  # `shoal simulate --of moves --seeds 10000` is the long way
SELDOM = ("coordinator: segments split",)  # in hundreds of seeds: `shoal simulate --of moves` tells what never happened
MUTANT_SEEDS = 60
PARTS = 2  # one for each core of the test machine


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_or_doubled_while_servers_come_and_go(part: int) -> None:
    size = SEEDS // PARTS
    tally = run_chunk(range(part * size, (part + 1) * size), of="moves")
    print(f"\n{tally.seeds:,} schedules, {tally.events:,} events, {tally.virtual_seconds:,.0f} virtual seconds")
    assert not tally.broken, "\n".join(f"{plan}\n    {what}" for plan, what in tally.broken[:10])
    often = [what for what in tally.never() if what not in SELDOM]
    assert not often, "what should happen in some seed or other never did: the faults miss their mark"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_move_is_caught(name: str) -> None:
    with MUTANTS[name]():
        for seed in range(MUTANT_SEEDS):
            verdict = Run(_plan(name, seed)).verdict()
            if not verdict.ok:
                print(f"\n{name}: caught by seed {seed}: {verdict.violations[0]}")
                assert not str(verdict.violations[0]).startswith("raised TypeError"), "the mutant itself is broken"
                break
        else:
            pytest.fail(f"{name}: not caught by {MUTANT_SEEDS} seeds")
    assert Run(_plan(name, seed)).verdict().ok, "the same seed without the mutant keeps every promise"


def _plan(mutant: str, seed: int) -> Plan:
    """Some show at a rare moment only: there the plan is made for it."""
    busy = Plan(
        seed=seed, servers=2, copies=1 + seed % 2, workers=4, kind="clients", slots=24, think=50, delay=3, lasts=4_000
    )
    join = Fault("join", 200, who="server-2")
    if mutant == "view told before it is on disk":
        crash = Fault("ambush", 0, 1_500, "coordinator", ("crash",), how="handed")
        return replace(busy, faults=(join, crash))
    if mutant == "former share answered":
        return replace(busy, faults=(join,))
    if mutant == "full before it is required":
        slow = Fault("slow", lasts=3_000, rate=0.2)
        busier = replace(busy, copies=1, workers=8, slots=40, think=10, delay=10, lasts=3_000)
        return replace(busier, faults=(slow, join), habits=("pipeline", "small batches"))
    return draw(seed)


def test_a_seed_always_means_the_same_schedule() -> None:
    for seed in range(4):
        assert simulate(seed).digest == simulate(seed).digest


def test_plans_with_moves_are_read_back_as_they_print_themselves() -> None:
    for seed in range(50):
        assert Plan.read(repr(draw(seed))) == draw(seed)


def test_some_plans_have_nothing_but_comings_and_goings() -> None:
    """Those are the ones in which no call may fail."""
    drawn = [draw(seed) for seed in range(100)]
    quiet = [plan for plan in drawn if all(fault.kind in PLANNED for fault in plan.faults)]
    assert 10 < len(quiet) < 60
    assert all(any(fault.kind in (*PLANNED, "ambush") for fault in plan.faults) for plan in drawn)


def test_what_is_drawn_for_moves_leaves_the_rest_of_a_plan_alone() -> None:
    plan = Plan.draw(3)
    more = with_moves(plan)
    assert (more.servers, more.copies, more.workers, more.kind, more.slots) == (
        plan.servers, plan.copies, plan.workers, plan.kind, plan.slots,
    )  # fmt: skip


def test_without_a_word_of_it_nothing_moves() -> None:
    verdict = Run(Plan(seed=1, servers=3, copies=2, workers=2)).verdict()
    assert verdict.ok
    assert not any(what.startswith("moves: ") for what, count in verdict.counts.items() if count)
