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
from collections import Counter
from dataclasses import dataclass

from shoal.events import (
    Delayed,
    Evaluated,
    Linked,
    Progress,
    RunEvent,
    Saved,
    Started,
    Stopped,
)
from shoal.views import event_line, format
from shoal.views.live_state import LiveState
from shoal.views.members import Failover

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
    """Which lines to print, event by event."""

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
        outcome = [] if ended is None or not self._failovers.due(event.seconds) else [self._outcome(event, ended)]
        return [*self._lines_of(event), *outcome]

    def _lines_of(self, event: RunEvent) -> list[str]:
        match event:
            case Started():
                return [event_line.started(event)]
            case Progress():
                return [*self._tell_news(event.seconds), *self._tell_progress(event)]
            case Evaluated():
                return [*self._tell_news(event.seconds), *self._tell_evaluation(event)]
            case Stopped():
                return [*self.end(), self._stopped(event)]
            case _ if self._verbosity > 1 and isinstance(event, event_line.News | Saved | Delayed):
                return [event_line.line(event)]
            case Linked(why=""):  # as it begins
                return [f"{event_line.clock(event.seconds)}  {event_line.linked(event)}"]
            case _ if event_line.is_news(event):
                return self._tell_happening(event)
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
        """The last lines: everything that was held back."""
        told = [*self._tell_news(math.inf), *self._tell_best()]
        if self._held is not None:
            told.append(_evaluated(self._held))
            self._held = None
        return told

    def _outcome(self, event: RunEvent, ended: Failover) -> str:
        self._shown = max(self._shown, event.seconds)
        return f"{event_line.clock(self._shown)}  {ended.sentence()}"

    def _tell_progress(self, event: Progress) -> list[str]:
        self._spent.update(event.spent)
        if not self._progress.due(event.seconds):
            return []
        seconds, examples = self._counted
        elapsed, done = event.seconds - seconds, event.examples - examples
        self._counted = event.seconds, event.examples
        # less than before: a rollback
        rate = format.rate(done / elapsed if elapsed > 0 and done >= 0 else None)
        loss = format.loss(self._so_far.train_loss)
        self._shown = max(self._shown, event.seconds)
        where = f"  {event_line.shares(self._spent)}" if self._verbosity > 1 and self._spent else ""
        self._spent.clear()
        return [f"{_at(event)}  {rate}  train loss {loss}  {format.many(event.workers, 'worker')}{where}"]

    def _tell_evaluation(self, event: Evaluated) -> list[str]:
        first = len(self._so_far.evaluations) == 1
        if first or self._evaluations.due(event.seconds):
            self._held = None
            best = [] if event.best else self._tell_best()
            self._best = None
            self._shown = max(self._shown, event.seconds)
            return [*best, _evaluated(event)]
        if event.best:
            self._best = event
        self._held = event
        return []

    def _tell_best(self) -> list[str]:
        """Print the best evaluation, which is never dropped."""
        best, self._best = self._best, None
        if best is None or best is self._held:
            return []
        if best.seconds >= self._shown:
            self._shown = best.seconds
            return [_evaluated(best)]
        # keep times in order
        at = f"epoch {format.epochs(best.passes):<3}"
        when = f"(at {format.duration(best.seconds)})"
        return [f"{event_line.clock(self._shown)}  {at}  {event_line.evaluation(best)} {when}"]

    def _tell_happening(self, event: event_line.News) -> list[str]:
        if event.seconds - self._last_news > max(QUIET, self._happenings.wait):
            self._happenings = LinePacing(-math.inf)
        self._last_news = event.seconds
        self._news.append(event)
        return self._tell_news(event.seconds)

    def _tell_news(self, now: float) -> list[str]:
        if not self._news or not self._happenings.due(now):
            return []
        when, said = self._news[-1].seconds, event_line.summary(self._news)
        self._news.clear()
        if when < self._shown:  # it was held back: keep times in order
            return [f"{event_line.clock(self._shown)}  {said} (at {format.duration(when)})"]
        self._shown = when
        return [f"{event_line.clock(when)}  {said}"]

    def _stopped(self, event: Stopped) -> str:
        best = self._so_far.best
        so_good = (
            f"; best test loss {format.loss(best.test_loss)} at epoch {format.epochs(best.passes)}" if best else ""
        )
        return f"{event_line.clock(event.seconds)}  stopped: {format.clean(event.why)}{so_good}"


def _at(event: Progress | Evaluated) -> str:
    return f"{event_line.clock(event.seconds)}  epoch {format.epochs(event.passes):<3}"


def _evaluated(event: Evaluated) -> str:
    return f"{_at(event)}  {event_line.evaluation(event)}"
