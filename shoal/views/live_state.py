"""What is known of a run so far: a fold over its events, in bounded memory, however long the run.

Nothing here reads the time or writes anything: the seconds are those of the events.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shoal.events import Evaluated, Progress, RunEvent, Started, Stopped
from shoal.views import event_line, format

EVALUATIONS = 6  # kept to be shown
HAPPENINGS = 32  # kept: many moves become one line
RECENT = 5.0  # seconds over which the rate is taken
POINTS = 256  # of a curve; past that, neighbours are merged


@dataclass(slots=True)
class Curve:
    """A curve that never grows past so many points: when it is full, every two neighbours become their mean."""

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
    return sum(x / len(points) for x, _ in points), sum(
        y / len(points) for _, y in points
    )  # divided first: no overflow


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
    train: Curve = field(default_factory=Curve)
    test: Curve = field(default_factory=Curve)
    _recent: deque[tuple[float, int]] = field(default_factory=lambda: deque([(0.0, 0)]))  # seconds, examples
    _progressed: bool = False

    def take(self, event: RunEvent) -> None:
        if format.finite(event.seconds):
            self.seconds = max(self.seconds, event.seconds)
        match event:
            case Started():
                self.started = event
                self.workers = event.workers
            case Progress():
                self._far(event)
                self.train_loss = event.train_loss if event.train_loss is not None else self.train_loss
                self._progressed = True
                self.train.add(event.seconds, event.train_loss)
            case Evaluated():
                self._far(event)
                self._judge(event)
            case Stopped():
                self.stopped = event
        if event_line.is_news(event):
            self.happenings.append(event)

    def _far(self, event: Progress | Evaluated) -> None:
        self.passes = event.passes
        self.workers = event.workers
        if event.examples < self._recent[-1][1]:  # a rollback: what was counted before is done again
            self._recent.clear()
        self._recent.append((event.seconds, event.examples))
        while len(self._recent) > 2 and self._recent[1][0] <= event.seconds - RECENT:
            self._recent.popleft()

    def _judge(self, event: Evaluated) -> None:
        self.evaluations.append(event)
        self.test.add(event.seconds, event.test_loss)
        if not self._progressed:  # nobody tells the loss in between
            self.train_loss = event.train_loss
            self.train.add(event.seconds, event.train_loss)
        if event.best and format.finite(event.test_loss):
            self.best = event

    @property
    def rate(self) -> float | None:
        """Rows a second, over the last seconds; over the whole run once it has ended."""
        first, last = self._recent[0], self._recent[-1]
        if self.stopped is not None and last[0] > 0:
            return last[1] / last[0]
        return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else None
