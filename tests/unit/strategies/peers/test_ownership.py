"""Weights have owners: every contribution is in every part once.

That holds for any owner, and while peers join and leave.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from shoal.limits import SECOND
from shoal.schedule.stop_rules import StopRules
from shoal.strategies.peers.compute import Change
from shoal.strategies.peers.ownership import FLUSH, Ownership
from shoal.strategies.peers.run_log import RunLog
from shoal.wire.effects import Send
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays
from tests.unit.strategies.peers.peers_in_a_world import Peers, weights_of

KEYS, PARTS = 40, 4


@dataclass
class Talk:
    """The peers that are here, without a network."""

    living: list[str]
    gone: dict[str, str] = field(default_factory=dict)
    may_publish: bool = True

    def is_closed(self, life: str) -> bool:
        return life in self.gone


class One:
    """A peer's ownership, its log and its weights."""

    def __init__(self, life: str) -> None:
        self.life = life
        self.ownership, self.log = Ownership(life, PARTS, KEYS), RunLog(included=[{} for _ in range(PARTS)])
        self.weights = np.zeros(KEYS, np.float32)


class All:
    """Several peers that receive messages at once; those to owners are delivered by hand."""

    def __init__(self, *lives: str) -> None:
        self.ones = {life: One(life) for life in lives}
        self.talk = Talk(list(lives))
        self.now = SECOND
        self.sent: list[Send] = []

    def say(self, origin: str, word: p.Word, arrays: Arrays = ()) -> None:
        for one in self.ones.values():
            one.log.apply(origin, word)
            if isinstance(word, p.Owned):
                for keys, values in one.ownership.changes_of(word, (arrays[0], arrays[1])):
                    one.weights[keys] += values

    def lead(self, life: str) -> None:
        owners = self.ones[life].ownership.choose(self.ones[life].log, self.talk.living)
        if owners is not None:
            self.say(life, owners)

    def turn(self, hurry: bool = True) -> None:
        """Every peer yields, begins, publishes and sends what there is."""
        for _ in range(3):
            for one in self.ones.values():
                one.ownership.begin(self.now, one.log, self.talk)  # type: ignore[arg-type]
                self._keep(one.ownership.send(self.now, one.log))
                for word, arrays in one.ownership.words(self.now, one.log, self.talk, hurry):  # type: ignore[arg-type]
                    self.say(one.life, word, arrays)

    def _keep(self, effects: list[object]) -> None:
        self.sent += [one for one in effects if isinstance(one, Send)]

    def learn(self, life: str, slot: int, *keys: int) -> None:
        change: Change = (np.array(keys, np.uint64), np.ones(len(keys), np.float32))
        one = self.ones[life]
        one.weights[list(keys)] += 1
        number = one.ownership.contribute(change)
        self.say(life, p.Learned([(slot, slot + 1)], 1, 0.0, part=number))
        self._keep(one.ownership.send(self.now, one.log))

    def deliver(self, *only: str) -> None:
        sent, self.sent = self.sent, []
        for one in sent:
            if (not only or one.to in only) and one.to in self.ones:
                assert isinstance(one.message, p.OwnedShare)
                self.ones[one.to].ownership.receive(self.now, one.message, one.arrays, self.ones[one.to].log)

    def lose(self, life: str) -> None:
        del self.ones[life]
        self.talk.living.remove(life)
        self.talk.gone[life] = "its process ended"


def three() -> All:
    peers = All("a", "b", "c")
    peers.lead("a")
    peers.turn()
    return peers


def test_what_one_learns_about_a_third_ones_part_reaches_all() -> None:
    """Lesson 1: an owner informs all peers, not only the two ends of a link."""
    peers = three()
    owners = peers.ones["a"].log.owners
    assert owners is not None and sorted(set(owners.lives)) == ["a", "b", "c"]
    peers.learn("a", 0, 0, 15, 25, 39)
    peers.learn("b", 1, 0, 39)
    peers.deliver()
    peers.turn()
    expected = np.zeros(KEYS)
    expected[[0, 39]], expected[[15, 25]] = 2, 1
    for one in peers.ones.values():
        np.testing.assert_array_equal(one.weights, expected)
        assert one.log.counted.runs == [(0, 2)] and not one.ownership.unconfirmed


def test_a_slot_counts_when_its_change_is_in_every_part_and_not_before() -> None:
    peers = three()
    peers.learn("a", 0, 0, 39)
    peers.deliver("b")
    peers.turn()
    assert peers.ones["a"].log.done == 0 and peers.ones["a"].ownership.unconfirmed
    peers.now += SECOND  # it is sent again to the owner that has not confirmed it
    peers.turn()
    assert {one.to for one in peers.sent} == {"c"}
    peers.deliver()
    peers.turn()
    assert all(one.log.done == 1 and one.weights[39] == 1 for one in peers.ones.values())


def test_what_comes_twice_or_in_another_order_is_added_once() -> None:
    peers = three()
    for slot in range(6):
        peers.learn("a", slot, slot, 39 - slot)
    peers.sent = random.Random(3).sample(3 * peers.sent, 3 * len(peers.sent))
    peers.deliver()
    peers.turn()
    assert all(one.log.counted.runs == [(0, 6)] for one in peers.ones.values())
    assert all(one.weights.sum() == 12 and one.weights.max() == 1 for one in peers.ones.values())


def test_when_an_owner_dies_contributions_are_sent_to_the_next_and_each_counts_once() -> None:
    peers = three()
    peers.learn("a", 0, 0, 20, 39)
    peers.learn("b", 1, 0, 20, 39)
    peers.deliver("a", "b")
    peers.turn()
    peers.learn("a", 2, 5, 35)
    peers.lose("c")  # c had the last parts, and had published nothing
    peers.sent.clear()
    peers.lead("a")
    peers.turn()
    peers.deliver()
    peers.turn()
    peers.deliver()
    peers.turn()
    for one in peers.ones.values():
        assert one.log.counted.runs == [(0, 3)] and not one.ownership.unconfirmed
        assert (one.weights[0], one.weights[20], one.weights[39], one.weights[5], one.weights[35]) == (2, 2, 2, 1, 1)


def test_a_new_owner_begins_when_all_who_owned_before_have_yielded() -> None:
    peers = three()
    peers.talk.living.append("d")
    peers.ones["d"] = One("d")
    peers.ones["d"].log = RunLog.unpack(peers.ones["a"].log.pack())
    peers.lead("a")
    d = peers.ones["d"]
    owners = d.log.owners
    assert owners is not None and owners.version == 2 and "d" in owners.lives
    part = owners.lives.index("d")
    peers.say("a", p.Learned([(0, 1)], 1, 0.0, part=1))
    share = p.OwnedShare("a", 1, 2, [part])
    d.ownership.words(peers.now, d.log, peers.talk, hurry=True)  # type: ignore[arg-type]
    d.ownership.begin(peers.now, d.log, peers.talk)  # type: ignore[arg-type]
    nothing = (np.empty(0, np.uint64), np.empty(0, np.float32))
    d.ownership.receive(peers.now, share, nothing, d.log)
    assert not d.ownership.words(peers.now, d.log, peers.talk, hurry=True)  # type: ignore[arg-type]
    for life in ("a", "b", "c"):
        peers.say(life, p.Yielded(2))
    d.ownership.begin(peers.now, d.log, peers.talk)  # type: ignore[arg-type]
    ((word, _),) = d.ownership.words(peers.now, d.log, peers.talk, hurry=True)  # type: ignore[arg-type]
    assert word == p.Owned([(part, {"a": 1})])


def test_an_owner_tells_when_one_of_each_has_come_or_after_a_while() -> None:
    peers = three()
    peers.learn("b", 0, 0)
    peers.deliver()
    a = peers.ones["a"]
    assert not a.ownership.words(peers.now, a.log, peers.talk, hurry=False)  # type: ignore[arg-type]
    assert a.ownership.wake_at(peers.now, True) == peers.now + FLUSH
    assert a.ownership.words(peers.now + FLUSH, a.log, peers.talk, hurry=False)  # type: ignore[arg-type]
    peers.learn("a", 1, 0)
    peers.learn("b", 2, 0)
    peers.learn("c", 3, 0)
    peers.deliver()
    ((word, (keys, values)),) = a.ownership.words(peers.now, a.log, peers.talk, hurry=False)  # type: ignore[arg-type]
    assert isinstance(word, p.Owned) and (keys.tolist(), values.tolist()) == ([0], [3.0])


def test_what_is_not_known_to_be_learned_is_not_taken() -> None:
    """Otherwise, if its contributor died, nobody would know what is in the weights."""
    peers = three()
    a = peers.ones["a"]
    share = p.OwnedShare("b", 1, 1, [0])
    arrays = (np.array([0], np.uint64), np.ones(1, np.float32))
    a.ownership.receive(peers.now, share, arrays, a.log)
    assert not a.ownership.words(peers.now, a.log, peers.talk, hurry=True)  # type: ignore[arg-type]
    peers.say("b", p.Learned([(0, 1)], 1, 0.0, part=1))
    a.ownership.begin(peers.now, a.log, peers.talk)  # type: ignore[arg-type]
    assert a.ownership.words(peers.now, a.log, peers.talk, hurry=True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message", [p.OwnedShare("x", 1, 1, [0]), p.OwnedShare("b", 1, 9, [0]), p.OwnedShare("b", 1, 1, [99])]
)
def test_what_is_not_its_own_changes_nothing(message: p.OwnedShare) -> None:
    peers = three()
    a = peers.ones["a"]
    peers.say("b", p.Learned([(0, 1)], 1, 0.0, part=1))
    a.ownership.receive(peers.now, message, (np.array([0], np.uint64), np.ones(1, np.float32)), a.log)
    a.ownership.receive(
        peers.now, p.OwnedShare("b", 1, 1, [0]), (np.array([0], np.uint64), np.ones(2, np.float32)), a.log
    )
    assert not a.ownership.words(peers.now, a.log, peers.talk, hurry=True)  # type: ignore[arg-type]


def test_when_a_contributor_dies_all_have_the_same_and_its_slots_are_done_again() -> None:
    """A part of its last contribution that is in some parts stays there, and is reported."""

    for seed in range(6):
        peers = Peers(4, StopRules(epochs=6), seed=seed, owned=True, every=4)
        peers.until_done(90 + 7 * seed)
        peers.kill(peers.lives[seed % 4])
        peers.until_over()
        weights = [replica.weights_now for replica in peers.replicas.values()]
        assert all((one == weights[0]).all() for one in weights)
        node = peers.nodes[peers.lives[0]]
        assert node.log.counted.runs == [(0, 360)] and not node.log.counts["slots learned twice"]
        lost = node.log.partly(node.mesh.is_closed)

        if not lost:
            np.testing.assert_array_equal(weights[0], weights_of(range(360)))


def test_an_owner_that_names_a_number_far_beyond_what_was_contributed_holds_nobody_up() -> None:
    owning = Ownership("a", 2, 10)
    nothing = np.empty(0, np.uint64), np.empty(0, np.float32)
    assert owning.changes_of(p.Owned([(0, {"a": 1 << 45})]), nothing) == []
