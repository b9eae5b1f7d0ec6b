"""How the pictures of a sweep are drawn: lines over an axis, their scales and frames. What is drawn, ``pictures`` knows.

Every seed is a dot, a line goes through the medians, a bar from the lowest to the highest. A point that has no figure is a
cross at the upper edge with the reason, never a height. Without pyplot, as in ``views.plots``.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.sweep.figures import (
    PointFigures,
    RunFigures,
    Spread,
    StudyFigures,
)
from shoal.sweep.grid import Axis
from shoal.sweep.lines import (
    AxisScale,
    PlotLine,
    at,
    lines_of,
)
from shoal.views import format
from shoal.views.drawing import INK, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#007A5A", "#A0447C", "#56B4E9", "#E69F00", "#444444", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # nothing is said by colour alone
APART = 0.06  # of a step along the axis, between lines, so that their bars do not hide each other

OfPoint = Callable[[PointFigures], Spread | None]
OfRun = Callable[[RunFigures], float | None]


def draw(axes: Axes, of: StudyFigures, axis: Axis, point: OfPoint, run: OfRun, zero: bool = False) -> None:
    """A line through the medians of the numbers, marks for all else; every seed a dot; what has no figure a cross."""
    scale, lines = AxisScale.of(axis), lines_of(of)
    crosses: dict[float, list[str]] = {}
    for number, line in enumerate(lines):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        shift = APART * scale.step * (number - (len(lines) - 1) / 2)
        known = [(one, spread) for one in line.points if (spread := point(one)) is not None]
        joined = [(one, spread) for one, spread in known if one.point.choices[axis.name].number is not None]
        axes.plot(
            [scale.places[at(one, axis)] + shift for one, _ in joined],
            [spread.median for _, spread in joined],
            color=colour, linewidth=1.5, label="_",
        )  # fmt: skip
        places = [scale.places[at(one, axis)] + shift for one, _ in known]
        middles = [spread.median for _, spread in known]
        reach = [
            [m - s.low for m, (_, s) in zip(middles, known, strict=True)],
            [s.high - m for m, (_, s) in zip(middles, known, strict=True)],
        ]
        axes.errorbar(
            places, middles, yerr=reach, fmt=marker, color=colour, markersize=7, capsize=3, elinewidth=1.2,
            markeredgecolor="white", label=line.label or None, zorder=3,
        )  # fmt: skip
        _draw_seeds(axes, line, axis, scale, shift, run, colour)
        for one in line.points:
            if point(one) is None and (said := _without(one)):
                place = scale.places[at(one, axis)] + shift
                axes.plot(
                    [place],
                    [0.97],
                    "x",
                    color=colour,
                    markersize=8,
                    transform=axes.get_xaxis_transform(),
                    clip_on=False,
                )
                crosses.setdefault(scale.places[at(one, axis)], []).append(said)
    for place, reasons in crosses.items():
        text = axes.text(place, 0.94, "\n".join(dict.fromkeys(reasons)), transform=axes.get_xaxis_transform())
        text.set(ha="center", va="top", fontsize=8, color=INK)
    _dress(axes, axis, scale)
    if zero:
        from_zero(axes)


def from_zero(axes: Axes, also: Spread | None = None) -> None:
    """From nothing to the highest, and to another figure that is to be seen."""
    top = max(axes.dataLim.y1, 0.0 if also is None else also.median)
    axes.set_ylim(0, 1.06 * top if top > 0 else 1.0)


def _without(one: PointFigures) -> str:
    """Why a point that was run has no figure."""
    if any(run.result.state == "diverged" for run in one.runs):
        return "diverged"
    return f"{one.reached} of {len(one.runs)}" if one.censored else ""


def _draw_seeds(
    axes: Axes, line: PlotLine, axis: Axis, scale: AxisScale, shift: float, run: OfRun, colour: str
) -> None:
    dots = [
        (scale.places[at(one, axis)] + shift, height)
        for one in line.points
        for each in one.runs
        if format.finite(height := run(each)) and height is not None
    ]
    axes.plot(
        [x for x, _ in dots], [y for _, y in dots], "o", color=colour, alpha=0.45, markersize=3.5, zorder=2, label="_"
    )


def _dress(axes: Axes, axis: Axis, scale: AxisScale) -> None:
    axes.set_xticks([scale.places[choice.label] for choice in axis.choices], [choice.label for choice in axis.choices])
    if sum(len(choice.label) for choice in axis.choices) > 60:
        axes.tick_params(axis="x", labelrotation=20)
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
    low, high = min(scale.places.values()), max(scale.places.values())
    axes.set_xlim(low - 0.5 * scale.step, high + 0.5 * scale.step)
    axes.set_xlabel(axis.short)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        for text in axes.legend(frameon=False, fontsize=8).get_texts():
            text.set_parse_math(False)


def framed(of: StudyFigures, what: str, wide: bool = False) -> Figure:
    figure = canvas(4.4, 11.0) if wide else canvas(5.4, 9.0)
    emulated = f" ({_emulated(of)})" if of.emulated else ""
    title = textwrap.wrap(
        format.clean(f"{of.sweep.study.name}: {what[:1].lower()}{what[1:]}{emulated}"), 105 if wide else 85
    )
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=11, weight="bold", parse_math=False)
    if of.emulated:
        below = textwrap.wrap(format.clean(f"Not real: {'; '.join(of.emulated)}."), 170 if wide else 140)
        figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=8, color=INK, parse_math=False)
    return figure


def _emulated(of: StudyFigures) -> str:
    computing = any(one.startswith("emulated compute") for one in of.emulated)
    return "emulated compute" if computing else "emulated stragglers"


def png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def ideal(axes: Axes, of: StudyFigures, axis: Axis) -> None:
    """Where every worker would bring as much as the serial run, and how many cores there are for them."""
    if axis.name != "workers":
        return
    scale = AxisScale.of(axis)
    numbers = [choice for choice in axis.choices if choice.number is not None]
    top = axes.get_ylim()[1]
    places = [scale.places[choice.label] for choice in numbers]
    axes.plot(
        places,
        [choice.number or 0.0 for choice in numbers],
        color="#999999",
        linewidth=1.2,
        linestyle=":",
        label="ideal",
    )
    axes.set_ylim(0, max(1.2 * top, 2.0))
    if of.cores is not None and (place := scale.place(float(of.cores))) is not None:
        axes.axvline(place, color="#999999", linewidth=1.0)
        text = axes.text(
            place, 0.98, f" {of.cores} {'core' if of.cores == 1 else 'cores'}", transform=axes.get_xaxis_transform()
        )
        text.set(va="top", ha="left", fontsize=8, color=INK)
