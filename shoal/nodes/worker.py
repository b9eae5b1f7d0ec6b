"""A client with its place in the cluster, and the coroutines that use it.

A strategy, an example or a test is a coroutine: ``await worker.client.pull(...)``. There is no
asyncio here: a coroutine yields the task it waits for, and is resumed in the loop when that task is
done. The same node runs in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from shoal import limits
from shoal.cluster.membership_client import MembershipClient
from shoal.errors import Closed, Refused, Unanswered
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.tables import TABLE
from shoal.wire import messages as m
from shoal.wire.effects import Compute, Computed, Effect, Event, Received, Tick, Wake
from shoal.wire.messages.groups import SCHEDULER, namespace, whole


class Worker:
    """One client node, without its loop. Its role is worker, client or evaluator."""

    def __init__(self, name: str, role: str, token: str, seed: int = 0, group: str = "") -> None:
        """A member of a group is named ``group/...``; its group's scheduler deals to it."""
        self.name = name
        self.client = Client(name, role, seed=seed)
        self.client.session.group = group
        self.member = MembershipClient(name, role, token)
        self.member.group, self.member.reaches = group, {"server", SCHEDULER} if group else {"server"}
        self.now = 0
        self.clock: Callable[[], int] = lambda: self.now  # or a finer one
        self.joined = Task("join the cluster")
        self.on_fenced: Callable[[], None] | None = None
        self.on_leaving: Callable[[], None] | None = None  # it was asked to leave
        self._coroutines: list[tuple[Coroutine[Task, None, Any], Task, Task]] = []  # awaits, result
        self._sleepers: list[tuple[int, Task]] = []  # until when
        self._computing: dict[int, Task] = {}
        self._effects: list[Effect] = []
        self._token = 0
        self._locked_out: Refused | None = None  # the coordinator does not accept our key
        self._wake_at = 0  # when there is something to do without an event

    def start(self, coroutine: Coroutine[Task, None, Any]) -> Task:
        whole, first = Task(getattr(coroutine, "__name__", "a coroutine")), Task("start")
        first.finish()
        self._coroutines.append((coroutine, first, whole))
        return whole

    def sleep(self, nanoseconds: int) -> Task:
        task = Task("sleep")
        self._sleepers.append((self.now + nanoseconds, task))
        return task

    def compute(self, function: Callable[[], Any], cost: int) -> Task:
        """Run it here if it is short (``cost`` elements), else on the compute thread."""
        task = Task("compute")
        if cost <= limits.INLINE_ELEMENTS:
            task.finish(function())
        else:
            self._token += 1
            self._computing[self._token] = task
            self._effects.append(Compute(self._token, function))
        return task

    def handle(self, now: int, event: Event) -> list[Effect]:
        self.now = now
        effects: list[Effect] = []
        if isinstance(event, Received):
            effects += self._received(now, event)
        elif isinstance(event, Computed) and (task := self._computing.pop(event.token, None)) is not None:
            if event.error is not None and not isinstance(event.error, Exception):
                raise event.error
            task.finish(event.result, event.error)
        if now >= self._wake_at or isinstance(event, Tick):
            effects += self.member.tick(now)
            self._check_hello(now)
            effects += self.client.tick(now)
            for sleeper in [one for one in self._sleepers if one[0] <= now]:
                self._sleepers.remove(sleeper)
                sleeper[1].finish()
        while self._resume():
            effects += self.client.submit(now)
        if self._locked_out is not None:
            self.client.fail_all(self._locked_out)  # no request will be answered
        if self._effects:
            effects += self._effects
            self._effects = []
        self._wake_at = self._next_deadline()
        effects.append(Wake(self._wake_at))
        return effects

    def leave(self) -> list[Effect]:
        self.client.fail_all(Closed("the client was closed"))
        return self.member.leave()

    def _received(self, now: int, event: Received) -> list[Effect]:
        message = event.message
        if event.sender != self.member.coordinator or getattr(message, "request", 0) != 0:
            fence = isinstance(message, m.Fence) and self.client.dispatcher.awaits(event.sender, message.request)
            if not fence:
                return self.client.handle(now, event.sender, message, event.arrays)
        change, effects = self.member.handle(now, message)
        if change.fenced:
            self.client.session.counts["fenced"] += 1
            self.client.fenced()
            if self.on_fenced is not None:
                self.on_fenced()
        self._locked_out = Refused(event.sender, change.refused) if change.permanent else None
        if change.refused and not (change.transient and self.client.dispatcher.patient):
            self.joined.finish(error=Refused(event.sender, change.refused))
            self.client.fail_all(Refused(event.sender, change.refused))
        if change.view:
            self.member.active_view = self.member.view.number
            effects += self.client.take_view(now, self.member.view, self.member.incarnation)
            mine = next((one for one in self.member.view.members if one.name == self.name), None)
            if mine is not None and mine.leaving and self.on_leaving is not None:
                self.on_leaving()
            self.joined.finish()
        return effects

    def _check_hello(self, now: int) -> None:
        """Fail tasks that wait for membership too long, unless the client is patient."""
        since = self.member.asking_since
        if since and now - since >= self.member.timing.silence and not self.client.dispatcher.patient:
            error = Unanswered("hello", self.member.coordinator, (now - since) / limits.SECOND)
            self.joined.finish(error=error)
            self.client.fail_all(error)

    def _resume(self) -> bool:
        resumed = False
        for entry in list(self._coroutines):
            coroutine, waits, whole = entry
            if not waits.done:
                continue
            resumed = True
            self._coroutines.remove(entry)
            try:
                self._coroutines.append((coroutine, coroutine.send(None), whole))
            except StopIteration as stop:
                whole.finish(stop.value)
            except Exception as error:
                whole.finish(error=error)
        return resumed

    def _next_deadline(self) -> int:
        times = [self.member.next, *(until for until, _ in self._sleepers)]
        if self.client.dispatcher.inflight.requests:
            times.append(self.client.dispatcher.inflight.next)
        return min(times)


async def is_rolling_back(worker: Worker, generation: int) -> bool:
    """Whether the newest view shows a rollback, or a segment of the run without a server."""
    await worker.client.refresh()
    view, group = worker.client.session.view, worker.client.session.group
    ours = [one for one in view.tables if namespace(one.name) == group]
    there = any(one.name == whole(TABLE, group) for one in ours)
    # Other tables count too, such as the tally: a lost segment of any of them causes a rollback.
    return view.generation != generation or not there or any(not place.servers for t in ours for place in t.places)
