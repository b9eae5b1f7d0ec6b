"""Calls: a question goes to every server that holds keys of a range, and what they find is put together at the client.

A server answers a call as it would a pull at no clock: at once, from rows that all copies have. It may take long, so a client is told
that it is under way, and asks no second time. A user's own question is asked in another process (``apart``): it may take long, fail, end its
process or want all memory, and costs its own answer only. Whoever asks need not be a member: nothing is counted, and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, Invalid
from shoal.keys import KeyRange, as_range
from shoal.store.client.admin import StatusOperation
from shoal.store.client.inflight import InflightRequest
from shoal.store.client.operation import Outgoing
from shoal.store.client.split import Layout
from shoal.store.client.task import Task
from shoal.store.query import Found, Question, question_named
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.row_views import pieces
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Send

if TYPE_CHECKING:
    from shoal.store.client.dispatch import Dispatch

_REASON = 2_000  # characters of a refusal: a name may be as long as a message


class CallOperation(StatusOperation):
    """One call, at the client."""

    def __init__(self, task: Task, table: int, keys: KeyRange, question: Question, settings: Any) -> None:
        super().__init__(task, table)
        self.servers: list[str] | None = None  # only what these hold
        self._keys, self._question, self._settings = keys, question, settings
        self._found: dict[str, Found] = {}

    def letters(self, client: Dispatch) -> list[Outgoing]:
        layout = client.of_number(self.table)
        holding = layout.holding(self._keys)
        if self.servers is None:
            layout.check_all_held()
        else:
            _check_servers(layout, self.servers)
            holding = [server for server in holding if server in self.servers]
        settings, keys = self._settings._asdict(), self._keys
        return [
            (
                server,
                m.Call(
                    request=client.request(),
                    table=self.table,
                    view=client.view.number,
                    generation=client.view.generation,
                    name=self._question.name,
                    settings=settings,
                    start=keys.start,
                    stop=keys.stop,
                ),
                (),
            )
            for server in holding
        ]

    def accepts(self, request: int, answer: m.Message, arrays: m.Arrays) -> bool:
        if not isinstance(answer, m.Called) or len(answer.numbers) > limits.CALL_NUMBERS:
            return False
        if not arrays:
            return True
        if len(arrays) != 2 or not 0 < len(arrays[0]) <= limits.CALL_KEYS:
            return False
        return 0 < len(arrays[1]) <= limits.CALL_VALUES and len(arrays[1]) % len(arrays[0]) == 0

    def answered(
        self, client: Dispatch, letter: InflightRequest, answer: m.Message, arrays: m.Arrays
    ) -> list[Outgoing]:
        assert isinstance(answer, m.Called)
        numbers = np.array(answer.numbers, np.float64)
        if arrays:
            self._found[letter.to] = Found(numbers, arrays[0], arrays[1].reshape(len(arrays[0]), -1))
        else:
            self._found[letter.to] = Found(numbers)
        return []

    def restart(self, only: Sequence[str] | None = None) -> None:
        self._found.clear()

    def value(self, client: Dispatch) -> Any:
        # In the order of keys, whoever answered first: sums of the same placement have the same bits.
        order = client.of_number(self.table).servers
        return self._question.whole([self._found[one] for one in order if one in self._found], self._settings)


def calling(
    layout: Layout,
    keys: Any,
    question: Question | str,
    servers: str | Sequence[str] | None,
    after: tuple[Task, ...],
    settings: dict[str, float],
) -> CallOperation:
    """A call, checked here as far as it can be."""
    spec = layout.spec
    if not isinstance(question, Question | str):
        raise Invalid(f"{question!r} is no question: give a name ('norms'), or a function under @shoal.question()")
    asked = question_named(question) if isinstance(question, str) else question
    span = as_range(keys, spec.span)
    if span is None:
        raise BadKeys(
            f"a question is asked of a range of keys: call({layout.name!r}, slice(0, 100), ...), or slice(None) for all"
        )
    if span.stop > spec.span:
        raise BadKeys(f"range {span} of table {layout.name!r}: its keys are 0 to {spec.span - 1}")
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
        who = (
            f"{', '.join(map(str, strange))} {'hold' if len(strange) > 1 else 'holds'} nothing"
            if strange
            else "nobody is named"
        )
        raise Invalid(f"servers={servers!r}: {who} of table {layout.name!r} (servers: {', '.join(layout.servers)})")


class PendingCall(Protocol):
    """A question that is asked in another process."""

    done: bool

    def found(self) -> Found: ...


Apart = Callable[[Callable[[], Found], int], PendingCall]


class PendingCalls:
    """Those under way at a server. ``apart``, where the server is a process, is how users' questions are asked in another one."""

    def __init__(self) -> None:
        self.apart: Apart | None = None
        self._under_way: dict[tuple[str, int], m.Call] = {}
        self._pending: dict[tuple[str, int], PendingCall] = {}
        self._told = 0

    def call(self, now: int, sender: str, call: m.Call, part: SegmentState, inline: int, within: int) -> HandlerResult:
        """Answer it: now, if it is short and our own, else off the loop, and say so. A user's has ``within`` nanoseconds."""
        if (sender, call.request) in self._under_way:
            return HandlerResult([self.held(sender, call)])
        try:
            question = question_named(call.name)
            settings = question.settings(call.settings)
            keys = KeyRange(call.start, call.stop)
        except BadKeys as error:
            return HandlerResult([_no(sender, call, "keys", error)])
        except Invalid as error:
            return HandlerResult([_no(sender, call, "setting", error)])
        found: list[Effect] = []

        def ask() -> None:
            found.append(_answer(sender, call, question, settings, part, keys))

        if question.own and part.extent.work(keys) <= inline:
            ask()
            return HandlerResult(found)
        if self.apart is not None and not question.own:
            return self._call_apart(sender, call, question, settings, part, keys, within)
        self._under_way[sender, call.request] = call

        def answer(now: int) -> HandlerResult:
            self._under_way.pop((sender, call.request), None)
            return HandlerResult(found)

        return HandlerResult([self.held(sender, call)], [LongComputation(ask, answer, None)])

    def _call_apart(
        self,
        sender: str,
        call: m.Call,
        question: Question,
        settings: Any,
        part: SegmentState,
        keys: KeyRange,
        within: int,
    ) -> HandlerResult:
        if len(self._pending) >= limits.CALLS_APART:
            return HandlerResult(
                [Send(sender, m.Busy(call.request, limits.BUSY_RETRY, "other questions are being asked"))]
            )
        apart, asked = self.apart, (sender, call.request)
        assert apart is not None
        self._under_way[asked] = call

        def ask() -> None:  # off the loop, when nobody else is at the table: what it sees is of one moment
            rows = pieces(part.table, keys, limits.CALL_PIECE, question.keys)
            self._pending[asked] = apart(lambda: question.ask(rows, settings), within)

        return HandlerResult([self.held(sender, call)], [LongComputation(ask, self.collect, None)])

    def collect(self, now: int = 0) -> HandlerResult:
        """Answers that have come from elsewhere."""
        found: list[Effect] = []
        for asked in [one for one, pending in list(self._pending.items()) if pending.done]:
            pending, call = self._pending.pop(asked), self._under_way.pop(asked, None)
            if call is None:
                continue  # all was given up meanwhile
            try:
                found.append(_told(asked[0], call, pending.found()))
            except Invalid as error:
                named = str(error) if str(error).startswith("question ") else f"question {call.name!r}: {error}"
                found.append(_no(asked[0], call, "question", Invalid(named)))
        return HandlerResult(found)

    def has(self, event: Received) -> bool:
        """Is this the same call once more?"""
        return (event.sender, getattr(event.message, "request", 0)) in self._under_way

    def notices(self, now: int, timing: TimingSettings = DEFAULT) -> list[Effect]:
        """Now and then, who waits is told."""
        if now - self._told < timing.notice:
            return []
        self._told = now
        return [self.held(sender, call) for (sender, _), call in self._under_way.items()]

    def clear(self) -> None:
        self._under_way.clear()

    def held(self, sender: str, call: m.Call) -> Effect:
        return Send(sender, m.PushHeld(call.request, f"question {call.name!r}, which is being asked"))


def _answer(sender: str, call: m.Call, question: Question, settings: Any, part: SegmentState, keys: KeyRange) -> Effect:
    try:
        found = question.ask(pieces(part.table, keys, limits.CALL_PIECE, question.keys), settings)
    except Invalid as error:
        return _no(sender, call, "question", error)
    return _told(sender, call, found)


def _told(sender: str, call: m.Call, found: Found) -> Effect:
    arrays = (found.keys, found.values.reshape(-1)) if len(found.keys) else ()
    return Send(sender, m.Called(call.request, found.numbers.tolist()), arrays)


def _no(sender: str, call: m.Call, kind: str, error: Invalid) -> Effect:
    return Send(sender, m.Refusal(call.request, kind, str(error)[:_REASON]))
