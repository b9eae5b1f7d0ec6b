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

from pathlib import Path
from typing import TYPE_CHECKING

from shoal.files import replace_file
from shoal.sweep.curves import draw_curves, draw_distance
from shoal.sweep.drawing import (
    COLOURS,
    OfPoint,
    OfRun,
    draw,
    framed,
    from_zero,
    ideal,
    legend,
    png,
)
from shoal.sweep.figures import Spread, StudyFigures
from shoal.sweep.heat import can_heat, draw_heat
from shoal.sweep.lines import measure, x_axis
from shoal.views import format
from shoal.views.drawing import INK, svg
from shoal.views.sections import PictureSection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
