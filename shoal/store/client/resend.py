"""What is sent again when segments have changed hands: the letters that it makes a difference to, in the order of before.

A letter is for all that one server held by the view of then. While that server holds the same, the letter and its answer are as good
as they were, whatever happened elsewhere; and what was answered before the segments went holds in any case. Only what is left is asked
again, of those who hold it by the newest view:

    to one that is gone                         at once
    to one that keeps it back (``Held``)        at once: with its segments a server forgets who waits for them
    to any other whose segments have changed    when it refuses (``Moved``), or when it is due to be sent again; it may have been answered long ago

So many hand-overs one after the other do not begin everything anew each time, and what was begun first ends first. What was counted
before is sent again now and then, and the ledgers drop it. Nothing here sends: that is for ``Dispatch``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from shoal.store.client.inflight import Inflight, InflightRequest
from shoal.store.client.operation import Operation
from shoal.store.client.split import Layout
from shoal.store.client.task import Task


class Resend:
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
        begun: list[Operation] = []
        while queue and queue[0].begun:  # never by iterating: other threads append to it
            begun.append(queue.popleft())
        queue.extendleft(sorted([*begun, *self._ops], key=lambda op: op.begun, reverse=True))
        self._ops.clear()


def letters_of(op: Operation, flight: Inflight) -> list[InflightRequest]:
    return [flight.letters[request] for request in op.waiting if request in flight.letters]


def refused(op: Operation, layout: Layout, alive: Collection[str], flight: Inflight) -> list[str]:
    """A new view is here: the servers that are not waited for any longer. Letters to others may be outdated by it."""
    found: list[str] = []
    for letter in letters_of(op, flight):
        then = op.split_by.get(letter.to)
        if letter.to not in alive or not op.may_keep or then is None:
            found.append(letter.to)
        elif then is not layout and letter.to not in layout.since_then(then).stayed:
            if letter.held:
                found.append(letter.to)
            letter.old = True
    return found


def asked_anew(op: Operation, layout: Layout, flight: Inflight) -> list[str] | None:
    """The servers to be asked, so that whatever the refused ones were asked is asked of those who hold it now. None: all.

    A letter is for everything that a server holds. So one that inherits something is asked for all it has; what it was asked before,
    and has not answered, is given up, and with that somebody else may have to be asked, too.
    """
    if not op.may_keep or not all(layout.since_then(then).same for then in op.split_by.values()):
        return None
    waits = [letter.to for letter in letters_of(op, flight)]
    found: list[str] = []
    left = list(dict.fromkeys(op.refused))
    while left:
        server = left.pop()
        before = op.split_by.pop(server, None)
        for heir in () if before is None else layout.since_then(before).heirs[server]:
            then = op.split_by.get(heir)
            if heir in found or (then is not None and heir in layout.since_then(then).stayed):
                continue  # it was asked for this, too
            found.append(heir)
            if heir in waits:
                left.append(heir)
    return found
