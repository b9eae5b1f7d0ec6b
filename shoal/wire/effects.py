"""The events that a state machine handles, and the effects that it returns.

Protocol code never touches a socket, a file, a clock or a thread. It has one method,
``handle(now, event) -> effects``; a loop carries the effects out (``nodes.loop``, or
``simulation.world`` in one seeded thread). Time is integer nanoseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from shoal.events import RunEvent
from shoal.wire.messages import Arrays, Message


class Received(msgspec.Struct, frozen=True):
    """A message arrived."""

    sender: str
    message: Message
    arrays: Arrays = ()


class Tick(msgspec.Struct, frozen=True):
    """The time of a Wake has come, or there is something new to do."""


class Durable(msgspec.Struct, frozen=True):
    """A Persist is on disk, or failed with this error."""

    token: int
    error: str = ""


class Computed(msgspec.Struct, frozen=True):
    """A computation finished, or failed with an error."""

    token: int
    result: Any = None
    error: BaseException | None = None


class Stored(msgspec.Struct, frozen=True):
    """A Store is done, or failed with an error."""

    token: int
    result: Any = None
    error: BaseException | None = None


class ProcessEnd(msgspec.Struct, frozen=True):
    """The launcher saw a process end. Not a message, so nobody can fake it on the wire."""

    name: str
    reason: str
    token: str = ""  # of the incarnation that ended; empty: the current one


class Dismiss(msgspec.Struct, frozen=True):
    """The launcher ends the cluster. Not a message either."""

    why: str


Event = Received | Tick | Durable | Computed | Stored | ProcessEnd | Dismiss


class Send(msgspec.Struct, frozen=True):
    """Carry this message to that node."""

    to: str
    message: Message
    arrays: Arrays = ()


class Wake(msgspec.Struct, frozen=True):
    """Send me a Tick at this time; replaces an earlier Wake."""

    at: int


class Persist(msgspec.Struct, frozen=True):
    """Append this to my journal, and report when it is durable."""

    token: int
    record: bytes


class Compute(msgspec.Struct, frozen=True):
    """Run this off the loop's thread, one at a time."""

    token: int
    function: Callable[[], Any]


class Store(msgspec.Struct, frozen=True):
    """Run this on the node's disk thread, so that nothing else waits for the disk."""

    token: int
    function: Callable[[], Any]


class Connect(msgspec.Struct, frozen=True):
    """Reach this name at this address; an empty address: it is gone."""

    name: str
    address: str
    mutual: bool = False  # it calls us, too, under its own name


class Tell(msgspec.Struct, frozen=True):
    """Publish this event of the run."""

    event: RunEvent


Effect = Send | Wake | Persist | Compute | Store | Connect | Tell


class Node(Protocol):
    """A state machine that a loop can run."""

    name: str

    def handle(self, now: int, event: Event) -> list[Effect]: ...
