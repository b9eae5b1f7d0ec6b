"""The loop that runs a node: it waits, hands over events, and carries out effects.

Only the thread that turns the loop touches the transport and the node: as a rule the node's own; in
one process also one that brings a message while the node is idle (``take``). Computations and file
accesses run on one thread each and come back as events, so that the loop stays awake for resends
and heartbeats. The simulator has this module's twin.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from shoal import limits
from shoal.errors import Invalid
from shoal.events import RunEvent
from shoal.nodes.journal import JournalFile
from shoal.wire import Transport, effects
from shoal.wire.effects import Computed, Durable, Effect, Event, Node, Stored, Tick

_LONGEST_WAIT = limits.SECOND


class Loop:
    """One node, joined to the world."""

    def __init__(self, node: Node, transport: Transport, journal: JournalFile | None = None) -> None:
        self.node, self.transport = node, transport
        self.stopped = threading.Event()
        self.waiting = False  # for something to happen, so that nothing is half done
        self._node_lock = threading.Lock()  # its holder may touch the node
        self._broken: BaseException | None = None
        self._journal = journal if journal is not None else JournalFile()
        self._wake_at = self._now = 0
        self._events: deque[Event] = deque()  # from the compute thread, the journal, other threads
        self._threads: dict[str, WorkThread] = {}  # one to compute, one for the disk
        self.listener: Callable[[RunEvent], None] = lambda event: None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.turn()
        finally:
            self.close()

    def turn(self, most: float | None = None) -> None:
        """Handle what comes within ``most`` seconds, or until the node wants to wake."""
        now = time.monotonic_ns()
        wait = 0.0 if self._events else min(max(self._wake_at - now, 0), _LONGEST_WAIT) / limits.SECOND
        self.waiting = True
        events = self.transport.receive(wait if most is None else min(wait, most))
        self.waiting = False
        with self._node_lock:
            if self._broken is not None:
                raise self._broken
            while self._events:
                self._feed(self._events.popleft())
            for event in events:
                self._feed(event)
            if self._time() >= self._wake_at:
                self._feed(Tick())
            self.transport.flush()

    def take(self, events: Sequence[Event]) -> bool:
        """Handle these now, in the caller's thread; False if another thread is in the node."""
        if not self._node_lock.acquire(blocking=False):
            return False
        try:
            for event in events:
                self._feed(event)
            self.transport.flush()
        except BaseException as error:  # not the caller's trouble: the node's own thread raises it
            self._broken = error
            self.transport.wake()
        finally:
            self._node_lock.release()
        return True

    def poke(self) -> None:
        """The node has something new to do: let it, now. For the thread that turns the loop."""
        self._feed(Tick())
        self.transport.flush()

    def poke_soon(self) -> None:
        """The same, from any thread: the loop does it."""
        self.tell(Tick())

    def tell(self, event: Event) -> None:
        self._events.append(event)
        self.transport.wake()

    def carry_out(self, found: list[Effect]) -> None:
        for effect in found:
            match effect:
                case effects.Send(to, message, arrays):
                    self.transport.send(to, message, arrays)
                case effects.Wake(at):
                    self._wake_at = at
                case effects.Compute(token, function):
                    self._work("compute", Computed, token, function)
                case effects.Store(token, function):
                    self._work("disk", Stored, token, function)
                case effects.Persist(token, record):
                    self._events.append(Durable(token, self._journal.append(record)))
                case effects.Tell(event):
                    self.listener(event)
                case effects.Connect(name, ""):
                    self.transport.disconnect(name)
                case effects.Connect(name, address, mutual):
                    with contextlib.suppress(Invalid):  # calls to a bad address end as unanswered
                        self.transport.connect(name, address, mutual)

    def stop(self) -> None:
        self.stopped.set()
        self.transport.wake()

    def close(self) -> None:
        for kind, thread in self._threads.items():
            # a disk may hang
            thread.close(None if kind == "compute" else limits.DRAIN / limits.SECOND)
        self.transport.close()
        self._journal.close()

    def _feed(self, event: Event) -> None:
        self.carry_out(self.node.handle(self._time(), event))

    def _time(self) -> int:
        """Never goes back: on some machines the clocks of two cores differ by milliseconds."""
        self._now = max(self._now, time.monotonic_ns())
        return self._now

    def _work(self, kind: str, done: type[Computed] | type[Stored], token: int, function: Callable[[], Any]) -> None:
        if kind not in self._threads:
            self._threads[kind] = WorkThread(f"{self.node.name}-{kind}", done, self.tell)
        self._threads[kind].work.put((token, function))


class WorkThread:
    """Runs one function after another, and reports each. A disk that hangs blocks no exit."""

    def __init__(self, name: str, done: type[Computed] | type[Stored], tell: Callable[[Event], None]) -> None:
        self.work: SimpleQueue[tuple[int, Callable[[], Any]] | None] = SimpleQueue()
        self._done, self._tell, self._closed = done, tell, False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, seconds: float | None) -> None:
        """What has not begun never will; what has is waited for, but no longer than this."""
        self._closed = True
        self.work.put(None)
        self._thread.join(seconds)

    def _run(self) -> None:
        while (item := self.work.get()) is not None and not self._closed:
            token, function = item
            here = os.getpid()
            try:
                event = self._done(token, function())
            except BaseException as error:
                event = self._done(token, error=error)
            if os.getpid() != here:  # a fork, made by the computation: it must not speak for us
                os._exit(0)
            if not self._closed:
                self._tell(event)
