"""Pictures of a report: losses, where the time went, staleness, cost, filters, delay. Each from accounts, each a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.events import Evaluated
from shoal.views import format, member_plots
from shoal.views.axes import (
    DASHES,
    INK,
    LEGIBLE,
    PALE,
    SERIES,
    canvas,
    tidy,
    titled,
)
from shoal.views.explain import most_stale
from shoal.views.members import moves_of
from shoal.views.plots import FEW, WIDE, Series, draw_spread, spread_of
from shoal.views.run_record import OF_WORKERS, RunMetrics, RunRecord, seconds_of
from shoal.views.timeline import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 64  # of a histogram
BARS = 32  # workers in one picture


def losses(runs: Sequence[RunRecord]) -> Figure:
    """One run: train and test loss over time. Several: their test losses, over time and over passes."""
    if len(runs) == 1:
        return _losses_of_one(runs[0].run)
    figure = canvas(6.2)
    upper, lower = figure.subplots(2, 1)
    for number, told in enumerate(runs):
        judged = told.run.finite
        _curve(upper, [seconds_of(event) for event in judged], judged, number, format.clean(told.name))
        _curve(lower, [event.passes for event in judged], judged, number, format.clean(told.name))
    titled(upper, "test loss over time")
    titled(lower, "test loss over passes: what each row was worth")
    drawn = [event.test_loss for told in runs for event in told.run.finite]
    _finish(upper, "seconds since training began", drawn)
    _finish(lower, "passes over the data", drawn)
    return figure


def _losses_of_one(run: RunMetrics) -> Figure:
    """With a row for who came and went, if anybody did."""
    moves = moves_of(run.happened)
    heights = [3.4, *([member_plots.height(moves)] if moves else [])]
    figure = canvas(sum(heights) + 0.3)
    panels = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    drawn = _one_loss(panels[0], run)
    member_plots.upright(panels[0], moves)
    _finish(panels[0], "", drawn)
    if moves:
        member_plots.strip(panels[1], moves, run.seconds or 1.0)
    panels[-1].set_xlabel("seconds since training began")
    return figure


def _one_loss(axes: Axes, run: RunMetrics) -> list[float]:
    train = Series()
    last = 0
    for event in run.progress or run.evaluations:
        train.add(event.seconds, event.train_loss, max(1, event.examples - last))
        last = event.examples
    train = train.thinned()
    if train.x:
        axes.plot(
            train.x, train.y, color=SERIES[0], linewidth=1.3, label="train", marker="o" if len(train.x) == 1 else None
        )
    judged = run.finite
    each = [(seconds_of(event), *found) for event in judged if (found := spread_of(event)) is not None]
    label = "test, of the mean of all models" if each else "test"
    _curve(axes, [seconds_of(event) for event in judged], judged, 1, label, "-")
    if run.best is not None:
        said = f"best: {format.loss(run.best.test_loss)} at pass {format.passes(run.best.passes)}"
        at = ([seconds_of(run.best)], [run.best.test_loss])
        axes.plot(*at, "*", color=SERIES[1], markersize=14, markeredgecolor="white", zorder=5, label=said)
    return [*train.y, *(event.test_loss for event in judged), *draw_spread(axes, each)]


def _curve(
    axes: Axes, x: Sequence[float], judged: Sequence[Evaluated], number: int, label: str, dashes: str | None = None
) -> None:
    if not judged:
        return
    style = DASHES[number % len(DASHES)] if dashes is None else dashes
    mark = "o" if len(judged) <= FEW else None
    y = [event.test_loss for event in judged]
    (line,) = axes.plot(x, y, style, color=SERIES[number % len(SERIES)], label=label, marker=mark)
    line.set(linewidth=1.5, markersize=4.5, markeredgecolor="white", markeredgewidth=0.6)


def _finish(axes: Axes, below: str, drawn: Sequence[float]) -> None:
    if drawn:
        if min(drawn) > 0 and max(drawn) / min(drawn) > WIDE:
            axes.set_yscale("log")
        for text in axes.legend(fontsize=9, **LEGIBLE).get_texts():
            text.set_parse_math(False)
    else:
        axes.text(0.5, 0.5, "no loss is recorded", transform=axes.transAxes, ha="center", color=INK)
    axes.set(ylabel="loss", xlabel=below)
    tidy(axes)


def shares(rows: Sequence[tuple[str, dict[str, float]]]) -> Figure:
    """Where the time went: a bar for each worker, or each run."""
    figure = canvas(0.9 + 0.3 * len(rows[:BARS]))
    axes = figure.subplots()
    for row, (_, one) in enumerate(rows[:BARS]):
        left = 0.0
        for kind in OF_WORKERS:
            share = one.get(kind, 0.0)
            axes.barh(row, share, 0.72, left=left, color=COLORS[kind], label=kind if row == 0 else None)
            if share >= 0.06:
                color = "#111111" if kind in ("idle", "communicate") else "white"
                axes.text(left + share / 2, row, f"{share:.0%}", ha="center", va="center", fontsize=8.5, color=color)
            left += share
    axes.set_yticks(range(len(rows[:BARS])), [format.clean(name)[:28] for name, _ in rows[:BARS]])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set(xlim=(0, 1), ylim=(len(rows[:BARS]) - 0.5, -0.5))
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axes.tick_params(axis="y", length=0)
    tidy(axes, grid="")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    return figure


def staleness(runs: Sequence[RunRecord]) -> Figure:
    """How many pushes were how stale, in percent; a panel for each run, on one scale."""
    told = [(one, stale) for one in runs if (stale := one.staleness) is not None]
    most = max(len(counts) for _, (counts, *_) in told)
    width = -(-most // BINS)
    figure = canvas(0.6 + 1.7 * len(told))
    panels = figure.subplots(len(told), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (one, (counts, mean, p95, highest)) in zip(panels, told, strict=True):
        whole = sum(counts)
        bars = [sum(counts[at : at + width]) / whole for at in range(0, len(counts), width)]
        middles = [at * width + (width - 1) / 2 for at in range(len(bars))]
        axes.bar(middles, bars, 0.86 * width, color=SERIES[0])
        axes.axvline(mean, color=SERIES[1], linewidth=1.4, label=f"mean {mean:.3g}")
        axes.axvline(p95, color=SERIES[3], linewidth=1.4, linestyle="--", label=f"95% are {p95:,} or less")
        axes.plot([highest], [0], "v", color=INK, label=f"most {most_stale(highest)}", clip_on=False)
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
        axes.set_ylabel("pushes")
        axes.legend(frameon=False, fontsize=9, loc="best")
        tidy(axes, grid="y")
        if len(runs) > 1:
            titled(axes, one.name)
    each = "" if width == 1 else f" ({width} to a bar)"
    panels[-1].set_xlabel(f"other pushes between reading weights and pushing{each}")
    panels[-1].set_xlim(-0.6 * width, max(most, 4) - 0.4)
    return figure


def costs(runs: Sequence[RunRecord]) -> Figure:
    """Two bars for each run: by the clock, and of all processors."""
    shown = runs[:BARS]
    figure = canvas(0.9 + 0.5 * len(shown))
    axes = figure.subplots()
    rows = list(range(len(shown)))
    for shift, color, label, of in (
        (-0.19, SERIES[0], "seconds", [one.run.seconds for one in shown]),
        (0.19, SERIES[1], "CPU seconds", [one.cpu or 0.0 for one in shown]),
    ):
        bars = axes.barh([row + shift for row in rows], of, 0.36, color=color, label=label)
        axes.bar_label(bars, [f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}" for value in of], padding=3)
    axes.set_yticks(rows, [format.clean(one.name)[:28] for one in shown])
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="seconds")
    axes.margins(x=0.12)
    axes.tick_params(axis="y", length=0)
    tidy(axes, grid="x")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    return figure


def filtered(told: Sequence[tuple[str, dict[str, Any]]]) -> Figure:
    """What went into and came out of each filter, and of all; a panel for each run and way."""
    ways = [
        (name, found, way)
        for name, found in told[:FEW]
        for way in ("to_servers", "to_workers")
        if found["plain"].get(way) and found["sent"].get(way)
    ]
    figure = canvas(0.5 + sum(0.75 + 0.3 * len(_bars(found, way)) for _, found, way in ways))
    heights = [len(_bars(found, way)) + 1.4 for _, found, way in ways]
    panels = figure.subplots(len(ways), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, found, way) in zip(panels, ways, strict=True):
        bars = _bars(found, way)
        for row, (_, before, after) in enumerate(bars):
            whole = row == len(bars) - 1
            axes.barh(row, before, 0.7, color=PALE, label="in" if row == 0 else None)
            axes.barh(row, after, 0.7, color=SERIES[1 if whole else 0], label="out" if row == 0 else None)
            times = f", {before / after:,.1f} times fewer" if after else ""
            axes.annotate(
                f"{after / 1e6:,.2f} of {before / 1e6:,.2f} MB{times}",
                (max(before, after), row),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        axes.set_yticks(range(len(bars)), [format.clean(said)[:28] for said, _, _ in bars])
        axes.set(ylim=(len(bars) - 0.5, -0.5))
        axes.set_xlim(
            0, 1.75 * max(max(before, after) for _, before, after in bars)
        )  # room for what stands beside the longest
        axes.xaxis.set_major_formatter(lambda size, _: f"{size / 1e6:,.3g} MB")
        axes.locator_params(axis="x", nbins=6)
        axes.tick_params(axis="y", length=0)
        tidy(axes, grid="x")
        titled(axes, f"{format.clean(name) + ', ' if len(told) > 1 else ''}{way.replace('_', ' ')}")
    return figure


def _bars(found: dict[str, Any], way: str) -> list[tuple[str, int, int]]:
    bars = [(name, *counts[way]) for name, counts in found["bytes"].items() if counts[way][0]]
    if saved := found.get("by_number", {}).get(way, 0):
        bars.insert(0, ("lists by number", found["plain"][way], found["plain"][way] - saved))
    return [*bars, ("all together", found["plain"][way], found["sent"][way])]


def delays(run: RunMetrics) -> Figure:
    """The delay that was chosen while running, and how much was waited before each change."""
    figure = canvas(3.2)
    upper, lower = figure.subplots(2, 1, sharex=True)
    at = [event.seconds for event in run.delays]
    upper.step([*at, run.seconds], [*(event.max_delay for event in run.delays), run.delays[-1].max_delay], where="post")
    upper.lines[0].set(color=SERIES[0], linewidth=1.6)
    upper.set_ylabel("max_delay")
    lower.plot(at, [event.waiting for event in run.delays], "o-", color=SERIES[1], linewidth=1)
    lower.axhline(0.05, color=PALE, linewidth=1, linestyle="--")
    lower.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    lower.set(ylabel="waiting", xlabel="seconds since training began")
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        tidy(axes)
    return figure
