"""A failing plan is shortened and printed, so that it can be pasted, read and run again."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.simulation.faults import FAMILIES, SERVER_FAMILIES, Fault, FaultPlan
from shoal.simulation.shrink import as_test, broken_rule, first_violation, shrink, verdict_of
from shoal.simulation.store_scenario import STORE


@pytest.mark.parametrize("seed", range(50))
def test_a_plan_is_read_back_as_it_prints_itself(seed: int) -> None:
    plan = FaultPlan.draw(seed)
    assert FaultPlan.read(repr(plan)) == plan


def test_nothing_but_plans_is_read() -> None:
    for text in ("Plan(seed=__import__('os').getpid())", "print(1)", "Fault('loss')", "Plan(seed=1, slots=-)"):
        with pytest.raises((ValueError, SyntaxError)):
            FaultPlan.read(text)


def test_what_is_left_fails_by_the_same_rule_and_nothing_more_can_go() -> None:
    with STORE.mutated("no ledger"):
        plan = next(plan for plan in map(FaultPlan.draw, range(100)) if len(plan.faults) > 2 and broken_rule(plan))
        shortest = shrink(plan)
        assert broken_rule(shortest) == broken_rule(plan)
        assert len(shortest.faults) < len(plan.faults)
        assert shortest.workers <= plan.workers
        assert shrink(shortest) == shortest
    assert broken_rule(shortest) == "", "it is the mutant that breaks it"


def test_the_printed_test_case_runs() -> None:
    plan = FaultPlan(
        seed=3, workers=2, faults=(Fault("loss", lasts=1_000, rate=0.1), Fault("crash", 50, 500, "worker-1"))
    )
    scope = {"FaultPlan": FaultPlan, "Fault": Fault, "verdict_of": verdict_of}
    exec(as_test(plan, "a rule: what was broken"), scope)  # the text is our own
    scope["test_seed_3_keeps_its_promises"]()


def test_a_plan_that_holds_is_left_as_it_is() -> None:
    plan = FaultPlan(seed=1)
    assert first_violation(plan) is None
    assert shrink(plan) is plan


def test_the_command_prints_the_shortest_plan() -> None:
    with STORE.mutated("no ledger"):
        seed = next(seed for seed in range(100) if broken_rule(FaultPlan.draw(seed)))
    result = CliRunner().invoke(main, ["simulate", "--seed", str(seed), "--mutant", "no ledger", "--shrink"])
    assert result.exit_code == 1, result.output
    assert "assert verdict_of(plan).violations == []" in result.output
    again = result.output.rpartition('--plan "')[2].rstrip().rstrip('"')
    result = CliRunner().invoke(main, ["simulate", "--plan", again, "--mutant", "no ledger"])
    assert result.exit_code == 1
    assert "broken: " in result.output
    assert CliRunner().invoke(main, ["simulate", "--plan", again]).exit_code == 0


def test_every_family_of_faults_is_drawn() -> None:
    kinds = {fault.kind for seed in range(300) for fault in FaultPlan.draw(seed).faults}
    assert {
        "loss",
        "repeat",
        "late",
        "slow",
        "corrupt",
        "cut",
        "clog",
        "pause",
        "crash",
        "drift",
        "rogue",
        "twin",
    } <= kinds
    assert set(FAMILIES) & set(SERVER_FAMILIES) == set()
