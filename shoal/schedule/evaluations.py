"""Which evaluations a run has asked for, and how far dealing may go before the next one.

In step mode nothing past an evaluation is dealt until its weights are read; where pushes count at
once, nothing past the one after it, so that a stop rule is never more than one evaluation late. One
is asked for at a time. Pure bookkeeping: no messages, no time.
"""

from __future__ import annotations

from shoal.schedule.slot_queue import SlotQueue
from shoal.schedule.stop_rules import ENDLESS


class Evaluations:
    def __init__(self, every: int) -> None:
        self.every = every
        self.asked = -1  # the last one asked for
        self.held, self.found = -1, -1  # the last ones whose weights were read, whose loss is known
        self.at: dict[int, tuple[int, int, int]] = {}  # slots, examples, workers of the open ones

    def ask(self, work: SlotQueue, examples: int, workers: int) -> None:
        self.asked += 1
        self.at[self.asked] = (_reached(work), examples, workers)

    def read(self, number: int) -> bool:
        """The weights of this one were read; False if that is no news."""
        if number <= self.held or number not in self.at:
            return False
        self.held = number
        return True

    def moved(self, number: int, slots: int, examples: int) -> bool:
        """A later step than was asked for is evaluated; False if that is no news."""
        if number <= self.found or number not in self.at or slots <= self.at[number][0]:
            return False
        self.at[number] = (slots, examples, self.at[number][2])
        return True

    def judged(self, number: int) -> tuple[int, int, int] | None:
        """The loss of this one is known: where it was; None if that is no news."""
        if number <= self.found or number not in self.at:
            return None
        self.found, self.held = number, max(self.held, number)
        for old in [one for one in self.at if one < number]:
            del self.at[old]
        return self.at[number]

    @property
    def open(self) -> int:
        """The one that is not evaluated yet; -1 if there is none."""
        return self.asked if self.asked > self.found else -1

    def is_due(self, work: SlotQueue, over: bool) -> bool:
        """Time for another one? Only when the last one is in."""
        if self.asked < 0 or self.open >= 0:
            return False
        last = self.at[self.asked][0]
        if work.finished:
            return last < work.done or over
        if over:
            return False  # what is dealt is finished, and then evaluated
        if work.step is not None:
            return work.barrier is not None and _reached(work) >= work.barrier
        return _reached(work) // self.every > last // self.every

    def barrier(self, work: SlotQueue, over: bool) -> int | None:
        """Deal no further than this slot."""
        if self.held < 0:
            return 0  # the first weights are evaluated before anything changes them
        if over or self.every >= ENDLESS:
            return None
        next_at = (self.at[self.held][0] // self.every + (1 if work.step is not None else 2)) * self.every
        return work.slots_until(work.steps_until(next_at))

    def cut(self, work: SlotQueue) -> int | None:
        """The step at which a checkpoint may be cut now; None: not now.

        Earlier evaluations have their loss; one at that very step is asked for again on resume.
        """
        ends = [work.limit] if work.barrier is None else [work.limit, work.barrier]
        step = min(work.steps_until(work.next) + 1, *(work.steps_until(end) for end in ends))
        pending = self.open >= 0 and work.steps_until(self.at[self.open][0]) < step
        return None if pending or self.held < 0 else step

    def forget_open(self) -> None:
        """Forget evaluations that are not done: the evaluator or the model is gone."""
        self.asked = self.held = self.found
        self.at = {number: where for number, where in self.at.items() if number == self.found}


def _reached(work: SlotQueue) -> int:
    """Slots that are counted; in step mode, of whole steps."""
    return work.done if work.step is None else work.slots_until(work.steps)
