"""Calls at a server: runs a query over the rows it holds.

A call is answered like a pull at no clock: at once, from rows that all replicas have. It may take
long, so the client hears that it is under way. A user's own query runs in another process: it
may take long, fail, exit or use all memory, and costs only its own answer. The caller need not be
a member: nothing is counted and nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from shoal import limits
from shoal.errors import BadKeys, Invalid
from shoal.keys import KeyRange
from shoal.store.query import Found, question_named
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.table import row_views
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Received, Send

_REASON = 2_000  # characters of a refusal: a name may be as long as a message


Apart = Callable[[Callable[[], Found], int], Future[Found]]


class PendingCalls:
    """The calls under way at a server. ``apart`` runs users' queries in another process."""

    def __init__(self) -> None:
        self.apart: Apart | None = None
        self._under_way: dict[tuple[str, int], m.Call] = {}
        self._pending: dict[tuple[str, int], Future[Found]] = {}
        self._told = 0

    def call(self, now: int, sender: str, call: m.Call, part: SegmentState, inline: int, within: int) -> HandlerResult:
        """Answer it: now if it is short and built in, else off the loop, ``within`` nanoseconds."""
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

        def found() -> Found:
            return question.ask(row_views(part.table, keys, limits.CALL_PIECE, question.keys), settings)

        if question.own and part.extent.work(keys) <= inline:
            return HandlerResult([_answer(sender, call, found)])
        if self.apart is not None and not question.own:
            return self._call_apart(sender, call, self.apart, found, within)
        self._under_way[sender, call.request] = call
        answers: list[Effect] = []

        def answer(now: int) -> HandlerResult:
            self._under_way.pop((sender, call.request), None)
            return HandlerResult(answers)

        work = LongComputation(lambda: answers.append(_answer(sender, call, found)), answer, None)
        return HandlerResult([self.held(sender, call)], [work])

    def _call_apart(
        self, sender: str, call: m.Call, apart: Apart, found: Callable[[], Found], within: int
    ) -> HandlerResult:
        if len(self._pending) >= limits.CALLS_APART:
            return HandlerResult(
                [Send(sender, m.Busy(call.request, limits.BUSY_RETRY, "other questions are being asked"))]
            )
        asked = sender, call.request
        self._under_way[asked] = call

        def ask() -> None:  # off the loop, alone at the table: it sees one moment
            self._pending[asked] = apart(found, within)

        return HandlerResult([self.held(sender, call)], [LongComputation(ask, self.collect, None)])

    def collect(self, now: int = 0) -> HandlerResult:
        """Answers that other processes have finished."""
        found: list[Effect] = []
        for asked in [one for one, pending in list(self._pending.items()) if pending.done()]:
            pending, call = self._pending.pop(asked), self._under_way.pop(asked, None)
            if call is None:
                continue  # the server gave everything up meanwhile
            try:
                found.append(_told(asked[0], call, pending.result()))
            except Invalid as error:
                named = str(error) if str(error).startswith("question ") else f"question {call.name!r}: {error}"
                found.append(_no(asked[0], call, "question", Invalid(named)))
        return HandlerResult(found)

    def has(self, event: Received) -> bool:
        """Whether this is a resend of a call under way."""
        return (event.sender, getattr(event.message, "request", 0)) in self._under_way

    def notices(self, now: int, timing: TimingSettings = DEFAULT) -> list[Effect]:
        """Tell the callers, now and then, that their calls are under way."""
        if now - self._told < timing.notice:
            return []
        self._told = now
        return [self.held(sender, call) for (sender, _), call in self._under_way.items()]

    def clear(self) -> None:
        self._under_way.clear()

    def held(self, sender: str, call: m.Call) -> Effect:
        return Send(sender, m.PushHeld(call.request, f"question {call.name!r}, which is being asked"))


def _answer(sender: str, call: m.Call, found: Callable[[], Found]) -> Effect:
    try:
        return _told(sender, call, found())
    except Invalid as error:
        return _no(sender, call, "question", error)


def _told(sender: str, call: m.Call, found: Found) -> Effect:
    arrays = (found.keys, found.values.reshape(-1)) if len(found.keys) else ()
    return Send(sender, m.Called(call.request, found.numbers.tolist()), arrays)


def _no(sender: str, call: m.Call, kind: str, error: Invalid) -> Effect:
    return Send(sender, m.Refusal(call.request, kind, str(error)[:_REASON]))
