"""A run on a terminal while it goes on, or in a log.

    with view(epochs=10) as show:
        show.note("packing rcv1 ... 12,000 rows")
        for event in run:
            show(event)

A view may be called from any thread. It never breaks what it looks at, and never holds it up: a terminal or pipe that is gone, that nobody
reads, or that cannot write a character, costs the view and nothing else; the cursor is given back whatever ends the run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from shoal.background import GONE, OutputThread
from shoal.events import RunEvent
from shoal.limits import HEAR_WITHIN, SECOND
from shoal.views.frame import frame
from shoal.views.lines import EventLines
from shoal.views.live_state import LiveState

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

REFRESHES = 4  # a second


def view(stream: TextIO | None = None, epochs: float | None = None, verbosity: int = 1) -> RunView:
    """A live view where the stream (standard error if none is given) is a terminal, else few lines.

    ``epochs`` is how many passes there will be, if that is known: events do not tell. With a ``verbosity`` of 0 nothing is
    shown; with 2 or 3, lines on a terminal, too: more than a picture holds.
    """
    stream = sys.stderr if stream is None else stream
    if verbosity == 1 and _is_terminal(stream):
        from rich.console import Console

        console = Console(file=stream)
        if console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
            return LiveView(stream, console, epochs)
    return LineView(stream, verbosity=verbosity)


class RunView(ABC):
    """What shows a run: call it with every event; ``note`` says what goes on before and after training."""

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

    @abstractmethod
    def close(self) -> None:
        """Show how things stand, give the terminal back. What comes later is not shown; a second call does nothing."""


class LineView(RunView):
    """Lines, each written whole."""

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
        """Lines of somebody else's."""
        with self._lock:
            if not self._closed:
                self._write(lines)

    def _write(self, lines: list[str]) -> None:
        if not lines:
            return
        self._outlet.write("".join(f"{line}\n" for line in lines))
        self._closed = self._outlet.gone


class LiveView(RunView):
    """A picture drawn again in place, by a thread of its own: whoever brings an event never waits for the terminal."""

    def __init__(
        self, stream: TextIO, console: Console, epochs: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._console, self._epochs, self._clock = stream, console, epochs, clock
        self._plain = not console.encoding.lower().startswith("utf")
        self._lock = threading.Lock()  # over what is known; never held while something is written
        self._so_far = LiveState()
        self._note = ""
        self._heard = clock()
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._shown: list[Text] = []
        self._width = 0
        self._process = os.getpid()

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            if self._so_far.started is None:
                self._note = ""
            self._so_far.take(event)
            self._heard = self._clock()
            self._start()

    def note(self, text: str) -> None:
        with self._lock:
            self._note = text
            self._start()

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child: the terminal is its parent's
        with self._lock:
            self._over.set()
            live, thread, self._live = self._live, self._thread, None
        if live is None or thread is None:
            return
        try:
            thread.join()
            self._draw(live)
        except GONE:
            pass
        finally:
            with contextlib.suppress(*GONE):
                live.stop()
            atexit.unregister(self.close)

    def _start(self) -> None:
        if self._live is not None or self._over.is_set():
            return
        from rich.live import Live

        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=_same_terminal(
                sys.stdout, self._stream
            ),  # print() goes above the picture; a pipe stays one
            redirect_stderr=_same_terminal(sys.stderr, self._stream),
        )
        self._thread = threading.Thread(target=self._redraw, args=(self._live,), name="shoal-view", daemon=True)
        atexit.register(self.close)
        self._thread.start()

    def _redraw(self, live: Live) -> None:
        try:
            self._fit()
            live.start()
            while True:
                self._draw(live)
                if self._over.wait(1 / REFRESHES):
                    return
        except GONE:
            return

    def _fit(self) -> None:
        """Take the size of the stream's own terminal: rich would ask standard input first."""
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except GONE:
            width, height = 0, 0
        self._console.size = (width or 80, height or 24)

    def _draw(self, live: Live) -> None:
        from rich.console import Group

        self._fit()
        width, height = self._console.size
        with self._lock:
            lines = self._frame(width, height)
        if lines == self._shown and width == self._width:
            return  # nothing new: nothing that could flicker
        self._unwrap(width)
        self._shown, self._width = lines, width
        live.update(Group(*lines), refresh=True)

    def _frame(self, width: int, height: int) -> list[Text]:
        """What is to be seen now."""
        silent = 0.0 if self._so_far.started is None else self._clock() - self._heard
        return frame(
            self._so_far,
            width,
            height,
            now=self._so_far.seconds + silent,
            epochs=self._epochs,
            note=self._note,
            plain=self._plain,
        )

    def _unwrap(self, width: int) -> None:
        """Terminals wrap what is on them when made narrower: go up by the lines that rich does not know of."""
        from rich.control import Control
        from rich.segment import ControlType

        if width < self._width:
            extra = sum((max(line.cell_len, 1) - 1) // width for line in self._shown)
            self._console.control(*[Control((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))] * extra)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _same_terminal(one: TextIO | None, other: TextIO) -> bool:
    try:
        return one is not None and os.ttyname(one.fileno()) == os.ttyname(other.fileno())
    except (AttributeError, OSError, ValueError):
        return False
