"""Who has which labels, drawn: a bar for each client, a stretch of it for each label."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from shoal.data.batch import Ids
    from shoal.data.split import SplitInfo

INK, GRID = "#444444", "#dddddd"
LABELS = 40  # more are not told apart: then only how many rows
KEYED = 20  # more have no key of their colours
BARS = 60  # more clients have no names at their bars
WIDTH, BAR, TALLEST = 8.0, 0.34, 12.0  # inches
NAMED_FROM = 0.025  # of the longest bar: a stretch that is wide enough for its label


def installed() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(said: SplitInfo, path: Path) -> None:
    """As a PNG; needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients = len(said.files)
    figure = Figure(
        figsize=(WIDTH, min(TALLEST, 1.9 + BAR * clients)), dpi=120, layout="constrained", facecolor="white"
    )
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if 1 < len(said.labels) <= LABELS:
        _stretches(axes, said)
    else:
        (_bars if clients <= BARS else _steps)(axes, np.zeros(clients, np.int64), np.array(said.sizes), "#0072B2", "")
    if clients <= BARS:
        names = [name.rpartition(".")[0] for name in said.files]
        axes.set_yticks(range(clients), names, fontsize=9, color=INK)
    else:
        axes.set_ylabel(f"client-0 (top) to client-{clients - 1}", color=INK)
    axes.set_ylim(clients - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("rows", color=INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_axisbelow(True)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_title(title(said), loc="left", fontsize=10.5, weight="bold", color=INK, parse_math=False)
    figure.savefig(path, format="png")


def title(said: SplitInfo) -> str:
    how = said.by if said.alpha is None else f"dirichlet, alpha {said.alpha:g}"
    if said.by in ("shuffled", "dirichlet"):
        how += f", seed {said.seed}"
    return f"{said.set[:60]}: {said.rows:,} rows, {len(said.files):,} clients ({how})"


def _stretches(axes: Any, said: SplitInfo) -> None:
    from matplotlib import colormaps

    counts = np.array(said.counts)
    starts = np.cumsum(counts, axis=1) - counts
    for number, label in enumerate(said.labels):
        tone = 0.08 + 0.87 * number / (len(said.labels) - 1)
        colour, name = colormaps["viridis"](tone), f"{label:g}"
        if len(counts) > BARS:
            _steps(axes, starts[:, number], counts[:, number], colour, name)
        else:
            _bars(axes, starts[:, number], counts[:, number], colour, name)
            _names(axes, starts[:, number], counts[:, number], counts.sum(axis=1).max(), name, tone)
    if len(said.labels) <= KEYED:
        key = {"title": "label", "fontsize": 8, "title_fontsize": 8, "handlelength": 1}
        axes.get_figure().legend(loc="outside lower center", ncols=10, frameon=False, **key)


def _bars(axes: Any, left: Ids, width: Ids, colour: Any, label: str) -> None:
    places = np.arange(len(left))
    axes.barh(places, width, left=left, height=0.8, color=colour, edgecolor="white", linewidth=0.5, label=label)


def _steps(axes: Any, left: Ids, width: Ids, colour: Any, label: str) -> None:
    """One shape for all clients: a bar each would take minutes for thousands."""
    edges = np.arange(len(left) + 1) - 0.5
    right = left + width
    inner, outer = np.append(left, left[-1]), np.append(right, right[-1])
    axes.fill_betweenx(edges, inner, outer, step="post", color=colour, linewidth=0, label=label)


def _names(axes: Any, left: Ids, width: Ids, longest: int, label: str, tone: float) -> None:
    colour = "white" if tone < 0.6 else INK
    for place in np.flatnonzero(width > NAMED_FROM * longest):
        middle = left[place] + width[place] / 2
        axes.text(middle, place, label, ha="center", va="center", fontsize=8, color=colour)
