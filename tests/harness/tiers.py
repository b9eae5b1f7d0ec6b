"""Marks at a test say in which tier it runs.

    (nothing)                                       every change: make test
    @pytest.mark.slow                               before a merge: make test-all
    @pytest.mark.soak                               make soak
    @pytest.mark.variants(slow=["tcp-*"], soak=[])  these variants (ids, * for anything)
    pytest.param(..., marks=pytest.mark.slow)       one parameter

When the whole suite is collected, three things are checked: every pattern of ``variants`` makes a
difference, such a test has variants in more than one tier, and every promise has its tests
(``promises.py``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.harness import promises

TIERS = ("change", "slow", "soak")  # the last two are named as their marks


def tier_of(item: pytest.Item) -> str:
    return next((tier for tier in reversed(TIERS) if item.get_closest_marker(tier)), TIERS[0])


class Tiers:
    """The plugin; ``tests/conftest.py`` registers it."""

    @pytest.hookimpl(tryfirst=True)  # before -m selects
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        unused = {}
        for item in items:
            unused |= dict.fromkeys(patterns_of(item), item)
        for item in items:
            own = tier_of(item)
            for name, tier, pattern in patterns_of(item):
                if matches(pattern, item) and TIERS.index(tier) > TIERS.index(own):
                    item.add_marker(tier)
                    unused.pop((name, tier, pattern), None)
        if is_whole(config):
            complain(f"{name}: no variant is {tier} because of {pattern!r}" for name, tier, pattern in unused)
            complain(without_sibling(items))
            complain(promises.broken(promises.shown(items, tier_of)))
        if config.getoption("promises"):
            print(promises.table(promises.shown(items, tier_of), TIERS))


def patterns_of(item: pytest.Item) -> list[tuple[str, str, str]]:
    """Returns the test, the tier and the pattern of each variant that its marks name."""
    return [
        (function_of(item), tier, pattern)
        for mark in item.iter_markers("variants")
        for tier, patterns in mark.kwargs.items()
        for pattern in patterns
    ]


def function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def matches(pattern: str, item: pytest.Item) -> bool:
    return _compiled(pattern).fullmatch(item.nodeid.partition("[")[2][:-1]) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")))


def without_sibling(items: Sequence[pytest.Item]) -> Iterable[str]:
    """Yields tests that name some variants as later, but have none earlier.

    One mark for the whole test is better then.
    """
    named = {function_of(item) for item in items if next(item.iter_markers("variants"), None)}
    tiers: dict[str, set[str]] = defaultdict(set)
    for item in items:
        tiers[function_of(item)].add(tier_of(item))
    alike = sorted(name for name in named if len(tiers[name]) == 1)
    return (f"{name}: all its variants are in the same tier: mark the test itself" for name in alike)


def is_whole(config: pytest.Config) -> bool:
    """Returns whether all tests are collected, not only those of a file or a folder."""
    everything = {Path(config.rootpath / path) for path in config.getini("testpaths")}
    return {Path(config.invocation_params.dir / path) for path in config.args} == everything


def complain(about: Iterable[str]) -> None:
    if wrong := list(about):
        raise pytest.UsageError("\n".join(wrong))
