"""What is sent again when segments have changed hands: the letters that it makes a difference to, in the order of before.

A letter is for all that one server held by the view of then. While that server holds the same, the letter and its answer are as good
as they were, whatever happened elsewhere; only the others are sent again, by the newest view:

    to one that is gone                         at once
    to one that keeps it back (``Held``)        at once: with its segments a server forgets who waits for them
    to any other whose segments have changed    when it refuses (``Moved``), or when it is due to be sent again; it may have been answered long ago

So many hand-overs one after the other do not begin everything anew each time, and what was begun first ends first. What was counted
before is sent again now and then, and the ledgers drop it. Nothing here sends: that is for ``Dispatch``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import takewhile

from shoal.store.flight import Flight, Letter
from shoal.store.operation import Operation
from shoal.store.split import Layout
from shoal.store.task import Task


class Anew:
    """The operations of which some is to be sent again."""

    def __init__(self) -> None:
        self.refresh: Task | None = None  # the newest view is asked for
        self._ops: list[Operation] = []

    def add(self, op: Operation) -> None:
        if not op.again:
            op.again = True
            self._ops.append(op)

    def seen(self) -> None:
        """A new view is here: nobody waits any longer for one that was asked for. Whoever needs a newer one is told so again."""
        if self.refresh is not None:
            self.refresh.finish()

    def join(self, queue: deque[Operation]) -> None:
        """They go before all that was not begun yet, and among themselves in the order in which they were begun."""
        if not self._ops:
            return
        begun = list(takewhile(lambda op: op.begun, queue))
        for _ in begun:
            queue.popleft()
        queue.extendleft(sorted([*begun, *self._ops], key=lambda op: op.begun, reverse=True))
        self._ops.clear()


def letters_of(op: Operation, flight: Flight) -> list[Letter]:
    return [flight.letters[request] for request in op.waiting if request in flight.letters]


def kept(op: Operation, layout: Layout) -> Sequence[str]:
    """The servers whose answers to this operation hold, those that they gave and those that they will give."""
    if op.layout is None or not op.may_keep:
        return ()
    return [server for server in layout.stayed(op.layout) if server not in op.refused]


def to_refuse(op: Operation, layout: Layout, alive: Collection[str], flight: Flight) -> list[str]:
    """A new view is here: the servers that are not waited for any longer. Letters to others may be outdated by it."""
    stays = kept(op, layout)
    found: list[str] = []
    for letter in letters_of(op, flight):
        if letter.to not in alive or (letter.to not in stays and (letter.held or not op.may_keep)):
            found.append(letter.to)
        elif letter.to not in stays:
            letter.old = True
    return found
