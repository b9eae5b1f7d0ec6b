"""A run in few lines, for a log: tens per hour, however much happens.

Verbosity 0 prints nothing, 1 is as below, 2 adds joins, checkpoints, delays and the shares of the
workers' time, 3 prints every event.

    progress            after 1 s, then 2, 4, 8, ... s after the last line, later every 10 minutes
    evaluations         the first; then at the same pace, with the best; the last at the end
    joined, gone, ...   at once; if they continue, at the same pace, summed up
    a lost server       the recovery of its segments, once all copies are back
    notes               a new subject at once, the same one with other figures at the same pace

Times are those of the events (for notes, the caller's): the same events make the same lines.
"""

from __future__ import annotations

import math
import re
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TextIO

from shoal.background import OutputThread
from shoal.events import Delayed, Evaluated, Linked, Progress, RunEvent, Saved, Started, Stopped
from shoal.limits import HEAR_WITHIN, SECOND
from shoal.views import event_line, format
from shoal.views.live_state import LiveState

FIRST = 1.0  # seconds
LONGEST = 600.0
QUIET = 120.0  # after so long without one, an event is printed at once again


@dataclass(slots=True)
class LinePacing:
    """When the next line may come: the wait doubles with each."""

    last: float = 0.0
    wait: float = FIRST

    def due(self, now: float) -> bool:
        if now - self.last < self.wait:
            return False
        self.last = now
        self.wait = min(self.wait * 2, LONGEST)
        return True


class EventLines:
    def __init__(self, verbosity: int = 1) -> None:
        self._verbosity = verbosity
        self._so_far = LiveState()
        self._progress = LinePacing()
        self._evaluations = LinePacing()
        self._happenings = LinePacing(-math.inf)
        self._notes = LinePacing()
        self._counted = (0.0, 0)  # seconds and examples at the last rate
        self._held: Evaluated | None = None  # evaluated, not printed yet
        self._best: Evaluated | None = None  # the best so far, not printed yet
        self._failovers = LinePacing(-math.inf)
        self._news: list[event_line.News] = []  # news, not printed yet
        self._last_news = -math.inf
        self._shown = 0.0  # the latest time of a line
        self._subject = ""
        self._spent: Counter[str] = Counter()  # by the workers, not printed yet

    def take(self, event: RunEvent) -> list[str]:
        ended = self._so_far.take(event)
        if self._verbosity < 1:
            return []
        if self._verbosity > 2 and not isinstance(event, Stopped):
            return [event_line.line(event)]
        lines = self._lines_of(event)
        if ended is not None and self._failovers.due(event.seconds):
            lines.append(self._line(event.seconds, ended.sentence()))
        return lines

    def _line(self, seconds: float, text: str) -> str:
        """A line at this time; one that was held back has the last time: times stay in order."""
        if seconds < self._shown:
            return f"{event_line.clock(self._shown)}  {text} (at {format.duration(seconds)})"
        self._shown = max(self._shown, seconds)
        return f"{event_line.clock(seconds)}  {text}"

    def _lines_of(self, event: RunEvent) -> list[str]:
        match event:
            case Started():
                return [event_line.started(event)]
            case Progress():
                return [*self._tell_news(event.seconds), *self._tell_progress(event)]
            case Evaluated():
                return [*self._tell_news(event.seconds), *self._tell_evaluation(event)]
            case Stopped():
                best = self._so_far.best
                so_good = f"; {event_line.best(best)}" if best else ""
                why = f"stopped: {format.clean(event.why)}{so_good}"
                return [*self.end(), f"{event_line.clock(event.seconds)}  {why}"]
            case _ if self._verbosity > 1 and isinstance(event, event_line.News | Saved | Delayed):
                return [event_line.line(event)]
            case Linked(why=""):  # as it begins
                return [f"{event_line.clock(event.seconds)}  {event_line.linked(event)}"]
            case _ if event_line.is_news(event):
                if event.seconds - self._last_news > max(QUIET, self._happenings.wait):
                    self._happenings = LinePacing(-math.inf)
                self._last_news = event.seconds
                self._news.append(event)
                return self._tell_news(event.seconds)
            case _:  # routine, such as a checkpoint
                return []

    def note(self, now: float, text: str) -> list[str]:
        if self._verbosity < 1:
            return []
        text = format.clean(text)
        subject = re.sub(r"\d[\d,.]*", "#", text)
        if subject != self._subject:
            self._subject = subject
            self._notes = LinePacing(now)
            return [text]
        return [text] if self._notes.due(now) else []

    def end(self) -> list[str]:
        lines = [*self._tell_news(math.inf), *self._tell_best()]
        lines += [] if self._held is None else [self._evaluated(self._held)]
        self._held = None
        return lines

    def _tell_progress(self, event: Progress) -> list[str]:
        self._spent.update(event.spent)
        if not self._progress.due(event.seconds):
            return []
        seconds, examples = self._counted
        elapsed, done = event.seconds - seconds, event.examples - examples
        self._counted = event.seconds, event.examples
        parts = [f"epoch {format.epochs(event.passes):<3}"]
        if elapsed > 0 and done >= 0 and event.examples:  # less than before: a rollback
            parts.append(format.rate(done / elapsed))
        if self._so_far.train_loss is not None:
            parts.append(f"train loss {format.loss(self._so_far.train_loss)}")
        parts.append(format.many(event.workers, "worker"))
        if self._verbosity > 1 and self._spent:
            parts.append(event_line.shares(self._spent))
        self._spent.clear()
        return [self._line(event.seconds, "  ".join(parts))]

    def _tell_evaluation(self, event: Evaluated) -> list[str]:
        first = len(self._so_far.evaluations) == 1
        if first or self._evaluations.due(event.seconds):
            best = [] if event.best else self._tell_best()
            self._held = self._best = None
            return [*best, self._evaluated(event)]
        self._best = event if event.best else self._best
        self._held = event
        return []

    def _evaluated(self, event: Evaluated) -> str:
        return self._line(event.seconds, f"epoch {format.epochs(event.passes):<3}  {event_line.evaluation(event)}")

    def _tell_best(self) -> list[str]:
        """Print the best evaluation, which is never dropped."""
        best, self._best = self._best, None
        return [] if best is None or best is self._held else [self._evaluated(best)]

    def _tell_news(self, now: float) -> list[str]:
        if not self._news or not self._happenings.due(now):
            return []
        when, said = self._news[-1].seconds, event_line.summary(self._news)
        self._news.clear()
        return [self._line(when, said)]


class RunView(ABC):
    """Shows a run: call it with every event; ``note`` is for before and after training."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def __call__(self, event: RunEvent) -> None: ...

    @abstractmethod
    def note(self, text: str) -> None: ...

    def follow(self, run: object) -> None:  # noqa: B027
        """Query the run's status regularly, if the view shows it."""

    @abstractmethod
    def close(self) -> None:
        """Draw a last time and restore the terminal; does nothing if called again."""


class LineView(RunView):
    """Prints lines, each in one write."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic, verbosity: int = 1) -> None:
        self._outlet, self._clock = OutputThread(stream), clock
        self._lines = EventLines(verbosity)
        self._lock = threading.RLock()
        self._closed = False

    def __call__(self, event: RunEvent) -> None:
        with self._lock:
            self.write(self._lines.take(event))

    def note(self, text: str) -> None:
        with self._lock:
            self.write(self._lines.note(self._clock(), text))

    def close(self) -> None:
        with self._lock:
            self.write(self._lines.end())
            if not self._closed:
                self._closed = True
                self._outlet.close(HEAR_WITHIN / SECOND)

    def write(self, lines: list[str]) -> None:
        with self._lock:
            if lines and not self._closed:
                self._outlet.write("".join(f"{line}\n" for line in lines))
                self._closed = self._outlet.gone
