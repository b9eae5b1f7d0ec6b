"""Operations under way: started in their turn, split, sent, sent again, put together from the answers.

An operation starts when the tasks it follows are done and the byte window has room. It is split over the servers by the
view of that moment. ``PushHeld`` frees the window and stops the resends, ``Busy`` delays, ``SegmentsMoved`` sends it again by a newer
view (``Resend``), a new incarnation ends all. Sans I/O: every method that may send returns effects.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any

from shoal import limits
from shoal.errors import (
    BadFilter,
    BadKeys,
    BadValues,
    DependencyFailed,
    Fenced,
    Invalid,
    Refused,
    ShoalError,
    Unanswered,
    UnknownTable,
)
from shoal.filters.chain import Flow
from shoal.store.client.filtering import ClientFilters
from shoal.store.client.inflight import Inflight, InflightRequest
from shoal.store.client.key_cache import KeyCache
from shoal.store.client.operation import Admin, Operation, ParkOperation, PullOperation, PushOperation, StatusOperation
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.wire import messages as m
from shoal.wire.effects import Effect
from shoal.wire.messages.groups import seen


class Resend:
    """The operations of which some is to be sent again."""

    def __init__(self) -> None:
        self.refresh: Task | None = None  # the newest view is asked for
        self._ops: list[Operation] = []

    def add(self, op: Operation) -> None:
        if not op.again:
            op.again = True
            self._ops.append(op)

    def seen(self) -> None:
        """A new view is here: nobody waits any longer for one that was asked for. Whoever needs a newer one is told so again."""
        if self.refresh is not None:
            self.refresh.finish()

    def join(self, queue: deque[Operation]) -> None:
        """They go before all that was not begun yet, and among themselves in the order in which they were begun."""
        if not self._ops:
            return
        begun: list[Operation] = []
        while queue and queue[0].begun:  # never by iterating: other threads append to it
            begun.append(queue.popleft())
        queue.extendleft(sorted([*begun, *self._ops], key=lambda op: op.begun, reverse=True))
        self._ops.clear()


def letters_of(op: Operation, flight: Inflight) -> list[InflightRequest]:
    return [flight.letters[request] for request in op.waiting if request in flight.letters]


def refused(op: Operation, layout: Layout, alive: Collection[str], flight: Inflight) -> list[str]:
    """A new view is here: the servers that are not waited for any longer. Letters to others may be outdated by it."""
    found: list[str] = []
    for letter in letters_of(op, flight):
        then = op.split_by.get(letter.to)
        if letter.to not in alive or not op.may_keep or then is None:
            found.append(letter.to)
        elif then is not layout and letter.to not in layout.since_then(then).stayed:
            if letter.held:
                found.append(letter.to)
            letter.old = True
    return found


def asked_anew(op: Operation, layout: Layout, flight: Inflight) -> list[str] | None:
    """The servers to be asked, so that whatever the refused ones were asked is asked of those who hold it now. None: all.

    A letter is for everything that a server holds. So one that inherits something is asked for all it has; what it was asked before,
    and has not answered, is given up, and with that somebody else may have to be asked, too.
    """
    if not op.may_keep or not all(layout.since_then(then).same for then in op.split_by.values()):
        return None
    waits = [letter.to for letter in letters_of(op, flight)]
    found: list[str] = []
    left = list(dict.fromkeys(op.refused))
    while left:
        server = left.pop()
        before = op.split_by.pop(server, None)
        for heir in () if before is None else layout.since_then(before).heirs[server]:
            then = op.split_by.get(heir)
            if heir in found or (then is not None and heir in layout.since_then(then).stayed):
                continue  # it was asked for this, too
            found.append(heir)
            if heir in waits:
                left.append(heir)
    return found


class Dispatch:
    """What a client has under way."""

    def __init__(self, name: str, role: str = "client", coordinator: str = "coordinator", seed: int = 0) -> None:
        self.name, self.role, self.coordinator = name, role, coordinator
        self.patient = False  # goes on asking those who are silent: somebody else says when they are gone
        self.group = ""  # of workers: tables are named from within its namespace
        self.incarnation = 0
        self.view = m.View(0, 0, 0, [], [])
        self.layouts: dict[str, Layout] = {}
        self.clock = 0  # steps pushed
        self.floor = 0  # the clock at which this spell of work began: no steps of ours are at or below it
        self.spell = 0  # how often this worker has parked
        self.working = False  # has entered some table in this spell
        self.reads: dict[int, dict[str, list[int]]] = {}  # by table: the versions that the last pull read, by server
        self.failed: list[Task] = []  # pushes that failed, in case nobody asks
        self.counts: Counter[str] = Counter()
        self.flight = Inflight(seed)
        self.names = KeyCache()  # of lists of keys that servers know
        self._by_number: dict[int, Layout] = {}
        self._names: dict[int, str] = {}  # of all tables that there ever were, for errors
        self._new: deque[Operation] = deque()  # made ready, not started
        self._anew = Resend()  # started before
        self._running: dict[int, Operation] = {}  # by request: an operation stands once for each message under way
        self._entered: dict[int, Task] = {}  # tables entered in this spell, and the task that did it
        self._parking: list[Task] = []  # the last park: whoever enters again follows it
        self._requests = 0
        self._numbers = 0  # given in this client's own stream
        self._open: dict[int, None] = {}  # those not over yet, in order
        self._bytes = 0  # in flight
        self._filters: dict[int, ClientFilters] = {}  # by table

    def layout(self, table: str) -> Layout:
        layout = self.layouts.get(table)
        if layout is None:
            raise UnknownTable(table, sorted(self.layouts))
        return layout

    # ------------------------------------------------------------ starting

    def submit(self, now: int) -> list[Effect]:
        """Start what may start."""
        effects: list[Effect] = []
        if not self.incarnation:
            return effects
        waiting: list[Operation] = []
        self._anew.join(self._new)
        # What is held is not counted: a step may wait for slots of ours that are still to be sent.
        while self._new and len(self.flight.letters) - self.flight.held_now < limits.CLIENT_LETTERS:
            op = self._new.popleft()
            if op.task.done:
                continue
            failed = (
                None if isinstance(op, ParkOperation) else next((t for t in op.task.after if t.done and t.error), None)
            )
            if failed is not None:
                op.task.finish(error=DependencyFailed(op.task.what, str(failed.error)))
            elif not all(task.done for task in op.task.after):
                op.task.waits_for = "the tasks it follows"
                waiting.append(op)
            elif self._bytes and self._bytes + op.size > limits.CLIENT_WINDOW:
                op.task.waits_for = "room in the window"
                waiting.append(op)
                break
            else:
                effects += self._start(now, op)
        self._new.extendleft(reversed(waiting))
        return effects

    def _start(self, now: int, op: Operation) -> list[Effect]:
        before = self._requests
        op.begun = op.begun or before + 1
        asked: list[str] | None = None
        try:
            if op.again:
                asked = self._restart(op)
            letters = op.letters(self)
        except Exception as error:  # one call's mistake must not become another's
            for number in range(before, self._requests):
                self.names.closed(self.incarnation << 32 | number + 1)
            self._end(op, error=error)
            return []
        if isinstance(op, PushOperation | PullOperation | StatusOperation):
            layout = self.of_number(op.table)
            op.since = layout.since
            op.split_by.update(dict.fromkeys(layout.servers if asked is None else asked, layout))
        elif isinstance(op, ParkOperation):
            op.since = self._since()
        if not letters and not op.waiting:
            self._finish(op)
        return [self._send(now, op, to, message, arrays) for to, message, arrays in letters]

    def _send(self, now: int, op: Operation, to: str, message: Any, arrays: m.Arrays) -> Effect:
        request = message.request
        self._running[request] = op
        op.waiting[request] = sum(array.nbytes for array in arrays) + op.expects(request)
        self._bytes += op.waiting[request]
        return self.flight.send(now, to, request, message, arrays)

    def number(self) -> int:
        """The next number of this client's own stream."""
        self._numbers += 1
        self._open[self._numbers - 1] = None
        return self._numbers - 1

    def over(self) -> int:
        """All numbers of this client's own stream below this one are over, and never sent again."""
        return next(iter(self._open), self._numbers)

    def request(self) -> int:
        """A number that no other request of any life of this client has."""
        self._requests += 1
        return self.incarnation << 32 | self._requests

    # ------------------------------------------------------------ answers

    def handle(self, now: int, sender: str, message: m.Message, arrays: m.Arrays) -> list[Effect]:
        request = getattr(message, "request", 0)
        self.flight.hears(now, sender, request)
        op = self._running.get(request)
        if op is None or not self.awaits(sender, request):
            self.counts["late answers"] += 1
            return []
        try:
            effects = self._heard(now, sender, op, request, message, arrays)
        except BadFilter as error:  # a filter of the user's: this call's mistake, not another's
            effects = []
            letter = self.flight.letters.get(request)
            if isinstance(op, PushOperation) and letter is not None:
                op.settle(letter, message)
            self._end(op, error=error)
        return effects + self.submit(now)

    def _heard(
        self, now: int, sender: str, op: Operation, request: int, message: m.Message, arrays: m.Arrays
    ) -> list[Effect]:
        effects: list[Effect] = []
        match message:
            case m.PushHeld(_, waits):
                op.task.waits_for = f"{sender}: {waits}"
                op.task.held = op.task.held or now
                if self.flight.held(now, request):
                    self._bytes -= op.waiting[request]
                    op.waiting[request] = 0
                if self.flight.letters[request].old:
                    effects += self._moved(now, op, self.view.number, [sender])
            case m.Busy(_, retry_after, why):
                op.task.waits_for = f"{sender}: {why or 'busy'}"
                self.counts["busy"] += 1
                self.flight.busy(now, request, retry_after)
            case m.Forgot():
                letter = self.flight.letters[request]
                if isinstance(letter.message, m.Push | m.Pull) and (
                    whole := self.names.whole(letter.message, letter.arrays, op.pressed)
                ):
                    effects.append(self.flight.instead(now, letter, *whole))
            case m.SegmentsMoved(_, view):
                effects += self._moved(now, op, view, [sender])
            case m.Rollback():
                self._end(op, error=Refused(sender, "the cluster went back to a checkpoint while this was under way"))
            case m.Refusal(_, kind, reason):
                self._end(op, error=_refusal(sender, kind, reason))
            case _ if (found := op.opened(message, arrays)) is None or not op.accepts(request, message, found):
                self.counts["strange answers"] += 1  # dropped: the question is asked again, or ends as unanswered
            case _:
                letter = self.flight.letters[request]
                self.names.heard(request)
                self._close(op, request)
                for to, question, data in op.answered(self, letter, message, found):
                    effects.append(self._send(now, op, to, question, data))
                if not op.waiting and not op.again:
                    self._finish(op)
        return effects

    def awaits(self, sender: str, request: int) -> bool:
        """Is this the answer to something that was asked of that node?"""
        letter = self.flight.letters.get(request)
        return letter is not None and letter.to == sender

    def _close(self, op: Operation, request: int) -> None:
        self._running.pop(request, None)
        self._bytes -= op.waiting.pop(request, 0)
        self.flight.done(request)
        self.names.closed(request)

    def _finish(self, op: Operation) -> None:
        try:
            value = op.value(self)
        except ShoalError as error:
            self._end(op, error=error)
            return
        self._end(op, value)

    def _end(self, op: Operation, value: Any = None, error: Exception | None = None) -> None:
        for request in list(op.waiting):
            self._close(op, request)
        if isinstance(op, PushOperation) and op.number is not None:
            self._open.pop(op.number, None)
        if isinstance(op, PushOperation) and op.sent is not None:
            op.sent.end(error is not None)
        if error is not None and isinstance(op, PullOperation) and op.enter:
            self._entered.pop(op.table, None)
        op.task.waits_for = ""
        if error is not None and isinstance(op, PushOperation) and len(self.failed) < limits.BACKLOG:
            self.failed.append(op.task)
        op.task.finish(value, error)

    def _moved(self, now: int, op: Operation, view: int, of: Sequence[str]) -> list[Effect]:
        """What these servers were asked is held by others now: it goes again by a newer view; ledgers drop what was counted."""
        self.counts["moved"] += 1
        op.refused += of
        for letter in letters_of(op, self.flight):
            if letter.to in of:
                self._close(op, letter.request)
        op.task.waits_for = f"view {view}"
        self._anew.add(op)
        if view <= self.view.number:
            return []
        effects: list[Effect] = []
        if self._anew.refresh is None or self._anew.refresh.done:  # once for all that wait for it
            refresh = Admin(Task("refresh the view"), m.Refresh)
            self._anew.refresh = refresh.task
            effects = self._start(now, refresh)
        op.task.after = (self._anew.refresh,)
        return effects

    def _restart(self, op: Operation) -> list[str] | None:
        """Give up what is to be asked anew, and of whom (None: of all): the rest stays under way."""
        anew = (
            asked_anew(op, self.of_number(op.table), self.flight)
            if isinstance(op, PushOperation | PullOperation)
            else None
        )
        for letter in letters_of(op, self.flight):
            if anew is None or letter.to in anew:
                self._close(op, letter.request)
        op.restart(anew)
        op.again = False
        op.refused.clear()
        if anew is None:
            op.split_by.clear()
        return anew

    # ------------------------------------------------------------ time and view

    def tick(self, now: int) -> list[Effect]:
        effects, silent = self.flight.tick(now)
        for letter in silent:
            op = self._running.get(letter.request)
            if op is not None and letter.old:
                effects += self._moved(now, op, self.view.number, [letter.to])
            elif op is not None and self.patient:
                self.counts["asked on"] += 1
                op.task.waits_for = f"{letter.to}, which is silent"
                self.flight.renew(now, letter)
            elif op is not None:
                self.counts["unanswered"] += 1
                self._end(op, error=Unanswered(op.task.what, letter.to, self.view.timing.silence / limits.SECOND))
        return effects + self.submit(now)

    def take_view(self, now: int, view: m.View, incarnation: int) -> list[Effect]:
        self.view, self.incarnation, self.flight.timing = view, incarnation, view.timing
        self._anew.seen()
        tables = {placed.number: placed for placed in view.tables}
        known = {
            number: self._by_number[number]
            if number in self._by_number and self._by_number[number].same(placed)
            else Layout(placed)
            for number, placed in tables.items()
        }
        if any(number in known and known[number].since != old.since for number, old in self._by_number.items()):
            self.names.clear()  # what was split otherwise is another list
        self._by_number = known
        self._names.update({number: placed.name for number, placed in tables.items()})
        self.layouts = {seen(layout.name, self.group): layout for layout in known.values()}
        alive = {member.name for member in view.members}
        effects: list[Effect] = []
        for op in dict.fromkeys(self._running.values()):
            if isinstance(op, PushOperation | PullOperation | StatusOperation):
                to = [letter.to for letter in letters_of(op, self.flight)]
                lost = next((one for one in to if one not in alive), None)
                if op.table not in known:
                    self._end(op, error=self._dropped(op.table))
                elif lost is not None and known[op.table].is_lost:
                    self._end(op, error=op.lost(known[op.table].name, lost))
                elif lost is not None or op.since != known[op.table].since:
                    of = refused(op, known[op.table], alive, self.flight)
                    effects += self._moved(now, op, view.number, of) if of else []
            elif isinstance(op, ParkOperation):
                to = [letter.to for letter in letters_of(op, self.flight)]
                if op.since != self._since() or any(one not in alive for one in to):
                    effects += self._moved(now, op, view.number, to)  # whoever took over has not heard of it
        return effects + self.submit(now)

    def _since(self) -> int:
        """When a primary of any table last changed."""
        return max((layout.since for layout in self._by_number.values()), default=0)

    def filters_of(self, layout: Layout) -> ClientFilters | None:
        """A table's filters, if it has any."""
        if not layout.spec.filters:
            return None
        found = self._filters.get(layout.number)
        if found is None:
            # Calls are made ready by any thread: of two that come first at once, one makes it, or what the other leaves is lost.
            found = self._filters.setdefault(layout.number, ClientFilters(layout.spec, Flow()))
        return found

    def told_by_filters(self, table: int) -> dict[str, Any]:
        """Of a table that this client has used: one that only asks need not know the filters of others."""
        found = self._filters.get(table)
        return {} if found is None else found.told()

    def filtered(self) -> dict[str, list[int]]:
        """Bytes into and out of filters in this life, and what keys known by a number saved."""
        found = Flow.summed(one.flow for one in self._filters.values())
        return {**found, "handles": self.names.told()} if any(self.names.told()) else found

    def left(self) -> tuple[float, float]:
        """The size of what filters left for later, and of what was lost of it."""
        all_of = [one.feedback for one in self._filters.values() if one.feedback is not None]
        return math.fsum(one.norm for one in all_of), math.fsum(one.lost for one in all_of)

    def of_number(self, number: int) -> Layout:
        layout = self._by_number.get(number)
        if layout is None:
            raise self._dropped(number)
        return layout

    def _dropped(self, number: int) -> UnknownTable:
        """The table that was meant is gone, even if there is another of its name by now."""
        return UnknownTable(self._names.get(number, f"number {number}"), sorted(self.layouts), dropped=True)

    def pushes(self) -> list[Task]:
        """Those under way that only time separates from being counted: not one that waits for other slots of its step."""
        self._anew.join(self._new)
        ops = dict.fromkeys([*self._running.values(), *self._new])
        return [op.task for op in ops if isinstance(op, PushOperation) and not (op.slot is not None and op.task.held)]

    def held_back(self) -> dict[str, float]:
        """Tables of which filters have kept something for a later push, and its size."""
        named = {layout.number: name for name, layout in self.layouts.items()}
        sizes = {number: 0.0 if one.feedback is None else one.feedback.norm for number, one in self._filters.items()}
        return {named[number]: size for number, size in sizes.items() if size > 0 and number in named}

    def fail_all(self, error: Exception) -> None:
        self._anew.join(self._new)
        for op in dict.fromkeys([*self._running.values(), *self._new]):
            self._end(op, error=error)
        self._new.clear()

    def fenced(self) -> None:
        """This life is over: what was under way may or may not be counted, and the next life starts afresh."""
        self.fail_all(Fenced(self.name, self.incarnation))
        self.incarnation = 0
        self.clock = self.floor = self.spell = 0
        self.working = False
        self._entered, self._parking, self.reads, self._open = {}, [], {}, {}
        self.names.clear()
        self.names.counts.clear()
        self._numbers = self._requests = 0
        for filters in self._filters.values():
            filters.flow.by.clear()
            if filters.feedback is not None:
                filters.feedback.forget()


def _refusal(by: str, kind: str, reason: str) -> Exception:
    match kind:
        case "keys":
            return BadKeys(f"{by}: {reason}")
        case "values":
            return BadValues(f"{by}: {reason}")
        case "table" | "setting":
            return Invalid(reason)
    return Refused(by, reason)
