"""Workers that are slow: alive, and their heartbeats go on; only their computing takes longer.

What is done about them (second copies of slots, an automatic delay) runs in the training scenario, where it is the scheduler's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from random import Random
from unittest import mock

from shoal.limits import MILLISECOND
from shoal.schedule import auto_delay
from shoal.simulation.faults import Fault, FaultPlan

LONGEST_BREAK = 1_000  # milliseconds


def quick() -> AbstractContextManager[object]:
    """Runs are short here: the delay is looked at more often, and decided upon fewer steps."""
    stack = ExitStack()
    window, settling = 100 * MILLISECOND, 30 * MILLISECOND
    stack.enter_context(mock.patch.multiple(auto_delay, FEWEST=1, WINDOW=window, SETTLING=settling))
    return stack


class Stragglers:
    """How long the computing of each worker takes, and where its time went."""

    def __init__(self, plan: FaultPlan, now: Callable[[], int]) -> None:
        self._random, self._now = Random(f"{plan.seed}/breaks"), now
        self._faults: dict[str, list[tuple[Fault, int]]] = {}
        self.counts: Counter[str] = Counter()

    def straggle(self, fault: Fault, until: int) -> None:
        self._faults.setdefault(fault.who, []).append((fault, until))

    def hurry(self) -> None:
        self._faults.clear()

    def takes(self, worker: str, nanoseconds: int) -> int:
        """A computation of this worker that would take so long takes this long.

        Of several faults that slow it down the worst counts: all of them together would make minutes of a slot.
        """
        now, times, more = self._now(), 1.0, 0
        for fault, until in self._faults.get(worker, ()):
            if until <= now:
                continue
            match fault.kind:
                case "slower":
                    times = max(times, fault.rate)
                case "halting" if self._random.random() < fault.rate:
                    more += self._random.randrange(LONGEST_BREAK) * MILLISECOND
                case "stall":
                    more += until - now
        whole = int(nanoseconds * times) + more
        self.counts["slots that took longer"] += whole > nanoseconds
        return whole
