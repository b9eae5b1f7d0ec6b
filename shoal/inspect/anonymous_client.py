"""Runs queries on a cluster without joining it.

An anonymous client splits requests by the view that the coordinator shows to anyone, and servers
answer calls of anyone. It is not notified of new views, so it polls the view while it waits.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from shoal import limits
from shoal.errors import Invalid, Refused, TimedOut, Unanswered, UnknownTable
from shoal.inspect.status import PATIENCE
from shoal.nodes.strategy import TABLE
from shoal.store.client.client import Client
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.store.query import Question
from shoal.wire import Transport
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Send

_ASLEEP = 0.05  # longest wait in seconds between two checks for re-sends
_VISITOR = 1  # an incarnation that is not checked, to number requests


class AnonymousClient:
    """A client that is not a member. Any thread may use it, one at a time."""

    def __init__(self, open_transport: Callable[[str], Transport]) -> None:
        self._name = f"visit-{secrets.token_hex(4)}"
        self._open = open_transport
        self._transport: Transport | None = None
        self._client = Client(self._name, seed=secrets.randbits(32))
        self._client.take_view(0, m.View(0, 0, 0, [], []), _VISITOR)
        self._lock = threading.Lock()
        self._course: m.RunProgress | None = None
        self._looked = False

    def course(self, seconds: float = PATIENCE) -> m.RunProgress | None:
        """The progress of the run, if there is one; raises Unanswered."""
        with self._lock:
            self._looked = False
            self._send([Send(limits.COORDINATOR, m.StatusRequest(0))])
            self._turn(lambda: self._looked, seconds, "look", m.StatusRequest(0))
            return self._course

    def layout(self, table: str | None = None, seconds: float = PATIENCE) -> Layout:
        """The named table in the newest view; without a name, the weights or the only table."""
        with self._lock:
            self._wait(self._client.refresh(), seconds)
            known = self._client.session.layouts
            if table is None:
                table = TABLE if TABLE in known else next(iter(known)) if len(known) == 1 else None
            if table is None:
                said = (
                    f"name one of {', '.join(sorted(known))}" if known else "there are none yet: ask again in a moment"
                )
                raise Invalid(f"which table? {said}")
            if table not in known:
                raise UnknownTable(table, sorted(known))
            return known[table]

    def ask(
        self,
        question: Question | str,
        table: str | None = None,
        keys: Any = slice(None),
        *,
        servers: str | Sequence[str] | None = None,
        seconds: float | None = None,
        **settings: Any,
    ) -> Any:
        """Call a query as ``kv.call`` does; raises TimedOut after ``seconds``, if given."""
        layout = self.layout(table)
        with self._lock:
            task = self._client.call(layout.name, keys, question, servers=servers, **settings)
            self._wait(task, seconds)
            return task.result()

    def close(self) -> None:
        with self._lock:
            if self._transport is not None:
                self._transport.close()
                self._transport = None

    def _wait(self, task: Task, seconds: float | None) -> None:
        self._send(self._client.submit(time.monotonic_ns()))
        try:
            self._turn(lambda: task.done, seconds, task.what, m.Refresh(0))
        finally:
            self._client.fail_all(TimedOut(task.what, seconds or 0.0, task.waits_for or "an answer"))
        if task.error is not None:
            raise task.error

    def _turn(self, done: Callable[[], bool], seconds: float | None, what: str, again: m.Message) -> None:
        """Run the loop until it is done; ``again`` is sent to the coordinator periodically."""
        began = asked = now = time.monotonic_ns()
        while not done():
            if seconds is not None and now - began > seconds * limits.SECOND:
                raise Unanswered(
                    what, limits.COORDINATOR if not self._client.session.layouts else "all servers", seconds
                )
            if now - asked >= self._client.session.view.timing.resend_first:
                asked = now
                self._send([Send(limits.COORDINATOR, again)])
            assert self._transport is not None
            for event in self._transport.receive(_ASLEEP):
                self._take(event)
            now = time.monotonic_ns()
            self._send(self._client.tick(now))

    def _take(self, event: Received) -> None:
        now, message = time.monotonic_ns(), event.message
        if isinstance(message, m.Refusal) and message.request == 0 and message.kind in ("key", "version"):
            raise Refused(event.sender, message.reason)
        if isinstance(message, m.View) and event.sender == limits.COORDINATOR:
            known = self._client.session.view
            if (message.term, message.number) > (known.term, known.number):
                self._connect(message)
                self._send(self._client.take_view(now, message, _VISITOR))
        elif isinstance(message, m.StatusReply) and event.sender == limits.COORDINATOR:
            self._course, self._looked = message.course, True
        else:
            self._send(self._client.handle(now, event.sender, message, event.arrays))

    def _connect(self, view: m.View) -> None:
        assert self._transport is not None
        here = {member.name: member.address for member in view.members if member.role == "server"}
        for member in self._client.session.view.members:
            if member.role == "server" and member.name not in here:
                self._transport.disconnect(member.name)
        for name, address in here.items():
            self._transport.connect(name, address)

    def _send(self, effects: list[Effect]) -> None:
        if self._transport is None:
            self._transport = self._open(self._name)
        for effect in effects:
            if isinstance(effect, Send):
                self._transport.send(effect.to, effect.message, effect.arrays)
        self._transport.flush()
