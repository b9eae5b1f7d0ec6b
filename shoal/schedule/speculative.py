"""Slots of a worker that is much slower than the others are dealt to another one, too: whoever is first counts.

A worker is slow if a slot takes it more than twice as long as the others (by their own word, waiting not counted), or if the
oldest step has been open for long and it has slots of it. The others share its slots among them. In step mode all copies of a
slot read the same weights, so that it does not matter which one counts (Dean and Barroso, 2013, call such requests hedged).

Pure bookkeeping: no messages, no time but what it is told.
"""

from __future__ import annotations

from statistics import median

from shoal import limits
from shoal.schedule.slot_queue import SlotQueue

SLOW = 2.0  # times what a slot takes the others
KNOWN = 3  # slots after which one can be judged
FORGETS = 0.7  # of what was known, when there is news
STUCK = 300 * limits.MILLISECOND  # for so long no step was taken, ...
STUCK_STEPS = 4.0  # ... which is so many times what one takes
MOST = 64  # slots lent at once


class SpeculativeCopies:
    """Who gets whose slots besides its own."""

    def __init__(self) -> None:
        self.lent = 0
        self._took: dict[int, tuple[float, float]] = {}  # by worker: microseconds and slots, of late
        self._copied: dict[int, int] = {}  # slot -> who has the copy
        self._step, self._since, self._usual = 0, 0, 0.0  # the oldest step, since when, and how long one takes

    def take(self, worker: int, microseconds: int, slots: int) -> None:
        """A worker's report: so long it computed, for so many slots."""
        took, known = self._took.get(worker, (0.0, 0.0))
        kept = FORGETS if slots else 1.0  # a report of no slot is no news: workers that wait report often
        self._took[worker] = (kept * took + microseconds, kept * known + slots)

    def gone(self, worker: int) -> None:
        self._took.pop(worker, None)

    def slow(self) -> set[int]:
        """Those that take much longer for a slot than the others."""
        pace = {worker: took / slots for worker, (took, slots) in self._took.items() if slots >= KNOWN}
        return {
            worker
            for worker, mine in pace.items()
            if (others := [one for other, one in pace.items() if other != worker]) and mine > SLOW * median(others)
        }

    def first(self, worker: int, slots: list[int]) -> int:
        """How many of these slots, counted by this worker, were copies: whose they were was slower."""
        return sum(self._copied.get(slot) == worker for slot in slots)

    def choose(self, now: int, worker: int, work: SlotQueue) -> list[int]:
        """Slots of others that this worker is to compute, too; it has them from now on."""
        slow = self.slow()
        if worker in slow:
            return []
        stuck = self._is_stuck(now, work)
        fast = sorted(one for one in self._took if one not in slow)
        if worker not in fast:
            return []
        turn, found = fast.index(worker), list[int]()
        end = max(work.held(worker), default=work.next)
        for other in self._took:
            if other == worker or not (other in slow or stuck):
                continue
            for slot in work.held(other):
                late = stuck and work.step_of(slot) <= work.steps
                if slot > end and not late:
                    break
                if slot not in self._copied and (late or (other in slow and slot % len(fast) == turn)):
                    found.append(slot)
        found = sorted(found)[:MOST]
        self._copied = {slot: one for slot, one in self._copied.items() if slot >= work.lowest}
        self._copied.update(dict.fromkeys(found, worker))
        self.lent += len(found)
        work.lend(worker, found)
        return found

    def _is_stuck(self, now: int, work: SlotQueue) -> bool:
        """No step was taken for far longer than one takes."""
        if work.steps != self._step or not self._since:
            if self._since:
                each = (now - self._since) / max(1, work.steps - self._step)
                self._usual = each if not self._usual else 0.8 * self._usual + 0.2 * min(each, 4 * self._usual)
            self._step, self._since = work.steps, now
            return False
        return bool(self._usual) and now - self._since > max(STUCK, STUCK_STEPS * self._usual)
