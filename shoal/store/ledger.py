"""Which numbers of a stream have been counted, for all the segments that a server holds of a table at once.

A *stream* is a pass over the data (its numbers are slots), a client (its numbers are a counter) or, for clocks, a worker
(its numbers are steps). ``Marks`` keeps for each stream and segment a mark, below which all numbers are counted, and a
ring of bits for those above it, so that numbers may come in any order and each is counted once. The segments of a table
nearly always agree; where they do not (a part was moved or sent again), each has its own truth.

One row of a small integer array per stream, one column per segment: every question is one vector operation.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.limits import LEDGER_WINDOW

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


class Stream:
    """One stream's numbers: all below ``mark[s]`` are counted in segment s, and those whose bit is set above it."""

    __slots__ = ("bits", "mark", "most")

    def __init__(self, segments: int) -> None:
        self.mark: Numbers = np.zeros(segments, np.int64)
        self.most = 0  # one above the highest number that was ever counted: no bits, no search
        self.bits: Mask = np.zeros((segments, 64), np.bool_)  # ring: number n is at n modulo the width

    def has(self, number: int) -> Mask:
        counted: Mask = self.mark > number
        if number < self.most:
            ahead = (number >= self.mark) & (number - self.mark < self.bits.shape[1])
            counted |= ahead & self.bits[:, number % self.bits.shape[1]]
        return counted

    def fits(self, number: int) -> bool:
        return bool(number - int(self.mark.min()) < LEDGER_WINDOW)

    def add(self, number: int, segments: Mask) -> None:
        """Count ``number`` in these segments. In order, which is nearly always, no bit is touched."""
        if self.most <= number and (self.mark[segments] == number).all():
            self.mark[segments] += 1
            self.most = number + 1
            return
        self.most = max(self.most, number + 1)
        while number - int(self.mark.min()) >= self.bits.shape[1]:
            self._widen()
        self.bits[segments & (self.mark <= number), number % self.bits.shape[1]] = True
        self._advance()

    def raise_to(self, floor: int | Numbers) -> bool:
        """All numbers below ``floor`` are over: those that were never counted will not come any more."""
        behind = self.mark < floor
        if not behind.any():
            return False
        if self.most > int(self.mark.min()):  # some bits may be set: those that are passed must not be met again
            width = self.bits.shape[1]
            numbers = self.mark[:, None] + (np.arange(width) - self.mark[:, None]) % width
            self.bits &= numbers >= np.reshape(floor, (-1, 1))
        np.maximum(self.mark, floor, out=self.mark)
        self.most = max(self.most, int(self.mark.max()))
        self._advance()
        return True

    def _advance(self) -> None:
        rows = np.arange(len(self.mark))
        width = self.bits.shape[1]
        while (on := self.bits[rows, self.mark % width]).any():
            self.bits[rows[on], self.mark[on] % width] = False
            self.mark[on] += 1

    def _widen(self) -> None:
        old = self.bits.shape[1]
        bits = np.zeros((len(self.mark), old * 2), np.bool_)
        rows, places = np.nonzero(self.bits)
        numbers = self.mark[rows] + (places - self.mark[rows]) % old
        bits[rows, numbers % (old * 2)] = True
        self.bits = bits


class Marks:
    """All streams of a table on a server, by number."""

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._streams: dict[int, Stream] = {}

    def __contains__(self, stream: int) -> bool:
        return stream in self._streams

    def stream(self, stream: int) -> Stream:
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = Stream(self._segments)
        return found

    def drop(self, stream: int) -> None:
        self._streams.pop(stream, None)

    def streams(self) -> list[int]:
        return list(self._streams)
