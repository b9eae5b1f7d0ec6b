"""Handles stragglers: an automatic bound on delay, and speculative copies of slots.

Nothing here sends or reads the time.
"""

from __future__ import annotations

from statistics import median

from shoal import limits
from shoal.schedule.slot_queue import SlotQueue

MOST_WAITING = 0.05  # of the workers' time
FAR = 0.25  # waiting that much, it is far too small: four times as much
LONGEST = 256  # steps: beyond that it is no matter of the delay
WINDOW = 500 * limits.MILLISECOND  # is looked at as a whole
# After a change: reports in flight are of the time before. Also, as many steps of each worker pass
# as the delay was changed by: until then a fast worker runs ahead, or waits for its old lead.
SETTLING = 250 * limits.MILLISECOND
FEWEST = 4  # steps of each worker in a window
PATIENCE = 16  # windows before the one below is tried again; doubled each time it was too small


class AutoDelay:
    """Finds the smallest delay at which workers hardly wait (Li et al., OSDI'14, section 5).

    If workers waited too much of a window, the delay was too small: double it, or go halfway to one
    that was enough. Otherwise go halfway to one that was too small, until the two are neighbours.
    Less and less often the next smaller one is tried again: a straggler may have left.
    """

    def __init__(self, delay: int = 0) -> None:
        self.delay = delay
        self.share = 0.0  # that was waited, in the last window
        self._short, self._enough = -1, LONGEST + 1  # largest too small, smallest large enough
        self._calm, self._patience, self._doubt = 0, PATIENCE, False
        self._since, self._settling = 0, 0
        self._waited = self._whole = self._steps = 0

    def take(self, waited: int, whole: int, steps: int) -> None:
        """A worker's report: it waited so much of the whole time, and took so many steps."""
        self._waited += waited
        self._whole += whole
        self._steps += steps

    def look(self, now: int, workers: int) -> bool:
        age = now - self._since
        settled = age >= SETTLING and self._steps >= self._settling * workers
        if not self._since or (self._settling and settled):
            self._begin(now)
            return False
        if self._settling or age < WINDOW or self._steps < FEWEST * workers or not self._whole:
            return False
        self.share, before = self._waited / self._whole, self.delay
        self._begin(now)
        self.delay = self._longer() if self.share > MOST_WAITING else self._shorter()
        self._settling = abs(self.delay - before)
        return self._settling > 0

    def _longer(self) -> int:
        if self._calm and not self._doubt:  # once may be chance
            self._doubt = True
            return self.delay
        self._calm, self._doubt, self._short = 0, False, self.delay
        if self._enough <= self.delay:
            self._enough = LONGEST + 1
        if self._enough > LONGEST:
            return min(LONGEST, max(self.delay + 1, (4 if self.share > FAR else 2) * self.delay))
        if self._enough - self._short == 1:
            self._patience = min(2 * self._patience, 1 << 10)
        return -(-(self._short + self._enough) // 2)

    def _shorter(self) -> int:
        self._doubt, self._enough = False, self.delay
        self._short = min(self._short, self.delay - 1)
        if self._enough - self._short > 1:
            return (self._short + self._enough) // 2
        self._calm += 1
        if self.delay and self._calm >= self._patience:
            self._calm, self._short = 0, self.delay - 2
            return self.delay - 1
        return self.delay

    def _begin(self, now: int) -> None:
        self._since, self._settling = now, 0
        self._waited = self._whole = self._steps = 0


SLOW = 2.0  # times what a slot takes the others
KNOWN = 3  # slots of a worker after which its speed is known
FORGETS = 0.7  # of what was known, when there is news
STUCK = 300 * limits.MILLISECOND  # for so long no step was taken, ...
STUCK_STEPS = 4.0  # ... which is so many times what one takes
MOST = 64  # slots lent at once


class SpeculativeCopies:
    """Deals the slots of a straggler to other workers, too: the first to finish counts.

    A worker is slow if a slot takes it more than twice as long as the others, or if it holds slots
    of a step that has been open for long. In step mode all copies of a slot read the same weights
    (hedged requests: Dean and Barroso, 2013).
    """

    def __init__(self) -> None:
        self.lent = 0
        self._took: dict[int, tuple[float, float]] = {}  # by worker: recent microseconds, slots
        self._copied: dict[int, int] = {}  # slot -> who has the copy
        self._step, self._since, self._usual = 0, 0, 0.0  # oldest step, its start, usual duration

    def take(self, worker: int, microseconds: int, slots: int) -> None:
        """A worker's report: so long it computed, for so many slots."""
        took, known = self._took.get(worker, (0.0, 0.0))
        kept = FORGETS if slots else 1.0  # a report of no slot is no news
        self._took[worker] = (kept * took + microseconds, kept * known + slots)

    def gone(self, worker: int) -> None:
        self._took.pop(worker, None)

    def slow(self) -> set[int]:
        pace = {worker: took / slots for worker, (took, slots) in self._took.items() if slots >= KNOWN}
        return {
            worker
            for worker, mine in pace.items()
            if (others := [one for other, one in pace.items() if other != worker]) and mine > SLOW * median(others)
        }

    def first(self, worker: int, slots: list[int]) -> int:
        """How many of these slots, counted by this worker, were speculative copies."""
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
        if work.steps != self._step or not self._since:
            if self._since:
                each = (now - self._since) / max(1, work.steps - self._step)
                self._usual = each if not self._usual else 0.8 * self._usual + 0.2 * min(each, 4 * self._usual)
            self._step, self._since = work.steps, now
            return False
        return bool(self._usual) and now - self._since > max(STUCK, STUCK_STEPS * self._usual)
