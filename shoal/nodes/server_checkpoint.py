"""A server's part in checkpoints: it writes the segments it owns, and loads them again.

The coordinator asks for its run's tables, a group's scheduler for its group's; each numbers its
checkpoints as it likes. Everything goes on meanwhile: where slots come in steps, segments are
copied at the very step that was named, otherwise one by one between other work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from shoal.cluster.groups import PLACE
from shoal.cluster.membership_client import MembershipClient
from shoal.errors import Invalid, ShoalError
from shoal.files import Disk
from shoal.store.checkpoint import manifest, segment_file
from shoal.store.checkpoint.writer import SnapshotWriters
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.primary import Primary
from shoal.store.server.table_server import Loader, TableServer
from shoal.store.table.table import SegmentImage
from shoal.tables import Given
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Stored
from shoal.wire.messages.groups import SCHEDULER, dealer, namespace, seen


class ServerCheckpoints:
    """What one server writes and reads."""

    def __init__(self, disk: Disk, member: MembershipClient) -> None:
        self.deferred: deque[LongComputation] = deque()  # when nothing else waits
        self._disk, self._member = disk, member
        self._writers = SnapshotWriters(disk)
        self._stores = 0
        self._copying: set[tuple[int, int, int]] = set()  # checkpoint, table, segment: being copied

    def forget(self) -> None:
        """Another incarnation: drop all that was begun."""
        self.deferred.clear()
        self._copying.clear()
        self._writers = SnapshotWriters(self._disk)

    def prune(self, view: m.View) -> None:
        """Drop the work for members and tables that are gone."""
        self._writers.live({self._member.coordinator, *(one.name for one in view.members)})
        tables = {one.number for one in view.tables}
        self._copying = {key for key in self._copying if key[1] in tables}

    def allows(self, sender: str, snap: m.Snap, table: TableServer | None) -> bool:
        """The coordinator may; so may a group's scheduler, for its tables, into its checkpoints."""
        if sender == self._member.coordinator:
            return True
        group = "" if table is None else namespace(table.placed.name)
        here = any(one.name == sender and one.role == SCHEDULER for one in self._member.view.members)
        return group != "" and sender == dealer(group) and here and PLACE.search(snap.folder) is not None

    def stored(self, event: Stored) -> list[Effect]:
        return self._writers.stored(self._member.incarnation, event)

    def loader(self, table: m.TablePlaces) -> Loader | None:
        initial = table.spec.initial
        if table.origin:
            return _hiding_reasons(self._load, table.origin) if namespace(table.name) else self._load
        if not isinstance(initial, Given):
            return None
        load = partial(segment_file.initial_images, self._disk)
        return _hiding_reasons(load, initial.path) if namespace(table.name) else load

    def _load(self, table: m.TablePlaces, segments: Sequence[int]) -> list[SegmentImage]:
        """Segments as they were, without clocks and ledgers of workers that are gone."""
        found = list(manifest.images(self._disk, Path(table.origin), table, segments))
        for image in found:
            slots = {stream: counted for stream, counted in image.books.ledger.items() if stream >= 0}
            image.books = msgspec.structs.replace(image.books, ledger=slots, clocks={}, events=[])
        return found

    def snap(self, now: int, sender: str, snap: m.Snap, table: TableServer | None) -> HandlerResult:
        """Write our segments, as they are at the step named, while all requests go on."""
        if table is None or table.primary is None or table.opening or snap.view > self._member.active_view:
            return HandlerResult()  # the coordinator asks again
        primary, incarnation, writer = table.primary, self._member.incarnation, self._writers.of(sender, snap)
        cut, effects = writer.ask(sender, incarnation, snap, primary.segments)
        self._copying = {key for key in self._copying if key[0] == snap.number or key[1] != snap.table}
        cut = [segment for segment in cut if (snap.number, snap.table, segment) not in self._copying]
        outcome = HandlerResult(effects)
        if not cut:
            return outcome
        found = primary.when_at_version(now, snap.clock, lambda now: self._write(sender, snap, table, primary, cut))
        if found is None:
            return HandlerResult([writer.late(sender, incarnation, snap, int(primary.version.max()))])
        return outcome + found

    def _write(self, sender: str, snap: m.Snap, table: TableServer, primary: Primary, cut: list[int]) -> HandlerResult:
        writer = self._writers.of(sender, snap)

        def copy(segment: int) -> LongComputation:
            images: list[SegmentImage] = []

            def take() -> None:
                if table.primary is primary:  # else its rows may have moved away
                    images.append(primary.image(segment))

            def hand_over(now: int) -> HandlerResult:
                if not images or table.primary is not primary:
                    return HandlerResult()  # the segment has moved: skip it
                self._stores += 1
                name = seen(table.placed.name, namespace(sender))
                return HandlerResult([writer.write(self._stores, sender, snap, name, images)])

            return LongComputation(take, hand_over, None)

        if table.primary is not primary:
            return HandlerResult()  # the segments have moved: skip them
        if snap.clock >= 0 and int(primary.version.max()) > snap.clock:  # some are past the step
            return HandlerResult([writer.late(sender, self._member.incarnation, snap, int(primary.version.max()))])
        copies = [copy(segment) for segment in cut]
        self._copying.update((snap.number, snap.table, segment) for segment in cut)
        if snap.clock >= 0:  # all of them at this very step
            return HandlerResult(computations=copies)
        self.deferred.extend(copies)  # each at a moment of its own: requests are served in between
        return HandlerResult()


def _hiding_reasons(load: Loader, place: str) -> Loader:
    """For a group: one text for all errors, so that it learns nothing of this host's disks."""

    def loaded(table: m.TablePlaces, segments: Sequence[int]) -> list[SegmentImage]:
        try:
            return list(load(table, segments))
        except (ShoalError, OSError):
            what = f"table {table.name!r} cannot be taken from {place}"
            raise Invalid(f"{what}: see that it is this group's, and that every server's host can read it") from None

    return loaded
