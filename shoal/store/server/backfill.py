"""Fills a new backup: sends a segment's image in pieces while the primary keeps serving.

A fill belongs to one epoch of a segment: when the segment's replica set changes, the fill is void.
Segments go one after another, so that at most one image is in memory, with few pieces in flight,
so that pushes and pulls are not delayed. Changes made meanwhile follow through the log. A segment
that merely moves obeys the server's ``RateLimit``; one that replaces a lost replica does not. When
the other side has everything it becomes *required*, and then the coordinator hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal import limits
from shoal.store.server.replicate import BackupLink, ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.table import SegmentImage
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send


class RateLimit:
    """How many bytes of moving segments one server may send, for all its tables together.

    A sender may overdraw once, so that a piece of any size gets through, and then waits. Time is
    passed in.
    """

    def __init__(self, rate: int = limits.MOVE_RATE) -> None:
        self.rate = rate  # bytes a second
        self._left = 0.0
        self._at: int | None = None  # when that was computed

    def allows(self, now: int) -> bool:
        most = max(limits.FILL_BYTES, self.rate * limits.PACE_AHEAD // limits.SECOND)
        earned = most if self._at is None else self.rate * max(0, now - self._at) / limits.SECOND
        self._left, self._at = min(most, self._left + earned), now
        return self._left > 0

    def sent(self, size: int) -> None:
        self._left -= size


@dataclass(slots=True)
class SegmentTransfer:
    segment: int
    after: int  # it is copied when all changes up to this one are made
    taken: int  # bytes of changes sent to the other side before it queues them
    image: SegmentImage | None = None
    seq: int = 0  # the last change that the image has
    pieces: int = 0
    per_piece: int = 0  # rows
    sent: dict[int, int] = field(default_factory=dict)  # piece -> when
    there: set[int] = field(default_factory=set)


class Backfill:
    """One server that is being filled with segments of one table."""

    def __init__(self, log: ReplicationLog, link: BackupLink, pace: RateLimit | None = None) -> None:
        self.log, self.link, self._pace = log, link, pace or RateLimit()
        self._slowly: set[int] = set()  # segments that merely move: rate-limited
        self.epochs: dict[int, int] = {}  # of the segments that it is filled with
        # Reported to the coordinator: nothing is counted without them.
        self.promised: dict[int, int] = {}
        self._left: list[int] = []
        self._moving: SegmentTransfer | None = None
        self._told: int | None = None
        self._heard = 0  # when the other side last said anything

    def want(self, epochs: dict[int, int], slowly: Iterable[int] = ()) -> None:
        """Fill it with these, by the newest view. What it has stays valid in the same epoch."""
        self._slowly = set(slowly)
        new = [segment for segment, epoch in epochs.items() if self.epochs.get(segment) != epoch]
        stay = {segment for segment, epoch in epochs.items() if self.epochs.get(segment) == epoch}
        self._left = sorted([*new, *(segment for segment in self._left if segment in stay)])
        if self._moving is not None and self._moving.segment not in stay:
            self._moving = None
        self.promised = {segment: epoch for segment, epoch in self.promised.items() if segment in stay}
        if new:
            self._told = None
        self.epochs = dict(epochs)

    @property
    def ahead(self) -> int:
        """Bytes of changes that the other side queues until the image is complete."""
        return self.link.taken - self._moving.taken if self._moving is not None else 0

    @property
    def is_full(self) -> bool:
        return not self._left and self._moving is None

    def advance(self, now: int, part: SegmentState, coordinator: str) -> list[Effect]:
        """Send what can be sent now."""
        if self.is_full:
            return self._tell(now, coordinator)
        if self._moving is None:
            segment = self._left.pop(0)
            self.log.follow(now, self.link.name, self.link.incarnation, [segment], required=False)
            self._moving, self._heard = SegmentTransfer(segment, self.log.seq, self.link.taken), now
        moving = self._moving
        if moving.image is None:
            if self.log.applied < moving.after:
                return []
            moving.image, moving.seq = part.image(moving.segment), self.log.applied
            moving.taken = self.link.taken
            rows = len(moving.image.rows)
            moving.per_piece = max(1, limits.FILL_BYTES // max(1, 4 * moving.image.rows.shape[1] + 8))
            moving.pieces = max(1, -(-rows // moving.per_piece))
        return self._send(now, moving, moving.image)

    def filled(self, now: int, message: m.Filled) -> None:
        moving = self._moving
        if moving is None or (message.segment, message.seq) != (moving.segment, moving.seq):
            return
        if message.epoch != self.epochs[moving.segment] or moving.image is None:
            return
        self._heard = now
        moving.there.add(message.piece)
        moving.sent.pop(message.piece, None)
        if len(moving.there) == moving.pieces:
            self._moving = None
            self.require()

    def require(self) -> None:
        """Make the link required: before anyone may promote that server, until we know of it."""
        self.link.required = self.link.required or self.is_full or bool(self.promised)

    def _send(self, now: int, moving: SegmentTransfer, image: SegmentImage) -> list[Effect]:
        late = [piece for piece, when in moving.sent.items() if now - when >= 3 * self.log.timing.copy_resend]
        new = [piece for piece in range(moving.pieces) if piece not in moving.there and piece not in moving.sent]
        room = max(0, limits.FILLS_FLYING - len(moving.sent))
        effects: list[Effect] = []
        slowly = moving.segment in self._slowly
        for piece in [*late, *new[:room]]:
            if slowly and not self._pace.allows(now):
                break
            if not moving.sent:
                self._heard = now  # no answer was due before
            moving.sent[piece] = now
            effects.append(self._piece(moving, image, piece))
            if slowly:
                self._pace.sent(image.nbytes // moving.pieces)
        return effects

    def _piece(self, moving: SegmentTransfer, image: SegmentImage, piece: int) -> Effect:
        low, high = piece * moving.per_piece, (piece + 1) * moving.per_piece
        arrays: list[m.Array] = [image.rows[low:high].reshape(-1)]
        if image.names is not None:
            arrays.insert(0, image.names[low:high])
        fill = m.Fill(
            self.log.table,
            self.log.view,
            self.log.incarnation,
            self.link.incarnation,
            moving.segment,
            self.epochs[moving.segment],
            moving.seq,
            piece,
            moving.pieces,
            len(image.rows[low:high]),
            image.rows.shape[1],
            image.books if piece == 0 else None,
        )
        return Send(self.link.name, fill, arrays)

    def _tell(self, now: int, coordinator: str) -> list[Effect]:
        self.require()  # a view may leave it nothing more to get
        if (self._told is not None and now - self._told < self.log.timing.notice) or self.link.acked < self.log.applied:
            return []  # it must also have what was counted before it was required
        self._told = now
        self.promised = dict(self.epochs)
        segments = sorted(self.epochs)
        epochs = [self.epochs[segment] for segment in segments]
        full = m.Full(self.log.incarnation, self.log.table, segments, epochs, self.link.name, self.link.incarnation)
        return [Send(coordinator, full)]

    def is_stuck(self, now: int) -> bool:
        """Whether nothing came back for too long; true now and then while it lasts."""
        if self._moving is None or not self._moving.sent or now - self._heard < self.log.timing.shrink:
            return False
        self._heard = now - self.log.timing.shrink + self.log.timing.notice
        return True
