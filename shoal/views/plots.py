"""Pictures of a run, from its events alone.

    loss(read_run(folder / "events.jsonl"), folder / "loss.png")

Every call makes a figure of its own, without pyplot: no state is shared, threads may draw at once, and the backend that
the user chose stays. What cannot be drawn (a loss that is not finite) is left out, and the caption says so.
"""

from __future__ import annotations

import bisect
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.events import Evaluated, Gone, Joined, Progress, RunEvent, Started, Stopped, Voided, Warned
from shoal.views import format, member_plots
from shoal.views.axes import (
    LEGIBLE,
    canvas,
    target_of,
    write,
)
from shoal.views.members import MembershipHistory, Move

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito: told apart by everybody; dark enough on white.
TRAIN, TEST, LOST, INK = "#0072B2", "#D55E00", "#A0447C", "#444444"
SOLVED = ("objective", "violation")  # what a run that solves something says of how far it is
METRICS = ("#007A5A", "#A0447C", "#56B4E9", "#444444")

POINTS = 400  # of a curve: about two pixels each
FEW = 60  # evaluations that are drawn as marks one can count
TICKS = 0.05  # of the width, for a label
WIDE = 50.0  # highest over lowest loss from which the scale is logarithmic
UNITS = (  # up to so many seconds, so called, so many seconds long
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
        """So many points at most: neighbours become their mean, each counted by its rows."""
        if len(self.x) <= most:
            return self
        import numpy as np

        starts = np.unique(np.linspace(0, len(self.x), most, endpoint=False).astype(int))
        weight = np.add.reduceat(np.array(self.weight), starts)
        x, y = (np.add.reduceat(np.array(one) * self.weight, starts) / weight for one in (self.x, self.y))
        return Series(x.tolist(), y.tolist(), weight.tolist(), self.left_out)


@dataclass(slots=True)
class PlottedRun:
    """The events of a run, sorted by what is drawn of them."""

    started: Started | None = None
    stopped: Stopped | None = None
    train: Series = field(default_factory=Series)
    test: Series = field(default_factory=Series)
    metrics: dict[str, Series] = field(default_factory=dict)
    best: Evaluated | None = None
    each: list[tuple[float, float, float]] = field(default_factory=list)  # seconds, best and worst of everybody's own
    far: list[tuple[float, float]] = field(default_factory=list)  # seconds, passes
    moves: list[Move] = field(default_factory=list)
    attendance: MembershipHistory = field(default_factory=MembershipHistory)
    voided: int = 0
    warned: list[Warned] = field(default_factory=list)
    examples: int = 0
    seconds: float = 0.0


def loss(events: Iterable[RunEvent], path: str | Path | None = None, title: str = "") -> Figure:
    """Losses (an objective, accuracy, auc, ... where there are any) over time and passes; written to ``path`` if given."""
    figure = canvas(5.6, 9.0)
    target = None if path is None else target_of(Path(path))
    run = _sorted(events)
    high = member_plots.height(run.moves)
    figure.set_figheight(5.6 + high)
    unit, scale = _unit(run.seconds)
    solved = {name: one for name in SOLVED if (one := run.metrics.pop(name, None)) is not None}
    metrics = {name: one for name, one in run.metrics.items() if one.y and min(one.y) >= 0 and max(one.y) <= 1}
    heights = [3.0, *([1.5] if solved else []), *([1.0] if metrics else [])]
    heights += [high * sum(heights) / 4.6] if run.moves else []  # in inches: title and caption take the rest
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    upper, lower = panels[0, 0], panels[-1, 0]
    figures = panels[:-1, 0] if run.moves else panels[:, 0]
    _draw_losses(upper, run, scale)
    _draw_passes(upper, run, scale)
    if solved:
        _draw_solved(panels[1, 0], solved, scale)
    if metrics:
        _draw_metrics(figures[-1], metrics, scale)
    for panel in figures:
        member_plots.upright(panel, run.moves, scale)
        panel.grid(True, color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    lower.set_xlabel(f"{unit} since training began")
    end = run.seconds / scale or 1.0
    if run.moves:
        member_plots.strip(lower, run.moves, end, scale)
    lower.set_xlim(-0.012 * end, 1.012 * end)
    if title or run.started:
        said = title or " · ".join(format.what(run.started) if run.started else [])
        figure.suptitle(format.clean(said), x=0.01, ha="left", fontsize=12, weight="bold", parse_math=False)
    caption = "\n".join(textwrap.wrap(_caption(run), 150))
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=8, color=INK, parse_math=False)
    if target is not None:
        write(figure, target)
    return figure


# ---------------------------------------------------------------- what is drawn


def _sorted(events: Iterable[RunEvent]) -> PlottedRun:
    run = PlottedRun()
    between = Series()  # as the evaluations tell the train loss: for runs that tell it nowhere else
    for event in events:
        run.seconds = max(run.seconds, event.seconds) if math.isfinite(event.seconds) else run.seconds
        run.attendance.take(event)
        match event:
            case Started():
                run.started = event
            case Stopped():
                run.stopped = event
            case Progress() | Evaluated():
                rows = max(1, event.examples - run.examples)
                run.examples = event.examples
                run.far.append((event.seconds, event.passes))
                (run.train if isinstance(event, Progress) else between).add(event.seconds, event.train_loss, rows)
                if isinstance(event, Evaluated):
                    _judged(run, event)
            case Joined() | Gone():
                if event.seconds > 0:  # who is there from the start is no news
                    run.moves.append(event)
            case Voided():
                run.voided += 1
            case Warned():
                run.warned.append(event)
    if len(run.train.x) < 2:
        run.train = between if len(between.x) > len(run.train.x) else run.train
    return run


def _judged(run: PlottedRun, event: Evaluated) -> None:
    run.test.add(event.seconds, event.test_loss)
    if (each := spread_of(event)) is not None:
        run.each.append((event.seconds, *each))
    for name, value in event.metrics.items():
        run.metrics.setdefault(name, Series()).add(event.seconds, value)
    if event.best and math.isfinite(event.test_loss):
        run.best = event


def spread_of(event: Evaluated) -> tuple[float, float] | None:
    """The best and the worst loss where everybody has a model, if these are numbers."""
    best, worst = (event.spread.get(name, math.nan) for name in ("best", "worst"))
    return (best, worst) if math.isfinite(best) and math.isfinite(worst) else None


def draw_spread(axes: Axes, each: Sequence[tuple[float, float, float]]) -> list[float]:
    """A band between the best and the worst of everybody's own models; the losses at its edges."""
    if not each:
        return []
    at, best, worst = zip(*each, strict=True)
    axes.fill_between(at, best, worst, color=TEST, alpha=0.18, linewidth=0, label="each worker's own, best to worst")
    return [*best, *worst]


def _unit(seconds: float) -> tuple[str, float]:
    """The unit of time in which a run of this length reads well, and its length in seconds."""
    return next((unit, scale) for longest, unit, scale in UNITS if seconds < longest)


def _caption(run: PlottedRun) -> str:
    said = []
    if run.started:
        s = run.started
        said.append(
            f"{format.clean(s.data)}: {s.rows:,} rows to train on, {s.test_rows:,} to test, {s.features:,} features. "
            f"{format.clean(s.model)}, {format.clean(s.strategy)}, {run.attendance.crew()}{format.on_cores(s)}, "
            f"batches of {s.batch:,}, seed {s.seed}."
        )
        said += [f"Not real: {format.clean(s.emulated)}."] if s.emulated else []
    passes = format.passes(run.far[-1][1]) if run.far else "0"
    far = f"{passes} {'pass' if passes == '1' else 'passes'}, {run.examples:,} rows"
    lasted = format.duration(run.seconds) if run.seconds >= 1 else f"{run.seconds * 1_000:.3g} ms"
    if run.stopped:
        said.append(f"Stopped after {lasted} ({far}): {format.clean(run.stopped.why)}.")
    else:
        said.append(f"No end is recorded after {lasted} ({far}): it goes on, or was cut short.")
    if left_out := run.train.left_out + run.test.left_out:
        said.append(f"Left out, not being finite: {left_out:,} {'loss' if left_out == 1 else 'losses'}.")
    if run.voided:
        said.append(f"{format.many(run.voided, 'slot')} void.")
    if run.warned:
        said.append(f"{format.summary(run.warned).capitalize()}.")
    return " ".join(said)


# ---------------------------------------------------------------- how it is drawn


def _draw_losses(axes: Axes, run: PlottedRun, scale: float) -> None:
    train = run.train.thinned()
    if train.x:
        alone = "o" if len(train.x) == 1 else None
        axes.plot(_over(train.x, scale), train.y, color=TRAIN, linewidth=1.4, marker=alone, label="train")
    test = run.test.thinned()
    if test.x:
        label = "test, of the mean of all models" if run.each else "test"
        (line,) = axes.plot(_over(test.x, scale), test.y, "o-", color=TEST, label=label)
        if len(test.x) <= FEW:
            line.set(linewidth=0.8, markersize=6, markeredgecolor="white")
        else:
            line.set(linewidth=1.4, markersize=2)
    if run.best:
        at, height = run.best.seconds / scale, run.best.test_loss
        label = f"best test loss {format.loss(height)} at pass {format.passes(run.best.passes)}"
        axes.plot([at], [height], "*", color=TEST, markersize=15, markeredgecolor="white", zorder=5, label=label)
    losses = [*train.y, *test.y]
    losses += draw_spread(axes, [(at / scale, best, worst) for at, best, worst in run.each])
    if losses and min(losses) > 0 and max(losses) / min(losses) > WIDE:
        axes.set_yscale("log")
    axes.set_ylabel("loss")
    if losses:
        axes.legend(loc="upper right", **LEGIBLE)
    else:
        axes.text(0.5, 0.5, "no loss is recorded yet", transform=axes.transAxes, ha="center", color=INK)


def _draw_passes(axes: Axes, run: PlottedRun, scale: float) -> None:
    """Passes along the top edge, where the run reached them."""
    ticks = _legible(_pass_ticks(run.far))
    if len(ticks) < 2:
        return
    top = axes.secondary_xaxis("top")
    top.set_xticks([seconds / scale for seconds, _ in ticks], [f"{passes:g}" for _, passes in ticks])
    top.set_xlabel("passes over the data")
    top.tick_params(colors=INK, labelsize=8)
    top.spines["top"].set_color("#bbbbbb")


def _pass_ticks(far: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """When a few round numbers of passes were first reached: (seconds, passes); steadily between two records."""
    step = _step(max((passes for _, passes in far), default=0.0))
    ticks: list[tuple[float, float]] = []
    before = (0.0, 0.0)
    for seconds, passes in far if step else ():
        while passes >= (mark := step * len(ticks)) - 1e-9 * step:
            share = (mark - before[1]) / (passes - before[1]) if passes > before[1] else 1.0
            ticks.append((before[0] + min(1.0, max(0.0, share)) * (seconds - before[0]), mark))
        before = (seconds, passes)
    return ticks


def _legible(ticks: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without those that stand where the one before is still being read; the last one stands in any case."""
    found: list[tuple[float, float]] = []
    room = TICKS * (ticks[-1][0] if ticks else 0.0)
    for tick in reversed(ticks):
        if not found or found[-1][0] - tick[0] >= room:
            found.append(tick)
    return found[::-1]


def _step(most: float) -> float:
    """Of 1, 2, 5, 10, ... (or a tenth, ...) the one that makes at most ten ticks; 0 where there is nothing to count."""
    if not math.isfinite(most) or most <= 0:
        return 0.0
    steps = [digit * 10.0**power for power in range(-6, 12) for digit in (1, 2, 5)]
    return steps[min(bisect.bisect_left(steps, most / 10), len(steps) - 1)]


def _draw_metrics(axes: Axes, metrics: dict[str, Series], scale: float) -> None:
    for (name, series), color in zip(metrics.items(), METRICS, strict=False):
        label = format.clean(name)
        axes.plot(_over(series.x, scale), series.y, color=color, linewidth=1.2, marker=".", label=label)
    for text in axes.legend(frameon=False, loc="lower right", ncols=len(metrics)).get_texts():
        text.set_parse_math(False)
    axes.margins(y=0.15)


def _draw_solved(axes: Axes, solved: dict[str, Series], scale: float) -> None:
    """How far from the minimum: the objective above the lowest that was found, and the worst key, in powers of ten."""
    for (name, series), color in zip(solved.items(), METRICS, strict=False):
        values, label = series.y, "violation, in units of l1"
        if name == "objective":
            lowest = min(values)
            values, label = (
                [(one - lowest) / (abs(lowest) or 1.0) for one in values],
                "objective above its lowest, of that",
            )
        at = [place for place, value in enumerate(values) if value > 0]
        x, y = _over([series.x[place] for place in at], scale), [values[place] for place in at]
        axes.plot(x, y, color=color, linewidth=1.2, marker=".", label=label)
    axes.set_yscale("log")
    axes.legend(frameon=False, loc="lower left", fontsize=8)  # both fall, if all is well


def _over(seconds: Sequence[float], scale: float) -> list[float]:
    return [at / scale for at in seconds]
