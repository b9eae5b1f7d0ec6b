"""Looks at a cluster from outside: it asks without being a member, so nothing changes by being looked at.

The coordinator says who is here and how far the run is (``Look``), each server how its tables are doing (``Ask``). An answer
that does not come is asked for again: a coordinator that was just killed may be back in a moment.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shoal.errors import Unanswered
from shoal.wire import Transport
from shoal.wire import messages as m

PATIENCE = 2.0  # seconds: who does not answer by then is said not to
_AGAIN = 0.25  # seconds until a question is asked again

Answer = TypeVar("Answer", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Status:
    """How a cluster stands."""

    standing: m.Standing
    view: m.View
    told: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)  # by server and table's number
    silent: list[str] = field(default_factory=list)  # servers that did not answer

    def version(self, server: str, table: int, segment: int) -> int | None:
        """Of a copy of a segment; where a server does not say it for each, the oldest that it has."""
        facts = self.told.get((server, table), {})
        return facts.get(f"version {segment}", facts.get("version"))

    def clocks(self) -> dict[str, int]:
        """Of the workers, as the servers know them: the lowest."""
        found: dict[str, int] = {}
        for facts in self.told.values():
            for name, value in facts.items():
                if name.startswith("clock "):
                    worker = name.removeprefix("clock ")
                    found[worker] = min(value, found.get(worker, value))
        return found


class Looking:
    """One pair of eyes; any thread may use it, one at a time."""

    def __init__(self, open_transport: Callable[[str], Transport]) -> None:
        self.name = f"look-{secrets.token_hex(4)}"
        self._open = open_transport
        self._transport: Transport | None = None
        self._lock = threading.Lock()
        self._request = 0

    def look(self, seconds: float = PATIENCE) -> m.Standing:
        """How it stands, by the coordinator's word; raises Unanswered."""
        return self._ask("look", "coordinator", m.Look, m.Standing, seconds)

    def view(self, seconds: float = PATIENCE) -> m.View:
        return self._ask("refresh the view", "coordinator", m.Refresh, m.View, seconds)

    def status(self, seconds: float = PATIENCE) -> Status:
        """All that can be seen; servers that do not answer are named."""
        standing, view = self.look(seconds), self.view(seconds)
        status = Status(standing, view)
        for member in view.members:
            if member.role != "server":
                continue
            tables = [table for table in view.tables if any(_holds(place, member.name) for place in table.places)]
            for table in tables:
                try:
                    told = self._facts(member, table.number, seconds)
                except Unanswered:
                    status.silent.append(member.name)
                    break
                if told is not None:
                    status.told[member.name, table.number] = told
        return status

    def close(self) -> None:
        with self._lock:
            if self._transport is not None:
                self._transport.close()
                self._transport = None

    def _facts(self, server: m.Member, table: int, seconds: float) -> dict[str, int] | None:
        def ask(request: int) -> m.Ask:
            return m.Ask(request, table, 0)

        answer = self._ask(f"ask about table {table}", server.name, ask, m.Message, seconds, server.address)
        return answer.facts if isinstance(answer, m.Told) else None

    def _ask(
        self, what: str, to: str, make: Callable[[int], m.Message], kind: type[Answer], seconds: float, at: str = ""
    ) -> Answer:
        with self._lock:
            if self._transport is None:
                self._transport = self._open(self.name)
            if at:
                self._transport.connect(to, at)
            self._request += 1
            return self._exchange(self._transport, what, to, make(self._request), kind, seconds)

    def _exchange(
        self, transport: Transport, what: str, to: str, question: Any, kind: type[Answer], seconds: float
    ) -> Answer:
        now = time.monotonic()
        deadline, again = now + seconds, 0.0
        while now < deadline:
            if now >= again:
                transport.send(to, question, ())
                transport.flush()
                again = now + _AGAIN
            for event in transport.receive(max(0.0, min(again, deadline) - now)):
                answer = event.message
                known = getattr(answer, "request", question.request) == question.request  # a view has none
                if event.sender == to and known and isinstance(answer, kind):
                    return answer
            now = time.monotonic()
        raise Unanswered(what, to, seconds)


def look_at(address: str) -> Looking:
    """At a cluster of other processes of this machine, by the address of its coordinator."""
    from shoal.wire.zmq import ZmqTransport

    def transport(name: str) -> Transport:
        made = ZmqTransport(name)
        try:
            made.connect("coordinator", address)
        except BaseException:
            made.close()
            raise
        return made

    return Looking(transport)


def _holds(place: m.Place, server: str) -> bool:
    return server in place.servers or server == place.filling
