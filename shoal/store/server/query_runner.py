"""Calls at a server: runs a query over the rows it holds.

A call is answered like a pull at no clock: at once, from rows that all replicas have. It may take
long, so the client gets notices. A user's own query runs in another process: it
may take long, fail, exit or use all memory, and costs only its own answer. The caller need not be
a member: nothing is counted and nothing waits for it.
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


RunInProcess = Callable[[Callable[[], Found], int], Future[Found]]


class PendingCalls:
    """The calls that a server runs. ``run_in_process`` runs users' queries."""

    def __init__(self) -> None:
        self.run_in_process: RunInProcess | None = None
        self._calls: dict[tuple[str, int], m.Call] = {}
        self._pending: dict[tuple[str, int], Future[Found]] = {}
        self._notified_at = 0

    def call(self, now: int, sender: str, call: m.Call, state: SegmentState, inline: int, within: int) -> HandlerResult:
        """Answer it: now if it is short and built in, else off the loop, ``within`` nanoseconds."""
        if (sender, call.request) in self._calls:
            return HandlerResult([self.notice(sender, call)])
        try:
            question = question_named(call.name)
            settings = question.settings(call.settings)
            keys = KeyRange(call.start, call.stop)
        except BadKeys as error:
            return HandlerResult([_refusal(sender, call, "keys", error)])
        except Invalid as error:
            return HandlerResult([_refusal(sender, call, "setting", error)])

        def run() -> Found:
            return question.ask(row_views(state.table, keys, limits.CALL_PIECE, question.keys), settings)

        if question.own and state.check.work(keys) <= inline:
            return HandlerResult([_answer(sender, call, run)])
        if self.run_in_process is not None and not question.own:
            return self._call_in_process(sender, call, self.run_in_process, run, within)
        self._calls[sender, call.request] = call
        answers: list[Effect] = []

        def answer(now: int) -> HandlerResult:
            self._calls.pop((sender, call.request), None)
            return HandlerResult(answers)

        work = LongComputation(lambda: answers.append(_answer(sender, call, run)), answer, None)
        return HandlerResult([self.notice(sender, call)], [work])

    def _call_in_process(
        self, sender: str, call: m.Call, run_in_process: RunInProcess, run: Callable[[], Found], within: int
    ) -> HandlerResult:
        if len(self._pending) >= limits.CALLS_APART:
            return HandlerResult([Send(sender, m.Busy(call.request, limits.BUSY_RETRY, "other questions are running"))])
        key = sender, call.request
        self._calls[key] = call

        def ask() -> None:  # off the loop, alone at the table: it sees one moment
            self._pending[key] = run_in_process(run, within)

        return HandlerResult([self.notice(sender, call)], [LongComputation(ask, self.collect, None)])

    def collect(self, now: int = 0) -> HandlerResult:
        """Answers that other processes have finished."""
        answers: list[Effect] = []
        for key in [one for one, pending in list(self._pending.items()) if pending.done()]:
            pending, call = self._pending.pop(key), self._calls.pop(key, None)
            if call is None:
                continue  # the server has dropped all calls since
            try:
                answers.append(_answer_message(key[0], call, pending.result()))
            except Invalid as error:
                named = str(error) if str(error).startswith("question ") else f"question {call.name!r}: {error}"
                answers.append(_refusal(key[0], call, "question", Invalid(named)))
        return HandlerResult(answers)

    def has(self, event: Received) -> bool:
        """Whether this is a resend of a call that is running."""
        return (event.sender, getattr(event.message, "request", 0)) in self._calls

    def notices(self, now: int, timing: TimingSettings = DEFAULT) -> list[Effect]:
        """Notices to callers, now and then, that their calls are running."""
        if now - self._notified_at < timing.notice:
            return []
        self._notified_at = now
        return [self.notice(sender, call) for (sender, _), call in self._calls.items()]

    def clear(self) -> None:
        self._calls.clear()

    def notice(self, sender: str, call: m.Call) -> Effect:
        return Send(sender, m.RequestHeld(call.request, f"question {call.name!r}, which is running"))


def _answer(sender: str, call: m.Call, run: Callable[[], Found]) -> Effect:
    try:
        return _answer_message(sender, call, run())
    except Invalid as error:
        return _refusal(sender, call, "question", error)


def _answer_message(sender: str, call: m.Call, found: Found) -> Effect:
    arrays = (found.keys, found.values.reshape(-1)) if len(found.keys) else ()
    return Send(sender, m.Called(call.request, found.numbers.tolist()), arrays)


def _refusal(sender: str, call: m.Call, kind: str, error: Invalid) -> Effect:
    return Send(sender, m.Refusal(call.request, kind, str(error)[:_REASON]))
