"""Peers without a server: a message reaches all or none.

A peer that joins misses nothing, and a peer that is gone stays gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from shoal import limits
from shoal.limits import SECOND
from shoal.strategies.peers.broadcast import Broadcast, Delivery
from shoal.strategies.peers.mesh import Mesh, gives_way
from shoal.wire.effects import Connect, Effect, Received, Send, Tick
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays, Message

Rule = Callable[[str, str, Message], bool]  # from, to, message: does it arrive?
STEP = SECOND // 10


def peer(number: int, life: str = "") -> p.Peer:
    return p.Peer(life or f"w{number}", f"worker-{number}", number, f"memory:w{number}")


def word(slot: int) -> p.Learned:
    return p.Learned([(slot, slot + 1)], 1, 0.5)


class Room:
    """Meshes that receive messages at once, if the rule lets them through."""

    def __init__(self, founders: int) -> None:
        who = [peer(number) for number in range(founders)]
        self.now = SECOND
        self.meshes: dict[str, Mesh] = {one.life: Mesh(one, who) for one in who}
        self.heard: dict[str, list[Delivery]] = {one.life: [] for one in who}
        self.rule: Rule = lambda sender, to, message: True
        self.seen: list[tuple[str, str, Message]] = []
        self.post: deque[tuple[str, Send]] = deque()
        self.effects: list[Effect] = []

    def add(self, mesh: Mesh) -> Mesh:
        self.meshes[mesh.me.life], self.heard[mesh.me.life] = mesh, []
        return mesh

    def do(self, life: str, effects: list[Effect] | None) -> None:
        self.effects += effects or []
        self.post += [(life, one) for one in effects or [] if isinstance(one, Send)]
        while self.post:
            sender, send = self.post.popleft()
            self.seen.append((sender, send.to, send.message))
            if send.to in self.meshes and self.rule(sender, send.to, send.message):
                more = self.meshes[send.to].handle(self.now, Received(sender, send.message, send.arrays))
                self.effects += more or []
                self.post += [(send.to, one) for one in more or [] if isinstance(one, Send)]
        for name, mesh in self.meshes.items():
            self.heard[name] += mesh.broadcast.drain()

    def say(self, life: str, slot: int, arrays: Arrays = ()) -> None:
        self.do(life, self.meshes[life].publish(self.now, word(slot), arrays))

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds * SECOND / STEP)):
            self.now += STEP
            for life in list(self.meshes):
                if life in self.meshes and self.now >= self.meshes[life].wake_at:
                    self.do(life, self.meshes[life].handle(self.now, Tick()))

    def kill(self, life: str) -> None:
        del self.meshes[life]

    def slots(self, life: str, of: str = "") -> list[int]:
        return [
            one.word.slots[0][0]
            for one in self.heard[life]
            if isinstance(one.word, p.Learned) and of in ("", one.origin)
        ]


def joined(room: Room, number: int, through: str = "w0", life: str = "") -> Mesh:
    return room.add(Mesh(peer(number, life), through=[(through, "")]))


# ---------------------------------------------------------------- messages


def test_a_word_is_heard_by_all_and_by_the_one_that_said_it() -> None:
    room = Room(3)
    room.wait(1)
    room.say("w1", 7)
    assert [room.slots(life) for life in room.meshes] == [[7], [7], [7]]


def test_a_word_that_comes_again_is_heard_once() -> None:
    room = Room(2)
    room.wait(1)
    room.say("w0", 3)
    again = next(one for _, to, one in room.seen if to == "w1" and isinstance(one, p.Relay))
    room.meshes["w1"].handle(room.now, Received("w0", again))
    assert room.slots("w1") + [one.number for one in room.meshes["w1"].broadcast.drain()] == [3]


def test_words_of_one_peer_are_heard_in_their_order() -> None:
    streams = Broadcast()
    streams.take(0, Delivery("ann", 2, word(2)))
    assert streams.drain() == []
    streams.take(0, Delivery("ann", 1, word(1)))
    assert [one.number for one in streams.drain()] == [1, 2]


def test_a_word_that_was_lost_is_said_again_to_the_one_that_lacks_it() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (to == "w2" and isinstance(message, p.Relay))
    room.say("w0", 5)
    assert room.slots("w2") == []
    room.rule = lambda sender, to, message: True
    room.wait(3)
    assert room.slots("w2") == [5]
    assert room.meshes["w0"].is_quiet


def test_what_all_have_heard_is_kept_by_nobody() -> None:
    room = Room(3)
    for slot in range(10):
        room.say("w0", slot)
    assert room.meshes["w1"].broadcast.retained == 10
    room.wait(2)
    assert [mesh.broadcast.retained for mesh in room.meshes.values()] == [0, 0, 0]


def test_one_that_is_too_far_ahead_may_not_say_more_and_may_again_when_it_is_heard() -> None:
    room = Room(2)
    room.wait(1)
    room.rule = lambda sender, to, message: not isinstance(message, p.Relay)
    for slot in range(limits.PEER_WINDOW):
        assert room.meshes["w0"].may_publish
        room.say("w0", slot)
    assert not room.meshes["w0"].may_publish
    room.rule = lambda sender, to, message: True
    room.wait(4)
    assert room.meshes["w0"].may_publish
    assert room.slots("w1") == list(range(limits.PEER_WINDOW))


def test_the_end_is_not_heard_before_what_was_counted_for_it() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w1" and to == "w2")
    room.say("w1", 7)  # w2 does not receive it
    room.do("w0", room.meshes["w0"].publish(room.now, p.Halt("all is learned")))
    assert not any(isinstance(one.word, p.Halt) for one in room.heard["w2"])
    # Both peers that know it die: for w2 the run has not ended.
    for life in ("w0", "w1"):
        room.kill(life)
        room.do("w2", room.meshes["w2"].mark_gone(room.now, life, "killed"))
    room.wait(1)
    assert [room.meshes["w2"].is_closed(life) for life in ("w0", "w1")] == [True, True]
    assert room.heard["w2"] == []


def test_who_owns_what_is_not_heard_before_who_did_until_then() -> None:
    """Owner lists arrive in order.

    Otherwise a peer that is new in an earlier list, which is late, would count as new in this one.
    """
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w1" and to == "w2" and isinstance(message, p.Relay))
    room.do("w1", room.meshes["w1"].publish(room.now, p.OwnersChanged(2, ["w1"], ["w0", "w2"])))
    room.do("w0", room.meshes["w0"].publish(room.now, p.OwnersChanged(3, ["w0", "w1"], ["w2"])))
    assert room.heard["w2"] == []
    room.rule = lambda sender, to, message: True
    room.wait(3)
    assert [one.word.version for one in room.heard["w2"] if isinstance(one.word, p.OwnersChanged)] == [2, 3]


def test_the_end_is_heard_as_soon_as_what_it_follows_is() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w1" and to == "w2" and isinstance(message, p.Relay))
    room.say("w1", 7)
    room.do("w0", room.meshes["w0"].publish(room.now, p.Halt("all is learned")))
    room.rule = lambda sender, to, message: True
    room.wait(3)
    assert [type(one.word) for one in room.heard["w2"]] == [p.Learned, p.Halt]


def test_what_an_owner_tells_is_not_heard_before_it_was_heard_who_learned_it() -> None:
    room = Room(4)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w1" and to == "w2")
    room.say("w1", 7)  # w2 does not receive it
    owned = p.Owned([(0, {"w0": 3, "w1": 1}), (1, {"w1": 1})])
    room.do("w0", room.meshes["w0"].publish(room.now, owned, (np.array([4], np.uint64), np.ones(1, np.float32))))
    assert [one.word for one in room.heard["w3"]] == [word(7), owned]
    assert room.heard["w2"] == []
    # All peers die that know what was learned: then nothing of it may be in the weights, because
    # the slot is dealt again.
    for life in ("w0", "w1", "w3"):
        room.kill(life)
        room.do("w2", room.meshes["w2"].mark_gone(room.now, life, "killed"))
    room.wait(1)
    assert all(room.meshes["w2"].is_closed(life) for life in ("w0", "w1", "w3"))
    assert room.heard["w2"] == []


def test_what_an_owner_tells_is_handed_on_with_what_was_learned() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w1" and to == "w2")
    room.say("w1", 7)
    room.do("w0", room.meshes["w0"].publish(room.now, p.Owned([(0, {"w1": 1})])))
    room.kill("w1")
    for life in ("w0", "w2"):
        room.do(life, room.meshes[life].mark_gone(room.now, "w1", "killed"))
    room.wait(3)
    assert [type(one.word) for one in room.heard["w2"]] == [p.Learned, p.Owned]


def test_what_an_owner_tells_waits_for_nobody_else() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w1" and to == "w2")
    room.say("w1", 7)
    owned = p.Owned([(0, {"w2": 1})])
    room.do("w0", room.meshes["w0"].publish(room.now, owned))
    assert [one.word for one in room.heard["w2"]] == [owned]


# ---------------------------------------------------------------- peers that are gone


def test_what_one_that_died_told_only_some_is_handed_on() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w0" and to == "w2")
    room.say("w0", 9)
    room.kill("w0")
    room.rule = lambda sender, to, message: True
    room.do("w1", room.meshes["w1"].mark_gone(room.now, "w0", "killed"))
    room.wait(3)
    assert room.slots("w1") == room.slots("w2") == [9]
    assert room.meshes["w2"].is_closed("w0")
    assert room.meshes["w2"].gone == {"w0": "killed"}


def test_one_that_is_silent_for_long_is_gone_and_all_know_it() -> None:
    room = Room(3)
    room.wait(1)
    room.kill("w2")
    room.wait(4)
    assert room.meshes["w0"].gone == {}
    room.wait(3)
    assert all("silent" in mesh.gone["w2"] and mesh.is_closed("w2") for mesh in room.meshes.values())


def test_a_founder_that_takes_long_to_begin_is_waited_for() -> None:
    room = Room(2)
    room.kill("w1")
    room.wait(20)
    assert "w1" in room.meshes["w0"].members
    assert not room.meshes["w0"].is_met
    room.wait(50)
    assert "w1" in room.meshes["w0"].gone


def test_nothing_is_taken_from_one_that_is_gone() -> None:
    room = Room(2)
    room.wait(1)
    late = p.Relay("w1", 1, word(1))
    room.meshes["w0"].mark_gone(room.now, "w1", "killed")
    room.meshes["w0"].handle(room.now, Received("w1", late))
    assert room.meshes["w0"].broadcast.drain() == []


def test_one_is_not_closed_while_somebody_has_heard_more_of_it() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: not (sender == "w2" and to == "w0" and isinstance(message, p.Relay))
    room.say("w2", 4)
    room.kill("w2")
    for life in ("w0", "w1"):
        room.meshes[life].mark_gone(room.now, "w2", "killed")
    room.rule = lambda sender, to, message: not isinstance(message, p.Relay)
    room.wait(1)
    assert not room.meshes["w0"].is_closed("w2")
    room.rule = lambda sender, to, message: True
    room.wait(2)
    assert room.meshes["w0"].is_closed("w2")
    assert room.slots("w0") == [4]


def test_one_is_not_closed_while_somebody_does_not_know_of_another_who_is_gone() -> None:
    # w1 could still receive messages from w3, which relays what w2 said.
    room = Room(4)
    room.wait(1)
    first = room.meshes["w0"]
    for life in ("w0", "w1"):
        room.meshes[life].mark_gone(room.now, "w2", "killed")
    room.rule = lambda sender, to, message: sender != "w0"
    first.mark_gone(room.now, "w3", "killed")
    for life in ("w2", "w3"):
        room.kill(life)
    room.wait(1)
    assert "w2" in first.members["w1"].gone
    assert not first.is_closed("w2")
    room.rule = lambda sender, to, message: True
    room.wait(1)
    assert first.is_closed("w2")


def test_what_came_early_from_one_that_is_gone_must_come_again_from_one_that_lives() -> None:
    room = Room(3)
    room.wait(1)
    mesh = room.meshes["w0"]
    mesh.handle(room.now, Received("w2", p.Relay("w2", 2, word(2))))
    mesh.mark_gone(room.now, "w2", "killed")
    mesh.handle(room.now, Received("w1", p.Relay("w2", 1, word(1))))
    assert [one.number for one in mesh.broadcast.drain()] == [1]


def test_one_that_slept_holds_nobody_for_gone() -> None:
    room = Room(2)
    room.wait(1)
    room.now += 60 * SECOND
    room.meshes["w0"].handle(room.now, Tick())
    assert room.meshes["w0"].gone == {}


def test_one_that_slept_gives_way_and_puts_nobody_out() -> None:
    room = Room(4)
    room.wait(1)
    asleep = room.meshes.pop("w0")  # lowest rank, and a half as large as that of each peer it meets
    room.wait(8)
    assert all("w0" in mesh.gone for mesh in room.meshes.values())
    room.meshes["w0"] = asleep
    beat = p.Beat(peer(3), {}, [peer(3), peer(1), peer(2)], {"w0": "silent for 5.0 s"})
    room.do("w0", asleep.handle(room.now, Received("w3", beat)))  # the first message after it wakes
    room.wait(6)
    assert asleep.evicted
    assert [mesh.evicted for mesh in room.meshes.values()] == ["", "", "", asleep.evicted]


def test_one_that_slept_does_not_leave_before_those_who_went_on_without_it_can_have_called_it() -> None:
    room = Room(2)
    room.wait(1)
    slept = room.meshes["w0"]
    assert slept.may_leave(room.now)
    room.now += 8 * SECOND
    slept.handle(room.now, Tick())
    assert not slept.may_leave(room.now + slept.timing.heartbeat)
    assert slept.may_leave(room.now + slept.timing.dead)


def test_one_that_slept_does_not_give_way_to_a_newcomer_without_a_model() -> None:
    room = Room(2)
    room.wait(1)
    room.now += 8 * SECOND
    slept = room.meshes["w0"]
    told_by_the_dead = p.Beat(peer(9), {}, [peer(9)], {"w0": "silent for 5.0 s"}, filled=False)
    for _ in range(12):  # w1, which said so, is dead, and w0 has the only model
        slept.handle(room.now, Received("w9", told_by_the_dead))
        room.now += SECOND // 2
    assert not slept.evicted
    assert slept.gone == {"w9": "of the smaller half"}  # then w9 starts again, with us


# ---------------------------------------------------------------- joining


def test_a_newcomer_that_was_told_of_the_dead_alone_asks_everybody_anew() -> None:
    room = Room(2)
    room.wait(1)
    room.kill("w0")
    room.meshes["w1"].mark_gone(room.now, "w0", "silent for 5.0 s")
    newcomer = joined(room, 7, through="w1")
    room.wait(0.3)
    assert list(newcomer.members) == ["w1"]
    room.rule = lambda sender, to, message: False
    room.wait(12)
    assert newcomer.evicted
    assert newcomer.contacts == [peer(1), peer(0)]


def test_a_newcomer_misses_nothing_that_is_said_while_it_comes() -> None:
    room = Room(3)
    room.wait(1)
    for slot in range(3):
        room.say("w0", slot)
    mesh = joined(room, 9, through="w2")
    handed = 0
    for slot in range(3, 40):
        room.say(f"w{slot % 3}", slot)
        room.wait(0.1)
        for life, one in room.meshes.items():
            for wanting in one.donor.waiting:
                slab = np.zeros(100, np.float32)
                slab[room.slots(life)] = 1
                room.do(life, one.give(wanting, b"state", slab, dict(one.heard)))
                handed += 1
    room.wait(2)
    assert handed == 1
    given = mesh.newcomer.take()
    assert given is not None
    state, flat = given
    assert state == b"state"
    assert mesh.newcomer.take() is None
    assert sorted([*np.flatnonzero(flat).tolist(), *room.slots("w9")]) == list(range(40))
    assert mesh.is_quiet
    assert [one.life for one in room.meshes["w0"].living] == ["w0", "w1", "w2", "w9"]


def hand_all(room: Room) -> None:
    for life, mesh in list(room.meshes.items()):
        for wanting in mesh.donor.waiting:
            room.do(life, mesh.give(wanting, b"", np.ones(4, np.float32), mesh.heard))


def test_a_newcomer_asks_for_a_model_only_when_all_have_entered_it() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: to != "w2"
    joined(room, 9)
    room.wait(2)
    assert not any(isinstance(message, p.Fetch) for _, _, message in room.seen)
    room.rule = lambda sender, to, message: True
    room.wait(2)
    assert any(isinstance(message, p.Fetch) for _, _, message in room.seen)


def test_a_copy_is_adopted_when_the_others_have_heard_what_is_in_it() -> None:
    room = Room(2)
    room.wait(1)
    donor = "w0"
    mesh = joined(room, 9)
    room.wait(1)
    donor, other = next(
        (life, "w1" if life == "w0" else "w0") for life in ("w0", "w1") if room.meshes[life].donor.waiting
    )
    room.rule = lambda sender, to, message: not (to == other and isinstance(message, p.Relay))
    room.say(donor, 1)
    hand_all(room)
    assert not mesh.has_model  # if the donor dies now, nobody could relay that message to the other
    room.rule = lambda sender, to, message: True
    room.wait(2)
    assert mesh.has_model
    assert room.slots(other) == [1]


def copied_at(room: Room, number: int, version: p.Heard) -> Mesh:
    """Returns a peer that joined with such a copy, and has met nobody yet."""
    mesh = room.add(Mesh(peer(number), through=[]))
    mesh.has_model = True
    mesh.broadcast.begin_at(room.now, {mesh.me.life: 0, **version})
    return mesh


def meet(room: Room) -> None:
    for one in room.meshes.values():
        one._enter(room.now, [other.me for other in room.meshes.values()])
    for one in room.meshes.values():
        for member in one.members.values():
            member.has_model = member.lists_me = True


def test_of_two_copies_the_one_that_lacks_what_nobody_can_say_any_more_begins_anew() -> None:
    room = Room(0)
    older, newer = copied_at(room, 1, {"w0": 6}), copied_at(room, 2, {"w0": 8})
    meet(room)
    room.wait(3)
    assert not older.evicted, "w0 lives, as far as they know, and has the words"
    for one in (older, newer):
        one.mark_gone(room.now, "w0", "its process ended")
    room.wait(3)
    assert older.evicted
    assert peer(2) in older.contacts
    assert not newer.evicted


def test_a_copy_that_lacks_what_somebody_can_still_say_waits_for_it() -> None:
    room = Room(0)
    older, newer, other = (copied_at(room, number, {"w0": upto}) for number, upto in ((1, 6), (2, 8), (3, 6)))
    meet(room)
    room.rule = lambda sender, to, message: not (to == "w1" and isinstance(message, p.Relay))
    for number in (7, 8):
        other.broadcast.take(room.now, Delivery("w0", number, word(number)))
    for one in (older, newer, other):
        one.mark_gone(room.now, "w0", "its process ended")
    room.wait(3)
    assert not older.evicted
    room.rule = lambda sender, to, message: True
    room.wait(5)
    assert room.slots("w1", "w0") == [7, 8]
    assert all(one.is_quiet and not one.evicted for one in (older, newer, other))
    assert not newer.broadcast.copied, "all have heard it: nobody needs to know"


def test_of_two_copies_that_each_lack_something_the_first_stays() -> None:
    room = Room(0)
    one, two = copied_at(room, 1, {"w8": 6, "w9": 9}), copied_at(room, 2, {"w8": 8, "w9": 7})
    meet(room)
    for mesh in (one, two):
        mesh.mark_gone(room.now, "w8", "its process ended")
        mesh.mark_gone(room.now, "w9", "its process ended")
    room.wait(4)
    assert not one.evicted
    assert two.evicted


def test_a_newcomer_whose_donor_dies_asks_another() -> None:
    room = Room(3)
    room.wait(1)
    mesh = joined(room, 9)
    room.wait(1)
    donor = next(life for life, one in room.meshes.items() if one.donor.waiting)
    room.kill(donor)
    room.wait(8)
    hand_all(room)
    room.wait(1)
    assert mesh.has_model
    assert donor in mesh.gone


def test_a_model_in_pieces_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.strategies.peers.model_transfer._FLOATS", 3)
    room = Room(1)
    room.wait(1)
    mesh = joined(room, 9)
    room.wait(1)
    room.do("w0", room.meshes["w0"].give("w9", b"x", np.arange(8, dtype=np.float32), room.meshes["w0"].heard.copy()))
    assert mesh.newcomer.take() is not None or mesh.has_model
    pieces = [message.piece for _, _, message in room.seen if isinstance(message, p.ModelPiece)]
    assert pieces == [0, 1, 2]


def test_a_copy_that_lacks_what_nobody_keeps_is_not_handed_out() -> None:
    room = Room(1)
    room.wait(1)
    old = room.meshes["w0"].heard.copy()
    room.say("w0", 1)
    room.wait(2)  # no other peer is here: the message is no longer kept
    joined(room, 9)
    room.wait(1)
    assert room.meshes["w0"].give("w9", b"", np.zeros(1, np.float32), old) == []
    assert room.meshes["w0"].donor.waiting == ["w9"]


def test_a_newcomer_that_hears_nobody_with_a_model_begins_anew() -> None:
    room = Room(1)
    room.wait(1)
    mesh = joined(room, 9)
    room.wait(1)
    room.kill("w0")
    room.wait(14)
    assert mesh.evicted
    assert mesh.contacts == [peer(0)]


def test_newcomers_choose_different_donors() -> None:
    room = Room(4)
    room.wait(1)
    for number in range(10, 20):
        joined(room, number, life=f"n{number}")
    room.wait(2)
    donors = {to for _, to, message in room.seen if isinstance(message, p.Fetch)}
    assert len(donors) > 1


# ---------------------------------------------------------------- cut off


def cut(left: tuple[str, ...]) -> Rule:
    return lambda sender, to, message: (sender in left) == (to in left)


def test_of_two_halves_the_smaller_one_gives_way_when_they_meet_again() -> None:
    room = Room(5)
    room.wait(1)
    room.rule = cut(("w0", "w1"))
    room.wait(8)
    assert "w0" in room.meshes["w3"].gone
    assert "w3" in room.meshes["w0"].gone
    room.rule = lambda sender, to, message: True
    room.wait(6)
    assert [life for life, mesh in room.meshes.items() if mesh.evicted] == ["w0", "w1"]
    assert peer(2) in room.meshes["w0"].contacts


def test_of_two_equal_halves_the_one_with_the_first_of_all_goes_on() -> None:
    def beat(of: int, *others: int) -> p.Beat:
        return p.Beat(peer(of), {}, [peer(of), *map(peer, others)], {})

    assert gives_way(peer(1), [peer(2)], beat(0, 3))
    assert not gives_way(peer(0), [peer(3)], beat(1, 2))
    assert gives_way(peer(0), [peer(3)], beat(1, 2, 4)), "it is the smaller one"


def test_those_without_a_model_and_those_of_both_halves_do_not_count() -> None:
    claim = p.Beat(peer(1), {}, [peer(1), peer(2), peer(3)], {"w0": "silent"}, new=["w3"])
    assert not gives_way(peer(0), [peer(2)], claim)
    assert gives_way(peer(0), [], claim)
    late = p.Beat(peer(9), {}, [peer(9), peer(1), peer(2)], {"w0": "silent"}, filled=False)
    assert not gives_way(peer(0), [], late), "a newcomer's word is at second hand"


def test_one_that_another_has_refused_is_called_by_all_of_that_half() -> None:
    room = Room(3)
    room.wait(1)
    mesh = room.meshes["w0"]
    refused = p.Beat(peer(1), mesh.heard, [peer(1), peer(0)], {"w2": "of the smaller half"})
    effects = mesh.handle(room.now, Received("w1", refused)) or []
    room.kill("w1")  # no other peer knew where the other half is
    assert Connect("w2", "") not in effects
    here = mesh.handle(room.now, Received("w9", p.Greet(1))) or []
    assert [one.message.lost for one in here if isinstance(one, Send) and isinstance(one.message, p.PeerGreeting)] == [
        [peer(2)]
    ]


def test_one_that_hears_nobody_does_not_put_out_all_others() -> None:
    room = Room(3)
    room.wait(1)
    room.rule = lambda sender, to, message: to != "w0"
    room.wait(8)
    assert [mesh.evicted for mesh in room.meshes.values()][1:] == ["", ""]
    room.rule = lambda sender, to, message: True
    room.wait(6)
    assert room.meshes["w0"].evicted


def test_a_stranger_with_a_model_is_of_another_half() -> None:
    room = Room(3)
    room.wait(1)
    alone = room.add(Mesh(peer(8), [peer(8)]))
    room.do("w8", [Send("w0", p.Beat(alone.me, dict(alone.heard), [alone.me], {}))])
    room.wait(3)
    assert alone.evicted
    assert "w8" in room.meshes["w0"].gone


def test_one_that_leaves_may_go_when_it_is_held_for_gone() -> None:
    room = Room(2)
    room.wait(1)
    room.do("w0", room.meshes["w0"].publish(room.now, p.PeerLeaving("")))
    assert room.meshes["w0"].unheard == 1  # as far as w0 knows
    room.do("w1", room.meshes["w1"].mark_gone(room.now, "w0", ""))
    room.wait(2)
    assert room.meshes["w0"].evicted  # though it has the lowest rank of two equal halves
    assert not room.meshes["w1"].evicted


def test_a_late_claim_of_one_that_left_puts_nobody_out() -> None:
    room = Room(2)
    room.wait(1)
    mesh = room.meshes["w1"]
    mesh.mark_gone(room.now, "w0", "")
    mesh.handle(room.now, Received("w0", p.Beat(peer(0), {}, [peer(0)], {"w1": "silent for 9.0 s"})))
    assert not mesh.evicted


def test_one_that_comes_first_and_got_its_model_last_does_not_lead_before_the_others_know_and_it_heard_what_they_decided() -> (
    None
):
    room = Room(0)
    first, led = copied_at(room, 5, {}), copied_at(room, 9, {})
    meet(room)
    led.members["w5"].has_model = False  # w9 does not know yet that w5 has one
    assert (first.leads, led.leads) == ("w5", "w9")
    room.rule = lambda sender, to, message: sender == "w9" and not isinstance(message, p.Relay)
    room.wait(2)
    assert first.members["w9"].met
    assert not first.may_begin_to_lead
    room.say("w9", 1)  # so w9 still decides
    room.rule = lambda sender, to, message: not isinstance(message, p.Relay)
    room.wait(2)
    assert led.leads == "w5"
    assert not first.may_begin_to_lead
    room.rule = lambda sender, to, message: True
    room.wait(2)
    assert room.slots("w5") == [1]
    assert first.may_begin_to_lead


def test_founders_know_of_each_other_who_leads() -> None:
    assert [mesh.may_begin_to_lead for mesh in Room(3).meshes.values()] == [True] * 3


# ---------------------------------------------------------------- answers to strangers


def test_whoever_asks_is_told_who_is_here() -> None:
    room = Room(2)
    found = room.meshes["w1"].handle(room.now, Received("stranger", p.Greet(4)))
    assert found is not None
    assert isinstance(found[0], Send)
    here = found[0].message
    assert isinstance(here, p.PeerGreeting)
    assert here.request == 4
    assert sorted(one.life for one in here.peers) == ["w0", "w1"]


def test_each_that_comes_gets_a_number_of_its_own_however_many_come_at_once() -> None:
    room = Room(2)
    room.wait(1)
    given = []
    for comes in ("ann", "bob", "ann", ""):
        (sent,) = room.meshes["w0"].handle(room.now, Received("stranger", p.Greet(1, comes))) or []
        assert isinstance(sent, Send) and isinstance(sent.message, p.PeerGreeting)
        given.append(sent.message.number)
    assert given == [2, 3, 2, 0]


def test_what_is_not_the_meshs_is_left_to_its_holder() -> None:
    assert Room(1).meshes["w0"].handle(SECOND, Received("home", p.Watch(1))) == []


def test_peers_are_called_at_their_addresses_and_hung_up_on_when_they_end() -> None:
    room = Room(2)
    room.wait(1)
    assert Connect("w1", "memory:w1", mutual=True) in room.effects
    assert Connect("w1", "") in room.meshes["w0"].mark_gone(room.now, "w1", "killed")
