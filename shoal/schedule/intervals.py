"""Sets of slots kept as runs: adding, taking away and counting cost by the run, never by the slot.

    spans.add([(0, 200)])       how many of them are new
    spans.remove([(50, 60)])    how many of them were in
    spans.pop(100)              the lowest hundred, as runs

The runs are in order, none touches the next. Pure bookkeeping: no messages, no time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from shoal.schedule.runs import Runs


class Intervals:
    """Slots."""

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
        """Past the highest."""
        return self._stops[-1] if self._stops else 0

    def add(self, found: Iterable[tuple[int, int]]) -> int:
        """How many of these were not in before."""
        before = self.size
        for first, stop in found:
            if first >= stop:
                continue
            low, high = bisect_left(self._stops, first), bisect_right(self._firsts, stop)  # those that it touches
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
            low, high = bisect_right(self._stops, first), bisect_left(self._firsts, stop)  # those that it cuts
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

    def missing(self, end: int) -> Intervals:
        """Those below ``end`` that are not in."""
        found = Intervals([(0, end)])
        found.remove(self)
        return found

    def within(self, found: Iterable[tuple[int, int]]) -> int:
        """How many of these are in."""
        total = 0
        for first, stop in found:
            low, high = bisect_right(self._stops, first), bisect_left(self._firsts, stop)
            cut = zip(self._firsts[low:high], self._stops[low:high], strict=True)
            total += sum(min(stop, b) - max(first, a) for a, b in cut)
        return total


def count(found: Iterable[tuple[int, int]]) -> int:
    """How many slots these runs have."""
    return sum(stop - first for first, stop in found)
