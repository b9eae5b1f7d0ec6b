"""Ranges of keys put together and taken from one another. All of them are sorted and have no key in common."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from shoal.keys import KeyRange


def joined(segments: Iterable[KeyRange]) -> list[KeyRange]:
    """The same keys, those side by side as one range."""
    runs: list[KeyRange] = []
    for one in segments:
        if runs and runs[-1].stop == one.start:
            runs[-1] = KeyRange(runs[-1].start, one.stop)
        else:
            runs.append(one)
    return runs


def without(these: Iterable[KeyRange], those: Iterable[KeyRange]) -> list[KeyRange]:
    """The keys of these ranges that are in none of those, however they are cut; all of them are sorted."""
    left: list[KeyRange] = []
    others = joined(those)
    for one in joined(these):
        low = one.start
        for other in others[max(0, bisect_right(others, low, key=lambda other: other.start) - 1) :]:
            if other.start >= one.stop:
                break
            if low < other.start:
                left.append(KeyRange(low, other.start))
            low = max(low, other.stop)
        if low < one.stop:
            left.append(KeyRange(low, one.stop))
    return left
