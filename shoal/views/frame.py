"""The live picture of a run: a function from what is known to lines of text that fit the terminal.

    rcv1 · logistic · bounded · 4 workers x 2 servers · 2 cores
    ━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━  epoch 6.4 of 10  12 s
    1,204,331 rows/s   train loss 0.1312   4 workers at work
     pass seconds test loss accuracy    auc          the last evaluations
    ...                                              a curve of the losses, the last happenings, a note

What does not fit is left out, the oldest and the least important first; no line is longer than the terminal is wide.
Colours are those of the terminal's own palette that can be read on dark and light; nothing is said by colour alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.events import Evaluated, Gone, RolledBack, Warned
from shoal.views import event_line, format
from shoal.views.braille import Stroke, chart
from shoal.views.event_line import MoveSummary, together
from shoal.views.live_state import LiveState

if TYPE_CHECKING:
    from rich.text import Text

WIDEST = 100  # columns: wider lines are harder to read, and a window made narrower seldom breaks these
CHART_ROWS = 4
HAPPENINGS = 3
SILENCE = 5.0  # seconds without an event before that is said

TEST, TRAIN, BAD = "magenta", "cyan", "red"


def frame(
    so_far: LiveState,
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

    width, budget = max(1, min(width, WIDEST) - 1), max(1, height - 1)
    head = _head(so_far, width, max(now, so_far.seconds), epochs, plain)
    tail = _tail(so_far, format.clean(note))
    head = head[:budget]
    tail = tail[-(budget - len(head)) :] if budget > len(head) else []
    room = budget - len(head) - len(tail)
    table = _table(list(so_far.evaluations)[-(room - 2) :] if room > 2 else [], so_far.best, width, plain)
    room -= len(table)
    curve = [] if plain or room < CHART_ROWS + 2 else _chart(so_far, width, max(now, so_far.seconds))
    gap = [Text("")] if tail and (table or curve) and room - len(curve) > 0 else []
    lines = [*head, *table, *curve, *gap, *tail] or [Text("")]
    for line in lines:
        if plain:
            line.plain = line.plain.encode("ascii", "replace").decode()
        line.rstrip()
        line.truncate(width, overflow="crop" if plain else "ellipsis")
        line.no_wrap = True
    return lines


def _head(so_far: LiveState, width: int, now: float, epochs: float | None, plain: bool) -> list[Text]:
    from rich.text import Text

    if so_far.started is None and now == 0:
        return []
    point = " | " if plain else " · "
    parts = [Text(part, "bold") for part in event_line.title(so_far.started)] if so_far.started else []
    return [
        *_folded(parts, Text(point, "dim"), width),
        _bar(so_far, width, now, epochs, plain),
        *_folded(_figures(so_far, now), Text("   "), width),
    ]


def _figures(so_far: LiveState, now: float) -> list[Text]:
    from rich.text import Text

    figures = [Text(format.rate(so_far.rate)), Text(f"train loss {format.loss(so_far.train_loss)}", TRAIN)]
    if so_far.stopped:
        return figures
    if so_far.workers is not None:
        asked = so_far.started.workers if so_far.started else so_far.workers
        short = so_far.workers < asked
        text = (
            f"{so_far.workers:,} of {format.many(asked, 'worker')}" if short else format.many(so_far.workers, "worker")
        )
        figures.append(Text(f"{text} at work", BAD if short else ""))
    if so_far.best and so_far.best not in so_far.evaluations:
        figures.append(Text(f"best test loss {format.loss(so_far.best.test_loss)}", TEST))
    if now - so_far.seconds > SILENCE:
        figures.append(Text(f"no word for {format.duration(now - so_far.seconds)}", BAD))
    return figures


def _bar(so_far: LiveState, width: int, now: float, epochs: float | None, plain: bool) -> Text:
    from rich.text import Text

    known = epochs is not None and format.finite(epochs) and epochs > 0
    of = f" of {format.epochs(epochs)}" if epochs is not None and known else ""
    time = format.duration(so_far.seconds if so_far.stopped else now)
    said = f"epoch {format.epochs(so_far.passes)}{of}   {time}"
    cells = width - len(said) - 2
    if epochs is None or not known or not format.finite(so_far.passes) or cells < 6:
        return Text(said)
    done = round(cells * min(1.0, max(0.0, so_far.passes / epochs)))
    full, empty = ("#", "-") if plain else ("━", "╌")
    return Text.assemble((full * done, "green"), (empty * (cells - done), "dim"), "  ", said)


def _table(shown: list[Evaluated], best: Evaluated | None, width: int, plain: bool) -> list[Text]:
    from rich.text import Text

    if not shown:
        return []
    names = list(dict.fromkeys(name for event in shown for name in event.metrics))
    told = [{name: format.metric(name, event.metrics.get(name)) for name in names} for event in shown]
    columns = [max(len(format.clean(name)) + 1, 7, *(len(one[name]) + 1 for one in told)) for name in names]
    while columns and 23 + sum(columns) > width:
        columns.pop()
    heads = "".join(f"{format.clean(name):>{wide}}" for name, wide in zip(names, columns, strict=False))
    lines = [Text(""), Text(f" pass seconds test loss{heads}", "dim")]
    star = "*" if plain else "★"
    for event, figures in zip(shown, told, strict=True):
        rest = "".join(f"{figure:>{wide}}" for figure, wide in zip(figures.values(), columns, strict=False))
        mark, style = (star, f"bold {TEST}") if event is best else (" ", TEST)
        lines.append(
            Text.assemble(
                f"{format.epochs(event.passes):>5}{format.seconds(event.seconds):>8}",
                (f" {mark} {format.loss(event.test_loss)}".rjust(10), style),
                rest,
            )
        )
    return lines


def _chart(so_far: LiveState, width: int, now: float) -> list[Text]:
    from rich.text import Text

    drawn = chart([Stroke(so_far.train.points, TRAIN), Stroke(so_far.test.points, TEST)], width - 9, CHART_ROWS, now)
    if drawn is None:
        return []
    labels = [format.loss(drawn.top), *[""] * (CHART_ROWS - 2), format.loss(drawn.bottom)]
    lines = [Text.assemble(("loss".rjust(8), "dim"), " ", ("test", TEST), "  ", ("train", TRAIN))]
    for label, row in zip(labels, drawn.rows, strict=True):
        lines.append(Text.assemble((f"{label:>8} ", "dim"), *row))
    return [Text(""), *lines]


def _tail(so_far: LiveState, note: str) -> list[Text]:
    from rich.text import Text

    lines = [
        Text(
            f"{format.seconds(event.seconds):>6} s  {event_line.news(event)}",
            BAD if _is_bad(event) else "",
        )
        for event in together(so_far.happenings)[-HAPPENINGS:]
    ]
    if so_far.stopped:
        lines.append(Text(f"stopped: {format.clean(so_far.stopped.why)}", "bold"))
        if best := so_far.best:
            lines.append(
                Text(f"best test loss {format.loss(best.test_loss)} at epoch {format.epochs(best.passes)}", TEST)
            )
    if note:
        lines.append(Text(note, "dim"))
    return lines


def _is_bad(event: event_line.News | MoveSummary) -> bool:
    if isinstance(event, Gone):
        return not event_line.left_in_order(event)
    return isinstance(event, RolledBack | Warned)


def _folded(parts: list[Text], between: Text, width: int) -> list[Text]:
    """The parts one after another, on as many lines as they need."""
    from rich.text import Text

    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + between.cell_len + part.cell_len <= width:
            lines[-1].append_text(between).append_text(part)
        else:
            lines.append(Text().append_text(part))
    return lines
