"""Schedules from seeds, as the tests of every kind of simulation run them."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.simulation.many import run_chunk


def check(seeds: range, of: str, seldom: Sequence[str] | None = None) -> None:
    """No promise is broken; and, unless ``seldom`` is None, all that should happen does, but what begins with one of these."""
    tally = run_chunk(seeds, of=of)
    print(f"\n{tally.seeds:,} schedules, {tally.events:,} events, {tally.virtual_seconds:,.0f} virtual seconds")
    assert not tally.broken, "\n".join(f"{plan}\n    {what}" for plan, what in tally.broken[:10])
    if seldom is not None:
        never = [what for what in tally.never() if not what.startswith(tuple(seldom))]
        assert not never, "what should happen in some seed or other never did: the faults miss their mark"
