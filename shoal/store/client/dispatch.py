"""Operations in progress: started in turn, sent, resent, and completed from the answers.

An operation starts when the tasks it follows are done and the byte window has room. It is split
over the servers by the view of that moment; a request is for all that one server held by it. After
a placement change, only the requests that it affects go again, to the servers that hold the keys
now, in their original order:

    its server has left                      at once
    its server holds it back (``RequestHeld``)  at once: it drops those who wait with the segments
    its server's segments have changed       when it refuses (``SegmentsMoved``) or a resend is due
    its server holds what it held            never: request and answer stay valid

So many placement changes in a row do not restart everything each time. What was counted before may
be sent again; the ledgers drop it. No I/O: methods that may send return effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from shoal import errors, limits
from shoal.store.client.inflight import Inflight, InflightRequest
from shoal.store.client.operation import Admin, Operation, ParkOperation, PullOperation, PushOperation, StatusOperation
from shoal.store.client.session import Session
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.wire import messages as m
from shoal.wire.effects import Effect


class Dispatcher:
    """The operations of one client that are queued or in flight."""

    def __init__(self, session: Session, seed: int = 0) -> None:
        self.patient = False  # keeps asking silent servers: membership says when one has left
        self.inflight = Inflight(seed)
        self.failed: list[Task] = []  # pushes that failed: reported if no result is read
        self.running: dict[int, Operation] = {}  # by request: an operation is here once per request
        self._session = session
        self._queue: deque[Operation] = deque()  # not started; any thread appends
        self._refresh: Task | None = None  # asks for the newest view
        self._to_resend: list[Operation] = []  # some of their requests must be sent again
        self._bytes = 0  # in flight

    def add(self, op: Operation) -> Task:
        """Queue an operation; ``submit`` starts it."""
        self._queue.append(op)
        return op.task

    def tasks(self) -> list[Task]:
        """The tasks of all operations that are queued or running."""
        return [op.task for op in self._operations()]

    def pushes(self) -> list[Task]:
        """Pushes in flight, without slots that wait for other slots of their step."""
        self._requeue()
        ops = [op for op in self._operations() if isinstance(op, PushOperation)]
        return [op.task for op in ops if op.slot is None or not op.task.held]

    def _operations(self) -> list[Operation]:
        return list(dict.fromkeys([*self.running.values(), *self._queue]))

    # ------------------------------------------------------------ starting

    def _requeue(self) -> None:
        """Queue operations to resend before all that never started, in the order of their start."""
        if self._to_resend:
            started: list[Operation] = []
            while self._queue and self._queue[0].started:  # never iterate: other threads append
                started.append(self._queue.popleft())
            again, self._to_resend = self._to_resend, []
            self._queue.extendleft(sorted([*started, *again], key=lambda op: op.started, reverse=True))

    def submit(self, now: int) -> list[Effect]:
        """Start every operation that may start."""
        effects: list[Effect] = []
        if not self._session.incarnation:
            return effects
        waiting: list[Operation] = []
        self._requeue()
        # Held requests do not count: a step may wait for slots that this client has yet to send.
        while self._queue and len(self.inflight.requests) - self.inflight.held_count < limits.CLIENT_REQUESTS:
            op = self._queue.popleft()
            if op.task.done:
                continue
            after = op.task.after
            failed = None if isinstance(op, ParkOperation) else next((t for t in after if t.done and t.error), None)
            if failed is not None:
                op.task.finish(error=errors.DependencyFailed(op.task.what, str(failed.error)))
            elif not all(task.done for task in after):
                op.task.waits_for = "the tasks it follows"
                waiting.append(op)
            elif self._bytes and self._bytes + op.size > limits.CLIENT_WINDOW:
                op.task.waits_for = "room in the window"
                waiting.append(op)
                break
            else:
                effects += self._start(now, op)
        self._queue.extendleft(reversed(waiting))
        return effects

    def _start(self, now: int, op: Operation) -> list[Effect]:
        session, before = self._session, self._session.requests
        op.started = op.started or before + 1
        targets: list[str] | None = None
        try:
            if op.resend:
                targets = self._restart(op)
            requests = op.requests(session)
        except Exception as error:  # the mistake of one call must not become another's
            for number in range(before, session.requests):
                session.key_cache.closed(session.incarnation << 32 | number + 1)
            self._end(op, error=error)
            return []
        if isinstance(op, PushOperation | PullOperation | StatusOperation):
            layout = session.layout_of(op.table)
            op.since = layout.since
            op.split_by.update(dict.fromkeys(layout.servers if targets is None else targets, layout))
        elif isinstance(op, ParkOperation):
            op.since = session.since
        if not requests and not op.waiting:
            self._finish(op)
        return [self._send(now, op, to, message, arrays) for to, message, arrays in requests]

    def _send(self, now: int, op: Operation, to: str, message: Any, arrays: m.Arrays) -> Effect:
        request = message.request
        self.running[request] = op
        op.waiting[request] = sum(array.nbytes for array in arrays) + op.expects(request)
        self._bytes += op.waiting[request]
        return self.inflight.send(now, to, request, message, arrays)

    # ------------------------------------------------------------ answers

    def handle(self, now: int, sender: str, message: m.Message, arrays: m.Arrays) -> list[Effect]:
        request = getattr(message, "request", 0)
        self.inflight.answered(now, sender, request)
        op, pending = self.running.get(request), self.inflight.requests.get(request)
        if op is None or pending is None or pending.to != sender:
            self._session.counts["late answers"] += 1
            return []
        try:
            effects = self._answer(now, sender, op, request, message, arrays)
        except errors.BadFilter as error:  # a user's filter failed: this call fails, no other
            effects = []
            if isinstance(op, PushOperation):
                op.settle(pending, message)
            self._end(op, error=error)
        return effects + self.submit(now)

    def _answer(
        self, now: int, sender: str, op: Operation, request: int, message: m.Message, arrays: m.Arrays
    ) -> list[Effect]:
        effects: list[Effect] = []
        session, pending = self._session, self.inflight.requests[request]
        match message:
            case m.RequestHeld(_, waits):
                op.task.waits_for = f"{sender}: {waits}"
                op.task.held = op.task.held or now
                if self.inflight.held(now, request):
                    self._bytes -= op.waiting[request]
                    op.waiting[request] = 0
                if pending.outdated:
                    effects += self._moved(now, op, session.view.number, [sender])
            case m.Busy(_, retry_after, why):
                op.task.waits_for = f"{sender}: {why or 'busy'}"
                session.counts["busy"] += 1
                self.inflight.busy(now, request, retry_after)
            case m.Forgot():
                if isinstance(pending.message, m.Push | m.Pull) and (
                    with_keys := session.key_cache.with_keys(pending.message, pending.arrays, op.compressed)
                ):
                    effects.append(self.inflight.replace(now, pending, *with_keys))
            case m.SegmentsMoved(_, view):
                effects += self._moved(now, op, view, [sender])
            case m.Rollback():
                self._end(
                    op, error=errors.Refused(sender, "the cluster rolled back to a checkpoint while this was in flight")
                )
            case m.Refusal(_, kind, reason):
                self._end(op, error=_refusal(sender, kind, reason))
            case _ if (found := op.opened(message, arrays)) is None or not op.accepts(request, message, found):
                # Dropped: the request is resent, or ends unanswered.
                session.counts["strange answers"] += 1
            case _:
                session.key_cache.answered(request)
                self._close(op, request)
                for to, follow_up, data in op.answered(session, pending, message, found):
                    effects.append(self._send(now, op, to, follow_up, data))
                if not op.waiting and not op.resend:
                    self._finish(op)
        return effects

    def awaits(self, sender: str, request: int) -> bool:
        """Whether a request with this number is open at that node."""
        pending = self.inflight.requests.get(request)
        return pending is not None and pending.to == sender

    def _close(self, op: Operation, request: int) -> None:
        self.running.pop(request, None)
        self._bytes -= op.waiting.pop(request, 0)
        self.inflight.done(request)
        self._session.key_cache.closed(request)

    def _finish(self, op: Operation) -> None:
        try:
            value = op.value(self._session)
        except errors.ShoalError as error:
            self._end(op, error=error)
        else:
            self._end(op, value)

    def _end(self, op: Operation, value: Any = None, error: Exception | None = None) -> None:
        for request in list(op.waiting):
            self._close(op, request)
        if isinstance(op, PushOperation):
            if op.number is not None:
                self._session.close_number(op.number)
            if op.unconfirmed is not None:
                op.unconfirmed.end(error is not None)
            if error is not None and len(self.failed) < limits.BACKLOG:
                self.failed.append(op.task)
        if error is not None and isinstance(op, PullOperation) and op.enter:
            self._session.entered.pop(op.table, None)
        op.task.waits_for = ""
        op.task.finish(value, error)

    def fail_all(self, error: Exception) -> None:
        """End every operation with this error."""
        self._requeue()
        for op in self._operations():
            self._end(op, error=error)
        self._queue.clear()

    # ------------------------------------------------------------ placement changes

    def _moved(self, now: int, op: Operation, view: int, servers: Sequence[str]) -> list[Effect]:
        """These servers gave the segments away: resend by a view at least this new."""
        self._session.counts["moved"] += 1
        op.refused += servers
        for pending in inflight_requests(op, self.inflight):
            if pending.to in servers:
                self._close(op, pending.request)
        op.task.waits_for = f"view {view}"
        if not op.resend:
            op.resend = True
            self._to_resend.append(op)
        if view <= self._session.view.number:
            return []
        effects: list[Effect] = []
        if self._refresh is None or self._refresh.done:  # one for all that wait for it
            refresh = Admin(Task("refresh the view"), m.Refresh)
            self._refresh = refresh.task
            effects = self._start(now, refresh)
        op.task.after = (self._refresh,)
        return effects

    def _restart(self, op: Operation) -> list[str] | None:
        """Close the requests to resend; returns the servers to ask (None: all)."""
        servers = None
        if isinstance(op, PushOperation | PullOperation):
            servers = servers_to_ask(op, self._session.layout_of(op.table), self.inflight)
        for pending in inflight_requests(op, self.inflight):
            if servers is None or pending.to in servers:
                self._close(op, pending.request)
        op.restart(servers)
        op.resend = False
        op.refused.clear()
        if servers is None:
            op.split_by.clear()
        return servers

    def view_changed(self, now: int) -> list[Effect]:
        """The session has a new view: resend or fail the requests that it affects."""
        session, view = self._session, self._session.view
        self.inflight.timing = view.timing
        if self._refresh is not None:
            self._refresh.finish()
        alive = {member.name for member in view.members}
        effects: list[Effect] = []
        for op in dict.fromkeys(self.running.values()):
            if isinstance(op, PushOperation | PullOperation | StatusOperation):
                try:
                    layout = session.layout_of(op.table)
                except errors.UnknownTable as error:
                    self._end(op, error=error)
                    continue
                targets = [pending.to for pending in inflight_requests(op, self.inflight)]
                gone = next((server for server in targets if server not in alive), None)
                if gone is not None and layout.is_lost:
                    self._end(op, error=errors.SegmentsLost(layout.name, gone))
                elif gone is not None or op.since != layout.since:
                    servers = refused_servers(op, layout, alive, self.inflight)
                    effects += self._moved(now, op, view.number, servers) if servers else []
            elif isinstance(op, ParkOperation):
                targets = [pending.to for pending in inflight_requests(op, self.inflight)]
                if op.since != session.since or any(server not in alive for server in targets):
                    # The new primary does not know of it.
                    effects += self._moved(now, op, view.number, targets)
        return effects + self.submit(now)

    # ------------------------------------------------------------ time

    def tick(self, now: int) -> list[Effect]:
        """Resend the requests that are due; fail those without an answer for too long."""
        effects, silent = self.inflight.tick(now)
        for pending in silent:
            op, view = self.running.get(pending.request), self._session.view
            if op is None:
                continue
            if pending.outdated:
                effects += self._moved(now, op, view.number, [pending.to])
            elif self.patient:
                self._session.counts["asked on"] += 1
                op.task.waits_for = f"{pending.to}, which is silent"
                self.inflight.renew(now, pending)
            else:
                self._session.counts["unanswered"] += 1
                self._end(op, error=errors.Unanswered(op.task.what, pending.to, view.timing.silence / limits.SECOND))
        return effects + self.submit(now)


def inflight_requests(op: Operation, inflight: Inflight) -> list[InflightRequest]:
    return [inflight.requests[request] for request in op.waiting if request in inflight.requests]


def refused_servers(op: Operation, layout: Layout, alive: Collection[str], inflight: Inflight) -> list[str]:
    """After a new view: the servers that will not answer. Other requests may be outdated."""
    found: list[str] = []
    for pending in inflight_requests(op, inflight):
        then = op.split_by.get(pending.to)
        if pending.to not in alive or not op.can_keep_answers or then is None:
            found.append(pending.to)
        elif then is not layout and pending.to not in layout.change_since(then).unchanged:
            if pending.held:
                found.append(pending.to)
            pending.outdated = True
    return found


def servers_to_ask(op: Operation, layout: Layout, inflight: Inflight) -> list[str] | None:
    """The servers that now hold what the refused ones were asked for; None: ask all.

    A request is for everything a server holds, so a server that inherits keys is asked for all it
    has. Its open request is closed, so its own successors may have to be asked too.
    """
    if not op.can_keep_answers or not all(layout.change_since(then).same_starts for then in op.split_by.values()):
        return None
    waits = [pending.to for pending in inflight_requests(op, inflight)]
    found: list[str] = []
    left = list(dict.fromkeys(op.refused))
    while left:
        server = left.pop()
        before = op.split_by.pop(server, None)
        for successor in () if before is None else layout.change_since(before).successors[server]:
            then = op.split_by.get(successor)
            if successor in found or (then is not None and successor in layout.change_since(then).unchanged):
                continue  # it was asked for this before
            found.append(successor)
            if successor in waits:
                left.append(successor)
    return found


def _refusal(by: str, kind: str, reason: str) -> Exception:
    if kind in ("table", "setting"):
        return errors.Invalid(reason)
    error = {"keys": errors.BadKeys, "values": errors.BadValues}.get(kind)
    return errors.Refused(by, reason) if error is None else error(f"{by}: {reason}")
