"""Graphs by name and from files: their links, their connectivity, their rate of agreement."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from shoal.errors import Invalid
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip import topology as graphs
from shoal.strategies.gossip.topology import Graph


def graph(topology: str, nodes: int, **settings: object) -> Graph:
    return Gossip(topology=topology, **settings).graph(nodes, seed=0)  # type: ignore[arg-type]


def of_file(tmp_path: Path, text: str, nodes: int, **settings: object) -> Graph:
    path = tmp_path / "links.txt"
    path.write_text(text)
    return graph("file", nodes, edges=str(path), **settings)


def test_a_ring_links_everybody_to_two_neighbours_and_two_nodes_by_one_link() -> None:
    assert graph("ring", 4).links == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert graph("ring", 2).links == [(0, 1)]
    assert graph("ring", 5).senders[0] == [1, 4] == graph("ring", 5).receivers[0]


def test_on_a_one_way_ring_each_hears_the_one_before() -> None:
    found = graph("one-way", 4)
    assert found.directed and found.senders[0] == [3] and found.receivers[0] == [1]
    assert found.parts == [[0, 1, 2, 3]]


def test_a_torus_is_a_grid_whose_rows_and_columns_are_rings() -> None:
    found = graph("torus", 12)
    assert graphs.sides(12) == (3, 4)
    assert found.senders[0] == [1, 3, 4, 8] and all(len(found.senders[i]) == 4 for i in range(12))
    assert graph("torus", 4).links == [(0, 1), (0, 2), (1, 3), (2, 3)]  # a ring, in another order


@pytest.mark.parametrize(
    ("nodes", "instead"), [(2, "take 4 workers"), (3, "take 4 workers"), (7, "take 6 or 8 workers")]
)
def test_a_torus_of_a_prime_number_of_workers_is_refused_with_numbers_that_fit(nodes: int, instead: str) -> None:
    with pytest.raises(Invalid, match=instead):
        graph("torus", nodes)


def test_a_star_has_the_first_node_in_the_middle_and_an_exponential_graph_hops_of_powers_of_two() -> None:
    assert graph("star", 4).links == [(0, 1), (0, 2), (0, 3)]
    assert graph("exponential", 16).senders[0] == [1, 2, 4, 8, 12, 14, 15]


@pytest.mark.parametrize("topology", ["ring", "one-way", "torus", "star", "complete", "exponential", "random"])
def test_a_single_node_has_no_links_and_nothing_to_wait_for(topology: str) -> None:
    alone = graph(topology, 1)
    assert alone.links == [] and alone.parts == [[0]]
    assert alone.gap == 1 and alone.rounds() == 0
    assert alone.mixing().tolist() == [[1.0]]
    alone.check(allow_disconnected=False)


@pytest.mark.parametrize(("nodes", "gap"), [(4, 0.667), (8, 0.195), (16, 0.051), (32, 0.013)])
def test_the_gap_of_a_ring_is_that_of_the_formula(nodes: int, gap: float) -> None:
    found = graph("ring", nodes)
    assert found.second == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / nodes), abs=1e-12)
    assert found.gap == pytest.approx(gap, abs=0.0006)


def test_on_a_complete_graph_one_round_is_enough_and_on_a_star_the_gap_is_one_in_n() -> None:
    assert graph("complete", 7).gap == 1 and graph("complete", 7).rounds() == 1
    assert np.allclose(graph("complete", 7).mixing(), 1 / 7)
    assert graph("star", 8).gap == pytest.approx(1 / 8)


def test_the_predicted_rounds_leave_the_share_that_was_asked_for() -> None:
    found = graph("ring", 8)
    rounds = found.rounds(left=0.05)
    assert rounds is not None and found.second**rounds == pytest.approx(0.05)


def test_a_random_graph_gives_everybody_the_same_number_of_links_and_comes_from_the_seed() -> None:
    strategy = Gossip(topology="random", degree=4)
    one, again, other = (strategy.graph(30, seed) for seed in (1, 1, 2))
    assert one.links == again.links != other.links
    assert {len(one.senders[i]) for i in range(30)} == {4} and len(one.parts) == 1


def test_a_random_graph_of_two_links_each_is_a_ring_in_another_order_and_of_one_link_it_falls_apart() -> None:
    assert graph("random", 9, degree=2).gap == pytest.approx(graph("ring", 9).gap)
    assert len(graph("random", 6, degree=1).parts) == 3
    assert graph("random", 2, degree=1).links == [(0, 1)]


@pytest.mark.parametrize(("nodes", "degree", "why"), [(5, 3, "degree=4"), (4, 4, "at most 3")])
def test_links_that_do_not_come_out_even_are_refused(nodes: int, degree: int, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        graph("random", nodes, degree=degree)


def test_a_file_of_links_may_have_comments_and_say_a_link_twice(tmp_path: Path) -> None:
    found = of_file(tmp_path, "# three\n0 1\n\n1 0 # again\n 2\t1 \n", 3)
    assert found.links == [(0, 1), (1, 2)] and not found.directed and found.name == "file"


def test_one_link_that_goes_one_way_makes_the_graph_directed(tmp_path: Path) -> None:
    found = of_file(tmp_path, "0 1\n1->2\n2 -> 0\n", 3)
    assert found.directed and found.links == [(0, 1), (1, 0), (1, 2), (2, 0)]
    assert found.senders[0] == [1, 2] and found.receivers[0] == [1]


def test_one_way_links_that_all_have_one_back_go_both_ways(tmp_path: Path) -> None:
    assert of_file(tmp_path, "0 -> 1\n1 -> 0\n", 2).links == [(0, 1)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0 0", "line 2: 0 is linked to itself"),
        ("0 3", "line 2: there is no worker 3, they are 0 to 2: correct it, or take 4 workers"),
        ("1 7\n0 9\n0 4", "line 3: there is no worker 9, they are 0 to 2: correct it, or take 10 workers"),
        ("0 1000000", "line 2: there is no worker 1000000.*correct it; there can be 1,024 at most"),
        ("0 -1", "line 2: 0 -1: a link is two numbers"),
        ("0 1 2", "a link is two numbers"),
        ("0 <- 1", "a link is two numbers"),
        ("\x1b[2J", r"line 2: \\x1b"),
        ("1" * 5000, "more than 4,096 characters"),
    ],
)
def test_a_bad_line_is_named_with_what_to_do(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        of_file(tmp_path, f"0 1\n{line}\n", 3)


def test_a_file_that_is_not_there_or_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="cannot read the links"):
        graph("file", 3, edges=str(tmp_path / "none"))
    monkeypatch.setattr(graphs, "EDGE_LINES", 3)
    with pytest.raises(Invalid, match="more than 3 lines"):
        of_file(tmp_path, "0 1\n" * 4, 3)


def test_a_graph_that_falls_apart_is_refused_with_its_pieces_unless_that_is_wanted(tmp_path: Path) -> None:
    found = of_file(tmp_path, "0 1\n1 2\n3 4\n", 5)
    assert found.parts == [[0, 1, 2], [3, 4]]
    assert found.gap == 0 and found.rounds() is None
    with pytest.raises(
        Invalid, match=r"0 1 2 \| 3 4: add links between them, or see it fail with --allow-disconnected"
    ):
        found.check(allow_disconnected=False)
    found.check(allow_disconnected=True)


def test_who_has_no_links_at_all_is_named(tmp_path: Path) -> None:
    found = of_file(tmp_path, "0 -> 1\n1 -> 0\n", 4)
    with pytest.raises(Invalid, match=r"add links to 2 3, which have none at all, take fewer workers, or see it fail"):
        found.check(allow_disconnected=False)


def test_a_pipe_of_links_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "links")
    with pytest.raises(Invalid, match="is not a regular file: write the links to one"):
        graph("file", 3, edges=str(tmp_path / "links"))


@pytest.mark.parametrize(("nodes", "degree"), [(9, 8), (9, 6), (8, 6), (8, 5), (8, 4), (6, 3)])
def test_of_many_links_each_those_that_are_not_there_are_drawn(nodes: int, degree: int) -> None:
    found = graph("random", nodes, degree=degree)
    assert {len(found.senders[i]) for i in range(nodes)} == {degree} and len(found.parts) == 1


def test_the_most_links_there_can_be_take_no_longer_than_a_complete_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(graphs, "_stirred", lambda links, _: drawn.append(len(links)) or links)
    assert graph("random", 60, degree=59).links == graph("complete", 60).links
    assert drawn == [0]


def test_links_without_a_way_back_are_refused(tmp_path: Path) -> None:
    found = of_file(tmp_path, "0 1\n1 -> 2\n", 3)
    assert found.parts == [[0, 1], [2]] and found.gap == 0
    with pytest.raises(Invalid, match=r"not strongly connected.*0 1 \| 2: add links that lead back"):
        found.check(allow_disconnected=False)


def test_many_pieces_are_not_all_named(tmp_path: Path) -> None:
    found = of_file(tmp_path, "", 40)
    assert found.words() == "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | and 32 more"
    assert of_file(tmp_path, "", 9).words() == "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8"


def test_pairwise_means_need_links_both_ways(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"topology=one-way has links that go one way.*strategy.mode=sync"):
        graph("one-way", 4, mode="async")
    with pytest.raises(Invalid, match=r"links.txt has links that go one way"):
        of_file(tmp_path, "0 1\n1 2\n2 -> 0\n", 3, mode="async")


def test_who_is_gone_keeps_its_place_and_the_others_are_judged_without_it() -> None:
    found = graph("ring", 5).without(2)
    assert found.nodes == 5 and found.links == [(0, 1), (0, 4), (3, 4)]
    assert found.senders[2] == [] and found.senders[1] == [0]
    assert found.parts == [[0, 1, 3, 4]] and found.gap > 0
    assert found.mixing()[2].tolist() == [0, 0, 1, 0, 0]
    assert found.without(0).parts == [[3, 4], [1]] and found.without(0).gap == 0


def test_when_all_but_one_are_gone_nothing_is_left_to_wait_for() -> None:
    alone = graph("star", 3).without(0).without(1)
    assert alone.living == [2] and alone.parts == [[2]] and alone.rounds() == 0


def test_a_graph_tells_views_all_that_they_need() -> None:
    told = graph("ring", 4).without(3).event(1.5, ["a", "b", "c", "d"], why="d is gone")
    assert told.nodes == ["a", "b", "c", "d"] and told.links == [(0, 1), (1, 2)]
    assert told.parts == [[0, 1, 2]] and told.why == "d is gone" and not told.directed
    assert told.gap == pytest.approx(1 / 3)


@pytest.mark.parametrize("nodes", [0, 5000])
def test_too_few_or_too_many_workers_are_refused(nodes: int) -> None:
    with pytest.raises(Invalid, match="give 1 to 1,024"):
        graph("ring", nodes)


def test_the_largest_graphs_are_searched_without_recursion() -> None:
    assert len(Graph("file", 1024, [(i, i + 1) for i in range(1023)]).parts) == 1
