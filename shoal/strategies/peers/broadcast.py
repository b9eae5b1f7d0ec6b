"""What was said, by whom, and who has heard it: each peer's words in their order, each of them once.

A stream is what one life says, numbered from 1. A word is *heard* when all before it are; what comes early waits. It is kept until
everybody that must hear it has, so that whoever has it can hand it on when the one that said it is gone. Nothing here sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shoal import limits
from shoal.timing import TimingSettings
from shoal.wire.messages.base import Arrays
from shoal.wire.messages.peers import Heard, Word


@dataclass(slots=True, frozen=True)
class Delivery:
    """A word that became audible."""

    origin: str  # the life that said it
    number: int
    word: Word
    arrays: Arrays = ()
    after: Heard = field(default_factory=dict)  # what must be heard before it, of others


@dataclass(slots=True)
class SentMessage:
    """A word that somebody may still need."""

    delivery: Delivery
    since: int  # when it was heard here
    size: int
    again: dict[str, tuple[int, int]] = field(default_factory=dict)  # by life: when it may be sent again, and the wait

    def may_send(self, now: int, to: str, turn: int, timing: TimingSettings) -> bool:
        """To one that lacks it: not while it may be on its way, and not by everybody at once (``turn``)."""
        at, wait = self.again.get(to) or (self.since + turn * timing.resend_first, timing.resend_first)
        if now < at:
            return False
        self.again[to] = (now + wait, min(2 * wait, timing.resend_most))
        return True


class Broadcast:
    """Everything that was said, as far as one peer has heard it."""

    def __init__(self) -> None:
        self.heard: dict[str, int] = {}  # of each life: all up to this number
        self._early: dict[str, dict[int, Delivery]] = {}
        self._kept: dict[str, dict[int, SentMessage]] = {}  # by life and number, numbers upwards
        self._now: list[Delivery] = []
        self.copied: dict[str, int] = {}  # up to these they were in the model that we took over: we never had the words
        self.repeated = 0  # came again, and were not heard again

    def begin_at(self, now: int, version: Heard) -> None:
        """A model with all of this in it was taken over; what came beyond it is heard now."""
        self.heard = dict(version)
        self.copied = {origin: number for origin, number in version.items() if number}
        self._go_on(now, *self._early)

    def take(self, now: int, delivery: Delivery, wait: bool = False) -> None:
        """A word came; ``wait``: there is no model yet that it could follow."""
        origin, number = delivery.origin, delivery.number
        early = self._early.setdefault(origin, {})
        if number <= self.heard.get(origin, 0) or number in early:
            self.repeated += 1
        elif len(early) < 2 * limits.PEER_WINDOW:  # nobody has more under way: what is left out comes again
            early[number] = delivery
        if not wait:
            self._go_on(now, origin)

    def _go_on(self, now: int, *origins: str) -> None:
        """Hear what can be heard now; words of others may have waited for that."""
        for origin in origins:
            self._advance(now, origin)
        going = bool(self._early)
        while going:
            going = any(self._advance(now, one) for one in list(self._early) if self._is_next(one))

    def _is_next(self, origin: str) -> bool:
        return self.heard.get(origin, 0) + 1 in self._early[origin]

    def _may_hear(self, delivery: Delivery) -> bool:
        return all(self.heard.get(life, 0) >= number for life, number in delivery.after.items())

    def _advance(self, now: int, origin: str) -> bool:
        """True if a word was heard."""
        early, number = self._early[origin], self.heard.get(origin, 0)
        before = number
        while (delivery := early.get(number + 1)) is not None and self._may_hear(delivery):
            number += 1
            del early[number]
            size = sum(array.nbytes for array in delivery.arrays)
            self._kept.setdefault(origin, {})[number] = SentMessage(delivery, now, size)
            self._now.append(delivery)
            self.heard[origin] = number
        for behind in [one for one in early if one <= number]:  # a snapshot had them
            del early[behind]
        if not early:
            del self._early[origin]
        return number > before

    def drain(self) -> list[Delivery]:
        found, self._now = self._now, []
        return found

    def lacking(self, theirs: Mapping[str, int]) -> Iterator[SentMessage]:
        """What is kept here and was not heard there."""
        for origin, words in self._kept.items():
            known = theirs.get(origin, 0)
            if known < self.heard[origin]:
                yield from (one for number, one in words.items() if number > known)

    def is_behind(self, version: Mapping[str, int]) -> bool:
        """Something that is not kept any more is missing in this version."""
        for origin, number in self.heard.items():
            known = version.get(origin, 0)
            if known < number and known + 1 not in self._kept.get(origin, {}):
                return True
        return False

    def forget(self, others: Sequence[Mapping[str, int]]) -> None:
        """All of these have heard so much: what everybody has is kept no longer."""
        for origin in list(self._kept):
            words = self._kept[origin]
            least = min((other.get(origin, 0) for other in others), default=self.heard[origin])
            for number in [one for one in words if one <= least]:
                del words[number]
            if not words:
                del self._kept[origin]
        for origin, number in list(self.copied.items()):
            if all(other.get(origin, 0) >= number for other in others):
                del self.copied[origin]

    def drop_early(self, origin: str) -> None:
        """What of this one waits for words before it is not here."""
        self._early.pop(origin, None)

    @property
    def kept(self) -> int:
        return sum(map(len, self._kept.values()))

    @property
    def early(self) -> int:
        return sum(map(len, self._early.values()))

    def own_unheard(self, me: str, others: Sequence[Mapping[str, int]]) -> tuple[int, int]:
        """How many words, and bytes, of this one not everybody has heard."""
        least = min((other.get(me, 0) for other in others), default=self.heard.get(me, 0))
        words = [one for number, one in self._kept.get(me, {}).items() if number > least]
        return len(words), sum(one.size for one in words)
