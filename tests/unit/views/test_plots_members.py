"""Pictures of members; the tests check what is on the figure."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.events import Gone, Joined, RunEvent, Shared
from shoal.views.plots import segments, there
from shoal.views.run_record import account

pytest.importorskip("matplotlib")


def shared(at: float, copies: int = 0, **serves: int) -> Shared:
    return Shared(seconds=at, serves=serves, copies=dict.fromkeys(serves, copies))


def test_everybody_has_a_row_servers_first_with_how_they_came_and_went(story: Any) -> None:
    names = ("worker-0", "worker-10", "worker-2", "server-1", "server-0")
    first = [Joined(seconds=0.0, name=name, role=name.partition("-")[0]) for name in names]
    moves: list[RunEvent] = [
        Joined(seconds=5.0, name="server-2", role="server"),
        Gone(seconds=9.0, name="server-2", role="server", why="it left"),
        Gone(seconds=7.0, name="worker-0", role="worker", why="killed"),
    ]
    figure = there(account([*first, story.started(3, 2), *moves, story.progress(20.0, 1.0)]))
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "server-0", "server-1", "server-2", "worker-0", "worker-2", "worker-10",
    ]  # fmt: skip
    bars = [(round(bar.get_x(), 3), round(bar.get_x() + bar.get_width(), 3)) for bar in axes.patches]
    assert bars == [(0, 20), (0, 20), (5, 9), (0, 7), (0, 20), (0, 20)]
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["server", "worker", "joined", "left in order", "lost"]


def test_where_nobody_came_or_went_there_is_nothing_to_draw(story: Any) -> None:
    assert there(account([Joined(seconds=0.0, name="worker-0", role="worker"), story.started(1, 0)])) is None
    assert segments(account([story.started(), shared(0.0, a=8, b=8)])) is None


def test_which_server_held_how_many_parts_is_drawn_and_copies_below(story: Any) -> None:
    events = [story.started(), shared(0.0, a=8, b=8), shared(5.0, a=5, b=5, c=6), story.progress(20.0, 1.0)]
    figure = segments(account(events))
    assert figure is not None
    (axes,) = figure.axes  # one panel: there are no backups
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    tops = [max(y for _, y in band.get_paths()[0].vertices) for band in axes.collections]
    assert tops == [8, 16, 16]
    figure = segments(account([story.started(), shared(0.0, 8, a=8, b=8), shared(5.0, 9, a=9, b=8)]))
    assert figure is not None and [axes.get_title(loc="left") for axes in figure.axes] == [
        "Segments that each server serves",
        "Copies that it keeps of others' segments",
    ]


def test_of_very_many_servers_and_nodes_the_picture_stays_a_picture(story: Any) -> None:
    many = {f"server-{number}": 4 for number in range(40)}
    first = [Joined(seconds=0.0, name=name, role="server") for name in many]
    lost = Gone(seconds=3.0, name="server-7", role="server", why="killed")
    events = [*first, story.started(), lost, Shared(seconds=0.0, serves=many, copies={})]
    run = account([*events, Shared(seconds=3.0, serves={**many, "server-7": 0}, copies={}), story.progress(9.0, 1.0)])
    one, other = segments(run), there(run)
    assert one is not None and [text.get_text() for text in one.legends[0].get_texts()][-2:] == [
        "32 others",
        "one lost",
    ]
    assert other is not None and [label.get_text() for label in other.axes[0].get_yticklabels()] == ["server-7"]
