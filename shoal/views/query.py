"""Shows statistics of a model: size, norms, a histogram, the largest weights.

``look`` queries, ``page`` is for people, ``facts`` for programs, ``line`` for a log. The histogram
has a column for every power of two: negative weights at the left, the smallest in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.text import Text

from shoal.inspect.query import QueriedModel
from shoal.schedule.stop_rules import ENDLESS
from shoal.views import format
from shoal.views.board import Stroke, curve
from shoal.views.live_state import Curve
from shoal.wire.messages import RunProgress

_BLOCKS = " ▁▂▃▄▅▆▇█"
_HEIGHT = 6  # rows of the histogram
_BINS = 24  # bins of each sign; smaller weights share one
_BAR = 24  # columns of the largest weight's bar
_NEGATIVE, _POSITIVE = "magenta", "cyan"


@dataclass(frozen=True, slots=True)
class QuerySnapshot:
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
    nonzero: Curve = field(default_factory=Curve)
    l2: Curve = field(default_factory=Curve)
    began: float = math.nan

    def add(self, look: QuerySnapshot, seconds: float) -> None:
        self.began = seconds if math.isnan(self.began) else self.began
        if math.isfinite(look.overview["l2"]):
            self.nonzero.add(seconds - self.began, float(look.overview["nonzero"]))
            self.l2.add(seconds - self.began, look.overview["l2"])


def look(asked: QueriedModel, top: int) -> QuerySnapshot:
    course = asked.course() if asked.live else None
    largest = asked.ask("top", k=top) if top else []
    span, sparse = asked.span
    named = [(key, place, weight, asked.name(key, place)) for key, place, weight in largest]
    return QuerySnapshot(asked.where, asked.table, asked.live, span, sparse, asked.ask("overview"), named, course)


def facts(seen: QuerySnapshot) -> dict[str, Any]:
    top = [dict(zip(("key", "place", "weight", "name"), one, strict=True)) for one in seen.top]
    course = None if seen.course is None else msgspec.structs.asdict(seen.course)
    return {"where": seen.where, "table": seen.table, "live": seen.live, **seen.overview, "top": top, "run": course}


def line(seen: QuerySnapshot) -> str:
    told = seen.overview
    course = seen.course
    parts = [f"epoch {format.epochs(course.done / max(1, course.per_pass))}"] if course is not None else []
    parts.append(f"{told['nonzero']:,} of {told['weights']:,} weights are not zero")
    parts += [f"{name} {_figure(told[name])}" for name in ("l1", "l2", "largest")]
    if seen.top:
        parts.append(f"largest is {format.clean(seen.top[0][3])}")
    return "  ".join(parts)


def page(seen: QuerySnapshot, width: int, history: QueryHistory | None = None, note: str = "") -> list[Text]:
    parts = [[_head(seen)], _figures(seen)]
    if seen.overview["nonzero"]:
        parts.append(_histogram(seen.overview["histogram"], width))
    if seen.top:
        parts.append(_top(seen, width))
    if history is not None:
        parts.append(_curve("not zero", history.nonzero, "green", width, "{:,.0f}".format))
        parts.append(_curve("l2", history.l2, "yellow", width, _figure))
    if note:
        parts.append([Text(format.clean(note), "yellow")])
    return [line for part in parts if part for line in (Text(""), *part)][1:]


def _head(seen: QuerySnapshot) -> Text:
    text = Text.assemble((format.clean(seen.where), "bold"), ("  table ", "dim"), (format.clean(seen.table), ""))
    course = seen.course
    if course is None:
        return text.append("" if seen.live else "  as its run has left it", "dim")
    said = f"epoch {format.epochs(course.done / max(1, course.per_pass))}"
    if course.limit < ENDLESS:
        said += f" of {format.epochs(course.limit / max(1, course.per_pass))}"
    return text.append(f"  {said}  {course.steps:,} steps  {format.duration(course.seconds)}", "green")


def _figures(seen: QuerySnapshot) -> list[Text]:
    told, histogram = seen.overview, seen.overview["histogram"]
    rows = f"{told['rows']:,} rows" + (f" of {seen.span:,} possible" if seen.sparse and seen.span < 1 << 62 else "")
    share = f" ({told['nonzero'] / told['weights']:.2%})" if told["weights"] else ""
    first = Text(f"{rows}   " if seen.sparse or told["rows"] != told["weights"] else "")
    first.append(f"{told['weights']:,} weights   ")
    first.append(f"{told['nonzero']:,}", "bold").append(f" not zero{share}   ")
    first.append(f"{told['nonzero'] - told['negative']:,}", _POSITIVE).append(" positive   ")
    first.append(f"{told['negative']:,}", _NEGATIVE).append(" negative")
    second = Text()
    for name in ("l1", "l2", "largest"):
        second.append(f"{name} ", "dim").append(f"{_figure(told[name])}   ")
    if minus := histogram["minus zero"]:
        second.append("minus zero ", "dim").append(f"{minus:,} ").append("(block-proximal: keys left out)   ", "dim")
    if strange := histogram["not finite"]:
        second.append(f"{format.many(strange, 'weight')} not finite", "bold red")
    second.rstrip()
    return [first, second]


def _histogram(told: dict[str, Any], width: int) -> list[Text]:
    bins = max(1, min(_BINS, (width - 4) // 4, len(told["positive"])))
    # the first bin includes all smaller ones
    negative, positive = (
        [sum(counts[: len(counts) - bins + 1]), *counts[len(counts) - bins + 1 :]]
        for counts in (told["negative"], told["positive"])
    )
    wide = 2 if 4 * bins + 4 <= width else 1
    tallest = max(*negative, *positive, 1)
    lines = [Text(f"weights by size, a column for each power of two; {tallest:,} in the tallest", "dim")]
    for row in range(_HEIGHT):
        sides = (negative[::-1], positive)
        left, right = ("".join(_block(count, tallest, row) * wide for count in side) for side in sides)
        lines.append(Text.assemble("  ", (left, _NEGATIVE), " ", (right, _POSITIVE)))
        lines[-1].rstrip()
    half = "─" * (wide * bins)
    return [*lines, Text(f"  {half}┴{half}", "dim"), Text("  " + _scale(told["edges"][-1 - bins :], wide), "dim")]


def _scale(edges: list[float], wide: int) -> str:
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


def _block(count: int, tallest: int, row: int) -> str:
    """The character of a bar in this row, from the top; a bar is never empty."""
    filled = max(1 if count else 0, round(8 * _HEIGHT * count / tallest)) - 8 * (_HEIGHT - 1 - row)
    return _BLOCKS[min(8, max(0, filled))]


def _top(seen: QuerySnapshot, width: int) -> list[Text]:
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


def _curve(name: str, past: Curve, style: str, width: int, label: Callable[[float], str]) -> list[Text]:
    right = past.points[-1][0] if past.points else 0.0
    lines = curve([Stroke(past.points, style)], min(72, width - 2), 4, right, label, side=12)
    return [Text(f"  {name}", "dim"), *lines] if lines else []


def _figure(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"
