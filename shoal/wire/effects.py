"""What a state machine sees, and what it asks for.

Protocol code never touches a socket, a file, a clock or a thread. It has one method, ``handle(now, event) -> effects``,
and whoever holds it (``nodes.loop`` for real, ``simulation.world`` in one seeded thread) carries the effects out.
Time is integer nanoseconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.events import RunEvent
from shoal.wire.messages import Arrays, Message


@dataclass(frozen=True, slots=True)
class Received:
    """A message came."""

    sender: str
    message: Message
    arrays: Arrays = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """The time asked for with Wake has come, or there is something new to do."""


@dataclass(frozen=True, slots=True)
class Durable:
    """What was to be persisted is on disk; or it is not, and here is why."""

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
    """What was to be done on the disk thread is done, or failed with an error."""

    token: int
    result: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The launcher saw a process end. An event, not a message: nobody can say this over the wire."""

    name: str
    reason: str
    token: str = ""  # of the life that ended; empty: whoever has the name


@dataclass(frozen=True, slots=True)
class Dismiss:
    """The launcher ends it all: nobody is needed any more. No message either."""

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
    """Send me a Tick at this time, instead of any that I asked for before."""

    at: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Append this to my journal, and tell me when it would survive a crash."""

    token: int
    record: bytes


@dataclass(frozen=True, slots=True)
class Compute:
    """Run this off the loop's thread, one at a time."""

    token: int
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Store:
    """Run this on the node's disk thread, one at a time: neither the loop nor computations wait for a disk."""

    token: int
    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Connect:
    """From now on this name is reached at this address; an empty address means it is gone."""

    name: str
    address: str
    mutual: bool = False  # it calls us, too, under its own name


@dataclass(frozen=True, slots=True)
class Tell:
    """This happened: for whoever looks at the run."""

    event: RunEvent


Effect = Send | Wake | Persist | Compute | Store | Connect | Tell


class Node(Protocol):
    """What a loop can hold."""

    name: str

    def handle(self, now: int, event: Event) -> list[Effect]: ...
