"""Messages that await an answer: sent again with back-off, within a budget, and not for ever.

Any answer counts as a sign of life. One that says "held" stops the resends, since the other side has the bytes; it is
asked again only if the signs of life stop. One that says "busy" asks for it to be sent again, so that is not paid from the
budget: it comes when the other side wants it, and less often if that is busy again and again. No sign for ``SILENCE`` is an error for whoever asked; twice as long
for what was said only once because others had used up the budget.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal import limits
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import Arrays, Message


@dataclass(slots=True)
class Letter:
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
    put_off: bool = False  # it was due, and others had used up the budget
    old: bool = False  # segments have changed hands since: it is answered or refused, and not sent again as it is

    @property
    def ends(self) -> int:
        """When the silence has lasted too long."""
        return self.heard + (2 * limits.SILENCE if self.put_off else limits.SILENCE)


class Flight:
    """All that one client has under way."""

    def __init__(self, seed: int) -> None:
        self.letters: dict[int, Letter] = {}
        self.resent = 0
        self.held_now = 0  # letters that the other side has and has not answered
        self.next = 0  # when there may be something to do
        self._budget = 10.0  # resends that are allowed now
        self._last_resend = 0
        self._seed = seed

    def send(self, now: int, to: str, request: int, message: Message, arrays: Arrays = ()) -> Effect:
        wait = self._jitter(request, limits.RESEND_FIRST)
        self.letters[request] = Letter(to, request, message, arrays, now, now + wait, wait)
        self._budget = min(10.0, self._budget + limits.RESEND_BUDGET)
        self._look_at(now + wait)
        return Send(to, message, arrays)

    def done(self, request: int) -> Letter | None:
        letter = self.letters.pop(request, None)
        if letter is not None and letter.held:
            self.held_now -= 1
        return letter

    def held(self, now: int, request: int) -> bool:
        """The other side has it. True if this was news."""
        letter = self.letters.get(request)
        if letter is None:
            return False
        news = not letter.held
        self.held_now += news
        letter.heard, letter.held, letter.wanted, letter.refusals = now, True, False, 0
        letter.again = now + 3 * limits.NOTICE  # it is told every second: three missed notices and we ask again
        return news

    def busy(self, now: int, request: int, retry_after: int) -> None:
        letter = self.letters.get(request)
        if letter is not None:
            self.held_now -= letter.held
            letter.heard, letter.held, letter.wanted = now, False, True
            wait = min(max(retry_after, limits.MILLISECOND), limits.RESEND_MOST)
            letter.again = now + max(wait, min(wait << min(letter.refusals, 16), limits.BUSY_MOST))
            letter.refusals += 1
            self._look_at(letter.again)

    def instead(self, now: int, letter: Letter, message: Message, arrays: Arrays) -> Effect:
        """The other side cannot use what it has: the same question, said otherwise."""
        self.held_now -= letter.held
        letter.message, letter.arrays, letter.held, letter.wanted = message, arrays, False, False
        letter.heard, letter.again = now, now + letter.wait
        self._look_at(letter.again)
        return Send(letter.to, message, arrays)

    def renew(self, now: int, letter: Letter) -> None:
        """Nothing was heard of it for too long, and it is waited for all the same."""
        letter.heard = now
        self._look_at(letter.again)

    def tick(self, now: int) -> tuple[list[Effect], list[Letter]]:
        """What is to be sent again, and what nothing was heard of for too long, or is to be said anew."""
        if now < self.next:
            return [], []
        effects: list[Effect] = []
        silent: list[Letter] = []
        late: list[Letter] = []
        self.next = now + limits.SILENCE
        for letter in self.letters.values():
            if now >= letter.ends:
                silent.append(letter)
            elif now >= letter.again:
                late.append(letter)
            else:
                self._look_at(min(letter.again, letter.ends))
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
                letter.wait = min(2 * letter.wait, self._jitter(letter.request, limits.RESEND_MOST))
                letter.again = now + letter.wait
            else:
                letter.again, letter.put_off = now + limits.RESEND_FIRST, letter.sends == 1
            self._look_at(min(letter.again, letter.ends))
        return effects, silent

    def _again(self, letter: Letter) -> Effect:
        self.resent += 1
        letter.sends, letter.put_off = letter.sends + 1, False
        return Send(letter.to, letter.message, letter.arrays)

    def clear(self) -> None:
        self.letters.clear()
        self.held_now = 0

    def _may_resend(self, now: int) -> bool:
        """A slow server must not be killed by repeats: one in ten, and one a second in any case."""
        if self._budget >= 1:
            self._budget -= 1
        elif now - self._last_resend < limits.SECOND:
            return False
        self._last_resend = now
        return True

    def _look_at(self, when: int) -> None:
        self.next = min(self.next, when) if self.next else when

    def _jitter(self, request: int, wait: int) -> int:
        """Three quarters to five quarters of it, so that many clients do not knock at once; no randomness needed."""
        mixed = ((request + 1) * 0x9E3779B97F4A7C15 + self._seed * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        return wait * 3 // 4 + (mixed >> 33) % (wait // 2)
