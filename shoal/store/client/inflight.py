"""Messages that await an answer: sent again with back-off, within a budget, and not for ever.

Any answer counts as a sign of life. One that says "held" stops the resends, since the other side has the bytes; it is
asked again only if the signs of life stop. One that says "busy" asks for it to be sent again, so that is not paid from the
budget: it comes when the other side wants it, and less often if that is busy again and again. The budget is a window: what was sent again
and is answered lets another one go, so that a slow server is not killed by repeats, and all that was lost at once comes again as fast as
the other side answers.

No sign for ``timing.silence`` is an error for whoever asked; twice as long for what was said only once because others had used up the
budget. Whoever answers others is not silent: what was lost on the way to it is said a few times before it is given up. Nor is anybody
while we were not there to listen.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal import limits
from shoal.timing import DEFAULT
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import Arrays, Message

_BUDGET = 10.0  # resends that are not answered, at most; and one a second in any case
_OFTEN = 4  # what was said so often, and got no answer from somebody who answers others, gets none


@dataclass(slots=True)
class InflightRequest:
    """One message and what is known of its journey."""

    to: str
    request: int
    message: Message
    arrays: Arrays
    heard: int  # when it was sent first, or something was last heard of it
    again: int  # when to send it again
    wait: int
    held: bool = False
    sends: int = 1
    wanted: bool = False  # the other side said when to send it again
    refusals: int = 0  # it said so, one time after the other
    put_off: bool = False  # it is due, and others have used up the budget
    repeats: int = 0  # resends that the budget paid for and nothing was heard of since
    old: bool = False  # segments have changed hands since: it is answered or refused, and not sent again as it is


class Inflight:
    """All that one client has under way."""

    def __init__(self, seed: int) -> None:
        self.timing = DEFAULT
        self.letters: dict[int, InflightRequest] = {}
        self.resent = 0
        self.held_now = 0  # letters that the other side has and has not answered
        self.next = 0  # when there may be something to do
        self._budget = _BUDGET  # resends that are allowed now
        self._short = False  # some wait for more of it
        self._looked = 0  # when anybody last looked what is to be done
        self._alive: dict[str, int] = {}  # when each of those whom we ask last said anything
        self._last_resend = 0
        self._seed = seed

    def send(self, now: int, to: str, request: int, message: Message, arrays: Arrays = ()) -> Effect:
        wait = self._jitter(request, self.timing.resend_first)
        self.letters[request] = InflightRequest(to, request, message, arrays, now, now + wait, wait)
        self._budget = min(_BUDGET, self._budget + limits.RESEND_BUDGET)
        self._look_at(now + wait)
        return Send(to, message, arrays)

    def done(self, request: int) -> InflightRequest | None:
        letter = self.letters.pop(request, None)
        if letter is not None and letter.held:
            self.held_now -= 1
        return letter

    def hears(self, now: int, sender: str, request: int) -> None:
        """An answer came, of whatever kind, to this letter or to one that is over."""
        self._alive[sender] = now
        letter = self.letters.get(request)
        if letter is not None and letter.repeats and letter.to == sender:
            self._budget = min(_BUDGET, self._budget + letter.repeats)
            letter.repeats = 0
            if self._short:
                self._look_at(now)

    def ends(self, letter: InflightRequest) -> int:
        """When the silence has lasted too long."""
        wait = 2 * self.timing.silence if letter.put_off and letter.sends == 1 else self.timing.silence
        if letter.sends >= _OFTEN:
            return letter.heard + wait
        alive = self._alive.get(letter.to, 0) + self.timing.silence
        return max(letter.heard + wait, min(alive, letter.heard + _OFTEN * self.timing.silence))

    def held(self, now: int, request: int) -> bool:
        """The other side has it. True if this was news."""
        letter = self.letters.get(request)
        if letter is None:
            return False
        news = not letter.held
        self.held_now += news
        letter.heard, letter.held, letter.wanted, letter.refusals, letter.put_off = now, True, False, 0, False
        letter.again = now + 3 * self.timing.notice  # it is told that often: three missed notices and we ask again
        return news

    def busy(self, now: int, request: int, retry_after: int) -> None:
        letter = self.letters.get(request)
        if letter is not None:
            self.held_now -= letter.held
            letter.heard, letter.held, letter.wanted, letter.put_off = now, False, True, False
            wait = min(max(retry_after, limits.MILLISECOND), self.timing.resend_most)
            letter.again = now + max(wait, min(wait << min(letter.refusals, 16), limits.BUSY_MOST))
            letter.refusals += 1
            self._look_at(letter.again)

    def instead(self, now: int, letter: InflightRequest, message: Message, arrays: Arrays) -> Effect:
        """The other side cannot use what it has: the same question, said otherwise."""
        self.held_now -= letter.held
        letter.message, letter.arrays, letter.held, letter.wanted = message, arrays, False, False
        letter.heard, letter.again, letter.put_off = now, now + letter.wait, False
        self._look_at(letter.again)
        return Send(letter.to, message, arrays)

    def renew(self, now: int, letter: InflightRequest) -> None:
        """Nothing was heard of it for too long, and it is waited for all the same."""
        letter.heard = now
        self._look_at(letter.again)

    def tick(self, now: int) -> tuple[list[Effect], list[InflightRequest]]:
        """What is to be sent again, and what nothing was heard of for too long, or is to be said anew."""
        self._wake_up(now)
        if now < self.next:
            return [], []
        effects: list[Effect] = []
        silent: list[InflightRequest] = []
        late: list[InflightRequest] = []
        self._short = False
        silence = self.timing.silence
        self.next = now + silence
        for letter in self.letters.values():
            if now >= (ends := self.ends(letter)):
                silent.append(letter)
            elif now >= letter.again or (letter.put_off and self._budget >= 1):
                late.append(letter)
            else:
                self._look_at(min(letter.again, ends))
        # Those that were said least often come first: nobody is called silent because others took all that the budget gives.
        for letter in sorted(late, key=lambda one: one.sends):
            if letter.old and (letter.wanted or self._may_resend(now)):
                silent.append(letter)
                continue
            if letter.wanted:
                effects.append(self._again(letter))
                letter.wanted, letter.again = False, now + letter.wait
            elif not letter.old and self._may_resend(now):
                effects.append(self._again(letter))
                letter.repeats += 1
                letter.wait = min(2 * letter.wait, self._jitter(letter.request, self.timing.resend_most))
                letter.again = now + letter.wait
            else:
                letter.again, letter.put_off = now + self.timing.resend_first, True
                self._short = True
            self._look_at(min(letter.again, self.ends(letter)))
        return effects, silent

    def _wake_up(self, now: int) -> None:
        """Time in which nobody looked here is no silence of others: the process slept, and answers may be waiting to be read."""
        away = now - self._looked - 2 * self.timing.notice if self._looked else 0
        self._looked = now
        for letter in self.letters.values() if away > 0 else ():
            letter.heard = min(now, letter.heard + away)

    def _again(self, letter: InflightRequest) -> Effect:
        self.resent += 1
        letter.sends, letter.put_off = letter.sends + 1, False
        return Send(letter.to, letter.message, letter.arrays)

    def clear(self) -> None:
        self.letters.clear()
        self.held_now = 0

    def _may_resend(self, now: int) -> bool:
        """A slow server must not be killed by repeats: ten that are not answered, and one a second in any case (as a rule: by the timing)."""
        if self._budget >= 1:
            self._budget -= 1
        elif now - self._last_resend < 2 * self.timing.resend_first:
            return False
        self._last_resend = now
        return True

    def _look_at(self, when: int) -> None:
        self.next = min(self.next, when) if self.next else when

    def _jitter(self, request: int, wait: int) -> int:
        """Three quarters to five quarters of it, so that many clients do not knock at once; no randomness needed."""
        mixed = ((request + 1) * 0x9E3779B97F4A7C15 + self._seed * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        return wait * 3 // 4 + (mixed >> 33) % (wait // 2)
