"""Gossip in pairs: after a step a worker meets one neighbour (AD-PSGD, Lian et al., 2018).

    one     "this is what I have"            x
    other   moves by d = (x - its own) / 2   "I have moved by d towards you"
    one     moves by -d                      whatever it has become meanwhile

Every meeting keeps the sum of all models, and no worker is locked. Of two that ask each other at
once, the one whose name comes later is refused: else both would only swap places. A worker has one
meeting open at a time, and answers others between two of its computations, also after its last
round. A question that comes again gets the same answer, and an older one gets none. What this
worker moved towards a neighbour that is gone, and that may not have moved back, counts as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from shoal import limits
from shoal.strategies.gossip.compute_queue import NEVER, ComputeQueue, Steps
from shoal.strategies.gossip.model import RUNAWAY, Floats, from_frames, to_frames
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.messages import Arrays
from shoal.wire.messages import gossip as g

NUMBERS = 1 << 32  # more meetings than a leg can have: later legs have higher numbers


@dataclass(slots=True)
class PendingMeeting:
    name: str
    number: int
    weights: Floats
    since: int
    wait: int
    at: int  # when it asks again


class Pairwise:
    def __init__(
        self,
        name: str,
        queue: ComputeQueue,
        chance: Random,
        link: int,
        finished: Callable[[], None],
        timing: TimingSettings = DEFAULT,
    ) -> None:
        self._name, self._timing = name, timing
        self._queue, self._random, self._link, self._finished = queue, chance, link, finished
        self._size = queue.model.size
        self.leg = self.round = self._rounds = 0
        self.met = 0  # meetings that this worker asked for, and that are settled
        self.lost = 0.0
        self.frozen = True  # there are no meetings between two legs
        self.pending: PendingMeeting | None = None
        self.answered: dict[str, tuple[int, Floats | None]] = {}  # last number, our move
        self._neighbours: list[str] = []
        self._answering: dict[str, int] = {}
        self._slots: Sequence[int] = ()
        self._number = self._since = 0  # of the last meeting that we asked for, and when
        self._early: dict[str, tuple[g.Meet, Floats]] = {}  # questions of the next leg
        self._applying = self._waits = False

    @property
    def wake_at(self) -> int:
        return self.pending.at if self.pending is not None else NEVER

    @property
    def is_over(self) -> bool:
        return self.round >= self._rounds and not self._waits

    def lacking(self) -> list[str]:
        return [self.pending.name] if self._waits and self.pending is not None else []

    def waits_since(self) -> int:
        return self.pending.since if self.pending is not None else self._queue.now

    def begin(self, leg: g.Leg, slots: Sequence[int], gone: dict[str, int]) -> None:
        self.leg, self._rounds, self._slots = leg.number, leg.rounds, slots
        self.round, self.met, self.frozen, self._waits = 0, 0, False, False
        self._number = leg.number * NUMBERS
        self._neighbours = sorted({one.name for one in leg.hears} - set(gone))
        for name, (number, _) in self.answered.items():
            self.answered[name] = number, None  # all meetings of the last leg are settled
        early, self._early = self._early, {}
        for name, (meet, values) in early.items():
            self.on_meet(name, meet, values)
        self._queue.run(self._leg())

    # ------------------------------------------------------------ one round

    def _leg(self) -> Steps:
        queue, model = self._queue, self._queue.model
        while self.round < self._rounds:
            if self.round < len(self._slots):
                yield from queue.gradient(self._slots[self.round])
                yield model.step, self._size
            elif self._slots or not self._neighbours:  # others have more: only answer them
                self.round = self._rounds
                break
            yield from self._settle()
            if self._neighbours:
                self._ask((yield lambda: model.weights, self._size))
            self.round += 1
        yield from self._settle()
        self._finished()

    def _settle(self) -> Steps:
        """Wait until the meeting that we asked for is settled."""
        self._waits = waited = self.pending is not None or self._applying
        while self.pending is not None or self._applying:
            yield None
        if waited:
            self._queue.waited(self._since, 2 * self._link)
        self._waits = False

    def _ask(self, weights: Floats) -> None:
        if self._neighbours:  # some may have gone meanwhile
            self._number, self._since = self._number + 1, self._queue.now
            name, wait = self._random.choice(self._neighbours), self._timing.resend_first + 2 * self._link
            self.pending = PendingMeeting(name, self._number, weights, self._since, wait, self._since + wait)
            self._queue.send(name, g.Meet(self._number), to_frames(weights))

    # ------------------------------------------------------------ what others say

    def on_meet(self, sender: str, meet: g.Meet, values: Floats) -> None:
        """Move to the mean of the two, once."""
        number, moved = self.answered.get(sender, (-1, None))
        if values.size != self._size:
            return
        if meet.number // NUMBERS == self.leg + 1 and len(self._early) < limits.PEERS:
            self._early[sender] = meet, values
        elif meet.number == number:
            self._answer(sender, number, moved)
        elif meet.number > number and self._answering.get(sender) != meet.number:
            if self.pending is not None and self.pending.name == sender and self._name < sender:
                self._moved(sender, meet.number, None)  # it answers us
                return
            self._answering[sender] = meet.number
            self._queue.do(
                lambda: self._move(sender, values), lambda d: self._moved(sender, meet.number, d), 2 * self._size, first=True
            )  # fmt: skip

    def _move(self, sender: str, values: Floats) -> Floats | None:
        if self.frozen or sender not in self._neighbours:
            return None
        d = self._queue.model.weights
        with np.errstate(**RUNAWAY):
            np.subtract(values, d, out=d)
            d *= np.float32(0.5)
        self._queue.model.add(d)
        return d

    def _moved(self, sender: str, number: int, d: Floats | None) -> None:
        if self._answering.get(sender) == number:
            del self._answering[sender]
        self.answered[sender] = number, d
        if sender in self._neighbours:
            self._answer(sender, number, d)
        else:  # it was lost meanwhile
            self._count_lost(sender)

    def _answer(self, sender: str, number: int, d: Floats | None) -> None:
        self._queue.send(sender, g.MeetReply(number), to_frames(d) if d is not None else ())

    def on_reply(self, sender: str, met: g.MeetReply, arrays: Arrays) -> None:
        pending = self.pending
        if pending is None or pending.name != sender or pending.number != met.number:
            return
        if not arrays:
            self.pending = None
            self._queue.notify()
            return
        d: Floats = from_frames(arrays)
        if d.size != self._size:
            return
        self.pending, self._applying = None, True  # the answer may come twice
        self._queue.do(lambda: self._queue.model.add(d, -1.0), self._applied, self._size, first=True)

    def _applied(self, nothing: None) -> None:
        self._applying = False
        self.met += 1
        self._queue.notify()

    def without(self, name: str) -> None:
        if name not in self._neighbours:
            return
        self._neighbours.remove(name)
        self._count_lost(name)
        if self.pending is not None and self.pending.name == name:
            self.pending = None
            self._queue.notify()

    def _count_lost(self, name: str) -> None:
        number, moved = self.answered.get(name, (0, None))
        if moved is not None:
            self.answered[name] = number, None
            self._queue.do(lambda: float(np.linalg.norm(moved)), self._add_lost, self._size, first=True)

    def _add_lost(self, size: float) -> None:
        self.lost += size

    def tick(self, now: int) -> None:
        pending = self.pending
        if pending is not None and now >= pending.at:
            pending.wait = min(2 * pending.wait, self._timing.resend_most + 2 * self._link)
            pending.at = now + pending.wait
            self._queue.send(pending.name, g.Meet(pending.number), to_frames(pending.weights))
