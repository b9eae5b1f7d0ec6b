"""Pictures of membership: joins, leaves and losses, workers over time, segments by server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from shoal.events import Evaluated, Progress
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, JOINED, LOST, PALE, SERIES
from shoal.views.members import ROLES, Membership, Move, kind, moves_of, role_of
from shoal.views.run_record import RunMetrics, seconds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


# ---------------------------------------------------------------- marks of joins, leaves and losses


HIGH = 0.3  # inches for a row of marks
HEAD = 0.45  # and for the legend above and the edges
FEW = 12  # moves that are upright lines in other panels; more would hide what these show
LETTERS = 15.0  # of a name to an inch
SHIFT = 0.13  # of a row
NEAR = 2.0  # characters: marks that are nearer share one name

_SHAPES: dict[str, tuple[str, str, Literal["-", "--", "-.", ":"]]] = {
    "joined": ("^", JOINED, ":"),
    "left": ("v", INK, "-."),
    "lost": ("X", LOST, "--"),
}
_SAID = {"joined": "joined", "left": "left in order", "lost": "lost"}


def height(moves: Sequence[Move]) -> float:
    """Inches of the panel; 0 without joins and leaves."""
    return HEAD + HIGH * len(_strip_rows(moves)) if moves else 0.0


def upright(axes: Axes, moves: Sequence[Move], scale: float = 1.0) -> None:
    """Draw a vertical line at each join and leave, if they are few."""
    for event in moves if len(moves) <= FEW else ():
        _, color, dashes = _SHAPES[kind(event)]
        axes.axvline(event.seconds / scale, color=color, linestyle=dashes, linewidth=0.9, zorder=1)


def lines(moves: Sequence[Move]) -> list[Line2D]:
    """Legend entries of the vertical lines, where there are no marks."""
    kinds = [what for what in _SHAPES if len(moves) <= FEW and any(kind(event) == what for event in moves)]
    found = [handle(what, lines=True) for what in kinds]
    for one, what in zip(found, kinds, strict=True):
        one.set(marker="", label=f"one {_SAID[what]}")
    return found


def strip(axes: Axes, moves: Sequence[Move], end: float, scale: float = 1.0) -> None:
    """Draw the narrow panel up to ``end``, in the units of its axis."""
    rows = _strip_rows(moves)
    across = axes.figure.get_figwidth() * 0.85  # type: ignore[union-attr]  # inches, names and edges off
    for row, role in enumerate(rows):
        mine = sorted((event for event in moves if role_of(event) == role), key=lambda event: event.seconds)
        for what in _SHAPES:
            at = [event.seconds / scale for event in mine if kind(event) == what]
            axes.plot(at, [row + shift(what)] * len(at), linestyle="none", **shown(what))
        _names(axes, row, mine, end, scale, letters=across * LETTERS)
    draw.row_names(axes, [f"{role}s" for role in rows], size=8)
    axes.set_ylim(len(rows) - 0.6, -0.8)
    draw.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
    handles = [handle(what, lines=True) for what in _SHAPES if any(kind(event) == what for event in moves)]
    options = {"loc": "lower left", "bbox_to_anchor": (0.0, 0.95), "borderaxespad": 0.0, "handlelength": 2.4}
    draw.legend(axes, handles, ncols=len(handles), frameon=False, fontsize=8, **options)


def shown(what: str) -> dict[str, Any]:
    """The style of a mark: its shape as well as its colour."""
    shape, color, _ = _SHAPES[what]
    inside = "white" if what == "left" else color
    return {"marker": shape, "color": color, "markerfacecolor": inside, "markersize": 6, "zorder": 3}


def shift(what: str) -> float:
    """A vertical shift, so that a quick return does not hide the loss."""
    return SHIFT if what == "joined" else -SHIFT


def handle(what: str, lines: bool = False) -> Line2D:
    """A legend entry; ``lines``: with its vertical line."""
    from matplotlib.lines import Line2D

    dashes = _SHAPES[what][2]
    return Line2D([], [], linestyle=dashes if lines else "none", linewidth=0.9, label=_SAID[what], **shown(what))


def _strip_rows(moves: Sequence[Move]) -> list[str]:
    return [role for role in ROLES if any(role_of(event) == role for event in moves)]


def _names(axes: Axes, row: int, mine: Sequence[Move], end: float, scale: float, letters: float) -> None:
    """Write names beside the marks, from left to right, as far as they fit."""
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


ROWS = 32  # nodes in one picture
HATCHES = ("", "///", "...", "xxx")
COLORS = {"server": "#E69F00", "worker": "#0072B2"}
SHOWN = 8  # servers with a band of their own


def members(run: RunMetrics) -> Figure:
    """The number of workers over time; a dot for each evaluation."""
    figure = draw.canvas(2.4)
    axes = figure.subplots()
    told: list[Progress | Evaluated] = sorted([*run.progress, *run.evaluations], key=lambda event: event.seconds)
    axes.step([event.seconds for event in told], [event.workers for event in told], where="post", color=SERIES[0])
    at = [seconds_of(event) for event in run.evaluations]
    axes.plot(
        at, [event.workers for event in run.evaluations], "o", color=SERIES[1], label="at an evaluation", clip_on=False
    )
    most = max([1, *(event.workers for event in told)])
    axes.set(ylim=(0, most * 1.15), ylabel="workers", xlabel="seconds since training began")
    draw.whole_numbers(axes.yaxis)
    draw.legend(figure, loc="outside upper right")  # above: the line may be anywhere inside
    draw.tidy(axes)
    return figure


def there(run: RunMetrics) -> Figure | None:
    """A bar for the presence of every node; None if there were no joins and leaves."""
    if not moves_of(run.happened):
        return None
    by_name: dict[tuple[str, str], list[Membership]] = {}
    for stay in run.attendance.stays:
        by_name.setdefault((stay.role, stay.name), []).append(stay)
    rows = sorted(by_name, key=lambda one: (ROLES.index(one[0]), format.natural(one[1])))
    # Of many, those that joined or left: the others were present throughout.
    rows = rows if len(rows) <= ROWS else [one for one in rows if _moved(by_name[one])][:ROWS]
    end = run.seconds or 1.0
    figure = draw.canvas(0.95 + 0.22 * len(rows))
    axes = figure.subplots()
    for row, key in enumerate(rows):
        for stay in by_name[key]:
            _stay(axes, row, stay, end)
    draw.row_names(axes, [name for _, name in rows], size=8)
    axes.set(xlim=(-0.02 * end, 1.02 * end), ylim=(len(rows) - 0.4, -0.6), xlabel="seconds since training began")
    draw.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
    _explained(figure, {role for role, _ in rows}, [stay for key in rows for stay in by_name[key]])
    return figure


def _moved(stays: list[Membership]) -> bool:
    return any(stay.since > 0 or math.isfinite(stay.until) for stay in stays)


def _stay(axes: Axes, row: int, stay: Membership, end: float) -> None:
    until = min(stay.until, end)
    axes.barh(row, until - stay.since, 0.5, left=stay.since, color=COLORS[stay.role], linewidth=0, zorder=2)
    if stay.since > 0:
        axes.plot([stay.since], [row + shift("joined")], linestyle="none", **shown("joined"))
    if stay.how:
        axes.plot([until], [row + shift(stay.how)], linestyle="none", **shown(stay.how))


def _explained(figure: Figure, roles: set[str], stays: list[Membership]) -> None:
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=COLORS[role], label=role) for role in ROLES if role in roles]
    kinds = [("joined", any(stay.since > 0 for stay in stays))]
    kinds += [(how, any(stay.how == how for stay in stays)) for how in ("left", "lost")]
    handles += [handle(what) for what, is_there in kinds if is_there]
    draw.legend(figure, handles, loc="outside upper left", ncols=len(handles))


def parts(run: RunMetrics) -> Figure | None:
    """Segments and copies on each server, stacked, over time; None if they never changed."""
    if len(run.shared) < 2:
        return None
    kept = any(number for event in run.shared for number in event.copies.values())
    servers = sorted({name for event in run.shared for name in event.serves}, key=format.natural)
    figure = draw.canvas(4.3 if kept else 2.8)
    panels = figure.subplots(2 if kept else 1, 1, sharex=True, squeeze=False)[:, 0]
    _bands(panels[0], run, servers, [event.serves for event in run.shared])
    draw.titled(panels[0], "Segments that each server serves")
    if kept:
        _bands(panels[1], run, servers, [event.copies for event in run.shared])
        draw.titled(panels[1], "Copies that it keeps of others' segments")
    moves = [event for event in moves_of(run.happened) if event.role == "server"]
    for axes in panels:
        upright(axes, moves)
        draw.tidy(axes, grid="")
        axes.set(ylabel="segments", xlim=(0, run.seconds or 1.0))
        draw.whole_numbers(axes.yaxis)
    panels[-1].set_xlabel("seconds since training began")
    handles = [*panels[0].get_legend_handles_labels()[0], *lines(moves)]
    draw.legend(figure, handles, loc="outside upper left", ncols=4)
    return figure


def _bands(axes: Axes, run: RunMetrics, servers: list[str], held: list[dict[str, int]]) -> None:
    """The bands: of many servers, the first ones and the sum of the rest."""
    at = [*(event.seconds for event in run.shared), max(run.seconds, run.shared[-1].seconds)]
    shown = [[name] for name in servers[:SHOWN]] + ([servers[SHOWN:]] if len(servers) > SHOWN else [])
    floor = [0.0] * len(at)
    for number, names in enumerate(shown):
        heights = [float(sum(one.get(name, 0) for name in names)) for one in [*held, held[-1]]]
        top = [low + high for low, high in zip(floor, heights, strict=True)]
        said = format.clean(names[0])[:28] if len(names) == 1 else f"{len(names):,} others"
        color = SERIES[number % len(SERIES)] if len(names) == 1 else PALE
        hatch = HATCHES[number // len(SERIES) % len(HATCHES)]
        band = axes.fill_between(at, floor, top, step="post", color=color, alpha=0.75, linewidth=0.6, label=said)
        band.set(hatch=hatch, edgecolor="white")
        floor = top
    axes.set_ylim(0, max([1.0, *floor]) * 1.02)
    axes.axhline(0, color=INK, linewidth=0.6)
