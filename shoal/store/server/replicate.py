"""A primary's log: every change is on all backups before it is applied and answered.

    aggregate -> next change -> Append to each backup -> all have it -> apply, answer

One log for all segments that a server is primary of in one table: a push is one change, however
many segments it covers. A *link* is one backup; it gets every change with the rows it holds.
Changes that wait for acknowledgements travel together. A server that is being filled gets all
changes too, but nothing waits for it until it has everything. Only then it is required, and only
then the coordinator learns of it: so the set the primary waits for is never smaller than the one
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
from shoal.store.server.outcome import Continuation, PendingRequest
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

SplitMap = Sequence[range]


def split_map(before: Sequence[int], after: Sequence[int]) -> SplitMap:
    """The new segment numbers by old one: a split table keeps every old start.

    Both halves of a split segment begin with its books, so what was counted in it is counted in
    each. A server that missed a view may find several splits at once.
    """
    at = [bisect_left(after, start) for start in before]
    return [range(low, high) for low, high in pairwise([*at, len(after)])]


def new_numbers(segments: Iterable[int], split: SplitMap) -> list[int]:
    """The new numbers of these segments."""
    return [new for segment in segments for new in split[segment]]


def renumbered(change: m.ReplicatedChange, split: SplitMap) -> m.ReplicatedChange:
    """The same change, for the same keys, with the new segment numbers."""
    return replace(change, only=new_numbers(change.only, split)) if change.only else change


_CHANGE = 256  # bytes of a change without its rows, about


@dataclass(slots=True)
class LogEntry:
    """A change that is not applied here yet, and the request that waits for it."""

    change: m.ReplicatedChange
    rows: KeyValues | None
    segments: Mask  # of the primary, that it changes
    request: PendingRequest | None = None
    on_applied: Continuation | None = None  # called then


@dataclass(slots=True)
class QueuedChange:
    """A change in the queue of one link."""

    change: m.ReplicatedChange
    rows: KeyValues | None
    covers: tuple[int, ...]
    size: int = 0  # bytes when queued, even if restricted later

    def __post_init__(self) -> None:
        self.size = size_of(self.rows)


@dataclass(slots=True, eq=False)
class BackupLink:
    """One backup that follows the log."""

    name: str
    incarnation: int
    base: int  # it gets the changes after this one
    covers: tuple[int, ...]  # segments whose changes it gets
    required: bool  # nothing is counted without it
    acked: int = 0
    queue: deque[QueuedChange] = field(default_factory=deque)  # not acknowledged
    queued_bytes: int = 0
    total_bytes: int = 0  # bytes ever queued
    last_sent: int = 0  # change
    in_flight: deque[int] = field(default_factory=deque)  # last change of each message
    resend_at: int = 0
    waiting_since: int = 0  # the oldest in the queue

    def enqueue(self, now: int, queued: QueuedChange) -> None:
        if not self.queue:
            self.waiting_since = now
        self.queue.append(queued)
        self.queued_bytes += queued.size
        self.total_bytes += queued.size

    def acknowledge(self, now: int, seq: int) -> bool:
        """It has all changes up to ``seq``. True if that is news."""
        if seq <= self.acked:
            return False
        self.acked = seq
        self.waiting_since = now
        while self.queue and self.queue[0].change.seq <= seq:
            self.queued_bytes -= self.queue.popleft().size
        while self.in_flight and self.in_flight[0] <= seq:
            self.in_flight.popleft()
        self.last_sent = max(self.last_sent, seq)
        return True


class FillProgress(Protocol):
    """A server that is being filled."""

    link: BackupLink

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that it queues until its image is complete."""


class ReplicationLog:
    """The changes of one table on their way to the backups."""

    def __init__(self, table: int, incarnation: int, timing: TimingSettings = DEFAULT) -> None:
        self.table, self.incarnation, self.timing = table, incarnation, timing
        self.seq = 0  # of the last change
        self.applied = 0  # the last that is applied here
        self.links: dict[str, BackupLink] = {}
        self.entries: deque[LogEntry] = deque()  # not applied here yet, in order
        self.view = 0  # by which we are primary
        self.backfills: list[FillProgress] = []  # one per server that is being filled
        # By promoted segment: the last change before it was opened.
        self._opened_at: dict[int, int] = {}
        self._pending: dict[tuple[int, int], Mask] = {}
        self._ticked = 0  # the last tick

    # ------------------------------------------------------------ changes

    def append(self, now: int, entry: LogEntry, own: Sequence[KeyRange], numbers: Sequence[int]) -> list[Effect]:
        """Send the next change to every link. ``own`` are our segments, by ``numbers``."""
        self.seq += 1
        entry.change = msgspec.structs.replace(entry.change, seq=self.seq)
        self.entries.append(entry)
        if entry.change.kind == "push":
            self._add_pending(entry)
        effects: list[Effect] = []
        for link in self.links.values():
            rows = entry.rows
            if rows is not None and len(link.covers) < len(numbers):
                covers = set(link.covers)
                rows = restrict_rows(rows, own, [number in covers for number in numbers])
            link.enqueue(now, QueuedChange(entry.change, rows, link.covers))
            effects += self.send(now, link)
        return effects

    def pop_ready(self) -> LogEntry | None:
        """Take the next change that is on all replicas out of the log."""
        if not self.entries or self.entries[0].change.seq > self.committed:
            return None
        return self.entries.popleft()

    def mark_applied(self, entry: LogEntry) -> None:
        """This change is applied here."""
        self.applied = entry.change.seq
        if entry.change.kind == "push" and entry.segments.any():
            key = entry.change.stream, entry.change.number
            left = self._pending.pop(key) & ~entry.segments
            if left.any():
                self._pending[key] = left

    def mark_opened(self, segments: Sequence[int]) -> None:
        """These segments are served from here on, also if earlier changes are not applied yet."""
        self._opened_at.update(dict.fromkeys(segments, self.seq))

    def last_change_of(self, segment: int) -> int:
        """The last change of the log that this segment has.

        A segment that became ours has what any survivor had. Older changes of our log that still
        wait are for other segments, or already in it from when it was ours before: they must not
        reach it again.
        """
        return max(self.applied, self._opened_at.get(segment, 0))

    def pending(self, stream: int, number: int) -> Mask | None:
        """The segments in which this push waits to be counted."""
        return self._pending.get((stream, number))

    def pending_spells(self) -> list[m.ReplicatedChange]:
        """The enter and park changes that are not applied yet, each once, to be repeated."""
        changes = (entry.change for entry in self.entries if entry.change.kind in ("enter", "park"))
        found = {(one.kind, one.incarnation, one.spell): one for one in changes}
        return [msgspec.structs.replace(one, seq=0) for one in found.values()]

    def find_pending(self, kind: str, incarnation: int, spell: int) -> LogEntry | None:
        """The entry, not applied yet, that makes this worker's change known to all segments."""
        for entry in self.entries:
            one = entry.change
            if (one.kind, one.incarnation, one.spell) == (kind, incarnation, spell) and entry.segments.all():
                return entry
        return None

    def has_enter_of(self, incarnation: int) -> bool:
        """Whether an enter of this worker, of any spell, is waiting."""
        return any(one.change.kind == "enter" and one.change.incarnation == incarnation for one in self.entries)

    def remap_segments(self, places: Sequence[int], count: int, ranges: Sequence[KeyRange]) -> None:
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
            if entry.rows is not None and (isinstance(entry.rows.keys, KeyRange) or not all(ours)):
                entry.rows = restrict_rows(entry.rows, ranges, ours, listed=True)
            entry.segments, entry.request, entry.on_applied = segments, None, None
            if entry.change.kind == "push":
                self._add_pending(entry)

    def renumber(self, now: int, split: SplitMap, numbers: Sequence[int]) -> None:
        """The table was split; ``numbers`` are our old segments. Callers must ask again."""
        self._pending.clear()
        self._opened_at = {new: seq for number, seq in self._opened_at.items() for new in split[number]}
        parts = [len(split[number]) for number in numbers]
        for entry in self.entries:
            entry.segments, entry.change = np.repeat(entry.segments, parts), renumbered(entry.change, split)
            entry.request, entry.on_applied = None, None
            if entry.change.kind == "push":
                self._add_pending(entry)
        for link in self.links.values():
            link.covers = tuple(new_numbers(link.covers, split))
            for queued in link.queue:
                queued.change = renumbered(queued.change, split)
                queued.covers = tuple(new_numbers(queued.covers, split))
            # In flight with the old numbers: will be refused.
            link.last_sent, link.resend_at = link.acked, now
            link.in_flight.clear()

    def clear(self) -> None:
        """The primary has no segments left: other servers count what waits here."""
        self.entries.clear()
        self._pending.clear()
        self.applied = self.seq

    def narrow(self, now: int, link: BackupLink, left: Sequence[int], ranges: Callable[[int], KeyRange]) -> None:
        """A link covers only these now: take the rest out of its queue, or all is refused."""
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)
        cuts = False
        for queued in link.queue:
            ours = [segment in covers for segment in queued.covers]
            if all(ours):
                continue
            cuts = True
            if queued.rows is not None:
                queued.rows = restrict_rows(queued.rows, [ranges(segment) for segment in queued.covers], ours)
            queued.covers = tuple(segment for segment in queued.covers if segment in covers)
        if cuts:  # what is in flight may be refused: send it again
            link.last_sent, link.resend_at = link.acked, now
            link.in_flight.clear()

    @property
    def committed(self) -> int:
        """All changes up to this one are on all required replicas."""
        return min((link.acked for link in self.links.values() if link.required), default=self.seq)

    @property
    def is_full(self) -> bool:
        """Whether a backup is so far behind that no push is taken until it catches up."""
        most = limits.COPIES_HELD
        queues = [link.queued_bytes for link in self.links.values()] + [one.queued_bytes for one in self.backfills]
        return max(queues, default=0) > most

    def _add_pending(self, entry: LogEntry) -> None:
        if not entry.segments.any():  # its segments are no longer ours
            return
        key = entry.change.stream, entry.change.number
        before = self._pending.get(key)
        self._pending[key] = entry.segments if before is None else before | entry.segments

    # ------------------------------------------------------------ links

    def add_link(self, now: int, name: str, incarnation: int, segments: Sequence[int], required: bool) -> BackupLink:
        """Send this server changes to these segments too, from the next change on."""
        link = self.links.get(name)
        if link is None or link.incarnation != incarnation:
            link = BackupLink(
                name, incarnation, self.seq, (), required, acked=self.seq, last_sent=self.seq, waiting_since=now
            )
            self.links[name] = link
        link.covers = tuple(sorted({*link.covers, *segments}))
        link.required = link.required or required
        return link

    def send(self, now: int, link: BackupLink) -> list[Effect]:
        """Send queued changes, as far as there is room in flight."""
        effects: list[Effect] = []
        while len(link.in_flight) < limits.COPIES_FLYING:
            batch = self._next_changes(link)
            if not batch:
                break
            link.last_sent = batch[-1].change.seq
            link.in_flight.append(link.last_sent)
            link.resend_at = now + self.timing.copy_resend
            effects.append(self._message(link, batch))
        return effects

    def _next_changes(self, link: BackupLink) -> list[QueuedChange]:
        """The changes of the next message: for the same segments, not too many bytes."""
        found: list[QueuedChange] = []
        size = 0
        for queued in link.queue:
            if queued.change.seq <= link.last_sent:
                continue
            size += 0 if queued.rows is None else queued.rows.values.nbytes * 3
            if found and (queued.covers != found[0].covers or size > limits.COPY_BYTES or len(found) >= 1_024):
                break
            found.append(queued)
        return found

    def _message(self, link: BackupLink, batch: list[QueuedChange]) -> Effect:
        changes, arrays = packed([(queued.change, queued.rows) for queued in batch])
        covers = list(batch[0].covers)
        append = m.Append(
            self.table, self.view, self.incarnation, link.incarnation, covers, link.base, self.committed, changes
        )
        return Send(link.name, append, arrays)

    def tick(self, now: int) -> tuple[list[Effect], list[BackupLink]]:
        """Resends, and the links that were silent for too long."""
        effects: list[Effect] = []
        silent: list[BackupLink] = []
        gap, self._ticked = now - self._ticked, now
        slept = gap if gap > self.timing.suspect else 0  # this process slept: no silence of others
        for link in self.links.values():
            link.waiting_since = min(now, link.waiting_since + slept)
            if not link.queue:
                continue
            if now >= link.resend_at:
                link.last_sent = link.acked
                link.in_flight.clear()
                effects += self.send(now, link)
            if now - link.waiting_since >= self.timing.shrink:
                link.waiting_since = now - self.timing.shrink + self.timing.notice
                silent.append(link)
        return effects, silent

    def waits_for(self) -> str:
        late = [
            link.name
            for link in self.links.values()
            if (link.required and link.acked < self.seq) or link.queued_bytes > limits.COPIES_HELD
        ] or [one.link.name for one in self.backfills if one.queued_bytes > limits.COPIES_HELD]
        return f"the copies on {', '.join(late)}" if late else "its turn"


def size_of(rows: KeyValues | None) -> int:
    """Bytes that a change with these rows takes while it waits."""
    if rows is None:
        return _CHANGE
    return _CHANGE + rows.values.nbytes + (0 if isinstance(rows.keys, KeyRange) else rows.keys.nbytes)


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


def restrict_rows(
    given: KeyValues, covers: Sequence[KeyRange], wanted: Sequence[bool], listed: bool = False
) -> KeyValues | None:
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
