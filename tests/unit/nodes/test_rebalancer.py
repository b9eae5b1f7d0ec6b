"""Servers join, are drained and die meanwhile, in the middle of a run (F10 to F13).

All nodes run in one thread. A synchronous run has the same weights bit for bit, regardless of
which server held which segment when, and of what was lost: so it is enough to compare weights.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal import limits
from shoal.cluster.rebalance_plan import WantedMove
from shoal.data.datasets import Dataset, load
from shoal.events import Gone, Handed, Joined, Leaving, Shared, Warned
from shoal.job import Job
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.rebalancer import OpeningMove, Rebalancer
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.server import Server
from shoal.store.server.table_server import TableServer
from shoal.tables import TABLE, Dense
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Tell
from tests.support.fake_run import scheduler
from tests.support.one_thread_run import JOB, Ship

STRATEGIES = pytest.mark.parametrize("strategy", ["sync", "bounded", "async"])
COPIES = pytest.mark.parametrize("copies", [1, 2])


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def weights(rows: Dataset) -> np.ndarray:
    """The weights of a synchronous run in which no node joins or leaves."""
    return np.array(sail(rows, "sync", 0).home().weights)


def sail(rows: Dataset, strategy: str, seed: int, copies: int = 1, servers: int = 2, balance: str = "count") -> Ship:
    moves = {"moves__balance": balance, "stop__epochs": 2}
    ship = Ship(rows, seed=seed, strategy=strategy, workers=3, servers=servers, copies=copies, **moves)
    ship.until(lambda: ship.slots_done() >= 3)
    return ship


def coordinator(ship: Ship) -> Coordinator:
    node = ship.nodes["coordinator"]
    assert isinstance(node, Coordinator)
    return node


def held(ship: Ship, rank: int = 0) -> Counter[str]:
    """Returns how many segments each server holds, as primary or as a backup."""
    places = coordinator(ship).roster.tables[TABLE].places
    return Counter(name for place in places for name in place.servers[rank : rank + 1])


def is_moving(ship: Ship) -> bool:
    return bool(coordinator(ship).rebalancer.moves_in_progress(ship.now, coordinator(ship)))


def join(ship: Ship, name: str) -> DrainableNode:
    return ship.serve(name)


def server_of(ship: Ship, name: str) -> DrainableNode:
    guest = ship.nodes[name]
    assert isinstance(guest, DrainableNode)
    return guest


def drain(ship: Ship, name: str) -> None:
    ship.feed("coordinator", Received("launcher", m.Drain(77, name)))


# ---------------------------------------------------------------- joining


@STRATEGIES
@COPIES
def test_a_server_that_joins_gets_its_share_while_the_run_goes_on(rows: Dataset, strategy: str, copies: int) -> None:
    ship = sail(rows, strategy, seed=3, copies=copies)
    join(ship, "server-2")
    ship.until(lambda: held(ship)["server-2"] >= 5 and not is_moving(ship))
    assert max(held(ship).values()) - min(held(ship).values()) <= 1
    if copies == 2:
        assert sum(held(ship, 1).values()) == sum(held(ship).values())
    ship.home()
    assert ship.slots_done() == ship.scheduler.workload.limit
    handed = ship.all(Handed)
    assert {one.target for one in handed} == {"server-2"} and all(one.stall >= 0 for one in handed)
    assert any(one.name == "server-2" for one in ship.all(Joined))


@COPIES
def test_a_synchronous_run_is_the_same_whoever_comes_and_goes(rows: Dataset, weights: np.ndarray, copies: int) -> None:
    for seed in range(3):
        ship = sail(rows, "sync", seed, copies=copies)
        join(ship, "server-2")
        ship.until(lambda ship=ship: held(ship)["server-2"] >= 5 and not is_moving(ship))
        drain(ship, "server-0")
        ship.home()
        assert np.array_equal(np.array(ship.weights), weights)


def test_who_joins_gets_nothing_where_nothing_is_to_be_balanced(rows: Dataset) -> None:
    ship = sail(rows, "async", seed=1, balance="none")
    join(ship, "server-2")
    ship.home()
    assert held(ship)["server-2"] == 0 and not ship.all(Handed)


@STRATEGIES
def test_members_of_a_set_change_places_while_the_run_goes_on(
    rows: Dataset, weights: np.ndarray, strategy: str
) -> None:
    for seed in range(3):
        ship = sail(rows, strategy, seed, copies=2, balance="none")
        before = held(ship)
        swaps = [
            WantedMove(TABLE, segment, *place.servers, "count")
            for segment, place in enumerate(coordinator(ship).roster.tables[TABLE].places)
            if place.servers[0] == "server-0"
        ]
        node = coordinator(ship)
        node.rebalancer._record_started(ship.now, node.roster.assignment.begin(ship.now, swaps), node)
        ship.until(lambda ship=ship: not is_moving(ship))
        assert before["server-0"] == 8 and held(ship) == {"server-1": 16} and held(ship, 1) == {"server-0": 16}
        ship.home()
        # Reported as one.
        assert [sorted(one.segments) for one in ship.all(Handed)] == [[s.segment for s in swaps]]
        if strategy == "sync":
            assert np.array_equal(np.array(ship.weights), weights)


# ---------------------------------------------------------------- leaving


@STRATEGIES
@COPIES
def test_a_server_that_is_drained_hands_all_over_and_is_let_go(rows: Dataset, strategy: str, copies: int) -> None:
    ship = sail(rows, strategy, seed=5, copies=copies, servers=3)
    server = server_of(ship, "server-1")
    drain(ship, "server-1")
    ship.until(lambda: server.end == "released")
    assert "server-1" not in held(ship) and "server-1" not in held(ship, 1)
    assert [one.name for one in ship.all(Leaving)] == ["server-1"]
    gone = [one for one in ship.all(Gone) if one.name == "server-1"]
    assert len(gone) == 1 and "left" in gone[0].why
    ship.home()
    assert ship.slots_done() == ship.scheduler.workload.limit


def test_every_server_can_be_replaced_by_another_one_after_the_other(rows: Dataset, weights: np.ndarray) -> None:
    """A rolling restart (F10)."""
    ship = sail(rows, "sync", seed=8)
    for name in ("server-0", "server-1"):
        before = server_of(ship, name)
        join(ship, f"spare for {name}")
        before.leave()
        ship.until(lambda before=before: before.end == "released")
    ship.home()
    assert np.array_equal(np.array(ship.weights), weights)
    assert set(held(ship)) == {"spare for server-0", "spare for server-1"}


def test_with_fewer_servers_than_copies_the_sets_get_smaller_and_it_is_said(rows: Dataset) -> None:
    ship = sail(rows, "sync", seed=2, copies=2)
    server = server_of(ship, "server-0")
    drain(ship, "server-0")
    ship.until(lambda: server.end == "released")
    assert held(ship) == {"server-1": sum(held(ship).values())} and not held(ship, 1)
    assert any("every segment has 1 of 2 copies" in one.what for one in ship.all(Warned))
    ship.home()


def test_the_last_server_may_not_go(rows: Dataset) -> None:
    ship = sail(rows, "async", seed=2, servers=1)
    server = server_of(ship, "server-0")
    server.leave()
    ship.until(lambda: bool(server.refusal))
    assert "start another one" in server.refusal
    assert not server.end and not coordinator(ship).roster.members["server-0"].member.leaving
    join(ship, "server-1")  # now server-0 may leave
    ship.until(lambda: server.end == "released")
    ship.home()


def test_one_that_was_let_go_and_did_not_hear_of_it_is_told_again(rows: Dataset) -> None:
    ship = sail(rows, "async", seed=2)
    server = server_of(ship, "server-1")
    lost: list[m.Message] = []

    def drop(sender: str, to: str, message: m.Message) -> bool:
        if isinstance(message, m.Release) and not lost:
            lost.append(message)
            return True
        return False

    ship.drop = drop
    drain(ship, "server-1")
    ship.until(lambda: bool(lost))
    ship.restart_coordinator()  # the next process has to know it, too
    ship.until(lambda: server.end == "released")
    ship.home()


def test_a_worker_that_is_drained_finishes_what_it_has_and_goes(rows: Dataset, weights: np.ndarray) -> None:
    ship = sail(rows, "sync", seed=4)
    drain(ship, "worker-1")
    ship.until(lambda: ship.ends["worker-1"].done)
    assert not ship.scheduler.workload.finished
    ship.feed("coordinator", Received("worker-1", m.Leave(ship.trainers["worker-1"].worker.member.incarnation)))
    ship.home()
    assert np.array_equal(np.array(ship.weights), weights)
    assert not any("reassigned" in one.what for one in ship.all(Warned))


# ---------------------------------------------------------------- failures during a move (F13)

STAGES = {
    "named": None,
    "copied": m.BackfillPiece,
    "filled": m.BackfillReceived,
    "full": m.BackfillComplete,
    "handed": None,
    "level": m.Level,
}


def reach(ship: Ship, stage: str, target: str) -> None:
    """Let the run go on until a move of a segment to this server is at this stage."""
    seen: list[m.Message] = []
    kind = STAGES[stage]

    def watch(sender: str, to: str, message: m.Message) -> bool:
        if kind is not None and isinstance(message, kind):
            seen.append(message)
        return False

    ship.drop = watch
    places = lambda: coordinator(ship).roster.tables[TABLE].places  # noqa: E731
    if stage == "named":
        ship.until(lambda: any(place.filling == target for place in places()))
    elif stage == "handed":
        ship.until(lambda: any(place.servers[0] == target for place in places()))
    else:
        ship.until(lambda: bool(seen))


@pytest.mark.variants(slow=["third-*", "target-handed", "source-copied"])
@pytest.mark.parametrize("stage", list(STAGES))
@pytest.mark.parametrize("victim", ["source", "target", "third"])
def test_a_server_dies_in_the_middle_of_a_move_and_nothing_is_lost(
    rows: Dataset, weights: np.ndarray, stage: str, victim: str
) -> None:
    for seed in range(2):
        ship = sail(rows, "sync", seed, copies=2, servers=3)
        join(ship, "server-3")
        reach(ship, stage, "server-3")
        name = {"source": "server-0", "target": "server-3", "third": "server-1"}[victim]
        if victim == "source":
            places = coordinator(ship).roster.tables[TABLE].places
            name = next((place.instead for place in places if place.filling == "server-3" and place.instead), name)
        ship.kill(name)
        ship.home()
        assert np.array_equal(np.array(ship.weights), weights)
        owners = held(ship)
        assert name not in owners and sum(owners.values()) == len(coordinator(ship).roster.tables[TABLE].places)


@pytest.mark.variants(slow=["full", "handed", "level"])
@pytest.mark.parametrize("stage", list(STAGES))
def test_a_coordinator_that_dies_in_the_middle_of_a_move_goes_on_with_it(
    rows: Dataset, weights: np.ndarray, stage: str
) -> None:
    for seed in range(2):
        ship = sail(rows, "sync", seed, copies=2, servers=2)
        join(ship, "server-2")
        reach(ship, stage, "server-2")
        ship.restart_coordinator()
        ship.until(lambda ship=ship: held(ship)["server-2"] >= 5 and not is_moving(ship))
        ship.home()
        assert np.array_equal(np.array(ship.weights), weights)


@pytest.mark.variants(slow=["server-2-*"])
@pytest.mark.parametrize("stage", ["copied", "full", "handed"])
@pytest.mark.parametrize("victim", ["server-0", "server-2"])
def test_with_one_copy_all_go_back_and_no_move_is_left_over(
    rows: Dataset, weights: np.ndarray, stage: str, victim: str
) -> None:
    """A segment is lost in the middle of a move, and the whole run rolls back.

    The tables are created again (P8).
    """
    ship = sail(rows, "sync", seed=1)
    join(ship, "server-2")
    reach(ship, stage, "server-2")
    table = coordinator(ship).roster.tables[TABLE].number
    lost = any(place.servers == [victim] for place in coordinator(ship).roster.tables[TABLE].places)
    ship.kill(victim)
    ship.home()
    assert np.array_equal(np.array(ship.weights), weights)
    assert (coordinator(ship).roster.tables[TABLE].number != table) == lost
    assert not is_moving(ship) and victim not in held(ship)


def test_a_move_to_one_that_the_owner_cannot_reach_is_given_up(rows: Dataset) -> None:
    """The coordinator reaches both servers.

    The move is tried again later, and nobody waits for it.
    """
    ship = sail(rows, "async", seed=1, servers=2)
    ship.drop = lambda sender, to, message: "server-2" in (sender, to) and "server-0" in (sender, to)
    join(ship, "server-2")
    ship.until(lambda: coordinator(ship).roster.assignment.unreachable.get(("server-0", "server-2"), 0) > 0)
    ship.home()
    assert ship.slots_done() == ship.scheduler.workload.limit


def test_nothing_new_moves_while_a_checkpoint_is_written(rows: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    ship = sail(rows, "async", seed=1)
    writing = [True]
    monkeypatch.setattr(type(coordinator(ship).checkpoints.writer), "in_progress", property(lambda self: writing[0]))
    join(ship, "server-2")
    ship.until(lambda: "server-2" in coordinator(ship).roster.members and ship.slots_done() > 20)
    assert not is_moving(ship) and not held(ship)["server-2"]
    writing[0] = False
    ship.until(lambda: held(ship)["server-2"] > 0)
    ship.home()


def test_copies_come_before_balance(rows: Dataset) -> None:
    ship = sail(rows, "sync", seed=6, copies=2, servers=3)
    ship.kill("server-1")
    join(ship, "server-3")
    named: list[bool] = []

    def look() -> bool:
        roster = coordinator(ship).roster
        places = roster.tables[TABLE].places
        if not roster.assignment.has_copies and any(place.instead for place in places):
            named.append(True)
        return roster.assignment.has_copies and bool(held(ship)["server-3"])

    ship.until(look)
    assert not named
    ship.home()


def test_all_copies_of_all_segments_agree_when_it_is_over(rows: Dataset) -> None:
    for strategy in ("sync", "async"):
        ship = sail(rows, strategy, seed=9, copies=2, servers=2)
        join(ship, "server-2")
        ship.until(lambda ship=ship: held(ship)["server-2"] > 0)
        drain(ship, "server-0")
        ship.home()
        ship.until(lambda ship=ship: "server-0" not in ship.nodes and not is_moving(ship))
        until = ship.now + limits.SECOND  # messages in flight arrive
        ship.until(lambda ship=ship, until=until: ship.now > until)
        found: dict[int, set[str]] = {}
        for node in ship.nodes.values():
            if isinstance(node, DrainableNode) and isinstance(node.node, Server):
                for table_server in node.node.tables.values():
                    assert isinstance(table_server, TableServer)
                    for segment, digest in table_server.status(
                        m.TableStatusRequest(1, 1, 1, digests=True)
                    ).digests.items():
                        found.setdefault(segment, set()).add(digest)
        assert found and all(len(digests) == 1 for digests in found.values())


def test_a_move_whose_server_was_lost_on_the_way_is_told_so() -> None:
    """The event does not say that the move balanced the load and took long."""
    coordinator = Coordinator()
    coordinator.scheduler = scheduler()
    coordinator.roster.lost |= {"killed": "silent for 5 s", "gone": "it left: others have what it had"}

    def told(source: str) -> tuple[str, str]:
        opening = OpeningMove("weights", 1, [3], source, "server-9", 9, "load", "it had 90%", 0, 5)
        (tell,) = coordinator.rebalancer._report(limits.SECOND, opening, coordinator)
        assert isinstance(tell, Tell) and isinstance(tell.event, Handed)
        return tell.event.why, tell.event.gain

    assert told("killed") == ("lost", "")
    assert told("gone") == told("server-1") == ("load", "it had 90%")


def view(*places: list[str], servers: tuple[str, ...] = ("a", "b")) -> m.View:
    members = [m.Member(name, number + 1, "server", "") for number, name in enumerate(servers)]
    members.append(m.Member("worker-0", 9, "worker", ""))
    table = m.TablePlaces(
        1, "weights", Dense(rows=60), list(range(len(places))), [m.Replicas(1, one) for one in places]
    )
    return m.View(1, 1, 0, members, [table] if places else [])


def shared(rebalancer: Rebalancer, view: m.View, run: Scheduler | None) -> list[Effect]:
    """Returns what is reported once this view is on disk."""
    of: Any = SimpleNamespace(view=view, scheduler=run)
    return rebalancer.announced(0, of)


def test_parts_and_copies_are_told_by_server_once_for_each_change() -> None:
    holders, run = Rebalancer(), scheduler()
    assert shared(holders, view(), run) == []  # no table yet
    two = view(["a", "b"], ["b"], ["a", "b"])
    assert shared(holders, two, run) == [Tell(Shared(seconds=0.0, serves={"a": 2, "b": 1}, copies={"a": 0, "b": 2}))]
    assert shared(holders, msgspec.structs.replace(two, number=7), run) == []
    (told,) = shared(holders, view(["a", "b"], ["b"], [], servers=("a", "b", "c")), run)
    assert isinstance(told, Tell) and isinstance(told.event, Shared)
    # A part without a server counts for no server; a new server has none.
    assert told.event.serves == {"a": 1, "b": 1, "c": 0}


def test_of_a_store_and_of_a_run_that_is_over_nothing_is_told() -> None:
    run = scheduler()
    assert shared(Rebalancer(), view(["a"], ["b"]), None) == []
    run.failed = "somebody ended it"
    assert shared(Rebalancer(), view(["a"], ["b"]), run) == []


def test_parts_of_a_groups_tables_are_not_the_runs() -> None:
    ours, run = view(["a"], ["b"]), scheduler()
    theirs = msgspec.structs.replace(ours.tables[0], number=2, name="b/weights")
    (told,) = shared(Rebalancer(), msgspec.structs.replace(ours, tables=[*ours.tables, theirs]), run)
    assert told == Tell(Shared(seconds=0.0, serves={"a": 1, "b": 1}, copies={"a": 0, "b": 0}))
