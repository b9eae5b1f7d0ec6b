"""Who came and went, marked in a picture: a narrow panel with a row for servers and one for workers, and upright lines in the others.

    servers      ▲ server-2           ▽ server-2
    workers          ▲ worker-2 +1                 ✖ worker-0

How it is drawn says what it was, whatever the colours: joined, left in order, lost. A name stands where there is room for it; the rest are told
in the table of comings and goings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from shoal.views import format
from shoal.views.drawing import GRID, INK, JOINED, LOST
from shoal.views.members import (
    ROLES,
    Move,
    kind,
    role_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

HIGH = 0.3  # inches for a row of marks
HEAD = 0.45  # and for the legend above and the edges
FEW = 12  # moves that are upright lines in other panels; more would hide what these show
LETTERS = 15.0  # of a name to an inch
SHIFT = 0.13  # of a row
NEAR = 2.0  # letters: marks that are nearer have one name between them

_SHAPES: dict[str, tuple[str, str, Literal["-", "--", "-.", ":"]]] = {
    "joined": ("^", JOINED, ":"),
    "left": ("v", INK, "-."),
    "lost": ("X", LOST, "--"),
}
_SAID = {"joined": "joined", "left": "left in order", "lost": "lost"}


def height(moves: Sequence[Move]) -> float:
    """Inches of the panel; 0 where nobody came or went."""
    return HEAD + HIGH * len(_rows(moves)) if moves else 0.0


def upright(axes: Axes, moves: Sequence[Move], scale: float = 1.0) -> None:
    """A line where somebody came or went, if these are few."""
    for event in moves if len(moves) <= FEW else ():
        _, color, dashes = _SHAPES[kind(event)]
        axes.axvline(event.seconds / scale, color=color, linestyle=dashes, linewidth=0.9, zorder=1)


def lines(moves: Sequence[Move]) -> list[Line2D]:
    """What upright lines are, for a legend where no marks say it."""
    kinds = [what for what in _SHAPES if len(moves) <= FEW and any(kind(event) == what for event in moves)]
    found = [handle(what, lines=True) for what in kinds]
    for one, what in zip(found, kinds, strict=True):
        one.set(marker="", label=f"one {_SAID[what]}")
    return found


def strip(axes: Axes, moves: Sequence[Move], end: float, scale: float = 1.0) -> None:
    """The narrow panel, of a picture that lasts up to ``end``, in the units of its axis."""
    rows = _rows(moves)
    across = axes.figure.get_figwidth() * 0.85  # type: ignore[union-attr]  # inches, names and edges off
    for row, role in enumerate(rows):
        mine = sorted((event for event in moves if role_of(event) == role), key=lambda event: event.seconds)
        for what in _SHAPES:
            at = [event.seconds / scale for event in mine if kind(event) == what]
            axes.plot(at, [row + shift(what)] * len(at), linestyle="none", **shown(what))
        _names(axes, row, mine, end, scale, letters=across * LETTERS)
    axes.set_ylim(len(rows) - 0.6, -0.8)
    axes.set_yticks(range(len(rows)), [f"{role}s" for role in rows], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    handles = [handle(what, lines=True) for what in _SHAPES if any(kind(event) == what for event in moves)]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 0.95),
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        borderaxespad=0.0,
        handlelength=2.4,
    )


def shown(what: str) -> dict[str, Any]:
    """How a mark is drawn: by what it is, not by its colour alone."""
    shape, color, _ = _SHAPES[what]
    inside = "white" if what == "left" else color
    return {"marker": shape, "color": color, "markerfacecolor": inside, "markersize": 6, "zorder": 3}


def shift(what: str) -> float:
    """A little below, or above: one that comes back as soon as it was lost does not hide that."""
    return SHIFT if what == "joined" else -SHIFT


def handle(what: str, lines: bool = False) -> Line2D:
    """For a legend; ``lines``: with the upright line that goes with it."""
    from matplotlib.lines import Line2D

    dashes = _SHAPES[what][2]
    return Line2D([], [], linestyle=dashes if lines else "none", linewidth=0.9, label=_SAID[what], **shown(what))


def _rows(moves: Sequence[Move]) -> list[str]:
    return [role for role in ROLES if any(role_of(event) == role for event in moves)]


def _names(axes: Axes, row: int, mine: Sequence[Move], end: float, scale: float, letters: float) -> None:
    """Beside the marks, from left to right; those for which there is no room are left out."""
    letter = end / letters
    groups: list[list[Move]] = []
    for event in mine:
        if groups and (event.seconds - groups[-1][0].seconds) / scale < NEAR * letter:
            groups[-1].append(event)
        else:
            groups.append([event])
    marks = [group[0].seconds / scale for group in groups]
    taken = -letter
    for number, (group, at) in enumerate(zip(groups, marks, strict=True)):
        others = len({event.name for event in group}) - 1
        said = format.clean(group[0].name)[:32] + (f" +{others:,}" if others else "")
        wide, last = len(said) * letter, group[-1].seconds / scale
        after = marks[number + 1] if number + 1 < len(marks) else end + letter
        if last + (1.2 * letter) + wide <= after:
            where, side, taken = last + 1.2 * letter, "left", last + 1.2 * letter + wide
        elif at - 1.2 * letter - wide >= taken:
            where, side, taken = at - 1.2 * letter, "right", last + letter
        else:
            taken = last + letter
            continue
        text = axes.text(where, row, said, ha=side, va="center", fontsize=7.5, color=INK, zorder=4)
        text.set_parse_math(False)
