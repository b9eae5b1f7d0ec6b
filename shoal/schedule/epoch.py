"""One pass over the data, while it is open: which of its slots are dealt, and which are counted."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt


class EpochOrder(Protocol):
    """Which rows a slot has: the same group of rows comes once in every pass, at another place."""

    per_pass: int
    turns: int  # step mode: slot j is meant for the worker whose turn j modulo this is

    def contents(self, of_pass: int) -> npt.NDArray[np.int64]: ...
    def content(self, of_pass: int, number: int) -> int: ...
    def span(self, content: int) -> tuple[int, int]: ...
    def rows_in(self, contents: npt.NDArray[np.int64]) -> int: ...


@dataclass(slots=True)
class EpochSlots:
    """One pass that is open: what of it is dealt and what is counted."""

    first: int  # slot
    group: npt.NDArray[np.int64]  # of rows, by place
    counted: npt.NDArray[np.bool_]
    left: int  # to be counted
    free: deque[int] = field(default_factory=deque)  # places that nobody had before
    kept: dict[str, deque[int]] = field(default_factory=dict)  # places by who had their rows before
    undealt: int = 0

    def take(self, worker: str, most: int) -> list[int]:
        """Places for this worker, at most so many."""
        taken: list[int] = []
        while len(taken) < most and self.undealt:
            mine = self.kept.get(worker)
            if mine:
                taken.append(mine.popleft())
            elif self.free:
                taken.append(self.free.popleft())
            else:
                taken.append(max(self.kept.values(), key=len).pop())
            self.undealt -= 1
        return taken

    def remove(self, place: int) -> bool:
        """Somebody has this place already; False if it was dealt here."""
        for places in (self.free, *self.kept.values()):
            if place in places:
                places.remove(place)
                self.undealt -= 1
                return True
        return False

    def rest(self) -> list[int]:
        """All places that are neither dealt nor counted: from here on they are dealt."""
        found = [place for places in (self.free, *self.kept.values()) for place in places if not self.counted[place]]
        self.free.clear()
        self.kept.clear()
        self.undealt = 0
        return found
