"""The legs of a gossip run: what is dealt, and what is counted.

Also what happens to the slots of a lost worker.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.slots import Slots
from shoal.limits import SECOND
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.controller import (
    FASTER,
    LEG,
    SHARE,
    GossipController,
    LegPace,
)
from shoal.wire.effects import Received, Send
from shoal.wire.messages.gossip import (
    GossipProgressReport,
    LegDone,
    LegReceived,
    Show,
    Without,
)

NAMES = ["worker-0", "worker-1", "worker-2"]
SLAB = np.ones(5, np.float32)
PER_PASS = 12


def controller(topology: str = "ring") -> GossipController:
    graph = Gossip(topology=topology).graph(len(NAMES), 0)  # type: ignore[arg-type]
    parts = Shards(Slots(PER_PASS, 1, 0), len(NAMES))
    return GossipController(NAMES, dict.fromkeys(NAMES, ""), graph, parts, "sync", by_speed=False)


def rest(made: GossipController, name: str, slab: bool = True, error: str = "") -> None:
    done = len(made.states[name].slots)
    said = LegDone(made.leg, [done, done, float(done), 0, 0], error=error)
    made.handle(SECOND, Received(name, said, (SLAB,) if slab else ()))


def run_leg(made: GossipController, room: int) -> None:
    made.next_leg(SECOND, room, None)
    for name in made.living:
        rest(made, name)
    made.end_leg(SECOND)


def begun(topology: str = "ring") -> GossipController:
    made = controller(topology)
    made.begin(0)
    for name in NAMES:
        rest(made, name)
    return made


def test_in_the_first_leg_everybody_shows_its_model_and_has_no_slots() -> None:
    made = controller()
    made.begin(0)
    assert [len(one.slots) for one in made.states.values()] == [0, 0, 0] and not made.resting
    for name in NAMES:
        rest(made, name)
    assert made.resting and made.take_progress().slots == 0


def test_a_worker_is_ready_once_however_often_it_says_so() -> None:
    """In async mode a worker rests first without its model, and again with it.

    Before the fix each of these reports was announced as a join.
    """
    made, ready = controller(), list[str]()
    made.on_ready = ready.append
    made.begin(0)
    for name in NAMES:
        rest(made, name, slab=False)
        rest(made, name, slab=False)
    for name in NAMES:
        rest(made, name)
    run_leg(made, 3)
    assert ready == NAMES


def test_every_slot_of_a_pass_is_dealt_once_and_no_more_than_there_is_room_for() -> None:
    made, dealt, counted = begun(), list[int](), 0
    while len(dealt) < PER_PASS:
        made.next_leg(SECOND, min(5, PER_PASS - len(dealt)), None)
        slots = [slot for one in made.states.values() for slot in one.slots.tolist()]
        assert 0 < len(slots) <= 5
        dealt += slots
        for name in NAMES:
            rest(made, name)
        counted += made.take_progress().slots
        made.end_leg(SECOND)
    assert sorted(dealt) == list(range(PER_PASS)) and counted == PER_PASS


def test_what_a_lost_worker_had_not_reported_is_dealt_to_the_others() -> None:
    made = begun()
    for _ in range(2):  # the second leg has more than one round
        run_leg(made, 3)
        made.take_progress()
    made.next_leg(SECOND, 6, None)
    theirs = made.states["worker-1"].slots.tolist()
    assert len(theirs) == 2
    made.handle(SECOND, Received("worker-1", GossipProgressReport(made.leg, 1, 1, 1.0)))
    loss = made.lose(SECOND, "worker-1")
    assert loss is not None and loss[:2] == (1, False)
    assert {one.to for one in loss[2] if isinstance(one, Send) and isinstance(one.message, Without)} == {
        "worker-0",
        "worker-2",
    }
    assert made.lose(SECOND, "worker-1") is None  # already known
    for name in made.living:
        rest(made, name)
    made.end_leg(SECOND)
    assert theirs[0] not in made.parts.left() and theirs[1] in made.parts.left()


def test_the_loss_of_the_hub_of_a_star_sets_the_others_apart() -> None:
    made = begun("star")
    loss = made.lose(SECOND, "worker-0")
    assert loss is not None and loss[1]


def test_what_workers_say_that_cannot_go_on_is_passed_on_and_counts_for_nothing() -> None:
    made, failed = begun(), list[tuple[str, str]]()
    made.on_failed = lambda name, why: failed.append((name, why))
    made.next_leg(SECOND, 3, None)
    rest(made, "worker-2", slab=False, error="no memory")
    assert failed == [("worker-2", "no memory")] and made.take_progress().slots == 0


def test_all_that_live_are_dismissed_at_the_end() -> None:
    made = begun()
    made.lose(SECOND, "worker-0")
    assert made.dismiss() == [Send(name, LegReceived(1, over=True)) for name in ("worker-1", "worker-2")]


def test_rounds_in_which_only_others_have_slots_are_not_held_against_a_worker() -> None:
    """A worker that was dealt fewer slots must not count as slow because of that.

    All learn equally fast, but the first leg made worker-0 seem faster.
    """
    graph = Gossip(mode="async").graph(len(NAMES), 0)
    parts = Shards(Slots(1_000, 1, 0), len(NAMES))
    made = GossipController(NAMES, dict.fromkeys(NAMES, ""), graph, parts, "async", by_speed=True)
    made.begin(0)
    for name in NAMES:
        rest(made, name)
    parts.share([8.0, 1.0, 1.0])
    now = SECOND
    # A slot takes every worker a tenth of a second; without slots a worker does not go on.
    for _ in range(8):
        made.next_leg(now, 300, None)
        done = {name: LegDone(made.leg, [made.rounds, len(one.slots), 1.0, 0, 0]) for name, one in made.states.items()}
        for name in sorted(NAMES, key=lambda name: len(made.states[name].slots)):
            made.handle(now + len(made.states[name].slots) * SECOND // 10, Received(name, done[name]))
        now += made.rounds * SECOND // 10
        for name in NAMES:
            made.handle(now, Received(name, done[name], (SLAB,)))
        made.end_leg(now)
    dealt = [len(one.slots) for one in made.states.values()]
    assert max(dealt) < 1.5 * min(dealt), dealt


@pytest.mark.parametrize("last", NAMES)
def test_models_are_asked_for_when_the_last_is_done(last: str) -> None:
    made = begun()
    made.next_leg(SECOND, 3, None)
    for name in NAMES:
        if name != last:
            rest(made, name, slab=False)
    done = LegDone(made.leg, [1, 1, 1.0, 0, 0])
    asked = made.handle(SECOND, Received(last, done))
    assert [one.to for one in asked if isinstance(one, Send) and isinstance(one.message, Show)] == NAMES


# ---------------------------------------------------------------- lengths of legs, and shares


def leg(pace: LegPace, took: float, slots: dict[str, int], done: dict[str, float] | None = None) -> None:
    pace.begin(100.0)
    for name, at in (done or {}).items():
        pace.is_done(name, 100.0 + at)
    pace.end(100.0 + took, slots)


def test_legs_grow_until_they_take_as_long_as_they_should() -> None:
    pace, rounds = LegPace("sync"), 1
    assert pace.rounds(0.0, 0, None) == 1
    for _ in range(10):
        leg(pace, rounds * 0.01, {})
        before, rounds = rounds, pace.rounds(100.0 + rounds * 0.01, rounds, None)
        assert rounds <= FASTER * before
    assert abs(rounds * 0.01 - LEG["sync"]) < 0.02


def test_a_leg_is_longer_where_the_pause_before_it_was() -> None:
    pace = LegPace("sync")
    leg(pace, 1.0, {})
    assert pace.rounds(102.0, 1_000, None) == FASTER  # starting from one round
    for _ in range(9):
        found = pace.rounds(102.0, 1_000, None)
    assert found == 1_000 * SHARE


def test_no_leg_is_longer_than_the_time_that_is_left_and_none_is_shorter_than_a_round() -> None:
    pace = LegPace("sync")
    leg(pace, 1.0, {})
    for _ in range(9):
        found = pace.rounds(101.0, 100, 0.25)
    assert found == 25
    assert pace.rounds(101.0, 100, -3.0) == 1


def test_where_nobody_waits_each_gets_what_it_does_in_the_same_time() -> None:
    pace = LegPace("async")
    assert pace.shares(["ann", "bob"]) is None
    leg(pace, 1.0, {"ann": 10, "bob": 10}, {"ann": 0.25, "bob": 1.0})
    assert pace.shares(["ann", "bob"]) == [40.0, 10.0]
    leg(pace, 1.0, {"ann": 60, "bob": 20}, {"ann": 1.0, "bob": 1.0})
    assert pace.shares(["bob", "ann"]) == [15.0, 50.0]  # half of it is new


def test_where_all_wait_for_all_everybody_gets_the_same() -> None:
    pace = LegPace("sync")
    leg(pace, 1.0, {"ann": 10, "bob": 10}, {"ann": 0.25, "bob": 1.0})
    assert pace.shares(["ann", "bob"]) is None


def test_what_took_no_time_says_nothing_of_how_fast_somebody_is() -> None:
    pace = LegPace("async")
    leg(pace, 0.01, {"ann": 10})
    assert pace.shares(["ann"]) is None
