"""Shows a run live on a terminal, or in a log.

    with view(epochs=10) as show:
        show.note("packing rcv1 ... 12,000 rows")
        for event in run:
            show(event)

A view may be called from any thread. It never breaks or delays the run: a closed or unread terminal
or pipe only ends the view.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO, runtime_checkable

from shoal.background import OutputThread
from shoal.errors import ShoalError
from shoal.events import RunEvent
from shoal.limits import HEAR_WITHIN, SECOND
from shoal.views.board import Board, terminal
from shoal.views.frame import frame
from shoal.views.lines import EventLines
from shoal.views.live_state import LiveState

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from shoal.inspect.status import ClusterStatus

LOOK_EVERY = 1.0  # seconds


@runtime_checkable
class Observable(Protocol):
    """A run with a status of its nodes."""

    def status(self) -> ClusterStatus: ...


def view(stream: TextIO | None = None, epochs: float | None = None, verbosity: int = 1) -> RunView:
    """A live view where the stream (default: standard error) is a terminal, else few lines.

    ``epochs`` is their total number, if known: events do not have it. With a ``verbosity``
    of 0 nothing is shown; with 2 or 3, lines on a terminal, too: more than a picture holds.
    """
    stream = sys.stderr if stream is None else stream
    if verbosity == 1 and (console := terminal(stream)) is not None:
        return LiveView(stream, console, epochs)
    return LineView(stream, verbosity=verbosity)


class RunView(ABC):
    """Shows a run: call it with every event; ``note`` is for before and after training."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def __call__(self, event: RunEvent) -> None: ...

    @abstractmethod
    def note(self, text: str) -> None: ...

    def follow(self, run: object) -> None:  # noqa: B027
        """Query the run's status regularly, if the view shows it."""

    @abstractmethod
    def close(self) -> None:
        """Draw a last time and restore the terminal; does nothing if called again."""


class LineView(RunView):
    """Prints lines, each in one write."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, verbosity: int = 1) -> None:
        self._outlet, self._clock = OutputThread(stream), clock
        self._lines = EventLines(verbosity)
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            if not self._closed:
                self._write(self._lines.take(event))

    def note(self, text: str) -> None:
        with self._lock:
            if not self._closed:
                self._write(self._lines.note(self._clock(), text))

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._write(self._lines.end())
                self._closed = True
                self._outlet.close(HEAR_WITHIN / SECOND)

    def write(self, lines: list[str]) -> None:
        """Print lines that are not events."""
        with self._lock:
            if not self._closed:
                self._write(lines)

    def _write(self, lines: list[str]) -> None:
        if not lines:
            return
        self._outlet.write("".join(f"{line}\n" for line in lines))
        self._closed = self._outlet.gone


class LiveView(RunView):
    """Draws a board; callers with events never wait for the terminal."""

    def __init__(
        self, stream: TextIO, console: Console, epochs: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._board = Board(stream, console, self._draw)
        self._epochs, self._clock = epochs, clock
        self._lock = threading.Lock()  # guards the state; never held during output
        self._state = LiveState()
        self._note = ""
        self._heard = clock()
        self._closed = threading.Event()

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            if self._state.started is None:
                self._note = ""
            self._state.take(event)
            self._heard = self._clock()
        self._board.start()

    def note(self, text: str) -> None:
        with self._lock:
            self._note = text
        self._board.start()

    def follow(self, run: object) -> None:
        if isinstance(run, Observable):
            threading.Thread(target=self._look, args=(run,), name="shoal-look", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._board.close()

    def _look(self, run: Observable) -> None:
        """Query coordinator and servers regularly until the run ends."""
        while not self._closed.wait(LOOK_EVERY) and self._state.stopped is None:
            try:
                status = run.status()
            except (ShoalError, OSError, ValueError):
                continue  # it is restarting, or has ended
            with self._lock:
                self._state.look(self._clock(), status)

    def _draw(self, width: int, height: int, plain: bool) -> list[Text]:
        with self._lock:
            silent = 0.0 if self._state.started is None else self._clock() - self._heard
            now = self._state.seconds + silent
            return frame(self._state, width, height, now=now, epochs=self._epochs, note=self._note, plain=plain)
