"""The compute queue of a gossip worker, with a priority lane for what neighbours wait for.

Short work is done at once, a few pieces between two looks at messages, and longer work on the
compute thread. What neighbours wait for runs before the rest. While the emulation of slow workers
holds a worker up (``Slowdown``), it computes nothing, but answers others.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from shoal import limits
from shoal.emulation import Slowdown
from shoal.nodes.time_accounting import TimeAccounting
from shoal.strategies.gossip.model import GossipModel
from shoal.wire.effects import Compute, Computed, Effect, Send
from shoal.wire.messages import Arrays, Message

NEVER = 1 << 62
_IN_ONE_GO = 4  # short pieces of work between two looks at messages

Function = Callable[[], Any]
Then = Callable[[Any], None]
Steps = Generator[tuple[Function, int] | None, Any, None]  # what to compute, over so many elements


class ComputeQueue:
    def __init__(
        self,
        model: GossipModel,
        pace: Slowdown | None = None,
        clock: Callable[[], int] | None = None,
        quick: int = limits.MILLISECOND,
    ) -> None:
        """A gradient is short if the last took at most ``quick`` nanoseconds; below 0: never."""
        self.model, self._pace, self._quick = model, pace, quick
        self.now = 0
        self._clock = clock if clock is not None else lambda: self.now
        self.times = TimeAccounting(self._clock, 0)
        self.error = ""  # why computing has ended
        self.rows, self.loss = 0, 0.0
        self._effects: list[Effect] = []
        self._first: deque[tuple[Function, Then, bool]] = deque()  # others wait for these
        self._next: deque[tuple[Function, Then, bool]] = deque()
        self._token, self._busy = 0, False
        self._then: Then = lambda result: None
        self._steps: Steps
        self._waits = self._is_short = False
        self._paused_until = NEVER  # the emulation goes on until then

    @property
    def wake_at(self) -> int:
        """When there is something to do without a message."""
        if self.error or self._busy:
            return NEVER
        if self._first or self._next:
            return self.now
        return self._paused_until

    @property
    def is_at_work(self) -> bool:
        return self._busy or bool(self._first or self._next)

    def send(self, to: str, message: Message, arrays: Arrays = ()) -> None:
        self._effects.append(Send(to, message, arrays))

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def do(self, function: Function, then: Then, elements: int, first: bool = False) -> None:
        """Compute over so many elements, and call ``then`` with the result."""
        (self._first if first else self._next).append((function, then, elements <= limits.INLINE_ELEMENTS))

    def run(self, steps: Steps) -> None:
        """Run an algorithm: it yields what to compute, or None to wait until ``notify``."""
        self._steps = steps
        self._go_on(None)

    def notify(self) -> None:
        if self._waits:
            self._go_on(None)

    def _go_on(self, result: Any) -> None:
        self._waits = False
        with contextlib.suppress(StopIteration):
            step = self._steps.send(result)
            if step is None:
                self._waits = True
            else:
                self.do(step[0], self._go_on, step[1])

    def gradient(self, slot: int) -> Steps:
        """Store the gradient of a slot; it takes as long as is emulated."""

        def run() -> tuple[float, int, int]:
            began = self._clock()
            loss, rows = self.model.gradient(slot)
            return loss, rows, self._clock() - began

        self.times.computing()
        loss, rows, took = yield run, 0 if self._is_short else limits.INLINE_ELEMENTS + 1
        self.rows, self.loss, self._is_short = self.rows + rows, self.loss + loss, took <= self._quick
        pause = self._pace.extra(rows, took / limits.SECOND) if self._pace is not None else 0.0
        self._paused_until = self.now + int(max(0.0, pause) * limits.SECOND)
        while self.now < self._paused_until:
            yield None
        self._paused_until = NEVER
        self.times.computed()

    def waited(self, since: int, link: int) -> None:
        """The worker waited for neighbours until now; at most ``link`` of it for the network."""
        self.times.waited(held=min(since + link, self.now))

    def computed(self, event: Computed) -> None:
        if not self._busy or event.token != self._token:
            return
        self._busy = False
        if event.error is not None:
            if not isinstance(event.error, Exception):
                raise event.error
            self.fail(event.error)
            return
        self._then(event.result)

    def fail(self, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1:]
        self.error = f"{type(error).__name__}: {error}" + "".join(f" ({one.name}, line {one.lineno})" for one in where)
        self._first.clear()
        self._next.clear()
        self._waits, self._paused_until = False, NEVER

    def turn(self, now: int) -> None:
        self.now = now
        if now >= self._paused_until:
            self.notify()
        room = _IN_ONE_GO
        while not self._busy and not self.error and (self._first or (self._next and room)):
            room -= not self._first
            function, then, is_short = (self._first or self._next).popleft()
            if not is_short or self._quick < 0:
                self._token, self._busy, self._then = self._token + 1, True, then
                self._effects.append(Compute(self._token, function))
                return
            try:
                result = function()
            except Exception as error:
                self.fail(error)
                return
            then(result)
