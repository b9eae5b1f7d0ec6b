"""A server's rows on disk: segments that begin as a checkpoint has them, and segments that are written into the next one.

What is written is copied first, one segment after another; only the copying keeps others waiting. A segment that has changed hands
meanwhile is not written: the coordinator sees by the view that this checkpoint cannot be, and begins another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from shoal.files import Disk
from shoal.store import checkpoint, given
from shoal.store.holding import Holding, Loader
from shoal.store.image import Image
from shoal.store.outcome import Outcome, Work
from shoal.store.segment import Segments
from shoal.store.snapping import Snapping
from shoal.tables import Given
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Stored


class Snapshots:
    """One server's part in checkpoints, for all its tables."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._stores = 0  # never given twice: what an earlier life stored comes back to nobody
        self.clear()

    def clear(self) -> None:
        """This life of the server is over: so is whatever it was asked for."""
        self._snapping = Snapping(self._disk)
        self._copying: set[tuple[int, int, int]] = set()  # checkpoint, table, segment: on their way to the disk thread
        self.later: deque[Work] = deque()  # when nothing else waits

    def stored(self, incarnation: int, event: Stored) -> list[Effect]:
        return self._snapping.stored(incarnation, event)

    # ------------------------------------------------------------ from disk

    def loader(self, table: m.Placed) -> Loader | None:
        """What its rows begin as, if not as their initial values."""
        if table.origin:
            return self._loaded
        return partial(given.images, self._disk) if isinstance(table.spec.initial, Given) else None

    def _loaded(self, table: m.Placed, segments: Sequence[int]) -> list[Image]:
        """As they were; but whoever pushed and worked then is no more, and its numbers may be another's by now."""
        found = list(checkpoint.images(self._disk, Path(table.origin), table, segments))
        for image in found:
            slots = {stream: counted for stream, counted in image.books.ledger.items() if stream >= 0}
            image.books = msgspec.structs.replace(image.books, ledger=slots, clocks={}, events=[])
        return found

    # ------------------------------------------------------------ to disk

    def snap(self, now: int, sender: str, snap: m.Snap, holding: Holding, incarnation: int) -> Outcome:
        """Write the segments that are ours, as they are at the step named, while everything goes on."""
        own = holding.own
        if own is None or holding.opening:
            return Outcome()  # it is asked again
        cut, effects = self._snapping.ask(sender, incarnation, snap, own.segments)
        self._copying = {key for key in self._copying if key[0] == snap.number}
        cut = [segment for segment in cut if (snap.number, snap.table, segment) not in self._copying]
        outcome = Outcome(effects)
        if not cut:
            return outcome
        found = own.cut(now, snap.clock, lambda now: self._write(sender, snap, holding, own, cut, incarnation))
        if found is None:
            return Outcome([self._snapping.late(sender, incarnation, snap, int(own.version.max()))])
        return outcome + found

    def _write(
        self, sender: str, snap: m.Snap, holding: Holding, own: Segments, cut: list[int], incarnation: int
    ) -> Outcome:
        """Copy them, one after another, and hand each to the disk."""
        if holding.own is not own:
            return Outcome()  # they have changed hands: this one is given up
        if snap.clock >= 0 and int(own.version.max()) > snap.clock:  # some went on before others were there
            return Outcome([self._snapping.late(sender, incarnation, snap, int(own.version.max()))])
        works = [self._copy(sender, snap, holding, own, segment) for segment in cut]
        self._copying.update((snap.number, snap.table, segment) for segment in cut)
        if snap.clock >= 0:  # all of them at this very step
            return Outcome(works=works)
        self.later.extend(works)  # each at a moment of its own: between two of them others are served
        return Outcome()

    def _copy(self, sender: str, snap: m.Snap, holding: Holding, own: Segments, segment: int) -> Work:
        images: list[Image] = []

        def copy() -> None:
            if holding.own is own:  # else its rows may be nowhere here; no view is taken while this goes on
                images.append(own.image(segment))

        def hand_over(now: int) -> Outcome:
            if not images or holding.own is not own:
                return Outcome()
            self._stores += 1
            return Outcome([self._snapping.write(self._stores, sender, snap, holding.placed.name, images)])

        return Work(copy, hand_over, None)
