"""Marks of joins, leaves and losses differ in shape, and have a name where it fits."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shoal.events import Gone, Joined
from shoal.views.axes import canvas
from shoal.views.members import Move
from shoal.views.plots import strip, upright

pytest.importorskip("matplotlib")


def joined(at: float, name: str) -> Joined:
    return Joined(seconds=at, name=name, role=name.partition("-")[0])


def gone(at: float, name: str, why: str) -> Gone:
    return Gone(seconds=at, name=name, role=name.partition("-")[0], why=why)


def test_servers_and_workers_joins_leaves_and_losses_are_told_apart_and_explained() -> None:
    moves: list[Move] = [joined(10.0, "server-2"), joined(30.0, "worker-2"), gone(50.0, "server-2", "it left"), gone(70.0, "worker-0", "killed")]  # fmt: skip
    axes = canvas(1.0).subplots()
    strip(axes, moves, 100.0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["servers", "workers"]
    marked = {(line.get_marker(), round(row)) for line in axes.lines for row in line.get_ydata()}
    assert marked == {("^", 0), ("^", 1), ("v", 0), ("X", 1)}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["joined", "left in order", "lost"]
    assert [text.get_text() for text in axes.texts] == ["server-2", "server-2", "worker-2", "worker-0"]


def test_those_who_came_together_have_one_name_and_how_many_more() -> None:
    moves: list[Move] = [joined(10.0 + number / 100, f"worker-{number}") for number in range(5)]
    axes = canvas(1.0).subplots()
    strip(axes, moves, 100.0)
    assert [text.get_text() for text in axes.texts] == ["worker-0 +4"]


def test_names_do_not_lie_over_each_other() -> None:
    moves: list[Move] = [joined(float(at), f"worker-{at}") for at in range(1, 100, 3)]
    figure = canvas(1.0)
    axes = figure.subplots()
    axes.set_xlim(0, 100)
    strip(axes, moves, 100.0)
    figure.draw_without_rendering()
    boxes = sorted((box.x0, box.x1) for text in axes.texts for box in [text.get_window_extent()])
    assert all(end <= start for (_, end), (start, _) in pairwise(boxes))


def test_one_that_comes_back_at_once_does_not_hide_that_it_was_lost() -> None:
    moves: list[Move] = [gone(10.0, "server-1", "killed"), joined(10.0, "server-1")]
    axes = canvas(1.0).subplots()
    strip(axes, moves, 100.0)
    heights = {line.get_marker(): list(line.get_ydata()) for line in axes.lines if len(line.get_ydata())}
    assert heights["X"] != heights["^"]


def test_upright_lines_are_for_few() -> None:
    axes = canvas(2.0).subplots()
    upright(axes, [joined(float(at), f"worker-{at}") for at in range(1, 40)])
    assert not axes.lines
    upright(axes, [joined(60.0, "worker-1")], scale=60.0)
    assert list(axes.lines[0].get_xdata()) == [1.0, 1.0]
