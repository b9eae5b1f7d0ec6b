"""Runs callbacks and output in background threads, so that they never block a run.

    BackgroundQueue   calls a function with queued items, one after another, in its own thread
    OutputThread      writes lines to a pipe, terminal or file that may be slow or stuck
    print_patiently   prints the last output of a command, with a time limit
    mutter            prints one line on standard error

A callback may sleep for minutes, a pipe may be full without a reader, a disk may hang: items that
cannot be delivered are dropped and counted. Streams are written through their descriptor, in pieces
that fit a pipe with room: a thread that hung inside Python's own stream would hold its lock, and
Python would abort at exit.
"""

from __future__ import annotations

import errno
import os
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
GONE = (OSError, ValueError)  # raised when either end of a stream is closed
_PIECE = select.PIPE_BUF  # bytes that fit a pipe with room
_LOOK = 200  # milliseconds between checks of the deadline
_PARTING = 1.0  # seconds to wait for an idle thread at the end


class BackgroundQueue(Generic[Item]):
    """Calls a possibly slow function with queued items, in order, in one thread."""

    def __init__(
        self,
        call: Callable[[Item], None],
        name: str,
        most: int | None = None,
        failed: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        """Queue at most ``most`` items; ``failed`` decides whether to go on after an error."""
        self._call, self._name, self._most, self._failed = call, name, most, failed
        self._waiting: deque[Item] = deque()
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._since: float | None = None  # start of the current call
        self.over = False  # no more calls
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
        """Seconds since the start of the current call."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def drain(self, seconds: float) -> int:
        """Wait until the queue is empty or the time is up; returns how many items are left."""
        with self._news:
            self._news.wait_for(lambda: self.over or not self._left(), seconds)
            return 0 if self.over else self._left()

    def close(self, seconds: float = limits.DRAIN / limits.SECOND) -> int:
        """Wait up to a time limit, then stop; returns how many items were dropped in all."""
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
    """Writes text to a stream; directly if it has no descriptor (in a notebook, say)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._handle = stream, _handle(stream)
        self._aside = BackgroundQueue(self._put, "lines", limits.LINES_WAITING)
        self._told = 0  # dropped lines already reported

    @property
    def gone(self) -> bool:
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
        return self._aside.close(seconds)

    def _put(self, data: bytes) -> None:
        assert self._handle is not None
        if self._aside.dropped > self._told:
            data = f"... {self._aside.dropped - self._told} lines are left out: nobody read them\n".encode() + data
            self._told = self._aside.dropped
        _write(self._handle, data, lambda: self._aside.over)


def mutter(text: str) -> None:
    """Print a line on standard error; give up after a second."""
    if sys.stderr is not None:
        outlet = OutputThread(sys.stderr)
        outlet.write(f"{text}\n")
        outlet.close(1.0)


def print_patiently(data: bytes, seconds: float) -> None:
    """Print on standard output. Raises OSError; TimeoutError if nothing is read for so long."""
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
        except BlockingIOError:  # another process made it non-blocking and filled it first
            time.sleep(_LOOK / 1_000)


def _handle(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, *GONE):
        return None


Listener = Callable[[RunEvent], None]


class EventThread(BackgroundQueue[RunEvent]):
    """Events in, from any thread; out to one listener, in order."""

    def __init__(self, listener: Listener, label: str) -> None:
        super().__init__(listener, f"{label}-events", failed=_report)

    __call__ = BackgroundQueue.put


def _report(error: BaseException) -> bool:
    """Print an error of a listener; later events still come."""
    print(f"shoal: {type(error).__name__}: {error} when told what happened", file=sys.stderr)
    return True
