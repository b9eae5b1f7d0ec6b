"""Pictures of a report: where the time went, staleness, cost, filters, delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shoal.schedule.stragglers import MOST_WAITING
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, PALE, SERIES
from shoal.views.plots import FEW
from shoal.views.run_record import OF_WORKERS, RunMetrics, RunRecord
from shoal.views.timeline import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 64  # of a histogram
BARS = 32  # workers in one picture


def shares(rows: Sequence[tuple[str, dict[str, float]]]) -> Figure:
    """The shares of time: a bar for each worker, or each run."""
    figure = draw.canvas(0.9 + 0.3 * len(rows[:BARS]))
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
    draw.row_names(axes, [name for name, _ in rows[:BARS]])
    axes.set_xlim(0, 1)
    draw.percents(axes.xaxis)
    draw.tidy(axes, grid="")
    draw.legend(figure, loc="outside upper left", ncols=4)
    return figure


def staleness(runs: Sequence[RunRecord]) -> Figure:
    """A histogram of staleness in percent; a panel for each run, on one scale."""
    told = [(one, stale) for one in runs if (stale := one.staleness) is not None]
    most = max(len(counts) for _, (counts, *_) in told)
    width = -(-most // BINS)
    figure = draw.canvas(0.6 + 1.7 * len(told))
    panels = figure.subplots(len(told), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (one, (counts, mean, p95, highest)) in zip(panels, told, strict=True):
        whole = sum(counts)
        bars = [sum(counts[at : at + width]) / whole for at in range(0, len(counts), width)]
        middles = [at * width + (width - 1) / 2 for at in range(len(bars))]
        axes.bar(middles, bars, 0.86 * width, color=SERIES[0])
        axes.axvline(mean, color=SERIES[1], linewidth=1.4, label=f"mean {mean:.3g}")
        axes.axvline(p95, color=SERIES[3], linewidth=1.4, linestyle="--", label=f"95% are {p95:,} or less")
        axes.plot([highest], [0], "v", color=INK, label=f"max {format.most_stale(highest)}", clip_on=False)
        draw.percents(axes.yaxis)
        axes.set_ylabel("pushes")
        draw.legend(axes, loc="best")
        draw.tidy(axes, grid="y")
        if len(runs) > 1:
            draw.titled(axes, one.name)
    each = "" if width == 1 else f" ({width} to a bar)"
    panels[-1].set_xlabel(f"other pushes between reading weights and pushing{each}")
    panels[-1].set_xlim(-0.6 * width, max(most, 4) - 0.4)
    return figure


def costs(runs: Sequence[RunRecord]) -> Figure:
    """Two bars for each run: wall time and CPU time."""
    shown = runs[:BARS]
    figure = draw.canvas(0.9 + 0.5 * len(shown))
    axes = figure.subplots()
    rows = list(range(len(shown)))
    for shift, color, label, of in (
        (-0.19, SERIES[0], "seconds", [one.run.seconds for one in shown]),
        (0.19, SERIES[1], "CPU seconds", [one.cpu or 0.0 for one in shown]),
    ):
        bars = axes.barh([row + shift for row in rows], of, 0.36, color=color, label=label)
        axes.bar_label(bars, [f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}" for value in of], padding=3)
    axes.margins(x=0.12)
    draw.row_names(axes, [one.name for one in shown])
    axes.set_xlabel("seconds")
    draw.numbers(axes.xaxis)
    draw.tidy(axes, grid="x")
    draw.legend(figure, loc="outside upper left", ncols=2)
    return figure


def filtered(told: Sequence[tuple[str, dict[str, Any]]]) -> Figure:
    """Bytes into and out of each filter, and in all; a panel per run and direction."""
    ways = [
        (name, found, way)
        for name, found in told[:FEW]
        for way in ("to_servers", "to_workers")
        if found["plain"].get(way) and found["sent"].get(way)
    ]
    figure = draw.canvas(0.5 + sum(0.75 + 0.3 * len(_bars(found, way)) for _, found, way in ways))
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
        draw.row_names(axes, [name for name, _, _ in bars])
        longest = max(max(before, after) for _, before, after in bars)
        axes.set_xlim(0, 1.75 * longest)  # room for the text beside the longest
        axes.xaxis.set_major_formatter(lambda size, _: f"{size / 1e6:,.3g} MB")
        axes.locator_params(axis="x", nbins=6)
        draw.tidy(axes, grid="x")
        draw.titled(axes, f"{format.clean(name) + ', ' if len(told) > 1 else ''}{way.replace('_', ' ')}")
    return figure


def _bars(found: dict[str, Any], way: str) -> list[tuple[str, int, int]]:
    bars = [(name, *counts[way]) for name, counts in found["bytes"].items() if counts[way][0]]
    if saved := found.get("by_number", {}).get(way, 0):
        bars.insert(0, ("lists by number", found["plain"][way], found["plain"][way] - saved))
    return [*bars, ("all together", found["plain"][way], found["sent"][way])]


def delays(run: RunMetrics) -> Figure:
    """The delay chosen during training, and the share of waiting before each change."""
    figure = draw.canvas(3.2)
    upper, lower = figure.subplots(2, 1, sharex=True)
    at = [event.seconds for event in run.delays]
    upper.step([*at, run.seconds], [*(event.max_delay for event in run.delays), run.delays[-1].max_delay], where="post")
    upper.lines[0].set(color=SERIES[0], linewidth=1.6)
    upper.set_ylabel("max_delay")
    lower.plot(at, [event.waiting for event in run.delays], "o-", color=SERIES[1], linewidth=1)
    draw.reference(lower, MOST_WAITING, f"{MOST_WAITING:.0%}: the delay is raised above this")
    draw.percents(lower.yaxis)
    lower.set(ylabel="waiting", xlabel="seconds since training began")
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        draw.tidy(axes)
    return figure
