"""Reliable broadcast: every peer delivers the words of every other peer in order, each once.

A *word* is one broadcast message. A *life* is one incarnation of a peer; it numbers its words from
1. A word is *heard* (delivered) when all words before it are; one that arrives early waits. A copy
is kept until everybody has heard it, so that any peer can relay it after its sender died. Nothing
here sends.
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
    origin: str  # the life that said it
    number: int
    word: Word
    arrays: Arrays = ()
    after: Heard = field(default_factory=dict)  # words of others that must be heard before it


@dataclass(slots=True)
class SentMessage:
    """A word that some peer may still need."""

    delivery: Delivery
    since: int  # when it was heard here
    size: int
    resends: dict[str, tuple[int, int]] = field(default_factory=dict)  # by life: next, and wait

    def may_send(self, now: int, to: str, turn: int, timing: TimingSettings) -> bool:
        """Resend to ``to`` now? Not while it may be in flight; peers take turns (``turn``)."""
        at, wait = self.resends.get(to) or (self.since + turn * timing.resend_first, timing.resend_first)
        if now < at:
            return False
        self.resends[to] = (now + wait, min(2 * wait, timing.resend_most))
        return True


class Broadcast:
    """The words that one peer has heard, and those that it keeps for others."""

    def __init__(self) -> None:
        self.heard: dict[str, int] = {}  # by life: all words up to this number
        self._early: dict[str, dict[int, Delivery]] = {}
        self._retained: dict[str, dict[int, SentMessage]] = {}  # by life and ascending number
        self._ready: list[Delivery] = []
        # Words up to these numbers were in the model that we copied: we cannot relay them.
        self.copied: dict[str, int] = {}
        self.repeated = 0  # duplicates that arrived

    def begin_at(self, now: int, version: Heard) -> None:
        """Continue after a copied model that contains ``version``."""
        self.heard = dict(version)
        self.copied = {origin: number for origin, number in version.items() if number}
        self._deliver(now, *self._early)

    def take(self, now: int, delivery: Delivery, wait: bool = False) -> None:
        """A word arrived; with ``wait`` there is no model yet that it could change."""
        origin, number = delivery.origin, delivery.number
        early = self._early.setdefault(origin, {})
        if number <= self.heard.get(origin, 0) or number in early:
            self.repeated += 1
        elif len(early) < 2 * limits.PEER_WINDOW:  # more is not accepted: it is sent again
            early[number] = delivery
        if not wait:
            self._deliver(now, origin)

    def _deliver(self, now: int, *origins: str) -> None:
        """Deliver what can be delivered; words of other lives may have waited for that."""
        for origin in origins:
            self._advance(now, origin)
        while any(self._advance(now, one) for one in list(self._early)):
            pass

    def _advance(self, now: int, origin: str) -> bool:
        early, before = self._early[origin], self.heard.get(origin, 0)
        for number in range(before + 1, before + 1 + len(early)):
            delivery = early.get(number)
            if delivery is None or any(self.heard.get(life, 0) < least for life, least in delivery.after.items()):
                break
            size = sum(array.nbytes for array in delivery.arrays)
            self._retained.setdefault(origin, {})[number] = SentMessage(delivery, now, size)
            self._ready.append(delivery)
            self.heard[origin] = number
        heard = self.heard.get(origin, 0)
        for behind in [one for one in early if one <= heard]:  # also what the copied model contains
            del early[behind]
        if not early:
            del self._early[origin]
        return heard > before

    def drain(self) -> list[Delivery]:
        found, self._ready = self._ready, []
        return found

    def lacking(self, theirs: Mapping[str, int]) -> Iterator[SentMessage]:
        for origin, words in self._retained.items():
            known = theirs.get(origin, 0)
            if known < self.heard[origin]:
                yield from (one for number, one in words.items() if number > known)

    def is_behind(self, version: Mapping[str, int]) -> bool:
        """Does ``version`` lack a word that is not kept any more?"""
        behind = {life: version.get(life, 0) for life, number in self.heard.items() if version.get(life, 0) < number}
        return any(known + 1 not in self._retained.get(life, {}) for life, known in behind.items())

    def forget(self, others: Sequence[Mapping[str, int]]) -> None:
        """Drop what all others have heard."""
        for origin, words in list(self._retained.items()):
            least = min((other.get(origin, 0) for other in others), default=self.heard[origin])
            self._retained[origin] = {number: one for number, one in words.items() if number > least}
        self._retained = {origin: words for origin, words in self._retained.items() if words}
        lacked = [life for life, number in self.copied.items() if any(one.get(life, 0) < number for one in others)]
        self.copied = {life: self.copied[life] for life in lacked}

    def drop_early(self, origin: str) -> None:
        self._early.pop(origin, None)

    @property
    def retained(self) -> int:
        return sum(map(len, self._retained.values()))

    @property
    def early(self) -> int:
        return sum(map(len, self._early.values()))

    def own_unheard(self, me: str, others: Sequence[Mapping[str, int]]) -> tuple[int, int]:
        """The number and bytes of our words that some peer has not heard."""
        least = min((other.get(me, 0) for other in others), default=self.heard.get(me, 0))
        words = [one for number, one in self._retained.get(me, {}).items() if number > least]
        return len(words), sum(one.size for one in words)
