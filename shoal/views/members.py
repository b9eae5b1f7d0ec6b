"""The history of members: a fold over joins, leaves and losses.

A strategy may report joins late or never: then the run's own numbers of nodes count from the start,
and joins before training are theirs. A resumed run starts with other nodes, and nothing is counted
until it continues. Nodes that leave because the run is over stayed to the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from shoal.events import Evaluated, Gone, Joined, Progress, Resumed, RunEvent, Started, Stopped
from shoal.views import event_line, format

ROLES = ("server", "worker")
Move = Joined | Gone  # once training has begun


@dataclass(slots=True)
class Membership:
    """One stay of a node, and how it ended."""

    name: str
    role: str
    since: float
    until: float = math.inf
    how: str = ""  # left or lost; empty: it stayed to the end


@dataclass(slots=True)
class MembershipHistory:
    """All stays, and the lowest and highest number of nodes of each role."""

    stays: list[Membership] = field(default_factory=list)
    _here: dict[str, Membership] = field(default_factory=dict)
    _unnamed: dict[str, int] = field(default_factory=dict)  # present, but never reported
    _least: dict[str, int] = field(default_factory=dict)
    _most: dict[str, int] = field(default_factory=dict)
    _counts: bool = False
    _training: bool = False  # a node has computed, or was lost, since the start or resume
    _begun: float = 0.0  # when that was
    _left: list[Gone] = field(default_factory=list)  # last events: perhaps the run is over

    def take(self, event: RunEvent) -> None:
        match event:
            case Started():
                asked = {"server": event.servers, "worker": event.workers}
                self._unnamed = {role: 0 if self._number(role) else asked[role] for role in ROLES}
                self._counts, self._training, self._begun = True, False, event.seconds
            case Progress():
                self._counts = self._training = True
            case Evaluated():
                self._training = self._training or event.examples > 0
                return
            case Joined() if event.name not in self._here:
                since = event.seconds
                if self._unnamed.get(role_of(event)) and not (since and self._training):
                    self._unnamed[role_of(event)] -= 1  # it was present from the start
                    since = self._begun
                self._here[event.name] = Membership(event.name, role_of(event), since)
                self.stays.append(self._here[event.name])
            case Gone():
                self._training = True
                self._end(event)
                if event_line.left_in_order(event):
                    self._left.append(event)
                    return
            case Stopped():
                self._stop(event)
                return
            case Resumed():
                for stay in self._here.values():
                    stay.until = event.seconds
                self._here, self._unnamed, self._counts = {}, {}, False
            case _:
                return
        self._left.clear()
        self._count()

    def _count(self, also: Sequence[Gone] = ()) -> None:
        """Update the lowest and highest numbers."""
        for role in ROLES if self._counts else ():
            number = self._number(role) + sum(role_of(event) == role for event in also)
            self._least[role] = min(self._least.get(role, number), number)
            self._most[role] = max(self._most.get(role, number), number)

    def _stop(self, event: Stopped) -> None:
        at_the_end = [one for one in self._left if is_over(one, event)]
        for stay in self.stays:
            if stay.how == "left" and any((one.name, one.seconds) == (stay.name, stay.until) for one in at_the_end):
                stay.until, stay.how = math.inf, ""
        if len(at_the_end) < len(self._left):
            self._count(at_the_end)
        self._left.clear()

    def _end(self, event: Gone) -> None:
        stay = self._here.pop(event.name, None)
        if stay is None:
            if not self._unnamed.get(role_of(event), 0):
                return
            self._unnamed[role_of(event)] -= 1
            stay = Membership(event.name, role_of(event), 0.0)
            self.stays.append(stay)
        stay.until, stay.how = event.seconds, kind(event)

    def as_it_was(self, event: Joined) -> Joined:
        """The last join, with the time from which the node counts."""
        return replace(event, seconds=self.stays[-1].since) if self.stays[-1].name == event.name else event

    def _number(self, role: str) -> int:
        return sum(stay.role == role for stay in self._here.values()) + self._unnamed.get(role, 0)

    def between(self, role: str) -> tuple[int, int]:
        """The lowest and highest number of nodes."""
        if self._left:
            self._count()
        return self._least.get(role, 0), self._most.get(role, 0)

    def crew(self) -> str:
        """For a headline: 2 to 4 workers x 2 to 3 servers."""
        workers, servers = (format.from_to(*self.between(role), role) for role in ("worker", "server"))
        return f"{workers} x {servers}" if self.between("server")[1] else workers


def role_of(event: Joined | Gone) -> str:
    """Server or worker: all other roles are workers."""
    return "server" if event.role == "server" else "worker"


def kind(event: Move) -> str:
    if isinstance(event, Joined):
        return "joined"
    return "left" if event_line.left_in_order(event) else "lost"


def is_over(event: object, stopped: Stopped) -> bool:
    """Whether a node left in order after the end of the run."""
    return isinstance(event, Gone) and event.seconds >= stopped.seconds and event_line.left_in_order(event)


def moves_of(events: Sequence[object]) -> list[Move]:
    """The joins and leaves, without the initial members."""
    return [event for event in events if isinstance(event, Joined | Gone) and event.seconds > 0]
