"""How long the next leg of a gossip run is to be, and who gets how much of it.

A leg takes about a second, so that a run can be stopped, interrupted and kept between two; and many times as long as the pause before
it, so that pauses cost little. Where workers meet two at a time nobody waits for a slow one but at the end of a leg: so legs are longer
there, and each gets as many slots as it does in the same time, by what it did in the last legs.

It is told what time it is, and decides from that alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

LEG = {"sync": 1.0, "async": 4.0}  # seconds that a leg takes, about; its end is a wait for the slowest
SHARE = 20  # a leg takes so many times as long as the pause before it, at least
FASTER = 4  # times as many rounds as in the last leg, at most
MEASURED = 0.05  # seconds: what took less says nothing of how fast somebody is
NEW = 0.5  # how much the last leg counts


class LegPace:
    """Of one run."""

    def __init__(self, mode: Literal["sync", "async"]) -> None:
        self._mode: Literal["sync", "async"] = mode
        self._rounds = 1
        self._began = self._ended = 0.0
        self._done: dict[str, float] = {}  # who, when, in this leg
        self._speed: dict[str, float] = {}  # slots in a second

    def begin(self, now: float) -> None:
        self._began, self._done = now, {}

    def is_done(self, name: str, now: float) -> None:
        """This one has no more to do in this leg."""
        self._done.setdefault(name, now)

    def end(self, now: float, slots: Mapping[str, int]) -> None:
        """So many each had done."""
        self._ended = now
        for name, count in slots.items():
            took = self._done.get(name, now) - self._began
            if count and took >= MEASURED:
                before = self._speed.get(name, count / took)
                self._speed[name] = (1 - NEW) * before + NEW * count / took

    def rounds(self, now: float, last: int, left: float | None) -> int:
        """Of the next leg; the last had so many. ``left``: seconds until it is to stop."""
        if last:
            wanted = max(LEG[self._mode], SHARE * (now - self._ended))
            wanted = wanted if left is None else min(wanted, max(0.0, left))
            took = max(self._ended - self._began, 1e-9)
            self._rounds = max(1, min(int(last * wanted / took), FASTER * self._rounds))
        return self._rounds

    def shares(self, names: list[str]) -> list[float] | None:
        """How much each is to get; nothing if that is as it was, or not known of all."""
        if self._mode == "sync" or any(name not in self._speed for name in names):
            return None
        return [self._speed[name] for name in names]
