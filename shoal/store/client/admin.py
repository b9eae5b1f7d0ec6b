"""Operations that move no rows: what a client asks of the coordinator, or of all servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.store.client.inflight import InflightRequest
from shoal.store.client.operation import Operation, Outgoing
from shoal.store.client.task import Task
from shoal.wire import messages as m

if TYPE_CHECKING:
    from shoal.store.client.dispatch import Dispatch


class Admin(Operation):
    """A question to the coordinator, or to whoever deals."""

    def __init__(
        self, task: Task, message: Callable[[int], m.Message], kind: type[m.Message] = m.Done, to: str = ""
    ) -> None:
        super().__init__(task)
        self._to = to
        self._message, self._kind = message, kind
        self._answer: m.Message | None = None

    def letters(self, client: Dispatch) -> list[Outgoing]:
        return [(self._to or client.coordinator, self._message(client.request()), ())]

    def answered(
        self, client: Dispatch, letter: InflightRequest, answer: m.Message, arrays: m.Arrays
    ) -> list[Outgoing]:
        self._answer = answer
        return []

    def accepts(self, request: int, answer: m.Message, arrays: m.Arrays) -> bool:
        return isinstance(answer, self._kind)

    def value(self, client: Dispatch) -> Any:
        return self._answer if self._kind is not m.Done else None


class ParkOperation(Operation):
    """ "Do not wait for me", to all servers."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._spell: int | None = None

    def letters(self, client: Dispatch) -> list[Outgoing]:
        if self._spell is None:
            if not client.working:
                return []
            self._spell = client.spell
            # The spell is over, however this ends: a server that heard it may have parked us.
            client.spell += 1
            client.working = False
        spell = self._spell
        return [
            (member.name, m.Park(client.request(), client.incarnation, client.view.number, spell), ())
            for member in client.view.members
            if member.role == "server"
        ]


class StatusOperation(Operation):
    """How a table is doing, added up over its servers."""

    def __init__(self, task: Task, table: int) -> None:
        super().__init__(task)
        self.table = table
        self._told: dict[str, m.TableStatusReply] = {}

    def letters(self, client: Dispatch) -> list[Outgoing]:
        layout = client.of_number(self.table)
        layout.check_all_held()
        return [
            (server, m.TableStatusRequest(client.request(), self.table, client.view.number), ())
            for server in layout.servers
        ]

    def answered(
        self, client: Dispatch, letter: InflightRequest, answer: m.Message, arrays: m.Arrays
    ) -> list[Outgoing]:
        assert isinstance(answer, m.TableStatusReply)
        self._told[letter.to] = answer
        return []

    def accepts(self, request: int, answer: m.Message, arrays: m.Arrays) -> bool:
        return isinstance(answer, m.TableStatusReply)

    def restart(self, only: Sequence[str] | None = None) -> None:
        self._told.clear()

    def value(self, client: Dispatch) -> dict[str, Any]:
        longest = max((len(told.staleness) for told in self._told.values()), default=0)
        staleness = np.zeros(longest, np.int64)
        totals: dict[str, Any] = {}
        for told in self._told.values():
            staleness[: len(told.staleness)] += np.asarray(told.staleness, np.int64)
            for fact, value in told.facts.items():
                totals[fact] = totals.get(fact, 0) + value
        totals["staleness"] = staleness.tolist()
        totals["filters"] = client.told_by_filters(self.table)
        totals["handles"] = client.names.figures()
        totals["servers"] = {server: told.facts for server, told in sorted(self._told.items())}
        return totals
