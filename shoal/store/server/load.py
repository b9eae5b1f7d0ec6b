"""The load of each segment: rows pushed and pulled per second.

Each segment is counted in equal bins of its keys, so that the key is known that splits its load in
half. A message costs one search. At high message rates only a sample is counted. Rates are
smoothed over some seconds. A range of a sparse table is not counted: its row count is unknown
before it is read. Nothing here reads the time: the caller says how long it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.keys import KeyRange, Keys
from shoal.limits import LOAD_BINS, LOAD_KEPT
from shoal.tables import Sparse, Table

_HOT = 0.25  # of a server's load: segments above that report where to split
_MANY = 500  # messages a second, above which only a sample is counted
_SAMPLE = 7  # odd: clients alternate between push and pull
_PARTS = 4_096  # bins of all segments together, at most
Rates = npt.NDArray[np.float64]


class SegmentLoad:
    """The load on some segments of one table, on one server."""

    def __init__(self, spec: Table, segments: Sequence[tuple[int, KeyRange]]) -> None:
        self._numbers = [number for number, _ in segments]
        self._ranges = [keys for _, keys in segments]
        self._bins = LOAD_BINS if LOAD_BINS * len(segments) <= _PARTS else 1
        edges = [[_edge(keys, i, self._bins) for i in range(self._bins + 1)] for keys in self._ranges]
        self._starts: Keys = np.array([one[:-1] for one in edges], np.uint64).reshape(-1)
        self._stops: Keys = np.array([one[1:] for one in edges], np.uint64).reshape(-1)
        self._ends = np.append(self._starts, self._stops[-1:])
        self._counts_ranges = not isinstance(spec, Sparse)
        self._rows = np.zeros(len(self._starts), np.int64)  # since the last report
        self._messages, self._every = 0, 1  # one of so many is counted for all
        self._rates: Rates = np.zeros(len(self._starts))
        # Reports so far; the first covers a part of the time.
        self._reports = np.zeros(len(segments), np.int64)

    def count(self, keys: Keys | KeyRange) -> None:
        """Rows of these keys were asked for; they lie in our segments."""
        self._messages += 1
        if self._messages % self._every:
            return
        if isinstance(keys, KeyRange):
            if self._counts_ranges and keys.start < keys.stop:  # len() may overflow
                low, high = np.uint64(keys.start), np.uint64(keys.stop)
                rows = np.clip(self._stops, low, high) - np.clip(self._starts, low, high)
                self._rows += self._every * rows.astype(np.int64)
        elif len(keys) < len(self._starts):
            np.add.at(self._rows, np.searchsorted(self._starts, keys, side="right") - 1, self._every)
        else:
            self._rows += self._every * np.diff(np.searchsorted(keys, self._ends))

    def update_rates(self, seconds: float) -> None:
        """So many seconds have passed: update the rates."""
        rates = self._rows / seconds
        known = np.repeat(self._reports > 1, self._bins)
        self._rates = np.where(known, LOAD_KEPT * self._rates + (1 - LOAD_KEPT) * rates, rates)
        self._rows[:] = 0
        self._reports += 1
        self._every = _SAMPLE if self._messages > _MANY * seconds else 1
        self._messages = 0

    def rates(self) -> dict[int, float]:
        """Rows a second of the segments that were watched all the time."""
        each = self._rates.reshape(-1, self._bins).sum(axis=1).round(1).tolist()
        rows = zip(self._numbers, each, self._reports.tolist(), strict=True)
        return {number: rate for number, rate, reports in rows if reports > 1}

    def split_keys(self, least: float) -> dict[int, int]:
        """By segment with at least this load and two keys: the key that splits its load in half."""
        found: dict[int, int] = {}
        for at, rates in enumerate(self._rates.reshape(-1, self._bins)):
            keys = self._ranges[at]
            if self._reports[at] > 1 and len(keys) > 1 and rates.sum() >= least:
                found[self._numbers[at]] = _half(keys, rates.tolist())
        return found

    def take_over(self, before: SegmentLoad, same: Mapping[int, int]) -> None:
        """Keep the rates of ``before`` for ``same`` segments (number now: number then)."""
        theirs = {number: at for at, number in enumerate(before._numbers)}
        if before._bins != self._bins:
            return
        for at, number in enumerate(self._numbers):
            if (there := theirs.get(same.get(number, -1))) is not None:
                mine, other = self._bins_of(at), self._bins_of(there)
                self._rows[mine], self._rates[mine] = before._rows[other], before._rates[other]
                self._reports[at] = before._reports[there]

    def _bins_of(self, at: int) -> slice:
        return slice(at * self._bins, (at + 1) * self._bins)


def load_report(
    own: Mapping[int, SegmentLoad], seconds: float
) -> tuple[dict[int, dict[int, float]], dict[int, dict[int, int]]]:
    """What a server reports of all its tables: rates, and where to split the hottest segments."""
    for one in own.values():
        one.update_rates(seconds)
    rates = {number: one.rates() for number, one in own.items()}
    least = _HOT * sum(sum(one.values()) for one in rates.values())
    halves = {number: one.split_keys(least) for number, one in own.items()} if least else {}
    return rates, {number: cuts for number, cuts in halves.items() if cuts}


def _edge(keys: KeyRange, i: int, bins: int) -> int:
    return keys.start + (keys.stop - keys.start) * i // bins


def _half(keys: KeyRange, rates: Sequence[float]) -> int:
    """The end of a bin that makes the hotter side coolest; of several, with fewest keys there."""
    best: tuple[float, int, int] | None = None
    left, total = 0.0, sum(rates)
    for i in range(1, len(rates)):
        left += rates[i - 1]
        at = _edge(keys, i, len(rates))
        if keys.start < at < keys.stop:
            hotter = at - keys.start if left > total - left else keys.stop - at
            one = (max(left, total - left), hotter, at)
            best = one if best is None else min(best, one)
    return keys.start + (keys.stop - keys.start) // 2 if best is None else best[2]
