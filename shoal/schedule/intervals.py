"""Sets of slots as sorted runs: every operation costs by the run, never by the slot.

    slots = Intervals([(0, 200)])   from the first up to, not including, the second
    slots.add([(150, 300)])         how many of them are new
    slots.remove([(50, 60)])        how many of them were in
    slots.pop(100)                  the lowest hundred, as runs

Messages, journals and checkpoints carry the runs themselves (``Runs``). Nothing here sends or reads
the time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

Runs = list[tuple[int, int]]  # each from the first up to, not including, the second


class Intervals:
    """A set of slots, kept as sorted runs of which no two touch."""

    __slots__ = ("_firsts", "_stops", "size")

    def __init__(self, found: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        self.size = 0  # slots
        self.add(found)

    def __bool__(self) -> bool:
        return self.size > 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._stops, strict=True)

    def __contains__(self, slot: int) -> bool:
        at = bisect_right(self._firsts, slot)
        return at > 0 and slot < self._stops[at - 1]

    @property
    def runs(self) -> Runs:
        return list(self)

    @property
    def end(self) -> int:
        return self._stops[-1] if self._stops else 0

    def add(self, found: Iterable[tuple[int, int]]) -> int:
        """How many of these were not in before."""
        before = self.size
        for first, stop in found:
            if first >= stop:
                continue
            low, high = bisect_left(self._stops, first), bisect_right(self._firsts, stop)  # touched
            if low < high:
                first, stop = min(first, self._firsts[low]), max(stop, self._stops[high - 1])
                self.size -= sum(self._stops[low:high]) - sum(self._firsts[low:high])
            self._firsts[low:high], self._stops[low:high] = [first], [stop]
            self.size += stop - first
        return self.size - before

    def remove(self, found: Iterable[tuple[int, int]]) -> int:
        """How many of these were in."""
        before = self.size
        for first, stop in found:
            if first >= stop:
                continue
            low, high = bisect_right(self._stops, first), bisect_left(self._firsts, stop)  # cut
            if low >= high:
                continue
            self.size -= sum(self._stops[low:high]) - sum(self._firsts[low:high])
            kept = [(self._firsts[low], first), (stop, self._stops[high - 1])]
            kept = [(a, b) for a, b in kept if a < b]
            self._firsts[low:high], self._stops[low:high] = [a for a, _ in kept], [b for _, b in kept]
            self.size += sum(b - a for a, b in kept)
        return before - self.size

    def pop(self, most: int, below: int | None = None) -> Runs:
        """Take the lowest out, at most so many, and none from ``below`` on."""
        taken: Runs = []
        for first, stop in self:
            stop = min(stop, first + most) if below is None else min(stop, first + most, below)
            if first >= stop:
                break
            taken.append((first, stop))
            most -= stop - first
        self.remove(taken)
        return taken

    def without(self, other: Iterable[tuple[int, int]]) -> Intervals:
        """Those that are not in ``other``."""
        left = Intervals(self)
        left.remove(other)
        return left

    def missing(self, end: int) -> Intervals:
        """Those below ``end`` that are not in."""
        return Intervals([(0, end)]).without(self)

    def within(self, found: Iterable[tuple[int, int]]) -> int:
        """How many of these are in."""
        total = 0
        for first, stop in found:
            low, high = bisect_right(self._stops, first), bisect_left(self._firsts, stop)
            cut = zip(self._firsts[low:high], self._stops[low:high], strict=True)
            total += sum(min(stop, b) - max(first, a) for a, b in cut)
        return total


def count(found: Iterable[tuple[int, int]]) -> int:
    """How many slots these runs have; one that ends before it begins has none."""
    return sum(max(0, stop - first) for first, stop in found)


def runs(slots: Iterable[int]) -> Runs:
    """Slots as runs of neighbours, in the order given."""
    numbers = list(slots)
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in pairwise(cuts) if a < b]


def spread(found: Iterable[tuple[int, int]], most: int) -> list[int]:
    """The slots of runs, one by one; none at all if there are more than ``most``."""
    pairs = list(found)
    return [slot for first, stop in pairs for slot in range(first, stop)] if count(pairs) <= most else []
