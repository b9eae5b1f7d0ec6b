"""Calls to a server driven by hand: who may ask, what waits, and nothing long runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from shoal.limits import SECOND
from shoal.nodes.server import Server
from shoal.store import query as door
from shoal.tables import Dense
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Compute, Computed, Effect, Event, Received, Send, Tick
from shoal.wire.messages.groups import CLUSTER, GroupLimits


@dataclass
class House:
    """Server ann holds rows 0 to 3 of eight; the caller is not a member."""

    server: Server = field(default_factory=lambda: Server("ann", "token"))
    now: int = 10 * SECOND
    asked: list[Compute] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.feed(Tick())
        self.feed(Received("coordinator", m.Welcome("token.0", 1, self.view(5))))
        self.compute()

    def view(self, number: int, owner: str = "ann", generation: int = 0) -> m.View:
        places = [m.Replicas(1, [owner], since=number), m.Replicas(1, ["bob"], since=number)]
        table = m.TablePlaces(1, "w", Dense(rows=8), [0, 4], places)
        return m.View(1, number, generation, [m.Member("ann", 1, "server", "")], [table])

    def feed(self, event: Event) -> list[m.Message]:
        effects: list[Effect] = self.server.handle(self.now, event)
        self.asked += [effect for effect in effects if isinstance(effect, Compute)]
        sends = [one for one in effects if isinstance(one, Send)]
        return [one.message for one in sends if not isinstance(one.message, m.Heartbeat | m.Hello)]

    def compute(self) -> list[m.Message]:
        job = self.asked.pop(0)
        job.function()
        return self.feed(Computed(job.token))

    def call(self, name: str, request: int = 1, **more: Any) -> list[m.Message]:
        fields = {"table": 1, "view": 5, "generation": 0, "settings": {}, "start": 0, "stop": 8}
        return self.feed(Received("eve", m.Call(request=request, name=name, **{**fields, **more})))


@pytest.fixture(autouse=True)
def _forgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(door, "_questions", {})
    yield


def test_who_is_no_member_may_ask_and_is_told_of_the_rows_that_are_here() -> None:
    assert House().call("count") == [m.Called(1, [4.0])]
    assert House().call("count", start=2, stop=3) == [m.Called(1, [1.0])]
    assert House().call("count", start=4) == [m.Called(1, [])]  # not held here: no result


def test_who_asks_as_one_of_a_group_is_told_only_what_that_group_may_read() -> None:
    def asks(house: House) -> list[m.Message]:
        return house.feed(Received("b/eve", m.Call(1, 1, house.server.member.view.number, 0, "count", {}, 0, 8)))

    house = House()
    (answer,) = asks(house)
    assert isinstance(answer, m.Refusal) and "may not read table 'w'" in answer.reason
    house.feed(Received("coordinator", replace(house.view(6), groups=[GroupLimits("b", reads=[CLUSTER])])))
    assert asks(house) == [m.Called(1, [4.0])]


def test_a_question_of_a_users_own_is_asked_off_the_loop_once_however_often_it_is_sent() -> None:
    ran = []

    @door.question()
    def slow(keys: Any, weights: Any, settings: Any) -> int:
        ran.append(len(keys))
        return len(keys)

    house = House()
    held = m.RequestHeld(1, "question 'slow', which is running")
    assert house.call("slow") == [held]
    assert house.call("slow") == [held]  # repeated
    assert house.call("slow", request=2) == []  # another call waits,
    # And gets this when it is repeated.
    assert house.call("slow", request=2) == [m.RequestHeld(2, held.waits)]
    house.now += DEFAULT.notice
    assert held in house.feed(Tick())
    assert house.compute() == [m.Called(1, [4.0]), m.RequestHeld(2, held.waits)]
    assert house.compute() == [m.Called(2, [4.0])]
    assert ran == [4, 4] and not house.asked


def test_a_function_that_fails_is_an_answer_and_the_server_goes_on() -> None:
    @door.question()
    def broken(keys: Any, weights: Any, settings: Any) -> Any:
        raise MemoryError

    house = House()
    house.call("broken")
    (no,) = house.compute()
    assert isinstance(no, m.Refusal) and no.kind == "question" and "MemoryError" in no.reason
    assert house.call("count", request=2) == [m.Called(2, [4.0])]


@pytest.mark.parametrize(
    ("more", "answer"),
    [
        ({"view": 4}, m.SegmentsMoved(1, 5)),
        ({"table": 2}, m.SegmentsMoved(1, 5)),
        ({"generation": 1}, m.Rollback(1, 0)),
    ],
)
def test_a_call_by_another_view_is_answered_as_a_pull_is(more: dict[str, int], answer: m.Message) -> None:
    assert House().call("count", **more) == [answer]


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ({"name": "no_such"}, "setting", "no question 'no_such' here"),
        ({"name": "x" * 900_000}, "setting", "no question 'xxx"),
        ({"name": "top", "settings": {"x" * 900_000: 1.0}}, "setting", "has no setting 'xxx"),
        ({"name": "top", "settings": {"n": 1.0}}, "setting", "has no setting 'n'"),
        ({"name": "top", "settings": {"k": float("nan")}}, "setting", "needs a finite number"),
        ({"name": "count", "start": 3, "stop": 1}, "keys", "needs 0 <= start <= stop"),
        ({"name": "count", "stop": 1 << 64}, "keys", "needs 0 <= start <= stop"),
    ],
)
def test_what_cannot_be_asked_is_refused(more: dict[str, Any], kind: str, said: str) -> None:
    (no,) = House().call(**more)
    assert isinstance(no, m.Refusal) and no.kind == kind and said in no.reason and len(no.reason) <= 2_000


def test_rows_that_were_given_away_while_the_question_was_asked_are_told_as_they_were() -> None:
    @door.question()
    def total(keys: Any, weights: Any, settings: Any) -> Any:
        return weights.sum()

    house = House()
    house.call("total")
    # The view waits until the rows are free.
    house.feed(Received("coordinator", house.view(6, owner="bob")))
    assert m.Called(1, [0.0]) in house.compute()
    assert house.call("count", request=2) == [m.SegmentsMoved(2, 6)]


def test_an_answer_brings_keys_and_values() -> None:
    house = House()
    push = m.Push(9, 1, 5, 0, 1, -1, 0, 0, 0, 0, 0, 0, m.EVERYWHERE, 2)
    sender = Received("ann", push, (np.array([1, 3], np.uint64), np.array([2, -5], np.float32)))
    house.feed(sender)
    effects = house.server.handle(house.now, Received("eve", m.Call(1, 1, 5, 0, "top", {"k": 1.0}, 0, 8)))
    (send,) = [one for one in effects if isinstance(one, Send) and isinstance(one.message, m.Called)]
    assert [array.tolist() for array in send.arrays] == [[3], [-5, 0]]
