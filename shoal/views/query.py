"""Shows statistics of a model: size, norms, a histogram, the largest weights.

``look`` queries, ``page`` is for people, ``facts`` for programs, ``line`` for a log. The histogram
has a column for every power of two: negative weights at the left, the smallest in the middle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.inspect.query import QueriedModel
from shoal.schedule.stop_rules import ENDLESS
from shoal.views import format
from shoal.views.braille import Stroke, chart
from shoal.wire.messages import RunProgress

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 6  # rows of the histogram
_BINS = 24  # bins of each sign; smaller weights share one
_BAR = 24  # columns of the largest weight's bar
_KEPT = 2_000  # snapshots kept for the curves
_NEGATIVE, _POSITIVE = "magenta", "cyan"


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
    """The statistics at one moment."""

    where: str
    table: str
    live: bool
    span: int
    sparse: bool
    overview: dict[str, Any]
    top: list[tuple[int, int, float, str]]  # key, place in its row, weight, name
    course: RunProgress | None = None


@dataclass(slots=True)
class QueryHistory:
    """Earlier snapshots, for --watch."""

    points: list[tuple[float, float, float]] = field(default_factory=list)  # seconds, not zero, l2

    def add(self, look: QuerySnapshot, seconds: float) -> None:
        told = look.overview
        if math.isfinite(told["l2"]):
            self.points.append((seconds, float(told["nonzero"]), told["l2"]))
        if len(self.points) > _KEPT:
            del self.points[1:-1:2]  # keep every other one, over the whole run


def look(asked: QueriedModel, top: int) -> QuerySnapshot:
    """Query all statistics."""
    course = asked.course() if asked.live else None
    largest = asked.ask("top", k=top) if top else []
    span, sparse = asked.span
    named = [(key, place, weight, asked.name(key, place)) for key, place, weight in largest]
    return QuerySnapshot(asked.where, asked.table, asked.live, span, sparse, asked.ask("overview"), named, course)


def facts(seen: QuerySnapshot) -> dict[str, Any]:
    """All statistics as plain data."""
    top = [dict(zip(("key", "place", "weight", "name"), one, strict=True)) for one in seen.top]
    course = None if seen.course is None else msgspec.structs.asdict(seen.course)
    return {"where": seen.where, "table": seen.table, "live": seen.live, **seen.overview, "top": top, "run": course}


def line(seen: QuerySnapshot) -> str:
    told = seen.overview
    parts = [f"epoch {format.epochs(_passes(seen.course))}"] if seen.course is not None else []
    parts.append(f"{told['nonzero']:,} of {told['weights']:,} weights are not zero")
    parts += [f"{name} {_figure(told[name])}" for name in ("l1", "l2", "largest")]
    if seen.top:
        parts.append(f"largest is {format.clean(seen.top[0][3])}")
    return "  ".join(parts)


def page(seen: QuerySnapshot, width: int, history: QueryHistory | None = None, note: str = "") -> RenderableType:
    """A page for a terminal of this width."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_head(seen, width)]
    parts += [Text(""), *_figures(seen)]
    if seen.overview["nonzero"]:
        parts += [Text(""), *_histogram(seen.overview["histogram"], width)]
    if seen.top:
        parts += [Text(""), *_top(seen, width)]
    if history is not None and (drawn := _curves(history, width)):
        parts += [Text(""), *drawn]
    if note:
        parts += [Text(""), Text(format.clean(note), "yellow")]
    return Group(*parts)


def _passes(course: RunProgress) -> float:
    return course.done / max(1, course.per_pass)


def _head(seen: QuerySnapshot, width: int) -> Text:
    from rich.text import Text

    text = Text.assemble((format.clean(seen.where), "bold"), ("  table ", "dim"), (format.clean(seen.table), ""))
    course = seen.course
    if course is None:
        return text.append("" if seen.live else "  as its run has left it", "dim")
    said = f"epoch {format.epochs(_passes(course))}"
    if course.limit < ENDLESS:
        said += f" of {format.epochs(course.limit / max(1, course.per_pass))}"
    return text.append(f"  {said}  {course.steps:,} steps  {format.duration(course.seconds)}", "green")


def _figures(seen: QuerySnapshot) -> list[Text]:
    from rich.text import Text

    told = seen.overview
    rows = f"{told['rows']:,} rows" + (f" of {seen.span:,} possible" if seen.sparse and seen.span < 1 << 62 else "")
    share = f" ({told['nonzero'] / told['weights']:.2%})" if told["weights"] else ""
    first = Text.assemble(
        (rows if seen.sparse or told["rows"] != told["weights"] else "", ""),
        ("   " if seen.sparse or told["rows"] != told["weights"] else "", ""),
        f"{told['weights']:,} weights   ",
        (f"{told['nonzero']:,}", "bold"),
        f" not zero{share}   ",
        (f"{told['nonzero'] - told['negative']:,}", _POSITIVE),
        " positive   ",
        (f"{told['negative']:,}", _NEGATIVE),
        " negative",
    )
    second = Text()
    for name in ("l1", "l2", "largest"):
        second.append(f"{name} ", "dim").append(f"{_figure(told[name])}   ", "")
    if minus := told["histogram"]["minus zero"]:
        second.append("minus zero ", "dim").append(f"{minus:,} ", "").append(
            "(block-proximal: keys left out)   ", "dim"
        )
    if strange := told["histogram"]["not finite"]:
        second.append(f"{format.many(strange, 'weight')} infinite or no number", "bold red")
    second.rstrip()
    return [first, second]


def _histogram(told: dict[str, Any], width: int) -> list[Text]:
    """Bars on a line, with the magnitudes below."""
    from rich.text import Text

    bins = max(1, min(_BINS, (width - 4) // 4, len(told["positive"])))
    negative, positive = _gathered(told["negative"], bins), _gathered(told["positive"], bins)
    wide = 2 if 4 * bins + 4 <= width else 1
    tallest = max(*negative, *positive, 1)
    lines = [Text(f"weights by size, a column for each power of two; {tallest:,} in the tallest", "dim")]
    for row in range(_HEIGHT, 0, -1):
        text = Text("  ")
        for counts, style in ((negative[::-1], _NEGATIVE), (positive, _POSITIVE)):
            for count in counts:
                text.append(_block(count, tallest, row) * wide, style)
            text.append(" " if style == _NEGATIVE else "", "")
        text.rstrip()
        lines.append(text)
    half = wide * bins
    lines.append(Text("  " + "─" * half + "┴" + "─" * half, "dim"))
    lines.append(Text("  " + _scale(told["edges"][-1 - bins :], wide), "dim"))
    return lines


def _scale(edges: list[float], wide: int) -> str:
    """The labels of magnitude below the bars."""
    bins = len(edges) - 1
    half = wide * bins
    marks = [" "] * (2 * half + 1)
    for at in (bins, 0, bins // 2):
        size = f"{edges[at]:.2g}"
        signs = (("-", half - wide * at), ("", half + wide * at)) if at else (("±" if edges[0] else "", half),)
        for sign, column in signs:
            said = sign + size
            begin = min(max(0, column - len(said) // 2), len(marks) - len(said))
            if begin >= 0 and not "".join(marks[max(0, begin - 2) : begin + len(said) + 2]).strip():
                marks[begin : begin + len(said)] = said
    return "".join(marks)


def _gathered(counts: list[int], bins: int) -> list[int]:
    """The largest bins; the first includes all smaller ones."""
    return [sum(counts[: len(counts) - bins + 1]), *counts[len(counts) - bins + 1 :]]


def _block(count: int, tallest: int, row: int) -> str:
    """The character of a bar in this row, from below; a bar is never empty."""
    filled = max(1 if count else 0, round(8 * _HEIGHT * count / tallest)) - 8 * (row - 1)
    return _BLOCKS[min(8, max(0, filled))]


def _top(seen: QuerySnapshot, width: int) -> list[Text]:
    from rich.text import Text

    names = [format.clean(one[3]) for one in seen.top]
    room = max(map(len, names))
    largest = max((abs(one[2]) for one in seen.top if math.isfinite(one[2])), default=0.0) or 1.0
    lines = [Text("largest weights", "dim")]
    for name, (_, _, weight, _) in zip(names, seen.top, strict=True):
        share = abs(weight) / largest if math.isfinite(weight) else 1.0
        style = _NEGATIVE if weight < 0 else _POSITIVE
        bar = "█" * max(1, round(share * min(_BAR, max(4, width - room - 18))))
        lines.append(Text.assemble(f"  {name:>{room}}  ", (f"{format.loss(weight):>10}", style), "  ", (bar, style)))
    return lines


def _curves(history: QueryHistory, width: int) -> list[Text]:
    """Curves of the snapshots so far."""
    from rich.text import Text

    lines: list[Text] = []
    wide = min(60, width - 24)
    for name, at, style in (("not zero", 1, "green"), ("l2", 2, "yellow")):
        points = [(point[0] - history.points[0][0], point[at]) for point in history.points]
        drawn = chart([Stroke(points, style)], wide, 3, points[-1][0]) if points else None
        if drawn is None:
            return []
        for row, pieces in enumerate(drawn.rows):
            value = drawn.top if row == 0 else drawn.bottom if row == len(drawn.rows) - 1 else None
            head = "" if value is None else f"{value:,.0f}" if at == 1 else _figure(value)
            lines.append(Text.assemble((f"  {name if row == 0 else '':<9}", "dim"), f"{head:>10} ", *pieces))
    return lines


def _figure(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"
