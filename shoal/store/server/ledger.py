"""Which numbers of each stream have been counted, per segment.

A *stream* is a pass over the data (its numbers are slots), a client (a counter) or, for clocks, a
worker (steps). ``Ledger`` keeps for each stream and segment a mark, below which all numbers are
counted, and a ring of bits for those above it. So numbers may come in any order, and each is
counted once. The segments of a table nearly always agree; where they do not (some were moved or
sent again), each has its own row of bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.limits import LEDGER_WINDOW
from shoal.wire.messages import Counts

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
NOTHING = Counts(0)
_LOOK = 256  # numbers between two checks whether segments agree again


class PushStream:
    """One stream: in segment s numbers below ``mark[s]``, and those with a bit, are counted.

    While all segments agree, ``common_mark`` is the one mark, ``_ahead`` the one ring, and no array
    is touched.
    """

    __slots__ = ("_added_separately", "_ahead", "_mark", "_segments", "bits", "common_mark")

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._added_separately = 0  # numbers added while segments differed
        self.common_mark = 0  # the mark of all segments; -1: they differ
        self._ahead = bytearray(64)  # while they agree: which numbers above the mark are counted
        self._mark: Numbers = np.zeros(segments, np.int64)
        # Ring: number n is at n modulo the width.
        self.bits: Mask = np.zeros((segments, 64), np.bool_)

    @property
    def mark(self) -> Numbers:
        if self.common_mark >= 0:
            self._mark[:] = self.common_mark
        return self._mark

    @property
    def lowest(self) -> int:
        return self.common_mark if self.common_mark >= 0 else int(self._mark.min())

    def has(self, number: int) -> Mask:
        """The segments in which this number is counted."""
        if self.common_mark >= 0:
            return np.full(self._segments, self._is_counted(number))
        counted: Mask = self._mark > number
        width = self.bits.shape[1]
        counted |= (number - self._mark < width) & self.bits[:, number % width]
        return counted

    def _is_counted(self, number: int) -> bool:
        """Whether it is counted in all segments, while they agree."""
        ring = self._ahead
        return number < self.common_mark or (number - self.common_mark < len(ring) and bool(ring[number % len(ring)]))

    def fresh(self, number: int, among: Mask) -> Mask | None:
        """The segments of these in which the number is not counted yet; None if none."""
        if self.common_mark >= 0:
            return None if self._is_counted(number) else among
        missing = among & ~self.has(number)
        return missing if missing.any() else None

    def fits(self, number: int, floor: int = 0) -> bool:
        """Whether it is near enough to the first missing number; none below ``floor`` is."""
        return number - max(self.lowest, floor) < LEDGER_WINDOW

    def add(self, number: int, segments: Mask, everywhere: bool = False) -> None:
        """Count ``number`` in these segments; ``everywhere``: they are all."""
        if self.common_mark >= 0 and (everywhere or segments.all()):
            self._add_to_all(number)
            return
        self._separate()
        mark = self._mark
        # Of these alone: another segment may be far behind in this stream, and is not written.
        while number - int(mark.min(where=segments, initial=number)) >= self.bits.shape[1]:
            self._widen()
        self.bits[segments & (mark <= number), number % self.bits.shape[1]] = True
        self._advance()
        self._added_separately += 1
        if self._added_separately % _LOOK == 0:
            self._merge_if_equal()

    def _add_to_all(self, number: int) -> None:
        while number - self.common_mark >= len(self._ahead):
            ring = bytearray(2 * len(self._ahead))
            for ahead in self._numbers_ahead():
                ring[ahead % len(ring)] = 1
            self._ahead = ring
        ring, width = self._ahead, len(self._ahead)
        if number >= self.common_mark:
            ring[number % width] = 1
        self._advance_all()

    def _advance_all(self) -> None:
        ring, width = self._ahead, len(self._ahead)
        while ring[self.common_mark % width]:
            ring[self.common_mark % width] = 0
            self.common_mark += 1

    def _numbers_ahead(self) -> list[int]:
        width = len(self._ahead)
        return [
            self.common_mark + (place - self.common_mark) % width
            for place in np.flatnonzero(np.frombuffer(self._ahead, np.uint8)).tolist()
        ]

    def _separate(self) -> None:
        """From here on each segment has its own mark and bits."""
        if self.common_mark < 0:
            return
        ahead = self._numbers_ahead()
        while self.bits.shape[1] < len(self._ahead):
            self._widen()
        self._mark[:], self.common_mark = self.common_mark, -1
        for number in ahead:
            self.bits[:, number % self.bits.shape[1]] = True
        self._ahead = bytearray(64)

    def raise_to(self, floor: int | Numbers) -> bool:
        """Close all numbers below ``floor``, one for all segments or one each. True if news."""
        if self.common_mark >= 0 and isinstance(floor, int):
            if floor <= self.common_mark:
                return False
            kept = [number for number in self._numbers_ahead() if number >= floor] if 1 in self._ahead else None
            self.common_mark = floor
            if kept is not None:
                self._ahead = bytearray(len(self._ahead))
                for number in kept:
                    self._ahead[number % len(self._ahead)] = 1
            self._advance_all()
            return True
        if not (self.mark < floor).any():
            return False
        self._separate()
        mark = self._mark
        width = self.bits.shape[1]  # clear the bits below the floor
        numbers = mark[:, None] + (np.arange(width) - mark[:, None]) % width
        self.bits &= numbers >= np.reshape(floor, (-1, 1))
        np.maximum(mark, floor, out=self._mark)
        self._advance()
        return True

    def _advance(self) -> None:
        rows, width = np.arange(self._segments), self.bits.shape[1]
        while (on := self.bits[rows, self._mark % width]).any():
            self.bits[rows[on], self._mark[on] % width] = False
            self._mark[on] += 1
        agree = bool((self._mark == self._mark[0]).all()) and not self.bits.any()
        self.common_mark = int(self._mark[0]) if agree else -1

    def counted(self, segment: int) -> Counts:
        """What one segment has counted, as messages carry it."""
        if self.common_mark >= 0:
            return Counts.of(self.common_mark, self._numbers_ahead())
        mark, width = int(self._mark[segment]), self.bits.shape[1]
        return Counts.of(mark, mark + (np.flatnonzero(self.bits[segment]) - mark) % width)

    @classmethod
    def of(cls, counted: Sequence[Counts]) -> PushStream:
        stream = cls(len(counted))
        stream._separate()
        stream._mark[:] = [one.mark for one in counted]
        ahead = [one.ahead for one in counted]
        least = int(stream._mark.min())
        while max((int(one[-1]) for one in ahead if len(one)), default=least) - least >= stream.bits.shape[1]:
            stream._widen()
        for segment, numbers in enumerate(ahead):
            stream.bits[segment, numbers % stream.bits.shape[1]] = True
        stream._advance()
        stream._merge_if_equal()
        return stream

    def _merge_if_equal(self) -> None:
        """If all segments agree again, use one ring for all."""
        if self.common_mark < 0 and (self._mark == self._mark[0]).all() and (self.bits == self.bits[0]).all():
            self.common_mark, width = int(self._mark[0]), self.bits.shape[1]
            self._ahead = bytearray(self.bits[0].tobytes())
            assert len(self._ahead) == width
            self.bits[:] = False

    def _widen(self) -> None:
        old = self.bits.shape[1]
        bits = np.zeros((self._segments, old * 2), np.bool_)
        rows, places = np.nonzero(self.bits)
        numbers = self._mark[rows] + (places - self._mark[rows]) % old
        bits[rows, numbers % (old * 2)] = True
        self.bits = bits


class Ledger:
    """All streams of a table on a server, by number."""

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._streams: dict[int, PushStream] = {}

    def __contains__(self, stream: int) -> bool:
        return stream in self._streams

    def stream(self, stream: int) -> PushStream:
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = PushStream(self._segments)
        return found

    def put(self, stream: int, found: PushStream) -> None:
        self._streams[stream] = found

    def drop(self, stream: int) -> None:
        self._streams.pop(stream, None)

    def streams(self) -> list[int]:
        return list(self._streams)

    def counted(self, segment: int) -> dict[int, Counts]:
        """What one segment has counted, by stream."""
        return {number: stream.counted(segment) for number, stream in self._streams.items()}

    @classmethod
    def of(cls, counted: Sequence[Mapping[int, Counts]]) -> Ledger:
        """From what each segment has counted; nothing in streams it does not know."""
        marks = cls(len(counted))
        for number in dict.fromkeys(number for one in counted for number in one):
            marks._streams[number] = PushStream.of([one.get(number, NOTHING) for one in counted])
        return marks
