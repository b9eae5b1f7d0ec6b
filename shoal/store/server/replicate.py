"""A primary's log: every change is on all backups before it is applied and answered.

    aggregate -> next change -> Append to each backup -> all have it -> apply, answer

One log for all segments that a server is primary of in one table: a push is one change, however
many segments it covers. A *link* is one backup; it gets every change with the rows it holds.
Changes that wait for acknowledgements travel together. A server that is being filled gets all
changes too, but nothing waits for it until it has everything. Only then it is required, and only
then the coordinator hears of it: so the set the primary waits for is never smaller than the one
the coordinator promotes from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from shoal import limits
from shoal.keys import KeyRange, KeyValues
from shoal.store.server.ledger import Mask
from shoal.store.server.outcome import Later, Requester
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

Into = Sequence[range]


def into(before: Sequence[int], after: Sequence[int]) -> Into:
    """By old segment number, the new ones: a split table keeps every old start.

    Both halves of a split segment begin with its books, so what was counted in it is counted in
    each. A server that missed a view may find several splits at once.
    """
    at = [bisect_left(after, start) for start in before]
    return [range(low, high) for low, high in pairwise([*at, len(after)])]


def those(segments: Iterable[int], to: Into) -> list[int]:
    """The new numbers of these segments."""
    return [new for segment in segments for new in to[segment]]


def renamed(change: m.ReplicatedChange, to: Into) -> m.ReplicatedChange:
    """The same change, for the same keys, with the new segment numbers."""
    return replace(change, only=those(change.only, to)) if change.only else change


_CHANGE = 256  # bytes of a change without its rows, about


@dataclass(slots=True)
class LogEntry:
    """A change that is not applied here yet, and who waits for it."""

    change: m.ReplicatedChange
    given: KeyValues | None
    segments: Mask  # those of the primary's that it is for
    asker: Requester | None = None
    later: Later | None = None  # what else follows from it


@dataclass(slots=True)
class LogBatch:
    """One change as one link gets it."""

    change: m.ReplicatedChange
    given: KeyValues | None
    covers: tuple[int, ...]
    size: int = 0  # bytes when it was made, also if it is cut later

    def __post_init__(self) -> None:
        self.size = size_of(self.given)


@dataclass(slots=True, eq=False)
class BackupLink:
    """One backup that follows the log."""

    name: str
    incarnation: int
    base: int  # its following begins after this change
    covers: tuple[int, ...]  # the segments that it gets from now on
    required: bool  # nothing is counted without it
    acked: int = 0
    queue: deque[LogBatch] = field(default_factory=deque)  # not acknowledged
    waits: int = 0  # bytes of these
    taken: int = 0  # bytes ever queued
    sent: int = 0  # the last that was sent
    flying: deque[int] = field(default_factory=deque)  # the last change of each message under way
    again: int = 0  # when to send again
    since: int = 0  # since when the oldest waits

    def take(self, now: int, parcel: LogBatch) -> None:
        if not self.queue:
            self.since = now
        self.queue.append(parcel)
        self.waits += parcel.size
        self.taken += parcel.size

    def acknowledge(self, now: int, seq: int) -> bool:
        """It has all changes up to ``seq``. True if that is news."""
        if seq <= self.acked:
            return False
        self.acked = seq
        self.since = now
        while self.queue and self.queue[0].change.seq <= seq:
            self.waits -= self.queue.popleft().size
        while self.flying and self.flying[0] <= seq:
            self.flying.popleft()
        self.sent = max(self.sent, seq)
        return True


class LogTooLong(Protocol):
    """A server that is being filled."""

    link: BackupLink

    @property
    def ahead(self) -> int:
        """Bytes of changes that it queues until its image is complete."""


class ReplicationLog:
    """The changes of one table on their way to the backups."""

    def __init__(self, table: int, incarnation: int, timing: TimingSettings = DEFAULT) -> None:
        self.table, self.incarnation, self.timing = table, incarnation, timing
        self.seq = 0  # of the last change
        self.applied = 0  # the last that is made here
        self.links: dict[str, BackupLink] = {}
        self.entries: deque[LogEntry] = deque()  # not made here yet, in order
        self.view = 0  # by which we are primary
        self.fillings: list[LogTooLong] = []  # those who are being filled
        # By promoted segment: the last change before it was opened.
        self._opened: dict[int, int] = {}
        self._pending: dict[tuple[int, int], Mask] = {}
        self._ticked = 0  # the last tick

    # ------------------------------------------------------------ changes

    def append(self, now: int, entry: LogEntry, own: Sequence[KeyRange], numbers: Sequence[int]) -> list[Effect]:
        """Send the next change to every link. ``own`` are our segments, by ``numbers``."""
        self.seq += 1
        entry.change = msgspec.structs.replace(entry.change, seq=self.seq)
        self.entries.append(entry)
        if entry.change.kind == "push":
            self._pend(entry)
        effects: list[Effect] = []
        for link in self.links.values():
            given = entry.given
            if given is not None and len(link.covers) < len(numbers):
                covers = set(link.covers)
                given = cut(given, own, [number in covers for number in numbers])
            link.take(now, LogBatch(entry.change, given, link.covers))
            effects += self.send(now, link)
        return effects

    def ready(self) -> LogEntry | None:
        """Take the next change that is on all replicas out of the log."""
        if not self.entries or self.entries[0].change.seq > self.committed:
            return None
        return self.entries.popleft()

    def made(self, entry: LogEntry) -> None:
        """This change is applied here."""
        self.applied = entry.change.seq
        if entry.change.kind == "push" and entry.segments.any():
            key = entry.change.stream, entry.change.number
            left = self._pending.pop(key) & ~entry.segments
            if left.any():
                self._pending[key] = left

    def opened(self, segments: Sequence[int]) -> None:
        """These segments are served from here on, also if earlier changes are not applied yet."""
        self._opened.update(dict.fromkeys(segments, self.seq))

    def reached(self, segment: int) -> int:
        """The last change of the log that this segment has.

        A segment that became ours has what any survivor had. Older changes of our log that still
        wait are for other segments, or already in it from when it was ours before: they must not
        reach it again.
        """
        return max(self.applied, self._opened.get(segment, 0))

    def pending(self, stream: int, number: int) -> Mask | None:
        """The segments in which this push waits to be counted."""
        return self._pending.get((stream, number))

    def comings(self) -> list[m.ReplicatedChange]:
        """The enter and park changes that are not applied yet, each once, to be repeated."""
        changes = (entry.change for entry in self.entries if entry.change.kind in ("enter", "park"))
        found = {(one.kind, one.incarnation, one.spell): one for one in changes}
        return [msgspec.structs.replace(one, seq=0) for one in found.values()]

    def coming(self, kind: str, incarnation: int, spell: int) -> LogEntry | None:
        """The entry, not applied yet, that makes this worker's change known to all segments."""
        for entry in self.entries:
            one = entry.change
            if (one.kind, one.incarnation, one.spell) == (kind, incarnation, spell) and entry.segments.all():
                return entry
        return None

    def has_enter_of(self, incarnation: int) -> bool:
        """Whether an enter of this worker, of any spell, is waiting."""
        return any(one.change.kind == "enter" and one.change.incarnation == incarnation for one in self.entries)

    def moved(self, places: Sequence[int], count: int, ranges: Sequence[KeyRange]) -> None:
        """The primary has other segments: its n-th is now the places[n]-th of ``count`` (-1: gone).

        Callers must ask again. Rows given by a range meant the old segments, so they are listed
        from here on. A change for none of the new segments stays, without rows: others know its
        number.
        """
        self._pending.clear()
        ours = [place >= 0 for place in places]
        for entry in self.entries:
            segments = np.zeros(count, np.bool_)
            kept = [place for place, on in zip(places, entry.segments, strict=True) if on and place >= 0]
            segments[kept] = True
            if entry.given is not None and (isinstance(entry.given.keys, KeyRange) or not all(ours)):
                entry.given = cut(entry.given, ranges, ours, listed=True)
            entry.segments, entry.asker, entry.later = segments, None, None
            if entry.change.kind == "push":
                self._pend(entry)

    def renumber(self, now: int, to: Into, numbers: Sequence[int]) -> None:
        """The table was split; ``numbers`` are our old segments. Callers must ask again."""
        self._pending.clear()
        self._opened = {new: seq for number, seq in self._opened.items() for new in to[number]}
        parts = [len(to[number]) for number in numbers]
        for entry in self.entries:
            entry.segments, entry.change = np.repeat(entry.segments, parts), renamed(entry.change, to)
            entry.asker, entry.later = None, None
            if entry.change.kind == "push":
                self._pend(entry)
        for link in self.links.values():
            link.covers = tuple(those(link.covers, to))
            for parcel in link.queue:
                parcel.change, parcel.covers = renamed(parcel.change, to), tuple(those(parcel.covers, to))
            # In flight with the old numbers: will be refused.
            link.sent, link.again = link.acked, now
            link.flying.clear()

    def emptied(self) -> None:
        """The primary has no segments left: other servers count what waits here."""
        self.entries.clear()
        self._pending.clear()
        self.applied = self.seq

    def narrow(self, now: int, link: BackupLink, left: Sequence[int], ranges: Callable[[int], KeyRange]) -> None:
        """A link covers only these now: take the rest out of its queue, or all is refused."""
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)
        cuts = False
        for parcel in link.queue:
            ours = [segment in covers for segment in parcel.covers]
            if all(ours):
                continue
            cuts = True
            if parcel.given is not None:
                parcel.given = cut(parcel.given, [ranges(segment) for segment in parcel.covers], ours)
            parcel.covers = tuple(segment for segment in parcel.covers if segment in covers)
        if cuts:  # what is in flight may be refused: send it again
            link.sent, link.again = link.acked, now
            link.flying.clear()

    @property
    def committed(self) -> int:
        """All changes up to this one are on all required replicas."""
        return min((link.acked for link in self.links.values() if link.required), default=self.seq)

    @property
    def is_full(self) -> bool:
        """Whether a backup is so far behind that no push is taken until it catches up."""
        most = limits.COPIES_HELD
        return any(link.waits > most for link in self.links.values()) or any(one.ahead > most for one in self.fillings)

    def _pend(self, entry: LogEntry) -> None:
        if not entry.segments.any():  # its segments are no longer ours
            return
        key = entry.change.stream, entry.change.number
        before = self._pending.get(key)
        self._pending[key] = entry.segments if before is None else before | entry.segments

    # ------------------------------------------------------------ links

    def follow(self, now: int, name: str, incarnation: int, segments: Sequence[int], required: bool) -> BackupLink:
        """From the next change on this server gets changes to these segments too."""
        link = self.links.get(name)
        if link is None or link.incarnation != incarnation:
            link = BackupLink(name, incarnation, self.seq, (), required, acked=self.seq, sent=self.seq, since=now)
            self.links[name] = link
        link.covers = tuple(sorted({*link.covers, *segments}))
        link.required = link.required or required
        return link

    def send(self, now: int, link: BackupLink) -> list[Effect]:
        """What is not under way yet, as far as there is room."""
        effects: list[Effect] = []
        while len(link.flying) < limits.COPIES_FLYING:
            parcels = self._next(link)
            if not parcels:
                break
            link.sent = parcels[-1].change.seq
            link.flying.append(link.sent)
            link.again = now + self.timing.copy_resend
            effects.append(self._message(link, parcels))
        return effects

    def _next(self, link: BackupLink) -> list[LogBatch]:
        """The changes of the next message: for the same segments, not too many bytes."""
        found: list[LogBatch] = []
        size = 0
        for parcel in link.queue:
            if parcel.change.seq <= link.sent:
                continue
            size += 0 if parcel.given is None else parcel.given.values.nbytes * 3
            if found and (parcel.covers != found[0].covers or size > limits.COPY_BYTES or len(found) >= 1_024):
                break
            found.append(parcel)
        return found

    def _message(self, link: BackupLink, parcels: list[LogBatch]) -> Effect:
        changes, arrays = packed([(parcel.change, parcel.given) for parcel in parcels])
        covers = list(parcels[0].covers)
        append = m.Append(
            self.table, self.view, self.incarnation, link.incarnation, covers, link.base, self.committed, changes
        )
        return Send(link.name, append, arrays)

    def tick(self, now: int) -> tuple[list[Effect], list[BackupLink]]:
        """What must be sent again, and the links that were silent for too long."""
        effects: list[Effect] = []
        silent: list[BackupLink] = []
        gap, self._ticked = now - self._ticked, now
        slept = gap if gap > self.timing.suspect else 0  # this process slept: no silence of others
        for link in self.links.values():
            link.since = min(now, link.since + slept)
            if not link.queue:
                continue
            if now >= link.again:
                link.sent = link.acked
                link.flying.clear()
                effects += self.send(now, link)
            if now - link.since >= self.timing.shrink:
                link.since = now - self.timing.shrink + self.timing.notice
                silent.append(link)
        return effects, silent

    def waits_for(self) -> str:
        late = [
            link.name
            for link in self.links.values()
            if (link.required and link.acked < self.seq) or link.waits > limits.COPIES_HELD
        ] or [one.link.name for one in self.fillings if one.ahead > limits.COPIES_HELD]
        return f"the copies on {', '.join(late)}" if late else "its turn"


def size_of(given: KeyValues | None) -> int:
    """Bytes that a change with these rows takes while it waits."""
    if given is None:
        return _CHANGE
    return _CHANGE + given.values.nbytes + (0 if isinstance(given.keys, KeyRange) else given.keys.nbytes)


def packed(changes: Sequence[tuple[m.ReplicatedChange, KeyValues | None]]) -> tuple[list[m.ReplicatedChange], m.Arrays]:
    """Changes with their rows as one message carries them: all keys, then all values."""
    headers: list[m.ReplicatedChange] = []
    keys: list[m.Array] = []
    values: list[m.Array] = []
    for change, given in changes:
        if given is None:
            headers.append(change)
            continue
        rows = given.keys
        if isinstance(rows, KeyRange):
            where = {"start": rows.start, "stop": rows.stop}
        else:
            keys.append(rows)
            where = {}
        values.append(given.values.reshape(-1))
        headers.append(msgspec.structs.replace(change, count=len(given.values), **where))
    arrays = [_joined(part) for part in (keys, values) if part]
    return headers, arrays


def unpacked(
    changes: Sequence[m.ReplicatedChange], arrays: m.Arrays, width: int
) -> list[tuple[m.ReplicatedChange, KeyValues | None]] | None:
    """The changes of a message with their rows; None if they do not fit together."""
    found: list[tuple[m.ReplicatedChange, KeyValues | None]] = []
    keys = arrays[0] if len(arrays) == 2 else np.empty(0, np.uint64)
    values = arrays[-1] if arrays else np.empty(0, np.float32)
    key, value = 0, 0
    for change in changes:
        if change.count == 0:
            found.append((change, None))
            continue
        rows: m.Array | KeyRange
        if change.start >= 0:
            if change.stop < change.start:
                return None
            rows = KeyRange(change.start, change.stop)
        else:
            rows = keys[key : key + change.count]
            key += change.count
            if len(rows) != change.count:
                return None
        part = values[value : value + change.count * width]
        value += change.count * width
        if len(part) != change.count * width:
            return None
        found.append((change, KeyValues(rows, part.reshape(change.count, width))))
    return found if key == len(keys) and value == len(values) else None


def cut(given: KeyValues, covers: Sequence[KeyRange], wanted: Sequence[bool], listed: bool = False) -> KeyValues | None:
    """The rows that fall into the wanted ones of these segments; None if there are none.

    A range's rows are those of all covered segments, in order. What is left keeps the range, or,
    if ``listed``, names its keys.
    """
    keys = given.keys
    if not isinstance(keys, KeyRange):
        starts = np.array([one.start for one in covers], np.uint64)
        stops = np.array([one.stop for one in covers], np.uint64)
        at = np.searchsorted(starts, keys, side="right") - 1
        inside = (at >= 0) & (keys < stops[at]) & np.asarray(wanted, np.bool_)[at]
        return KeyValues(keys[inside], np.ascontiguousarray(given.values[inside])) if inside.any() else None
    rows, names = [], []
    row = 0
    for segment, is_wanted in zip(covers, wanted, strict=True):
        low, high = max(segment.start, keys.start), min(segment.stop, keys.stop)
        count = max(0, high - low)
        if is_wanted and count:
            rows.append(given.values[row : row + count])
            if listed:
                names.append(np.arange(low, high, dtype=np.uint64))
        row += count
    if not rows:
        return None
    return KeyValues(np.concatenate(names) if listed else keys, _joined(rows))


def _joined(parts: Sequence[m.Array]) -> m.Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
