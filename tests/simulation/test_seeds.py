"""Thousands of faulty clusters, each from one seed (FAULTS tier S; the ground of P1 to P5 and P10)."""

from __future__ import annotations

import pytest

from shoal.simulation.many import run_chunk

SEEDS = 480  # `make soak` runs 20,000
SELDOM = ("rare: ", "disk: records that were never")  # in hundreds of seeds: make soak tells what never happened
PARTS = 2  # one for each core of the test machine


@pytest.mark.variants(slow=["1"])
@pytest.mark.timeout(1_200)  # a minute with a core of its own
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_doubled_too_stale_or_silent(part: int) -> None:
    size = SEEDS // PARTS
    tally = run_chunk(range(part * size, (part + 1) * size))
    print(f"\n{tally.seeds:,} schedules, {tally.events:,} events, {tally.virtual_seconds:,.0f} virtual seconds")
    assert not tally.broken, "\n".join(f"{plan}\n    {what}" for plan, what in tally.broken[:10])
    often = [what for what in tally.never() if not what.startswith(SELDOM)]
    assert not often, "what should happen in some seed or other never did: the faults miss their mark"
