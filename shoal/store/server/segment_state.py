"""Some segments of one table on one server: rows, versions, ledger and clocks, and how a change is made to them.

A primary and its backups run this very code in the same order, so their copies agree bit by bit. All segments are kept
as small arrays with one entry each. A segment leaves and enters as an ``SegmentImage``. For another set of segments another part is made on
the same ground: rows that stay are not touched, only the books are written anew, since that happens when servers die or come, and
never on the way of a push.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from shoal.keys import KeyRange, KeyValues
from shoal.limits import CLOCKS_TOLD
from shoal.store.image import SegmentImage
from shoal.store.server.clock import Clocks
from shoal.store.server.eviction import swept_by
from shoal.store.server.ledger import Ledger, Mask, Numbers
from shoal.store.server.request_check import RequestCheck
from shoal.store.server.vector_clock import GONE, RangeClocks, VectorClock
from shoal.store.table.table import Ground
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.messages.base import Events

STEPS = GONE  # a step is nobody's own push: all of them stand together


class SegmentState:
    """Segments that are together because one server is, or follows, the primary of all of them."""

    def __init__(
        self, number: int, spec: Spec, held: Sequence[tuple[int, KeyRange]], ground: Ground | None = None
    ) -> None:
        self.number, self.spec = number, spec
        self.extent = RequestCheck(spec, held, ground)
        self.table = self.extent.table
        self.version: Numbers = np.zeros(len(held), np.int64)
        self.ledger = Ledger(len(held))
        self.clocks = Clocks(len(held), spec.max_delay)
        self.evicted = 0  # rows that were zero again and are gone
        self.events = RangeClocks(spec.span)  # vector clocks: returned by pulls and shown, they decide nothing

    def load(self, images: Sequence[SegmentImage]) -> None:
        """Take over what these were: one for each segment, in order; nothing was done to this part yet."""
        self.place(images)
        self.enter([image.books for image in images])

    def place(self, images: Sequence[SegmentImage]) -> None:
        """The rows of some segments, which have none here."""
        for image in images:
            self.table.load(self.extent.place[image.segment], image.rows, image.names)

    def enter(self, books: Sequence[m.SegmentBooks]) -> None:
        """What is known of the segments, one after another; nothing was done to this part yet."""
        self.version[:] = [one.version for one in books]
        self.ledger = Ledger.of([one.ledger for one in books])
        self.clocks = Clocks.of([one.clocks for one in books], self.spec.max_delay)
        for one in books:
            for start, stop, counts in one.events:
                self.events.write(KeyRange(start, stop), VectorClock(dict(counts)))

    @property
    def ground(self) -> Ground:
        """Where its rows lie."""
        return self.table.part

    @property
    def segments(self) -> list[int]:
        """Their numbers."""
        return self.extent.numbers

    def books(self, segment: int) -> m.SegmentBooks:
        at = self.extent.place[segment]
        events = self.happened(self.extent.ranges[at])
        return m.SegmentBooks(int(self.version[at]), self.ledger.counted(at), self.clocks.clocked(at), events)

    def happened(self, keys: KeyRange) -> Events:
        """The vector clocks of these keys, as they travel: all segments of a part fit one header."""
        most = max(1, CLOCKS_TOLD // (len(self.extent) * (1 + len(self.events.nodes()))))
        return [(part.start, part.stop, dict(clock.counts)) for part, clock in self.events.read(keys, most)]

    def image(self, segment: int, copy: bool = True) -> SegmentImage:
        """One segment as it is now: copied, or, for whoever reads it before anything changes, as it lies there."""
        at = self.extent.place[segment]
        rows, names = self.table.image(at, copy)
        return SegmentImage(segment, self.extent.ranges[at], self.books(segment), rows, names)

    def digest(self, segment: int) -> str:
        """A hash of all that is known of a segment: equal on all copies once nothing is under way."""
        image = self.image(segment, copy=False)
        seen = hashlib.blake2b(digest_size=8)
        seen.update(image.rows.tobytes())
        if image.names is not None:
            seen.update(image.names.tobytes())
        books = image.books
        ledger = {stream: counted for stream, counted in sorted(books.ledger.items()) if counted != m.Counts(0)}
        clocks = {who: (one.spell, one.parked, one.counted) for who, one in sorted(books.clocks.items())}
        seen.update(repr((books.version, ledger, clocks)).encode())
        return seen.hexdigest()

    def live(self, workers: dict[int, str], clients: dict[int, str]) -> bool:
        """Take the live incarnations from a new view: streams of the departed are over. True if a worker had departed."""
        for stream in self.ledger.streams():
            if stream < 0 and -stream not in clients:
                self.ledger.drop(stream)
        for node in self.events.nodes():
            if node not in clients:
                self.events.retire(node)
        return self.clocks.live(workers)

    def work(self, change: m.ReplicatedChange, given: KeyValues | None, segments: Mask) -> int:
        """How long the rows of a change keep a thread busy, in elements; 0: it has none, and lets none go."""
        pushed = 0 if given is None or not len(given.values) else max(1, self.extent.work(given.keys))
        return pushed if self._swept(change, segments) is None else pushed + self.table.rows

    def write(self, change: m.ReplicatedChange, given: KeyValues | None, segments: Mask) -> None:
        """The rows of a change; its books follow with ``note``."""
        if given is not None and len(given.values):
            self.table.push(given.keys, given.values)
        if (swept := self._swept(change, segments)) is not None:
            self.evicted += self.table.evict(swept)

    def _swept(self, change: m.ReplicatedChange, segments: Mask) -> Mask | None:
        return swept_by(self.spec, change.kind, self.version, segments)

    def note(
        self, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, given: KeyValues | None = None
    ) -> None:
        """Enter a change, whose rows are written, into the books of these segments (``everywhere``: they are all).

        Also that numbers are over is entered in these alone: what else is held beside them differs from copy to copy.
        """
        match change.kind:
            case "push":
                self._happens(change.incarnation, segments, everywhere, given)
                stream = self.ledger.stream(change.stream)
                if change.stream < 0:
                    stream.raise_to(change.floor if everywhere else np.where(segments, change.floor, 0))
                stream.add(change.number, segments, everywhere)
                self._tick(change, segments, everywhere)
                self._raise(segments, everywhere)
            case "step":
                self._happens(STEPS, segments, everywhere, given)
                self._raise(segments, everywhere)
            case "tick":
                self._tick(change, segments, everywhere)
            case "enter":
                self.clocks.enter(change.incarnation, change.name, change.spell, change.entered)
            case "park":
                self.clocks.park(change.incarnation, change.spell)

    def _happens(self, node: int, segments: Mask, everywhere: bool, given: KeyValues | None) -> None:
        """Something was pushed: a range to its keys, a list to the segments that it has keys in."""
        if given is None or not len(given.values):
            return
        if isinstance(given.keys, KeyRange):
            if everywhere:
                self.events.tick(node, given.keys)
                return
            low, high, touched = given.keys.start, given.keys.stop, segments
        else:
            low, high, touched = 0, self.spec.span, segments & self.extent.touched(given.keys)
            if everywhere and touched.all():
                self.events.tick(node)
                return
        for at in np.flatnonzero(touched).tolist():  # others have had it before, or have no part in it
            keys = self.extent.ranges[at]
            start, stop = max(keys.start, low), min(keys.stop, high)
            if start < stop:
                self.events.tick(node, KeyRange(start, stop))

    def _tick(self, change: m.ReplicatedChange, segments: Mask, everywhere: bool) -> None:
        self.clocks.heard(change.incarnation, change.spell, change.entered)
        self.clocks.tick(change.incarnation, change.step, segments, everywhere)

    def _raise(self, segments: Mask, everywhere: bool) -> None:
        if everywhere:
            self.version += 1
        else:
            self.version[segments] += 1
