"""Who asked a server for something, and what came of it: answers, and long computations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.keys import KeyRange, Keys
from shoal.store.server.ledger import Mask
from shoal.wire import messages as m
from shoal.wire.effects import Effect

Later = Callable[[int], "HandlerResult"]


@dataclass(slots=True)
class Requester:
    """Who asked, and what; answered now or later."""

    name: str
    ask: m.Push | m.Pull
    keys: Keys | KeyRange
    told: int  # when it last got a notice
    covered: Mask
    new: bool = True  # a push: counted by this request, not before
    part: bool = False  # but not in all segments

    @property
    def id(self) -> tuple[str, int]:
        return self.name, self.ask.request


@dataclass(slots=True)
class LongComputation:
    """A computation that is too long for the loop: run ``function`` elsewhere, then ``then``."""

    function: Callable[[], None]
    then: Callable[[int], HandlerResult]
    full: Callable[[], HandlerResult] | None  # called if there was no memory; nothing has changed


class JoinedOutcome:
    """Changes that one computation makes, one after the other."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._all = [first]

    def add(self, one: Callable[[], None]) -> None:
        self._all.append(one)

    def __call__(self) -> None:
        for one in self._all:
            one()


@dataclass(slots=True)
class HandlerResult:
    """What came of a message: effects, and computations that must run, in order, before others."""

    effects: list[Effect] = field(default_factory=list)
    works: list[LongComputation] = field(default_factory=list)

    def __add__(self, more: HandlerResult) -> HandlerResult:
        return HandlerResult(self.effects + more.effects, self.works + more.works)
