"""Peers that gossip: the graph of their links, and how far their models are from the mean.

    draw(event, "topology.png")             the graph
    draw(last, "topology.png", first)       as it is now; lost nodes and links in grey
    draw_last(events, "topology.png")       the same, of a run

A torus is a grid, a star has its hub in the middle, all others are circles. Unconnected pieces have
different colours. Links to unknown nodes are not drawn.

The distance is the root of the mean, over all workers, of the squared distance of their weights
from the mean of all weights. Without learning, a round of averaging leaves a share of it: the
second eigenvalue of the mixing matrix. Learning moves models apart again, so that in training
the distance stays where both are in balance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import Invalid
from shoal.events import Evaluated, Linked, RunEvent
from shoal.strategies.gossip.topology import sides
from shoal.views import axes as canvas
from shoal.views import format
from shoal.views.axes import INK, PALE, SERIES
from shoal.views.page import Section
from shoal.views.plots import curve
from shoal.views.run_record import RunMetrics, RunRecord

if TYPE_CHECKING:
    from shoal.views.axes import Axes, Figure

Points = list[tuple[float, float]]

LOOSE = ("file", "random")  # graphs without a shape: their pieces follow each other
NAMED = 64  # nodes that have room for a number
ARROWS = 600  # links with a head
APART = 0.9  # of a place, between two pieces on the circle
HEIGHT = 4.6  # inches
BENT = 0.28  # how far a link around the edge of a grid bends out


def draw(event: Linked, path: str | Path | None = None, before: Linked | None = None) -> Figure:
    if path is not None:
        canvas.target_of(Path(path))
    figure, (axes,) = canvas.stack([HEIGHT])
    axes.set_aspect("equal")
    axes.set_axis_off()
    at = places(event)
    size = 20.0 if len(at) <= 24 else 14.0 if len(at) <= NAMED else 5.0  # points
    left = {tuple(link) for link in event.links}
    earlier = [] if before is None or before.nodes != event.nodes else before.links
    lost = [link for link in earlier if tuple(link) not in left]
    _draw_links(axes, event, lost, at, size, {"color": PALE, "linewidth": 0.8, "linestyle": ":"})
    _draw_links(axes, event, event.links, at, size, {"color": INK, "linewidth": 1.1, "linestyle": "-"})
    _draw_nodes(axes, event, at, size)
    axes.margins(0.14 if event.topology == "torus" else 0.08)
    canvas.titled(axes, title(event))
    canvas.headline(figure, "", caption(event))
    if path is not None:
        canvas.save(figure, path)
    return figure


def draw_last(events: Iterable[RunEvent], path: str | Path | None = None) -> Figure | None:
    """The graph at the end of a run; None without links."""
    told = [event for event in events if isinstance(event, Linked)]
    return draw(told[-1], path, told[0]) if told else None


def title(event: Linked) -> str:
    ways = "one-way link" if event.directed else "link"
    return f"{format.clean(event.topology)}: {format.many(len(event.nodes), 'worker')}, {format.many(len(event.links), ways)}"


def caption(event: Linked) -> str:
    said = f"spectral gap {event.gap:.3g}"
    if event.rounds is None:
        said += f": {len(event.parts):,} pieces (by colour) that never agree"
    elif event.rounds > 0 and event.pairs:
        said += "; two meet at a time"
    elif event.rounds > 0:
        said += f": a hundredth of the distance from the mean is left after {format.rounds(event.rounds)}"
    gone = len(event.nodes) - sum(len(part) for part in event.parts)
    return said + (f"; grey: {format.many(gone, 'worker')} gone" if gone > 0 else "")


def places(event: Linked) -> Points:
    nodes = len(event.nodes)
    if event.topology == "torus":
        try:
            _, columns = sides(nodes)
        except Invalid:  # no torus has so many nodes: draw it anyway
            columns = max(1, math.isqrt(nodes))
        return [(float(i % columns), -float(i // columns)) for i in range(nodes)]
    if event.topology == "star" and nodes > 1:
        return [(0.0, 0.0), *_circle([range(1, nodes)])]
    loose = len(event.parts) > 1 and event.topology in LOOSE
    groups = [[node for node in part if 0 <= node < nodes] for part in event.parts] if loose else []
    rest = sorted(set(range(nodes)) - {node for part in groups for node in part})
    order = [*groups, rest]
    found = dict(zip((node for part in order for node in part), _circle(order), strict=True))
    return [found[node] for node in range(nodes)]


def _circle(groups: Sequence[Sequence[int]]) -> Points:
    """From the top, clockwise; groups with a gap between them."""
    filled = [len(group) for group in groups if group]
    gap = APART if len(filled) > 1 else 0.0
    whole = sum(filled) + gap * len(filled)
    starts = accumulate((count + gap for count in filled), initial=0.0)
    turns = [(start + i) / whole for start, count in zip(starts, filled, strict=False) for i in range(count)]
    return [(math.sin(2 * math.pi * turn), math.cos(2 * math.pi * turn)) for turn in turns]


def _draw_links(
    axes: Axes, event: Linked, links: Sequence[tuple[int, int]], at: Points, size: float, style: dict[str, Any]
) -> None:
    from matplotlib.collections import LineCollection
    from matplotlib.patches import FancyArrowPatch

    known = range(len(at))
    links = [(i, j) for i, j in links if i in known and j in known and i != j]
    heads = event.directed and len(links) <= ARROWS
    around = {link for link in links if event.topology == "torus" and math.dist(at[link[0]], at[link[1]]) > 1.5}
    plain = [] if heads else [(at[i], at[j]) for i, j in links if (i, j) not in around]
    lines = LineCollection(plain, zorder=1, **style)
    lines.set_linewidth(style["linewidth"] * min(1.0, 40 / math.sqrt(len(plain) + 1)))
    axes.add_collection(lines)
    for i, j in links if heads else around:
        bent = _bent(at, i, j) if (i, j) in around else 0.0
        arrow = FancyArrowPatch(at[i], at[j], shrinkA=size / 2, shrinkB=size / 2 + 1, mutation_scale=10, **style)
        arrow.set(arrowstyle="-|>" if heads else "-", connectionstyle=f"arc3,rad={bent}", zorder=1)
        axes.add_patch(arrow)


def _bent(at: Points, start: int, stop: int) -> float:
    """A link around the edge of a grid bends to the side that is nearer to the edge."""
    axis = 1 if at[start][1] == at[stop][1] else 0  # along a row it bends up or down
    low, high = min(point[axis] for point in at), max(point[axis] for point in at)
    return (-BENT if at[start][axis] > (low + high) / 2 else BENT) * (1 if start < stop else -1)


def _draw_nodes(axes: Axes, event: Linked, at: Points, size: float) -> None:
    piece = {node: number for number, part in enumerate(event.parts) for node in part}
    colors = [SERIES[piece[node] % (len(SERIES) - 1)] if node in piece else PALE for node in range(len(at))]
    axes.scatter([x for x, _ in at], [y for _, y in at], s=size**2, c=colors, edgecolors="white", zorder=2)
    if len(at) > NAMED:
        return
    for (x, y), name in zip(at, numbers(event.nodes), strict=True):
        text = axes.text(x, y, name, ha="center", va="center", color="white", fontsize=8 if size > 15 else 6, zorder=3)
        text.set_parse_math(False)


def numbers(names: Sequence[str]) -> list[str]:
    """Node labels: worker-3 is 3, if that is unique; otherwise positions."""
    found = [match[0] if (match := re.search(r"\d{1,4}$", name)) else "" for name in names]
    return found if all(found) and len(set(found)) == len(found) else [str(place) for place in range(len(names))]


Point = tuple[float, float]  # rounds (or epochs), distance

STEPS = 50  # of a predicted curve
CAPTION = " The test loss of workers that each have a model is that of the mean of all."


def points(run: RunMetrics) -> tuple[str, list[Point]]:
    """Distances over rounds; over epochs where no rounds are recorded."""
    judged = [event for event in run.evaluations if math.isfinite(event.spread.get("distance", math.nan))]
    if judged and all("rounds" in event.spread for event in judged):
        return "rounds", [(event.spread["rounds"], event.spread["distance"]) for event in judged]
    return "epochs", [(event.passes, event.spread["distance"]) for event in judged]


def graphs(run: RunMetrics) -> list[Linked]:
    """The graph at first, and after every loss of a worker."""
    return [event for event in run.happened if isinstance(event, Linked)]


def picture(run: RunMetrics) -> Figure | None:
    over, found = points(run)
    drawn = [(at, distance) for at, distance in found if distance > 0]
    if not drawn:
        return None
    figure, (axes,) = canvas.stack([3.2])
    x, y = zip(*drawn, strict=True)
    if predicted := _predicted(run, over, found):
        label = f"if nobody learned: {1 - graphs(run)[0].gap:.3f} of it left by a round"
        axes.plot(*zip(*predicted, strict=True), "--", color=SERIES[1], linewidth=1.2, label=label)
    curve(axes, x, y, SERIES[0], "measured")
    if not canvas.log_if_steep(axes.yaxis, y):
        axes.set_ylim(bottom=0)
    axes.set(ylabel="distance from the mean", xlabel=over)
    canvas.legend(axes)
    canvas.tidy(axes)
    return figure


def _predicted(run: RunMetrics, over: str, found: Sequence[Point]) -> list[Point]:
    """Only where models differ from the start; what learning adds is not predicted."""
    told = graphs(run)
    if over != "rounds" or len(found) < 2 or not told or found[0][1] <= 0 or not 0 <= told[0].gap < 1:
        return []
    (start, first), last = found[0], found[-1][0]
    second, least = 1 - told[0].gap, min(distance for _, distance in found if distance > 0)
    end = last if second >= 1 else min(last, start + math.log(least / first / 10) / math.log(second))
    at = [start + (end - start) * step / STEPS for step in range(STEPS + 1)]
    return [(one, first * second ** (one - start)) for one in at]


def columns(events: Sequence[Evaluated]) -> dict[str, Callable[[Evaluated], str]]:
    """Columns for the table of evaluations; none where all workers share a model."""
    said = {
        "best worker": lambda event: format.loss(event.spread.get("best")),
        "worst worker": lambda event: format.loss(event.spread.get("worst")),
        "distance": lambda event: format.distance(event.spread["distance"]) if "distance" in event.spread else "-",
    }
    return said if any(event.spread for event in events) else {}


def section(one: RunRecord, of: str) -> Section | None:
    told = graphs(one.run)
    if not told:
        return None
    caption = f"{'An arrow goes to who hears' if told[-1].directed else 'A line joins two who hear each other'}."
    caption += f" Who learns from which: {format.clean(told[0].rows)}." if told[0].rows else ""
    drawn = canvas.pictures(f"graph-{one.name}", lambda: draw(told[-1], before=told[0]), caption)
    if any("distance" in event.spread for event in one.run.evaluations):
        caption = "How far models are from their mean: the root of the mean, over all workers, of the squared distance."
        drawn += canvas.pictures(f"distance-{one.name}", lambda: picture(one.run), caption)
    return Section(f"Who hears whom{of}", [], drawn)


def seen(told: RunRecord) -> str:
    judged = [event for event in told.run.finite if "distance" in event.spread]
    if not judged:
        return ""
    last, spread = judged[-1], judged[-1].spread
    said = "Every worker has a model of its own: the loss reported here is that of their mean, which no worker has."
    if {"best", "worst"} <= spread.keys():
        said += (
            f" At the end it was {format.loss(last.test_loss)}, that of the best worker {format.loss(spread['best'])},"
        )
        said += f" that of the worst {format.loss(spread['worst'])}."
    distances = [distance for _, distance in points(told.run)[1]]
    now, most = distances[-1], max(distances)
    if now == 0:
        said += " All models are the same."
    elif most <= now:
        said += f" They are {format.distance(now)} from it, which is as far as they ever were."
    else:
        said += f" They are {format.distance(now)} from it, and were {format.distance(most)} at most."
    last_graph = graphs(told.run)[-1:]
    return said + (f" {_agreement(last_graph[0])}" if last_graph else "").rstrip()


def _agreement(event: Linked) -> str:
    if event.rounds is None:
        pieces = format.many(len(event.parts), "piece")
        return f"The graph is in {pieces}, which do not exchange models and never agree."
    if event.rounds <= 0:
        return ""
    if event.pairs:
        return f"Two meet at a time, whenever they are ready (spectral gap of the graph {event.gap:.3g})."
    left = f"a hundredth of a distance would be left after {format.rounds(event.rounds)}"
    return f"By its graph (spectral gap {event.gap:.3g}) {left}, if nobody learned meanwhile."
