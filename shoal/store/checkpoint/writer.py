"""A server's part in a checkpoint: writes its segments, and reports the files.

The coordinator asks (``Snap``), again if it hears nothing; a segment is copied once per
checkpoint. The caller makes the images; writing is a function for the disk thread. A request for
the next checkpoint ends the last one.
"""

from __future__ import annotations

import errno
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import msgspec

from shoal import limits
from shoal.files import Disk
from shoal.store.checkpoint import manifest, segment_file
from shoal.store.table.table import SegmentImage
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Store, Stored
from shoal.wire.messages.groups import namespace

LATE = "too late"  # prefix of an error: the step was over already
_ROOM = limits.HEADER_BYTES // 2  # for the books in one message


class SnapshotWriter:
    """What this server wrote, and is writing, for one checkpoint."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._number = 0
        # By table and segment; None: on its way.
        self._taken: dict[tuple[int, int], m.Written | None] = {}
        self._writing: dict[int, tuple[str, m.Snap]] = {}  # by token: who asked for what

    def ask(self, sender: str, incarnation: int, snap: m.Snap, held: Iterable[int]) -> tuple[list[int], list[Effect]]:
        """Of the segments held as primary, those to copy now; and a report of those on disk."""
        if snap.number < self._number:
            return [], []  # it was given up
        if snap.number > self._number:
            self._number = snap.number
            self._taken.clear()
        mine = [(snap.table, segment) for segment in held]
        cut = [segment for table, segment in mine if (table, segment) not in self._taken]
        written = [one for key in mine if (one := self._taken.get(key)) is not None]
        return cut, self._say(sender, incarnation, snap.number, written)

    def write(self, token: int, sender: str, snap: m.Snap, name: str, images: Sequence[SegmentImage]) -> Store:
        """The effect that writes these images of segments that ``ask`` named."""
        self._taken.update({(snap.table, image.segment): None for image in images})
        self._writing[token] = sender, snap

        def work() -> list[m.Written]:
            written = []
            group = namespace(sender)
            for image in images:
                if snap.number != self._number:
                    break  # nobody waits for it any more
                if group and not manifest.is_of(self.disk, Path(snap.folder), group):
                    raise FileNotFoundError(errno.ENOENT, f"no checkpoint of group {group!r} is being made there")
                written.append(segment_file.write_segment(self.disk, Path(snap.folder), name, snap.table, image))
            return written

        return Store(token, work)

    def stored(self, incarnation: int, event: Stored) -> list[Effect]:
        """The disk thread is done: report it, or why not. Empty if it was not ours."""
        sender, snap = self._writing.pop(event.token, ("", None))
        if snap is None or snap.number != self._number:
            return []
        if event.error is not None:
            reason = getattr(event.error, "strerror", None) or str(event.error) or type(event.error).__name__
            # The coordinator made it: this is another host.
            if isinstance(event.error, FileNotFoundError):
                reason += (
                    " (servers of other hosts need the run's folder, too: share it, or --set checkpoint.every=inf)"
                )
            return [self.cannot(sender, incarnation, snap.number, f"cannot write to {snap.folder}: {reason}")]
        for written in event.result:
            self._taken[written.table, written.segment] = written
        return self._say(sender, incarnation, snap.number, event.result)

    def give_up(self) -> None:
        self._number = 0

    def cannot(self, sender: str, incarnation: int, number: int, why: str) -> Send:
        return Send(sender, m.Snapped(number, incarnation, [], why))

    def late(self, sender: str, incarnation: int, snap: m.Snap, version: int) -> Send:
        return self.cannot(sender, incarnation, snap.number, f"{LATE}: at step {version:,}, asked for {snap.clock:,}")

    def _say(self, sender: str, incarnation: int, number: int, written: Sequence[m.Written]) -> list[Effect]:
        """Report in as many messages as the books need."""
        effects: list[Effect] = []
        some: list[m.Written] = []
        size = 0
        for one in written:
            room = len(msgspec.msgpack.encode(one))
            if room > _ROOM:
                why = f"the books of {one.file} have {room:,} bytes, which is too long for a message"
                return [self.cannot(sender, incarnation, number, why)]
            if some and size + room > _ROOM:
                effects.append(Send(sender, m.Snapped(number, incarnation, some)))
                some, size = [], 0
            some.append(one)
            size += room
        return [*effects, Send(sender, m.Snapped(number, incarnation, some))] if some else effects


class SnapshotWriters:
    """One writer per sender (coordinator, groups' schedulers) and folder, which has the numbers.

    Requests of schedulers that have left are dropped (``live``).
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # By who asks: where to, and what became of it.
        self._by: dict[str, tuple[Path, SnapshotWriter]] = {}

    def of(self, sender: str, snap: m.Snap) -> SnapshotWriter:
        root = Path(snap.folder).parent
        if sender in self._by and self._by[sender][0] != root:
            self._forget(sender)
        return self._by.setdefault(sender, (root, SnapshotWriter(self._disk)))[1]

    def live(self, here: Container[str]) -> None:
        for gone in [sender for sender in self._by if sender not in here]:
            self._forget(gone)

    def stored(self, incarnation: int, event: Stored) -> list[Effect]:
        return [effect for _, one in self._by.values() for effect in one.stored(incarnation, event)]

    def _forget(self, sender: str) -> None:
        self._by.pop(sender)[1].give_up()
