"""A drain reports its progress and its result, from the coordinator's views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.errors import ClusterError
from shoal.inspect import drain as leaving
from shoal.inspect.drain import let_go
from shoal.tables import Dense
from shoal.wire import messages as m

ANN, BOB = m.Member("ann", 1, "server", "memory:ann"), m.Member("bob", 2, "server", "memory:bob")


def view(*members: m.Member, owners: Sequence[str], last: str = "") -> m.View:
    places = [m.Replicas(1, [owner] if owner else [], "" if owner else last) for owner in owners]
    table = m.TablePlaces(1, "w", Dense(rows=8), list(range(len(owners))), places)
    return m.View(1, 1, 0, list(members), [table])


class Eyes:
    """A status client that shows one view after another, and then the last one for ever."""

    def __init__(self, *views: m.View, lost: dict[str, str] | None = None) -> None:
        self._views, self._lost = list(views), lost or {}

    def view(self) -> m.View:
        return self._views.pop(0) if len(self._views) > 1 else self._views[0]

    def drain(self, name: str) -> m.Message:
        return m.Done(1)

    def look(self) -> m.StatusReply:
        return m.StatusReply(1, 1, 1, 0, 1, [], self._lost, None, "", {})


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "_LOOK", 0.0)


def told(eyes: Any, name: str = "ann") -> list[str]:
    said: list[str] = []
    let_go(eyes, name, said.append)
    return said


def test_a_server_that_hands_over_and_goes_has_left() -> None:
    views = (
        view(ANN, BOB, owners=["ann", "bob"]),
        view(ANN, BOB, owners=["bob", "bob"]),
        view(BOB, owners=["bob"] * 2),
    )
    assert told(Eyes(*views)) == ["ann: 1 of 1 segment left", "ann: 0 of 1 segment left"]


def test_a_server_that_hands_over_between_two_looks_has_left() -> None:
    views = view(ANN, BOB, owners=["ann", "bob"]), view(BOB, owners=["bob", "bob"])
    assert told(Eyes(*views, lost={"ann": "it left: others have what it had"}))[-1] == "ann: 0 of 1 segment left"


def test_a_server_that_is_killed_while_it_hands_over_has_not_left() -> None:
    views = view(ANN, BOB, owners=["ann", "bob"]), view(BOB, owners=["", "bob"], last="ann")
    with pytest.raises(ClusterError, match=r"ended before others had taken over.*killed by signal 9.*shoal status"):
        told(Eyes(*views, lost={"ann": "its process ended (killed by signal 9)"}))


def test_a_server_that_is_killed_and_back_under_its_name_has_not_left() -> None:
    back = replace(ANN, incarnation=3)
    views = view(ANN, BOB, owners=["ann", "bob"]), view(back, BOB, owners=["bob", "bob"])
    with pytest.raises(ClusterError, match="another one has its name by now"):
        told(Eyes(*views))


def test_a_server_that_is_killed_when_others_have_everything_has_left() -> None:
    views = (
        view(ANN, BOB, owners=["ann", "bob"]),
        view(ANN, BOB, owners=["bob", "bob"]),
        view(BOB, owners=["bob"] * 2),
    )
    assert told(Eyes(*views, lost={"ann": "killed"}))[-1] == "ann: 0 of 1 segment left"
