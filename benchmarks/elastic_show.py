"""The picture of ``shoal bench elastic``: rows a second over time, who came and went, how long segments stood still."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.elastic import WINDOW, Results
from shoal.errors import Invalid
from shoal.views.axes import INK, LOST, TEST, TRAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(results: Results) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Invalid("pictures need matplotlib: pip install 'shoal[view]'") from None
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _rates(top, results)
    _stalls(bottom, results)
    settings = results.settings
    figure.suptitle(
        f"A server joins {settings.servers} and leaves again: {settings.workers} workers, {results.megabytes:.0f} MB. "
        f"{results.slots:,} slots, {results.lost} lost, {results.doubled} doubled, {len(results.errors)} errors\n"
        f"one run; {results.machine.busy() or 'the load of the machine is not known'}",
        color=LOST if results.lost or results.doubled or results.errors else INK,
        fontsize=11,
    )
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
    axes.spines[["top", "right"]].set_visible(False)


def _stalls(axes: Axes, results: Results) -> None:
    for one in results.moves:
        joins = one.why != "leaving"
        axes.plot([one.at, one.at], [0, 1_000 * one.stall], color=TRAIN if joins else LOST, linewidth=1.5, alpha=0.7)
        axes.plot([one.at], [1_000 * one.stall], ".", color=TRAIN if joins else LOST)
    axes.set_ylabel("a batch stood still, ms")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
