"""Shows a drill live: a board on a terminal, lines elsewhere.

    shoal chaos · clicks · async · 4 workers x 3 servers · 2 copies · seed 7
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌  64 %   21 s
     ● coordinator
     ● server-0    ✖ server-1    ◐ server-2
     ● worker-0    ‖ worker-1    ● worker-4
    rows/s  a curve of the throughput, with the faults under it
    12.1 s  ✖ kill -9 server-1, which owns 8 segments of the tally
    ...
    7 faults, 6 healed   81,204 pushes acknowledged   test loss 0.4421, clean run 0.4420

No fact is shown by colour alone, and no line is longer than the terminal is wide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.text import Text

from shoal.chaos.plan import COORDINATOR, role_of
from shoal.chaos.report import ChaosListener, ChaosState
from shoal.views import board, format
from shoal.views.board import Board, Stroke
from shoal.views.lines import LineView

CURVE = 8  # rows of the throughput, at most
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
    stream, view = stream or sys.stderr, ChaosView()
    with Board.on(stream, view.draw) or LineView(stream) as view.screen:
        yield view


class ChaosView(ChaosListener):
    """Draws a drill on a board, or prints it as lines."""

    screen: Board | LineView

    def __init__(self) -> None:
        self._state: ChaosState | None = None
        self._note = ""

    def board(self, board: ChaosState) -> None:
        self._state = board
        if isinstance(self.screen, Board):
            self.screen.start()

    def said(self, seconds: float, style: str, text: str) -> None:
        if isinstance(self.screen, LineView):
            self.screen.write([f"{seconds:6.1f} s  {HAPPENINGS[style][1]} {format.clean(text)}"])

    def note(self, text: str) -> None:
        self._note = text
        if isinstance(self.screen, Board):
            self.screen.start()
        elif text:
            self.screen.note(text)

    def draw(self, width: int, height: int, plain: bool) -> list[Text]:
        return frame(self._state, width, height, self._note, plain)


def frame(state: ChaosState | None, width: int, height: int, note: str = "", plain: bool = False) -> list[Text]:
    """At most ``height - 1`` lines of less than ``width`` columns; ``plain``: ASCII only."""
    across, budget = max(1, width - 1), max(1, height - 1)
    notes = [Text(format.clean(note), "dim")] if note else []
    if state is None:
        return board.fit(notes or [Text("")], width, height, plain)
    label = f"{state.share:4.0%}   {format.duration(state.seconds)}"
    head = [_title(state, plain), board.bar(state.share, label, across, plain), *_members(state, across, plain)]
    foot = [_figures(state), *notes]
    room = budget - len(head) - len(foot)
    log = [line for one in list(state.log) for line in _happening(*one, across, plain)]
    rows = 0 if plain else min(CURVE, room - 6)
    curve = _throughput(state, across, rows) if rows >= 3 else []
    log = log[-(room - len(curve)) :] if room > len(curve) else []
    return board.fit([*head, *curve, *log, *foot], width, height, plain)


def _title(state: ChaosState, plain: bool) -> Text:
    job = state.job
    crew = f"{format.many(job.workers, 'worker')} x {format.many(job.servers, 'server')}"
    copies = f"{job.copies} {'copy' if job.copies == 1 else 'copies'}"
    seed = "a clean run first" if state.seed is None else f"seed {state.seed}"
    parts = [format.clean(job.data.source), job.strategy.name, crew, copies, seed]
    bold = [Text("shoal chaos", "bold magenta"), *(Text(part, "bold") for part in parts)]
    return Text(" | " if plain else " · ", "dim").join(bold)


def _members(state: ChaosState, width: int, plain: bool) -> list[Text]:
    """A row of boxes for each role; as many as fit."""
    lines = []
    for role in (COORDINATOR, "server", "worker"):
        names = sorted((name for name in state.members if role_of(name) == role), key=format.natural)
        boxes = []
        for name in names:
            how = state.members[name]
            sign, ascii_sign, style = LOOKS[how]
            text = f" {ascii_sign if plain else sign} {name}{'' if how == 'up' else ' ' + how} "
            boxes.append(Text(text, style if plain else f"{style} reverse"))
        lines += board.joined(boxes, Text(" "), width) or [Text("")]
    return lines


def _throughput(state: ChaosState, width: int, rows: int) -> list[Text]:
    side = 16
    drawn = board.curve([Stroke(state.throughput, "cyan")], width, rows, state.seconds, format.rate, side)
    if not drawn or state.seed is None:
        return drawn
    cells = [" "] * (width - side)
    for at, style, _ in list(state.log):
        if style == "fault" and state.seconds > 0:
            cells[min(len(cells) - 1, int(at / state.seconds * len(cells)))] = "▲"
    return [*drawn, Text.assemble((f"{'faults':>{side - 1}} ", "dim"), ("".join(cells), "red"))]


def _happening(seconds: float, style: str, text: str, width: int, plain: bool) -> list[Text]:
    sign, ascii_sign, colour = HAPPENINGS[style]
    lines = board.wrapped(f"{seconds:7.1f} s  {ascii_sign if plain else sign} ", format.clean(text), width, 2)
    for line in lines:
        line.stylize("dim", 0, 9)
        line.stylize(colour, 11 if style not in ("fault", "bad", "news") else 0, 12 if style == "heal" else None)
    return lines


def _figures(state: ChaosState) -> Text:
    healed = "" if state.seed is None else f"{format.many(state.faults, 'fault')}, {state.recoveries:,} healed   "
    rate = format.rate(state.throughput[-1][1] if state.throughput else None)
    clean = "" if state.clean_loss is None else f" (clean {format.loss(state.clean_loss)})"
    line = Text.assemble((healed, "bold"), f"{state.acknowledged:,} pushes acknowledged   {rate}   ")
    return line.append(f"loss {format.loss(state.loss)}{clean}", "magenta")
