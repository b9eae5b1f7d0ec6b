"""Slots as runs of neighbours: how they are told and kept."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

Runs = list[tuple[int, int]]  # from the first up to, not including, the second


def runs(slots: Iterable[int]) -> Runs:
    """Slots as runs of neighbours, in the order given."""
    numbers = list(slots)
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise(cuts) if a < b]


def spread(found: Iterable[tuple[int, int]], most: int) -> list[int]:
    """The slots of runs, one by one; none at all if there are more than can be."""
    pairs = list(found)
    if sum(max(0, stop - first) for first, stop in pairs) > most:
        return []
    return [slot for first, stop in pairs for slot in range(first, stop)]
