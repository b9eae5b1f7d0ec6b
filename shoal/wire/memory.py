"""Passes messages between threads of one process by reference.

Nodes find each other by name in a ``Hub``. Arrays are not copied, so a sender must not write to
them until they are acknowledged.

Waking a thread costs as much as everything else together. So a node sends all messages of one turn
to another node at once. And a node with ``answer_with`` is called directly by the sender's thread,
unless it is busy or the sender is Python's main thread (Ctrl-C must not interrupt another node's
work): then the messages wait in its mailbox.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable

from shoal.wire.effects import Received
from shoal.wire.messages import Arrays, Message

_BATCH = 256

Box = queue.SimpleQueue[list[Received] | None]
Answer = Callable[[list[Received]], bool]  # handles messages now, or returns False


class Hub:
    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}
        self._answers: dict[str, Answer] = {}

    def open(self, name: str) -> MemoryTransport:
        box: Box = queue.SimpleQueue()
        # a second node takes over the name: the coordinator fences the first
        self._boxes[name] = box
        return MemoryTransport(name, self, box)

    def answer_with(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    def deliver(self, to: str, messages: list[Received]) -> bool:
        """Deliver messages; False if there is no node of that name."""
        box = self._boxes.get(to)
        if box is None:
            return False
        answer = self._answers.get(to)
        inline = answer is not None and box.empty() and threading.current_thread() is not threading.main_thread()
        if answer is None or not inline or not answer(messages):
            box.put(messages)
        return True

    def forget(self, name: str, box: Box) -> None:
        if self._boxes.get(name) is box:
            del self._boxes[name]
            self._answers.pop(name, None)


class MemoryTransport:
    def __init__(self, name: str, hub: Hub, box: Box) -> None:
        self._name, self._hub, self._box = name, hub, box
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
        if to in self._out:
            self._out[to].append(received)
        else:
            self._out[to] = [received]

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
            first = self._box.get(timeout=seconds) if seconds > 0 else self._box.get_nowait()
            if first is not None:
                found += first
            while len(found) < _BATCH:
                more = self._box.get_nowait()
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
        self._hub.answer_with(self._name, answer)

    def wake(self) -> None:
        self._box.put(None)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self.flush()
        self._hub.forget(self._name, self._box)
