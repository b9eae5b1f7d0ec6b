"""Hundreds of faulty clusters, each from one seed (FAULTS tier S; the ground of P1 to P5 and P10)."""

from __future__ import annotations

import pytest

from tests.harness.seeds import check

FIRST, SEEDS = 40, 110  # `make soak` runs tens of thousands
SELDOM = ("rare: ", "disk: records that were never")  # in hundreds of seeds: make soak tells what never happened


def test_nothing_is_lost_doubled_too_stale_or_silent() -> None:
    check(range(FIRST), of="store")


@pytest.mark.slow
@pytest.mark.timeout(1_200)  # a minute with a core of its own
def test_nothing_is_lost_doubled_too_stale_or_silent_in_more_schedules() -> None:
    check(range(FIRST, SEEDS), of="store", seldom=SELDOM)
