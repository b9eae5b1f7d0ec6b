"""A client sends requests again when segments move, and leaves all others alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.limits import SECOND
from shoal.store.client.client import Client
from shoal.tables import Sparse, Update
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

SPEC = Sparse(keys=40, update=Update("sum"), max_delay=None)


class Restless:
    """An operation during whose inspection another thread adds a call to the queue."""

    def __init__(self, begun: int, queue: deque[Any]) -> None:
        self._begun, self._queue, self.resend = begun, queue, False

    @property
    def started(self) -> int:
        self._queue.append(Restless(0, deque()))
        return self._begun


def test_calls_that_other_threads_make_meanwhile_go_last_and_harm_nothing() -> None:
    """Calls of other threads do not break the dispatcher.

    Before the fix, the background thread that runs a client's loop ended with "deque mutated
    during iteration".
    """
    queue: deque[Any] = deque()
    queue += [first := Restless(2, queue), second := Restless(3, queue), new := Restless(0, queue)]
    dispatcher = Client("me").dispatcher
    dispatcher._queue, dispatcher._to_resend = queue, [moved := Restless(1, queue)]  # type: ignore[list-item]
    dispatcher._requeue()
    assert list(queue)[:4] == [moved, first, second, new]


def view(number: int, owners: str, since: Sequence[int], servers: str = "abcd") -> m.View:
    """A view with one table in four segments of ten keys."""
    places = [m.Replicas(at, [owner], since=at) for owner, at in zip(owners, since, strict=True)]
    members = [m.Member(name, 90 + i, "server", "") for i, name in enumerate(servers)]
    return m.View(
        1,
        number,
        0,
        [*members, m.Member("me", 7, "client", "")],
        [m.TablePlaces(1, "w", SPEC, [0, 10, 20, 30], places)],
    )


class Desk:
    def __init__(self, first: m.View) -> None:
        self.client, self.now = Client("me", "client"), SECOND
        self.client.take_view(self.now, first, 7)

    def sent(self, effects: list[Effect]) -> dict[str, Send]:
        found = [one for one in effects if isinstance(one, Send)]
        assert len({one.to for one in found}) == len(found)
        return {one.to: one for one in found}

    def push(self, *keys: int) -> tuple[Any, dict[str, Send]]:
        task = self.client.push("w", list(keys), [1.0] * len(keys))
        return task, self.sent(self.client.submit(self.now))

    def takes(self, new: m.View) -> dict[str, Send]:
        return self.sent(self.client.take_view(self.now, new, 7))

    def says(self, letter: Send, answer: m.Message, *arrays: Any) -> dict[str, Send]:
        return self.sent(self.client.handle(self.now, letter.to, answer, [np.asarray(one) for one in arrays]))

    def counts(self, *letters: Send) -> None:
        for letter in letters:
            assert not self.says(letter, m.Counted(letter.message.request, new=True))

    def refuses(self, letter: Send, view: int) -> dict[str, Send]:
        return self.says(letter, m.SegmentsMoved(letter.message.request, view))


def keys(letters: dict[str, Send]) -> dict[str, list[int]]:
    return {to: letter.arrays[0].tolist() for to, letter in letters.items()}


FIRST = view(1, "aabc", (1, 1, 1, 1))


def test_a_new_view_alone_sends_nothing_again() -> None:
    desk = Desk(FIRST)
    task, letters = desk.push(5, 15, 25, 35)
    assert desk.takes(view(2, "adbc", (1, 2, 1, 1))) == {}
    desk.counts(*letters.values())  # what was counted before the move stays counted
    assert task.done and task.error is None


def test_only_what_was_refused_is_sent_again_to_those_who_have_it_now() -> None:
    desk = Desk(FIRST)
    task, letters = desk.push(5, 15, 25, 35)
    desk.counts(letters["b"])
    desk.takes(view(2, "adbc", (1, 2, 1, 1)))
    again = desk.refuses(letters["a"], 2)
    assert keys(again) == {"a": [5], "d": [15]}
    assert {one.message.view for one in again.values()} == {2}
    assert {one.message.number for one in again.values()} == {letters["a"].message.number}
    desk.counts(again["a"], again["d"])
    assert not task.done  # the message to c is still in flight
    desk.counts(letters["c"])
    assert task.done


def test_an_heir_is_asked_for_all_it_has_and_what_it_gave_away_meanwhile_of_others() -> None:
    desk = Desk(FIRST)
    task, letters = desk.push(5, 15, 25, 35)
    desk.takes(view(2, "abdc", (1, 2, 2, 1)))  # b lost its segment, and got one of a's
    again = desk.refuses(letters["a"], 2)
    assert keys(again) == {"a": [5], "b": [15], "d": [25]}
    assert desk.refuses(letters["b"], 2) == {}  # that request was given up
    desk.counts(*again.values(), letters["c"])
    assert task.done


def test_one_that_was_asked_by_the_newest_view_is_not_asked_once_more() -> None:
    desk = Desk(view(1, "aabb", (1, 1, 1, 1)))
    task, letters = desk.push(5, 15, 25, 35)
    desk.takes(view(2, "acbc", (1, 2, 1, 2)))
    again = desk.refuses(letters["a"], 2)
    assert keys(again) == {"a": [5], "c": [15, 35]}
    more = desk.refuses(letters["b"], 2)
    assert keys(more) == {"b": [25]}
    desk.counts(*again.values(), *more.values())
    assert task.done


def test_what_is_kept_back_by_one_whose_segments_changed_is_sent_again_at_once() -> None:
    desk = Desk(FIRST)
    _, letters = desk.push(5, 15, 25)
    desk.says(letters["a"], m.RequestHeld(letters["a"].message.request, "its turn"))
    assert keys(desk.takes(view(2, "adbc", (1, 2, 1, 1)))) == {"a": [5], "d": [15]}
    _, later = desk.push(6)
    desk.takes(view(3, "ddbc", (3, 2, 1, 1)))
    assert keys(desk.says(later["a"], m.RequestHeld(later["a"].message.request, "its turn"))) == {"d": [6]}


def test_who_is_gone_is_not_waited_for() -> None:
    desk = Desk(FIRST)
    _, letters = desk.push(5, 25, 35)
    assert set(letters) == {"a", "b", "c"}
    assert keys(desk.takes(view(2, "aacc", (1, 1, 2, 1), servers="acd"))) == {"c": [25, 35]}


def test_an_old_letter_of_which_nothing_is_heard_is_said_anew_when_it_is_due() -> None:
    desk = Desk(FIRST)
    desk.push(15)
    desk.takes(view(2, "adbc", (1, 2, 1, 1)))
    desk.now += 2 * DEFAULT.resend_first
    assert keys(desk.sent(desk.client.tick(desk.now))) == {"d": [15]}


def test_what_was_begun_first_goes_first_when_all_is_sent_again() -> None:
    desk = Desk(FIRST)
    begun = [desk.push(key)[1]["b"] for key in (21, 22, 23)]
    (refresh,) = desk.refuses(begun[2], 2).values()
    assert isinstance(refresh.message, m.Refresh)
    assert desk.refuses(begun[0], 2) == {}  # one Refresh is enough for all
    assert desk.refuses(begun[1], 2) == {}
    effects = desk.client.take_view(desk.now, view(2, "aadc", (1, 1, 2, 1)), 7)
    again = [one for one in effects if isinstance(one, Send)]
    assert [(one.to, one.arrays[0].tolist()) for one in again] == [("d", [21]), ("d", [22]), ("d", [23])]


def test_rows_of_those_who_answered_before_are_kept() -> None:
    desk = Desk(FIRST)
    task = desk.client.pull("w", [5, 15, 25])
    letters = desk.sent(desk.client.submit(desk.now))
    values = m.Values(letters["b"].message.request, 1, [0])
    desk.says(letters["b"], values, np.array([3.0], np.float32))
    desk.takes(view(2, "adbc", (1, 2, 1, 1)))
    again = desk.refuses(letters["a"], 2)
    for to, row in (("a", 1.0), ("d", 2.0)):
        desk.says(again[to], m.Values(again[to].message.request, 1, [0]), np.array([row], np.float32))
    assert task.done and task.value.tolist() == [1.0, 2.0, 3.0]


def test_after_a_split_all_of_it_is_asked_anew() -> None:
    desk = Desk(FIRST)
    _, letters = desk.push(5, 25)
    split = m.TablePlaces(1, "w", SPEC, [0, 5, 10, 20, 30], [m.Replicas(2, [one], since=2) for one in "aaabc"])
    new = view(2, "aabc", (1, 1, 1, 1))
    desk.takes(m.View(1, 2, 0, new.members, [split]))
    assert keys(desk.refuses(letters["a"], 2)) == {"a": [5], "b": [25]}


def test_a_slot_is_told_to_all_heirs_also_where_it_has_no_rows() -> None:
    desk = Desk(FIRST)
    task = desk.client.push("w", [5], [1.0], slot=(0, 0))
    letters = desk.sent(desk.client.submit(desk.now))
    assert set(letters) == {"a", "b", "c"}
    desk.takes(view(2, "adbc", (1, 2, 1, 1)))
    again = desk.refuses(letters["a"], 2)
    assert {to: letter.message.count for to, letter in again.items()} == {"a": 1, "d": 0}
    desk.counts(*again.values(), letters["b"], letters["c"])
    assert task.done
