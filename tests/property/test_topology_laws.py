"""Laws of every graph: mixing keeps the sum, and connected parts agree."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.topology import Graph, both_ways

NAMES = ("ring", "one-way", "torus", "star", "complete", "exponential", "random")


@st.composite
def graphs(draw: st.DrawFn, directed: bool | None = None) -> Graph:
    nodes = draw(st.integers(1, 9))
    one_way = draw(st.booleans()) if directed is None else directed
    place = st.integers(0, nodes - 1)
    pairs = draw(st.lists(st.tuples(place, place).filter(lambda pair: pair[0] != pair[1]), max_size=24))
    links = sorted(set(pairs)) if one_way else both_ways(pairs)
    graph = Graph("file", nodes, links, one_way)
    for node in draw(st.lists(place, max_size=2)):
        graph = graph.without(node)
    return graph


def reach(graph: Graph) -> npt.NDArray[np.bool_]:
    """Which node reaches which, in as many steps as there are nodes."""
    steps = np.eye(graph.nodes)
    for start, stop in graph.links:
        steps[start, stop] = 1
        if not graph.directed:
            steps[stop, start] = 1
    return np.asarray(np.linalg.matrix_power(steps, graph.nodes) > 0)


@given(graphs(directed=False))
def test_metropolis_weights_are_symmetric_and_every_row_and_column_has_the_sum_1(graph: Graph) -> None:
    weights = graph.mixing()
    assert (weights == weights.T).all()
    assert np.allclose(weights.sum(axis=0), 1) and np.allclose(weights.sum(axis=1), 1)
    assert (weights >= 0).all() and (np.diag(weights) > 0).all()


@given(graphs(directed=True))
def test_shares_of_push_sum_add_up_so_that_nothing_is_lost(graph: Graph) -> None:
    weights = graph.mixing()
    assert np.allclose(weights.sum(axis=0), 1)
    assert (weights >= 0).all() and (np.diag(weights) > 0).all()


@given(graphs())
def test_weights_are_where_links_are_and_nowhere_else(graph: Graph) -> None:
    weights = graph.mixing()
    for i in range(graph.nodes):
        assert [j for j in np.flatnonzero(weights[i]).tolist() if j != i] == graph.senders[i]
        assert [j for j in np.flatnonzero(weights[:, i]).tolist() if j != i] == graph.receivers[i]


@given(graphs())
def test_a_part_is_those_who_reach_each_other(graph: Graph) -> None:
    there = reach(graph)
    mutual = there & there.T
    found = graph.parts
    assert sorted(node for part in found for node in part) == graph.living
    for part in found:
        assert part == [node for node in graph.living if mutual[part[0], node]]
    assert [len(part) for part in found] == sorted((len(part) for part in found), reverse=True)


@given(graphs())
def test_a_graph_has_a_gap_exactly_if_it_holds_together(graph: Graph) -> None:
    if len(graph.parts) <= 1:
        assert 0 < graph.gap <= 1 and graph.rounds() is not None
    else:
        assert graph.gap == 0 and graph.rounds() is None


@given(graphs(directed=False).filter(lambda graph: len(graph.parts) == 1), st.integers(0, 1000))
def test_the_distance_from_the_mean_shrinks_in_every_round_by_the_second_eigenvalue_at_least(
    graph: Graph, seed: int
) -> None:
    values = np.random.default_rng(seed).normal(size=graph.nodes)
    living = graph.living
    before = values[living] - values[living].mean()
    after = (graph.mixing() @ values)[living]
    assert np.isclose(after.mean(), values[living].mean())
    assert np.linalg.norm(after - after.mean()) <= graph.second * np.linalg.norm(before) + 1e-9


@given(graphs(directed=True).filter(lambda graph: len(graph.parts) == 1), st.integers(0, 1000))
def test_push_sum_comes_to_the_mean_where_everybody_hears_of_everybody(graph: Graph, seed: int) -> None:
    values, weights = np.random.default_rng(seed).normal(size=graph.nodes), np.ones(graph.nodes)
    mixing = np.linalg.matrix_power(graph.mixing(), 5000)
    found = ((mixing @ values) / (mixing @ weights))[graph.living]
    assert np.allclose(found, values[graph.living].mean(), atol=1e-4)


@given(st.sampled_from(NAMES), st.integers(1, 24), st.integers(1, 6), st.integers(0, 100))
def test_every_graph_that_has_a_name_holds_together_or_is_refused(
    name: str, nodes: int, degree: int, seed: int
) -> None:
    try:
        graph = Gossip(topology=name, degree=degree).graph(nodes, seed)  # type: ignore[arg-type]
    except ValueError:
        assert name in ("torus", "random")
        return
    assert graph.links == sorted(set(graph.links))
    if name == "random" and nodes > 1:
        assert all(len(graph.senders[node]) == degree for node in range(nodes))
    assert len(graph.parts) == 1 or (name == "random" and degree == 1)
