"""Plots of losses over time, for the run's folder and for reports.

    loss(read_run(folder / "events.jsonl"), folder / "loss.png")

Losses that are not finite are not drawn, and the caption says so.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.events import Evaluated, Progress, RunEvent, Voided, Warned
from shoal.views import axes as draw
from shoal.views import event_line, format, member_plots
from shoal.views.axes import DASHES, INK, PALE, SERIES, TEST, TRAIN
from shoal.views.members import moves_of
from shoal.views.run_record import RunMetrics, RunRecord, account, emulation, seconds_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SOLVED = ("objective", "violation")  # metrics of runs that minimise an objective
POINTS = 400  # of a curve: about two pixels each
FEW = 60  # evaluations that are drawn as marks
TICKS = 0.05  # of the width, for a label
UNITS = (  # up to so many seconds, the unit's name, its length in seconds
    (1.0, "milliseconds", 0.001),
    (600.0, "seconds", 1.0),
    (4 * 3_600.0, "minutes", 60.0),
    (3 * 86_400.0, "hours", 3_600.0),
    (math.inf, "days", 86_400.0),
)


@dataclass(slots=True)
class Series:
    """Points of one curve; ``left_out`` counts those that are not finite."""

    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    left_out: int = 0

    def add(self, x: float, y: float | None, weight: float = 1.0) -> None:
        if y is None:
            return
        if not math.isfinite(y) or not math.isfinite(x):
            self.left_out += 1
            return
        self.x.append(x)
        self.y.append(y)
        self.weight.append(weight)

    def thinned(self, most: int = POINTS) -> Series:
        """At most so many points: neighbours become their mean, weighted by their rows."""
        if len(self.x) <= most:
            return self
        import numpy as np

        starts = np.unique(np.linspace(0, len(self.x), most, endpoint=False).astype(int))
        weight = np.add.reduceat(np.array(self.weight), starts)
        x, y = (np.add.reduceat(np.array(one) * self.weight, starts) / weight for one in (self.x, self.y))
        return Series(x.tolist(), y.tolist(), weight.tolist(), self.left_out)


def loss(events: Iterable[RunEvent], path: str | Path | None = None, title: str = "") -> Figure:
    """Losses and metrics over time and epochs, with membership changes below; saved to ``path``."""
    figure = draw.canvas(5.6, 9.0)
    if path is not None:
        draw.target_of(Path(path))
    run = account(events)
    moves = moves_of(run.happened)
    high = member_plots.height(moves)
    figure.set_figheight(5.6 + high)
    unit, scale = _unit(run.seconds)
    metrics = _metrics(run, scale)
    solved = {name: metrics.pop(name) for name in SOLVED if name in metrics}
    shares = {name: one for name, one in metrics.items() if one.y and min(one.y) >= 0 and max(one.y) <= 1}
    heights = [3.0, *([1.5] if solved else []), *([1.0] if shares else [])]
    heights += [high * sum(heights) / 4.6] if moves else []  # inches
    panels = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    charts = panels[:-1] if moves else panels
    left_out = draw_losses(charts[0], run, scale)
    _draw_epochs(charts[0], run, scale)
    if solved:
        _draw_solved(charts[1], solved)
    if shares:
        _draw_metrics(charts[-1], shares)
    for panel in charts:
        member_plots.upright(panel, moves, scale)
        draw.tidy(panel)
    end = run.seconds / scale or 1.0
    if moves:
        member_plots.strip(panels[-1], moves, end, scale)
    panels[-1].set_xlabel(f"{unit} since training began")
    panels[-1].set_xlim(-0.012 * end, 1.012 * end)
    headline = title or (" · ".join(event_line.what(run.started)) if run.started else "")
    draw.headline(figure, headline, _caption(run, left_out))
    if path is not None:
        draw.save(figure, path)
    return figure


def losses(runs: Sequence[RunRecord]) -> Figure:
    """One run: train and test loss over time. Several: their test losses over time and epochs."""
    if len(runs) == 1:
        return _losses_of_one(runs[0].run)
    figure = draw.canvas(6.2)
    panels = figure.subplots(2, 1)
    shades = draw.colors(len(runs))
    for number, one in enumerate(runs):
        judged = one.run.finite
        for axes, x in zip(panels, ([seconds_of(e) for e in judged], [e.passes for e in judged]), strict=True):
            _curve(axes, x, judged, shades[number], format.clean(one.name), DASHES[number % len(DASHES)])
    drawn = [event.test_loss for one in runs for event in one.run.finite]
    for axes, title, below in (
        (panels[0], "Test loss over time", "seconds since training began"),
        (panels[1], "Test loss over epochs: what each row was worth", "epochs"),
    ):
        draw.titled(axes, title)
        _finish(axes, drawn)
        axes.set_xlabel(below)
    return figure


def _losses_of_one(run: RunMetrics) -> Figure:
    """With a panel for membership changes, if there were any."""
    moves = moves_of(run.happened)
    heights = [3.4, *([member_plots.height(moves)] if moves else [])]
    figure = draw.canvas(sum(heights) + 0.3)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    draw_losses(panels[0], run)
    member_plots.upright(panels[0], moves)
    draw.tidy(panels[0])
    if moves:
        member_plots.strip(panels[1], moves, run.seconds or 1.0)
    panels[-1].set_xlabel("seconds since training began")
    return figure


def draw_losses(axes: Axes, run: RunMetrics, scale: float = 1.0) -> int:
    """Train and test loss, the best, and the spread over workers; returns how many are left out."""
    whole, judged = _train(run), run.finite
    train = whole.thinned()
    if train.x:
        alone = "o" if len(train.x) == 1 else None
        axes.plot(_over(train.x, scale), train.y, color=TRAIN, linewidth=1.4, marker=alone, label="train")
    each = [(seconds_of(event) / scale, *found) for event in judged if (found := spread_of(event)) is not None]
    label = "test, of the mean of all models" if each else "test"
    drawn = [*train.y, *_curve(axes, [seconds_of(event) / scale for event in judged], judged, TEST, label)]
    if run.best is not None:
        label = f"best test loss {format.loss(run.best.test_loss)} at epoch {format.epochs(run.best.passes)}"
        at = ([seconds_of(run.best) / scale], [run.best.test_loss])
        axes.plot(*at, "*", color=TEST, markersize=15, markeredgecolor="white", zorder=5, label=label)
    if each:
        at, best, worst = zip(*each, strict=True)
        label = "each worker's own, best to worst"
        axes.fill_between(at, best, worst, color=TEST, alpha=0.18, linewidth=0, label=label)
        drawn += [*best, *worst]
    _finish(axes, drawn)
    return whole.left_out + len(run.evaluations) - len(judged)


def spread_of(event: Evaluated) -> tuple[float, float] | None:
    """The best and worst loss of the workers' models, if they are numbers."""
    best, worst = (event.spread.get(name, math.nan) for name in ("best", "worst"))
    return (best, worst) if math.isfinite(best) and math.isfinite(worst) else None


def _finish(axes: Axes, drawn: Sequence[float]) -> None:
    if drawn:
        draw.log_if_steep(axes.yaxis, drawn)
        draw.legend(axes, loc="upper right")
    else:
        draw.nothing(axes, "no loss is recorded yet")
    axes.set_ylabel("loss")
    draw.tidy(axes)


def _curve(
    axes: Axes, x: Sequence[float], judged: Sequence[Evaluated], color: str, label: str, dashes: str = "-"
) -> list[float]:
    """Draw test losses, as marks while they are few; returns the artist."""
    series = Series()
    for at, event in zip(x, judged, strict=True):
        series.add(at, event.test_loss)
    series = series.thinned()
    if series.x:
        few = len(series.x) <= FEW
        (line,) = axes.plot(series.x, series.y, dashes, color=color, label=label, marker="o" if few else None)
        line.set(linewidth=1.4, markersize=5, markeredgecolor="white", markeredgewidth=0.6)
    return series.y


def _train(run: RunMetrics) -> Series:
    """Train losses as reported by workers, otherwise by evaluations."""
    found = []
    for events in (run.progress, run.evaluations):
        series, last = Series(), 0
        for event in events:
            series.add(event.seconds, event.train_loss, max(1, event.examples - last))
            last = event.examples
        found.append(series)
    reported, judged = found
    return judged if len(reported.x) < 2 and len(judged.x) > len(reported.x) else reported


def _metrics(run: RunMetrics, scale: float) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for event in run.evaluations:
        for name, value in event.metrics.items():
            found.setdefault(name, Series()).add(event.seconds / scale, value)
    return found


def _unit(seconds: float) -> tuple[str, float]:
    """The unit of time in which a run of this length reads well, and its length in seconds."""
    return next((unit, scale) for longest, unit, scale in UNITS if seconds < longest)


def _caption(run: RunMetrics, left_out: int) -> str:
    said = []
    if run.started:
        s = run.started
        said.append(
            f"{format.clean(s.data)}: {s.rows:,} rows to train on, {s.test_rows:,} to test, {s.features:,} features. "
            f"{format.clean(s.model)}, {format.clean(s.strategy)}, {run.attendance.crew()}{event_line.on_cores(s)}, "
            f"batches of {s.batch:,}, seed {s.seed}."
        )
        said += [emulation(s.emulated)] if s.emulated else []
    told: list[Progress | Evaluated] = [*run.progress[-1:], *run.evaluations[-1:]]
    epochs = format.epochs(max((event.passes for event in told), default=0.0))
    far = f"{epochs} {'epoch' if epochs == '1' else 'epochs'}, {run.examples:,} rows"
    lasted = format.duration(run.seconds) if run.seconds >= 1 else f"{run.seconds * 1_000:.3g} ms"
    if run.stopped:
        said.append(f"Stopped after {lasted} ({far}): {format.clean(run.stopped.why)}.")
    else:
        said.append(f"No end is recorded after {lasted} ({far}): it goes on, or was cut short.")
    if left_out:
        said.append(f"Left out, not being finite: {left_out:,} {'loss' if left_out == 1 else 'losses'}.")
    if voided := sum(isinstance(event, Voided) for event in run.happened):
        said.append(f"{format.many(voided, 'slot')} void.")
    if warned := [event for event in run.happened if isinstance(event, Warned)]:
        said.append(f"{event_line.summary(warned).capitalize()}.")
    return " ".join(said)


# ---------------------------------------------------------------- epochs along the top


def _draw_epochs(axes: Axes, run: RunMetrics, scale: float) -> None:
    """Epochs along the top edge, where the run reached them."""
    events: list[Progress | Evaluated] = sorted([*run.progress, *run.evaluations], key=lambda event: event.seconds)
    ticks = _legible(_epoch_ticks([(event.seconds, event.passes) for event in events]))
    if len(ticks) < 2:
        return
    top = axes.secondary_xaxis("top")
    top.set_xticks([seconds / scale for seconds, _ in ticks], [f"{epochs:g}" for _, epochs in ticks])
    top.set_xlabel("epochs")
    top.tick_params(colors=INK, labelsize=8)
    top.spines["top"].set_color(PALE)


def _epoch_ticks(far: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """When round numbers of epochs were first reached: (seconds, epochs), interpolated."""
    step = _step(max((epochs for _, epochs in far), default=0.0))
    ticks: list[tuple[float, float]] = []
    before = (0.0, 0.0)
    for seconds, epochs in far if step else ():
        while epochs >= (mark := step * len(ticks)) - 1e-9 * step:
            share = (mark - before[1]) / (epochs - before[1]) if epochs > before[1] else 1.0
            ticks.append((before[0] + min(1.0, max(0.0, share)) * (seconds - before[0]), mark))
        before = (seconds, epochs)
    return ticks


def _legible(ticks: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without ticks whose labels would overlap; the last one always stays."""
    found: list[tuple[float, float]] = []
    room = TICKS * (ticks[-1][0] if ticks else 0.0)
    for tick in reversed(ticks):
        if not found or found[-1][0] - tick[0] >= room:
            found.append(tick)
    return found[::-1]


def _step(most: float) -> float:
    """The step of 1, 2, 5, 10, ... with at most ten ticks; 0: no ticks."""
    if not math.isfinite(most) or most <= 0:
        return 0.0
    steps = [digit * 10.0**power for power in range(-6, 12) for digit in (1, 2, 5)]
    return steps[min(bisect.bisect_left(steps, most / 10), len(steps) - 1)]


# ---------------------------------------------------------------- other figures of evaluations


def _draw_metrics(axes: Axes, metrics: dict[str, Series]) -> None:
    for (name, series), color in zip(metrics.items(), SERIES[2:], strict=False):
        axes.plot(series.x, series.y, color=color, linewidth=1.2, marker=".", label=format.clean(name))
    draw.legend(axes, loc="lower right", ncols=len(metrics))
    axes.margins(y=0.15)


def _draw_solved(axes: Axes, solved: dict[str, Series]) -> None:
    """Draw the distance from the minimum: of the objective, and of the worst key."""
    for (name, series), color in zip(solved.items(), SERIES[2:], strict=False):
        values, label = series.y, "violation, in units of l1"
        if name == "objective":
            lowest = min(values)
            values = [(one - lowest) / (abs(lowest) or 1.0) for one in values]
            label = "objective above its lowest, of that"
        points = [(x, y) for x, y in zip(series.x, values, strict=True) if y > 0]
        axes.plot([x for x, _ in points], [y for _, y in points], color=color, linewidth=1.2, marker=".", label=label)
    axes.set_yscale("log")
    draw.legend(axes, loc="lower left", fontsize=8)  # both should fall


def _over(seconds: Sequence[float], scale: float) -> list[float]:
    return [at / scale for at in seconds]
