"""Pictures of graphs give every node a place; parts and lost nodes are visible.

Unusual input does not break them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from shoal.cli.topology import NAMES
from shoal.errors import Invalid
from shoal.events import Linked
from shoal.strategies.gossip import Gossip, Topology
from shoal.views import graph
from shoal.views.axes import PALE, SERIES


def linked(topology: str, nodes: int, without: tuple[int, ...] = ()) -> Linked:
    found = Gossip(topology=topology).graph(nodes, 0)  # type: ignore[arg-type]
    for node in without:
        found = found.without(node)
    return found.event(0.0, [f"worker-{i}" for i in range(nodes)])


def colors(figure: Figure) -> list[str]:
    return [to_hex(one, keep_alpha=False).upper() for one in figure.axes[0].collections[-1].get_facecolors()]  # type: ignore[attr-defined]


def said(figure: Figure) -> str:
    return " ".join(f"{figure.get_supxlabel()} {figure.axes[0].get_title(loc='left')}".split())


@pytest.mark.parametrize("topology", ["ring", "one-way", "torus", "star", "complete", "exponential", "random"])
def test_every_graph_is_drawn_with_all_its_nodes_apart_from_each_other(topology: str) -> None:
    event = linked(topology, 16)
    at = graph.places(event)
    assert len(at) == 16
    assert min(math.dist(one, other) for i, one in enumerate(at) for other in at[:i]) > 0.2
    figure = graph.draw(event)
    assert [text.get_text() for text in figure.axes[0].texts] == [str(i) for i in range(16)]
    assert set(colors(figure)) == {SERIES[0]}


def test_the_caption_has_the_gap_and_the_rounds(tmp_path: Path) -> None:
    figure = graph.draw(linked("ring", 8), tmp_path / "topology.png")
    assert "ring: 8 workers, 8 links" in said(figure)
    assert "spectral gap 0.195: a hundredth of the distance from the mean is left after 21 rounds" in said(figure)
    assert (tmp_path / "topology.png").stat().st_size > 5_000


def test_a_torus_is_a_grid_and_a_star_has_its_hub_in_the_middle() -> None:
    assert graph.places(linked("torus", 6))[4] == (1.0, -1.0)
    assert graph.places(linked("star", 6))[0] == (0.0, 0.0)


def test_pieces_have_colours_of_their_own_and_are_told() -> None:
    event = Linked(
        seconds=0,
        topology="file",
        nodes=["a", "b", "c", "d"],
        links=[(0, 2), (1, 3)],
        directed=False,
        gap=0.0,
        rounds=None,
        parts=[[0, 2], [1, 3]],
    )
    figure = graph.draw(event)
    assert colors(figure) == [SERIES[0], SERIES[1], SERIES[0], SERIES[1]]
    assert "2 pieces (by colour) that never agree" in said(figure)
    # Their names have no numbers, so the index is shown.
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "1", "2", "3"]


def test_one_way_links_have_heads() -> None:
    assert len(graph.draw(linked("one-way", 5)).axes[0].patches) == 5
    assert len(graph.draw(linked("ring", 5)).axes[0].patches) == 0


def test_who_is_gone_is_grey_and_so_are_its_links() -> None:
    figure = graph.draw(linked("ring", 6, without=(2,)), before=linked("ring", 6))
    assert colors(figure).count(PALE.upper()) == 1 and colors(figure)[2] == PALE.upper()
    assert "grey: 1 worker gone" in said(figure)
    assert len(figure.axes[0].collections[0].get_segments()) == 2  # type: ignore[attr-defined]


def test_the_last_graph_of_a_run_is_drawn_and_none_where_there_is_none(tmp_path: Path) -> None:
    events = [linked("ring", 6), linked("ring", 6, without=(2,))]
    assert "1 worker gone" in said(graph.draw_last(events) or Figure())
    assert graph.draw_last([], tmp_path / "topology.png") is None and not list(tmp_path.iterdir())


def test_what_cannot_be_is_left_out() -> None:
    event = Linked(
        seconds=0,
        topology="torus",
        nodes=["$x$", "worker-1", "worker-1", "\x1b[2J", "e", "f", "g"],
        links=[(0, 99), (3, 3), (-1, 2), (0, 1)],
        directed=True,
        gap=math.nan,
        rounds=math.inf,
        parts=[[0, 42], [1]],
    )
    graph.draw(event).canvas.draw()


@pytest.mark.parametrize("nodes", [0, 1, 200])
def test_graphs_of_any_size_can_be_drawn(nodes: int) -> None:
    event = Linked(seconds=0, topology="ring", nodes=[""] * nodes, links=[], directed=False, gap=1, rounds=0, parts=[])
    graph.draw(event).canvas.draw()


def test_a_picture_of_no_kind_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="names no kind of picture"):
        graph.draw(linked("ring", 4), tmp_path / "topology")


def test_the_command_line_knows_every_topology_there_is() -> None:
    assert get_args(Topology) == NAMES
