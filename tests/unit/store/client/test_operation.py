"""Drives a call of a client by hand, as its servers would.

Which servers it asks, which responses it accepts, and when it asks again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.errors import Invalid, Refused, SegmentsLost, Unanswered
from shoal.limits import CALL_KEYS, SECOND
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.tables import Dense
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

ANN, BOB = "ann", "bob"  # the servers


def view(number: int, *owners: str, servers: tuple[str, ...] = (ANN, BOB)) -> m.View:
    members = [m.Member(name, 90 + i, "server", f"at {name}") for i, name in enumerate(servers)]
    places = [m.Replicas(1, [owner] if owner else [], since=number) for owner in owners]
    return m.View(1, number, 0, members, [m.TablePlaces(1, "w", Dense(rows=20), [0, 10], places)])


class Desk:
    """A client, and the messages that it sent."""

    def __init__(self) -> None:
        self.client, self.now, self.sent = Client("eve"), SECOND, list[tuple[str, Any]]()
        self.take(self.client.take_view(self.now, view(1, ANN, BOB), 7))

    def take(self, effects: list[Effect]) -> None:
        self.sent += [(one.to, one.message) for one in effects if isinstance(one, Send)]

    def call(self, question: str = "count", keys: Any = slice(None), **more: Any) -> Task:
        task = self.client.call("w", keys, question, **more)
        self.take(self.client.submit(self.now))
        return task

    def answer(self, at: int, message: Any, *arrays: Any, **fields: Any) -> None:
        to, asked = self.sent[at]
        self.take(self.client.handle(self.now, to, message(asked.request, **fields), arrays))


def test_a_call_goes_to_who_holds_the_range_and_the_answers_are_one() -> None:
    desk = Desk()
    task = desk.call()
    assert [(to, one.name, one.start, one.stop) for to, one in desk.sent] == [
        (ANN, "count", 0, 20), (BOB, "count", 0, 20)
    ]  # fmt: skip
    desk.answer(1, m.Called, numbers=[7.0])
    assert not task.done
    desk.answer(0, m.Called, numbers=[10.0])
    assert task.result() == 17
    desk.call(keys=slice(3, 9))
    desk.call(servers=BOB)
    assert [to for to, _ in desk.sent[2:]] == [ANN, BOB]


@pytest.mark.parametrize(
    ("numbers", "arrays"),
    [
        ([0.0] * 20_000, ()),
        ([], (np.zeros(2, np.uint64),)),
        ([], (np.zeros(2, np.uint64), np.zeros(3, np.float32))),
        ([], (np.zeros(0, np.uint64), np.zeros(0, np.float32))),
        ([], (np.zeros(CALL_KEYS + 1, np.uint64), np.zeros(CALL_KEYS + 1, np.float32))),
    ],
)
def test_what_is_no_answer_is_not_taken_for_one(numbers: list[float], arrays: Any) -> None:
    desk = Desk()
    task = desk.call("top", keys=slice(0, 5))
    desk.answer(0, m.Called, *arrays, numbers=numbers)
    assert not task.done and desk.client.session.counts["strange answers"] == 1
    desk.answer(0, m.Called, np.array([3], np.uint64), np.array([-2, 0], np.float32), numbers=[])
    assert task.result() == [(3, 0, -2.0)]


def test_a_call_whose_keys_have_moved_is_asked_again_of_all_by_the_newer_view() -> None:
    desk = Desk()
    task = desk.call()
    desk.answer(0, m.Called, numbers=[10.0])
    desk.answer(1, m.SegmentsMoved, view=2)
    assert isinstance(desk.sent[-1][1], m.Refresh)
    desk.take(desk.client.take_view(desk.now, view(2, ANN, ANN, servers=(ANN,)), 7))
    desk.answer(2, m.Done)
    (to, again) = desk.sent[-1]
    assert (to, again.view) == (ANN, 2)
    desk.answer(3, m.Called, numbers=[20.0])
    assert task.result() == 20  # ann's first response is discarded


def test_a_group_of_servers_that_lost_its_part_is_named() -> None:
    desk = Desk()
    task = desk.call(servers=[BOB])
    desk.take(desk.client.take_view(desk.now, view(2, ANN, ANN, servers=(ANN,)), 7))
    with pytest.raises(Invalid, match=r"bob holds nothing of table 'w' \(servers: ann\)"):
        task._outcome()


@pytest.mark.parametrize(
    ("message", "fields", "error", "said"),
    [
        (m.Rollback, {"generation": 3}, Refused, "rolled back to a checkpoint"),
        (m.Refusal, {"kind": "question", "reason": "question 'count' failed: OSError"}, Refused, "'count' failed"),
        (m.Refusal, {"kind": "setting", "reason": "no question"}, Invalid, "no question"),
    ],
)
def test_a_refusal_ends_the_call(message: Any, fields: Any, error: type[Exception], said: str) -> None:
    desk = Desk()
    task = desk.call()
    desk.answer(0, message, **fields)
    with pytest.raises(error, match=said):
        task._outcome()


def test_who_is_told_that_it_is_being_asked_waits_and_who_hears_nothing_does_not_wait_for_ever() -> None:
    desk = Desk()
    task = desk.call(keys=slice(0, 5))
    for _ in range(30):
        desk.now += DEFAULT.notice
        desk.answer(0, m.RequestHeld, waits="question 'count', which is being asked")
        desk.take(desk.client.tick(desk.now))
    assert len(desk.sent) == 1 and "being asked" in task.waits_for
    for _ in range(30):
        desk.now += DEFAULT.notice
        desk.take(desk.client.tick(desk.now))
    with pytest.raises(Unanswered, match="ask 'count' of 'w': no answer from ann"):
        task._outcome()


def test_what_nobody_holds_cannot_be_asked_but_what_a_server_has_can() -> None:
    desk = Desk()
    desk.take(desk.client.take_view(desk.now, view(2, ANN, "", servers=(ANN,)), 7))
    with pytest.raises(SegmentsLost):
        desk.call()._outcome()
    task = desk.call(servers=ANN)
    desk.answer(-1, m.Called, numbers=[10.0])
    assert task.result() == 10


def test_what_goes_wrong_while_answers_are_put_together_is_the_callers_error() -> None:
    desk = Desk()
    task = desk.call("norms")
    desk.answer(0, m.Called, numbers=[1.0, 2.0, 3.0])
    desk.answer(1, m.Called, numbers=[1.0])
    with pytest.raises(Invalid, match="always return as many"):
        task._outcome()
