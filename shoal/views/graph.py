"""Draws the graph of links between peers, from a run's events (``Linked``).

    draw(event, "topology.png")             the graph
    draw(last, "topology.png", first)       as it is now; lost nodes and links in grey
    draw_last(events, "topology.png")       the same, of a run

A torus is a grid, a star has its hub in the middle, all others are circles. Unconnected pieces have
different colours. Links to unknown nodes are not drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import Invalid
from shoal.events import Linked, RunEvent
from shoal.strategies.gossip.topology import sides
from shoal.views import format
from shoal.views.axes import INK, PALE, SERIES, headline, save, stack, target_of, titled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = list[tuple[float, float]]

LOOSE = ("file", "random")  # graphs without a shape: their pieces follow each other
NAMED = 64  # nodes that have room for a number
ARROWS = 600  # links with a head
APART = 0.9  # of a place, between two pieces on the circle
HEIGHT = 4.6  # inches
BENT = 0.28  # how far a link around the edge of a grid bends out


def draw(event: Linked, path: str | Path | None = None, before: Linked | None = None) -> Figure:
    """The graph; written to ``path`` if given."""
    if path is not None:
        target_of(Path(path))
    figure, (axes,) = stack([HEIGHT])
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
    titled(axes, title(event))
    headline(figure, "", caption(event))
    if path is not None:
        save(figure, path)
    return figure


def draw_last(events: Iterable[RunEvent], path: str | Path | None = None) -> Figure | None:
    """The graph at the end of a run; None without links."""
    told = [event for event in events if isinstance(event, Linked)]
    return draw(told[-1], path, told[0]) if told else None


def title(event: Linked) -> str:
    ways = "one-way link" if event.directed else "link"
    return f"{format.clean(event.topology)}: {format.many(len(event.nodes), 'worker')}, {format.many(len(event.links), ways)}"


def caption(event: Linked) -> str:
    """The properties of the graph in a few words."""
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
    """The position of each node."""
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
