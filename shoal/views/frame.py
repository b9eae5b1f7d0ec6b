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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.events import Evaluated, Gone, Joined, RolledBack, Warned
from shoal.views import board, event_line, format
from shoal.views.braille import Stroke
from shoal.views.event_line import DOING, MoveSummary, together
from shoal.views.live_state import LiveState, hot_servers

if TYPE_CHECKING:
    from rich.text import Text

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
    from rich.text import Text

    room_across, budget = max(1, width - 1), max(1, height - 1)
    now = max(now, state.seconds)
    head = _head(state, room_across, now, epochs, plain)[:budget]
    room = budget - len(head)
    tail = _tail(state, format.clean(note), room_across, max(5, room // 4))
    tail = tail[-room:] if room > 0 else []
    room -= len(tail)
    nodes = [] if state.stopped else board.first_of(_nodes(state), max(0, min(room - 4, room // 2)), "nodes")
    room -= len(nodes)
    charted = not plain and room >= CHART_ROWS + 6
    table = _table(state, (room - CHART_ROWS - 2 if charted else room), room_across, plain)
    room -= len(table)
    chart = [] if plain or room < CHART_ROWS + 2 else _chart(state, room_across, min(TALLEST, room - 2), now)
    gap = [Text("")] if tail and (nodes or table or chart) and room - len(chart) > 0 else []
    return board.fit([*head, *nodes, *table, *chart, *gap, *tail] or [Text("")], width, height, plain)


def _head(state: LiveState, width: int, now: float, epochs: float | None, plain: bool) -> list[Text]:
    from rich.text import Text

    if state.started is None and now == 0:
        return []
    parts = [Text(part, "bold") for part in event_line.title(state.started)] if state.started else []
    return [
        *board.joined(parts, Text(" | " if plain else " · ", "dim"), width),
        _bar(state, width, now, epochs, plain),
        *board.joined(_figures(state, now), Text("   "), width),
    ]


def _bar(state: LiveState, width: int, now: float, epochs: float | None, plain: bool) -> Text:
    goal = epochs if epochs is not None and format.finite(epochs) and epochs > 0 else None
    of = "" if goal is None else f" of {format.epochs(goal)}"
    label = f"epoch {format.epochs(state.passes)}{of}   {format.duration(state.seconds if state.stopped else now)}"
    left = state.left(goal)
    if left and left >= 1 and width > 60:
        label += f"   about {format.duration(left)} left"
    return board.bar(None if goal is None else state.passes / goal, label, width, plain)


def _figures(state: LiveState, now: float) -> list[Text]:
    from rich.text import Text

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


# ---------------------------------------------------------------- servers and workers


def _nodes(state: LiveState) -> list[Text]:
    from rich.text import Text

    servers = sorted(state.servers, key=lambda one: format.natural(one.name))
    hot = hot_servers({one.name: one.keys for one in servers})
    workers = sorted(state.spent, key=format.natural)
    wide = max((len(format.clean(name)) for name in [*workers, *(one.name for one in servers)]), default=0)
    lines = []
    for one in servers:
        line = Text(f" {format.clean(one.name):<{wide}}  {one.keys:>11,.0f} keys/s  ")
        line.append(f"{'HOT' if one.name in hot else '':<3}", f"bold {BAD}")
        line.append(f"{format.many(one.segments, 'segment'):>13}  {one.copies:>4,} copies")
        lines.append(line.append(f"  {one.state}", BAD) if one.state else line)
    for name in workers:
        spent = state.spent[name]
        shares = "  ".join(f"{kind} {spent[kind]:>4.0%}" for kind in DOING if spent.get(kind, 0.0) >= 0.005)
        lines.append(Text(f" {format.clean(name):<{wide}}  {shares}"))
    return lines


# ---------------------------------------------------------------- evaluations, curves, news


def _table(state: LiveState, room: int, width: int, plain: bool) -> list[Text]:
    """The best evaluation first, then as many of the last ones as fit."""
    from rich.text import Text

    if not state.evaluations or room < 3:
        return []
    latest, best = list(state.evaluations)[-(room - 2) :], state.best
    if best is not None and best not in latest:
        latest = [best, *latest[-(room - 3) :]] if room > 3 else [best]
    names = list(dict.fromkeys(name for event in latest for name in event.metrics))
    cells = [{name: format.metric(name, event.metrics.get(name)) for name in names} for event in latest]
    columns = [max(len(format.clean(name)) + 1, 7, *(len(one[name]) + 1 for one in cells)) for name in names]
    while columns and 23 + sum(columns) > width:
        columns.pop()
    heads = "".join(f"{format.clean(name):>{wide}}" for name, wide in zip(names, columns, strict=False))
    lines = [Text(""), Text(f"epoch seconds test loss{heads}", "dim")]
    star = "*" if plain else "★"
    for event, figures in zip(latest, cells, strict=True):
        rest = "".join(f"{figure:>{wide}}" for figure, wide in zip(figures.values(), columns, strict=False))
        mark, style = (star, f"bold {TEST}") if event is best else (" ", TEST)
        lines.append(_row(event, mark, style, rest))
    return lines


def _row(event: Evaluated, mark: str, style: str, rest: str) -> Text:
    from rich.text import Text

    return Text.assemble(
        f"{format.epochs(event.passes):>5}{format.seconds(event.seconds):>8}",
        (f" {mark} {format.loss(event.test_loss)}".rjust(10), style),
        rest,
    )


def _chart(state: LiveState, width: int, rows: int, now: float) -> list[Text]:
    from rich.text import Text

    strokes = [Stroke(state.train.points, TRAIN), Stroke(state.test.points, TEST)]
    drawn = board.curve(strokes, width, rows, state.seconds if state.stopped else now, format.loss)
    if not drawn:
        return []
    return [Text(""), Text.assemble(("loss".rjust(8), "dim"), " ", ("test", TEST), "  ", ("train", TRAIN)), *drawn]


def _tail(state: LiveState, note: str, width: int, most: int) -> list[Text]:
    """The latest news, wrapped, and why the run ended."""
    from rich.text import Text

    lines: list[Text] = []
    for event in reversed(together(state.happenings)[-NEWS:]):
        failover = state.failovers.of(event)
        if isinstance(event, Joined) and state.failovers.restarted(event):
            continue  # shown with the loss
        text = failover.sentence() if failover else event_line.news(event)
        bad = _is_bad(event)
        piece = board.wrapped(
            f"{format.seconds(event.seconds):>6} s  ", text, width, min(most, 3 if bad else 2), BAD if bad else ""
        )
        if len(lines) + len(piece) > most:
            break
        lines = [*piece, *lines]
    if state.stopped:
        lines.append(Text(f"stopped: {format.clean(state.stopped.why)}", "bold"))
        if best := state.best:
            text = f"best test loss {format.loss(best.test_loss)} at epoch {format.epochs(best.passes)}"
            lines.append(Text(text, TEST))
    return [*lines, Text(note, "dim")] if note else lines


def _is_bad(event: event_line.News | MoveSummary) -> bool:
    if isinstance(event, Gone):
        return not event_line.left_in_order(event)
    return isinstance(event, RolledBack | Warned)
