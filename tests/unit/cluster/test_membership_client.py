"""A node joins with hello, takes views, sends heartbeats, and joins again if it is fenced."""

from __future__ import annotations

from itertools import pairwise

from shoal.cluster.membership_client import MembershipClient, ViewChange
from shoal.limits import SECOND
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Connect, Effect, Send

START = 100 * SECOND


def view(number: int, *servers: tuple[str, str], term: int = 1) -> m.View:
    return m.View(term, number, 0, [m.Member(name, 1, "server", address) for name, address in servers], [])


def hellos(effects: list[Effect]) -> list[str]:
    """The tokens of the hellos among these effects."""
    return [one.message.token for one in effects if isinstance(one, Send) and isinstance(one.message, m.Hello)]


def member(joined: bool = True) -> MembershipClient:
    made = MembershipClient("me", "worker", "token", "at me")
    made.reaches = {"server"}
    if joined:
        made.tick(START)
        made.handle(START, m.Welcome("token.0", 5, view(3)))
    return made


def test_hello_says_who_where_and_which_life() -> None:
    made = member(joined=False)
    assert made.tick(START) == [Send("coordinator", m.Hello("me", "worker", "token.0", "at me"))]
    assert not made.joined


def test_hello_is_said_again_until_it_is_answered_and_ever_more_slowly() -> None:
    made = member(joined=False)
    said = [now for now in range(START, START + 20 * SECOND, SECOND // 10) if made.tick(now)]
    gaps = [(after - before) / SECOND for before, after in pairwise(said)]
    assert gaps == [0.5, 1, 2, 4, 4, 4, 4]
    assert made.asking_since == START


def test_a_welcome_makes_a_member() -> None:
    made = member(joined=False)
    made.tick(START)
    change, effects = made.handle(START, m.Welcome("token.0", 5, view(3, ("ann", "here"))))
    assert change == ViewChange(view=True)
    assert (made.joined, made.incarnation, made.view.number, made.asking_since) == (True, 5, 3, 0)
    assert effects == [Connect("ann", "here")]


def test_a_member_sends_heartbeats_and_no_more_hellos() -> None:
    made = member()
    said = [now for now in range(START, START + 3 * SECOND, SECOND // 10) if made.tick(now)]
    assert len(said) == 5
    assert made.tick(START + 9 * SECOND) == [Send("coordinator", m.Heartbeat(5, 0, {}))]


def test_a_heartbeat_tells_the_view_in_effect_and_what_failed() -> None:
    made = member()
    made.failed[4] = "no memory"
    assert made.confirm_view(3) == [Send("coordinator", m.Heartbeat(5, 3, {4: "no memory"}))]
    made.failed.clear()
    assert made.heartbeat() == Send("coordinator", m.Heartbeat(5, 3, {}))


def test_the_welcome_of_another_life_is_ignored() -> None:
    made = member(joined=False)
    made.tick(START)
    assert made.handle(START, m.Welcome("token.1", 5, view(3))) == (ViewChange(), [])
    assert made.handle(START, m.Welcome("other.0", 5, view(3))) == (ViewChange(), [])
    assert not made.joined


def test_a_second_welcome_changes_nothing() -> None:
    made = member()
    assert made.handle(START, m.Welcome("token.0", 6, view(9))) == (ViewChange(), [])
    assert (made.incarnation, made.view.number) == (5, 3)


def test_only_newer_views_are_taken() -> None:
    made = member()
    assert made.handle(START, view(2)) == (ViewChange(), [])
    assert made.handle(START, view(3)) == (ViewChange(), [])
    assert made.handle(START, view(7))[0] == ViewChange(view=True)
    assert made.handle(START, view(5)) == (ViewChange(), [])  # it was overtaken in flight
    assert made.view.number == 7


def test_a_later_coordinators_views_are_newer_whatever_their_number() -> None:
    made = member()
    assert made.handle(START, view(1, term=2))[0] == ViewChange(view=True)
    assert made.handle(START, view(9, term=1))[0] == ViewChange()
    assert (made.view.term, made.view.number) == (2, 1)


def test_a_view_before_the_welcome_is_ignored() -> None:
    made = member(joined=False)
    made.tick(START)
    assert made.handle(START, view(3)) == (ViewChange(), [])


def test_a_member_is_connected_to_the_roles_it_reaches() -> None:
    made = member()
    others = [m.Member("eve", 9, "worker", "nowhere")]
    first = m.View(1, 4, 0, [m.Member("ann", 1, "server", "here"), *others], [])
    assert made.handle(START, first)[1] == [Connect("ann", "here")]
    second = view(5, ("ann", "there"), ("bob", "here"))
    assert made.handle(START, second)[1] == [Connect("ann", "there"), Connect("bob", "here")]
    assert made.handle(START, view(6, ("bob", "here")))[1] == [Connect("ann", "")]


def test_a_fenced_member_says_hello_as_a_new_life() -> None:
    made = member()
    made.confirm_view(3)
    change, effects = made.handle(START + SECOND, m.Fence(0, 5))
    assert change == ViewChange(fenced=True)
    assert hellos(effects) == ["token.1"]
    assert (made.joined, made.active_view, made.asking_since) == (False, 0, START + SECOND)
    # For its earlier incarnation.
    assert made.handle(START + SECOND, m.Welcome("token.0", 5, view(9)))[0] == ViewChange()
    assert made.handle(START + SECOND, m.Welcome("token.1", 8, view(2)))[0] == ViewChange(view=True)
    assert (made.incarnation, made.view.number) == (8, 2)


def test_a_fence_for_another_incarnation_is_ignored() -> None:
    made = member()
    assert made.handle(START, m.Fence(0, 4)) == (ViewChange(), [])
    assert made.handle(START, m.Fence(77, 6)) == (ViewChange(), [])
    assert made.joined


def test_one_who_was_removed_before_it_heard_of_it_begins_another_life() -> None:
    made = member(joined=False)
    made.tick(START)
    assert made.handle(START, m.IncarnationOver("token.7")) == (ViewChange(), [])
    change, effects = made.handle(START, m.IncarnationOver("token.0"))
    assert change == ViewChange()  # nothing was lost: it was not a member yet
    assert hellos(effects) == ["token.1"]
    assert made.handle(START, m.IncarnationOver("token.0")) == (ViewChange(), [])


def test_a_member_ignores_that_its_hello_came_too_late() -> None:
    made = member()
    assert made.handle(START, m.IncarnationOver("token.0")) == (ViewChange(), [])
    assert made.joined


def test_a_refusal_is_passed_on() -> None:
    made = member(joined=False)
    made.tick(START)
    assert made.handle(START, m.Refusal(0, "setting", "the cluster is full"))[0] == ViewChange(
        refused="the cluster is full"
    )
    assert member().handle(START, m.Refusal(0, "setting", "late"))[0] == ViewChange()


def test_who_leaves_says_so() -> None:
    assert member().leave() == [Send("coordinator", m.Leave(5))]
    assert member(joined=False).leave() == []


def test_the_back_off_starts_again_with_every_life() -> None:
    made = member(joined=False)
    for now in range(START, START + 20 * SECOND, SECOND // 10):
        made.tick(now)
    now = START + 20 * SECOND
    made.handle(now, m.Welcome("token.0", 5, view(3)))
    made.handle(now, m.Fence(0, 5))
    assert made.next == now + DEFAULT.resend_first


def test_a_view_that_gives_its_name_to_another_is_as_good_as_a_fence() -> None:
    made = member()
    ours, other = (m.View(1, number, 0, [m.Member("me", of, "worker", "")], []) for number, of in ((4, 5), (5, 9)))
    assert made.handle(START, ours)[0] == ViewChange(view=True)
    change, effects = made.handle(START, other)
    assert change == ViewChange(fenced=True) and hellos(effects) == ["token.1"]
    assert not made.joined and made.view is ours, "what is given to the other one is not taken"
