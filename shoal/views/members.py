"""The history of members: who joined, left and was lost, and how the loss of a server ended.

Folds over events. A strategy may report joins late or never: then the run's own numbers of nodes
count from the start, and joins before training are theirs, unless the number in a name is higher.
A resumed run starts with other nodes, and nothing is counted until it continues. Nodes that leave
because the run is over stayed to the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.events import Evaluated, Gone, Joined, Progress, Resumed, RolledBack, RunEvent, Shared, Started, Stopped
from shoal.views import event_line, format

ROLES = ("server", "worker")
Move = Joined | Gone  # once training has begun


@dataclass(slots=True)
class Membership:
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
    _asked: dict[str, int] = field(default_factory=dict)  # by role, when it began
    _unnamed: dict[str, int] = field(default_factory=dict)  # present, but never reported
    _between: dict[str, tuple[int, int]] = field(default_factory=dict)
    _counts: bool = False
    _training: bool = False  # a node has computed, or was lost, since the start or resume
    _begun: float = 0.0  # when that was
    _left: list[Gone] = field(default_factory=list)  # last events: perhaps the run is over

    def take(self, event: RunEvent) -> None:
        match event:
            case Started():
                self._asked = {"server": event.servers, "worker": event.workers}
                self._unnamed = {role: 0 if self._number(role) else asked for role, asked in self._asked.items()}
                self._counts, self._training, self._begun = True, False, event.seconds
            case Progress():
                self._counts = self._training = True
            case Evaluated():
                self._training = self._training or event.examples > 0
                return
            case Joined() if event.name not in self._here:
                since = event.seconds
                if self._is_initial(event):
                    self._unnamed[role_of(event)] -= 1
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
                at_the_end = [one for one in self._left if is_over(one, event)]
                for stay in self.stays:
                    if stay.how == "left" and any((o.name, o.seconds) == (stay.name, stay.until) for o in at_the_end):
                        stay.until, stay.how = math.inf, ""
                if len(at_the_end) < len(self._left):
                    self._count(at_the_end)
                self._left.clear()
                return
            case Resumed():
                for stay in self._here.values():
                    stay.until = event.seconds
                self._here, self._unnamed, self._counts = {}, {}, False
            case _:
                return
        self._left.clear()
        self._count()

    def _is_initial(self, event: Joined) -> bool:
        """Whether it is one of the nodes that the run began with, reported late."""
        role = role_of(event)
        number = event.name.removeprefix(f"{role}-")  # a run numbers its own nodes from 0
        is_new = number.isdecimal() and int(number) >= self._asked.get(role, 0)
        return self._unnamed.get(role, 0) > 0 and not is_new and not (event.seconds and self._training)

    def _count(self, also: Sequence[Gone] = ()) -> None:
        for role in ROLES if self._counts else ():
            number = self._number(role) + sum(role_of(event) == role for event in also)
            least, most = self._between.get(role, (number, number))
            self._between[role] = min(least, number), max(most, number)

    def _end(self, event: Gone) -> None:
        stay, role = self._here.pop(event.name, None), role_of(event)
        if stay is None:
            if not self._unnamed.get(role):
                return
            self._unnamed[role] -= 1
            stay = Membership(event.name, role, 0.0)
            self.stays.append(stay)
        stay.until, stay.how = event.seconds, kind(event)

    def _number(self, role: str) -> int:
        return sum(stay.role == role for stay in self._here.values()) + self._unnamed.get(role, 0)

    def between(self, role: str) -> tuple[int, int]:
        if self._left:
            self._count()
        return self._between.get(role, (0, 0))

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
    return isinstance(event, Gone) and event.seconds >= stopped.seconds and event_line.left_in_order(event)


def moves_of(events: Sequence[object]) -> list[Move]:
    """The joins and leaves, without the initial members."""
    return [event for event in events if isinstance(event, Joined | Gone) and event.seconds > 0]


@dataclass(slots=True)
class Failover:
    gone: Gone
    served: int  # segments that it answered for
    replicas: int  # of all segments, before
    heirs: list[str] = field(default_factory=list)  # successors
    rolled_back: bool = False
    restarted: float | None = None  # when it joined again
    whole: float | None = None  # seconds until all segments had their copies again

    @property
    def over(self) -> bool:
        return self.whole is not None or self.rolled_back

    def sentence(self) -> str:
        name, why = format.clean(self.gone.name), format.clean(self.gone.why)
        parts = [f"{name} killed" if "killed by signal" in why else f"{name} gone: {why or 'no reason given'}"]
        if self.heirs:
            owned = format.many(self.served, "segment") if self.served else "copies"
            kept = "" if self.rolled_back else ", nothing lost"
            every = sorted(map(format.clean, self.heirs))
            heirs = format.listed(every) if len(every) <= event_line.NAMED else event_line.names(every)
            parts.append(f"{heirs} took over its {owned}{kept}")
        if self.rolled_back:
            parts.append("the run rolled back to a checkpoint")
        again = [] if self.restarted is None else ["restarted"]
        again += [] if self.whole is None else [f"copies back after {format.elapsed(self.whole)}"]
        return "; ".join([*parts, *([", ".join(again)] if again else [])])


@dataclass(slots=True)
class Failovers:
    """Every loss of a server, in order; ``Shared`` says who took its segments over."""

    found: list[Failover] = field(default_factory=list)
    _shared: Shared | None = None

    def take(self, event: RunEvent) -> Failover | None:
        """Take an event; returns the loss that is settled by it, if any."""
        ended, before = None, self._shared
        open_ones = [one for one in self.found if not one.over]
        match event:
            case Gone(role="server") if before is not None and not event_line.left_in_order(event):
                self.found.append(Failover(event, before.serves.get(event.name, 0), _replicas(before)))
            case Joined(role="server"):
                for one in open_ones:
                    if one.gone.name == event.name and one.restarted is None:
                        one.restarted = event.seconds
            case RolledBack():
                for one in open_ones:
                    one.rolled_back, ended = True, one
            case Shared():
                held = {} if before is None else before.serves
                for one in open_ones:
                    if not one.heirs and one.gone.name not in event.serves:
                        one.heirs = [name for name, number in event.serves.items() if number > held.get(name, 0)]
                    if one.heirs and _replicas(event) >= one.replicas:
                        one.whole, ended = event.seconds - one.gone.seconds, one
                self._shared = event
            case Stopped():
                self.found = [one for one in self.found if one.gone.seconds < event.seconds]
        return ended

    def of(self, event: object) -> Failover | None:
        """The failover of this loss, if it had segments."""
        return next((one for one in self.found if one.gone is event and (one.heirs or one.over)), None)

    def restarted(self, event: Joined) -> bool:
        """Whether it came back from a settled loss."""
        return any((one.gone.name, one.restarted) == (event.name, event.seconds) and one.heirs for one in self.found)


def _replicas(shared: Shared) -> int:
    return sum(shared.serves.values()) + sum(shared.copies.values())
