"""Pictures of a sweep, each of its figures alone.

    time        seconds to the target (or the last test loss) along an axis
    curves      test and train loss against seconds
    speedup     against the best serial run, with rows a second and rows to the target beside it
    work        where all learned from as many rows: seconds, how much sooner than the best serial run, CPU seconds
    accuracy    at the end
    waiting     the share of waiting, and staleness
    consensus   where everybody has a model: how far they are from their mean
    heat        where there are two axes of numbers: all of it at once

How lines are drawn, ``drawing`` knows.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.events import Evaluated, Progress
from shoal.files import replace_file
from shoal.sweep.figures import (
    AxisScale,
    PlotLine,
    PointFigures,
    RunFigures,
    Spread,
    StudyFigures,
    at,
    lines_of,
    measure,
    moment,
    x_axis,
)
from shoal.sweep.findings import seconds
from shoal.sweep.grid import Axis
from shoal.views import format
from shoal.views.axes import INK, canvas, svg
from shoal.views.page import PictureSection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# ---------------------------------------------------------------- lines over an axis


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


# ---------------------------------------------------------------- losses over time


MOMENTS = 300  # of a median line
FEW = 8  # points that colours of their own can tell apart
WORSE = 2  # times as far as from the first loss to the lowest: so much worse is still shown
PANELS = 4  # beside each other
Track = tuple[list[float], list[float]]


def draw_curves(figure: Figure, of: StudyFigures, colours: Sequence[str]) -> str:
    """Test losses, and train losses; what is shown, in words.

    A few points share a panel; where there are more, each line has one of its own, darker to lighter along the axis.
    """
    lines = [[one for one in line.points if one.done] for line in lines_of(of)]
    groups = [points for points in lines if points]
    if sum(map(len, groups)) < FEW or not 2 <= len(groups) <= PANELS:
        groups = [[one for points in groups for one in points]]
    tracks = {"test loss": _tested, "train loss": _trained}
    alone = len(groups) == 1
    if not alone:
        figure.set_figheight(6.4)
    panels = figure.subplots(*((1, 2) if alone else (2, len(groups))), squeeze=False, sharex=not alone)
    for number, (what, track) in enumerate(tracks.items()):
        row = [panels[0, number]] if alone else list(panels[number])
        for axes, points in zip(row, groups, strict=True):
            _panel(axes, of, points, track, colours)
            axes.set_ylabel(what)
        for axes in row:
            _limit(axes, [one for points in groups for one in points] + _serial(of), track, of.sweep.study.log)
    drawn = [axes for axes in panels[0] if axes.get_legend_handles_labels()[1]]
    where = "best" if of.sweep.study.log else "upper right"
    for axes in drawn[-1:] if alone else drawn:
        for text in axes.legend(frameon=False, fontsize=7, loc=where).get_texts():
            text.set_parse_math(False)
    for axes in panels[-1]:
        axes.set_xlabel("seconds since training began")
    dotted = " Dotted: the target." if of.has_target else ""
    return f"Test and train loss against seconds: medians over seeds, thin lines for the seeds.{dotted}"


def draw_distance(figure: Figure, of: StudyFigures, colours: Sequence[str]) -> str:
    """How far models are from their mean against seconds, where everybody has one."""
    axes = figure.subplots()
    points = [one for one in of.points if one.distance is not None]
    for one, colour in zip(points, _shades(len(points), colours), strict=True):
        _draw_median(axes, one, [_apart(run) for run in one.runs], colour, "-")
    _logarithmic(axes)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(ylabel="distance from the mean", xlabel="seconds since training began")
    if axes.get_legend_handles_labels()[1]:
        for text in axes.legend(frameon=False, fontsize=7).get_texts():
            text.set_parse_math(False)
    return "Root mean square distance of everybody's weights from the mean of all, against seconds; 0 is not drawn."


def _apart(run: RunFigures) -> Track:
    judged = [e for e in run.result.events if isinstance(e, Evaluated) and e.spread.get("distance", 0.0) > 0]
    return [moment(event) for event in judged], [event.spread["distance"] for event in judged]


def _panel(
    axes: Axes,
    of: StudyFigures,
    points: list[PointFigures],
    track: Callable[[RunFigures], Track],
    colours: Sequence[str],
) -> None:
    for one, colour in zip([*points, *_serial(of)], [*_shades(len(points), colours), "#444444"], strict=False):
        style = "--" if one.point.serial and of.points else "-"
        _draw_median(axes, one, [track(run) for run in one.runs], colour, style)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if track is _tested:
        for goal in dict.fromkeys(run.target for one in points for run in one.runs if run.target is not None):
            axes.axhline(goal, color="#999999", linewidth=0.9, linestyle=":")


def _serial(of: StudyFigures) -> list[PointFigures]:
    """What all are held against, if there is something to be."""
    return [of.best_serial] if of.best_serial is not None and of.points else []


def _draw_median(axes: Axes, one: PointFigures, tracks: list[Track], colour: Any, style: str) -> None:
    import numpy as np

    tracks = [track for track in tracks if len(track[0]) > 1]
    if not tracks:
        return
    if len(tracks) > 1:
        for x, y in tracks:
            axes.plot(x, y, color=colour, linewidth=0.5, alpha=0.45, label="_")
    first, last = max(x[0] for x, _ in tracks), min(x[-1] for x, _ in tracks)
    moments = np.linspace(first, last, MOMENTS) if len(tracks) > 1 else np.array(tracks[0][0])
    middle = np.median([np.interp(moments, x, y) for x, y in tracks], axis=0)
    axes.plot(moments, middle, style, color=colour, linewidth=1.6, label=one.point.title)


def _tested(run: RunFigures) -> Track:
    judged = [event for event in run.result.events if isinstance(event, Evaluated) and format.finite(event.test_loss)]
    return [moment(event) for event in judged], [event.test_loss for event in judged]


def _trained(run: RunFigures) -> Track:
    kinds = [
        [e for e in run.result.events if isinstance(e, kind) and format.finite(e.train_loss)]
        for kind in (Progress, Evaluated)
    ]
    told = kinds[0] if len(kinds[0]) > 1 else kinds[1]
    return [event.seconds for event in told], [
        float(event.train_loss) for event in told if event.train_loss is not None
    ]


def _limit(axes: Axes, points: Sequence[PointFigures], track: Callable[[RunFigures], Track], log: bool) -> None:
    """The first losses are seen, and those that got worse than these; what ran away far above them is not."""
    heights = [track(run)[1] for one in points for run in one.runs]
    if any(heights):
        low, high = min(min(one) for one in heights if one), max(one[0] for one in heights if one)
        room, most = max(high - low, 0.01 * abs(low)), max(max(one) for one in heights if one)
        if log and low > 0:
            high = max(high, min(most, high * (high / low) ** WORSE))
            axes.set_ylim(low / (high / low) ** 0.05, high * (high / low) ** 0.1)
            _logarithmic(axes)
            return
        high = max(high, min(most, high + WORSE * room))
        axes.set_ylim(low - 0.05 * room, high + 0.1 * room)


def _logarithmic(axes: Axes) -> None:
    """With numbers as one would write them: 0.5, not 5 x 10^-1."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_yscale("log")
    said = FuncFormatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(said)
    low, high = axes.get_ylim()
    axes.yaxis.set_minor_formatter(said if high < 20 * low else NullFormatter())


def _shades(many: int, colours: Sequence[str]) -> list[Any]:
    if many <= min(FEW, len(colours)):
        return list(colours[:many])
    from matplotlib import colormaps

    return [colormaps["viridis"](0.95 * number / (many - 1)) for number in range(many)]


# ---------------------------------------------------------------- heat map of two numeric axes


CELLS = 20  # cells along one side: more cannot be read


def can_heat(of: StudyFigures) -> bool:
    """Two axes, both of three or more numbers, and something to show."""
    axes = _grid_axes(of)
    return (
        len(axes) == 2
        and all(
            3 <= len(axis.choices) <= CELLS and all(one.number is not None for one in axis.choices) for axis in axes
        )
        and any(measure(one, of.has_target) is not None for one in of.shown)
    )


def draw_heat(figure: Figure, of: StudyFigures) -> str:
    """Draw it; what it shows, in words."""
    import numpy as np

    across, up = sorted(_grid_axes(of), key=lambda axis: axis.name != of.sweep.study.x)
    axes = figure.subplots()
    grid = np.full((len(up.choices), len(across.choices)), np.nan)
    columns, rows = ([choice.label for choice in axis.choices] for axis in (across, up))
    for one in of.shown:
        spread = measure(one, of.has_target)
        if spread is not None:
            grid[rows.index(at(one, up)), columns.index(at(one, across))] = spread.median
    image = axes.imshow(grid, origin="lower", cmap="viridis_r", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for one in of.shown:
        row, column = rows.index(at(one, up)), columns.index(at(one, across))
        dark = not np.isnan(grid[row, column]) and grid[row, column] > middle
        axes.text(
            column,
            row,
            _cell(one, of.has_target),
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black",
        )
        if one is of.best:
            frame = axes.plot([column - 0.47, column + 0.47, column + 0.47, column - 0.47, column - 0.47],
                              [row - 0.47, row - 0.47, row + 0.47, row + 0.47, row - 0.47])  # fmt: skip
            frame[0].set(color="#D55E00", linewidth=3)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(across.short)
    axes.set_ylabel(up.short)
    what = "seconds to the target" if of.has_target else "last test loss"
    figure.colorbar(image, ax=axes, label=f"{what}, median over seeds")
    return f"{what} over {across.short} and {up.short}: medians; the frame marks the best; a cell without a colour has no figure."


def _cell(one: PointFigures, has_target: bool) -> str:
    spread = measure(one, has_target)
    if spread is not None:
        return seconds(spread.median) if has_target else format.loss(spread.median)
    if any(run.result.state == "diverged" for run in one.runs):
        return "diverged"
    return f"{one.reached} of {len(one.runs)}" if one.censored else "-"


def _grid_axes(of: StudyFigures) -> list[Axis]:
    return of.sweep.study.axes or of.sweep.study.serial_axes


Drawn = tuple[str, "Figure", str] | None
NEAR = 0.03  # below the highest accuracy: what is drawn larger


def pictures(of: StudyFigures) -> list[PictureSection]:
    """All that there is something to draw for."""
    found = []
    for picture in _PICTURES.values():
        one = picture(of)
        if one is not None:
            name, figure, caption = one
            found.append(PictureSection(name, svg(figure), caption))
    return found


def write_pictures(of: StudyFigures, folder: Path) -> list[Path]:
    """Each as SVG and PNG; one that there is nothing to draw for any more goes."""
    written = []
    for name, picture in _PICTURES.items():
        one = picture(of)
        for suffix in ("svg", "png"):
            path = folder / f"{name}.{suffix}"
            if one is None:
                path.unlink(missing_ok=True)
                continue
            replace_file(path, svg(one[1]) if suffix == "svg" else png(one[1]))
            written.append(path)
    return written


def _time(of: StudyFigures) -> Drawn:
    axis = x_axis(of)
    if axis is None or not any(one.done for one in of.shown):
        return None
    what = _goal(of) if of.has_target else "last test loss"
    figure = framed(of, what)
    axes = figure.subplots()
    each: OfRun = (lambda run: run.time) if of.has_target else (lambda run: run.last_loss)
    draw(axes, of, axis, lambda one: measure(one, of.has_target), each, zero=of.has_target)
    axes.set_ylabel("seconds to the target" if of.has_target else "last test loss")
    if of.best_serial is not None and of.best_serial.time is not None and of.points:
        alone = of.best_serial.time.median
        seen = axes.get_ylim()[0] <= alone <= axes.get_ylim()[1]
        label = f"best serial run: {format.duration(alone)}{'' if seen else ', above'}"
        axes.axhline(alone, color=INK, linestyle="--", linewidth=1.0, label=label)
    legend(axes)
    return "time", figure, f"{what} over {axis.short}: medians, every seed a dot, bars from the lowest to the highest."


def _goal(of: StudyFigures) -> str:
    target = of.sweep.study.target
    assert target is not None
    return f"Seconds until the test loss is {format.loss(target.loss) if target.loss is not None else target.words}"


def _speedup(of: StudyFigures) -> Drawn:
    axis, serial = x_axis(of), of.best_serial
    if axis is None or serial is None or serial.time is None or not any(one.speedup is not None for one in of.points):
        return None
    figure = framed(of, "Speedup over the best serial run", wide=True)
    left, middle, right = figure.subplots(1, 3)
    draw(left, of, axis, lambda one: one.speedup, lambda run: run.speedup)
    left.set_ylabel("times as fast as the best serial run")
    left.axhline(1.0, color=INK, linewidth=0.8, linestyle="--")
    from_zero(left)
    ideal(left, of, axis)
    draw(middle, of, axis, lambda one: one.rate, lambda run: run.rate)
    middle.set_ylabel("rows a second, up to the target")
    draw(right, of, axis, lambda one: one.rows, lambda run: run.rows)
    right.set_ylabel("rows to the target")
    for axes, spread in ((middle, serial.rate), (right, serial.rows)):
        if spread is not None:
            axes.axhline(spread.median, color=INK, linewidth=0.8, linestyle="--", label="best serial run")
        from_zero(axes)
    legend(left)
    caption = "Speedup in time to the target, each seed against the serial run with that seed; rows a second times what is learned from a row explains it. Dashed: the best serial run."
    return "speedup", figure, caption


def _work(of: StudyFigures) -> Drawn:
    """The same rows for all: what the clock says, and what it cost (S2-08, S2-13)."""
    axis = x_axis(of)
    if axis is None or not of.same_work or len({run.job.workers for run in of.sweep.study.runs}) < 2:
        return None
    alone = of.best_serial
    panels: list[tuple[str, OfPoint, OfRun, Spread | None]] = []
    if any(one.sooner is not None for one in of.points):
        label = "times as fast as the best serial run"
        panels.append((label, lambda one: one.sooner, lambda run: run.sooner, Spread(1.0, 1.0, 1.0)))
    panels.append(
        ("seconds", lambda one: one.seconds, lambda run: run.computing, None if alone is None else alone.seconds)
    )
    if any(one.cpu is not None for one in of.points):
        cpu = None if alone is None else alone.cpu
        panels.append(("CPU seconds of all processes", lambda one: one.cpu, lambda run: run.cpu, cpu))
    figure = framed(of, "The same rows for all", wide=True)
    for (label, point, run, serial), axes in zip(
        panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True
    ):
        draw(axes, of, axis, point, run)
        axes.set_ylabel(label)
        if serial is not None:
            axes.axhline(serial.median, color=INK, linewidth=0.8, linestyle="--")
        from_zero(axes, serial)
        if "fast" in label:
            ideal(axes, of, axis)
    legend(figure.axes[0])
    text = (
        "All runs learn from as many rows, and the clock stands still while a model is judged where there is no "
        "coordinator. CPU seconds are of all processes of a run, starting and judging included. Dashed: the best serial run."
    )
    return "work", figure, text


def _accuracy(of: StudyFigures) -> Drawn:
    """All of it, and beside that the upper end."""
    axis = x_axis(of)
    known = [one.accuracy for one in of.shown if one.accuracy is not None]
    if axis is None or not known:
        return None
    top, low = max(one.high for one in known), min(one.low for one in known)
    both = top - low > 2 * NEAR
    figure = framed(of, "Accuracy at the end", wide=both)
    for number, axes in enumerate(figure.subplots(1, 1 + both, squeeze=False)[0]):
        draw(axes, of, axis, lambda one: one.accuracy, lambda run: run.accuracy)
        axes.set_ylabel("accuracy on held-out rows" if not number else "the same, near the top")
        if of.points and of.best_serial is not None and of.best_serial.accuracy is not None:
            alone = of.best_serial.accuracy.median
            label = f"best serial run: {alone:.4f}"
            axes.axhline(alone, color=INK, linewidth=0.8, linestyle="--", label=label)
        if both and not number:
            axes.set_ylim(0, 1)
        elif both:
            axes.set_ylim(top - NEAR, top + 0.1 * NEAR)
    legend(figure.axes[0])
    near = f" On the right what is within {100 * NEAR:g} points of the highest." if both else ""
    return "accuracy", figure, f"Accuracy of the last evaluation over {axis.short}.{near}"


def _waiting(of: StudyFigures) -> Drawn:
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
    figure = framed(of, "Waiting and staleness", wide=len(panels) > 1)
    for (label, point, run), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        draw(axes, of, axis, point, run, zero=True)
        axes.set_ylabel(label)
    legend(figure.axes[0])
    return (
        "waiting",
        figure,
        f"The share of waiting and the staleness of pushes over {axis.short}: what one buys, the other pays.",
    )


def _heat(of: StudyFigures) -> Drawn:
    if not can_heat(of):
        return None
    figure = framed(of, _goal(of) if of.has_target else "last test loss")
    return "heat", figure, draw_heat(figure, of)


def _curves(of: StudyFigures) -> Drawn:
    if not any(one.done for one in of.shown):
        return None
    figure = framed(of, "Losses over time", wide=True)
    return "curves", figure, draw_curves(figure, of, COLOURS)


def _consensus(of: StudyFigures) -> Drawn:
    if not any(one.distance is not None for one in of.points):
        return None
    figure = framed(of, "Distance of the models from their mean")
    return "consensus", figure, draw_distance(figure, of, COLOURS)


def _scaled(spread: Spread, by: float) -> Spread:
    return Spread(spread.median * by, spread.low * by, spread.high * by)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


_PICTURES = {
    "time": _time,
    "speedup": _speedup,
    "work": _work,
    "accuracy": _accuracy,
    "waiting": _waiting,
    "heat": _heat,
    "curves": _curves,
    "consensus": _consensus,
}
