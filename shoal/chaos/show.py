"""A drill while it goes on: a board on a terminal, lines anywhere else.

    shoal chaos · clicks · async · 4 workers x 3 servers · 2 copies · seed 7
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  64 %   21 s
     ● coordinator
     ● server-0    ✖ server-1    ◐ server-2
     ● worker-0    ‖ worker-1    ● worker-4
    rows/s  a curve of the throughput, with the faults under it
    12.1 s  ✖ kill -9 server-1, which owns 8 segments of the tally
    ...
    7 faults, 6 healed   81,204 pushes acknowledged   test loss 0.4421, clean run 0.4420

Nothing is said by colour alone, and nothing is longer than the terminal is wide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from shoal.chaos.plan import COORDINATOR, role_of
from shoal.chaos.report import ChaosListener, ChaosState
from shoal.events import RunEvent
from shoal.views import format
from shoal.views.braille import Stroke, chart
from shoal.views.terminal import LineView, LiveView, RunView, view

if TYPE_CHECKING:
    from rich.text import Text

WIDEST = 100
CURVE = 3  # rows of the throughput
LOOKS = {  # sign, plain sign, style
    "up": ("●", "+", "green"),
    "filling": ("◐", "~", "cyan"),
    "suspected": ("?", "?", "yellow"),
    "paused": ("‖", "=", "yellow"),
    "down": ("✖", "x", "red"),
}
HAPPENINGS = {
    "fault": ("✖", "x", "red"),
    "heal": ("✔", "+", "green"),
    "news": ("·", "-", "dim"),
    "bad": ("!", "!", "bold red"),
}


@contextmanager
def audience(stream: TextIO | None = None) -> Iterator[ChaosListener]:
    """A live board where the stream (standard error if none is given) is a terminal, else lines."""
    stream = stream or sys.stderr
    shown = view(stream)  # it knows what a terminal is
    if isinstance(shown, LiveView):
        with ChaosBoard(stream, shown._console, None) as stand:
            yield ChaosLive(stand)
    else:
        with shown:
            yield ChaosLines(shown)


class ChaosLines(ChaosListener):
    """Lines."""

    def __init__(self, out: RunView) -> None:
        self._out = out

    def said(self, seconds: float, style: str, text: str) -> None:
        if isinstance(self._out, LineView):
            self._out.write([f"{seconds:6.1f} s  {HAPPENINGS[style][1]} {format.clean(text)}"])

    def note(self, text: str) -> None:
        if text:
            self._out.note(text)


class ChaosLive(ChaosListener):
    """A board."""

    def __init__(self, stand: ChaosBoard) -> None:
        self._stand = stand

    def board(self, board: ChaosState) -> None:
        self._stand.show(board)

    def note(self, text: str) -> None:
        self._stand.note(text)


class ChaosBoard(LiveView):
    """The live view, with a board on it instead of a run."""

    _board: ChaosState | None = None

    def show(self, board: ChaosState) -> None:
        with self._lock:
            self._board = board
            self._start()

    def __call__(self, event: RunEvent) -> None:
        raise AssertionError("it shows boards, not events")

    def _frame(self, width: int, height: int) -> list[Text]:
        return frame(self._board, width, height, self._note, self._plain)


def frame(board: ChaosState | None, width: int, height: int, note: str = "", plain: bool = False) -> list[Text]:
    """At most ``height - 1`` lines of less than ``width`` columns; ``plain``: ASCII only."""
    from rich.text import Text

    width, budget = max(1, min(width, WIDEST) - 1), max(1, height - 1)
    said = [Text(format.clean(note), "dim")] if note else []
    if board is None:
        lines = said or [Text("")]
    else:
        head = [_title(board, plain), _bar(board, width, plain), *_members(board, width, plain)]
        foot = [_figures(board), *said]
        room = budget - len(head) - len(foot)
        curve = _throughput(board, width, plain) if room >= CURVE + 4 and not plain else []
        room -= len(curve)
        log = [_happening(*one, plain) for one in list(board.log)[-max(0, room) :]] if room > 0 else []
        lines = [*head, *curve, *log, *foot][:budget]
    for line in lines:
        if plain:
            line.plain = line.plain.encode("ascii", "replace").decode()
        line.truncate(width, overflow="crop" if plain else "ellipsis")
        line.no_wrap = True
    return lines


def _title(board: ChaosState, plain: bool) -> Text:
    from rich.text import Text

    job = board.job
    crew = f"{format.many(job.workers, 'worker')} x {format.many(job.servers, 'server')}"
    copies = f"{job.copies} {'copy' if job.copies == 1 else 'copies'}"
    seed = "a clean run first" if board.seed is None else f"seed {board.seed}"
    parts = [format.clean(job.data.source), job.strategy.name, crew, copies, seed]
    point = (" | " if plain else " · ", "dim")
    shown = Text.assemble(("shoal chaos", "bold magenta"))
    for part in parts:
        shown.append_text(Text.assemble(point, (part, "bold")))
    return shown


def _bar(board: ChaosState, width: int, plain: bool) -> Text:
    from rich.text import Text

    said = f"{board.share:4.0%}   {format.duration(board.seconds)}"
    cells = max(0, width - len(said) - 2)
    done = round(cells * min(1.0, max(0.0, board.share)))
    full, empty = ("#", "-") if plain else ("━", "╌")
    return Text.assemble((full * done, "green"), (empty * (cells - done), "dim"), "  ", said)


def _members(board: ChaosState, width: int, plain: bool) -> list[Text]:
    """A row of boxes for each role; as many as fit."""
    from rich.text import Text

    lines = []
    for role in (COORDINATOR, "server", "worker"):
        names = sorted((name for name in board.members if role_of(name) == role), key=_numbered)
        line = Text("")
        for name in names:
            sign, ascii_sign, style = LOOKS[board.members[name]]
            state = board.members[name]
            text = f" {ascii_sign if plain else sign} {name}{'' if state == 'up' else ' ' + state} "
            if line.cell_len + len(text) + 1 > width and line.cell_len:
                lines.append(line)
                line = Text("")
            line.append_text(Text.assemble((text, f"{style} reverse" if not plain else style), " "))
        lines.append(line)
    return lines


def _numbered(name: str) -> tuple[str, int]:
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdigit() else (name, -1)


def _throughput(board: ChaosState, width: int, plain: bool) -> list[Text]:
    from rich.text import Text

    side = 16
    drawn = chart([Stroke(board.throughput, "cyan")], width - side, CURVE, board.seconds)
    if drawn is None:
        return []
    lines = []
    for i, row in enumerate(drawn.rows):
        label = format.rate(drawn.top) if i == 0 else format.rate(drawn.bottom) if i == CURVE - 1 else ""
        lines.append(Text.assemble((f"{label:>{side - 2}}  ", "dim"), *row))
    cells = [" "] * (width - side)
    for at, style, _ in board.log:
        if style == "fault" and board.seconds > 0:
            cells[min(len(cells) - 1, int(at / board.seconds * len(cells)))] = "▲"
    if board.seed is None:
        return lines
    return [*lines, Text.assemble((f"{'faults':>{side - 2}}  ", "dim"), ("".join(cells), "red"))]


def _happening(seconds: float, style: str, text: str, plain: bool) -> Text:
    from rich.text import Text

    sign, ascii_sign, colour = HAPPENINGS[style]
    words_style = colour if style in ("fault", "bad") else "dim" if style == "news" else ""
    return Text.assemble(
        (f"{seconds:7.1f} s  ", "dim"), (ascii_sign if plain else sign, colour), " ", (format.clean(text), words_style)
    )


def _figures(board: ChaosState) -> Text:
    from rich.text import Text

    healed = "" if board.seed is None else f"{format.many(board.faults, 'fault')}, {board.recoveries:,} healed   "
    rate = format.rate(board.throughput[-1][1] if board.throughput else None)
    clean = "" if board.clean_loss is None else f" (clean {format.loss(board.clean_loss)})"
    return Text.assemble(
        (healed, "bold"),
        f"{board.acknowledged:,} pushes acknowledged   {rate}   ",
        (f"loss {format.loss(board.loss)}{clean}", "magenta"),
    )
