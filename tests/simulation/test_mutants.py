"""A checker that never complains is worth nothing: each broken variant must be caught within the seeds of the suite."""

from __future__ import annotations

import pytest

from shoal.simulation.mutants import MUTANTS, mutated
from shoal.simulation.run import simulate

SEEDS = 2_000
# Seeds that have caught those which few seeds catch: they are tried first, and then all others.
TRIED_FIRST = {
    "log without a bound": 562,
    "second copy added too": 106,
    "no epoch check on backup": 79,
    "clock by count": 65,
    "delay never shrinks": 65,
}


def test_there_are_the_mutants_that_were_asked_for() -> None:
    assert set(MUTANTS) >= {
        "no ledger",
        "pending not checked",
        "ledger expired by time",
        "incarnation not bumped",
        "delay off by one",
        "clock by count",
        "duplicate does not tick",
        "step closed without a slot",
        "slots added in arrival order",
        "parked worker waited for",
        "ledger not replicated",
        "apply before replicate",
        "ack before replicate",
        "no epoch check on backup",
        "promote any member",
        "promote a filling server",
        "second copy added too",
        "delay never shrinks",
        "list found by its number alone",
    }


@pytest.mark.variants(
    slow=[
        "no epoch check on backup",
        "parked worker waited for",
        "clock by count",
        "array checksum not checked",
        "delay off by one",
        "duplicate does not tick",
        "step closed without a slot",
        "slots added in arrival order",
        "ledger not replicated",
        "ack before replicate",
        "apply before replicate",
        "promote any member",
        "promote a filling server",
        "second copy added too",
        "delay never shrinks",
        "list found by its number alone",
        "pending not checked",
        "incarnation not bumped",
        "log without a bound",
    ]
)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str) -> None:
    with mutated(name):
        for seed in (TRIED_FIRST.get(name, 0), *range(SEEDS)):
            verdict = simulate(seed)
            if not verdict.ok:
                print(f"\n{name}: caught by seed {seed}: {verdict.violations[0]}")
                assert not str(verdict.violations[0]).startswith("raised TypeError"), "the mutant itself is broken"
                break
        else:
            pytest.fail(f"{name}: not caught by {SEEDS} seeds")
    assert simulate(seed).ok, "the same seed without the mutant keeps every promise"
