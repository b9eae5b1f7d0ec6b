"""Messages between threads of one process: references, no copies.

A ``Hub`` is where nodes find each other by name. Arrays are handed over as they are, so nobody may write to what it sent
until it is acknowledged.

To wake a thread costs as much as all else together. So what a node sends in one turn to another travels in one go; and
a node that offers to answer (``answer_with``) is called right away by whoever sends, unless it is at work: then, and
always where Python's main thread sends (Ctrl-C must not end somebody else's work half way), it finds its mail in its box.
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
Answer = Callable[[list[Received]], bool]  # takes letters now, or says that it cannot


class Hub:
    """The nodes of one process, by name."""

    def __init__(self) -> None:
        self._boxes: dict[str, Box] = {}
        self._answers: dict[str, Answer] = {}

    def open(self, name: str) -> MemoryTransport:
        box: Box = queue.SimpleQueue()
        self._boxes[name] = box  # a second node of the same name takes over: the coordinator fences the first
        return MemoryTransport(name, self, box)

    def answer_with(self, name: str, answer: Answer) -> None:
        self._answers[name] = answer

    def deliver(self, to: str, letters: list[Received]) -> bool:
        """False if nobody of that name is here."""
        box = self._boxes.get(to)
        if box is None:
            return False
        answer = self._answers.get(to)
        inline = answer is not None and box.empty() and threading.current_thread() is not threading.main_thread()
        if answer is None or not inline or not answer(letters):
            box.put(letters)
        return True

    def forget(self, name: str, box: Box) -> None:
        if self._boxes.get(name) is box:
            del self._boxes[name]
            self._answers.pop(name, None)


class MemoryTransport:
    """One node's mailbox."""

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
        letter = Received(self._name, message, arrays)
        if to in self._out:
            self._out[to].append(letter)
        else:
            self._out[to] = [letter]

    def flush(self) -> None:
        if not self._out:
            return
        out, self._out = self._out, {}
        for to, letters in out.items():
            if not self._hub.deliver(to, letters):
                self._counts["nobody there"] += len(letters)

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
        """Let others call this node in their own thread instead of waking it."""
        self._hub.answer_with(self._name, answer)

    def wake(self) -> None:
        self._box.put(None)

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        self.flush()
        self._hub.forget(self._name, self._box)
