"""Hundreds of faulty clusters keep all promises, each drawn from one seed.

This is tier S of FAULTS, and the basis of P1 to P5 and P10.
"""

from __future__ import annotations

import pytest

from tests.harness.seeds import by_tier, check

FIRST, SEEDS = 40, 110  # `make soak` runs tens of thousands
# Rare even in hundreds of seeds; `make soak` prints what never happened.
SELDOM = ("rare: ", "disk: records that were never")


@pytest.mark.timeout(3_600)
@by_tier(FIRST, SEEDS, seldom=SELDOM)
def test_nothing_is_lost_doubled_too_stale_or_silent(seeds: range, seldom: tuple[str, ...] | None) -> None:
    check(seeds, "store", seldom)
