"""What filters lost of a push stays here, and is added to a later one: nothing that was pushed is forgotten, it only comes later.

Before a push is filtered, what is left under its keys is taken out and added to it; what does not fit what is sent then is left anew, once
it is known that the push was counted. Three rules keep the sum right, however often something is sent:

    counted by this very push            what it left enters
    counted before, own numbers          it was ours: what it left enters
    counted before, a slot sent once     another worker's push of the slot was: what was taken out goes back
    counted before, a slot sent twice    nobody can say whose it was: neither, and the size of it is added to ``lost``
    failed for good                      what was taken out goes back

Sums are of float32, so all this holds up to their rounding. A network that brought a message twice, and the answers in the wrong order,
would make a slot of ours seem another's, and what it left would be missing; TCP and Unix sockets do not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shoal.filters import nonzero, taken
from shoal.keys import KeyRange, Keys, KeyValues, Values
from shoal.store.client.split import Layout, ServerShare
from shoal.store.table.table import ServerTable
from shoal.tables import Dense, Sparse, Update
from shoal.tables import Table as Spec


class ErrorFeedback:
    """What is left of one table's pushes, at one client."""

    def __init__(self, spec: Spec) -> None:
        width = spec.push_width
        own: Spec = (
            Dense(rows=spec.rows, width=width, update=Update("sum"))
            if isinstance(spec, Dense)
            else Sparse(keys=spec.keys, hashed=spec.hashed, width=width, update=Update("sum"))
        )
        self._spec = own
        self._table = ServerTable(own, [KeyRange(0, own.span)])
        self._squares = 0.0
        self._lost = 0.0

    @property
    def norm(self) -> float:
        """The size of all that is left."""
        return math.sqrt(max(0.0, self._squares))

    @property
    def lost(self) -> float:
        """The sizes of what could be counted for nobody, added up: what is missing is no more than that."""
        return self._lost

    def take(self, keys: Keys | KeyRange) -> Values:
        """What is left under these keys, and no longer is."""
        found = self._table.pull(keys)
        self._add(keys, -found, found)
        return found

    def put(self, keys: Keys | KeyRange, values: Values) -> None:
        self._add(keys, values, self._table.pull(keys))

    def give_up(self, values: Values) -> None:
        self._lost += math.sqrt(_squares(values))

    def take_all(self) -> KeyValues:
        """Everything that is left; nothing is, then."""
        span = KeyRange(0, self._spec.span)
        if isinstance(self._spec, Dense):
            values = self._table.pull(span)
            some = np.flatnonzero(nonzero(values)).astype(np.uint64)
            found = KeyValues(some, values[some.astype(np.intp)])
        else:
            keys, values, _ = self._table.pull_live(span, 1 << 62)
            alive = nonzero(values)
            found = KeyValues(keys[alive], taken(values, alive))
        self._table = ServerTable(self._spec, [span])
        self._squares = 0.0
        return found

    def forget(self) -> None:
        """This life is over, and the run may have gone back: what is left belongs nowhere."""
        self._table = ServerTable(self._spec, [KeyRange(0, self._spec.span)])
        self._squares = self._lost = 0.0  # the coordinator knows how much it was

    def _add(self, keys: Keys | KeyRange, values: Values, before: Values) -> None:
        some = nonzero(values)
        if not some.any():
            return
        if not some.all():
            listed = np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys
            keys, values, before = listed[some], taken(values, some), taken(before, some)
        self._table.push(keys, values)
        self._squares += _squares(before.astype(np.float64) + values) - _squares(before)


class UnconfirmedPush:
    """One push on its way: what it took out and what it leaves, until it is known which of the two holds."""

    def __init__(self, feedback: ErrorFeedback, keys: Keys | KeyRange, taken: Values, left: Values, slot: bool) -> None:
        self._feedback, self._keys, self._slot = feedback, keys, slot
        self._taken, self._left = taken, left
        self._open = np.ones(len(taken), np.bool_)
        self._rows: dict[int, list[tuple[int, int]]] = {}  # by request
        self.again = False  # was split and sent before

    def goes(self, request: int, layout: Layout, share: ServerShare) -> None:
        """This message speaks for the rows of a share's segments, also for those that are not in it."""
        self._rows[request] = layout.rows_of(share, self._keys)

    def counted(self, request: int, again: bool, new: bool, part: bool) -> None:
        """A server says what became of its share."""
        mask = np.zeros(len(self._open), np.bool_)
        for start, stop in self._rows.pop(request, ()):
            mask[start:stop] = True
        mask &= self._open
        self._open &= ~mask
        if not self._slot or (new and not part):
            self._put(mask, self._left)
        elif not new and not (again or self.again):
            self._put(mask, self._taken)
        else:
            self._feedback.give_up(max(taken(self._taken, mask), taken(self._left, mask), key=_squares))

    def end(self, failed: bool) -> None:
        """No more answers will come."""
        mask, self._open = self._open, np.zeros(len(self._open), np.bool_)
        self._put(mask, self._taken if failed else self._left)

    def _put(self, mask: Any, values: Values) -> None:
        if mask.all():
            self._feedback.put(self._keys, values)
        elif mask.any():
            keys = self._keys
            listed = np.arange(keys.start, keys.stop, dtype=np.uint64) if isinstance(keys, KeyRange) else keys
            self._feedback.put(listed[mask], taken(values, mask))


def _squares(values: Any) -> float:
    return float(np.square(values, dtype=np.float64).sum())
