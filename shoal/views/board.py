"""A board: lines on a terminal that a background thread redraws in place.

    if (board := Board.on(stream, draw)) is not None:
        with board:
            board.start()       ``draw(width, height, plain)`` makes the lines, four times a second

Training, sweeps, drills and ``--watch`` differ only in what they draw. The functions below make
the pieces: a bar, a curve in braille, lines that fit. A board never breaks or delays its subject: a
closed or unread terminal only ends the board.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import math
import os
import sys
import textwrap
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from shoal.background import GONE
from shoal.views import format

REFRESHES = 4  # frames a second
BLANK = 0x2800  # of braille
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column and row, from the top

Draw = Callable[[int, int, bool], list[Text]]  # width, height, ASCII only


def terminal(stream: TextIO) -> Console | None:
    """The stream as a console for drawing; None if it is no terminal."""
    with contextlib.suppress(AttributeError, ValueError):  # it is closed, or no file
        if stream.isatty():
            console = Console(file=stream, highlight=False)
            if console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
                return console
    return None


class Board(contextlib.AbstractContextManager["Board"]):
    """A context that restores the cursor at its end; drawing begins with ``start``."""

    def __init__(self, stream: TextIO, console: Console, draw: Draw) -> None:
        self._stream, self._console, self._lines = stream, console, draw
        self._plain = not console.encoding.lower().startswith("utf")
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        self._shown: list[Text] = []
        self._width = 0
        self._process = os.getpid()

    @classmethod
    def on(cls, stream: TextIO, draw: Draw) -> Board | None:
        console = terminal(stream)
        return None if console is None else cls(stream, console, draw)

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to draw; does nothing if called again."""
        with self._lock:
            if self._live is not None or self._over.is_set():
                return
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                # print() goes above; a pipe stays one
                redirect_stdout=_same_terminal(sys.stdout, self._stream),
                redirect_stderr=_same_terminal(sys.stderr, self._stream),
            )
            self._thread = threading.Thread(target=self._redraw, args=(self._live,), name="shoal-view", daemon=True)
            atexit.register(self.close)
            self._thread.start()

    def close(self) -> None:
        """Draw a last time and restore the terminal; does nothing if called again."""
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

    def _redraw(self, live: Live) -> None:
        try:
            self._resize()
            live.start()
            while True:
                self._draw(live)
                if self._over.wait(1 / REFRESHES):
                    return
        except GONE:
            return

    def _resize(self) -> None:
        """Take the size of the stream's own terminal: rich would ask standard input first."""
        try:
            width, height = os.get_terminal_size(self._stream.fileno())
        except GONE:
            width, height = 0, 0
        self._console.size = (width or 80, height or 24)

    def _draw(self, live: Live) -> None:
        self._resize()
        width, height = self._console.size
        try:
            lines = self._lines(width, height, self._plain)
        except RuntimeError:  # a collection changed during the read: drawn next time
            return
        if lines == self._shown and width == self._width:
            return  # unchanged: do not flicker
        if width < self._width:  # move up past lines that it wrapped, which rich does not know
            extra = sum((max(line.cell_len, 1) - 1) // width for line in self._shown)
            self._console.control(*[Control((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))] * extra)
        self._shown, self._width = lines, width
        live.update(Group(*lines), refresh=True)


def _same_terminal(one: TextIO | None, other: TextIO) -> bool:
    try:
        return one is not None and os.ttyname(one.fileno()) == os.ttyname(other.fileno())
    except (AttributeError, OSError, ValueError):
        return False


def fit(lines: Sequence[Text], width: int, height: int, plain: bool) -> list[Text]:
    """At most ``height - 1`` lines of less than ``width`` columns; ``plain``: ASCII only."""
    fitted = list(lines[: max(1, height - 1)])
    for line in fitted:
        if plain:
            line.plain = line.plain.encode("ascii", "replace").decode()
        line.rstrip()
        line.truncate(max(1, width - 1), overflow="crop" if plain else "ellipsis")
        line.no_wrap = True
    return fitted


def bar(share: float | None, label: str, width: int, plain: bool = False) -> Text:
    """A progress bar and a label; the label alone if progress is unknown or space is short."""
    cells = width - len(label) - 2
    if share is None or not format.finite(share) or cells < 6:
        return Text(label)
    done = round(cells * min(1.0, max(0.0, share)))
    full, empty = ("#", "-") if plain else ("━", "╌")
    return Text.assemble((full * done, "green"), (empty * (cells - done), "dim"), "  ", label)


def joined(parts: Sequence[Text], between: Text, width: int) -> list[Text]:
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + between.cell_len + part.cell_len <= width:
            lines[-1].append_text(between).append_text(part)
        else:
            lines.append(Text().append_text(part))
    return lines


def wrapped(head: str, text: str, width: int, most: int, style: str = "") -> list[Text]:
    """A text after a head, on at most so many lines, broken between words and indented."""
    room = max(8, width - len(head))
    rows = textwrap.wrap(text, room, max_lines=most, placeholder=" …") or [""]
    return [Text(f"{' ' * len(head) if at else head}{row}", style) for at, row in enumerate(rows)]


def first_of(lines: Sequence[Text], most: int, what: str) -> list[Text]:
    """At most so many lines; the last one counts the rest."""
    if len(lines) <= most:
        return list(lines)
    left = len(lines) - max(0, most - 1)
    return [*lines[: max(0, most - 1)], Text(f" ... {format.many(left, f'more {what}')}", "dim")][: max(0, most)]


@dataclass(frozen=True, slots=True)
class Stroke:
    """One curve; a later one is drawn over an earlier one."""

    points: list[tuple[float, float]]  # finite, in the order of x
    style: str


def curve(
    strokes: Sequence[Stroke], width: int, height: int, right: float, label: Callable[[float], str], side: int = 9
) -> list[Text]:
    """Curves with values at the left and seconds below; empty without a curve."""
    drawn = chart(list(strokes), width - side, height - 1, right)
    if drawn is None:
        return []
    rows, top, bottom = drawn
    heads = {0: label(top), len(rows) - 1: label(bottom)}
    lines = [Text.assemble((f"{heads.get(at, ''):>{side - 1}} ", "dim"), *row) for at, row in enumerate(rows)]
    room, end = width - side, format.duration(right)
    middle = format.duration(right / 2) if room > 40 else ""
    axis = f"0{middle:^{max(0, room - 2)}}"[: max(0, room - len(end))]
    return [*lines, Text(f"{' ' * side}{axis}{end:>{max(0, room - len(axis))}}"[:width], "dim")]


Row = list[tuple[str, str]]  # pieces of text and their styles


def chart(strokes: list[Stroke], width: int, height: int, right: float) -> tuple[list[Row], float, float] | None:
    """Curves over 0 .. ``right`` in braille, their highest and lowest value; None without any."""
    drawn = [stroke for stroke in strokes if stroke.points]
    if width < 4 or max((len(stroke.points) for stroke in drawn), default=0) < 2:
        return None
    values = [y for stroke in drawn for _, y in stroke.points]
    low, high = min(values), max(values)
    scale = math.log if low > 0 else float
    bottom, span = scale(low), (scale(high) - scale(low)) or 1.0
    dots = [[0] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    right = max(right, *(stroke.points[-1][0] for stroke in drawn)) or 1.0
    step = right / (2 * width - 1)
    for stroke in drawn:
        before: int | None = None
        for column in range(2 * width):
            value = _at(stroke.points, step * column, step)
            if value is None:
                continue
            level = 1 - (scale(value) - bottom) / span  # from the top
            here = round((4 * height - 1) * min(1.0, max(0.0, level)))
            last = here if before is None else before
            # a column touches the one before
            for row in range(min(here, last + 1), max(here + 1, last)):
                line, cell = row // 4, column // 2
                # a cell has one colour: the later curve wins
                if styles[line][cell] != stroke.style:
                    styles[line][cell], dots[line][cell] = stroke.style, 0
                dots[line][cell] |= DOTS[column % 2][row % 4]
            before = here
    rows: list[Row] = []
    for cells in map(zip, dots, styles):
        chars = ((chr(BLANK + bits) if bits else " ", style) for bits, style in cells)
        rows.append([("".join(char for char, _ in run), style) for style, run in groupby(chars, key=itemgetter(1))])
    return rows, high, low


def _at(points: list[tuple[float, float]], x: float, reach: float) -> float | None:
    """The curve's height at x; a little beyond its ends it is as high as there."""
    at = bisect_left(points, (x, -math.inf))
    if at in (0, len(points)):
        end = points[0] if at == 0 else points[-1]
        return end[1] if abs(end[0] - x) <= reach else None
    (left, before), (right, after) = points[at - 1], points[at]
    share = (x - left) / (right - left) if right > left else 1.0
    return before * (1 - share) + after * share  # never after - before: that may overflow


def lines_of(what: RenderableType, width: int) -> list[Text]:
    console = Console(width=max(1, width), file=io.StringIO(), color_system="256", force_terminal=True, highlight=False)
    return [
        Text.assemble(*((segment.text, segment.style or "") for segment in row if not segment.control))
        for row in console.render_lines(what, pad=False)
    ]
