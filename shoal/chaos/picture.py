"""The timeline of a drill: faults and recoveries over the throughput, as a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.chaos.plan import COORDINATOR, PLANNED
from shoal.chaos.report import ChaosReport
from shoal.errors import Invalid
from shoal.views import format
from shoal.views.plots import INK, LOST, TEST, TRAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROLES = (COORDINATOR, "server", "worker")
MARKS = {"kill": "x", "pause": "|", "cut": (2, 0, 315), "join": ">", "drain": "<"}


def timeline(report: ChaosReport, path: str | os.PathLike[str]) -> Path:
    """Write it there; needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Invalid("pictures need matplotlib: pip install 'shoal[view]'") from None
    figure = Figure(figsize=(10, 5.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _throughput(top, report)
    _faults(bottom, report)
    figure.suptitle(report.verdict, color=INK if report.ok else LOST, fontsize=11)
    figure.savefig(Path(path), dpi=120)
    return Path(path)


def _throughput(axes: Axes, report: ChaosReport) -> None:
    axes.plot(*_columns(report.throughput), color=TRAIN, linewidth=1.2)
    axes.set_ylabel("rows a second", color=TRAIN)
    axes.set_ylim(bottom=0)
    for one in report.healed:
        axes.axvline(one.at, color=LOST, linewidth=0.6, alpha=0.5)
    other = axes.twinx()
    other.plot(*_columns(report.losses), color=TEST, marker=".", linewidth=1.0)
    if report.clean_loss is not None:
        other.axhline(report.clean_loss, color=TEST, linestyle=":", linewidth=1.0)
    other.set_ylabel(f"test loss (dotted: clean run, {format.loss(report.clean_loss)})", color=TEST)
    for side in ("top",):
        axes.spines[side].set_visible(False)
        other.spines[side].set_visible(False)


def _faults(axes: Axes, report: ChaosReport) -> None:
    """A bar from each fault until it had healed; one that the end of the run cut short is open."""
    names = sorted({one.fault.name for one in report.healed}, key=lambda name: (ROLES.index(_role(name)), name))
    end = max([report.seconds, *(one.at for one in report.healed)], default=0.0)
    for one in report.healed:
        row = names.index(one.fault.name)
        length = one.well if one.well is not None else max(0.0, end - one.at)
        colour = LOST if one.fault.kind == "kill" else TRAIN if one.fault.kind in PLANNED else TEST
        axes.barh(row, length, left=one.at, height=0.5, color=colour, alpha=0.35 if one.well is not None else 0.12)
        axes.plot([one.at], [row], marker=MARKS[one.fault.kind], color=colour, markersize=7)
        if one.promoted is not None:
            axes.plot([one.at + one.promoted], [row], marker=".", color=TRAIN, markersize=6)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        "seconds (x: kill -9, |: pause, /: cut off, > joins, < asked to go; bar: until healed, dot: pushes count again)"
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _role(name: str) -> str:
    return next(role for role in ROLES if name.startswith(role))


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
