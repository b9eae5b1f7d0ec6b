"""Passes messages between threads of one process by reference.

Nodes find each other by name in a ``Hub``. Arrays are not copied, so a sender must not write to
them until they are acknowledged.

Waking a thread is expensive: so all messages of one turn to a node go at once, and a node with
``answer_with`` is called by the sender's thread, unless it is busy or the sender is Python's main
thread (Ctrl-C must not interrupt another node's work): then the messages wait in its mailbox.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable

from shoal.wire.effects import Received
from shoal.wire.messages import Arrays, Message

_BATCH = 256

Answer = Callable[[list[Received]], bool]  # handles messages now, or returns False


class Hub:
    def __init__(self) -> None:
        self._nodes: dict[str, MemoryTransport] = {}

    def open(self, name: str) -> MemoryTransport:
        # a second node takes over the name: the coordinator fences the first
        node = self._nodes[name] = MemoryTransport(name, self)
        return node

    def deliver(self, to: str, messages: list[Received]) -> bool:
        """Deliver messages; False if there is no node of that name."""
        node = self._nodes.get(to)
        if node is None:
            return False
        answer = node.answer if threading.current_thread() is not threading.main_thread() else None
        if answer is None or not node.box.empty() or not answer(messages):
            node.box.put(messages)
        return True

    def forget(self, name: str, node: MemoryTransport) -> None:
        if self._nodes.get(name) is node:
            del self._nodes[name]


class MemoryTransport:
    def __init__(self, name: str, hub: Hub) -> None:
        self._name, self._hub = name, hub
        self.box: queue.SimpleQueue[list[Received] | None] = queue.SimpleQueue()
        self.answer: Answer | None = None
        self._counts: Counter[str] = Counter()
        self._sent = self._received = 0  # bytes of arrays: headers are references here
        self._out: dict[str, list[Received]] = {}

    @property
    def traffic(self) -> tuple[int, int]:
        return self._sent, self._received

    @property
    def address(self) -> str:
        return f"memory:{self._name}"

    def connect(self, name: str, address: str, mutual: bool = False) -> None:
        return

    def disconnect(self, name: str) -> None:
        return

    def send(self, to: str, message: Message, arrays: Arrays) -> None:
        for array in arrays:
            self._sent += array.nbytes
        received = Received(self._name, message, arrays)
        self._out.setdefault(to, []).append(received)

    def flush(self) -> None:
        if not self._out:
            return
        out, self._out = self._out, {}
        for to, messages in out.items():
            if not self._hub.deliver(to, messages):
                self._counts["nobody there"] += len(messages)

    def receive(self, seconds: float) -> list[Received]:
        found: list[Received] = []
        try:
            first = self.box.get(timeout=seconds) if seconds > 0 else self.box.get_nowait()
            if first is not None:
                found += first
            while len(found) < _BATCH:
                more = self.box.get_nowait()
                if more is not None:
                    found += more
        except queue.Empty:
            pass
        for one in found:
            for array in one.arrays:
                self._received += array.nbytes
        return found

    def answer_with(self, answer: Answer) -> None:
        """Let senders call this node in their own thread instead of waking it."""
        self.answer = answer

    def wake(self) -> None:
        self.box.put(None)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self.flush()
        self._hub.forget(self._name, self)
