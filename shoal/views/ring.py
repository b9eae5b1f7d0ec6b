"""Draws the owners of keys: as a band from first to last key, and as a ring.

    A A A B B B C C C     the primary of each stretch of keys
    B B B C C C A A A     the first of its copies; lower case: still being filled

In the ring the outer circle shows the primaries, the inner ones the copies.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from shoal.views.braille import BLANK, DOTS

if TYPE_CHECKING:
    from rich.text import Text

    from shoal.inspect.status import SegmentStatus

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
ROWS = 13  # of a ring
_MOST = 64  # columns of a band
NOBODY = "×"


def owners(one: SegmentStatus) -> list[tuple[str, bool]]:
    """The primary and the copies, and whether each is complete."""
    return [(copy.server, copy.role != "filling") for copy in one.copies]


def band(segments: list[SegmentStatus], letters: dict[str, str], width: int) -> list[Text]:
    """A line for the primaries and one per copy; a cell is one segment or several."""
    from rich.text import Text

    depth = max([1, *(len(one.copies) for one in segments)])
    cells = min(len(segments), max(8, min(width - 10, _MOST)))
    wide = max(1, min(width - 10, _MOST) // cells)
    lines = []
    for level in range(depth):
        text = Text("primary  " if level == 0 else "copy     ", "dim")
        for cell in range(cells):
            one = segments[cell * len(segments) // cells]
            text.append_text(_cell(one, level, letters, wide))
        lines.append(text)
    return lines


def _cell(one: SegmentStatus, level: int, letters: dict[str, str], wide: int) -> Text:
    from rich.text import Text

    held = owners(one)
    if level >= len(held):
        return Text(
            ((NOBODY if level == 0 else "·") * max(1, wide - 1)).ljust(wide), "bold red" if level == 0 else "dim"
        )
    server, whole = held[level]
    letter = letters.get(server, "?")
    said = letter if whole else letter.lower()
    style = style_of(server, letters) + (" reverse" if level == 0 else "")
    return Text(said.center(wide - 1) if wide > 1 else said, style).append(" " if wide > 1 else "", "")


def ring(segments: list[SegmentStatus], letters: dict[str, str], width: int) -> Text:
    """A circle of braille; beside it, each server's mark and share."""
    from rich.text import Text

    columns = 2 * ROWS
    depth = min(3, max([1, *(len(one.copies) for one in segments)]))
    dots: dict[tuple[int, int], Counter[str]] = {}
    masks: dict[tuple[int, int], int] = {}
    high, across = 4 * ROWS, 2 * columns
    for level in range(depth):
        for thick in (0.0, 1.0):
            radius = high / 2 - 5 - 4.5 * level - thick
            for turn in range(720):
                angle = turn / 720 * 2 * math.pi
                one = segments[min(len(segments) - 1, turn * len(segments) // 720)]
                held = owners(one)
                # a replica being filled is dotted
                if level >= len(held) or (not held[level][1] and turn % 12 < 6):
                    continue
                x = int(across / 2 + radius * math.sin(angle))
                y = int(high / 2 - radius * math.cos(angle))
                cell = (y // 4, x // 2)
                masks[cell] = masks.get(cell, 0) | DOTS[x % 2][y % 4]
                dots.setdefault(cell, Counter())[held[level][0]] += 1
    marks = _marks(segments, letters, columns)
    legend = _legend(segments, letters)
    text = Text()
    for row in range(ROWS):
        text.append("   ")
        for column in range(columns):
            cell = (row, column)
            if cell in marks:
                letter, style = marks[cell]
                text.append(letter, style)
            elif cell in masks:
                text.append(chr(BLANK + masks[cell]), style_of(dots[cell].most_common(1)[0][0], letters))
            else:
                text.append(" ")
        place = row - (ROWS - len(legend)) // 2
        if 0 <= place < len(legend) and width > columns + 24:
            text.append("    ").append_text(legend[place])
        text.append("\n" if row < ROWS - 1 else "")
    return text


def _marks(
    segments: list[SegmentStatus], letters: dict[str, str], columns: int
) -> dict[tuple[int, int], tuple[str, str]]:
    """A mark outside the circle, in the middle of each long stretch of one owner."""
    marks = {}
    at = 0
    for server, group in groupby(segments, key=lambda one: one.copies[0].server if one.copies else ""):
        length = len(list(group))
        middle, at = at + length / 2, at + length
        if length * 32 < len(segments):
            continue
        angle = middle / len(segments) * 2 * math.pi
        radius = 2 * ROWS - 2.0
        row = int((4 * ROWS / 2 - radius * math.cos(angle)) / 4)
        column = int((columns + radius * math.sin(angle)) / 2)
        style = f"bold {style_of(server, letters)}" if server else "bold red"
        marks[min(ROWS - 1, max(0, row)), min(columns - 1, max(0, column))] = (letters.get(server, NOBODY), style)
    return marks


def _legend(segments: list[SegmentStatus], letters: dict[str, str]) -> list[Text]:
    from rich.text import Text

    owned = Counter(one.copies[0].server if one.copies else "" for one in segments)
    backed = Counter(copy.server for one in segments for copy in one.copies[1:])
    lines = []
    for server, letter in letters.items():
        share = f"{owned[server]:,} of {len(segments):,}" + (
            f", copies of {backed[server]:,}" if backed[server] else ""
        )
        lines.append(Text.assemble((letter, f"bold {style_of(server, letters)}"), f" {server}  ", (share, "dim")))
    if owned[""]:
        lines.append(Text.assemble((NOBODY, "bold red"), (f" lost  {owned['']:,}", "red")))
    return lines


def style_of(server: str, letters: dict[str, str]) -> str:
    order = list(letters)
    return COLOURS[order.index(server) % len(COLOURS)] if server in order else "white"
