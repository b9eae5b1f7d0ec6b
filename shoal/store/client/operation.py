"""Operations: what each kind of call sends, and how its result is made from the answers.

``requests`` says what to send, by the session's present view; ``answered`` takes one answer and
may send more; ``value`` is the result once no request is open. ``restart`` forgets all
answers, or those of the servers in ``only``, before another try.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal import limits
from shoal.errors import BadKeys, Invalid
from shoal.filters.base import Bytes
from shoal.keys import KeyList, KeyRange, Keys, KeyValues, Values, as_range, unmixed
from shoal.store.client.filtering import ClientFilters, UnconfirmedPush, key_list
from shoal.store.client.inflight import InflightRequest
from shoal.store.client.key_cache import NO_HANDLE, KeyHandle
from shoal.store.client.session import Session
from shoal.store.client.split import Layout, ServerShare
from shoal.store.client.task import Task
from shoal.store.query import Found, Question, question_named
from shoal.store.server.vector_clock import VectorClock
from shoal.tables import Wire
from shoal.wire import messages as m
from shoal.wire.half_precision import restored

Outgoing = tuple[str, Any, m.Arrays]  # to whom, which message (it has a request), its arrays
Requests = list[Outgoing]
Places = npt.NDArray[np.intp] | None


class Operation(ABC):
    """One task and its open requests."""

    size = 0  # bytes, roughly: for the window
    since = 0  # the placement by which it was split
    started = 0  # orders operations by their first start, also when they are sent again
    resend = False  # some of its requests must be sent again
    reply: type[m.Message] = m.Done  # the kind of answer that it waits for
    filters: ClientFilters | None = None

    def __init__(self, task: Task) -> None:
        self.task = task
        self.split_by: dict[str, Layout] = {}  # by server: the layout it was last asked by
        self.refused: list[str] = []  # servers that will not answer their request
        self.waiting: dict[int, int] = {}  # request -> bytes that count against the window
        self.replies: dict[str, Any] = {}  # by server

    @abstractmethod
    def requests(self, session: Session) -> Requests:
        """What to send, by the session's present view."""

    def answered(self, session: Session, pending: InflightRequest, answer: m.Message, arrays: m.Arrays) -> Requests:
        self.replies[pending.to] = answer
        return []

    def value(self, session: Session) -> Any:
        return None

    def accepts(self, request: int, answer: m.Message, arrays: m.Arrays) -> bool:
        """Whether this is a complete answer to the request."""
        return isinstance(answer, self.reply)

    def expects(self, request: int) -> int:
        """Bytes that the answer to a request will bring."""
        return 0

    def opened(self, answer: m.Message, arrays: m.Arrays) -> m.Arrays | None:
        """The arrays of an answer before filters; None if they make no sense."""
        return arrays if self.filters is None else self.filters.opened(answer, arrays)

    def compressed(self, keys: list[m.Array]) -> list[m.Array]:
        """Keys that must be sent again, since a server dropped their handle."""
        return keys if self.filters is None else self.filters.asked(0, keys)

    @property
    def can_keep_answers(self) -> bool:
        """Whether answers of some servers stay valid when others are asked again."""
        return False

    def restart(self, only: Sequence[str] | None = None) -> None:
        self.replies.clear()


class _KeyedOperation(Operation):
    """What pushes and pulls have in common: rows come back in shares and are put in place."""

    pull = True  # rows are wanted

    def __init__(
        self, task: Task, table: int, keys: Keys | KeyRange, places: Places, width: int, form: Wire = "float32"
    ) -> None:
        super().__init__(task)
        self.table, self.keys, self.places, self.width = table, keys, places, width
        self.form = form  # of the values on the wire
        self.clock: int | None = None
        self.own_clock = False  # the call names no clock: the worker's current one is used
        self.enter = False  # a worker's first pull
        self.clocks = False  # the vector clocks of these keys are wanted, too
        self.live = False  # a range of a sparse table: only the rows that are there
        self.hashed = False
        self.listed: KeyList | None = None  # the keys, if the caller reuses them
        self._shares: dict[int, ServerShare] = {}  # by request
        self._rows: Values | None = None
        self._pieces: list[tuple[Keys, Values]] = []
        self._only: Sequence[str] | None = None  # the servers to ask; None: all

    @property
    def can_keep_answers(self) -> bool:
        return not (self.live or self.enter or self.clocks)  # these need one view of all servers

    def restart(self, only: Sequence[str] | None = None) -> None:
        self._only = only
        if only is not None:
            if self._rows is not None:  # it may be a received buffer
                self._rows = self._rows.copy()
            return
        self.task.clocks = []
        self._shares.clear()
        self._pieces.clear()
        self._rows = None

    def _is_asked(self, share: ServerShare) -> bool:
        return self._only is None or share.server in self._only

    def expects(self, request: int) -> int:
        return self._shares[request].rows * self.width * 4 if request in self._shares else 0

    def accepts(self, request: int, answer: m.Message, arrays: m.Arrays) -> bool:
        if not self.pull:
            return isinstance(answer, m.Counted)
        if not isinstance(answer, m.Values) or request not in self._shares:
            return False
        if len(arrays) != 1 + self.live or len(arrays[-1]) != answer.count * self.width:
            return False
        return len(arrays[0]) == answer.count if self.live else answer.count == self._shares[request].rows

    def put(self, request: int, answer: m.Values, arrays: m.Arrays) -> None:
        share = self._shares.pop(request)
        values = restored(arrays[-1], answer.form).reshape(answer.count, self.width)
        if self.live:
            self._pieces.append((arrays[0], values))
        elif self._rows is None and share.slices == [(0, len(self.keys))]:
            self._rows = values  # all from one server: no copy
        elif share.slices:
            if self._rows is None:
                self._rows = np.empty((len(self.keys), self.width), np.float32)
            share.put(values, self._rows)

    def _fields(
        self, session: Session, share: ServerShare, request: int, entered: int, keys: tuple[int, int], name: KeyHandle
    ) -> dict[str, Any]:
        """What every request has; ``keys`` is its range, if it has one."""
        view = session.view
        return {
            "request": request,
            "table": self.table,
            "view": view.number,
            "generation": view.generation,
            "incarnation": session.incarnation,
            "clock": m.NO_CLOCK if self.clock is None else self.clock,
            "entered": entered,
            "spell": session.spell,
            "first": share.first,
            "last": share.last,
            "count": share.rows,
            "start": keys[0],
            "stop": keys[1],
            "form": self.form,
            "filtered": self.filters is not None,
            "handle": name.number,
            "known": name.known,
            "crc": name.crc,
        }

    def value(self, session: Session) -> Any:
        """Rows in the order of the caller's keys, or the live keys of a range and their rows."""
        if not self.pull:
            return None
        session.reads[self.table] = self.task.versions
        if self.live:
            keys: Keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in self._pieces)])
            keys = unmixed(keys) if self.hashed else keys
            found: Values = np.concatenate([np.empty((0, self.width), np.float32), *(rows for _, rows in self._pieces)])
            order = np.argsort(keys)
            return KeyValues(keys[order], self._shaped(found[order]))
        rows = self._rows if self._rows is not None else np.empty((len(self.keys), self.width), np.float32)
        return self._shaped(rows if self.places is None else rows[self.places])

    def _shaped(self, rows: Values) -> Values:
        return rows.reshape(-1) if self.width == 1 else rows


class PushOperation(_KeyedOperation):
    """Values to be counted once in every segment they belong to."""

    def __init__(self, task: Task, table: int, given: KeyValues, places: Places, width: int, form: Wire) -> None:
        super().__init__(task, table, given.keys, places, width, form)
        self.given = given  # values in wire form: resends have the same bits
        self.slot: tuple[int, int] | None = None
        self.void = self.pull = False
        self.step: int | None = None  # None: not part of a step, or the client's next one
        self.in_step = False
        self.reads: dict[str, list[int]] | None = None
        self.number: int | None = None  # in the own stream; stays over restarts, or it counts twice
        self.size = given.values.nbytes + 8 * len(given)
        self.row_bytes = max(8, 4 * width, 4 * given.values.shape[1])
        self.ahead: KeyList | None = None  # pull these, not those that are pushed
        self.exact = self._filtered = False  # exact: bypasses filters
        self.head: Bytes | None = None  # of quantized values
        self.unconfirmed: UnconfirmedPush | None = None  # its residual

    def look_ahead(self, keys: KeyList) -> None:
        """Bring back the rows of other keys than are pushed."""
        self.ahead, self.keys = keys, keys.keys
        self.size += 12 * len(keys)

    def requests(self, session: Session) -> Requests:
        layout = session.layout_of(self.table)
        self._name(session)
        if self.filters is not None and not self._filtered:
            self._filter(session.incarnation, self.filters)
        elif self.unconfirmed is not None:
            self.unconfirmed.resent = True
        self._filtered = True
        everyone = self.in_step or self.slot is not None
        shares = layout.shares(self.given.keys, self.row_bytes, everyone or self.ahead is not None)
        pulls: Sequence[ServerShare | None] = [None] * len(shares)
        if self.ahead is not None:
            # Both are small (``may_look_ahead``): one share per server, in the same order.
            pulls = layout.shares(self.ahead.keys, self.row_bytes, every_server=True)
        pairs = zip(shares, pulls, strict=True)
        return [self._request(session, share, pulled) for share, pulled in pairs if self._is_asked(share)]

    def _filter(self, incarnation: int, filters: ClientFilters) -> None:
        if self.exact:
            self.given, self.unconfirmed = filters.prepare_rest(self.given)
            return
        whole, name = self.given, (*(self.slot or (incarnation, self.number or 0)), self.table)
        # If rows come back, one message must hold both key lists.
        few = not self.pull or self.ahead is not None or len(whole) <= limits.FRAME_BYTES // (16 * self.row_bytes)
        self.given, self.head, self.unconfirmed = filters.prepare(whole, name, self.slot is not None, few)
        if self.pull and self.ahead is None and len(self.given) < len(whole):
            # The rows of all keys are wanted.
            self.look_ahead(self.listed or KeyList(key_list(whole.keys)))

    def _name(self, session: Session) -> None:
        """Give it its number and its step, once."""
        if self.slot is None and self.number is None:
            self.number = session.next_number()
        if self.in_step:
            if self.step is None:
                self.step = session.clock + 1
            session.clock = max(session.clock, self.step)
            if self.own_clock:
                self.clock, self.own_clock = session.clock, False

    def _request(self, session: Session, share: ServerShare, pulled: ServerShare | None) -> Outgoing:
        keys = self.given.keys
        stream, number = self.slot if self.slot is not None else (-session.incarnation, self.number or 0)
        request, span, name, also = session.next_request(), (-1, -1), NO_HANDLE, NO_HANDLE
        arrays: list[m.Array] = []
        if not isinstance(keys, KeyRange):
            if pulled is not None and self.ahead is not None and pulled.rows:
                also, arrays = session.key_cache.handle_for(request, self.ahead, pulled, self.ahead.keys)
            name, listed = session.key_cache.handle_for(request, self.listed, share, keys)
            arrays += listed
        elif share.rows:
            span = max(keys.start, share.span[0]), min(keys.stop, share.span[1])
        arrays.append(share.take(self.given.values).reshape(-1))
        ahead = -1 if pulled is None else pulled.rows
        reads = self.reads if self.reads is not None else session.reads.get(self.table, {})
        push = m.Push(
            **self._fields(session, share, request, session.floor, span, name),
            stream=stream,
            number=number,
            floor=session.lowest_open,
            step=self.step or 0,
            read=reads.get(share.server, []) if share.rows else [],
            void=self.void,
            pull=self.pull,
            ahead=ahead,
            ahead_handle=also.number,
            ahead_known=also.known,
            ahead_crc=also.crc,
        )
        if self.pull:
            self._shares[push.request] = share if pulled is None else pulled
        arrays = arrays if share.rows or ahead > 0 else []
        if self.filters is not None:
            arrays = self.filters.pushed(self.head, arrays, ahead)
            if self.unconfirmed is not None:
                self.unconfirmed.sent(push.request, session.layout_of(self.table), share)
        return share.server, push, arrays

    def answered(self, session: Session, pending: InflightRequest, answer: m.Message, arrays: m.Arrays) -> Requests:
        self.settle(pending, answer)
        if isinstance(answer, m.Values):
            self.task.versions[pending.to] = answer.versions
            self.put(pending.request, answer, arrays)
        elif isinstance(answer, m.Counted) and not answer.new:
            session.counts["counted before"] += 1
        return []

    def settle(self, pending: InflightRequest, answer: m.Message) -> None:
        """The push was counted, even if the rows that came back are unusable."""
        if self.unconfirmed is not None and isinstance(answer, m.Values | m.Counted):
            self.unconfirmed.counted(pending.request, pending.sends > 1, answer.new, answer.part)


class PullOperation(_KeyedOperation):
    def __init__(self, task: Task, table: int, keys: Keys | KeyRange, places: Places, width: int) -> None:
        super().__init__(task, table, keys, places, width)
        self._entered = 0
        self.size = 0 if isinstance(keys, KeyRange) else 4 * width * len(keys)

    def requests(self, session: Session) -> Requests:
        layout = session.layout_of(self.table)
        if self.own_clock:
            self.clock, self.own_clock = session.clock, False
        if self.live:
            layout.check_not_lost()
            shares = layout.whole()
        else:
            shares = layout.shares(self.keys, max(8, 4 * self.width), every_server=self.enter)
        return [self._request(session, share) for share in shares if self._is_asked(share)]

    def _request(self, session: Session, share: ServerShare, resume: int = -1) -> Outgoing:
        request, span, name, arrays = session.next_request(), (-1, -1), NO_HANDLE, list[m.Array]()
        if isinstance(self.keys, KeyRange):
            span = max(self.keys.start, share.span[0], resume), min(self.keys.stop, share.span[1])
        else:
            name, arrays = session.key_cache.handle_for(request, self.listed, share, self.keys)
        at = session.floor
        if self.enter:  # a worker that has a clock keeps it
            at = session.clock if session.working else 0
        pull = m.Pull(**self._fields(session, share, request, at, span, name), enter=self.enter, clocks=self.clocks)
        if self.filters is not None:
            arrays = self.filters.asked(0 if span[0] >= 0 else share.rows, arrays)
        self._shares[pull.request] = share
        return share.server, pull, arrays

    def answered(self, session: Session, pending: InflightRequest, answer: m.Message, arrays: m.Arrays) -> Requests:
        assert isinstance(answer, m.Values)
        share = self._shares[pending.request]
        self.task.versions[pending.to] = answer.versions
        self.task.steps.update(answer.versions)
        self._entered = max(self._entered, answer.entered)
        if answer.clocks:
            found = [(KeyRange(start, stop), VectorClock(dict(counts))) for start, stop, counts in answer.clocks]
            self.task.clocks = sorted([*self.task.clocks, *found], key=lambda one: one[0].start)
        self.put(pending.request, answer, arrays)
        return [self._request(session, share, answer.resume)] if answer.resume >= 0 else []

    def value(self, session: Session) -> Any:
        if self.enter and not session.working:
            session.clock = session.floor = max(session.clock, self._entered)
            session.working = True
        return super().value(session)


class Admin(Operation):
    """A request to the coordinator, or to the scheduler."""

    def __init__(
        self, task: Task, message: Callable[[int], m.Message], kind: type[m.Message] = m.Done, to: str = ""
    ) -> None:
        super().__init__(task)
        self._to, self._message, self.reply = to, message, kind

    def requests(self, session: Session) -> Requests:
        return [(self._to or session.coordinator, self._message(session.next_request()), ())]

    def value(self, session: Session) -> Any:
        return None if self.reply is m.Done else next(iter(self.replies.values()))


class ParkOperation(Operation):
    """ "Do not wait for me", to all servers."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._spell: int | None = None

    def requests(self, session: Session) -> Requests:
        if self._spell is None:
            if not session.working:
                return []
            self._spell = session.spell
            # The spell ends even if this fails: some server may have parked us.
            session.spell += 1
            session.working = False
        spell = self._spell
        return [
            (member.name, m.Park(session.next_request(), session.incarnation, session.view.number, spell), ())
            for member in session.view.members
            if member.role == "server"
        ]


class StatusOperation(Operation):
    """The status of a table, added up over its servers."""

    reply = m.TableStatusReply

    def __init__(self, task: Task, table: int) -> None:
        super().__init__(task)
        self.table = table

    def requests(self, session: Session) -> Requests:
        layout = session.layout_of(self.table)
        layout.check_not_lost()
        return [
            (server, m.TableStatusRequest(session.next_request(), self.table, session.view.number), ())
            for server in layout.servers
        ]

    def value(self, session: Session) -> Any:
        totals: Counter[str] = Counter()
        for reply in self.replies.values():
            totals.update(reply.facts)
        used = session.filters.get(self.table)
        return {
            **totals,
            "staleness": [sum(row) for row in zip_longest(*(r.staleness for r in self.replies.values()), fillvalue=0)],
            "filters": {} if used is None else used.facts(),
            "handles": session.key_cache.stats(),
            "servers": {server: reply.facts for server, reply in sorted(self.replies.items())},
        }


class CallOperation(StatusOperation):
    """A query, at the client."""

    servers: list[str] | None = None  # only what these hold

    def __init__(self, task: Task, table: int, keys: KeyRange, question: Question, settings: Any) -> None:
        super().__init__(task, table)
        self._keys, self._question, self._settings = keys, question, settings

    def requests(self, session: Session) -> Requests:
        layout = session.layout_of(self.table)
        holders = layout.servers_holding(self._keys)
        if self.servers is None:
            layout.check_not_lost()
        else:
            _check_servers(layout, self.servers)
            holders = [server for server in holders if server in self.servers]
        view, settings = session.view, self._settings._asdict()
        what = (self._question.name, settings, self._keys.start, self._keys.stop)
        return [
            (server, m.Call(session.next_request(), self.table, view.number, view.generation, *what), ())
            for server in holders
        ]

    def accepts(self, request: int, answer: m.Message, arrays: m.Arrays) -> bool:
        if not isinstance(answer, m.Called) or len(answer.numbers) > limits.CALL_NUMBERS:
            return False
        if len(arrays) != 2 or not 0 < len(arrays[0]) <= limits.CALL_KEYS:
            return not arrays
        return 0 < len(arrays[1]) <= limits.CALL_VALUES and len(arrays[1]) % len(arrays[0]) == 0

    def answered(self, session: Session, pending: InflightRequest, answer: m.Message, arrays: m.Arrays) -> Requests:
        assert isinstance(answer, m.Called)
        keys_and_rows = (arrays[0], arrays[1].reshape(len(arrays[0]), -1)) if arrays else ()
        self.replies[pending.to] = Found(np.array(answer.numbers, np.float64), *keys_and_rows)
        return []

    def value(self, session: Session) -> Any:
        # In key order, whichever server answered first: sums of one placement have the same bits.
        order = session.layout_of(self.table).servers
        return self._question.whole([self.replies[one] for one in order if one in self.replies], self._settings)


def check_span(layout: Layout, span: KeyRange) -> None:
    if span.stop > layout.spec.span:
        raise BadKeys(f"range {span} of table {layout.name!r}: its keys are 0 to {layout.spec.span - 1}")


def call_operation(
    layout: Layout,
    keys: Any,
    question: Question | str,
    servers: str | Sequence[str] | None,
    after: tuple[Task, ...],
    settings: dict[str, float],
) -> CallOperation:
    """A call, checked as far as the client can."""
    spec = layout.spec
    if not isinstance(question, Question | str):
        raise Invalid(f"{question!r} is no question: give a name ('norms'), or a function under @shoal.question()")
    asked = question_named(question) if isinstance(question, str) else question
    span = as_range(keys, spec.span)
    if span is None:
        raise BadKeys(f"a question is asked of a range of keys of {layout.name!r}: slice(0, 100), or slice(None)")
    check_span(layout, span)
    if spec.hashed and span != KeyRange(0, spec.span):
        raise BadKeys(f"table {layout.name!r} is hashed, so its keys have no order: ask for all of them, slice(None)")
    op = CallOperation(
        Task(f"ask {asked.name!r} of {layout.name!r}", after), layout.number, span, asked, asked.settings(settings)
    )
    if servers is not None:
        if not isinstance(servers, Iterable):
            raise Invalid(f"servers={servers!r}: names of servers are needed ({', '.join(layout.servers)})")
        op.servers = [servers] if isinstance(servers, str) else list(servers)
        _check_servers(layout, op.servers)
    return op


def _check_servers(layout: Layout, servers: list[str]) -> None:
    strange = [server for server in servers if server not in layout.servers]
    if strange or not servers:
        holds = "hold" if len(strange) > 1 else "holds"
        who = f"{', '.join(map(str, strange))} {holds} nothing" if strange else "no server is named"
        raise Invalid(f"servers={servers!r}: {who} of table {layout.name!r} (servers: {', '.join(layout.servers)})")
