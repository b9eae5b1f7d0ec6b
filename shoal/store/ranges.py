"""Ranges of keys put together and taken from one another. All of them are sorted and have no key in common."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

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


def shared(these: Sequence[KeyRange], those: Sequence[KeyRange]) -> Iterator[tuple[int, int, KeyRange]]:
    """The keys that are in both, range by range: which one of these it is, and which one of those."""
    at = 0
    for i, one in enumerate(these):
        while at < len(those) and those[at].stop <= one.start:
            at += 1
        for j in range(at, len(those)):
            low, high = max(one.start, those[j].start), min(one.stop, those[j].stop)
            if those[j].start >= one.stop:
                break
            if low < high:
                yield i, j, KeyRange(low, high)
