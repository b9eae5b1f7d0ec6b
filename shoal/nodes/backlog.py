"""What waits while a server computes: in the order in which it came, except that nothing goes before levelling.

A segment that changes hands is served by nobody until its new primary is level with the others, and that takes a few
questions and answers between servers. If each of them stood behind the pushes and copies that are waiting there, the segment would stand still
for as many times as long as those take; and the busier the servers, the longer. So they go first: they are few, and most of them are answered without
computing anything. The order in which the two kinds are taken does not matter to either, since on the wire they may overtake each other, too.

Never more than ``limits.BACKLOG`` of a kind: what finds no room is sent again by whoever asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from shoal import limits
from shoal.wire import messages as m
from shoal.wire.effects import Received

Levelling = m.Level | m.Levels | m.Adopt | m.Adopted


class Backlog:
    """One server's."""

    def __init__(self) -> None:
        self._first: deque[Received] = deque()
        self._others: deque[Received] = deque()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    def __contains__(self, event: Received) -> bool:
        return event in self._line(event)

    def add(self, event: Received) -> bool:
        """False if there is no room."""
        line = self._line(event)
        if len(line) >= limits.BACKLOG:
            return False
        line.append(event)
        return True

    def put_back(self, events: Iterable[Received]) -> None:
        """What was looked at too early goes before all others of its kind."""
        for event in reversed(list(events)):
            self._line(event).appendleft(event)

    def next(self) -> Received:
        """The one whose turn it is; there must be one."""
        return (self._first or self._others).popleft()

    def clear(self) -> None:
        self._first.clear()
        self._others.clear()

    def _line(self, event: Received) -> deque[Received]:
        return self._first if isinstance(event.message, Levelling) else self._others
