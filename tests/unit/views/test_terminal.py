"""The view on a real terminal, and where there is none.

The other end of the pty is a small terminal of our own.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from typing import Any, TextIO

import pytest

from shoal.events import Stopped
from shoal.views import RunView, view
from shoal.views.frame import LiveView
from shoal.views.lines import LineView

MARK = b"\x05"


class Screen:
    """The part of a terminal that the view uses.

    It wraps long lines, also when it is made narrower, and never scrolls.
    """

    CODES = re.compile(r"\x1b\[(\??)([\d;]*)([a-zA-Z])|(\r)|(\n)|([^\x1b\r\n]+)", re.DOTALL)

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows = [""]
        self.row = self.column = 0
        self.cursor = True
        self.colours: set[str] = set()

    def feed(self, data: str) -> None:
        at = 0
        while at < len(data):
            code = self.CODES.match(data, at)
            assert code, f"a code that no terminal was asked to know: {data[at : at + 20]!r}"
            at = code.end()
            private, number, letter, back, down, text = code.groups()
            if back:
                self.column = 0
            elif down:
                self._down()
            elif text:
                self._write(text)
            elif private:
                assert number == "25"
                self.cursor = letter == "h"
            elif letter == "A":
                self.row = max(0, self.row - int(number or 1))
            elif letter == "K":
                self.rows[self.row] = ""
            else:
                assert letter == "m", f"unknown code {code.group()!r}"
                self.colours.add(number)

    def _down(self) -> None:
        self.row += 1
        self.rows.extend([""] * (self.row + 1 - len(self.rows)))

    def _write(self, text: str) -> None:
        for char in text:
            if self.column == self.width:
                self._down()
                self.column = 0
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def resize(self, width: int) -> None:
        rows: list[str] = []
        cursor = self.row
        for at, line in enumerate(self.rows):
            pieces = [line[start : start + width] for start in range(0, len(line), width)] or [""]
            if at == cursor:
                self.row, self.column = len(rows) + len(pieces) - 1, len(pieces[-1])
            rows += pieces
        self.rows, self.width = rows, width

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.rows).rstrip()


class Terminal:
    """A pty: a program writes to ``stream``, and ``screen`` shows what a user would see."""

    def __init__(self, width: int = 80, height: int = 30) -> None:
        self.master, slave = pty.openpty()
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.screen = Screen(width)
        self.raw = ""
        self._ahead = b""  # read, but not processed yet
        self.height = height
        self.resize(width)

    def resize(self, width: int) -> None:
        self.screen.resize(width)
        size = struct.pack("HHHH", self.height, width, 0, 0)
        fcntl.ioctl(self.stream.fileno(), termios.TIOCSWINSZ, size)

    def look(self) -> str:
        """Processes everything written so far, up to a mark.

        The mark is needed because written text arrives a little later.
        """
        os.write(self.stream.fileno(), MARK)
        while MARK not in self._ahead:
            self._ahead += os.read(self.master, 65_536)
        data, _, self._ahead = self._ahead.partition(MARK)
        text = data.decode()
        self.raw += text
        self.screen.feed(text)
        return self.screen.text()

    def wait_for(self, text: str) -> str:
        """Looks until this text is on the screen; otherwise the test's time limit ends it."""
        while text not in self.look():
            select.select([self.master], [], [], 0.1)
        return self.screen.text()

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    yield terminal
    terminal.close()


def still(terminal: Terminal, epochs: float | None = None) -> LiveView:
    """A live view for which no time passes: it draws only when there is something new."""
    from rich.console import Console

    return LiveView(terminal.stream, Console(file=terminal.stream), epochs, clock=lambda: 0.0)


# ---------------------------------------------------------------- live


def test_a_run_is_shown_in_place_and_its_last_picture_stays(terminal: Terminal, story: Any) -> None:
    with view(terminal.stream, epochs=10) as show:
        assert isinstance(show, LiveView)
        show.note("packing rcv1 ... 12,000 rows")
        terminal.wait_for("packing rcv1 ... 12,000 rows")
        assert not terminal.screen.cursor
        events = list(story.run())
        for event in events[:-1]:
            show(event)
        terminal.wait_for("4 workers")
        show(events[-1])
    shown = terminal.look()
    assert terminal.screen.cursor
    assert "packing" not in shown
    assert shown.count("rcv1 · logistic · bounded") == 1  # drawn over itself, not below
    assert "epoch 10 of 10   60 s" in shown
    assert "best test loss 0.1303 at epoch 7" in shown
    assert terminal.screen.column == 0  # the prompt gets a line of its own


def test_an_exception_leaves_the_picture_and_gives_the_cursor_back(terminal: Terminal, story: Any) -> None:
    for error in (KeyboardInterrupt, ZeroDivisionError):
        with pytest.raises(error), view(terminal.stream) as show:
            show(story.started())
            show(story.progress(12, 3.2))
            raise error
        assert "epoch 3.2   12 s" in terminal.look()
        assert terminal.screen.cursor


def test_ctrl_c_gives_the_cursor_back(terminal: Terminal) -> None:
    # This wait has an end, because Python misses a signal that comes just before it begins to wait
    # for a lock.
    code = """
import time
from shoal.views import view
with view() as show:
    show.note("working")
    while True:
        time.sleep(0.1)
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=terminal.stream, env={**os.environ}) as child:
        try:
            terminal.wait_for("working")
            assert not terminal.screen.cursor
            child.send_signal(2)
            child.wait(60)
        finally:
            child.kill()
    shown = terminal.look()
    assert terminal.screen.cursor
    assert shown.index("working") < shown.index("KeyboardInterrupt")


def test_a_program_that_ends_without_closing_its_view_gives_the_cursor_back(terminal: Terminal) -> None:
    code = "from shoal.views import view; view().note('working')"
    subprocess.run([sys.executable, "-c", code], stderr=terminal.stream, check=True)
    assert terminal.look() == "working"
    assert terminal.screen.cursor
    assert "\x1b[?25l" in terminal.raw


def test_a_narrow_terminal_has_no_wrapped_line(terminal: Terminal, story: Any) -> None:
    terminal.resize(40)
    with view(terminal.stream, epochs=10) as show:
        for event in story.run():
            show(event)
    lines = terminal.look().splitlines()
    assert lines[0] == "rcv1 · logistic · bounded"
    assert max(map(len, lines)) < 40
    assert "    7      42  ★ 0.1303   0.9499 0.9880" in lines


def test_a_terminal_made_narrower_and_wider_again_keeps_one_whole_picture(terminal: Terminal, story: Any) -> None:
    terminal.screen.feed("$ shoal train\r\n")
    events = list(story.run())
    with still(terminal, epochs=10) as show:  # so that nothing is in flight while the size changes
        for at, width in enumerate((80, 50, 33, 71, 40, 80)):
            terminal.look()
            terminal.resize(width)
            for event in events[at * 40 : at * 40 + 40]:
                show(event)
            show.note(f"now {width} columns")
            shown = terminal.wait_for(f"now {width} columns")
            assert shown.splitlines()[0] == "$ shoal train"  # the text above is still there
            assert shown.count("rcv1") == 1
            assert shown.count(" columns") == 1
    assert terminal.look().count("rcv1") == 1


def test_a_terminal_of_no_size_is_taken_for_eighty_columns(terminal: Terminal, story: Any) -> None:
    fcntl.ioctl(terminal.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    with view(terminal.stream) as show:
        show(story.started())
    assert "4 workers x 2 servers · 2 cores" in terminal.look()


def test_colours_are_used_unless_no_color_is_set(
    terminal: Terminal, story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with view(terminal.stream) as show:
        for event in story.run():
            show(event)
    terminal.look()
    assert "36" in terminal.screen.colours  # cyan: the train loss
    terminal.screen.colours.clear()
    monkeypatch.setenv("NO_COLOR", "1")
    with view(terminal.stream) as show:
        for event in story.run():
            show(event)
    terminal.look()
    codes = {code for codes in terminal.screen.colours for code in codes.split(";")}
    assert codes <= {"", "0", "1", "2"}  # bold and dim are not colours


def test_nothing_is_written_when_nothing_is_new(terminal: Terminal, story: Any) -> None:
    with still(terminal) as show:
        show(story.started())
        show(story.progress(12, 3.2))
        terminal.wait_for("epoch 3.2")
        show(story.joined(0.0, "worker-0"))  # this event shows nothing new
        assert terminal._ahead == b""
        assert not select.select([terminal.master], [], [], 0.6)[0]  # as long as two refreshes


def test_events_may_come_from_many_threads(terminal: Terminal, story: Any) -> None:
    with view(terminal.stream) as show:
        threads = [threading.Thread(target=lambda: [show(event) for event in story.run()]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "best test loss 0.1303 at epoch 7" in terminal.look()


def test_what_others_print_appears_above_the_picture_and_a_pipe_stays_a_pipe(terminal: Terminal) -> None:
    code = """
import sys
from shoal.views import view
with view() as show:
    show.note("working")
    sys.stdin.readline()
    print("a figure for the pipe")
    print("a word to the user", file=sys.stderr)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal.stream, text=True
    )
    # Wait: rich treats text that is printed during its first drawing as part of the picture.
    terminal.wait_for("working")
    printed, _ = child.communicate("\n", timeout=60)
    assert (child.returncode, printed) == (0, "a figure for the pipe\n")
    assert terminal.look() == "a word to the user\nworking"


def test_a_terminal_that_is_gone_costs_the_view_and_nothing_else(terminal: Terminal, story: Any) -> None:
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w")
    try:
        with view(stream) as show:
            show(story.started())
            os.close(master)  # the window is closed: writing fails from now on
            for event in story.run():
                show(event)
    finally:
        with contextlib.suppress(OSError):
            stream.close()


def test_a_terminal_without_unicode_gets_plain_letters(terminal: Terminal, story: Any) -> None:
    with os.fdopen(os.dup(terminal.stream.fileno()), "w", encoding="ascii") as stream, view(stream, epochs=10) as show:
        for event in story.run():
            show(event)
    shown = terminal.look()
    assert shown.isascii()
    assert "rcv1 | logistic | bounded" in shown
    assert "* 0.1303" in shown


def test_a_closed_view_shows_nothing_more(terminal: Terminal, story: Any) -> None:
    show = view(terminal.stream)
    show.close()  # before anything was shown
    show(story.started())
    show.note("late")
    show.close()
    assert terminal.look() == ""


# ---------------------------------------------------------------- lines


def test_a_dumb_terminal_and_a_pipe_get_lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(view(io.StringIO()), LineView)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(view(io.StringIO()), LineView)  # colours can be forced, a terminal cannot
    monkeypatch.delenv("FORCE_COLOR")
    assert isinstance(view(terminal.stream), LiveView)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(view(terminal.stream), LineView)


def test_lines_are_written_as_they_come_and_the_rest_at_the_end(story: Any) -> None:
    stream = io.StringIO()
    with view(stream) as show:
        assert isinstance(show, RunView)
        show.note("packing rcv1 ... 0 rows")
        show(story.started())
        show(story.evaluated(0, 0.0, 0, 0.6931))
        show(story.evaluated(1, 0.5, 1, 0.25))
        assert "0.6931" in stream.getvalue()
        assert "0.2500" not in stream.getvalue()
    show(Stopped(seconds=1.0, why="late"))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == "packing rcv1 ... 0 rows"
    assert "test loss 0.2500" in lines[-1]


def test_a_broken_pipe_or_a_closed_file_does_not_stop_the_run(story: Any) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    raw = os.fdopen(writing, "wb", buffering=0)
    pipe = io.TextIOWrapper(raw, write_through=True)
    with view(pipe) as show:
        for event in story.run():
            show(event)
    raw.close()
    closed = io.StringIO()
    closed.close()
    with view(closed) as show:
        for event in story.run():
            show(event)


def test_a_file_that_cannot_write_a_letter_gets_a_question_mark(story: Any) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    with view(stream) as show:
        show.note("packing Grüße")
        show(story.started())
    assert raw.getvalue().startswith(b"packing Gr??e\nrcv1, logistic")


def test_looking_is_light_until_there_is_something_to_see() -> None:
    code = "import sys, shoal.views; print(*[name for name in ('rich', 'matplotlib', 'numpy', 'numba') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def test_with_another_verbosity_a_terminal_gets_lines_or_nothing(terminal: Terminal, story: Any) -> None:
    assert isinstance(view(terminal.stream), LiveView)
    for verbosity in (2, 3):
        assert isinstance(view(terminal.stream, verbosity=verbosity), LineView)
    with view(stream := io.StringIO(), verbosity=0) as show:
        show.note("packing")
        show(story.started())
    assert stream.getvalue() == ""
