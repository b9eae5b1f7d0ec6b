"""Pictures of a sweep, each of its figures alone.

    time        seconds to the target (or the last test loss) along an axis
    curves      test and train loss against seconds
    speedup     against the best serial run, with rows a second and rows to the target beside it
    waiting     the share of waiting, and staleness
    heat        where there are two axes of numbers: all of it at once

Every seed is a dot, a line goes through the medians, a bar from the lowest to the highest. A point that not all seeds reached
is a cross at the upper edge with how many did, never a height. Without pyplot, as in ``views.plots``.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.files import replace_file
from shoal.sweeping.curves import draw_curves
from shoal.sweeping.figures import Figures, PointFigures, RunFigures, Spread
from shoal.sweeping.grid import Axis
from shoal.sweeping.heat import can_heat, draw_heat
from shoal.sweeping.lines import Line, Scale, at, lines_of, measure, x_axis
from shoal.views import words
from shoal.views.drawing import INK, canvas, svg
from shoal.views.sections import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#007A5A", "#A0447C", "#56B4E9", "#E69F00", "#444444", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # nothing is said by colour alone
APART = 0.06  # of a step along the axis, between lines, so that their bars do not hide each other

OfPoint = Callable[[PointFigures], Spread | None]
OfRun = Callable[[RunFigures], float | None]


def pictures(of: Figures) -> list[Picture]:
    """All that there is something to draw for."""
    made = [_time(of), _speedup(of), _waiting(of), _heat(of), _curves(of)]
    found = []
    for one in made:
        if one is not None:
            name, figure, caption = one
            found.append(Picture(name, svg(figure), caption))
    return found


def write_pictures(of: Figures, folder: Path) -> list[Path]:
    """Each as SVG and PNG; one that there is nothing to draw for any more goes."""
    written = []
    for name, draw in (
        ("time", _time),
        ("speedup", _speedup),
        ("waiting", _waiting),
        ("heat", _heat),
        ("curves", _curves),
    ):
        one = draw(of)
        for suffix in ("svg", "png"):
            path = folder / f"{name}.{suffix}"
            if one is None:
                path.unlink(missing_ok=True)
                continue
            replace_file(path, svg(one[1]) if suffix == "svg" else _png(one[1]))
            written.append(path)
    return written


Drawn = tuple[str, "Figure", str] | None


def _time(of: Figures) -> Drawn:
    axis = x_axis(of)
    if axis is None or not any(one.done for one in of.shown):
        return None
    what = _goal(of) if of.has_target else "last test loss"
    figure = _figure(of, what)
    axes = figure.subplots()
    each: OfRun = (lambda run: run.time) if of.has_target else (lambda run: run.last_loss)
    _draw(axes, of, axis, lambda one: measure(one, of.has_target), each, zero=of.has_target)
    axes.set_ylabel("seconds to the target" if of.has_target else "last test loss")
    if of.best_serial is not None and of.best_serial.time is not None and of.points:
        alone = of.best_serial.time.median
        seen = axes.get_ylim()[0] <= alone <= axes.get_ylim()[1]
        label = f"best serial run: {words.duration(alone)}{'' if seen else ', above'}"
        axes.axhline(alone, color=INK, linestyle="--", linewidth=1.0, label=label)
    _legend(axes)
    return "time", figure, f"{what} over {axis.short}: medians, every seed a dot, bars from the lowest to the highest."


def _goal(of: Figures) -> str:
    target = of.sweep.study.target
    assert target is not None
    return f"Seconds until the test loss is {words.loss(target.loss) if target.loss is not None else target.words}"


def _speedup(of: Figures) -> Drawn:
    axis, serial = x_axis(of), of.best_serial
    if axis is None or serial is None or serial.time is None or not any(one.speedup is not None for one in of.points):
        return None
    figure = _figure(of, "Speedup over the best serial run", wide=True)
    left, middle, right = figure.subplots(1, 3)
    _draw(left, of, axis, lambda one: one.speedup, lambda run: run.speedup)
    left.set_ylabel("times as fast as the best serial run")
    left.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    _from_zero(left)
    _ideal(left, of, axis)
    _draw(middle, of, axis, lambda one: one.rate, lambda run: run.rate)
    middle.set_ylabel("rows a second, up to the target")
    _draw(right, of, axis, lambda one: one.rows, lambda run: run.rows)
    right.set_ylabel("rows to the target")
    for axes, spread in ((middle, serial.rate), (right, serial.rows)):
        if spread is not None:
            axes.axhline(spread.median, color=INK, linewidth=0.8, linestyle="--", label="best serial run")
        _from_zero(axes)
    _legend(left)
    caption = "Speedup in time to the target, each seed against the serial run with that seed; rows a second times what is learned from a row explains it. Dashed: the best serial run."
    return "speedup", figure, caption


def _ideal(axes: Axes, of: Figures, axis: Axis) -> None:
    """Where every worker would bring as much as the serial run, and how many cores there are for them."""
    if axis.name != "workers":
        return
    scale = Scale.of(axis)
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


def _waiting(of: Figures) -> Drawn:
    axis = x_axis(of)
    if axis is None:
        return None
    panels: list[tuple[str, OfPoint, OfRun]] = []
    if any(one.waiting is not None and one.waiting.high > 0 for one in of.points):
        percent: OfPoint = lambda one: None if one.waiting is None else _scaled(one.waiting, 100.0)  # noqa: E731
        panels.append(("share of workers' time spent waiting, %", percent, lambda run: _percent(run.waiting)))
    if any(one.stale_mean is not None and one.stale_mean.high > 0 for one in of.points):
        panels.append(
            (
                "staleness: pushes between a pull and its push, mean",
                lambda one: one.stale_mean,
                lambda run: run.stale_mean,
            )
        )
    if not panels:
        return None
    figure = _figure(of, "Waiting and staleness", wide=len(panels) > 1)
    for (label, point, run), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        _draw(axes, of, axis, point, run, zero=True)
        axes.set_ylabel(label)
    _legend(figure.axes[0])
    return (
        "waiting",
        figure,
        f"The share of waiting and the staleness of pushes over {axis.short}: what one buys, the other pays.",
    )


def _heat(of: Figures) -> Drawn:
    if not can_heat(of):
        return None
    figure = _figure(of, _goal(of) if of.has_target else "last test loss")
    return "heat", figure, draw_heat(figure, of)


def _curves(of: Figures) -> Drawn:
    if not any(one.done for one in of.shown):
        return None
    figure = _figure(of, "Losses over time", wide=True)
    return "curves", figure, draw_curves(figure, of, COLOURS)


# ---------------------------------------------------------------- how lines are drawn


def _draw(axes: Axes, of: Figures, axis: Axis, point: OfPoint, run: OfRun, zero: bool = False) -> None:
    """A line through the medians of the numbers, marks for all else; every seed a dot; what has no figure a cross."""
    scale, lines = Scale.of(axis), lines_of(of)
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
        _from_zero(axes)


def _from_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.06 * axes.dataLim.y1 if axes.dataLim.y1 > 0 else 1.0)


def _without(one: PointFigures) -> str:
    """Why a point that was run has no figure."""
    if any(run.result.state == "diverged" for run in one.runs):
        return "diverged"
    return f"{one.reached} of {len(one.runs)}" if one.censored else ""


def _draw_seeds(axes: Axes, line: Line, axis: Axis, scale: Scale, shift: float, run: OfRun, colour: str) -> None:
    dots = [
        (scale.places[at(one, axis)] + shift, height)
        for one in line.points
        for each in one.runs
        if words.finite(height := run(each)) and height is not None
    ]
    axes.plot(
        [x for x, _ in dots], [y for _, y in dots], "o", color=colour, alpha=0.45, markersize=3.5, zorder=2, label="_"
    )


def _dress(axes: Axes, axis: Axis, scale: Scale) -> None:
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


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        for text in axes.legend(frameon=False, fontsize=8).get_texts():
            text.set_parse_math(False)


def _figure(of: Figures, what: str, wide: bool = False) -> Figure:
    figure = canvas(4.4, 11.0) if wide else canvas(5.4, 9.0)
    emulated = f" ({_emulated(of)})" if of.emulated else ""
    title = textwrap.wrap(
        words.clean(f"{of.sweep.study.name}: {what[:1].lower()}{what[1:]}{emulated}"), 105 if wide else 85
    )
    figure.suptitle("\n".join(title), x=0.01, ha="left", fontsize=11, weight="bold", parse_math=False)
    if of.emulated:
        below = textwrap.wrap(words.clean(f"Not real: {'; '.join(of.emulated)}."), 170 if wide else 140)
        figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=8, color=INK, parse_math=False)
    return figure


def _emulated(of: Figures) -> str:
    computing = any(one.startswith("emulated compute") for one in of.emulated)
    return "emulated compute" if computing else "emulated stragglers"


def _scaled(spread: Spread, by: float) -> Spread:
    return Spread(spread.median * by, spread.low * by, spread.high * by)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()
