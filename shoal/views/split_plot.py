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
    figure, (axes,) = draw.stack([min(TALLEST, 1.9 + BAR * clients)], width=WIDTH)
    if 1 < len(info.labels) <= LABELS:
        _draw_labels(axes, info)
    else:
        _draw_bars(axes, np.zeros(clients, np.int64), np.array(info.sizes), SERIES[0], "")
    draw.span_rows(axes, [name.rpartition(".")[0] for name in info.files], size=9)
    if clients > BARS:
        axes.set_yticks([])
        axes.set_ylabel(f"client-0 (top) to client-{clients - 1}", color=INK)
    axes.set_ylim(clients - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("rows", color=INK)
    draw.numbers(axes.xaxis)
    draw.titled(axes, title(info))
    draw.save(figure, path)


def title(info: SplitInfo) -> str:
    how = info.by if info.alpha is None else f"dirichlet, alpha {info.alpha:g}"
    if info.by in ("shuffled", "dirichlet"):
        how += f", seed {info.seed}"
    return f"{info.set[:60]}: {info.rows:,} rows, {len(info.files):,} clients ({how})"


def _draw_labels(axes: Any, info: SplitInfo) -> None:
    import numpy as np
    from matplotlib import colormaps

    counts = np.array(info.counts)
    starts, longest = np.cumsum(counts, axis=1) - counts, counts.sum(axis=1).max()
    for label, tone, left, width in zip(
        info.labels, np.linspace(0.08, 0.95, len(info.labels)), starts.T, counts.T, strict=True
    ):
        _draw_bars(axes, left, width, colormaps["viridis"](tone), f"{label:g}")
        ink = "white" if tone < 0.6 else INK
        for place in (width > NAMED_FROM * longest).nonzero()[0] if len(counts) <= BARS else ():
            middle = left[place] + width[place] / 2
            axes.text(middle, place, f"{label:g}", ha="center", va="center", fontsize=8, color=ink)
    if len(info.labels) <= KEYED:
        options = {"title": "label", "fontsize": 8, "title_fontsize": 8, "handlelength": 1, "ncols": 10}
        handles, _ = axes.get_legend_handles_labels()
        draw.legend(axes.get_figure(), handles, loc="outside lower center", **options)


def _draw_bars(axes: Any, left: Ids, width: Ids, colour: Any, label: str) -> None:
    """A bar for each client; many make one shape, as thousands of bars would take minutes."""
    import numpy as np

    if len(left) <= BARS:
        bars = axes.barh(range(len(left)), width, 0.8, left=left, color=colour, label=label)
        for bar in bars:
            bar.set(edgecolor="white", linewidth=0.5)
        return
    inner, outer = np.append(left, left[-1]), np.append(left + width, left[-1] + width[-1])
    edges = np.arange(len(inner)) - 0.5
    axes.fill_betweenx(edges, inner, outer, step="post", color=colour, linewidth=0, label=label)
