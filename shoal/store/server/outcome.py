"""Who asked a server for something, and what came of it: answers, and work that is too long for the loop."""

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
    """Who asked, and what: answered now or later."""

    name: str
    ask: m.Push | m.Pull
    keys: Keys | KeyRange
    told: int  # when it was last told anything
    covered: Mask
    new: bool = True  # of a push: it is counted by this, not before
    part: bool = False  # but not everywhere

    @property
    def id(self) -> tuple[str, int]:
        return self.name, self.ask.request


@dataclass(slots=True)
class LongComputation:
    """A computation that is too long for the loop: run ``function`` elsewhere, then go on with ``then``."""

    function: Callable[[], None]
    then: Callable[[int], HandlerResult]
    full: Callable[[], HandlerResult] | None  # there was no memory for it, and nothing was changed


class JoinedOutcome:
    """Changes that are made by one computation, one after the other: however many came at once, others wait for it once."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._all = [first]

    def add(self, one: Callable[[], None]) -> None:
        self._all.append(one)

    def __call__(self) -> None:
        for one in self._all:
            one()


@dataclass(slots=True)
class HandlerResult:
    """What came of a message: answers, and perhaps work that has to be done, in this order, before others."""

    effects: list[Effect] = field(default_factory=list)
    works: list[LongComputation] = field(default_factory=list)

    def __add__(self, more: HandlerResult) -> HandlerResult:
        return HandlerResult(self.effects + more.effects, self.works + more.works)
