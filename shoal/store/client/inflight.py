"""Requests that await an answer: resent with back-off, within a budget, and not for ever.

Any answer is a sign of life. "Held" stops the resends, since the server has the request; "Busy"
asks for one, which is free. The budget is a window: a resend that is answered allows another one,
so repeats do not kill a slow server. No sign for ``timing.silence`` is an error for the caller;
twice as long for a request that was sent only once because others had used up the budget. A server
that answers other requests is not silent: what was lost on the way to it is sent a few times before
it is given up. Time in which this process slept does not count.
"""

from __future__ import annotations

import msgspec

from shoal import limits
from shoal.timing import DEFAULT
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import Arrays, Message

_BUDGET = 10.0  # unanswered resends at most; and one a second in any case
_MAX_SENDS = 4  # a request sent so often, to a server that answers others, gets no answer


class InflightRequest(msgspec.Struct, eq=False):
    to: str
    request: int
    message: Message
    arrays: Arrays
    last_sign: int  # when it was first sent, or the server last said anything about it
    resend_at: int
    wait: int
    held: bool = False
    sends: int = 1
    busy: bool = False  # the server said when to send it again
    refusals: int = 0  # how often in a row it said so
    deferred: bool = False  # due, but others have used up the budget
    repeats: int = 0  # resends paid from the budget since the last sign of life
    # Segments have moved since: it is answered or refused, but not resent in this form.
    outdated: bool = False


class Inflight:
    """All requests of one client that await an answer."""

    def __init__(self, seed: int) -> None:
        self.timing = DEFAULT
        self.requests: dict[int, InflightRequest] = {}
        self.resent = 0
        self.held_count = 0  # requests that servers hold and have not answered
        self.next = 0  # when there may be something to do
        self._budget = _BUDGET  # resends allowed now
        self._over_budget = False  # some wait for more budget
        self._last_tick = 0
        self._last_answer: dict[str, int] = {}  # when each server last said anything
        self._last_resend = 0
        self._seed = seed

    def send(self, now: int, to: str, request: int, message: Message, arrays: Arrays = ()) -> Effect:
        wait = self._jitter(request, self.timing.resend_first)
        self.requests[request] = InflightRequest(to, request, message, arrays, now, now + wait, wait)
        self._budget = min(_BUDGET, self._budget + limits.RESEND_BUDGET)
        self._wake_at(now + wait)
        return Send(to, message, arrays)

    def done(self, request: int) -> None:
        pending = self.requests.pop(request, None)
        if pending is not None and pending.held:
            self.held_count -= 1

    def answered(self, now: int, sender: str, request: int) -> None:
        """An answer of any kind came, to this request or to one that has ended."""
        self._last_answer[sender] = now
        pending = self.requests.get(request)
        if pending is not None and pending.repeats and pending.to == sender:
            self._budget = min(_BUDGET, self._budget + pending.repeats)
            pending.repeats = 0
            if self._over_budget:
                self._wake_at(now)

    def ends(self, pending: InflightRequest) -> int:
        """When the silence has lasted too long."""
        wait = 2 * self.timing.silence if pending.deferred and pending.sends == 1 else self.timing.silence
        if pending.sends >= _MAX_SENDS:
            return pending.last_sign + wait
        alive = self._last_answer.get(pending.to, 0) + self.timing.silence
        return max(pending.last_sign + wait, min(alive, pending.last_sign + _MAX_SENDS * self.timing.silence))

    def held(self, now: int, request: int) -> bool:
        """The server holds it. True if this was news."""
        pending = self.requests.get(request)
        if pending is None:
            return False
        news = not pending.held
        self.held_count += news
        pending.last_sign, pending.held, pending.busy, pending.refusals, pending.deferred = now, True, False, 0, False
        pending.resend_at = now + 3 * self.timing.notice  # after three missed notices
        return news

    def busy(self, now: int, request: int, retry_after: int) -> None:
        pending = self.requests.get(request)
        if pending is not None:
            self.held_count -= pending.held
            pending.last_sign, pending.held, pending.busy, pending.deferred = now, False, True, False
            wait = min(max(retry_after, limits.MILLISECOND), self.timing.resend_most)
            pending.resend_at = now + max(wait, min(wait << min(pending.refusals, 16), limits.BUSY_MOST))
            pending.refusals += 1
            self._wake_at(pending.resend_at)

    def replace(self, now: int, pending: InflightRequest, message: Message, arrays: Arrays) -> Effect:
        """The server cannot use the message: send the same request in another form."""
        self.held_count -= pending.held
        pending.message, pending.arrays, pending.held, pending.busy = message, arrays, False, False
        pending.last_sign, pending.resend_at, pending.deferred = now, now + pending.wait, False
        self._wake_at(pending.resend_at)
        return Send(pending.to, message, arrays)

    def renew(self, now: int, pending: InflightRequest) -> None:
        """Its server is silent for too long, and the client waits on."""
        pending.last_sign = now
        self._wake_at(pending.resend_at)

    def tick(self, now: int) -> tuple[list[Effect], list[InflightRequest]]:
        """The resends that are due, and the requests that ended in silence or are outdated."""
        self._forgive_sleep(now)
        if now < self.next:
            return [], []
        effects: list[Effect] = []
        silent: list[InflightRequest] = []
        late: list[InflightRequest] = []
        self._over_budget = False
        self.next = now + self.timing.silence
        for pending in self.requests.values():
            if now >= (ends := self.ends(pending)):
                silent.append(pending)
            elif now >= pending.resend_at or (pending.deferred and self._budget >= 1):
                late.append(pending)
            else:
                self._wake_at(min(pending.resend_at, ends))
        # Least often sent first: no server is called silent because others used up the budget.
        for pending in sorted(late, key=lambda one: one.sends):
            if pending.outdated and (pending.busy or self._may_resend(now)):
                silent.append(pending)
                continue
            if pending.busy:
                effects.append(self._resend(pending))
                pending.busy, pending.resend_at = False, now + pending.wait
            elif not pending.outdated and self._may_resend(now):
                effects.append(self._resend(pending))
                pending.repeats += 1
                pending.wait = min(2 * pending.wait, self._jitter(pending.request, self.timing.resend_most))
                pending.resend_at = now + pending.wait
            else:
                pending.resend_at, pending.deferred = now + self.timing.resend_first, True
                self._over_budget = True
            self._wake_at(min(pending.resend_at, self.ends(pending)))
        return effects, silent

    def _forgive_sleep(self, now: int) -> None:
        """If this process slept, the others were not silent: their answers may wait to be read."""
        away = now - self._last_tick - 2 * self.timing.notice if self._last_tick else 0
        self._last_tick = now
        for pending in self.requests.values() if away > 0 else ():
            pending.last_sign = min(now, pending.last_sign + away)

    def _resend(self, pending: InflightRequest) -> Effect:
        self.resent += 1
        pending.sends, pending.deferred = pending.sends + 1, False
        return Send(pending.to, pending.message, pending.arrays)

    def _may_resend(self, now: int) -> bool:
        if self._budget >= 1:
            self._budget -= 1
        elif now - self._last_resend < 2 * self.timing.resend_first:
            return False
        self._last_resend = now
        return True

    def _wake_at(self, when: int) -> None:
        self.next = min(self.next, when) if self.next else when

    def _jitter(self, request: int, wait: int) -> int:
        """Three to five quarters of ``wait``, by request number: clients do not resend in step."""
        mixed = ((request + 1) * 0x9E3779B97F4A7C15 + self._seed * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        return wait * 3 // 4 + (mixed >> 33) % (wait // 2)
