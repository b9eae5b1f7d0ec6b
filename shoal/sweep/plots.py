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
from shoal.sweep.findings import best_sentence, fastest, highest, in_state
from shoal.sweep.grid import Axis
from shoal.sweep.results import AxisScale, PointFigures, RunFigures, StudyFigures, at, known, lines_of, x_axis
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, MARKERS, SERIES
from shoal.views.page import PictureSection
from shoal.views.run_record import emulation, seconds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawn = tuple["Figure", str] | None  # with a caption
Track = Callable[[RunFigures], list[tuple[float, float]]]  # a curve over seconds

APART = 0.06  # of a step along the axis, between lines, so that their bars do not hide each other
NEAR = 0.03  # below the highest accuracy: the enlarged range
MOMENTS = 300  # of a median line
WORSE = 2  # times the range of losses that is shown above the first
PANELS = 4  # beside each other
CELLS = 20  # along one side of a heat map: more cannot be read
SECONDS = ("per_example", "pause", "pause_every", "stall", "stall_at", "link", "arrive", "preempt", "away")


def pictures(of: StudyFigures) -> list[PictureSection]:
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
    """A figure with a sentence above, and below the study, what is emulated and what is missing."""
    figure = draw.canvas(4.4, 11.0) if wide else draw.canvas(5.4, 9.0)
    study = of.sweep.study
    below = [f"Study {study.name}{f': {study.what}' if study.what else '.'}", *map(emulation, of.emulated)]
    if of.emulated:
        computing = any(one.startswith("emulated compute") for one in of.emulated)
        title += f" (emulated {'compute' if computing else 'stragglers'})"
    if missing := in_state(of, "to do"):
        below.append(f"{missing}.")
    draw.headline(figure, title, " ".join(below), size=11)
    return figure


def label(axis: Axis) -> str:
    """The name of an axis with its unit, where it has one."""
    return f"{axis.short}, seconds" if axis.name.removeprefix("emulate.") in SECONDS else axis.short


def draw_lines(axes: Axes, of: StudyFigures, axis: Axis, figure: str, text: str) -> None:
    """A line through the medians of numbers, marks for all else, a dot for each seed."""
    scale, lines = AxisScale.of(axis), lines_of(of)
    crosses: dict[float, list[str]] = {}
    for number, ((name, points), color) in enumerate(zip(lines.items(), draw.colors(len(lines)), strict=True)):
        shift = APART * scale.step * (number - (len(lines) - 1) / 2)
        pairs = known(points, figure)
        joined = [(one, spread) for one, spread in pairs if one.point.choices[axis.name].number is not None]
        places = [scale.places[at(one, axis)] + shift for one, _ in joined]
        axes.plot(places, [spread.median for _, spread in joined], color=color, linewidth=1.5, label="_")
        places = [scale.places[at(one, axis)] + shift for one, _ in pairs]
        middles = [spread.median for _, spread in pairs]
        below, above = [s.median - s.low for _, s in pairs], [s.high - s.median for _, s in pairs]
        style: dict[str, Any] = {"fmt": MARKERS[number % len(MARKERS)], "markersize": 7, "markeredgecolor": "white"}
        style |= {"capsize": 3, "elinewidth": 1.2, "zorder": 3, "label": name or None}
        axes.errorbar(places, middles, yerr=[below, above], color=color, **style)
        heights = [(one, getattr(run, figure)) for one in points for run in one.runs]
        dots = [(scale.places[at(one, axis)] + shift, height) for one, height in heights if format.finite(height)]
        axes.plot(*draw.columns(dots), "o", color=color, alpha=0.45, markersize=3.5, zorder=2, label="_")
        for one in points:
            if one.spread(figure) is None and (reason := _without(one)):
                place = scale.places[at(one, axis)]
                edge: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
                axes.plot([place + shift], [0.97], "x", color=color, markersize=8, **edge)
                crosses.setdefault(place, []).append(reason)
    for place, reasons in crosses.items():
        shown = axes.text(place, 0.94, "\n".join(dict.fromkeys(reasons)), transform=axes.get_xaxis_transform())
        shown.set(ha="center", va="top", fontsize=8, color=INK)
    draw.column_names(axes, [scale.places[one.label] for one in axis.choices], [one.label for one in axis.choices])
    low, high = min(scale.places.values()), max(scale.places.values())
    axes.set_xlim(low - 0.5 * scale.step, high + 0.5 * scale.step)
    axes.set_xlabel(label(axis))
    draw.numbers(axes.yaxis)
    draw.tidy(axes)
    draw.y_label(axes, text)


def _without(one: PointFigures) -> str:
    """Why a point has no figure."""
    if one.diverged:
        return "diverged"
    if not one.complete:
        return f"{one.done} of {len(one.runs)} finished"
    return f"{one.reached} of {len(one.runs)}" if one.censored else ""


def _ends(points: Sequence[PointFigures], figure: str) -> list[float]:
    return [end for _, spread in known(points, figure) for end in (spread.low, spread.high)]


def _draw_speedup(axes: Axes, of: StudyFigures, axis: Axis, figure: str) -> None:
    """The speedup over the serial run, log-log over workers, with the ideal."""
    draw_lines(axes, of, axis, figure, "times as fast as the best serial run")
    heights = _ends(of.points, figure)
    numbers = {choice.label: choice.number for choice in axis.choices if choice.number}
    if axis.name != "workers" or len(numbers) < 2 or min(heights, default=0.0) <= 0:
        draw.from_zero(axes, 1.0)
        draw.reference(axes, 1.0, "best serial run")
        return
    scale, ideal = AxisScale.of(axis), list(numbers.values())
    places = [scale.places[one] for one in numbers]
    axes.plot(places, ideal, color="#999999", linewidth=1.2, linestyle=":", label="ideal")
    draw.logarithmic(axes.yaxis, base=2)
    axes.set_ylim(0.8 * min(1.0, *heights), 1.25 * max(1.0, *heights, min(max(ideal), 2 * max(heights))))
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
    draw_lines(axes, of, axis, of.measure, of.measured)
    target, serial = of.sweep.study.target, of.alone("time_to_target")
    if of.timed:
        draw.from_zero(axes)
        if serial is not None and of.points:
            alone = serial.median
            if axes.get_ylim()[1] < alone < 3 * axes.get_ylim()[1]:
                draw.from_zero(axes, alone)
            if alone <= axes.get_ylim()[1]:
                draw.reference(axes, alone, f"best serial run: {format.duration(alone)}")
            else:
                axes.plot([], [], " ", label=f"best serial run: {format.duration(alone)}, above")
    else:
        draw.log_if_steep(axes.yaxis, _ends(of.shown, of.measure))
        if target is not None and target.loss is not None:
            draw.reference(axes, target.loss, f"target {format.loss(target.loss)}", ":")
    draw.legend(axes)
    what = of.measured[:1].upper() + of.measured[1:]
    return figure, f"{what} over {axis.short}: medians, every seed a dot, bars from the lowest to the highest."


def _speedup(of: StudyFigures) -> Drawn:
    axis = x_axis(of)
    if axis is None or not known(of.points, "speedup"):
        return None
    panels = {"rate": "rows a second, up to the target", "rows_to_target": "rows to the target"}
    return _panels(of, axis, f"At most {fastest(of.points, 'speedup')}", "speedup", panels), (
        "Speedup in time to the target, each seed against the serial run with that seed. Rows a second times "
        "what is learned from a row explains it."
    )


def _work(of: StudyFigures) -> Drawn:
    axis, same = x_axis(of), "speedup_same_rows"
    if axis is None or not of.same_work or len({run.job.workers for run in of.sweep.study.runs}) < 2:
        return None
    panels = {"computing_seconds": "seconds"}
    if known(of.points, "cpu_seconds"):
        panels["cpu_seconds"] = "CPU seconds of all processes"
    sentence = "All runs learn from equally many rows"
    if fast := known(of.points, same):
        sentence += f": at most {fastest(of.points, same)}"
    return _panels(of, axis, sentence, same if fast else "", panels), (
        "All runs learn from equally many rows. Where there is no coordinator, the clock stands still while a model "
        "is evaluated. CPU seconds are of all processes of a run, starting and evaluating included."
    )


def _panels(of: StudyFigures, axis: Axis, sentence: str, speedup: str, panels: dict[str, str]) -> Figure:
    """A speedup, if there is one, and figures with their labels beside it."""
    figure = framed(of, sentence, wide=True)
    shown = list(figure.subplots(1, len(panels) + bool(speedup), squeeze=False)[0])
    if speedup:
        _draw_speedup(shown[0], of, axis, speedup)
    for (name, text), axes in zip(panels.items(), shown[bool(speedup) :], strict=True):
        draw_lines(axes, of, axis, name, text)
        serial = of.alone(name)
        draw.from_zero(axes, *([serial.median] if serial else []))
        if serial is not None:
            draw.reference(axes, serial.median, "best serial run")
    draw.legend(shown[0])
    return figure


def _accuracy(of: StudyFigures) -> Drawn:
    """The accuracy, and beside it its upper end enlarged."""
    axis, ends = x_axis(of), _ends(of.shown, "accuracy")
    if axis is None or not ends:
        return None
    top, both = max(ends), max(ends) - min(ends) > 2 * NEAR
    best, spread = highest(of.shown, "accuracy")
    figure = framed(of, f"Accuracy at the end is highest with {best.point.title}: {spread.median:.4f}", wide=both)
    serial = of.alone("accuracy") if of.points else None
    for number, axes in enumerate(figure.subplots(1, 1 + both, squeeze=False)[0]):
        draw_lines(axes, of, axis, "accuracy", "the same, near the top" if number else "accuracy on held-out rows")
        if serial is not None:
            draw.reference(axes, serial.median, f"best serial run: {serial.median:.4f}")
        if both:
            axes.set_ylim(*((top - NEAR, top + 0.1 * NEAR) if number else (0, 1)))
    draw.legend(figure.axes[0])
    near = f" On the right what is within {100 * NEAR:g} points of the highest." if both else ""
    return figure, f"Accuracy of the last evaluation over {axis.short}.{near}"


def _waiting(of: StudyFigures) -> Drawn:
    axis = x_axis(of)
    stale = "mean staleness: pushes between a pull and its push", "mean staleness is at most {:.3g} ({})"
    waits = "share of workers' time spent waiting", "workers wait at most {:.0%} ({})"
    kinds = {"waiting": waits, "staleness_mean": stale}
    panels = [name for name in kinds if max(_ends(of.points, name), default=0.0) > 0]
    if axis is None or not panels:
        return None
    tops = {name: highest(of.points, name) for name in panels}
    said = "; ".join(kinds[name][1].format(top.median, one.point.title) for name, (one, top) in tops.items())
    figure = framed(of, said[:1].upper() + said[1:], wide=len(panels) > 1)
    for name, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        draw_lines(axes, of, axis, name, kinds[name][0])
        draw.from_zero(axes)
        if name == "waiting":
            draw.percents(axes.yaxis)
    draw.legend(figure.axes[0])
    return figure, f"Share of waiting and staleness of pushes over {axis.short}: less of one costs more of the other."


def _curves(of: StudyFigures) -> Drawn:
    """Test and train losses. Few points share a panel; of more, each line has its own."""
    if not any(one.done for one in of.shown):
        return None
    lines = [[one for one in points if one.done] for points in lines_of(of).values()]
    groups = [points for points in lines if points]
    if sum(map(len, groups)) < len(SERIES) or not 2 <= len(groups) <= PANELS:
        groups = [[one for points in groups for one in points]]
    alone = len(groups) == 1
    title = "Test and train loss over time"
    if pairs := known(of.shown, "best_loss"):
        one, spread = min(pairs, key=lambda pair: pair[1].median)
        title = f"Test loss fell lowest with {one.point.title}: {format.loss(spread.median)}"
    figure = framed(of, title, wide=True)
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


def _consensus(of: StudyFigures) -> Drawn:
    pairs = known(of.points, "distance")
    if not pairs:
        return None
    nearest, least = min(pairs, key=lambda pair: pair[1].median)
    figure = framed(of, f"Models end nearest to their mean with {nearest.point.title}: {least.median:.2g}")
    axes = figure.subplots()
    for (one, _), color in zip(pairs, draw.colors(len(pairs)), strict=True):
        _draw_median(axes, one, _distances, color, "-")
    draw.logarithmic(axes.yaxis)
    draw.tidy(axes)
    axes.set(ylabel="distance from the mean", xlabel="seconds since training began")
    draw.legend(axes)
    return figure, "Root mean square distance of all workers' weights from their mean, over seconds; 0 is not drawn."


def _draw_tracks(axes: Axes, of: StudyFigures, points: list[PointFigures], track: Track) -> None:
    for one, color in zip([*points, *_serial(of)], [*draw.colors(len(points)), INK], strict=False):
        _draw_median(axes, one, track, color, "--" if one.point.serial and of.points else "-")
    draw.tidy(axes)
    if track is _tested:
        for goal in dict.fromkeys(run.target for one in points for run in one.runs if run.target is not None):
            draw.reference(axes, goal, f"target {format.loss(goal)}", ":")


def _serial(of: StudyFigures) -> list[PointFigures]:
    """What all are compared with, if there is something to compare."""
    return [of.best_serial] if of.best_serial is not None and of.points else []


def _draw_median(axes: Axes, one: PointFigures, track: Track, color: Any, style: str) -> None:
    """The median over seeds at each moment, interpolated, as far as all seeds got."""
    import numpy as np

    curves = [draw.columns(curve) for run in one.runs if len(curve := track(run)) > 1]
    if not curves:
        return
    for x, y in curves if len(curves) > 1 else ():
        axes.plot(x, y, color=color, linewidth=0.5, alpha=0.45, label="_")
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    moments = np.linspace(first, last, MOMENTS) if len(curves) > 1 else np.array(curves[0][0])
    middle = np.median([np.interp(moments, x, y) for x, y in curves], axis=0)
    axes.plot(moments, middle, style, color=color, linewidth=1.6, label=one.point.title)


def _distances(run: RunFigures) -> list[tuple[float, float]]:
    return [(seconds_of(e), far) for e in run.evaluations if (far := e.spread.get("distance", 0.0)) > 0]


def _tested(run: RunFigures) -> list[tuple[float, float]]:
    return [(seconds_of(e), e.test_loss) for e in run.evaluations if format.finite(e.test_loss)]


def _trained(run: RunFigures) -> list[tuple[float, float]]:
    often, seldom = list[tuple[float, float]](), list[tuple[float, float]]()
    for event in run.result.events:
        if isinstance(event, Progress | Evaluated) and event.train_loss is not None and format.finite(event.train_loss):
            (often if isinstance(event, Progress) else seldom).append((event.seconds, event.train_loss))
    return often if len(often) > 1 else seldom


def _limit(axes: Axes, points: Sequence[PointFigures], track: Track, log: bool) -> None:
    """First losses are visible, and those somewhat worse; what ran away far above them is not."""
    heights = [draw.columns(curve)[1] for one in points for run in one.runs if (curve := track(run))]
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


def _heat(of: StudyFigures) -> Drawn:
    """Every figure is written in its cell, and the best cell is framed."""
    import numpy as np
    from matplotlib.patches import Rectangle

    axes_of_grid = of.sweep.study.axes or of.sweep.study.serial_axes
    choices = [axis.choices for axis in axes_of_grid if 3 <= len(axis.choices) <= CELLS]
    numeric = [one for one in choices if all(choice.number is not None for choice in one)]
    if not len(numeric) == len(axes_of_grid) == 2 or not known(of.shown, of.measure):
        return None
    across, up = sorted(axes_of_grid, key=lambda axis: axis.name != of.sweep.study.x)
    figure = framed(of, best_sentence(of))
    axes = figure.subplots()
    grid = np.full((len(up.choices), len(across.choices)), np.nan)
    columns, rows = ([choice.label for choice in axis.choices] for axis in (across, up))
    cells = [(rows.index(at(one, up)), columns.index(at(one, across)), one) for one in of.shown]
    for row, column, one in cells:
        if (spread := one.spread(of.measure)) is not None:
            grid[row, column] = spread.median
    image = axes.imshow(grid, origin="lower", cmap="viridis_r", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for row, column, one in cells:
        height = grid[row, column]
        text = _without(one) or "-"
        if not np.isnan(height):
            text = draw.number(float(f"{height:.3g}")) if of.timed else format.loss(height)
        color = "white" if height > middle else "black"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
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


_ALL: list[Callable[[StudyFigures], Drawn]]
_ALL = [_time, _speedup, _work, _accuracy, _waiting, _heat, _curves, _consensus]
_PICTURES = {picture.__name__.removeprefix("_"): picture for picture in _ALL}
