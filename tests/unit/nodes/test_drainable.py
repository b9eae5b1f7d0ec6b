"""A Drainable node wraps another: how it asks to leave, and the four ways in which it ends."""

from __future__ import annotations

import pytest

from shoal import limits
from shoal.cluster.membership_client import MembershipClient
from shoal.nodes.drainable import DrainableNode
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Event, Received, Send, Tick

SECOND = limits.SECOND


class Plain:
    """A node that only joins and sends heartbeats."""

    def __init__(self) -> None:
        self.name, self.member = "ann", MembershipClient("ann", "server", "t")
        self.events: list[Event] = []

    def handle(self, now: int, event: Event) -> list[Effect]:
        self.events.append(event)
        effects = self.member.tick(now)
        if isinstance(event, Received):
            effects += self.member.handle(now, event.message)[1]
        return effects


def view(leaving: bool = False, held: int = 0) -> m.View:
    member = m.Member("ann", 3, "server", "memory:ann", leaving)
    return m.View(1, 4 + leaving, 0, [member], [])


def joined(patience: int | None = 60 * SECOND) -> DrainableNode:
    node = Plain()
    guest = DrainableNode(node, node.member, patience)
    guest.handle(SECOND, Tick())
    guest.handle(SECOND, Received("coordinator", m.Welcome("t.0", 3, view())))
    assert guest.member.joined
    return guest


def asked(effects: list[Effect]) -> int:
    return effects.count(Send("coordinator", m.Leave(3, patiently=True)))


def test_it_asks_to_leave_again_and_again_until_it_is_let_go() -> None:
    guest = joined()
    guest.leave()
    said = [asked(guest.handle(SECOND + beat * DEFAULT.heartbeat, Tick())) for beat in range(1, 5)]
    assert said == [1, 1, 1, 1]
    guest.handle(4 * SECOND, Received("coordinator", m.Release(2)))  # for another incarnation
    assert not guest.end
    guest.handle(4 * SECOND, Received("coordinator", m.Release(3)))
    assert guest.end == "released"
    assert guest.handle(5 * SECOND, Tick()) == []


def test_one_that_was_told_to_go_and_missed_the_word_does_not_come_back_as_a_new_one() -> None:
    guest = joined()
    guest.handle(SECOND, Received("coordinator", view(leaving=True)))
    assert guest.leaving and not guest.wants_to_leave
    guest.handle(SECOND, Received("coordinator", m.Fence(0, 3)))
    assert guest.end == "released"


def test_one_that_is_fenced_and_nobody_wants_to_go_lives_on() -> None:
    guest = joined()
    guest.handle(SECOND, Received("coordinator", m.Fence(0, 3)))
    assert not guest.end and not guest.member.joined


def test_a_refusal_of_its_wish_is_remembered_and_it_stays() -> None:
    guest = joined()
    guest.leave()
    guest.handle(SECOND, Received("coordinator", m.Refusal(0, "setting", "it is the last")))
    assert guest.refusal == "it is the last" and not guest.end


def test_a_newcomer_that_is_refused_ends_unless_it_may_be_tried_again() -> None:
    node = Plain()
    guest = DrainableNode(node, node.member)
    guest.handle(SECOND, Received("coordinator", m.Refusal(0, "full", "the journal cannot be written")))
    assert not guest.end
    guest.handle(SECOND, Received("coordinator", m.Refusal(0, "setting", "the name is taken")))
    assert (guest.end, guest.why) == ("refused", "the name is taken")


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_coordinator_that_is_silent_for_too_long_is_given_up_unless_it_was_us_who_slept(sleeps: bool) -> None:
    guest, now = joined(), SECOND
    for _ in range(2 if sleeps else 125):
        now += 40 * SECOND if sleeps else DEFAULT.heartbeat
        guest.handle(now, Tick())
    assert guest.end == ("" if sleeps else "deserted")


def test_a_node_that_others_see_to_waits_for_ever() -> None:
    guest = joined(patience=None)
    for beat in range(1, 500):
        guest.handle(SECOND + beat * DEFAULT.heartbeat, Tick())
    assert not guest.end


def test_only_the_coordinator_can_dismiss_it_and_whoever_turns_the_loop_is_told() -> None:
    guest, told = joined(), list[str]()
    guest.on_end = lambda: told.append(guest.why)
    guest.handle(SECOND, Received("bob", m.Dismissed("go")))
    assert not told
    guest.handle(SECOND, Received("coordinator", m.Dismissed("it is over")))
    assert told == ["it is over"] and guest.end == "dismissed"
