"""A run on shared servers ends: one of its remaining clients drops its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.strategies.parameter_server import group_cluster
from shoal.strategies.parameter_server.group_cluster import GroupCluster


class Client:
    """A client of the run."""

    def __init__(self, closed: bool = False, lost: bool = False) -> None:
        self.closed, self._lost, self.dissolved = closed, lost, list[str]()

    def dissolve(self, group: str) -> None:
        if self._lost:
            raise ShoalError("it was fenced")
        self.dissolved.append(group)


class Eyes:
    def look(self, seconds: float) -> None: ...

    def close(self) -> None: ...


def cluster(monkeypatch: pytest.MonkeyPatch, *clients: Client) -> tuple[Any, list[Client]]:
    monkeypatch.setattr(group_cluster, "look_at", lambda *_: Eyes())
    made: Any = GroupCluster.__new__(GroupCluster)
    made._manager, made._safety, made.group, made._clients = "tcp://127.0.0.1:9", None, "b", list(clients)
    more: list[Client] = []

    @contextmanager
    def client(name: str) -> Iterator[Client]:
        more.append(Client())
        yield more[-1]

    made.client, made._stop_others = client, lambda: None
    return made, more


def test_whoever_of_it_is_still_there_says_so_since_a_full_group_takes_nobody_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, here = Client(closed=True), Client()
    made, more = cluster(monkeypatch, gone, here)
    made._dissolve()
    assert (gone.dissolved, here.dissolved, more) == ([], ["b"], [])


@pytest.mark.parametrize("clients", [(), (Client(closed=True),), (Client(lost=True),)])
def test_where_nobody_of_it_is_there_one_joins_for_it(
    monkeypatch: pytest.MonkeyPatch, clients: tuple[Client, ...]
) -> None:
    made, more = cluster(monkeypatch, *clients)
    made._dissolve()
    assert [one.dissolved for one in more] == [["b"]]
