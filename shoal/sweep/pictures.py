"""Pictures of a sweep, drawn from its figures alone. Every title is a sentence.

    time        seconds to the target (or a test loss) along an axis
    curves      test and train loss over seconds
    speedup     against the best serial run, with rows a second and rows to the target beside it
    work        where all learned from as many rows: seconds, speedup, CPU seconds
    accuracy    at the end
    waiting     share of waiting, and staleness
    consensus   where every worker has a model: their distance from the mean
    heat        two numeric axes at once

A dot is a seed, a line goes through the medians, a bar reaches from the lowest to the highest. A
point without a figure is a cross at the upper edge with the reason, never a height.
"""

from __future__ import annotations

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
    moment,
    x_axis,
)
from shoal.sweep.findings import best_sentence, extremes
from shoal.sweep.grid import Axis
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, MARKERS, SERIES
from shoal.views.page import PictureSection
from shoal.views.run_record import emulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawn = tuple["Figure", str] | None  # with a caption
OfPoint = Callable[[PointFigures], Spread | None]
OfRun = Callable[[RunFigures], float | None]
Track = tuple[list[float], list[float]]

APART = 0.06  # of a step along the axis, between lines, so that their bars do not hide each other
NEAR = 0.03  # below the highest accuracy: the enlarged range
MOMENTS = 300  # of a median line
WORSE = 2  # times the range of losses that is shown above the first
PANELS = 4  # beside each other
CELLS = 20  # along one side of a heat map: more cannot be read
SECONDS = ("per_example", "pause", "pause_every", "stall", "stall_at", "link", "arrive", "preempt", "away")


def pictures(of: StudyFigures) -> list[PictureSection]:
    """All pictures that have data."""
    found = [(name, picture(of)) for name, picture in _PICTURES.items()]
    return [PictureSection(name, draw.svg(one[0]), one[1]) for name, one in found if one is not None]


def write_pictures(of: StudyFigures, folder: Path) -> list[Path]:
    """Write each as SVG and PNG; remove old pictures without data."""
    written = []
    for name, picture in _PICTURES.items():
        one = picture(of)
        for suffix, encode in (("svg", draw.svg), ("png", draw.png)):
            path = folder / f"{name}.{suffix}"
            if one is None:
                path.unlink(missing_ok=True)
                continue
            replace_file(path, encode(one[0]))
            written.append(path)
    return written


def framed(of: StudyFigures, title: str, wide: bool = False) -> Figure:
    """A figure with a sentence above, and below the study, its question and what is emulated."""
    figure = draw.canvas(4.4, 11.0) if wide else draw.canvas(5.4, 9.0)
    study = of.sweep.study
    below = [f"Study {study.name}{f': {study.what}' if study.what else '.'}", *map(emulation, of.emulated)]
    marked = f" ({_emulated(of)})" if of.emulated else ""
    draw.headline(figure, f"{title}{marked}", " ".join(below), size=11)
    return figure


def _emulated(of: StudyFigures) -> str:
    computing = any(one.startswith("emulated compute") for one in of.emulated)
    return "emulated compute" if computing else "emulated stragglers"


def label(axis: Axis) -> str:
    """The name of an axis with its unit, where it has one."""
    return f"{axis.short}, seconds" if axis.name.removeprefix("emulate.") in SECONDS else axis.short


# ---------------------------------------------------------------- lines over an axis


def draw_lines(axes: Axes, of: StudyFigures, axis: Axis, point: OfPoint, run: OfRun, zero: bool = False) -> None:
    """A line through the medians of numbers, marks for all else, a dot for each seed."""
    scale, lines = AxisScale.of(axis), lines_of(of)
    crosses: dict[float, list[str]] = {}
    for number, (line, color) in enumerate(zip(lines, draw.colors(len(lines)), strict=True)):
        shift = APART * scale.step * (number - (len(lines) - 1) / 2)
        known = [(one, spread) for one in line.points if (spread := point(one)) is not None]
        joined = [(one, spread) for one, spread in known if one.point.choices[axis.name].number is not None]
        places = [scale.places[at(one, axis)] + shift for one, _ in joined]
        axes.plot(places, [spread.median for _, spread in joined], color=color, linewidth=1.5, label="_")
        places = [scale.places[at(one, axis)] + shift for one, _ in known]
        middles = [spread.median for _, spread in known]
        reach = [
            [middle - spread.low for middle, (_, spread) in zip(middles, known, strict=True)],
            [spread.high - middle for middle, (_, spread) in zip(middles, known, strict=True)],
        ]
        style: dict[str, Any] = {"fmt": MARKERS[number % len(MARKERS)], "markersize": 7, "markeredgecolor": "white"}
        style |= {"capsize": 3, "elinewidth": 1.2, "zorder": 3, "label": line.label or None}
        axes.errorbar(places, middles, yerr=reach, color=color, **style)
        _draw_seeds(axes, line, axis, scale, shift, run, color)
        for one in line.points:
            if point(one) is None and (reason := _without(one)):
                place = scale.places[at(one, axis)]
                edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
                axes.plot([place + shift], [0.97], "x", color=color, markersize=8, **edge)
                crosses.setdefault(place, []).append(reason)
    for place, reasons in crosses.items():
        text = axes.text(place, 0.94, "\n".join(dict.fromkeys(reasons)), transform=axes.get_xaxis_transform())
        text.set(ha="center", va="top", fontsize=8, color=INK)
    draw.column_names(axes, [scale.places[one.label] for one in axis.choices], [one.label for one in axis.choices])
    low, high = min(scale.places.values()), max(scale.places.values())
    axes.set_xlim(low - 0.5 * scale.step, high + 0.5 * scale.step)
    axes.set_xlabel(label(axis))
    draw.numbers(axes.yaxis)
    draw.tidy(axes)
    if zero:
        draw.from_zero(axes)


def _without(one: PointFigures) -> str:
    """Why a point that was run has no figure."""
    if any(run.result.state == "diverged" for run in one.runs):
        return "diverged"
    return f"{one.reached} of {len(one.runs)}" if one.censored else ""


def _draw_seeds(axes: Axes, line: PlotLine, axis: Axis, scale: AxisScale, shift: float, run: OfRun, color: Any) -> None:
    dots = [
        (scale.places[at(one, axis)] + shift, height)
        for one in line.points
        for each in one.runs
        if format.finite(height := run(each))
    ]
    x, y = [x for x, _ in dots], [y or 0.0 for _, y in dots]
    axes.plot(x, y, "o", color=color, alpha=0.45, markersize=3.5, zorder=2, label="_")


def _speedups(axes: Axes, of: StudyFigures, axis: Axis, point: OfPoint, run: OfRun) -> None:
    """The speedup over the serial run, log-log over workers, with the ideal."""
    draw_lines(axes, of, axis, point, run)
    draw.y_label(axes, "times as fast as the best serial run")
    heights = [value for one in of.points if (spread := point(one)) is not None for value in (spread.low, spread.high)]
    numbers = [choice for choice in axis.choices if choice.number]
    if axis.name != "workers" or len(numbers) < 2 or min(heights, default=0.0) <= 0:
        draw.from_zero(axes, 1.0)
        draw.reference(axes, 1.0, "best serial run")
        return
    scale = AxisScale.of(axis)
    most = max(choice.number or 0.0 for choice in numbers)
    places, ideal = [scale.places[one.label] for one in numbers], [one.number or 0.0 for one in numbers]
    axes.plot(places, ideal, color="#999999", linewidth=1.2, linestyle=":", label="ideal")
    draw.logarithmic(axes.yaxis, base=2)
    axes.set_ylim(0.8 * min(1.0, *heights), 1.25 * max(1.0, *heights, min(most, 2 * max(heights))))
    draw.reference(axes, 1.0, "best serial run")
    if of.cores is not None and (place := scale.place(float(of.cores))) is not None:
        axes.axvline(place, color="#999999", linewidth=1.0)
        text = axes.text(place, 0.02, f" {format.many(of.cores, 'core')}", transform=axes.get_xaxis_transform())
        text.set(va="bottom", ha="left", fontsize=8, color=INK)


def _time(of: StudyFigures) -> Drawn:
    axis = x_axis(of)
    if axis is None or not any(one.done for one in of.shown):
        return None
    figure = framed(of, best_sentence(of))
    axes = figure.subplots()
    draw_lines(axes, of, axis, of.measure, of.measure_run, zero=of.timed)
    draw.y_label(axes, of.measured)
    if not of.timed:
        heights = [value for one in of.shown if (spread := of.measure(one)) for value in (spread.low, spread.high)]
        draw.log_if_steep(axes.yaxis, heights)
    goal = of.sweep.study.target.loss if of.sweep.study.target is not None else None
    if of.timed and of.best_serial is not None and of.best_serial.time is not None and of.points:
        alone = of.best_serial.time.median
        if axes.get_ylim()[1] < alone < 3 * axes.get_ylim()[1]:
            draw.from_zero(axes, alone)
        if alone <= axes.get_ylim()[1]:
            draw.reference(axes, alone, f"best serial run: {format.duration(alone)}")
        else:
            axes.plot([], [], " ", label=f"best serial run: {format.duration(alone)}, above")
    elif not of.timed and goal is not None:
        draw.reference(axes, goal, f"target {format.loss(goal)}", ":")
    draw.legend(axes)
    what = of.measured[:1].upper() + of.measured[1:]
    return figure, f"{what} over {axis.short}: medians, every seed a dot, bars from the lowest to the highest."


def _speedup(of: StudyFigures) -> Drawn:
    axis, serial = x_axis(of), of.best_serial
    fast = [one for one in of.points if one.speedup is not None]
    if axis is None or serial is None or serial.time is None or not fast:
        return None
    figure = framed(of, f"At most {extremes(fast, lambda one: one.speedup, 'as the best serial run')}", wide=True)
    left, middle, right = figure.subplots(1, 3)
    _speedups(left, of, axis, lambda one: one.speedup, lambda run: run.speedup)
    draw_lines(middle, of, axis, lambda one: one.rate, lambda run: run.rate)
    draw.y_label(middle, "rows a second, up to the target")
    draw_lines(right, of, axis, lambda one: one.rows, lambda run: run.rows)
    draw.y_label(right, "rows to the target")
    for axes, spread in ((middle, serial.rate), (right, serial.rows)):
        draw.from_zero(axes, *([spread.median] if spread else []))
        if spread is not None:
            draw.reference(axes, spread.median, "best serial run")
    draw.legend(left)
    return figure, (
        "Speedup in time to the target, each seed against the serial run with that seed. Rows a second times "
        "what is learned from a row explains it."
    )


def _work(of: StudyFigures) -> Drawn:
    """Equal rows for all: wall time, speedup and CPU time."""
    axis = x_axis(of)
    if axis is None or not of.same_work or len({run.job.workers for run in of.sweep.study.runs}) < 2:
        return None
    alone, fast = of.best_serial, [one for one in of.points if one.sooner is not None]
    panels: list[tuple[str, OfPoint, OfRun, Spread | None]] = [
        ("seconds", lambda one: one.seconds, lambda run: run.computing, None if alone is None else alone.seconds)
    ]
    if any(one.cpu is not None for one in of.points):
        cpu = None if alone is None else alone.cpu
        panels.append(("CPU seconds of all processes", lambda one: one.cpu, lambda run: run.cpu, cpu))
    sentence = "All runs learn from as many rows"
    if fast:
        sentence += f": at most {extremes(fast, lambda one: one.sooner, 'as the best serial run')}"
    figure = framed(of, sentence, wide=True)
    shown = list(figure.subplots(1, len(panels) + bool(fast), squeeze=False)[0])
    if fast:
        _speedups(shown[0], of, axis, lambda one: one.sooner, lambda run: run.sooner)
    for (text, point, run, serial), axes in zip(panels, shown[bool(fast) :], strict=True):
        draw_lines(axes, of, axis, point, run)
        draw.y_label(axes, text)
        draw.from_zero(axes, *([serial.median] if serial else []))
        if serial is not None:
            draw.reference(axes, serial.median, "best serial run")
    draw.legend(shown[0])
    return figure, (
        "All runs learn from as many rows. Where there is no coordinator, the clock stands still while a model "
        "is judged. CPU seconds are of all processes of a run, starting and judging included."
    )


def _accuracy(of: StudyFigures) -> Drawn:
    """The accuracy, and beside it its upper end enlarged."""
    axis = x_axis(of)
    known = [(one, one.accuracy) for one in of.shown if one.accuracy is not None]
    if axis is None or not known:
        return None
    top, low = max(spread.high for _, spread in known), min(spread.low for _, spread in known)
    both = top - low > 2 * NEAR
    best, spread = max(known, key=lambda pair: pair[1].median)
    figure = framed(of, f"Accuracy at the end is highest with {best.point.title}: {spread.median:.4f}", wide=both)
    for number, axes in enumerate(figure.subplots(1, 1 + both, squeeze=False)[0]):
        draw_lines(axes, of, axis, lambda one: one.accuracy, lambda run: run.accuracy)
        draw.y_label(axes, "accuracy on held-out rows" if not number else "the same, near the top")
        if of.points and of.best_serial is not None and of.best_serial.accuracy is not None:
            alone = of.best_serial.accuracy.median
            draw.reference(axes, alone, f"best serial run: {alone:.4f}")
        if both:
            axes.set_ylim(*((top - NEAR, top + 0.1 * NEAR) if number else (0, 1)))
    draw.legend(figure.axes[0])
    near = f" On the right what is within {100 * NEAR:g} points of the highest." if both else ""
    return figure, f"Accuracy of the last evaluation over {axis.short}.{near}"


def _waiting(of: StudyFigures) -> Drawn:
    axis = x_axis(of)
    waits = [one for one in of.points if one.waiting is not None and one.waiting.high > 0]
    stale = [one for one in of.points if one.stale_mean is not None and one.stale_mean.high > 0]
    if axis is None or not (waits or stale):
        return None
    panels: list[tuple[str, OfPoint, OfRun]] = []
    said = []
    if waits:
        panels.append(("share of workers' time spent waiting", lambda one: one.waiting, lambda run: run.waiting))
        said.append(f"workers wait at most {_most(waits, lambda one: one.waiting, '{:.0%}')}")
    if stale:
        text = "mean staleness: pushes between a pull and its push"
        panels.append((text, lambda one: one.stale_mean, lambda run: run.stale_mean))
        said.append(f"mean staleness is at most {_most(stale, lambda one: one.stale_mean, '{:.3g}')}")
    sentence = "; ".join(said)
    figure = framed(of, sentence[:1].upper() + sentence[1:], wide=len(panels) > 1)
    for (text, point, run), axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        draw_lines(axes, of, axis, point, run, zero=True)
        draw.y_label(axes, text)
        if "waiting" in text:
            draw.percents(axes.yaxis)
    draw.legend(figure.axes[0])
    return figure, f"Share of waiting and staleness of pushes over {axis.short}: less of one costs more of the other."


def _most(points: Sequence[PointFigures], figure: OfPoint, how: str) -> str:
    spread, one = max(((figure(one), one) for one in points), key=lambda pair: pair[0].median if pair[0] else 0.0)
    return f"{how.format(spread.median if spread else 0.0)} ({one.point.title})"


# ---------------------------------------------------------------- losses over time


def _curves(of: StudyFigures) -> Drawn:
    """Test and train losses. Few points share a panel; of more, each line has its own."""
    if not any(one.done for one in of.shown):
        return None
    lines = [[one for one in line.points if one.done] for line in lines_of(of)]
    groups = [points for points in lines if points]
    if sum(map(len, groups)) < len(SERIES) or not 2 <= len(groups) <= PANELS:
        groups = [[one for points in groups for one in points]]
    alone = len(groups) == 1
    figure = framed(of, _lowest(of), wide=True)
    if not alone:
        figure.set_figheight(6.4)
    panels = figure.subplots(*((1, 2) if alone else (2, len(groups))), squeeze=False, sharex=not alone)
    everything = [one for points in groups for one in points] + _serial(of)
    for number, (what, track) in enumerate({"test loss": _tested, "train loss": _trained}.items()):
        row = [panels[0, number]] if alone else list(panels[number])
        for axes, points in zip(row, groups, strict=True):
            _draw_tracks(axes, of, points, track)
            axes.set_ylabel(what)
        for axes in row:
            _limit(axes, everything, track, of.sweep.study.log)
    for axes in panels[0][-1:] if alone else panels[0]:
        draw.legend(axes, fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("seconds since training began")
    return figure, "Test and train loss over seconds: medians over seeds, thin lines for the seeds."


def _lowest(of: StudyFigures) -> str:
    known = [(one, one.best_loss) for one in of.shown if one.best_loss is not None]
    if not known:
        return "Test and train loss over time"
    one, spread = min(known, key=lambda pair: pair[1].median)
    return f"Test loss fell lowest with {one.point.title}: {format.loss(spread.median)}"


def _consensus(of: StudyFigures) -> Drawn:
    """The distance of the workers' models from their mean over time."""
    points = [one for one in of.points if one.distance is not None]
    if not points:
        return None
    nearest = min(points, key=lambda one: one.distance.median if one.distance else 0.0)
    ends = f"{nearest.distance.median:.2g}" if nearest.distance else ""
    figure = framed(of, f"Models end nearest to their mean with {nearest.point.title}: {ends}")
    axes = figure.subplots()
    for one, color in zip(points, draw.colors(len(points)), strict=True):
        _draw_median(axes, one, [_apart(run) for run in one.runs], color, "-")
    draw.logarithmic(axes.yaxis)
    draw.tidy(axes)
    axes.set(ylabel="distance from the mean", xlabel="seconds since training began")
    draw.legend(axes)
    return figure, "Root mean square distance of all workers' weights from their mean, over seconds; 0 is not drawn."


def _apart(run: RunFigures) -> Track:
    judged = [e for e in run.result.events if isinstance(e, Evaluated) and e.spread.get("distance", 0.0) > 0]
    return [moment(event) for event in judged], [event.spread["distance"] for event in judged]


def _draw_tracks(
    axes: Axes, of: StudyFigures, points: list[PointFigures], track: Callable[[RunFigures], Track]
) -> None:
    for one, color in zip([*points, *_serial(of)], [*draw.colors(len(points)), INK], strict=False):
        style = "--" if one.point.serial and of.points else "-"
        _draw_median(axes, one, [track(run) for run in one.runs], color, style)
    draw.tidy(axes)
    if track is _tested:
        for goal in dict.fromkeys(run.target for one in points for run in one.runs if run.target is not None):
            draw.reference(axes, goal, f"target {format.loss(goal)}", ":")


def _serial(of: StudyFigures) -> list[PointFigures]:
    """What all are compared with, if there is something to compare."""
    return [of.best_serial] if of.best_serial is not None and of.points else []


def _draw_median(axes: Axes, one: PointFigures, tracks: list[Track], color: Any, style: str) -> None:
    """The median over seeds at each moment, interpolated, as far as all seeds got."""
    import numpy as np

    tracks = [track for track in tracks if len(track[0]) > 1]
    if not tracks:
        return
    for x, y in tracks if len(tracks) > 1 else ():
        axes.plot(x, y, color=color, linewidth=0.5, alpha=0.45, label="_")
    first, last = max(x[0] for x, _ in tracks), min(x[-1] for x, _ in tracks)
    moments = np.linspace(first, last, MOMENTS) if len(tracks) > 1 else np.array(tracks[0][0])
    middle = np.median([np.interp(moments, x, y) for x, y in tracks], axis=0)
    axes.plot(moments, middle, style, color=color, linewidth=1.6, label=one.point.title)


def _tested(run: RunFigures) -> Track:
    judged = [event for event in run.result.events if isinstance(event, Evaluated) and format.finite(event.test_loss)]
    return [moment(event) for event in judged], [event.test_loss for event in judged]


def _trained(run: RunFigures) -> Track:
    kinds = [
        [(e.seconds, e.train_loss) for e in run.result.events if isinstance(e, kind) and format.finite(e.train_loss)]
        for kind in (Progress, Evaluated)
    ]
    told = kinds[0] if len(kinds[0]) > 1 else kinds[1]
    return [seconds for seconds, _ in told], [loss or 0.0 for _, loss in told]


def _limit(axes: Axes, points: Sequence[PointFigures], track: Callable[[RunFigures], Track], log: bool) -> None:
    """First losses are visible, and those somewhat worse; what ran away far above them is not."""
    heights = [heights for one in points for run in one.runs if (heights := track(run)[1])]
    if not heights:
        return
    low, high = min(map(min, heights)), max(one[0] for one in heights)
    room, most = max(high - low, 0.01 * abs(low)), max(map(max, heights))
    if low > 0 and (log or draw.is_steep([low, high])):
        high = max(high, min(most, high * (high / low) ** WORSE))
        axes.set_ylim(low / (high / low) ** 0.05, high * (high / low) ** 0.1)
        draw.logarithmic(axes.yaxis)
        return
    high = max(high, min(most, high + WORSE * room))
    axes.set_ylim(low - 0.05 * room, high + 0.1 * room)


# ---------------------------------------------------------------- heat map of two numeric axes


def _heat(of: StudyFigures) -> Drawn:
    """Every figure is written in its cell, and the best cell is framed."""
    import numpy as np
    from matplotlib.patches import Rectangle

    if not _can_heat(of):
        return None
    across, up = sorted(_grid_axes(of), key=lambda axis: axis.name != of.sweep.study.x)
    figure = framed(of, best_sentence(of))
    axes = figure.subplots()
    grid = np.full((len(up.choices), len(across.choices)), np.nan)
    columns, rows = ([choice.label for choice in axis.choices] for axis in (across, up))
    cells = [(rows.index(at(one, up)), columns.index(at(one, across)), one) for one in of.shown]
    for row, column, one in cells:
        if (spread := of.measure(one)) is not None:
            grid[row, column] = spread.median
    image = axes.imshow(grid, origin="lower", cmap="viridis_r", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for row, column, one in cells:
        color = "white" if grid[row, column] > middle else "black"
        axes.text(column, row, _cell(of, one), ha="center", va="center", fontsize=8, color=color)
        if one is of.best:
            frame = Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False)
            frame.set(edgecolor=SERIES[1], linewidth=3)
            axes.add_patch(frame)
    draw.column_names(axes, range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=label(across), ylabel=label(up))
    figure.colorbar(image, ax=axes, label=f"{of.measured}, median over seeds")
    figure.draw_without_rendering()  # laid out twice: the colour bar moves the labels
    return figure, (
        f"{of.measured} over {across.short} and {up.short}: medians; the frame marks the best; a cell without "
        "a colour has no figure."
    )


def _can_heat(of: StudyFigures) -> bool:
    """Two axes, both of three or more numbers, and something to show."""
    axes = _grid_axes(of)
    return (
        len(axes) == 2
        and all(
            3 <= len(axis.choices) <= CELLS and all(one.number is not None for one in axis.choices) for axis in axes
        )
        and any(of.measure(one) is not None for one in of.shown)
    )


def _cell(of: StudyFigures, one: PointFigures) -> str:
    spread = of.measure(one)
    if spread is None:
        return _without(one) or "-"
    return draw.number(float(f"{spread.median:.3g}")) if of.timed else format.loss(spread.median)


def _grid_axes(of: StudyFigures) -> list[Axis]:
    return of.sweep.study.axes or of.sweep.study.serial_axes


_PICTURES: dict[str, Callable[[StudyFigures], Drawn]] = {
    "time": _time,
    "speedup": _speedup,
    "work": _work,
    "accuracy": _accuracy,
    "waiting": _waiting,
    "heat": _heat,
    "curves": _curves,
    "consensus": _consensus,
}
