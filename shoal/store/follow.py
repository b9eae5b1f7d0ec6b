"""A backup's side: it follows a primary's log, change by change, and holds the segments as the primary has them.

Changes are taken in order, acknowledged when they are here, and made at once. Those that are not known to be on all copies are
kept: if the primary dies, the survivors bring each other level with them. A segment that is still being filled gets its
image in pieces; what is done to it meanwhile waits until the image is whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from shoal import limits
from shoal.keys import KeyRange, KeyValues
from shoal.store.image import Image
from shoal.store.outcome import Outcome, Work
from shoal.store.part import Part
from shoal.store.replicate import cut, packed, unpacked
from shoal.tables import Sparse
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Send

Ranges = Callable[[int], KeyRange]  # of a segment


@dataclass(slots=True)
class Kept:
    """A change, the rows that came with it, and the segments that they are for."""

    change: m.Change
    given: KeyValues | None
    covers: tuple[int, ...]


@dataclass(slots=True)
class Arriving:
    """A segment of which pieces are here."""

    seq: int
    pieces: int
    books: m.Books | None = None
    rows: dict[int, m.Arrays] = field(default_factory=dict)

    def is_whole(self) -> bool:
        return self.books is not None and len(self.rows) == self.pieces


class Follow:
    """What one server holds of one table because another one is, or was, its primary."""

    def __init__(self, number: int, spec: Spec, primary: str, incarnation: int, ranges: Ranges, inline: int) -> None:
        self.number, self.spec, self.primary, self.incarnation = number, spec, primary, incarnation
        self.ranges, self.inline = ranges, inline
        self.part: Part | None = None
        self.have = -1  # all changes up to this one are here; -1: nothing was heard of the log yet
        self.kept: deque[Kept] = deque()  # not known to be on all copies
        self._after: dict[int, int] = {}  # by segment: changes up to this one are in its image
        self._early: dict[int, tuple[m.Append, m.Arrays]] = {}  # came before those that go before them
        self._arriving: dict[int, Arriving] = {}
        self._whole: dict[int, tuple[int, Image]] = {}  # images that are here, not yet part of the part
        self._waiting: list[Kept] = []  # changes for segments that are not here yet
        self.awaited: set[int] = set()  # segments that we are being filled with
        self._frozen: dict[
            int, list[Kept]
        ] = {}  # segments that this primary has no more, and what was kept of them then

    @property
    def segments(self) -> list[int]:
        return [] if self.part is None else self.part.segments

    # ------------------------------------------------------------ changes

    def begin(self, part: Part) -> None:
        """Both sides begin with the same rows, at the start of a table or of what was restored."""
        self.part, self.have = part, 0
        self._after = dict.fromkeys(part.segments, 0)

    def append(self, sender: str, message: m.Append, arrays: m.Arrays) -> Outcome:
        """Take changes; the answer says up to which they are here."""
        self.have = max(self.have, message.base)
        if message.changes and message.changes[0].seq > self.have + 1:
            if len(self._early) < limits.COPIES_EARLY:
                self._early[message.changes[0].seq] = (message, arrays)
            return Outcome([self._acknowledge(sender)])
        outcome = self._take(message, arrays)
        while (at := next((seq for seq in self._early if seq <= self.have + 1), None)) is not None:
            outcome += self._take(*self._early.pop(at))
        while self.kept and self.kept[0].change.seq <= message.committed:
            self.kept.popleft()
        outcome.effects.append(self._acknowledge(sender))
        return outcome

    def _acknowledge(self, sender: str) -> Send:
        return Send(sender, m.Appended(self.number, self.incarnation, self.have))

    def _take(self, message: m.Append, arrays: m.Arrays) -> Outcome:
        found = unpacked(message.changes, arrays, self.spec.push_width)
        outcome = Outcome()
        if found is None:
            return outcome  # damaged on the way: it comes again
        covers = tuple(message.covers)
        for change, given in found:
            if change.seq == self.have + 1:
                self.have = change.seq
                one = Kept(change, given, covers)
                self.kept.append(one)
                outcome += self._make(one, self.segments, outcome)
                if self.awaited and self._is_awaited(one):
                    self._waiting.append(one)
        return outcome

    def _make(self, one: Kept, among: Sequence[int], before: Outcome) -> Outcome:
        """Make a change, in those of these segments that it is for and that do not have it; after what came ``before``."""
        part, change = self.part, one.change
        if part is None:
            return Outcome()
        named = set(change.only or one.covers)
        mine = [number for number in among if number in named and self._after[number] < change.seq]
        if not mine:
            return Outcome()
        mask = part.extent.mask(mine)
        given = one.given
        if given is not None and not (len(mine) == len(one.covers) == len(part.segments)):
            ranges = [self.ranges(number) for number in one.covers]
            wanted = set(mine)
            given = cut(given, ranges, [number in wanted for number in one.covers], listed=True)
        everywhere = mask is part.extent.whole

        def note(now: int) -> Outcome:
            part.note(change, mask, everywhere, one.given)
            return Outcome()

        if not before.works and part.work(change, given, mask) <= self.inline:
            part.write(change, given, mask)
            return note(0)
        return Outcome(works=[Work(lambda: part.write(change, given, mask), note, None)])

    # ------------------------------------------------------------ filling

    def fill(self, sender: str, message: m.Fill, arrays: m.Arrays) -> Outcome:
        """Take a piece of a segment. When all that are awaited are whole they become part of what is held."""
        segment = message.segment
        answer = Send(
            sender, m.Filled(self.number, self.incarnation, segment, message.epoch, message.seq, message.piece)
        )
        if segment in self._after or segment in self._whole:
            return Outcome([answer])
        if not _came_whole(message, arrays, isinstance(self.spec, Sparse)):
            return Outcome()  # damaged on the way: it comes again
        arriving = self._arriving.get(segment)
        if arriving is None or arriving.seq < message.seq:
            arriving = self._arriving[segment] = Arriving(message.seq, message.pieces)
        if arriving.seq != message.seq or message.piece >= arriving.pieces:
            return Outcome()
        arriving.books = message.books or arriving.books
        arriving.rows[message.piece] = arrays
        if arriving.is_whole():
            del self._arriving[segment]
            image = self._image(segment, arriving)
            if image is None:
                return Outcome()  # pieces that do not fit each other: of somebody who does not know the table
            self._whole[segment] = (arriving.seq, image)
            if all(number in self._whole or number in self._after for number in self.awaited):
                return self.merge() + Outcome([answer])
        return Outcome([answer])

    def _image(self, segment: int, arriving: Arriving) -> Image | None:
        assert arriving.books is not None
        pieces = [arriving.rows[piece] for piece in range(arriving.pieces)]
        keys, sparse = self.ranges(segment), isinstance(self.spec, Sparse)
        rows = np.concatenate([np.empty(0, np.float32), *(piece[-1] for piece in pieces if piece)])
        names = np.concatenate([np.empty(0, np.uint64), *(piece[0] for piece in pieces if piece)]) if sparse else None
        count = len(keys) if names is None else len(names)
        if count and (len(rows) < count or len(rows) % count):
            return None
        return Image(segment, keys, arriving.books, rows.reshape(count, -1) if count else rows.reshape(0, 1), names)

    def merge(self) -> Outcome:
        """The images that are here become part of what is held, and catch up with what was done meanwhile."""
        new, self._whole = self._whole, {}
        self.keep(self.segments, [image for _, image in new.values()])
        for segment, (seq, _) in new.items():
            self._after[segment] = seq
        waiting, outcome = self._waiting, Outcome()
        for one in waiting:
            outcome += self._make(one, list(new), outcome)
        self._waiting = [one for one in waiting if self._is_awaited(one)]
        return outcome

    def settle(self, members: Callable[[int], bool]) -> None:
        """A new view: what came whole and makes us a member is part of what is held, whatever else is still awaited.

        At once, whatever it costs: we may be primary of it by this very view.
        """
        if any(members(segment) for segment in self._whole):
            inline, self.inline = self.inline, 1 << 62
            self.merge()
            self.inline = inline

    def adopt(self, images: Sequence[Image], seq: int) -> None:
        """Segments whose former primary is gone: from this change on they follow this one."""
        self.have = max(self.have, seq) if not self.segments else self.have
        self.keep(self.segments, images)
        self._after.update({image.segment: seq for image in images})

    def keep(self, segments: Sequence[int], more: Sequence[Image] = ()) -> None:
        """Hold these of the segments there are, and what these images are; nothing else."""
        if self.part is not None and not more and list(segments) == self.part.segments:
            return
        images = [self.part.image(number, copy=False) for number in segments] if self.part is not None else []
        images = sorted([*images, *more], key=lambda image: image.segment)
        self._after = {image.segment: self._after.get(image.segment, 0) for image in images}
        self._frozen = {segment: kept for segment, kept in self._frozen.items() if segment in self._after}
        self.part = part_of(self.number, self.spec, images)

    def drop(self, segments: Iterable[int]) -> None:
        """These are not ours to hold any more, nor to wait for."""
        gone = set(segments)
        for segment in gone:
            self._arriving.pop(segment, None)
            self._whole.pop(segment, None)
        self.keep([number for number in self.segments if number not in gone])
        self._waiting = [one for one in self._waiting if self._is_awaited(one)]

    def _is_awaited(self, one: Kept) -> bool:
        return any(number in self.awaited and number not in self._after for number in one.covers)

    @property
    def known(self) -> set[int]:
        """Segments that are here, or on their way."""
        return {*self._after, *self._arriving, *self._whole}

    # ------------------------------------------------------------ after the primary

    def freeze(self, segments: Iterable[int]) -> None:
        """These have another primary by now, or none: what is here of them is what there is, until the next one says more.

        The former primary may go on with others that it has, and its log with it: that must not pass for news of these.
        """
        new = [number for number in segments if number in self._after and number not in self._frozen]
        if not new:
            return
        frozen = set(new)
        kept = [one for one in self.kept if not frozen.isdisjoint(one.change.only or one.covers)]
        for number in new:
            self._after[number] = max(self.have, self._after[number])
            self._frozen[number] = kept
        self._early.clear()  # of what is still ours to follow it comes again

    def is_frozen(self, segment: int) -> bool:
        return segment in self._frozen

    def seqs(self, segments: Iterable[int]) -> list[int]:
        """Up to which change these segments are the primary's."""
        return [self._after.get(segment, 0) for segment in segments]

    def lacks(self, segments: Sequence[int], seqs: Sequence[int]) -> tuple[list[m.Change], m.Arrays]:
        """What another survivor lacks, which has these changes of these segments: as it travels, for these only."""
        least = min(seqs, default=0)
        found = []
        for kept in self._snapshots(segments):
            wanted = {number for number in segments if self._frozen.get(number) is kept}
            for one in kept:
                only = [number for number in (one.change.only or one.covers) if number in wanted]
                if one.change.seq <= least or not only:
                    continue
                given = one.given
                if given is not None:
                    ranges = [self.ranges(number) for number in one.covers]
                    given = cut(given, ranges, [number in wanted for number in one.covers], listed=True)
                found.append((msgspec.structs.replace(one.change, only=only, start=-1, stop=-1, count=0), given))
        return packed(found)

    def _snapshots(self, segments: Iterable[int]) -> list[list[Kept]]:
        """What was kept of these when they were frozen: once for all that were at one moment."""
        found = [self._frozen[number] for number in segments if number in self._frozen]
        return list({id(kept): kept for kept in found}.values())

    def catch_up(self, changes: Sequence[m.Change], arrays: m.Arrays) -> Outcome | None:
        """Take from another survivor what the primary had sent to it and not to us. These are for named segments only.

        None if they were damaged on the way: nothing was taken.
        """
        found = unpacked(changes, arrays, self.spec.push_width)
        if found is None:
            return None
        outcome = Outcome()
        for change, given in found:
            one = Kept(change, given, tuple(change.only))
            new = [number for number in change.only if self._after.get(number, change.seq) < change.seq]
            if new:
                for kept in self._snapshots(new):
                    kept.append(one)
                outcome += self._make(one, new, outcome)
                self._after.update(dict.fromkeys(new, change.seq))
        return outcome


def part_of(number: int, spec: Spec, images: Sequence[Image]) -> Part | None:
    if not images:
        return None
    part = Part(number, spec, [(image.segment, image.keys) for image in images])
    part.load(images)
    return part


def _came_whole(piece: m.Fill, arrays: m.Arrays, sparse: bool) -> bool:
    """Whether as many names and floats came as were sent."""
    if not arrays:
        return not piece.rows
    sizes = [piece.rows, piece.rows * piece.words] if sparse else [piece.rows * piece.words]
    return [len(array) for array in arrays] == sizes
