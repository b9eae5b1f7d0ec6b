"""The events that a state machine handles, and the effects that it returns.

Protocol code never touches a socket, a file, a clock or a thread. It has one method,
``handle(now, event) -> effects``; a loop carries the effects out (``nodes.loop``, or
``simulation.world`` in one seeded thread). Time is integer nanoseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.events import RunEvent
from shoal.wire.messages import Arrays, Message


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived."""

    sender: str
    message: Message
    arrays: Arrays = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of a Wake has come, or there is something new to do."""


@dataclass(frozen=True, slots=True)
class Durable:
    """A Persist is on disk, or failed with this error."""

    token: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Computed:
    """A computation finished, or failed with an error."""

    token: int
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A Store is done, or failed with an error."""

    token: int
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The launcher saw a process end. Not a message, so nobody can fake it on the wire."""

    name: str
    reason: str
    token: str = ""  # of the incarnation that ended; empty: the current one


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The launcher ends the cluster. Not a message either."""

    why: str


Event = Received | Tick | Durable | Computed | Stored | ProcessEnd | Dismiss


@dataclass(frozen=True, slots=True)
class Send:
    """Carry this message to that node."""

    to: str
    message: Message
    arrays: Arrays = ()


@dataclass(frozen=True, slots=True)
class Wake:
    """Send me a Tick at this time; replaces an earlier Wake."""

    at: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Append this to my journal, and report when it is durable."""

    token: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Compute:
    """Run this off the loop's thread, one at a time."""

    token: int
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Store:
    """Run this on the node's disk thread, so that nothing else waits for the disk."""

    token: int
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Connect:
    """Reach this name at this address; an empty address: it is gone."""

    name: str
    address: str
    mutual: bool = False  # it calls us, too, under its own name


@dataclass(frozen=True, slots=True)
class Tell:
    """Publish this event of the run."""

    event: RunEvent


Effect = Send | Wake | Persist | Compute | Store | Connect | Tell


class Node(Protocol):
    """A state machine that a loop can run."""

    name: str

    def handle(self, now: int, event: Event) -> list[Effect]: ...
