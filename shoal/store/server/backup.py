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
from shoal.store.server.outcome import HandlerResult, JoinedOutcome, LongComputation
from shoal.store.server.replicate import Into, cut, packed, renamed, size_of, those, unpacked
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.slab import DenseRows
from shoal.store.table.table import Ground, SegmentImage, ground_of
from shoal.tables import Sparse
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Send

Ranges = Callable[[int], KeyRange]  # of a segment


@dataclass(slots=True, eq=False)
class BackupEntry:
    """A change, its rows, and the segments that the rows cover."""

    change: m.ReplicatedChange
    given: KeyValues | None
    covers: tuple[int, ...]

    def named(self) -> list[int]:
        """The segments it changes, of those whose rows are here."""
        only = set(self.change.only)
        return [number for number in self.covers if not only or number in only]


@dataclass(slots=True)
class ArrivingSegment:
    """A segment of which some pieces are here."""

    seq: int
    pieces: int
    books: m.SegmentBooks | None = None
    here: set[int] = field(default_factory=set)  # pieces whose rows lie in their places

    def is_whole(self) -> bool:
        return self.books is not None and len(self.here) == self.pieces


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
        new_ground: Callable[[], Ground] | None = None,
    ) -> None:
        self.number, self.spec, self.primary, self.incarnation = number, spec, primary, incarnation
        self.ranges, self.inline = ranges, inline
        self._new_ground = new_ground or (lambda: ground_of(spec))
        self.part: SegmentState | None = None
        self._ground: Ground | None = None  # where rows lie: those held, and those arriving
        self.have = -1  # all changes up to this one are here; -1: none came yet
        self.kept: deque[BackupEntry] = deque()  # may not be on all replicas yet
        self._after: dict[int, int] = {}  # by segment: changes up to this one are in its image
        self._early: dict[int, tuple[m.Append, m.Arrays]] = {}  # came out of order
        self._arriving: dict[int, ArrivingSegment] = {}
        self._whole: dict[int, tuple[int, m.SegmentBooks]] = {}  # complete, not yet held
        self._waiting: list[BackupEntry] = []  # changes for segments that are not here yet
        self.waits = 0  # bytes of these
        self.awaited: set[int] = set()  # segments that we are being filled with
        # Of segments that left this primary: the changes kept then.
        self._frozen: dict[int, list[BackupEntry]] = {}

    @property
    def segments(self) -> list[int]:
        return [] if self.part is None else self.part.segments

    def clear_some(self) -> bool:
        """Free some of the memory of dropped rows; False if nothing is left to free."""
        return self._ground is not None and self._ground.clear_some()

    @property
    def live(self) -> list[int]:
        """The segments that follow the primary's log."""
        return [segment for segment in self.segments if segment not in self._frozen]

    # ------------------------------------------------------------ changes

    def begin(self, part: SegmentState) -> None:
        """Start with the same rows as the primary: a new table, or a restored one."""
        self.part, self._ground, self.have = part, part.ground, 0
        self._after = dict.fromkeys(part.segments, 0)

    def append(self, sender: str, message: m.Append, arrays: m.Arrays) -> HandlerResult:
        """Take changes; the answer says up to which one they are here."""
        self.have = max(self.have, message.base)
        if message.changes and message.changes[0].seq > self.have + 1:
            size = sum(array.nbytes for _, others in self._early.values() for array in others)
            if len(self._early) < limits.COPIES_EARLY and size <= limits.COPIES_HELD:
                self._early[message.changes[0].seq] = (message, arrays)
            return HandlerResult([self._acknowledge(sender)])
        # All awaited segments are held together, unless too much waits: the primary bounds it per
        # segment.
        outcome = self.merge() if self._whole and self.waits > limits.COPIES_HELD else HandlerResult()
        outcome = self._take(message, arrays, outcome)
        while (at := next((seq for seq in self._early if seq <= self.have + 1), None)) is not None:
            outcome = self._take(*self._early.pop(at), outcome)
        while self.kept and self.kept[0].change.seq <= message.committed:
            self.kept.popleft()
        outcome.effects.append(self._acknowledge(sender))
        return outcome

    def _acknowledge(self, sender: str) -> Send:
        return Send(sender, m.Appended(self.number, self.incarnation, self.have))

    def _take(self, message: m.Append, arrays: m.Arrays, outcome: HandlerResult) -> HandlerResult:
        """Take what is new of a message; ``outcome`` is the work that comes before it."""
        found = unpacked(message.changes, arrays, self.spec.push_width)
        if found is None:
            return outcome  # damaged on the way: it will be resent
        covers = tuple(message.covers)
        for change, given in found:
            if change.seq == self.have + 1:
                self.have = change.seq
                one = BackupEntry(change, given, covers)
                self.kept.append(one)
                outcome += self._make(one, self.segments, outcome)
                if self.awaited and self._is_awaited(one):
                    self._waiting.append(one)
                    self.waits += size_of(one.given)
        return outcome

    def _make(self, one: BackupEntry, among: Sequence[int], before: HandlerResult) -> HandlerResult:
        """Apply a change to those of these segments that it is for and that lack it."""
        part, change = self.part, one.change
        if part is None:
            return HandlerResult()
        named = set(one.named())
        mine = [number for number in among if number in named and self._after[number] < change.seq]
        if not mine:
            return HandlerResult()
        mask = part.extent.mask(mine)
        given = one.given
        if given is not None and not (len(mine) == len(one.covers) == len(part.segments)):
            ranges = [self.ranges(number) for number in one.covers]
            wanted = set(mine)
            given = cut(given, ranges, [number in wanted for number in one.covers], listed=True)
        everywhere = mask is part.extent.whole

        def make() -> None:
            part.write(change, given, mask)
            part.note(change, mask, everywhere, one.given)

        if not before.works and part.work(change, given, mask) <= self.inline:
            make()
            return HandlerResult()
        if before.works and isinstance(together := before.works[-1].function, JoinedOutcome):
            together.add(make)
            return HandlerResult()
        return HandlerResult(works=[LongComputation(JoinedOutcome(make), lambda now: HandlerResult(), None)])

    # ------------------------------------------------------------ filling

    def fill(self, sender: str, message: m.Fill, arrays: m.Arrays) -> HandlerResult:
        """Take a piece of a segment. Segments are held once all awaited ones are complete."""
        segment = message.segment
        answer = Send(
            sender, m.Filled(self.number, self.incarnation, segment, message.epoch, message.seq, message.piece)
        )
        if segment in self._after or segment in self._whole:
            return HandlerResult([answer])
        if not _came_whole(message, arrays, isinstance(self.spec, Sparse)):
            return HandlerResult()  # damaged on the way: it will be resent
        arriving = self._arriving.get(segment)
        if arriving is None or arriving.seq < message.seq:
            self._give_up(segment)
            arriving = self._arriving[segment] = ArrivingSegment(message.seq, message.pieces)
            self._let_go()
        if arriving.seq != message.seq or message.piece >= arriving.pieces:
            return HandlerResult()
        if message.piece not in arriving.here and not self._place(message, arrays):
            return HandlerResult()  # a piece that does not fit this table
        arriving.here.add(message.piece)
        arriving.books = message.books or arriving.books
        if arriving.is_whole():
            assert arriving.books is not None
            del self._arriving[segment]
            self._whole[segment] = (arriving.seq, arriving.books)
            if all(number in self._whole or number in self._after for number in self.awaited):
                return self.merge() + HandlerResult([answer])
        return HandlerResult([answer])

    def _place(self, piece: m.Fill, arrays: m.Arrays) -> bool:
        """Put the rows of a piece where they will stay. False if they do not fit."""
        self._ground = self._ground or self._new_ground()
        keys, sparse = self.ranges(piece.segment), isinstance(self.spec, Sparse)
        if not arrays:
            return sparse or not len(keys)
        names = arrays[0] if sparse else None
        # All pieces but the last have the same number of rows: the last one is placed from the end.
        row = len(keys) - piece.rows if piece.piece == piece.pieces - 1 else piece.piece * piece.rows
        fits = bool(((names >= keys.start) & (names < keys.stop)).all()) if names is not None else True
        if piece.words != self._ground.plain or not fits or not (sparse or 0 <= row <= len(keys) - piece.rows):
            return False
        self._ground.place(keys, row, arrays[-1].reshape(piece.rows, piece.words), names)
        return True

    def _give_up(self, segment: int) -> None:
        came = self._arriving.pop(segment, None), self._whole.pop(segment, None)
        if any(came) and self._ground is not None:
            self._ground.let_go(self.ranges(segment))

    def merge(self) -> HandlerResult:
        """Hold the complete segments, and apply what was done to them meanwhile."""
        new, self._whole = self._whole, {}
        self.keep(self.segments, arrived={segment: books for segment, (_, books) in new.items()})
        for segment, (seq, _) in new.items():
            self._after[segment] = seq
        waiting, outcome = self._waiting, HandlerResult()
        for one in waiting:
            outcome += self._make(one, list(new), outcome)
        self._let_go()
        return outcome

    def settle(self, members: Callable[[int], bool]) -> None:
        """A new view: hold at once what is complete and makes us a member of its replica set.

        We may be primary of it by this very view, so nothing else that is awaited delays it.
        """
        if any(members(segment) for segment in self._whole):
            inline, self.inline = self.inline, 1 << 62
            self.merge()
            self.inline = inline

    def adopt(self, images: Sequence[SegmentImage], seq: int) -> None:
        """Segments whose former primary is gone: from change ``seq`` on they follow this one.

        This says nothing about earlier changes to other segments: those being filled may still
        lack some.
        """
        self.keep(self.segments, images)
        self._after.update({image.segment: seq for image in images})

    def keep(
        self,
        segments: Sequence[int],
        more: Sequence[SegmentImage] = (),
        arrived: Mapping[int, m.SegmentBooks] | None = None,
    ) -> None:
        """Hold these of the present segments, these images, and what arrived; nothing else."""
        if self.part is not None and not more and not arrived and list(segments) == self.part.segments:
            return
        books = {number: self.part.books(number) for number in segments} if self.part is not None else {}
        books |= {image.segment: image.books for image in more} | dict(arrived or {})
        self._after = {number: self._after.get(number, 0) for number in sorted(books)}
        self._frozen = {segment: kept for segment, kept in self._frozen.items() if segment in self._after}
        if not books:
            self.part = None
            if self._ground is not None:
                self._ground.hold(())
            return
        self._ground = self._ground or self._new_ground()
        self.part = SegmentState(
            self.number, self.spec, [(number, self.ranges(number)) for number in self._after], self._ground
        )
        self.part.place(more)
        self.part.enter([books[number] for number in self._after])

    def drop(self, segments: Iterable[int]) -> None:
        """These are no longer ours to hold, nor to wait for."""
        gone = set(segments)
        for segment in sorted(gone):
            self._give_up(segment)
        self.keep([number for number in self.segments if number not in gone])
        self._let_go()

    def renumber(self, to: Into) -> None:
        """The table was split: everything gets new numbers. No segment is arriving."""
        every = [*self.kept, *self._waiting, *(one for kept in self._frozen.values() for one in kept)]
        for one in dict.fromkeys(every):  # a change may be in several lists
            one.change, one.covers = renamed(one.change, to), tuple(those(one.covers, to))
        self._after = {new: seq for number, seq in self._after.items() for new in to[number]}
        self._frozen = {new: kept for number, kept in self._frozen.items() for new in to[number]}
        self._early.clear()  # with the old numbers: they will be resent
        if self.part is not None:
            books = [self.part.books(number) for number in self.part.segments for _ in to[number]]
            held = [(number, self.ranges(number)) for number in those(self.part.segments, to)]
            self.part = SegmentState(self.number, self.spec, held, self.part.ground)
            self.part.enter(books)

    def _let_go(self) -> None:
        """Forget waiting changes that no awaited segment needs."""
        self._waiting = [one for one in self._waiting if self._is_awaited(one)]
        self.waits = sum(size_of(one.given) for one in self._waiting)

    def _is_awaited(self, one: BackupEntry) -> bool:
        return any(self._lacks(number, one.change.seq) for number in one.covers)

    def _lacks(self, number: int, seq: int) -> bool:
        """Whether a segment that is being filled will need this change: its image may have it."""
        if number not in self.awaited or number in self._after:
            return False
        if (arriving := self._arriving.get(number)) is not None:
            return seq > arriving.seq
        return number not in self._whole or seq > self._whole[number][0]

    @property
    def known(self) -> set[int]:
        """Segments that are here or arriving."""
        return {*self._after, *self._arriving, *self._whole}

    # ------------------------------------------------------------ after the primary

    def freeze(self, segments: Iterable[int]) -> None:
        """These have another primary, or none: what is here stays until a primary says more.

        The former primary may go on with other segments and its log; that must not pass for news
        of these.
        """
        new = [number for number in segments if number in self._after and number not in self._frozen]
        if not new:
            return
        frozen = set(new)
        kept = [one for one in self.kept if not frozen.isdisjoint(one.named())]
        for number in new:
            self._after[number] = max(self.have, self._after[number])
            self._frozen[number] = kept
        self._early.clear()  # what we still follow will be resent

    def thaw(self, segments: Iterable[int], seq: int) -> None:
        """Their primary is the same again and brought us level: follow its log from ``seq`` on."""
        for number in segments:
            del self._frozen[number]
            self._after[number] = seq

    def is_frozen(self, segment: int) -> bool:
        return segment in self._frozen

    def seqs(self, segments: Iterable[int]) -> list[int]:
        """The last change of the primary's log that each of these segments has."""
        return [self._after.get(segment, 0) for segment in segments]

    def lacks(self, segments: Sequence[int], seqs: Sequence[int]) -> tuple[list[m.ReplicatedChange], m.Arrays]:
        """What another survivor, which has changes up to ``seqs``, lacks of these segments."""
        least = min(seqs, default=0)
        found = []
        for kept in self._snapshots(segments):
            wanted = {number for number in segments if self._frozen.get(number) is kept}
            for one in kept:
                only = [number for number in one.named() if number in wanted]
                if one.change.seq <= least or not only:
                    continue
                given = one.given
                if given is not None:
                    ranges = [self.ranges(number) for number in one.covers]
                    given = cut(given, ranges, [number in wanted for number in one.covers], listed=True)
                found.append((msgspec.structs.replace(one.change, only=only, start=-1, stop=-1, count=0), given))
        return packed(found)

    def _snapshots(self, segments: Iterable[int]) -> list[list[BackupEntry]]:
        """The changes kept when these were frozen: one list for all that froze together."""
        found: list[list[BackupEntry]] = []
        for number in segments:
            kept = self._frozen.get(number)
            if kept is not None and not any(kept is one for one in found):
                found.append(kept)
        return found

    def catch_up(self, changes: Sequence[m.ReplicatedChange], arrays: m.Arrays) -> HandlerResult | None:
        """Take from another survivor the changes that did not reach us. None: they are damaged."""
        found = unpacked(changes, arrays, self.spec.push_width)
        if found is None:
            return None
        outcome = HandlerResult()
        for change, given in found:
            one = BackupEntry(change, given, tuple(change.only))
            new = [number for number in change.only if self._after.get(number, change.seq) < change.seq]
            if new:
                for kept in self._snapshots(new):
                    kept.append(one)
                outcome += self._make(one, new, outcome)
                self._after.update(dict.fromkeys(new, change.seq))
        return outcome


class Backups:
    """All that one server backs up of one table, by primary, and the placement that says so."""

    def __init__(self, me: str, incarnation: int, placed: m.TablePlaces, inline: int) -> None:
        self.me, self.incarnation, self.placed, self.inline = me, incarnation, placed, inline
        self.members: dict[str, int] = {}  # servers by name: incarnation
        self.by_primary: dict[tuple[str, int], Backup] = {}  # by name and incarnation
        self.counts: dict[str, int] = {}
        self._first_ground: DenseRows | None = None

    def new_ground(self, segments: Sequence[int] = ()) -> Ground:
        """Where rows will lie, beside all that this server has of the table."""
        ground = ground_of(self.placed.spec, [self.range(segment) for segment in segments], self._first_ground)
        # Sparse rows lie beside nobody's: nothing must keep them alive.
        if isinstance(ground, DenseRows):
            self._first_ground = self._first_ground or ground
        return ground

    def range(self, segment: int) -> KeyRange:
        starts = self.placed.starts
        return KeyRange(starts[segment], starts[segment + 1] if segment + 1 < len(starts) else self.placed.spec.span)

    def following(self, primary: str) -> Backup:
        """What is backed up for this primary, by its present incarnation."""
        key = primary, self.members.get(primary, 0)
        backup = self.by_primary.get(key)
        if backup is None:
            backup = self.by_primary[key] = Backup(
                self.placed.number, self.placed.spec, *key, self.range, self.inline, self.new_ground
            )
            backup.awaited = self._awaited(primary)
        return backup

    def holder(self, segment: int) -> Backup | None:
        """The backup that has this segment, for any primary."""
        return next((backup for backup in self.by_primary.values() if segment in backup.segments), None)

    def _awaited(self, primary: str) -> set[int]:
        places = enumerate(self.placed.places)
        return {segment for segment, one in places if one.filling == self.me and one.servers[:1] == [primary]}

    def is_primary(self, sender: str, segments: Iterable[int], view: int) -> bool:
        """Whether our own view names this server as primary of all of these segments."""
        places = self.placed.places
        return all(
            segment < len(places) and places[segment].servers[:1] == [sender] and view >= places[segment].since
            for segment in segments
        )

    def settle(self) -> None:
        """A new placement: hold what is complete and makes us a member of its replica set."""
        for backup in self.by_primary.values():
            backup.settle(lambda segment: self.me in self.placed.places[segment].servers)

    def drop_stale(self, returned: Container[int] = ()) -> None:
        """Drop what is not ours to hold, and freeze what lost its primary.

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
            backup.awaited = self._awaited(key[0]) if lives else set()
            if gone:
                backup.drop(gone)
            backup.freeze(orphans)
            if not backup.known and (not lives or key[0] == self.me):
                del self.by_primary[key]

    def renumber(self, to: Into, placed: m.TablePlaces) -> None:
        """The table was split more finely; ``placed`` is the placement with the new numbers."""
        for backup in self.by_primary.values():
            backup.settle(lambda segment: self.me in placed.places[to[segment][0]].servers)
            backup.drop([segment for segment in sorted(backup.known) if segment not in backup.segments])
        self.placed = placed
        for backup in self.by_primary.values():
            backup.renumber(to)

    def ignored(self, why: str) -> HandlerResult:
        """Count a message that is dropped."""
        self.counts[why] = self.counts.get(why, 0) + 1
        return HandlerResult()


def _came_whole(piece: m.Fill, arrays: m.Arrays, sparse: bool) -> bool:
    """Whether as many keys and floats came as were sent."""
    if not arrays:
        return not piece.rows
    sizes = [piece.rows, piece.rows * piece.words] if sparse else [piece.rows * piece.words]
    return [len(array) for array in arrays] == sizes
