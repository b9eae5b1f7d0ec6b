"""Draws the live picture of a run: a function from its state to lines of the terminal.

    rcv1 · logistic · bounded · 4 workers x 2 servers · 2 cores
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━  epoch 6.4 of 10   12 s   about 7 s left
    1,204,331 rows/s   train loss 0.1312   7.1 MB/s   staleness 3.1, max 9
     server-0   512,300 keys/s   HOT   8 segments   10 copies       a row for each server and worker
     worker-0   compute 71%   communicate 21%   wait 8%
    epoch seconds test loss accuracy    auc                 the best evaluation, then the last ones
    ...                                                     a curve of the losses, the latest news

What does not fit is dropped, and counted. No line is longer than the terminal is wide. Colours
are readable on dark and light, and never the only sign of a fact.

``LiveView`` keeps it on a board, from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from shoal.errors import ShoalError
from shoal.events import Gone, Joined, RolledBack, RunEvent, Warned
from shoal.inspect.status import ClusterStatus
from shoal.views import board, event_line, format
from shoal.views.board import Board, Stroke
from shoal.views.event_line import DOING, together
from shoal.views.lines import RunView
from shoal.views.live_state import LiveState, hot_servers

LOOK_EVERY = 1.0  # seconds
CHART_ROWS = 5  # at least, its axis included
TALLEST = 18  # rows of a chart
NEWS = 8  # at most
SILENCE = 5.0  # seconds without an event until it is shown

TEST, TRAIN, BAD = "magenta", "cyan", "red"


def frame(
    state: LiveState,
    width: int,
    height: int,
    *,
    now: float = 0.0,
    epochs: float | None = None,
    note: str = "",
    plain: bool = False,
) -> list[Text]:
    """At most ``height - 1`` lines of less than ``width`` columns; ``plain``: ASCII only.

    ``now`` is in seconds since training began, and may be later than the last event.
    """
    room_across, budget = max(1, width - 1), max(1, height - 1)
    now = max(now, state.seconds)
    head = [Text(part, "bold") for part in event_line.title(state.started)] if state.started else []
    if state.started or now:
        head = board.joined(head, Text(" | " if plain else " · ", "dim"), room_across)
        head.append(_bar(state, room_across, now, epochs, plain))
        head += board.joined(_figures(state, now), Text("   "), room_across)
    head = head[:budget]
    room = budget - len(head)
    tail = _tail(state, format.clean(note), room_across, max(5, room // 4))
    tail = tail[-room:] if room > 0 else []
    room -= len(tail)
    nodes = [] if state.stopped else board.first_of(_nodes(state), max(0, min(room - 4, room // 2)), "nodes")
    room -= len(nodes)
    charted = not plain and room >= CHART_ROWS + 6
    table = _table(state, (room - CHART_ROWS - 2 if charted else room), room_across, plain)
    room -= len(table)
    chart: list[Text] = []
    if not plain and room >= CHART_ROWS + 2:
        strokes = [Stroke(state.train.points, TRAIN), Stroke(state.test.points, TEST)]
        end = state.seconds if state.stopped else now
        chart = board.curve(strokes, room_across, min(TALLEST, room - 2), end, format.loss)
        legend = Text.assemble(("loss".rjust(8), "dim"), " ", ("test", TEST), "  ", ("train", TRAIN))
        chart = [Text(""), legend, *chart] if chart else []
    gap = [Text("")] if tail and (nodes or table or chart) and room > len(chart) else []
    return board.fit([*head, *nodes, *table, *chart, *gap, *tail] or [Text("")], width, height, plain)


def _bar(state: LiveState, width: int, now: float, epochs: float | None, plain: bool) -> Text:
    goal = epochs if epochs is not None and format.finite(epochs) and epochs > 0 else None
    of = "" if goal is None else f" of {format.epochs(goal)}"
    label = f"epoch {format.epochs(state.passes)}{of}   {format.duration(state.seconds if state.stopped else now)}"
    left = state.left(goal)
    if left and left >= 1 and width > 60:
        label += f"   about {format.duration(left)} left"
    return board.bar(None if goal is None else state.passes / goal, label, width, plain)


def _figures(state: LiveState, now: float) -> list[Text]:
    figures = [Text(format.rate(state.rate)), Text(f"train loss {format.loss(state.train_loss)}", TRAIN)]
    if state.stopped:
        return figures
    if state.workers is not None:
        wanted = state.started.workers if state.started else state.workers
        if state.workers < wanted:
            figures.append(Text(f"{state.workers:,} of {format.many(wanted, 'worker')}", BAD))
        elif not state.spent:
            figures.append(Text(format.many(state.workers, "worker")))
    if state.bytes_per_second is not None:
        figures.append(Text(f"{format.size(state.bytes_per_second)}/s"))
    if state.staleness is not None:
        figures.append(Text(f"staleness {state.staleness[0]:.3g}, max {format.most_stale(state.staleness[1])}"))
    if now - state.seconds > SILENCE:
        figures.append(Text(f"no event for {format.duration(now - state.seconds)}", BAD))
    return figures


def _nodes(state: LiveState) -> list[Text]:
    servers = sorted(state.servers, key=lambda one: format.natural(one.name))
    hot = hot_servers({one.name: one.keys or 0.0 for one in servers})
    workers = sorted(state.spent, key=format.natural)
    wide = max((len(format.clean(name)) for name in [*workers, *(one.name for one in servers)]), default=0)
    lines = []
    for one in servers:
        load = "" if one.keys is None else f"{one.keys:,.0f} keys/s"
        line = Text(f" {format.clean(one.name):<{wide}}  {load:>18}  ")
        line.append(f"{'HOT' if one.name in hot else '':<3}", f"bold {BAD}")
        line.append(f"{format.many(one.segments, 'segment'):>13}  {one.copies:>4,} copies")
        lines.append(line.append(f"  {one.state}" if one.state else "", BAD))
    for name in workers:
        spent = state.spent[name]
        shares = "  ".join(f"{kind} {spent[kind]:>4.0%}" for kind in DOING if spent.get(kind, 0.0) >= 0.005)
        lines.append(Text(f" {format.clean(name):<{wide}}  {shares}"))
    return lines


def _table(state: LiveState, room: int, width: int, plain: bool) -> list[Text]:
    """The best evaluation first, then as many of the last ones as fit."""
    if not state.evaluations or room < 3:
        return []
    latest, best = list(state.evaluations)[-(room - 2) :], state.best
    if best is not None and best not in latest:
        latest = [best, *latest[-(room - 3) :]] if room > 3 else [best]
    names = list(dict.fromkeys(name for event in latest for name in event.metrics))
    rests = [""] * (1 + len(latest))
    for name in names:  # as many columns as fit
        column = [format.clean(name), *(format.metric(name, event.metrics.get(name)) for event in latest)]
        wide = max(7, *(len(cell) + 1 for cell in column))
        if 23 + len(rests[0]) + wide > width:
            break
        rests = [f"{rest}{cell:>{wide}}" for rest, cell in zip(rests, column, strict=True)]
    lines = [Text(""), Text(f"epoch seconds test loss{rests[0]}", "dim")]
    for event, rest in zip(latest, rests[1:], strict=True):
        mark, style = ("*" if plain else "★", f"bold {TEST}") if event is best else (" ", TEST)
        loss = f" {mark} {format.loss(event.test_loss)}".rjust(10)
        lines.append(Text(f"{format.epochs(event.passes):>5}{format.seconds(event.seconds):>8}"))
        lines[-1].append(loss, style).append(rest)
    return lines


def _tail(state: LiveState, note: str, width: int, most: int) -> list[Text]:
    """The latest news, wrapped, and why the run ended."""
    lines: list[Text] = []
    for event in reversed(together(state.happenings)[-NEWS:]):
        failover = state.failovers.of(event)
        if isinstance(event, Joined) and state.failovers.restarted(event):
            continue  # shown with the loss
        text = failover.sentence() if failover else event_line.news(event)
        lost = isinstance(event, Gone) and not event_line.left_in_order(event)
        style, rows = (BAD, 3) if lost or isinstance(event, RolledBack | Warned) else ("", 2)
        piece = board.wrapped(f"{format.seconds(event.seconds):>6} s  ", text, width, min(most, rows), style)
        if len(lines) + len(piece) > most:
            break
        lines = [*piece, *lines]
    if state.stopped:
        lines.append(Text(f"stopped: {format.clean(state.stopped.why)}", "bold"))
        if best := state.best:
            lines.append(Text(event_line.best(best), TEST))
    return [*lines, Text(note, "dim")] if note else lines


class LiveView(RunView):
    """Draws a board; callers with events never wait for the terminal."""

    def __init__(
        self, stream: TextIO, console: Console, epochs: float | None = None, clock: Callable[[], float] = time.monotonic
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
        if (status := getattr(run, "status", None)) is not None:
            threading.Thread(target=self._look, args=(status,), name="shoal-look", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._board.close()

    def _look(self, status_of_run: Callable[[], ClusterStatus]) -> None:
        """Query coordinator and servers regularly until the run ends."""
        while not self._closed.wait(LOOK_EVERY) and self._state.stopped is None:
            try:
                status = status_of_run()
            except (ShoalError, OSError, ValueError):
                continue  # it is restarting, or has ended
            with self._lock:
                self._state.look(self._clock(), status)

    def _draw(self, width: int, height: int, plain: bool) -> list[Text]:
        with self._lock:
            silent = 0.0 if self._state.started is None else self._clock() - self._heard
            now = self._state.seconds + silent
            return frame(self._state, width, height, now=now, epochs=self._epochs, note=self._note, plain=plain)
