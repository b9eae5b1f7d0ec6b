"""Schedules from seeds, as the tests of every kind of simulation run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from shoal.simulation.many import run_chunk


def check(seeds: range, of: str, seldom: Sequence[str] | None = None) -> None:
    """No promise is broken; and, unless ``seldom`` is None, all that should happen does, but what begins with one of these."""
    tally = run_chunk(seeds, of=of)
    print(f"\n{tally.seeds:,} schedules, {tally.events:,} events, {tally.virtual_seconds:,.0f} virtual seconds")
    assert not tally.broken, "\n".join(f"{plan}\n    {what}" for plan, what in tally.broken[:10])
    if seldom is not None:
        never = [what for what in tally.never() if not what.startswith(tuple(seldom))]
        assert not never, "what should happen in some seed or other never did: the faults miss their mark"


def check_caught(
    name: str,
    mutant: AbstractContextManager[Any],
    simulate: Callable[[int], Any],
    known: Mapping[str, int],
    within: int,
    never: str = "raised TypeError",
) -> None:
    """Some seed breaks a promise with the mutant, and the same seed keeps it without.

    ``known`` seeds are tried first: if plans are drawn otherwise one day, others find it. A mutant that is caught by ``never`` is
    itself broken.
    """
    with mutant:
        for seed in (known.get(name, 0), *range(within)):
            verdict = simulate(seed)
            if not verdict.ok:
                print(f"\n{name}: caught by seed {seed}: {verdict.violations[0]}")
                assert not str(verdict.violations[0]).startswith(never), "the mutant itself is broken"
                break
        else:
            pytest.fail(f"{name}: not caught by {within} seeds")
    assert simulate(seed).ok, "the same seed without the mutant keeps every promise"
