"""Requests that a server has not answered yet, and what a handler returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.keys import KeyRange, Keys
from shoal.store.server.ledger import Mask
from shoal.wire import messages as m
from shoal.wire.effects import Effect

Continuation = Callable[[int], "HandlerResult"]


@dataclass(slots=True)
class PendingRequest:
    """A push or pull with its sender; answered now or later."""

    client: str
    message: m.Push | m.Pull
    keys: Keys | KeyRange
    notified_at: int  # when the client last got a notice
    covered: Mask
    new: bool = True  # a push: counted by this request, not before
    partial: bool = False  # but not in all segments

    @property
    def id(self) -> tuple[str, int]:
        return self.client, self.message.request


@dataclass(slots=True)
class LongComputation:
    """A computation that is too long for the loop: run ``function`` elsewhere, then ``then``."""

    function: Callable[[], None]
    then: Callable[[int], HandlerResult]
    on_memory_error: Callable[[], HandlerResult] | None  # nothing has changed then


class FunctionChain:
    """Functions that one computation calls, one after the other."""

    def __init__(self, first: Callable[[], None]) -> None:
        self._all = [first]

    def add(self, one: Callable[[], None]) -> None:
        self._all.append(one)

    def __call__(self) -> None:
        for one in self._all:
            one()


@dataclass(slots=True)
class HandlerResult:
    """The result of a message: effects, and computations to run in order before any others."""

    effects: list[Effect] = field(default_factory=list)
    computations: list[LongComputation] = field(default_factory=list)

    def __add__(self, more: HandlerResult) -> HandlerResult:
        return HandlerResult(self.effects + more.effects, self.computations + more.computations)
