"""The picture of ``shoal bench elastic``: rows a second over time, who came and went, how long segments stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.elastic import WINDOW, Results
from shoal.views import axes as draw
from shoal.views import format
from shoal.views.axes import INK, LOST, TEST, TRAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(results: Results) -> Figure:
    figure = draw.canvas(5.8, 10.0)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _rates(top, results)
    _stalls(bottom, results)
    settings = results.settings
    errors = format.many(len(results.errors), "error")
    title = f"While a server joins {settings.servers} and leaves again, {results.lost} of {results.slots:,} slots are lost, "
    below = f"{settings.workers} workers, {results.megabytes:.0f} MB; one run; {results.machine.busy() or 'load not known'}."
    draw.headline(figure, f"{title}{results.doubled} counted twice, with {errors}", below, size=11)
    return figure


def _rates(axes: Axes, results: Results) -> None:
    axes.plot(*zip(*results.rates, strict=True), color=TRAIN, linewidth=1.2) if results.rates else None
    for one in results.phases:
        axes.hlines(one.rate, one.start, one.stop, color=INK, linewidth=1.0, linestyle=":")
        axes.annotate(
            f"{one.name}\n{one.rate:,.0f}", ((one.start + one.stop) / 2, 0.02), xycoords=("data", "axes fraction"),
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
        if one.name.startswith("it "):
            axes.axvspan(one.start, one.stop, color=TEST, alpha=0.15, linewidth=0)
    axes.set_ylabel(f"rows a second (in {WINDOW:g} s)\ndotted: mean of the stretch", color=TRAIN)
    axes.set_ylim(bottom=0)
    draw.numbers(axes.yaxis)
    draw.tidy(axes)


def _stalls(axes: Axes, results: Results) -> None:
    for one in results.moves:
        joins = one.why != "leaving"
        axes.plot([one.at, one.at], [0, 1_000 * one.stall], color=TRAIN if joins else LOST, linewidth=1.5, alpha=0.7)
        axes.plot([one.at], [1_000 * one.stall], ".", color=TRAIN if joins else LOST)
    axes.set_ylabel("a batch stood still,\nmilliseconds")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    draw.numbers(axes.yaxis)
    draw.tidy(axes)
