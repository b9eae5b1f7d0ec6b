"""The backup's side: follows a primary's log and holds its segments as the primary has them.

Changes are taken in order, acknowledged when they are here, and applied at once. Those that may
not be on all replicas yet are kept: if the primary dies, the survivors bring each other level with
them. A segment that is being filled gets its image in pieces; changes to it wait until the image
is complete. Both queues are bounded: the primary takes no more pushes while a backup is too far
behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal import limits
from shoal.keys import KeyRange, KeyValues
from shoal.store.server.outcome import FunctionChain, HandlerResult, LongComputation
from shoal.store.server.replicate import SplitMap, new_numbers, packed, renumbered, restrict_rows, size_of, unpacked
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.slab import DenseRows
from shoal.store.table.table import RowStorage, SegmentImage, storage_for
from shoal.tables import Sparse
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Send

Ranges = Callable[[int], KeyRange]  # of a segment


@dataclass(slots=True, eq=False)
class BackupEntry:
    """A change, its rows, and the segments that the rows cover."""

    change: m.ReplicatedChange
    rows: KeyValues | None
    covers: tuple[int, ...]

    def segments(self) -> list[int]:
        """The segments it changes, of those whose rows are here."""
        only = set(self.change.only)
        return [number for number in self.covers if not only or number in only]


@dataclass(slots=True)
class ArrivingSegment:
    """A segment of which some pieces are here."""

    seq: int
    pieces: int
    books: m.SegmentBooks | None = None
    arrived: set[int] = field(default_factory=set)  # pieces whose rows lie in their places

    def is_complete(self) -> bool:
        return self.books is not None and len(self.arrived) == self.pieces


class Backup:
    """What one server holds of one table because another one is, or was, its primary."""

    def __init__(
        self,
        number: int,
        spec: Spec,
        primary: str,
        incarnation: int,
        ranges: Ranges,
        inline: int,
        new_storage: Callable[[], RowStorage] | None = None,
    ) -> None:
        self.number, self.spec, self.primary, self.incarnation = number, spec, primary, incarnation
        self.ranges, self.inline = ranges, inline
        self._new_storage = new_storage or (lambda: storage_for(spec))
        self.state: SegmentState | None = None
        self._storage: RowStorage | None = None  # rows of held and of arriving segments
        self.received_seq = -1  # the last change without a gap; -1: none came yet
        self.uncommitted: deque[BackupEntry] = deque()  # may not be on all replicas yet
        self._segment_seq: dict[int, int] = {}  # the last change in each segment
        self._early: dict[int, tuple[m.Append, m.Arrays]] = {}  # came out of order
        self._arriving: dict[int, ArrivingSegment] = {}
        self._complete: dict[int, tuple[int, m.SegmentBooks]] = {}  # seq, books; not installed yet
        self._waiting: list[BackupEntry] = []  # changes for segments that are not here yet
        self.waiting_bytes = 0
        self.filling: set[int] = set()  # segments that we are being filled with
        # By segment that left this primary: the uncommitted changes at that time.
        self._frozen: dict[int, list[BackupEntry]] = {}

    @property
    def segments(self) -> list[int]:
        return [] if self.state is None else self.state.segments

    def compact_some(self) -> bool:
        """Free some of the memory of dropped rows; False if nothing is left to free."""
        return self._storage is not None and self._storage.compact_some()

    @property
    def following(self) -> list[int]:
        """The segments that follow the primary's log."""
        return [segment for segment in self.segments if segment not in self._frozen]

    # ------------------------------------------------------------ changes

    def begin(self, state: SegmentState) -> None:
        """Start with the same rows as the primary: a new table, or a restored one."""
        self.state, self._storage, self.received_seq = state, state.storage, 0
        self._segment_seq = dict.fromkeys(state.segments, 0)

    def append(self, sender: str, message: m.Append, arrays: m.Arrays) -> HandlerResult:
        """Take changes; the answer says up to which one they are here."""
        self.received_seq = max(self.received_seq, message.base)
        if message.changes and message.changes[0].seq > self.received_seq + 1:
            size = sum(array.nbytes for _, others in self._early.values() for array in others)
            if len(self._early) < limits.COPIES_EARLY and size <= limits.COPIES_HELD:
                self._early[message.changes[0].seq] = (message, arrays)
            return HandlerResult([self._acknowledge(sender)])
        # All segments being filled are installed together, unless too much waits.
        outcome = self.install() if self._complete and self.waiting_bytes > limits.COPIES_HELD else HandlerResult()
        outcome = self._receive(message, arrays, outcome)
        while (at := next((seq for seq in self._early if seq <= self.received_seq + 1), None)) is not None:
            outcome = self._receive(*self._early.pop(at), outcome)
        while self.uncommitted and self.uncommitted[0].change.seq <= message.committed:
            self.uncommitted.popleft()
        outcome.effects.append(self._acknowledge(sender))
        return outcome

    def _acknowledge(self, sender: str) -> Send:
        return Send(sender, m.Appended(self.number, self.incarnation, self.received_seq))

    def _receive(self, message: m.Append, arrays: m.Arrays, outcome: HandlerResult) -> HandlerResult:
        """Apply the new changes of a message; ``outcome`` has the work that comes before."""
        found = unpacked(message.changes, arrays, self.spec.push_width)
        if found is None:
            return outcome  # damaged on the way: it will be resent
        covers = tuple(message.covers)
        for change, rows in found:
            if change.seq == self.received_seq + 1:
                self.received_seq = change.seq
                one = BackupEntry(change, rows, covers)
                self.uncommitted.append(one)
                outcome += self._apply(one, self.segments, outcome)
                if self.filling and self._is_needed(one):
                    self._waiting.append(one)
                    self.waiting_bytes += size_of(one.rows)
        return outcome

    def _apply(self, one: BackupEntry, among: Sequence[int], before: HandlerResult) -> HandlerResult:
        """Apply a change to the segments ``among`` these that it names and that lack it."""
        state, change = self.state, one.change
        if state is None:
            return HandlerResult()
        named = set(one.segments())
        mine = [number for number in among if number in named and self._segment_seq[number] < change.seq]
        if not mine:
            return HandlerResult()
        mask = state.check.mask(mine)
        rows = one.rows
        if rows is not None and not (len(mine) == len(one.covers) == len(state.segments)):
            ranges = [self.ranges(number) for number in one.covers]
            wanted = set(mine)
            rows = restrict_rows(rows, ranges, [number in wanted for number in one.covers], listed=True)
        everywhere = mask is state.check.all_mask

        def make() -> None:
            state.write(change, rows, mask)
            state.record(change, mask, everywhere, one.rows)

        if not before.computations and state.work(change, rows, mask) <= self.inline:
            make()
            return HandlerResult()
        if before.computations and isinstance(chain := before.computations[-1].function, FunctionChain):
            chain.add(make)
            return HandlerResult()
        return HandlerResult(computations=[LongComputation(FunctionChain(make), lambda now: HandlerResult(), None)])

    # ------------------------------------------------------------ filling

    def fill(self, sender: str, message: m.BackfillPiece, arrays: m.Arrays) -> HandlerResult:
        """Take a piece of a segment. Segments are installed once all being filled are complete."""
        segment = message.segment
        filled = m.BackfillReceived(self.number, self.incarnation, segment, message.epoch, message.seq, message.piece)
        answer = Send(sender, filled)
        if segment in self._segment_seq or segment in self._complete:
            return HandlerResult([answer])
        if not _has_all_rows(message, arrays, isinstance(self.spec, Sparse)):
            return HandlerResult()  # damaged on the way: it will be resent
        arriving = self._arriving.get(segment)
        if arriving is None or arriving.seq < message.seq:
            self._discard(segment)
            arriving = self._arriving[segment] = ArrivingSegment(message.seq, message.pieces)
            self._trim_waiting()
        if arriving.seq != message.seq or message.piece >= arriving.pieces:
            return HandlerResult()
        if message.piece not in arriving.arrived and not self._place_rows(message, arrays):
            return HandlerResult()  # a piece that does not fit this table
        arriving.arrived.add(message.piece)
        arriving.books = message.books or arriving.books
        if arriving.is_complete():
            assert arriving.books is not None
            del self._arriving[segment]
            self._complete[segment] = (arriving.seq, arriving.books)
            if all(number in self._complete or number in self._segment_seq for number in self.filling):
                return self.install() + HandlerResult([answer])
        return HandlerResult([answer])

    def _place_rows(self, piece: m.BackfillPiece, arrays: m.Arrays) -> bool:
        """Put the rows of a piece where they will stay. False if they do not fit."""
        self._storage = self._storage or self._new_storage()
        keys, sparse = self.ranges(piece.segment), isinstance(self.spec, Sparse)
        if not arrays:
            return sparse or not len(keys)
        names = arrays[0] if sparse else None
        # All pieces but the last have the same number of rows: the last one is placed from the end.
        row = len(keys) - piece.rows if piece.piece == piece.pieces - 1 else piece.piece * piece.rows
        fits = bool(((names >= keys.start) & (names < keys.stop)).all()) if names is not None else True
        if piece.words != self._storage.image_words or not fits or not (sparse or 0 <= row <= len(keys) - piece.rows):
            return False
        self._storage.place(keys, row, arrays[-1].reshape(piece.rows, piece.words), names)
        return True

    def _discard(self, segment: int) -> None:
        discarded = self._arriving.pop(segment, None), self._complete.pop(segment, None)
        if any(discarded) and self._storage is not None:
            self._storage.release(self.ranges(segment))

    def install(self) -> HandlerResult:
        """Hold the complete segments, and apply the changes that waited for them."""
        new, self._complete = self._complete, {}
        self.rebuild(self.segments, arrived={segment: books for segment, (_, books) in new.items()})
        for segment, (seq, _) in new.items():
            self._segment_seq[segment] = seq
        waiting, outcome = self._waiting, HandlerResult()
        for one in waiting:
            outcome += self._apply(one, list(new), outcome)
        self._trim_waiting()
        return outcome

    def install_ours(self, is_member: Callable[[int], bool]) -> None:
        """A new view: install at once if a complete segment has us in its replica set.

        We may be primary of it by this very view, so nothing else that is awaited delays it.
        """
        if any(is_member(segment) for segment in self._complete):
            inline, self.inline = self.inline, 1 << 62
            self.install()
            self.inline = inline

    def adopt(self, images: Sequence[SegmentImage], seq: int) -> None:
        """Segments whose former primary is gone: from change ``seq`` on they follow this one.

        This says nothing about earlier changes to other segments: those being filled may still
        lack some.
        """
        self.rebuild(self.segments, images)
        self._segment_seq.update({image.segment: seq for image in images})

    def rebuild(
        self,
        segments: Sequence[int],
        more: Sequence[SegmentImage] = (),
        arrived: Mapping[int, m.SegmentBooks] | None = None,
    ) -> None:
        """Hold these of the present segments, these images and arrived ones; nothing else."""
        if self.state is not None and not more and not arrived and list(segments) == self.state.segments:
            return
        books = {number: self.state.books(number) for number in segments} if self.state is not None else {}
        books |= {image.segment: image.books for image in more} | dict(arrived or {})
        self._segment_seq = {number: self._segment_seq.get(number, 0) for number in sorted(books)}
        self._frozen = {segment: entries for segment, entries in self._frozen.items() if segment in self._segment_seq}
        if not books:
            self.state = None
            if self._storage is not None:
                self._storage.set_segments(())
            return
        self._storage = self._storage or self._new_storage()
        self.state = SegmentState(
            self.number, self.spec, [(number, self.ranges(number)) for number in self._segment_seq], self._storage
        )
        self.state.load_rows(more)
        self.state.load_books([books[number] for number in self._segment_seq])

    def drop(self, segments: Iterable[int]) -> None:
        """Drop these segments; they are no longer ours."""
        gone = set(segments)
        for segment in sorted(gone):
            self._discard(segment)
        self.rebuild([number for number in self.segments if number not in gone])
        self._trim_waiting()

    def renumber(self, split: SplitMap) -> None:
        """The table was split: everything gets new numbers. No segment is arriving."""
        every = [*self.uncommitted, *self._waiting, *(one for entries in self._frozen.values() for one in entries)]
        for one in dict.fromkeys(every):  # a change may be in several lists
            one.change, one.covers = renumbered(one.change, split), tuple(new_numbers(one.covers, split))
        self._segment_seq = {new: seq for number, seq in self._segment_seq.items() for new in split[number]}
        self._frozen = {new: entries for number, entries in self._frozen.items() for new in split[number]}
        self._early.clear()  # with the old numbers: they will be resent
        if self.state is not None:
            books = [self.state.books(number) for number in self.state.segments for _ in split[number]]
            segments = [(number, self.ranges(number)) for number in new_numbers(self.state.segments, split)]
            self.state = SegmentState(self.number, self.spec, segments, self.state.storage)
            self.state.load_books(books)

    def _trim_waiting(self) -> None:
        """Drop waiting changes that no segment being filled needs."""
        self._waiting = [one for one in self._waiting if self._is_needed(one)]
        self.waiting_bytes = sum(size_of(one.rows) for one in self._waiting)

    def _is_needed(self, one: BackupEntry) -> bool:
        return any(self._needs(number, one.change.seq) for number in one.covers)

    def _needs(self, number: int, seq: int) -> bool:
        """Whether a segment that is being filled will need this change: its image may have it."""
        if number not in self.filling or number in self._segment_seq:
            return False
        if (arriving := self._arriving.get(number)) is not None:
            return seq > arriving.seq
        return number not in self._complete or seq > self._complete[number][0]

    @property
    def known(self) -> set[int]:
        """Segments that are here or arriving."""
        return {*self._segment_seq, *self._arriving, *self._complete}

    # ------------------------------------------------------------ after the primary

    def freeze(self, segments: Iterable[int]) -> None:
        """These have another primary, or none: keep them as they are until a primary says more.

        The former primary's log may continue with other segments: it must not change these.
        """
        new = [number for number in segments if number in self._segment_seq and number not in self._frozen]
        if not new:
            return
        frozen = set(new)
        entries = [one for one in self.uncommitted if not frozen.isdisjoint(one.segments())]
        for number in new:
            self._segment_seq[number] = max(self.received_seq, self._segment_seq[number])
            self._frozen[number] = entries
        self._early.clear()  # what we still follow will be resent

    def thaw(self, segments: Iterable[int], seq: int) -> None:
        """Their primary is the same again and brought us level: follow its log from ``seq`` on."""
        for number in segments:
            del self._frozen[number]
            self._segment_seq[number] = seq

    def is_frozen(self, segment: int) -> bool:
        return segment in self._frozen

    def seqs(self, segments: Iterable[int]) -> list[int]:
        """The last change of the primary's log that each of these segments has."""
        return [self._segment_seq.get(segment, 0) for segment in segments]

    def changes_after(self, segments: Sequence[int], seqs: Sequence[int]) -> tuple[list[m.ReplicatedChange], m.Arrays]:
        """The changes that another survivor, which has those up to ``seqs``, lacks."""
        least = min(seqs, default=0)
        found = []
        for entries in self._frozen_changes(segments):
            wanted = {number for number in segments if self._frozen.get(number) is entries}
            for one in entries:
                only = [number for number in one.segments() if number in wanted]
                if one.change.seq <= least or not only:
                    continue
                rows = one.rows
                if rows is not None:
                    ranges = [self.ranges(number) for number in one.covers]
                    rows = restrict_rows(rows, ranges, [number in wanted for number in one.covers], listed=True)
                found.append((msgspec.structs.replace(one.change, only=only, start=-1, stop=-1, count=0), rows))
        return packed(found)

    def _frozen_changes(self, segments: Iterable[int]) -> list[list[BackupEntry]]:
        """The lists of changes of these frozen segments: one for all that froze together."""
        found: list[list[BackupEntry]] = []
        for number in segments:
            entries = self._frozen.get(number)
            if entries is not None and not any(entries is one for one in found):
                found.append(entries)
        return found

    def catch_up(self, changes: Sequence[m.ReplicatedChange], arrays: m.Arrays) -> HandlerResult | None:
        """Take from another survivor the changes that did not reach us. None: they are damaged."""
        found = unpacked(changes, arrays, self.spec.push_width)
        if found is None:
            return None
        outcome = HandlerResult()
        for change, rows in found:
            one = BackupEntry(change, rows, tuple(change.only))
            new = [number for number in change.only if self._segment_seq.get(number, change.seq) < change.seq]
            if new:
                for entries in self._frozen_changes(new):
                    entries.append(one)
                outcome += self._apply(one, new, outcome)
                self._segment_seq.update(dict.fromkeys(new, change.seq))
        return outcome


class Backups:
    """All that one server backs up of one table, by primary, and the placement that says so."""

    def __init__(self, me: str, incarnation: int, placed: m.TablePlaces, inline: int) -> None:
        self.me, self.incarnation, self.placed, self.inline = me, incarnation, placed, inline
        self.members: dict[str, int] = {}  # servers by name: incarnation
        self.by_primary: dict[tuple[str, int], Backup] = {}  # by name and incarnation
        self.counts: dict[str, int] = {}
        self._first_storage: DenseRows | None = None

    def new_storage(self, segments: Sequence[int] = ()) -> RowStorage:
        """Storage for rows, in one arena with all that this server has of the table."""
        storage = storage_for(self.placed.spec, [self.range(segment) for segment in segments], self._first_storage)
        # Sparse rows share no arena: nothing must keep them alive.
        if isinstance(storage, DenseRows):
            self._first_storage = self._first_storage or storage
        return storage

    def range(self, segment: int) -> KeyRange:
        starts = self.placed.starts
        return KeyRange(starts[segment], starts[segment + 1] if segment + 1 < len(starts) else self.placed.spec.span)

    def backup_for(self, primary: str) -> Backup:
        """The backup of this primary's present incarnation; made if there is none."""
        key = primary, self.members.get(primary, 0)
        backup = self.by_primary.get(key)
        if backup is None:
            number, spec = self.placed.number, self.placed.spec
            backup = Backup(number, spec, *key, self.range, self.inline, self.new_storage)
            self.by_primary[key] = backup
            backup.filling = self._filling(primary)
        return backup

    def backup_with(self, segment: int) -> Backup | None:
        """The backup that has this segment, for any primary."""
        return next((backup for backup in self.by_primary.values() if segment in backup.segments), None)

    def _filling(self, primary: str) -> set[int]:
        places = enumerate(self.placed.places)
        return {segment for segment, one in places if one.filling == self.me and one.servers[:1] == [primary]}

    def is_primary(self, sender: str, segments: Iterable[int], view: int) -> bool:
        """Whether our own view names this server as primary of all of these segments."""
        places = self.placed.places
        return all(
            segment < len(places) and places[segment].servers[:1] == [sender] and view >= places[segment].since
            for segment in segments
        )

    def install_ours(self) -> None:
        """A new placement: install complete segments that have us in their replica set."""
        for backup in self.by_primary.values():
            backup.install_ours(lambda segment: self.me in self.placed.places[segment].servers)

    def drop_stale(self, returned: Container[int] = ()) -> None:
        """Drop segments that are not ours, and freeze those that lost their primary.

        ``returned`` are segments that another server was primary of meanwhile: they freeze too.
        """
        for key, backup in list(self.by_primary.items()):
            gone, orphans = [], []
            lives = self.members.get(key[0], 0) == key[1]
            for segment in backup.known:
                place = self.placed.places[segment]
                if lives and place.servers[:1] == [key[0]] and segment not in returned and key[0] != self.me:
                    keep = self.me in place.servers or place.filling == self.me
                else:
                    keep = self.me in place.servers and segment in backup.segments
                    orphans.append(segment)
                if not keep:
                    gone.append(segment)
            backup.filling = self._filling(key[0]) if lives else set()
            if gone:
                backup.drop(gone)
            backup.freeze(orphans)
            if not backup.known and (not lives or key[0] == self.me):
                del self.by_primary[key]

    def renumber(self, split: SplitMap, placed: m.TablePlaces) -> None:
        """The table was split more finely; ``placed`` is the placement with the new numbers."""
        for backup in self.by_primary.values():
            backup.install_ours(lambda segment: self.me in placed.places[split[segment][0]].servers)
            backup.drop([segment for segment in sorted(backup.known) if segment not in backup.segments])
        self.placed = placed
        for backup in self.by_primary.values():
            backup.renumber(split)

    def count_ignored(self, why: str) -> HandlerResult:
        """Count a message that is dropped."""
        self.counts[why] = self.counts.get(why, 0) + 1
        return HandlerResult()


def _has_all_rows(piece: m.BackfillPiece, arrays: m.Arrays, sparse: bool) -> bool:
    """Whether a piece has as many keys and floats as its header says."""
    if not arrays:
        return not piece.rows
    sizes = [piece.rows, piece.rows * piece.words] if sparse else [piece.rows * piece.words]
    return [len(array) for array in arrays] == sizes
