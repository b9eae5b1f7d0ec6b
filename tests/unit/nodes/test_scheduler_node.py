"""Drives a group's scheduler by hand: whose requests it accepts, and what it reports."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shoal.events import Gone, Stopped
from shoal.limits import COORDINATOR, SECOND
from shoal.nodes.checkpointing import CheckpointWriter
from shoal.nodes.scheduler_node import SchedulerNode
from shoal.tables import Dense
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Send, Tell
from tests.support.fake_run import scheduler

NOW = 100 * SECOND


def view(number: int, generation: int = 0) -> m.View:
    members = [
        m.Member("server-0", 1, "server", "memory:server-0"),
        m.Member("server-1", 2, "server", "memory:server-1"),
        m.Member("b/scheduler", 3, "scheduler", "memory:x", group="b"),
        m.Member("b/launcher", 4, "client", "", group="b"),
        m.Member("c/launcher", 5, "client", "", group="c"),
    ]
    places = [m.Replicas(1, ["server-0", "server-1"]), m.Replicas(1, ["server-1"])]
    return m.View(1, number, generation, members, [m.TablePlaces(1, "b/weights", Dense(rows=8), [0, 4], places)])


@pytest.fixture
def node(tmp_path: Path) -> SchedulerNode:
    made = SchedulerNode("b", "t", "memory:x", scheduler(), CheckpointWriter(tmp_path))
    made.handle(NOW, Received(COORDINATOR, m.Welcome("t.0", 3, view(1))))
    return made


def said(effects: list[Effect], to: str) -> list[m.Message]:
    return [one.message for one in effects if isinstance(one, Send) and one.to == to]


@pytest.mark.parametrize("stranger", ["c/launcher", "visit-1234"])
def test_only_who_is_of_its_group_has_a_checkpoint_made(node: SchedulerNode, stranger: str) -> None:
    assert said(node.handle(NOW, Received(stranger, m.Save(7))), stranger) == []
    assert node.counts["unexpected"] == 1 and node.writer is not None and not node.writer._requested
    node.handle(NOW, Received("b/launcher", m.Save(7)))
    assert node.writer._requested
    assert [type(one) for one in said(node.handle(NOW, Received("b/launcher", m.Save(7))), "b/launcher")] == [
        m.RequestHeld
    ]


def test_the_checkpoints_of_a_groups_run_are_its_groups(node: SchedulerNode) -> None:
    assert node.writer is not None and node.writer.group == "b"


@pytest.mark.parametrize("generation", [0, 1])
def test_a_scheduler_that_is_not_wanted_any_more_ends_its_run_with_the_reason(tmp_path: Path, generation: int) -> None:
    node = SchedulerNode("b", "t", "memory:x", scheduler(), CheckpointWriter(tmp_path))
    node.handle(NOW, Received(COORDINATOR, m.Welcome("t.0", 3, view(1, generation))))
    effects = node.handle(NOW, Received(COORDINATOR, m.Refusal(0, "key", "the key was revoked")))
    (stopped,) = [one.event for one in effects if isinstance(one, Tell)]
    assert isinstance(stopped, Stopped) and stopped.why == "group 'b' cannot take part: the key was revoked"


def test_how_many_copies_there_are_is_told_as_the_view_has_them(node: SchedulerNode) -> None:
    (standing,) = said(node.handle(NOW, Received("look-1", m.StatusRequest(2))), "look-1")
    assert isinstance(standing, m.StatusReply)
    assert standing.copies == 2
    assert {one.name for one in standing.members} == {"server-0", "server-1", "b/launcher"}


def test_when_the_cluster_ends_the_run_of_a_group_says_so_and_not_that_a_server_was_lost(
    node: SchedulerNode,
) -> None:
    effects = node.handle(NOW, Received(COORDINATOR, m.Dismissed("the run is over: 2 epochs done")))
    (stopped,) = [one.event for one in effects if isinstance(one, Tell)]
    assert isinstance(stopped, Stopped) and "the cluster has ended (the run is over: 2 epochs done)" in stopped.why
    assert "resume this run" in stopped.why
    assert not [one for one in node.handle(NOW, Received("c/x", m.Dismissed("no"))) if isinstance(one, Tell)]


@pytest.mark.parametrize(("leaving", "why"), [(True, "it left"), (False, "it is no member any more")])
def test_a_server_that_left_in_order_is_not_told_as_lost(node: SchedulerNode, leaving: bool, why: str) -> None:
    def take(number: int, members: list[m.Member]) -> list[Effect]:
        after = msgspec.structs.replace(view(number), members=members)
        return node.handle(NOW, Received(COORDINATOR, after))

    first, *rest = view(2).members
    take(2, [msgspec.structs.replace(first, leaving=leaving), *rest])
    gone = [one.event for one in take(3, rest) if isinstance(one, Tell) and isinstance(one.event, Gone)]
    assert [(one.name, one.why) for one in gone] == [("server-0", why)]
