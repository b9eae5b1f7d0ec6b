"""The blocking client: ``KV``, whose calls return tasks with ``.result()``.

One loop, run by whichever thread waits: a thread inside ``.result()`` runs it itself, so an answer
costs no thread switch. A background thread runs it when no user thread has for a while, so
heartbeats, resends and late answers go on while the user computes. A lock passes the loop on.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from shoal import limits
from shoal.errors import Closed, Invalid, TimedOut, Unanswered, UnknownTable
from shoal.nodes.loop import Loop
from shoal.nodes.worker import Worker
from shoal.security.address import parsed
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.store.query import Question
from shoal.tables import Table, whole
from shoal.timing import DEFAULT
from shoal.wire import Transport
from shoal.wire.messages.groups import GroupLimits, member_name

if TYPE_CHECKING:
    from shoal.security.safety import Safety
    from shoal.wire.zmq import ZmqTransport

_open: weakref.WeakSet[KV] = weakref.WeakSet()
_Result = TypeVar("_Result")
log = logging.getLogger("shoal")
_REMIND = 10.0  # seconds until a wait reports its cause; then doubled
_STALL = 2.0  # seconds without progress until close gives up
_LOOK = 0.05  # seconds between checks for pending pushes
_IDLE = 0.02  # seconds without a user before the background thread runs it


class KV:
    """A key-value store. ``push``, ``pull``, ... return a task; its ``.result()`` waits."""

    def __init__(self, worker: Worker, transport: Transport, ended: Callable[[], str] = lambda: "") -> None:
        self._worker = worker
        self._client: Client = worker.client
        self._loop = Loop(worker, transport)
        self._loop_lock = threading.RLock()  # has an owner: an interrupted call can release it
        self._changed = threading.Condition()  # a task is done
        self._last_turn = 0.0  # when a user thread last ran the loop
        self._users: set[int] = set()  # threads inside a wait
        self._in_background = False  # the background thread has the loop
        self._pid = os.getpid()
        self._broken = ""  # why calls are impossible although it is open
        self._closed = threading.Event()
        self._cluster_ended = ended  # why the cluster has ended, or ""
        self._background = threading.Thread(target=_in_background, args=(weakref.ref(self), self._closed), daemon=True)
        self._background.start()
        _open.add(self)

    def __repr__(self) -> str:
        return f"<shoal client {self.name}{': ' + self._why_closed() if self._why_closed() else ''}>"

    # ------------------------------------------------------------ what one can ask

    @property
    def name(self) -> str:
        return self._worker.name

    @property
    def clock(self) -> int:
        """Steps that this worker has pushed."""
        return self._client.session.clock

    @property
    def members(self) -> list[str]:
        """The servers and clients in the cluster, by the newest view."""
        return [member.name for member in self._client.session.view.members]

    def create(self, name: str, spec: Table, starts: Sequence[int] = (), origin: str = "", like: str = "") -> None:
        """Create a table; returns when every server has it.

        ``origin`` is the folder of its checkpoint. ``like`` is another table with
        the same keys: each key lies on the same server, so a ``KeyList`` used with one is known
        for the other.
        """
        self._call(lambda: self._client.create(name, spec, starts, origin, like)).result()

    def drop(self, name: str) -> None:
        """Delete a table and its rows."""
        self._call(lambda: self._client.drop(name)).result()

    def tables(self) -> dict[str, Table]:
        """The current tables by name."""
        self._call(self._client.refresh).result()
        return {name: layout.spec for name, layout in self._client.session.layouts.items()}

    def set_max_delay(self, table: str, max_delay: int | None) -> None:
        """Change how far workers may run ahead of the slowest."""
        self._call(lambda: self._client.set_max_delay(table, max_delay)).result()

    def allow(
        self,
        group: str,
        *,
        mb: int = 0,
        tables: int = limits.GROUP_TABLES,
        members: int = limits.GROUP_MEMBERS,
        reads: Sequence[str] = (),
    ) -> None:
        """Set what a group of workers may have: megabytes (0: no bound), tables, members.

        ``reads``: groups whose tables it may pull from ("cluster": those of none). For members of
        no group.
        """
        quota = GroupLimits(group, whole("mb", mb), whole("tables", tables), whole("members", members), list(reads))
        self._call(lambda: self._client.allow(quota)).result()

    def dissolve(self, group: str) -> None:
        """Delete all tables of a group that has no members, or is this member's own."""
        self._call(lambda: self._client.dissolve(group)).result()

    def groups(self) -> list[GroupLimits]:
        """The groups that have limits."""
        self._call(self._client.refresh).result()
        return list(self._client.session.view.groups)

    def save(self, seconds: float | None = None) -> None:
        """Write a checkpoint; returns when it is on disk. Raises if that fails or takes longer."""
        number = isinstance(seconds, int | float | None) and not isinstance(seconds, bool)
        if not number or not (seconds or 0) >= 0:
            raise Invalid(f"save({seconds!r}): give how many seconds to wait at most, or nothing")
        self._call(self._client.save).result(seconds)

    def push(self, table: str, keys: Any, values: Any, **settings: Any) -> Task:
        """Count these values once: ``slot=(epoch, number)``, ``step=``, ``of=pull``, ``after=``.

        Arrays are not copied: do not change keys and values until the push is done. ``void=``
        fills a slot with nothing.
        """
        return self._on_table(table, lambda: self._client.push(table, keys, values, **settings))

    def pull(self, table: str, keys: Any, **settings: Any) -> Task:
        """The rows of these keys (list, array, slice, KeyRange): ``clock=``, ``slot=``, ``after=``.

        ``exact=True``: as float32 also where the table's ``wire`` is shorter.
        """
        return self._on_table(table, lambda: self._client.pull(table, keys, **settings))

    def push_pull(self, table: str, keys: Any, values: Any, **settings: Any) -> Task:
        """Count these values and return the new ones; settings as for push and pull."""
        return self._on_table(table, lambda: self._client.push_pull(table, keys, values, **settings))

    def call(self, table: str, keys: Any, question: Question | str, **settings: Any) -> Task:
        """Run a query over a range of keys (``slice(None)``: all), where the rows are.

        "count", "norms", "nonzeros", "top", "histogram", "overview", or a function of your own
        under ``@shoal.question()``; ``servers=[...]``, ``after=[tasks]``.
        """
        return self._on_table(table, lambda: self._client.call(table, keys, question, **settings))

    def flush(self, table: str, **settings: Any) -> Task:
        """Push what the table's filters hold back, unfiltered; ``after=[tasks]``."""
        return self._on_table(table, lambda: self._client.flush(table, **settings))

    def park(self, **settings: Any) -> Task:
        """Mark this worker as idle: others do not wait for it until its next pull."""
        return self._call(lambda: self._client.park(**settings))

    def stats(self, table: str) -> dict[str, Any]:
        """Rows, bytes, versions; what was counted, repeated, held, refused; staleness."""
        return dict(self._on_table(table, lambda: self._client.stats(table)).result())

    def wait(self, tasks: Task | Sequence[Task], timeout: float | None = None) -> None:
        """Wait until all tasks are done; raises the first error among them."""
        tasks = (tasks,) if isinstance(tasks, Task) else tasks
        deadline = None if timeout is None else time.monotonic() + timeout
        for task in tasks:
            task.result(None if deadline is None else max(0.0, deadline - time.monotonic()))

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Leave the cluster once all pushes are counted; those that stall fail with Closed."""
        try:
            if not self._why_closed():
                self._drain()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Leave at once: pending calls fail with Closed, whether they are counted or not."""
        if not self._closed.is_set() and os.getpid() == self._pid:
            self._end()

    def _drain(self) -> None:
        """Wait for pending pushes as long as they make progress."""
        pushes = self._client.dispatcher.pushes
        last, ours = time.monotonic(), set(map(id, pending := self._with_loop_paused(pushes)))
        while pending and (tasks := [task for task in self._with_loop_paused(pushes) if id(task) in ours]):
            before = len(tasks)
            with contextlib.suppress(TimedOut):
                self._wait(tasks[0], _LOOK)
            if sum(not task.done for task in tasks) < before:
                last = time.monotonic()
            elif time.monotonic() - last > _STALL or self._why_closed():
                what = "were not acknowledged when it was closed, and whether they count is not known"
                log.warning("%d pushes of %s %s: wait for them with .result() before that", before, self.name, what)
                return
        for table, size in self._with_loop_paused(self._client.session.held_back).items():
            what = f"hold back values of norm {size:.3g}, which are lost now: kv.flush({table!r}) before it is closed"
            log.warning("%s: filters of table %r %s sends them", self.name, table, what)

    def _with_loop_paused(self, look: Callable[[], _Result]) -> _Result:
        """Read the client's state while its loop does not run."""
        self._users.add(threading.get_ident())
        try:
            if self._in_background:
                self._loop.transport.wake()  # the background thread then releases the loop
            with self._loop_lock:
                return look()
        finally:
            self._users.discard(threading.get_ident())

    def _end(self) -> None:
        self._closed.set()
        _open.discard(self)
        self._loop.transport.wake()
        if threading.current_thread() is not self._background:
            self._background.join(limits.DRAIN / limits.SECOND)
        unread = [task for task in self._client.dispatcher.failed if not task.was_read]
        if unread:
            log.warning("%d pushes of %s failed and no result was read: %s", len(unread), self.name, unread[0].error)
        self._release()
        if self._loop_lock.acquire(timeout=limits.DRAIN / limits.SECOND):
            try:
                self._loop.carry_out(self._worker.leave())
            finally:
                self._loop.close()
                self._release()

    def __enter__(self) -> KV:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.close()
        else:
            self.abandon()  # report errors at once

    # ------------------------------------------------------------ who has the loop

    def joined(self, seconds: float = (DEFAULT.silence + DEFAULT.resend_most) / limits.SECOND + 1) -> KV:
        """Wait until it has joined; closes it if it does not."""
        self._worker.joined._waiter = self._wait
        try:
            self._worker.joined.result(seconds)
        except BaseException:
            self.close()
            raise
        return self

    def _on_table(self, table: str, call: Callable[[], Task]) -> Task:
        try:
            return self._call(call)
        except UnknownTable:  # another client may have just made it
            self._call(self._client.refresh).result()
            return self._call(call)

    def _call(self, call: Callable[[], Task]) -> Task:
        """Prepare a call in this thread; the thread that runs the loop sends it."""
        if (ended := self._why_closed()) != "":
            raise Closed(ended)
        task = call()
        task._waiter = self._wait
        try:
            if self._loop_lock.acquire(blocking=False):
                if not self._closed.is_set():
                    self._loop.poke()
            else:
                self._loop.poke_soon()
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            self._release()
        return task

    def _wait(self, task: Task, seconds: float | None) -> None:
        began = time.monotonic()
        deadline = None if seconds is None else began + seconds
        remind = began + _REMIND
        try:
            self._users.add(threading.get_ident())
            while not task.done:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimedOut(task.what, seconds or 0.0, task.waits_for or "an answer")
                if time.monotonic() >= remind:
                    waited = time.monotonic() - began
                    log.warning("%s, for %.0f s now, waits for %s", task.what, waited, task.waits_for or "an answer")
                    remind += waited
                if (ended := self._why_closed()) != "":
                    task.finish(error=Closed(ended))
                elif self._loop_lock.acquire(blocking=False):
                    if not self._closed.is_set():
                        self._loop.turn(left)
                    self._release()
                else:
                    if self._in_background:
                        self._loop.transport.wake()  # the background thread then releases the loop
                    with self._changed:
                        if not task.done:
                            self._changed.wait(0.002)
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            self._users.discard(threading.get_ident())
            self._release()

    def _why_closed(self) -> str:
        if os.getpid() != self._pid:
            return f"client {self.name} belongs to process {self._pid}: after a fork, shoal.connect(cluster.address)"
        if (ended := self._cluster_ended()) != "":
            return f"{ended}: start another one"
        if self._closed.is_set():
            return f"client {self.name} was closed: get another one from the cluster"
        return self._broken

    def _interrupted(self, error: BaseException) -> None:
        """Ctrl-C while waiting is harmless; in the middle of a loop turn the state is unknown."""
        if not isinstance(error, TimedOut) and self._loop_lock._is_owned() and not self._loop.waiting:  # type: ignore[attr-defined]
            self._broken = f"client {self.name} was interrupted in a call: get another one from the cluster"

    def _release(self) -> None:
        """Release the loop, if this thread has it."""
        while self._loop_lock._is_owned():  # type: ignore[attr-defined]
            self._last_turn = time.monotonic()
            self._loop_lock.release()
        self._notify()

    def _notify(self) -> None:
        if len(self._users) > 1 or self._closed.is_set():
            with self._changed:
                self._changed.notify_all()

    def _turn_in_background(self) -> float:
        """Run the loop once unless a user thread does; returns how long to pause."""
        if self._users or time.monotonic() - self._last_turn < _IDLE:
            return _IDLE
        if not self._loop_lock.acquire(timeout=_IDLE):
            return _IDLE
        self._in_background = True
        try:
            if not self._closed.is_set() and not self._users:
                self._loop.turn()
        finally:
            self._in_background = False
            self._loop_lock.release()
        self._notify()
        return 0.0


@atexit.register
def _close_all() -> None:
    for kv in list(_open):
        with contextlib.suppress(Exception):  # close the others, too
            kv.close()  # waits for pending pushes


def _in_background(reference: weakref.ref[KV], closed: threading.Event) -> None:
    """Run the loop through a weak reference, so that an unused client can be collected."""
    while not closed.is_set():
        kv = reference()
        if kv is None:
            return
        away = kv._turn_in_background()
        del kv
        if away:
            closed.wait(away)


# ---------------------------------------------------------------- a cluster that runs elsewhere


def connect(
    address: str,
    role: Literal["client", "worker", "evaluator"] = "client",
    name: str | None = None,
    *,
    group: str = "",
    keys: str | Path | None = None,
    insecure: bool = False,
    checksums: bool = True,
) -> KV:
    """A client of a cluster that runs elsewhere, by the address of its coordinator.

    As a member of a ``group`` it has tables of its own names. On another machine, and if the
    address has a key, this side needs one too: from the folder ``keys``, that of SHOAL_KEYS, or
    the default. ``insecure`` needs none. ``checksums`` protect arrays that are sent unencrypted.
    """
    from shoal.security.safety import Safety

    safety = Safety.chosen(keys, insecure, at=address).checking(checksums)
    return connect_by(safety, address, role, name, group)


def connect_by(safety: Safety, address: str, role: str = "client", name: str | None = None, group: str = "") -> KV:
    """``connect`` with loaded keys."""
    name = member_name(name, group) if name else safety.named(f"{role}-{secrets.token_hex(4)}", role, group)
    try:
        return client_of(name, role, connected(name, address, safety), group=group)
    except Unanswered as error:  # the name alone does not say which coordinator
        raise Unanswered(error.what, f"{error.node} at {parsed(address).plain}", error.seconds) from None


def connected(
    name: str, coordinator: str, safety: Safety, bind: str | None = None, advertise: str = ""
) -> ZmqTransport:
    """The transport of a node, connected to the coordinator at this address."""
    from shoal.wire.zmq import ZmqTransport

    transport = ZmqTransport(name, bind, safety, advertise)
    try:
        transport.connect(limits.COORDINATOR, coordinator)
    except BaseException:
        transport.close()
        raise
    return transport


def client_of(name: str, role: str, transport: Transport, ended: Callable[[], str] = lambda: "", group: str = "") -> KV:
    """A client that has joined; ``ended`` says why the cluster has ended, or ""."""
    return KV(Worker(name, role, secrets.token_hex(8), secrets.randbits(32), group), transport, ended).joined()
