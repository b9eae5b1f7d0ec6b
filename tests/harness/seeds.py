"""Runs schedules from seeds, as the tests of every scenario do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest

from shoal.simulation.scenarios import run_chunk


def by_tier(first: int, more: int, soak: int = 0, seldom: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrizes a test by (seeds, seldom): few, more (slow) and many (soak) seeds."""
    few = pytest.param(range(first), None, id="few")
    rest = pytest.param(range(first, more), seldom, id="more", marks=pytest.mark.slow)
    many = [pytest.param(range(more, soak), (), id="many", marks=pytest.mark.soak)] if soak else []
    return pytest.mark.parametrize(("seeds", "seldom"), [few, rest, *many])


def check(seeds: range, of: str, seldom: Sequence[str] | None = None) -> None:
    """Checks that no seed breaks a promise and, unless ``seldom`` is None, that faults hit.

    Each of the scenario's ``sometimes`` must happen, except those that begin with one of
    ``seldom``.
    """
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

    ``known`` seeds are tried first; if plans are drawn differently one day, other seeds find it. A
    mutant that is caught by ``never`` is itself broken.
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
