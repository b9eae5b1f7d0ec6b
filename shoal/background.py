"""What is only told is told aside: whoever runs never waits for whoever hears.

    Aside             hands things on to a function, one after another, on a thread of its own
    Outlet            lines for a pipe, a terminal or a file that may take them, late, or never
    print_patiently   what a command prints at its end, if anybody takes it in time
    mutter            one line on standard error

A callback may sleep for minutes, a pipe may be full with nobody reading, a disk may hang: what cannot be handed on is left out and counted.
Streams are written by their descriptor and in pieces that a pipe with room takes at once: a thread that hung inside of Python's own stream
would hold its lock, and Python aborts at its end on that.
"""

from __future__ import annotations

import errno
import os
import queue
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TextIO, TypeVar

from shoal import limits
from shoal.events import RunEvent

Item = TypeVar("Item")
GONE = (OSError, ValueError)  # what a stream raises that was closed, or whose other end was
_PIECE = select.PIPE_BUF  # bytes that a pipe which has room takes at once
_LOOK = 200  # milliseconds between two looks whether it is over
_PARTING = 1.0  # seconds that a thread which has nothing to do is waited for at the end


class BackgroundQueue(Generic[Item]):
    """Things for a function that may take its time. It is called by one thread, in the order of what was put."""

    def __init__(
        self,
        call: Callable[[Item], None],
        name: str,
        most: int | None = None,
        failed: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        """``most`` of them wait, the oldest go first; ``failed`` says whether it is called again after it has raised that."""
        self._call, self._name, self._most, self._failed = call, name, most, failed
        self._waiting: deque[Item] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._since: float | None = None  # when the call began that is under way
        self.over = False  # nothing is handed on any more
        self.dropped = 0

    def put(self, item: Item) -> None:
        with self._news:
            if self.over:
                return
            if self._most is not None and len(self._waiting) >= self._most:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"shoal-{self._name}", daemon=True)
                self._thread.start()
            self._news.notify_all()

    @property
    def busy(self) -> float:
        """Seconds that the call under way has taken so far."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def drain(self, seconds: float) -> int:
        """Wait until all are handed on, but no longer; how many are not."""
        with self._news:
            self._news.wait_for(lambda: self.over or not self._left(), seconds)
            return 0 if self.over else self._left()

    def close(self, seconds: float) -> int:
        """Wait so long, then hand nothing on any more; how many were left out in all."""
        left = self.drain(seconds)
        with self._news:
            if not self.over:
                self.over, self.dropped = True, self.dropped + left
            self._waiting.clear()
            self._news.notify_all()
            idle = self._thread if self._since is None else None
        if idle is not None and idle is not threading.current_thread():
            idle.join(_PARTING)
        return self.dropped

    def _left(self) -> int:
        return len(self._waiting) + (self._since is not None)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self.over or self._waiting)
                if self.over:
                    return
                item, self._since = self._waiting.popleft(), time.monotonic()
            error: BaseException | None = None
            try:
                self._call(item)
            except BaseException as raised:
                error = raised
            over = error is not None and not self._failed(error)
            with self._news:
                self._since = None
                if over and not self.over:
                    self.over, self.dropped = True, self.dropped + len(self._waiting)
                    self._waiting.clear()
                self._news.notify_all()


class OutputThread:
    """Text for a stream. Without a descriptor (in a notebook, say) it is written at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._handle = stream, _handle(stream)
        self._aside = BackgroundQueue(self._put, "lines", limits.LINES_WAITING)
        self._told = 0  # lines that were left out, as far as this was said

    @property
    def gone(self) -> bool:
        """Nobody will ever read it."""
        return self._aside.over

    def write(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        if self._handle is not None:
            self._aside.put(text.encode(encoding, "replace"))
            return
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except GONE:
            self._aside.close(0.0)

    def close(self, seconds: float) -> int:
        """How many pieces of text nobody took."""
        return self._aside.close(seconds)

    def _put(self, data: bytes) -> None:
        assert self._handle is not None
        if self._aside.dropped > self._told:
            data = f"... {self._aside.dropped - self._told} lines are left out: nobody read them\n".encode() + data
            self._told = self._aside.dropped
        _write(self._handle, data, lambda: self._aside.over)


def mutter(text: str) -> None:
    """A line on standard error, if anybody takes it in a second."""
    if sys.stderr is not None:
        outlet = OutputThread(sys.stderr)
        outlet.write(f"{text}\n")
        outlet.close(1.0)


def print_patiently(data: bytes, seconds: float) -> None:
    """On standard output. Raises OSError where that cannot be: TimeoutError if nobody took it for so long."""
    handle = _handle(sys.stdout)
    sys.stdout.flush()
    if handle is None:
        sys.stdout.write(data.decode(sys.stdout.encoding or "utf-8", "replace"))
        sys.stdout.flush()
        return
    deadline = time.monotonic() + seconds
    _write(handle, data, lambda: time.monotonic() > deadline)


def _write(handle: int, data: bytes, enough: Callable[[], bool]) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLOUT)
    while data:
        if not poll.poll(_LOOK):
            if enough():
                raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
            continue
        try:
            data = data[os.write(handle, data[:_PIECE]) :]
        except BlockingIOError:  # somebody else made it one that does not wait, and was faster
            time.sleep(_LOOK / 1_000)


def _handle(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, *GONE):
        return None


Listener = Callable[[RunEvent], None]


class EventThread:
    """Events in, from any thread; out to one listener, in order."""

    def __init__(self, listener: Listener, label: str) -> None:
        self._listener = listener
        self._events: queue.SimpleQueue[RunEvent | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._tell, name=f"shoal-{label}-events", daemon=True)
        self._thread.start()

    def __call__(self, event: RunEvent) -> None:
        self._events.put(event)

    def close(self) -> None:
        """Hand on what was put in before, unless the listener takes too long."""
        self._events.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(limits.DRAIN / limits.SECOND)

    def _tell(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._listener(event)
            except Exception as error:  # the listener's own: later events still come
                print(f"shoal: {type(error).__name__}: {error} when told what happened", file=sys.stderr)
