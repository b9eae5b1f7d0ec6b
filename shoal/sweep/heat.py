"""Two axes of numbers at once: a heat map, with every figure written in its cell and the best one framed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.sweep.figures import PointFigures, StudyFigures
from shoal.sweep.findings import seconds
from shoal.sweep.grid import Axis
from shoal.sweep.lines import at, measure
from shoal.views import format

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 20  # cells along one side: more cannot be read


def can_heat(of: StudyFigures) -> bool:
    """Two axes, both of three or more numbers, and something to show."""
    axes = _axes(of)
    return (
        len(axes) == 2
        and all(3 <= len(axis.choices) <= MOST and all(one.number is not None for one in axis.choices) for axis in axes)
        and any(measure(one, of.has_target) is not None for one in of.shown)
    )


def draw_heat(figure: Figure, of: StudyFigures) -> str:
    """Draw it; what it shows, in words."""
    import numpy as np

    across, up = sorted(_axes(of), key=lambda axis: axis.name != of.sweep.study.x)
    axes = figure.subplots()
    grid = np.full((len(up.choices), len(across.choices)), np.nan)
    columns, rows = ([choice.label for choice in axis.choices] for axis in (across, up))
    for one in of.shown:
        spread = measure(one, of.has_target)
        if spread is not None:
            grid[rows.index(at(one, up)), columns.index(at(one, across))] = spread.median
    image = axes.imshow(grid, origin="lower", cmap="viridis_r", aspect="auto")
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for one in of.shown:
        row, column = rows.index(at(one, up)), columns.index(at(one, across))
        dark = not np.isnan(grid[row, column]) and grid[row, column] > middle
        axes.text(
            column,
            row,
            _cell(one, of.has_target),
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black",
        )
        if one is of.best:
            frame = axes.plot([column - 0.47, column + 0.47, column + 0.47, column - 0.47, column - 0.47],
                              [row - 0.47, row - 0.47, row + 0.47, row + 0.47, row - 0.47])  # fmt: skip
            frame[0].set(color="#D55E00", linewidth=3)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(across.short)
    axes.set_ylabel(up.short)
    what = "seconds to the target" if of.has_target else "last test loss"
    figure.colorbar(image, ax=axes, label=f"{what}, median over seeds")
    return f"{what} over {across.short} and {up.short}: medians; the frame marks the best; a cell without a colour has no figure."


def _cell(one: PointFigures, has_target: bool) -> str:
    spread = measure(one, has_target)
    if spread is not None:
        return seconds(spread.median) if has_target else format.loss(spread.median)
    if any(run.result.state == "diverged" for run in one.runs):
        return "diverged"
    return f"{one.reached} of {len(one.runs)}" if one.censored else "-"


def _axes(of: StudyFigures) -> list[Axis]:
    return of.sweep.study.axes or of.sweep.study.serial_axes
