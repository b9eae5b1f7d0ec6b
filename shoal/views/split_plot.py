"""Which client has which labels: a bar for each client, with a stretch for each label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.views import axes as draw
from shoal.views.axes import INK, SERIES

if TYPE_CHECKING:
    from shoal.data.batch import Ids
    from shoal.data.split import SplitInfo

LABELS = 40  # with more, only the number of rows is drawn: too many colours
KEYED = 20  # labels with an entry in the legend
BARS = 60  # clients with names at their bars
WIDTH, BAR, TALLEST = 8.0, 0.34, 12.0  # inches
NAMED_FROM = 0.025  # of the longest bar: wide enough for a label


def draw_split(info: SplitInfo, path: Path) -> None:
    """Saves the picture as a PNG; needs matplotlib."""
    import numpy as np

    clients = len(info.files)
    figure = draw.canvas(min(TALLEST, 1.9 + BAR * clients), WIDTH)
    axes = figure.add_subplot()
    if 1 < len(info.labels) <= LABELS:
        _stretches(axes, info)
    else:
        (_bars if clients <= BARS else _steps)(axes, np.zeros(clients, np.int64), np.array(info.sizes), SERIES[0], "")
    if clients <= BARS:
        draw.row_names(axes, [name.rpartition(".")[0] for name in info.files], size=9)
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"client-0 (top) to client-{clients - 1}", color=INK)
    axes.set_ylim(clients - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("rows", color=INK)
    draw.numbers(axes.xaxis)
    draw.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
    draw.titled(axes, title(info))
    draw.save(figure, path)


def title(info: SplitInfo) -> str:
    how = info.by if info.alpha is None else f"dirichlet, alpha {info.alpha:g}"
    if info.by in ("shuffled", "dirichlet"):
        how += f", seed {info.seed}"
    return f"{info.set[:60]}: {info.rows:,} rows, {len(info.files):,} clients ({how})"


def _stretches(axes: Any, info: SplitInfo) -> None:
    import numpy as np
    from matplotlib import colormaps

    counts = np.array(info.counts)
    starts = np.cumsum(counts, axis=1) - counts
    for number, label in enumerate(info.labels):
        tone = 0.08 + 0.87 * number / (len(info.labels) - 1)
        colour, name = colormaps["viridis"](tone), f"{label:g}"
        if len(counts) > BARS:
            _steps(axes, starts[:, number], counts[:, number], colour, name)
        else:
            _bars(axes, starts[:, number], counts[:, number], colour, name)
            _names(axes, starts[:, number], counts[:, number], counts.sum(axis=1).max(), name, tone)
    if len(info.labels) <= KEYED:
        options = {"title": "label", "fontsize": 8, "title_fontsize": 8, "handlelength": 1, "ncols": 10}
        handles, _ = axes.get_legend_handles_labels()
        draw.legend(axes.get_figure(), handles, loc="outside lower center", **options)


def _bars(axes: Any, left: Ids, width: Ids, colour: Any, label: str) -> None:
    axes.barh(
        range(len(left)), width, left=left, height=0.8, color=colour, edgecolor="white", linewidth=0.5, label=label
    )


def _steps(axes: Any, left: Ids, width: Ids, colour: Any, label: str) -> None:
    """Draw all clients as one shape: thousands of bars would take minutes."""
    import numpy as np

    edges = np.arange(len(left) + 1) - 0.5
    right = left + width
    inner, outer = np.append(left, left[-1]), np.append(right, right[-1])
    axes.fill_betweenx(edges, inner, outer, step="post", color=colour, linewidth=0, label=label)


def _names(axes: Any, left: Ids, width: Ids, longest: int, label: str, tone: float) -> None:
    colour = "white" if tone < 0.6 else INK
    for place in (width > NAMED_FROM * longest).nonzero()[0]:
        middle = left[place] + width[place] / 2
        axes.text(middle, place, label, ha="center", va="center", fontsize=8, color=colour)
