"""Drives gossip workers by hand: the order of a round (S3-09), and lost neighbours (F40).

Messages are lost, repeated or late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.emulation import Emulation
from shoal.errors import Invalid
from shoal.simulation.gossip_scenario import STEP, SimulatedGossipModel, pull_of
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.model import (
    Floats,
    check_size,
    from_frames,
    mix_into,
    to_frames,
)
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.synchronous import Synchronous
from shoal.strategies.gossip.topology import Graph
from shoal.strategies.gossip.worker import GossipWorker
from shoal.timing import DEFAULT
from shoal.wire.effects import Compute, Computed, Connect, Effect, Event, Received, Send, Tick, Wake
from shoal.wire.messages.gossip import (
    GossipLink,
    GossipProgressReport,
    Leg,
    LegDone,
    LegReceived,
    Meet,
    MeetReply,
    Offer,
    Reached,
    Show,
    Without,
)

SIZE = 3


class Room:
    """Workers whose messages wait on a table until they are delivered."""

    def __init__(self, graph: Graph, mode: str = "sync", **about: Any) -> None:
        self.graph, self.now = graph, limits.SECOND
        self.starts = np.random.default_rng(7).normal(size=(graph.nodes, SIZE)).astype(np.float32)
        self.models = [SimulatedGossipModel(start) for start in self.starts]
        self.nodes = [
            GossipWorker(f"w{i}", model, mode, chance=Random(i), **about)  # type: ignore[arg-type]
            for i, model in enumerate(self.models)
        ]
        self.table: deque[Send] = deque()
        self.senders: deque[str] = deque()
        self.home: list[tuple[str, Any, Any]] = []  # messages to the controller
        self.computing: list[tuple[str, Compute]] = []
        self.others: list[Effect] = []
        self.wakes: dict[str, int] = {}

    def hand(self, i: int, event: Event) -> None:
        """Hand one event to a worker."""
        for effect in self.nodes[i].handle(self.now, event):
            match effect:
                case Send("home", message, arrays):
                    self.home.append((f"w{i}", message, arrays))
                case Send():
                    self.table.append(effect)
                    self.senders.append(f"w{i}")
                case Compute():
                    self.computing.append((f"w{i}", effect))
                case Wake(at):
                    self.wakes[f"w{i}"] = at
                case _:
                    self.others.append(effect)

    def say(self, i: int, message: Any, arrays: Any = (), sender: str = "home") -> None:
        self.hand(i, Received(sender, message, arrays))

    def leg(
        self, number: int = 1, rounds: int = 1, slots: Callable[[int], list[int]] = lambda i: [], push_sum: int = 0
    ) -> None:
        for i in self.graph.living:
            self.leg_of(i, number, rounds, slots(i), push_sum)

    def leg_of(self, i: int, number: int, rounds: int, slots: list[int], push_sum: int = 0) -> None:
        w = self.graph.mixing().tolist()
        hears = [GossipLink(f"w{j}", f"ipc://{j}", w[i][j]) for j in self.graph.senders[i]]
        tells = [GossipLink(f"w{j}", f"ipc://{j}", w[j][i]) for j in self.graph.receivers[i]]
        self.say(i, Leg(number, rounds, w[i][i], hears, tells, push_sum), (np.array(slots, np.uint64),))

    def deliver(self, keep: Callable[[str, Send], bool] = lambda sender, letter: True) -> None:
        """Deliver all messages and those that follow, and compute everything meanwhile.

        Messages that ``keep`` rejects are lost.
        """
        self.compute()
        for _ in range(10_000):
            if not self.table and not self._is_due():
                return
            if self.table:
                letter, sender = self.table.popleft(), self.senders.popleft()
                if keep(sender, letter):
                    self.say(int(letter.to[1:]), letter.message, letter.arrays, sender)
            self.compute()
        raise AssertionError("they never stop talking")

    def _is_due(self) -> bool:
        due = [i for i in range(len(self.nodes)) if self.wakes.get(f"w{i}", 1 << 62) <= self.now]
        for i in due:
            self.hand(i, Tick())
        return bool(due)

    def compute(self) -> None:
        while self.computing:
            name, work = self.computing.pop(0)
            self.hand(int(name[1:]), Computed(work.token, work.function()))

    def wait(self, nanoseconds: int) -> None:
        """Let time pass for all workers."""
        self.now += nanoseconds
        for i in range(len(self.nodes)):
            self.hand(i, Tick())

    def letters(self, kind: type[Any]) -> list[tuple[str, Send]]:
        return [(s, one) for s, one in zip(self.senders, self.table, strict=True) if isinstance(one.message, kind)]

    @property
    def weights(self) -> np.ndarray[Any, Any]:
        return np.stack([model.weights for model in self.models]).astype(np.float64)

    def rests(self) -> dict[str, tuple[LegDone, Any]]:
        return {name: (said, arrays) for name, said, arrays in self.home if isinstance(said, LegDone) and arrays}


def graph_of(topology: str, nodes: int, mode: str = "sync") -> Graph:
    return Gossip(topology=topology, mode=mode).graph(nodes, 0)  # type: ignore[arg-type]


def pair(mode: str = "sync", **about: Any) -> Room:
    return Room(graph_of("complete", 2, mode), mode, **about)


# ---------------------------------------------------------------- rounds


@pytest.mark.parametrize("quick", [limits.MILLISECOND, -1], ids=["inline", "on the compute thread"])
@pytest.mark.parametrize(("topology", "nodes"), [("ring", 5), ("star", 4), ("complete", 3), ("torus", 6)])
def test_rounds_are_the_matrix_product_minus_steps_at_the_weights_before_the_mean(
    topology: str, nodes: int, quick: int
) -> None:
    room, rounds = Room(graph_of(topology, nodes), quick=quick), 4
    # Some have no slot in the last round.
    room.leg(1, rounds, lambda i: [10 * i + k for k in range(rounds - i % 2)])
    room.deliver()
    now, w = room.starts.astype(np.float64), room.graph.mixing()
    for k in range(rounds):
        pulls = np.stack([pull_of(10 * i + k, SIZE) for i in range(nodes)])
        learns = np.array([[k < rounds - i % 2] for i in range(nodes)])
        now = w @ now - learns * STEP * (now - pulls)  # X(k+1) = X(k) W - step * G(X(k))
    assert np.allclose(room.weights, now, rtol=0, atol=2e-6)
    assert [len(model.slots) for model in room.models] == [rounds - i % 2 for i in range(nodes)]
    assert set(room.rests()) == {f"w{i}" for i in range(nodes)}
    assert all(
        np.array_equal(arrays[0], room.models[int(name[1:])].weights) for name, (_, arrays) in room.rests().items()
    )


def test_neighbours_are_called_by_their_addresses_and_let_go_when_a_leg_has_them_no_more() -> None:
    room = Room(graph_of("ring", 3))
    room.leg()
    assert {effect for effect in room.others if isinstance(effect, Connect)} >= {Connect("w1", "ipc://1", True)}
    room.deliver()
    room.graph, room.others = room.graph.without(2), []
    room.leg(2)
    assert Connect("w2", "") in room.others


def test_offers_that_come_twice_late_or_from_strangers_change_nothing() -> None:
    room, again = Room(graph_of("ring", 4)), list[tuple[str, Send]]()
    room.leg(1, 5)

    def twice(sender: str, letter: Send) -> bool:
        room.say(int(letter.to[1:]), letter.message, letter.arrays, sender)
        for old_sender, old in again[-40:]:  # also of rounds that are over
            room.say(int(old.to[1:]), old.message, old.arrays, old_sender)
        again.append((sender, letter))
        return True

    room.say(0, Offer(1, 0), (np.ones(SIZE, np.float32),), "stranger")
    room.say(0, Offer(1, 0), (np.ones(SIZE + 1, np.float32),), "w1")  # not the size of our model
    room.say(0, Offer(1, 0), (), "w1")
    room.say(0, Offer(1, 0, float("nan")), (np.ones(SIZE, np.float32),), "w1")
    room.deliver(twice)
    assert np.allclose(room.weights, np.linalg.matrix_power(room.graph.mixing(), 5) @ room.starts, atol=2e-6)


def test_who_lacks_an_offer_asks_for_it_and_gets_that_of_the_round_before_too() -> None:
    room = pair()
    room.leg(1, 2)
    # All messages of w0 are lost; it has w1's offer, and is in round 1.
    room.deliver(lambda sender, letter: sender != "w0")
    assert [node.mixer.round for node in room.nodes] == [1, 0]
    assert room.nodes[1].mixer.lacking() == ["w0"]
    room.wait(DEFAULT.resend_first + 1)
    assert (room.letters(Reached)[-1][1].message) == Reached(1, 0, True)
    room.deliver()
    assert [node.mixer.round for node in room.nodes] == [2, 1], "that of the next round was lost as well"
    room.wait(DEFAULT.resend_first + 1)
    room.deliver()
    assert [node.mixer.round for node in room.nodes] == [2, 2]
    assert np.allclose(room.weights, room.starts.mean(0), atol=1e-6)


def test_offers_of_a_leg_that_one_has_not_heard_of_are_kept_for_it() -> None:
    room = pair()
    room.leg(1, 1)
    room.deliver()
    room.leg_of(0, 2, 1, [])
    room.deliver()  # w1 receives the offer, but not yet the leg
    room.leg_of(1, 2, 1, [])
    room.deliver()
    assert [node.mixer.round for node in room.nodes] == [1, 1]
    assert {name: rest.leg for name, (rest, _) in room.rests().items()} == {"w0": 2, "w1": 2}


def living_mean(room: Room, gone: int, before: np.ndarray[Any, Any]) -> None:
    """Check that the sum over the living workers is unchanged."""
    living = [i for i in range(len(room.nodes)) if i != gone]
    assert np.allclose(room.weights[living].sum(0), before[living].sum(0), atol=5e-6)


@pytest.mark.parametrize("phase", ["before the leg", "before its offer", "with its offer", "while computing"])
def test_who_loses_a_neighbour_goes_on_with_its_weight_and_the_sum_of_the_living_stays(phase: str) -> None:
    room = Room(graph_of("ring", 4), quick=-1 if phase == "while computing" else limits.MILLISECOND)
    if phase == "before the leg":
        room.say(0, Without(1, "w3"))
    for i in range(4):
        if phase == "before the leg" and i == 3:
            continue
        room.leg_of(i, 1, 3, [])
    # All have w3's offer of the first round, and none has used it: w1 is slow.
    if phase == "with its offer":
        held = [(s, one) for s, one in zip(room.senders, room.table, strict=True) if s != "w1"]
        room.table, room.senders = deque(one for _, one in held), deque(s for s, _ in held)
        room.deliver(lambda sender, letter: sender == "w3" and letter.to != "w1")
    if phase == "while computing":
        name, work = room.computing.pop(0)
        assert name == "w0"
        room.say(0, Without(1, "w3"))
        room.hand(0, Computed(work.token, work.function()))
    for i in (0, 2):
        room.say(i, Without(1, "w3"))
    for _ in range(3):
        room.wait(DEFAULT.resend_first + 1)  # what was held back is requested again
        room.deliver(lambda sender, letter: "w3" not in (sender, letter.to))
    assert [node.mixer.round for node in room.nodes[:3]] == [3, 3, 3]
    living_mean(room, 3, room.starts.astype(np.float64))


def test_what_a_neighbour_may_have_taken_along_is_counted() -> None:
    room = pair()
    room.leg(1, 2)
    # w1 dies in its first round, whose offer w0 has.
    room.deliver(lambda sender, letter: sender != "w0")
    assert room.nodes[0].mixer.round == 1
    room.say(0, Without(1, "w1"))
    room.deliver(lambda sender, letter: False)
    half = 0.5 * float(np.linalg.norm(room.starts[1].astype(np.float64) - room.starts[0]))
    assert room.nodes[0].mixer.lost == pytest.approx(half)
    rest, _ = room.rests()["w0"]
    assert rest.lost == pytest.approx(half)


def test_messages_on_a_slow_link_are_heard_when_they_would_have_come() -> None:
    room = pair(link=0.2)
    room.leg(1, 1)
    room.deliver()
    assert [node.mixer.round for node in room.nodes] == [0, 0]
    assert room.wakes["w0"] == room.now + limits.SECOND // 5
    room.wait(limits.SECOND // 5)
    assert [node.mixer.round for node in room.nodes] == [1, 1]


# ---------------------------------------------------------------- push-sum


def test_on_a_one_way_ring_all_come_to_the_mean_and_no_weight_is_lost() -> None:
    room = Room(graph_of("one-way", 4))
    room.leg(1, 80, push_sum=1)
    room.deliver()
    assert np.allclose(room.weights, room.starts.mean(0), atol=1e-5)
    assert sum(rest.weight for rest, _ in room.rests().values()) == pytest.approx(4)


IRREGULAR = Graph("arcs", 3, [(0, 1), (0, 2), (1, 0), (2, 1)], directed=True)


def test_on_links_that_go_one_way_the_mean_is_that_of_all_however_many_hear_each() -> None:
    room = Room(IRREGULAR)
    room.leg(1, 90, push_sum=1)
    room.deliver()
    assert np.allclose(room.weights, room.starts.mean(0), atol=1e-5)
    shares = [rest.weight for rest, _ in room.rests().values()]
    assert sum(shares) == pytest.approx(3)
    assert max(shares) > 1.2 * min(shares), "that they weigh differently is what the weights are for"


def test_a_step_moves_weight_times_model_so_that_everybody_counts_alike() -> None:
    room, rounds = Room(IRREGULAR), 3
    room.leg(1, rounds, lambda i: [10 * i + k for k in range(rounds)], push_sum=1)
    room.deliver()
    w, p = room.graph.mixing(), np.ones((3, 1))
    x = room.starts.astype(np.float64)
    for k in range(rounds):
        z = x / p
        gradient = z - np.stack([pull_of(10 * i + k, SIZE) for i in range(3)])
        x, p = w @ x - STEP * gradient, w @ p
    assert np.allclose(room.weights, x / p, atol=5e-6)


def test_nobody_runs_ahead_of_who_hears_it_even_if_it_hears_nobody() -> None:
    line = Graph("line", 3, [(0, 1), (1, 2)], directed=True)
    room = Room(line)
    room.leg(1, 50, push_sum=2)
    room.deliver(lambda sender, letter: letter.to != "w2")
    assert [node.mixer.round for node in room.nodes] == [2, 1, 0], "one round each, and their letters are few"
    for _ in range(3):  # lost messages are requested again, round by round
        room.wait(DEFAULT.resend_most)
        room.deliver()
    assert [node.mixer.round for node in room.nodes] == [50, 50, 50]
    assert np.isfinite(room.weights).all()


# ---------------------------------------------------------------- meetings


def sums(room: Room) -> np.ndarray[Any, Any]:
    return room.weights.sum(0) - sum(model.moved for model in room.models)


@pytest.mark.parametrize("quick", [limits.MILLISECOND, -1], ids=["inline", "on the compute thread"])
def test_meetings_leave_the_sum_as_it_is_and_bring_all_nearer(quick: int) -> None:
    room = Room(graph_of("ring", 5, "async"), "async", quick=quick)
    room.leg(1, 40)
    room.deliver()
    assert np.allclose(sums(room), room.starts.sum(0), atol=1e-5)
    assert np.abs(room.weights - room.weights.mean(0)).max() < 0.1 * np.abs(room.starts - room.starts.mean(0)).max()
    assert [node.mixer.round for node in room.nodes] == [40] * 5


def test_of_two_that_ask_each_other_at_once_one_is_told_not_now_and_both_have_the_mean() -> None:
    room = pair("async")
    room.leg(1, 1)
    assert [(sender, one.to) for sender, one in room.letters(Meet)] == [("w0", "w1"), ("w1", "w0")]
    room.deliver()
    assert np.allclose(room.weights, room.starts.mean(0), atol=1e-6), "they did not change places"
    assert [len(model.adds) for model in room.models] == [1, 1]
    assert [node.mixer.met for node in room.nodes if isinstance(node.mixer, Pairwise)] == [1, 0]


def test_an_answer_counts_whatever_who_asked_has_become_meanwhile() -> None:
    room = pair("async")
    room.leg_of(0, 1, 2, [5, 6])
    room.leg_of(1, 1, 0, [])
    for _ in range(9):  # w0 goes on learning while its first question is open
        room.compute()
        room.hand(0, Tick())
    assert room.models[0].slots == [5, 6]
    room.deliver()
    assert np.allclose(sums(room), room.starts.sum(0), atol=1e-6)


def test_questions_and_answers_that_come_again_move_nobody() -> None:
    room = pair("async")
    room.leg_of(0, 1, 1, [])
    room.leg_of(1, 1, 0, [])
    (_, meet), = room.letters(Meet)  # fmt: skip
    for _ in range(3):
        room.say(1, meet.message, meet.arrays, "w0")
    first, *more = room.letters(MeetReply)
    assert len(room.models[1].adds) == 1
    assert len(more) == 2
    assert all(np.array_equal(one.arrays[0], first[1].arrays[0]) for _, one in more), "the same answer again"
    room.deliver()
    assert len(room.models[0].adds) == 1
    room.say(1, Meet(meet.message.number - 1), meet.arrays, "w0")  # type: ignore[attr-defined]
    assert not room.table, "an older question was answered long ago"
    assert np.allclose(room.weights.sum(0), room.starts.sum(0), atol=1e-6)


def test_a_question_without_an_answer_is_asked_again_until_there_is_one() -> None:
    room = pair("async")
    room.leg_of(0, 1, 1, [])
    room.leg_of(1, 1, 0, [])
    room.deliver(lambda sender, letter: not isinstance(letter.message, MeetReply))
    assert room.nodes[0].mixer.lacking() == ["w1"]
    room.wait(DEFAULT.resend_first + 1)
    room.deliver()
    assert len(room.models[1].adds) == 1
    assert np.allclose(room.weights.sum(0), room.starts.sum(0), atol=1e-6)


def test_who_asked_one_that_is_gone_goes_on_and_who_moved_towards_it_counts_that() -> None:
    room = Room(graph_of("complete", 3, "async"), "async")
    room.leg(1, 3)
    asked = {sender: one.to for sender, one in room.letters(Meet)}
    dead = asked["w0"]
    other = next(name for name in ("w1", "w2") if name != dead)
    question = Meet((1 << 32) + 1)
    room.say(int(other[1:]), question, (room.starts[int(dead[1:])],), dead)  # its last message
    for name in ("w0", other):
        room.say(int(name[1:]), Without(1, dead))
    room.deliver(lambda sender, letter: dead not in (sender, letter.to))
    assert room.nodes[0].mixer.is_over
    moved = 0.5 * float(np.linalg.norm(room.starts[int(dead[1:])].astype(np.float64) - room.starts[int(other[1:])]))
    assert room.nodes[int(other[1:])].mixer.lost == pytest.approx(moved, rel=1e-4)
    before = len(room.models[0].adds)
    room.say(0, Meet((1 << 32) + 2), (room.starts[0],), dead)
    assert len(room.models[0].adds) == before, "nobody moves towards who is gone"


def test_others_are_answered_while_a_worker_is_held_up_to_seem_slow() -> None:
    pace = Emulation(per_example=10.0).pace(0, 0)
    room = pair("async", pace=pace)
    room.leg_of(0, 1, 1, [4])
    room.leg_of(1, 1, 0, [])
    room.compute()
    assert room.nodes[0].queue.wake_at == room.now + 10 * limits.SECOND
    room.say(0, Meet((1 << 32) + 1), (room.starts[1],), "w1")
    assert len(room.letters(MeetReply)) == 1


def test_a_worker_that_is_done_meets_others_until_all_are_and_then_shows_a_model_that_stays() -> None:
    room = pair("async")
    room.leg_of(0, 1, 0, [])
    room.leg_of(1, 1, 2, [])
    assert [(name, bool(arrays)) for name, said, arrays in room.home if isinstance(said, LegDone)] == [("w0", False)]
    room.deliver()
    assert not room.rests(), "models are shown when all are done"
    for i in range(2):
        room.say(i, Show(1))
    assert np.allclose(sum(arrays[0] for _, arrays in room.rests().values()), room.starts.sum(0), atol=1e-6)
    shown = room.models[0].weights
    room.say(0, Meet((1 << 32) + 9), (room.starts[1],), "w1")
    (_, answer), = room.letters(MeetReply)  # fmt: skip
    assert not answer.arrays, "not now"
    assert np.array_equal(room.models[0].weights, shown)


# ---------------------------------------------------------------- messages to the controller


def test_a_worker_rests_until_it_is_heard_and_goes_when_it_is_over() -> None:
    room = pair()
    room.leg()
    room.deliver()
    assert len([1 for name, said, _ in room.home if name == "w0" and isinstance(said, LegDone)]) == 1
    room.wait(DEFAULT.resend_first + 1)
    assert len([1 for name, said, _ in room.home if name == "w0" and isinstance(said, LegDone)]) == 2
    room.say(0, LegReceived(1))
    room.home.clear()
    room.wait(DEFAULT.resend_most + 1)
    assert [name for name, said, _ in room.home if isinstance(said, LegDone)] == ["w1"]
    assert not room.nodes[0].over
    room.say(0, LegReceived(1, over=True))
    assert room.nodes[0].over


def test_a_worker_is_done_with_its_own_slots_and_answers_those_who_have_more() -> None:
    """Otherwise all would meet as often as the fastest worker.

    Then a leg over slow links would hardly end.
    """
    room = pair("async")
    room.leg_of(0, 1, 4, [1])
    room.leg_of(1, 1, 4, [2, 3, 4, 5])
    room.deliver()
    done = {name: said.met for name, said, _ in room.home if isinstance(said, LegDone)}
    assert done["w0"] <= 1 < done["w1"]


def test_home_hears_how_far_a_worker_is_and_whom_it_waits_for() -> None:
    room = pair()
    room.leg_of(0, 1, 3, [1, 2, 3])
    room.deliver(lambda sender, letter: False)
    room.leg_of(0, 1, 3, [1, 2, 3])  # repeated: it is answered at once
    said = [message for _, message, _ in room.home if isinstance(message, GossipProgressReport) and message.leg]
    assert [(one.leg, one.rounds, one.rows, one.lacks) for one in said] == [(1, 0, 1, [])]
    room.wait(DEFAULT.heartbeat + 1)
    assert [message.lacks for name, message, _ in room.home if name == "w0"][-1] == ["w1"]


def test_a_worker_speaks_first_and_again_until_it_has_a_leg() -> None:
    room = pair()
    for _ in range(3):
        room.wait(DEFAULT.heartbeat)
    assert [message.leg for name, message, _ in room.home if name == "w0"] == [0, 0, 0]
    room.home.clear()
    room.leg_of(0, 1, 3, [1, 2, 3])
    room.wait(DEFAULT.heartbeat)
    assert [message.leg for name, message, _ in room.home if name == "w0"] == [1]


def test_an_error_in_a_computation_goes_to_home_and_nothing_is_computed_after_it() -> None:
    room = pair()

    def broken(slot: int) -> tuple[float, int]:
        raise MemoryError("no room for it")

    room.models[0].gradient = broken  # type: ignore[method-assign]
    room.leg(1, 2, lambda i: [1, 2])
    name, work = room.computing.pop(0)
    assert name == "w0"
    with pytest.raises(MemoryError) as raised:
        work.function()
    room.hand(0, Computed(work.token, error=raised.value))
    rest = room.home[-1][1]
    assert isinstance(rest, LegDone)
    assert "MemoryError: no room for it" in rest.error
    room.deliver()
    assert room.nodes[0].mixer.round == 0
    room.say(0, LegReceived(1))
    room.home.clear()
    room.wait(DEFAULT.resend_most + 1)
    assert not [1 for name, said, _ in room.home if name == "w0"]


def test_a_model_that_is_longer_than_a_frame_travels_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES", 8)
    vector: Floats = np.arange(7, dtype=np.float32)
    assert [one.tolist() for one in to_frames(vector)] == [[0, 1], [2, 3], [4, 5], [6]]
    assert np.array_equal(from_frames(to_frames(vector)), vector)
    room = pair()
    room.leg()
    assert len(room.letters(Offer)[0][1].arrays) == 2
    room.deliver()
    assert np.allclose(room.weights, room.starts.mean(0), atol=1e-6)


@pytest.mark.parametrize("shape", [(1,), (16_384,), (40_001,), (5_000, 7), (3, 20_000)])
def test_a_mean_is_added_up_in_double_precision_and_rounded_once(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(5)
    now, a, b = (draw.normal(size=shape).astype(np.float32) for _ in range(3))
    expected = (0.2 * now.astype(np.float64) + 0.3 * a.astype(np.float64) + 0.5 * b.astype(np.float64)).astype(
        np.float32
    )
    mix_into(now, 0.2, [(0.3, a.reshape(-1)), (0.5, b.reshape(-1))])
    assert np.array_equal(now, expected)


def test_a_model_that_no_message_can_carry_is_refused_with_the_next_move() -> None:
    check_size(1 << 20)
    with pytest.raises(Invalid, match="take a server"):
        check_size(1 << 40)


def test_what_makes_no_sense_is_not_answered() -> None:
    sync, meeting = pair(), pair("async")
    for room in (sync, meeting):
        room.leg()
        room.table.clear()
        room.senders.clear()
        before = room.weights
        for message in (Reached(7, 3, True), MeetReply(12), Without(9, "w1"), Show(4), Leg(1, 9, 0.5, [], [])):
            room.say(0, message)
            room.say(0, message, (), "stranger")
        room.say(0, Meet(1 << 60), (np.ones(SIZE + 2, np.float32),), "w1")
        room.say(0, Meet(1 << 60), (), "w1")
        assert not room.table
        assert np.array_equal(room.weights, before)
        assert isinstance(room.nodes[0].mixer, Synchronous | Pairwise)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("link", [0.0, 0.01])
def test_to_stand_until_a_neighbour_answers_is_waiting_in_both_modes_and_an_emulated_link_is_not(
    mode: str, link: float
) -> None:
    room = Room(Gossip(topology="complete").graph(2, 0), mode, link=link)
    room.leg_of(0, 1, 1, [])
    room.wait(50 * limits.MILLISECOND)
    room.leg_of(1, 1, 1, [])
    room.deliver()
    for _ in range(10):
        room.wait(10 * limits.MILLISECOND)
        room.deliver()
    compute, communicate, wait = next(said.along[5:8] for who, said, _ in room.home if who == "w0")
    assert wait >= 30_000 and compute == 0
    assert communicate == (0 if not link else pytest.approx(10_000 if mode == "sync" else 20_000))


def test_two_that_meet_while_they_run_away_are_quiet_about_it(recwarn: pytest.WarningsRecorder) -> None:
    room = Room(Gossip(topology="complete").graph(2, 0), "async")
    for model in room.models:
        model.add(np.full(SIZE, np.inf, np.float32))
    room.leg(rounds=2)
    room.deliver()
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


def test_models_that_are_shown_to_be_judged_are_not_counted_as_sent() -> None:
    traffic = [0, 7]
    room = Room(Gossip(topology="complete").graph(2, 0), traffic=lambda: tuple(traffic))
    room.leg(1)
    room.deliver()
    shown = sum(array.nbytes for who, _, arrays in room.home if who == "w0" for array in arrays)
    traffic[0] = 100 + shown
    for i in room.graph.living:
        room.say(i, LegReceived(1, False))
    room.leg(2)
    room.deliver()
    last = [said for who, said, _ in room.home if who == "w0" and isinstance(said, LegDone)][-1]
    assert shown and last.leg == 2 and last.along[3:5] == [100, 7]
