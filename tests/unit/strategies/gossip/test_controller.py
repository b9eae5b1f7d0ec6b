"""The controller of a gossip run sends legs to workers and processes their reports."""

from __future__ import annotations

import numpy as np

from shoal.data.batch import Ids
from shoal.data.slots import Slots
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.controller import GossipController
from shoal.strategies.gossip.topology import Graph
from shoal.wire.effects import Effect, Received, Send, Tick
from shoal.wire.messages.gossip import (
    GossipProgressReport,
    Leg,
    LegDone,
    LegReceived,
    Show,
    Without,
)

NAMES = ["worker-0", "worker-1", "worker-2", "worker-3"]
SLAB = np.ones(5, np.float32)


def home(graph: Graph | None = None, rows: int = 1) -> GossipController:
    """Returns a controller; a slot has ``rows`` rows."""
    graph = graph or Gossip().graph(len(NAMES), 0)
    parts = Shards(Slots(100 * rows, rows, 0), len(NAMES))
    return GossipController(NAMES, {name: f"memory:{name}" for name in NAMES}, graph, parts, "sync", False)


def ids(*numbers: int) -> Ids:
    return np.array(numbers, np.int64)


def said(effects: list[Effect], kind: type) -> dict[str, object]:
    return {one.to: one.message for one in effects if isinstance(one, Send) and isinstance(one.message, kind)}


def set_off(node: GossipController) -> list[Effect]:
    return node.set_off(0, {name: ids(at, at + 4) for at, name in enumerate(NAMES)})


def rest(node: GossipController, name: str, slab: bool = True) -> list[Effect]:
    arrays = (SLAB,) if slab else ()
    return node.handle(1, Received(name, LegDone(node.leg, [2, 8, 1.0, 10, 10]), arrays))


def lose(node: GossipController, name: str) -> list[Effect]:
    loss = node.lose(2, name)
    assert loss is not None
    return loss[2]


def test_a_leg_tells_each_its_slots_and_whom_it_hears_with_what_weight() -> None:
    legs = said(set_off(home()), Leg)
    leg = legs["worker-1"]
    assert isinstance(leg, Leg)
    assert (leg.number, leg.rounds, leg.push_sum) == (1, 2, 0)
    assert [link.name for link in leg.hears] == ["worker-0", "worker-2"] == [link.name for link in leg.tells]
    assert [link.weight for link in leg.hears] == [1 / 3, 1 / 3] and abs(leg.own - 1 / 3) < 1e-12


def test_a_leg_is_told_again_until_something_is_heard_of_it() -> None:
    node = home()
    set_off(node)
    node.handle(1, Received("worker-2", GossipProgressReport(1, 0, 0, 0.0)))
    assert set(said(node.handle(2, Tick()), Leg)) == {"worker-0", "worker-1", "worker-3"}


def test_a_worker_that_speaks_for_the_first_time_is_told_its_leg_at_once() -> None:
    node = home()
    set_off(node)
    assert set(said(node.handle(1, Received("worker-2", GossipProgressReport(0, 0, 0, 0.0))), Leg)) == {"worker-2"}
    node.handle(2, Received("worker-2", GossipProgressReport(1, 0, 0, 0.0)))
    # Late: it already has the leg.
    assert node.handle(3, Received("worker-2", GossipProgressReport(0, 0, 0, 0.0))) == []


def test_what_comes_of_another_leg_changes_nothing_and_is_answered() -> None:
    node = home()
    set_off(node)
    (answer,) = node.handle(1, Received("worker-0", LegDone(0, [9, 9, 9.0, 9, 9]), (SLAB,)))
    assert isinstance(answer, Send) and answer.message == LegReceived(0)
    assert not node.states["worker-0"].reported and not node.resting


def test_all_are_asked_for_their_models_when_the_last_one_is_done() -> None:
    node = home()
    set_off(node)
    for name in NAMES[:3]:
        assert not said(rest(node, name, slab=False), Show)
    assert set(said(rest(node, NAMES[3], slab=False), Show)) == set(NAMES)
    for name in NAMES:
        assert not node.resting
        assert said(rest(node, name), LegReceived)
    assert node.resting


def test_that_somebody_is_gone_is_told_to_those_that_do_not_rest_and_its_model_is_not_waited_for() -> None:
    node = home()
    set_off(node)
    rest(node, "worker-0")
    assert set(said(lose(node, "worker-1"), Without)) == {"worker-2", "worker-3"}
    assert set(said(node.handle(3, Tick()), Without)) == {"worker-2", "worker-3"}
    rest(node, "worker-2")
    rest(node, "worker-3")
    assert node.resting


def test_a_leg_is_told_again_with_the_weights_that_the_others_have_though_somebody_was_lost_since() -> None:
    """Resent legs must have the old weights.

    With new weights for some workers the sum of all models would not be kept (gossip seed 7).
    """
    node = home(Gossip(topology="star").graph(len(NAMES), 0))
    slots = {name: ids(at, at + 4) for at, name in enumerate(NAMES)}
    before = said(node.set_off(0, slots), Leg)
    node.handle(1, Received("worker-2", GossipProgressReport(1, 0, 0, 0.0)))
    node.lose(2, "worker-1")
    again = said(node.handle(3, Tick()), Leg)
    assert set(again) == {"worker-0", "worker-3"}
    assert all(again[name] == before[name] for name in again)


def test_the_last_to_be_done_is_lost_and_the_others_are_asked() -> None:
    node = home()
    set_off(node)
    for name in NAMES[:3]:
        rest(node, name, slab=False)
    assert set(said(lose(node, NAMES[3]), Show)) == set(NAMES[:3])


def test_push_sum_steps_are_not_divided_by_weights_any_more_once_the_workers_were_apart() -> None:
    """This also holds where the remaining workers are connected again.

    A weight that went to zero stays zero (gossip seed 3401272).
    """
    node = home(Gossip(topology="one-way").graph(3, 0))

    def push_sum() -> set[int]:
        legs = said(node.set_off(0, {name: ids(1) for name in node.living}), Leg).values()
        return {leg.push_sum for leg in legs if isinstance(leg, Leg)}

    assert push_sum() == {1}
    node.lose(1, "worker-1")  # worker-2 sends to worker-0, and receives from nobody
    node.lose(2, "worker-0")
    assert node.was_apart and push_sum() == {2}


def test_what_is_told_twice_or_late_is_counted_once() -> None:
    node = home(rows=8)
    node.set_off(0, {"worker-0": ids(1, 2)})
    for rounds in (1, 1, 0):
        report = GossipProgressReport(1, rounds, 8 * rounds, 0.5 * rounds, [100, 10, 1], 50, 60)
        node.handle(1, Received("worker-0", report))
    node.handle(1, Received("worker-0", LegDone(1, [3, 16, 1.0, 70, 80])))
    fresh = node.take_progress()
    assert (fresh.slots, fresh.rows, fresh.loss) == (2, 16, 1.0)  # the third round had no slot
    assert (fresh.sent, fresh.received) == (70, 80)
    assert fresh.spent == {"compute": 1e-4, "communicate": 1e-5, "wait": 1e-6}
    assert node.take_progress().slots == 0


def test_a_gradient_of_a_round_that_is_not_done_counts_neither_as_rows_nor_as_loss() -> None:
    node = home(rows=8)
    node.set_off(0, {"worker-0": ids(1, 2, 3)})
    # In round 2, whose gradient it already has.
    node.handle(1, Received("worker-0", GossipProgressReport(1, 1, 16, 8.0)))
    fresh = node.take_progress()
    assert (fresh.slots, fresh.rows, fresh.loss) == (1, 8, 4.0)
    node.handle(1, Received("worker-0", LegDone(1, [3, 24, 12.0, 0, 0])))
    fresh = node.take_progress()
    assert (fresh.slots, fresh.rows, fresh.loss) == (2, 16, 8.0)
