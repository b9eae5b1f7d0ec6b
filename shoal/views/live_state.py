"""The live state of a run: a fold over its events, in bounded memory.

Nothing here reads the time or writes anything: the seconds are those of the events.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shoal.events import Evaluated, Gone, Progress, RunEvent, Started, Stopped
from shoal.views import event_line, format
from shoal.views.event_line import DOING
from shoal.views.members import Failover, Failovers

if TYPE_CHECKING:
    from shoal.inspect.status import ClusterStatus

EVALUATIONS = 24  # kept for display
HAPPENINGS = 32  # kept: many moves become one line
RECENT = 5.0  # seconds over which the rate is taken
HOT = 1.5  # times the mean load: worth a mark
IDLE_LOAD = 100.0  # keys a second: below, no server is hot
POINTS = 256  # of a curve; past that, neighbours are merged


@dataclass(slots=True)
class Curve:
    """A curve of bounded size: when it is full, every two neighbours become their mean."""

    points: list[tuple[float, float]] = field(default_factory=list)
    _every: int = 1  # additions that make one point by now
    _open: list[tuple[float, float]] = field(default_factory=list)

    def add(self, x: float, y: float | None) -> None:
        if y is None or not format.finite(y) or not format.finite(x):
            return
        self._open.append((x, y))
        if len(self._open) < self._every:
            return
        self.points.append(_mean(self._open))
        self._open.clear()
        if len(self.points) == POINTS:
            self.points = [_mean(self.points[at : at + 2]) for at in range(0, POINTS, 2)]
            self._every *= 2


def _mean(points: list[tuple[float, float]]) -> tuple[float, float]:
    number = len(points)  # divided first: no overflow
    return sum(x / number for x, _ in points), sum(y / number for _, y in points)


def hot_servers(loads: Mapping[str, float]) -> set[str]:
    """The servers with a load (keys a second) far above the mean."""
    mean = sum(loads.values()) / len(loads) if loads else 0.0
    return {name for name, load in loads.items() if len(loads) > 1 and load > max(HOT * mean, IDLE_LOAD)}


@dataclass(frozen=True, slots=True)
class ServerFigures:
    name: str
    keys: float | None  # a second; None: it has not reported a load yet
    segments: int
    copies: int  # of segments that others serve
    state: str = ""  # suspected, leaving


@dataclass(slots=True)
class LiveState:
    """The run as it stands. ``None``: not known yet."""

    started: Started | None = None
    stopped: Stopped | None = None
    seconds: float = 0.0
    passes: float = 0.0
    train_loss: float | None = None
    workers: int | None = None
    best: Evaluated | None = None
    evaluations: deque[Evaluated] = field(default_factory=lambda: deque(maxlen=EVALUATIONS))
    happenings: deque[event_line.News] = field(default_factory=lambda: deque(maxlen=HAPPENINGS))
    failovers: Failovers = field(default_factory=Failovers)
    train: Curve = field(default_factory=Curve)
    test: Curve = field(default_factory=Curve)
    # by worker: shares of its time, of late
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    servers: list[ServerFigures] = field(default_factory=list)  # from the cluster's status
    bytes_per_second: float | None = None
    staleness: tuple[float, int] | None = None  # of pushes so far: mean, max
    rate: float | None = None  # rows a second over the last seconds; at the end, over the whole run
    # seconds, examples
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque([(0.0, 0)]))
    _moved: tuple[float, int] | None = None  # when, bytes
    _progressed: bool = False

    def take(self, event: RunEvent) -> Failover | None:
        """Take an event; returns the loss of a server that is settled by it, if any."""
        if format.finite(event.seconds):
            self.seconds = max(self.seconds, event.seconds)
        ended = self.failovers.take(event)
        match event:
            case Started():
                self.started = event
                self.workers = event.workers
            case Progress():
                self._measure(event)
                self.train_loss = event.train_loss if event.train_loss is not None else self.train_loss
                self._progressed = True
                self.train.add(event.seconds, event.train_loss)
            case Evaluated():
                # its weights may be older than the last progress
                if event.examples >= self._recent[-1][1]:
                    self._measure(event)
                self.evaluations.append(event)
                self.test.add(event.seconds, event.test_loss)
                if not self._progressed:  # the loss in between is not reported
                    self.train_loss = event.train_loss
                    self.train.add(event.seconds, event.train_loss)
                if event.best and format.finite(event.test_loss):
                    self.best = event
                for name, spent in event.each.items():
                    did = {kind: value for kind in DOING if (value := spent.get(kind, 0.0)) > 0}
                    if whole := sum(did.values()):
                        self.spent[name] = {kind: value / whole for kind, value in did.items()}
            case Gone():
                self.spent.pop(event.name, None)
                self.servers = [one for one in self.servers if one.name != event.name]
            case Stopped():
                self.stopped = event
                seconds, examples = self._recent[-1]
                self.rate = examples / seconds if seconds > 0 else self.rate
        if event_line.is_news(event):
            self.happenings.append(event)
        return ended

    def look(self, now: float, status: ClusterStatus) -> None:
        """Take the cluster's status: events do not have the load of servers."""
        segments, reported = status.segments(), {one.name for one in self.servers if one.keys is not None}
        self.servers = [
            ServerFigures(
                one.name,
                one.load if one.load or one.name in reported else None,
                sum(part.copies[0].server == one.name for part in segments if part.copies),
                sum(any(copy.server == one.name for copy in part.copies[1:]) for part in segments),
                "suspected" if one.suspected else "leaving" if one.leaving else "",
            )
            for one in status.standing.members
            if one.role == "server"
        ]
        if (course := status.standing.course) is not None:
            moved = course.sent + course.received
            if self._moved is not None and now > self._moved[0]:
                self.bytes_per_second = max(0.0, (moved - self._moved[1]) / (now - self._moved[0]))
            self._moved = now, moved
        counts: Counter[int] = Counter()
        for reply in status.told.values():
            counts.update(dict(enumerate(reply.staleness)))
        if pushes := counts.total():
            mean = sum(age * number for age, number in counts.items()) / pushes
            self.staleness = mean, max(age for age, number in counts.items() if number)

    def left(self, epochs: float | None) -> float | None:
        if epochs is None or not format.finite(epochs) or not self.passes > 0 or self.stopped is not None:
            return None
        return max(0.0, self.seconds * (epochs - self.passes) / self.passes)

    def _measure(self, event: Progress | Evaluated) -> None:
        self.passes = event.passes
        self.workers = event.workers
        # a rollback: some slots are computed again
        if event.examples < self._recent[-1][1]:
            self._recent.clear()
        self._recent.append((event.seconds, event.examples))
        while len(self._recent) > 2 and self._recent[1][0] <= event.seconds - RECENT:
            self._recent.popleft()
        first, last = self._recent[0], self._recent[-1]
        if last[0] > first[0]:
            self.rate = (last[1] - first[1]) / (last[0] - first[0])
