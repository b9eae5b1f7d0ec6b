"""Messages between threads of one process: references, no copies.

A ``Hub`` is where nodes find each other by name. Arrays are handed over as they are, so nobody may write to what it sent
until it is acknowledged.
"""

from __future__ import annotations

import queue
from collections import Counter

from shoal.wire.effects import Received
from shoal.wire.messages import Arrays, Message

_BATCH = 256


class Hub:
    """The nodes of one process, by name."""

    def __init__(self) -> None:
        self._boxes: dict[str, queue.SimpleQueue[Received | None]] = {}

    def open(self, name: str) -> MemoryTransport:
        box: queue.SimpleQueue[Received | None] = queue.SimpleQueue()
        self._boxes[name] = box  # a second node of the same name takes over: the coordinator fences the first
        return MemoryTransport(name, self, box)

    def box(self, name: str) -> queue.SimpleQueue[Received | None] | None:
        return self._boxes.get(name)

    def forget(self, name: str, box: queue.SimpleQueue[Received | None]) -> None:
        if self._boxes.get(name) is box:
            del self._boxes[name]


class MemoryTransport:
    """One node's mailbox."""

    def __init__(self, name: str, hub: Hub, box: queue.SimpleQueue[Received | None]) -> None:
        self._name, self._hub, self._box = name, hub, box
        self._counts: Counter[str] = Counter()

    @property
    def address(self) -> str:
        return f"memory:{self._name}"

    def connect(self, name: str, address: str) -> None:
        return

    def disconnect(self, name: str) -> None:
        return

    def send(self, to: str, message: Message, arrays: Arrays) -> None:
        box = self._hub.box(to)
        if box is None:
            self._counts["nobody there"] += 1
        else:
            box.put(Received(self._name, message, arrays))

    def receive(self, seconds: float) -> list[Received]:
        found: list[Received] = []
        try:
            first = self._box.get(timeout=seconds) if seconds > 0 else self._box.get_nowait()
            if first is not None:
                found.append(first)
            while len(found) < _BATCH:
                more = self._box.get_nowait()
                if more is not None:
                    found.append(more)
        except queue.Empty:
            pass
        return found

    def wake(self) -> None:
        self._box.put(None)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self._hub.forget(self._name, self._box)
