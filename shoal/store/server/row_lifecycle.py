"""Which rows a sparse table has: keys that are let in when they came often enough, rows that are let go when they are zero again.

Both are the primary's to decide. Who gets in is decided before a change is made (``admission``), so copies only hear of those. Rows are
let go by a change of its log, kind ``evict``, which says when and not which: a copy that has made all changes before it has the very same
zeros. In a table that is updated in steps there is no such change: rows go together with steps that are known beforehand (the last of a
pass, and steps 1, 2, 4, 8, ...), so the model is the same for any number of servers.

Elsewhere a sweep is due when rows have doubled since the last one, or when four times as many keys were pushed as there are rows: it costs
less than the pushes did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shoal.keys import KeyValues
from shoal.limits import EVICT_ROWS
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.pending import Waiting
from shoal.store.table.admission import Admission
from shoal.store.table.slab import SparseRows
from shoal.tables import Each, Sparse

Then = Callable[[int, KeyValues | None], HandlerResult]


class Tending(Waiting):
    """The segments that a server is primary of, and who gets into them."""

    def _begin(self) -> None:
        super()._begin()
        spec, rows = self.spec, self.table.part
        counts = isinstance(spec, Sparse) and spec.admit > 1 and isinstance(rows, SparseRows)
        self._admission = Admission(rows, spec.admit, spec.span) if counts else None  # type: ignore[arg-type, union-attr]
        self._by_rows = isinstance(spec, Sparse) and spec.evict and isinstance(spec.apply, Each)
        self._after_sweep: int | None = None  # rows there were then
        self._since = 0  # keys pushed since

    def admitted(self, now: int, given: KeyValues | None, then: Then) -> HandlerResult:
        """Go on with what gets in of a push; counting may take long, and is then done elsewhere."""
        if self._admission is None or given is None:
            return then(now, given)
        if self.extent.work(given.keys) <= self.inline:
            return then(now, self._admit(given))
        found: list[KeyValues | None] = []
        return HandlerResult(
            works=[LongComputation(lambda: found.append(self._admit(given)), lambda now: then(now, found[0]), None)]
        )

    def _admit(self, given: KeyValues) -> KeyValues | None:
        assert self._admission is not None
        found = self._admission.admit(given)
        self.counts["not admitted"] += len(given) - (0 if found is None else len(found))
        return found

    def succeed(self, before: Tending, same: Mapping[int, int]) -> None:
        """Go on, with other segments on the same ground, where another one ended; ``same`` are those that are what they were, by their
        numbers now and then. What is known of those, and of the server, stays so."""
        self.staleness, self.counts = before.staleness, before.counts
        self.asked.follow(before.asked, same)
        self._admission, self._since = before._admission, before._since
        if self._admission is not None:
            self._admission.hold()

    def sweep_due(self, given: KeyValues | None) -> bool:
        """A push was made: is it time to let rows go?"""
        if not self._by_rows or given is None:
            return False
        rows = self.table.rows
        if self._after_sweep is None:  # those we began with may have been swept just before
            self._after_sweep = max(0, rows - len(given))
        self._since += len(given)
        if rows < EVICT_ROWS or (rows < 2 * self._after_sweep and self._since < 4 * rows):
            return False
        self._after_sweep, self._since = rows, 0
        return True

    def swept(self) -> None:
        """A change was made: if rows went with it, they are told of."""
        if self.evicted:
            self.counts["evicted"] += self.evicted
            self.evicted, self._after_sweep = 0, self.table.rows
