"""Losses against seconds: a line for each point, thin ones for its seeds.

The thick line is the median over seeds at each moment, of losses taken steadily between two records: it is drawn as far as
all seeds got, and no figure is read off it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shoal.events import Evaluated, Progress
from shoal.sweep.figures import (
    PointFigures,
    RunFigures,
    StudyFigures,
    moment,
)
from shoal.sweep.lines import lines_of
from shoal.views import format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        _draw(axes, one, [_apart(run) for run in one.runs], colour, "-")
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
        _draw(axes, one, [track(run) for run in one.runs], colour, style)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if track is _tested:
        for goal in dict.fromkeys(run.target for one in points for run in one.runs if run.target is not None):
            axes.axhline(goal, color="#999999", linewidth=0.9, linestyle=":")


def _serial(of: StudyFigures) -> list[PointFigures]:
    """What all are held against, if there is something to be."""
    return [of.best_serial] if of.best_serial is not None and of.points else []


def _draw(axes: Axes, one: PointFigures, tracks: list[Track], colour: Any, style: str) -> None:
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
