"""Each mutant of the store must be caught within the seeds of the suite.

A checker that never complains is worth nothing.
"""

from __future__ import annotations

import pytest

from shoal.simulation.store_scenario import STORE
from tests.harness.seeds import check_caught

# The seeds that catch the mutants which few seeds catch. They are tried first, then all others.
CATCHES = {
    "log without a bound": 562,
    "second copy added too": 106,
    "no epoch check on backup": 79,
    "clock by count": 65,
    "delay never shrinks": 65,
    "array checksum not checked": 32,
    "pending not checked": 19,
    "duplicate does not tick": 18,
    "parked worker waited for": 11,
    "promote a filling server": 11,
    "incarnation not bumped": 7,
    "slots added in arrival order": 6,
    "apply before replicate": 5,
}


def test_there_are_the_mutants_that_were_asked_for() -> None:
    assert set(STORE.mutants) >= {
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
@pytest.mark.parametrize("name", STORE.mutants)
def test_a_mutant_is_caught(name: str) -> None:
    check_caught(name, STORE.mutated(name), STORE.simulate, CATCHES, within=2_000)
