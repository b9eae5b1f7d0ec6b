"""Curves drawn in braille: a character is 2 x 4 dots, so four lines hold sixteen levels.

Losses fall fast and then slowly: where all are above zero, the scale is logarithmic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column and row, from the top


@dataclass(frozen=True, slots=True)
class Stroke:
    """One curve; a later one is drawn over an earlier one."""

    points: list[tuple[float, float]]  # finite, in the order of x
    style: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Rows of text with their styles, top row first, and the values at the edges."""

    rows: list[list[tuple[str, str]]]
    top: float
    bottom: float


def chart(strokes: list[Stroke], width: int, height: int, right: float) -> Chart | None:
    """The curves over 0 .. ``right``, in characters; None if no curve has two points."""
    drawn = [stroke for stroke in strokes if stroke.points]
    if width < 4 or max((len(stroke.points) for stroke in drawn), default=0) < 2:
        return None
    values = [y for stroke in drawn for _, y in stroke.points]
    low, high = min(values), max(values)
    scale = math.log if low > 0 else float
    bottom, span = scale(low), (scale(high) - scale(low)) or 1.0
    dots = [[0] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    levels = 4 * height - 1
    right = max(right, *(stroke.points[-1][0] for stroke in drawn)) or 1.0

    def level(value: float) -> int:
        # counted from the top
        return round(levels * min(1.0, max(0.0, 1 - (scale(value) - bottom) / span)))

    for stroke in drawn:
        before: int | None = None
        for column in range(2 * width):
            value = _at(stroke.points, right * column / (2 * width - 1), right / (2 * width - 1))
            if value is None:
                continue
            here = level(value)
            for row in _between(here if before is None else before, here):
                cell = row // 4, column // 2
                # a cell has one colour: the later curve wins
                if styles[cell[0]][cell[1]] != stroke.style:
                    styles[cell[0]][cell[1]], dots[cell[0]][cell[1]] = stroke.style, 0
                dots[cell[0]][cell[1]] |= DOTS[column % 2][row % 4]
            before = here
    return Chart([_pieces(*row) for row in zip(dots, styles, strict=True)], high, low)


def _pieces(dots: list[int], styles: list[str]) -> list[tuple[str, str]]:
    """A row as pieces of text of one style."""
    chars = ((chr(BLANK + bits) if bits else " ", style) for bits, style in zip(dots, styles, strict=True))
    return [("".join(char for char, _ in piece), style) for style, piece in groupby(chars, key=itemgetter(1))]


def _between(before: int, here: int) -> range:
    """The levels of a column, such that it touches the column before."""
    return (
        range(before + 1, here + 1)
        if here > before
        else range(here, before)
        if here < before
        else range(here, here + 1)
    )


def _at(points: list[tuple[float, float]], x: float, reach: float) -> float | None:
    """The curve's height at x; a little beyond its ends it is as high as there."""
    at = bisect_left(points, (x, -math.inf))
    if at == 0:
        return points[0][1] if points[0][0] - x <= reach else None
    if at == len(points):
        return points[-1][1] if x - points[-1][0] <= reach else None
    (left, before), (right, after) = points[at - 1], points[at]
    share = (x - left) / (right - left) if right > left else 1.0
    return before * (1 - share) + after * share  # never after - before: that may overflow
