"""Watches a running cluster: the page of ``views.status``, with speed, moves and news.

A fold over replies of the cluster: nothing here queries, reads the time or prints. Without a
terminal, it makes a line for each event, and a summary now and then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal import limits
from shoal.events import Evaluated, RunEvent
from shoal.inspect.status import ClusterStatus
from shoal.views import event_line, format
from shoal.views.board import first_of, fit, lines_of
from shoal.views.event_line import MoveSummary, together
from shoal.views.lines import EventLines
from shoal.views.status import page
from shoal.wire.messages import Move

if TYPE_CHECKING:
    from rich.text import Text

EVERY = 5.0  # seconds between two summaries
SHOWN = 8  # events on a page
MOVES = 6  # moves on a page
_VERBOSITY = 2  # joins, leaves and checkpoints


class WatchedState:
    """The state of a watched cluster so far."""

    def __init__(self, where: str, numbers: bool = False) -> None:
        self._where, self._numbers = where, numbers
        self._lines = EventLines(_VERBOSITY)
        self._last: deque[str] = deque(maxlen=SHOWN)
        self._status: ClusterStatus | None = None
        self._loss: float | None = None
        self._rate: float | None = None
        self._looked = 0.0
        self._told = -EVERY

    def take(self, now: float, status: ClusterStatus, events: Sequence[RunEvent]) -> list[str]:
        """Take one reply; returns its lines."""
        news = [line for group in together(events) for line in self._said(group)]
        for event in events:
            self._loss = event.test_loss if isinstance(event, Evaluated) else self._loss
        if status.standing.course is None and self._status is not None:
            news += self._came_and_went(self._status, status)
        self._measure(now, status)
        self._status, self._looked = status, now
        self._last.extend(news)
        if now - self._told >= EVERY:
            self._told = now
            return [*news, self.summary()]
        return news

    def summary(self) -> str:
        """A summary in one line."""
        assert self._status is not None
        standing, said = self._status.standing, list[str]()
        for role in ("server", "worker"):
            here = [one for one in standing.members if one.role == role]
            leaving = sum(one.leaving for one in here)
            said.append(format.many(len(here), role) + (f" ({leaving} leaving)" if leaving else ""))
        if (course := standing.course) is not None:
            said.insert(0, f"epoch {format.epochs(course.done / course.per_pass)}")
        if self._rate is not None:
            said.append(f"{self._rate:,.0f} rows/s")
        if self._loss is not None:
            said.append(f"test loss {self._loss:.4f}")
        if standing.moves:
            said.append(f"{format.many(len(standing.moves), 'segment')} on the way")
        return ", ".join(said)

    def page(self, width: int, height: int = 0) -> list[Text]:
        """A page of so many lines (0: any number), the newest at the bottom.

        What does not fit is counted.
        """
        from rich.text import Text

        assert self._status is not None
        top = lines_of(page(self._status, self._where, width, brief=True, numbers=self._numbers), width)
        ways = [Text(f"  {line}", "yellow") for line in _ways(self._status.standing.moves)]
        below = [
            Text(""),
            Text(self.summary(), "bold"),
            *first_of(ways, MOVES if height == 0 else max(1, height // 6), "ways"),
        ]
        news = [Text(line, "dim") for line in list(self._last)]
        if height:
            room = max(1, height - 1 - len(below) - len(top))
            news = news[-max(room, 1 + height // 8) :]
            top = first_of(top, max(1, height - 1 - len(below) - len(news)), "lines")
        return fit([*top, *below, *news], width + 1, height or len(top) + len(below) + len(news) + 1, False)

    def _said(self, group: RunEvent | MoveSummary) -> list[str]:
        """The lines of events; many moves make one line."""
        if isinstance(group, MoveSummary):
            return [f"{event_line.clock(group.until)}  {event_line.news(group)}"]
        return self._lines.take(group)

    def _measure(self, now: float, status: ClusterStatus) -> None:
        """Rows a second: of the run, or of all requests to the servers."""
        course, before = status.standing.course, self._status
        if course is None:
            load = sum(one.load for one in status.standing.members)
            self._rate = load or None
        elif before is not None and before.standing.course is not None and now > self._looked:
            rows = course.examples - before.standing.course.examples
            self._rate = max(0.0, rows / (now - self._looked))

    def _came_and_went(self, before: ClusterStatus, after: ClusterStatus) -> list[str]:
        """Joins and leaves of a store, which has no events."""
        was = {one.incarnation: one for one in before.standing.members}
        now = {one.incarnation: one for one in after.standing.members}
        news = [f"{format.clean(one.name)} joined" for life, one in now.items() if life not in was]
        for life, one in was.items():
            if life not in now:
                why = format.clean(after.standing.lost.get(one.name, ""))
                news.append(f"{format.clean(one.name)} is gone{f': {why}' if why else ''}")
        news += [
            f"{format.clean(one.name)} is leaving"
            for life, one in now.items()
            if one.leaving and life in was and not was[life].leaving
        ]
        return news


def _ways(moves: Sequence[Move]) -> list[str]:
    """Moves in progress, a line for each pair of servers."""
    ways: dict[tuple[str, str, str, str], list[Move]] = {}
    for one in moves:
        ways.setdefault((one.table, one.source, one.target, one.why), []).append(one)
    found = []
    for (table, source, target, why), those in ways.items():
        parts = f"segment {those[0].segment:,}" if len(those) == 1 else format.many(len(those), "segment")
        since = format.duration(max(one.since for one in those) / limits.SECOND)
        way = f"{format.clean(source)} -> {format.clean(target)}"
        found.append(f"{parts} of {format.clean(table)} on the way: {way} ({event_line.reason(why)}), for {since}")
    return found
