"""Fills a new backup: sends a segment's image in pieces while the primary keeps serving.

A fill belongs to one epoch of a segment: when the segment's replica set changes, the fill is void.
Segments go one after another, so that at most one image is in memory, with few pieces in flight,
so that pushes and pulls are not delayed. Changes made meanwhile follow through the log. A segment
that merely moves obeys the server's ``RateLimit``; one that replaces a lost replica does not. When
the other side has everything it becomes *required*, and then the coordinator learns of it.
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
    copy_after: int  # the image is taken when all changes up to this one are applied
    link_bytes: int  # of the link when the image was taken: later bytes are queued there
    image: SegmentImage | None = None
    seq: int = 0  # the last change that the image has
    pieces: int = 0
    per_piece: int = 0  # rows
    sent_at: dict[int, int] = field(default_factory=dict)  # piece -> when
    acknowledged: set[int] = field(default_factory=set)


class Backfill:
    """One server that is being filled with segments of one table."""

    def __init__(self, log: ReplicationLog, link: BackupLink, rate_limit: RateLimit | None = None) -> None:
        self.log, self.link, self._rate_limit = log, link, rate_limit or RateLimit()
        self._rate_limited: set[int] = set()  # segments that merely move: rate-limited
        self.epochs: dict[int, int] = {}  # of the segments that it is filled with
        # Reported to the coordinator: nothing is counted without them.
        self.reported: dict[int, int] = {}
        self._remaining: list[int] = []
        self._transfer: SegmentTransfer | None = None
        self._reported_at: int | None = None
        self._last_answer = 0  # when the other side last answered

    def set_segments(self, epochs: dict[int, int], rate_limited: Iterable[int] = ()) -> None:
        """Fill it with these, by the newest view. Segments of the same epoch stay valid."""
        self._rate_limited = set(rate_limited)
        new = [segment for segment, epoch in epochs.items() if self.epochs.get(segment) != epoch]
        stay = {segment for segment, epoch in epochs.items() if self.epochs.get(segment) == epoch}
        self._remaining = sorted([*new, *(segment for segment in self._remaining if segment in stay)])
        if self._transfer is not None and self._transfer.segment not in stay:
            self._transfer = None
        self.reported = {segment: epoch for segment, epoch in self.reported.items() if segment in stay}
        if new:
            self._reported_at = None
        self.epochs = dict(epochs)

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that the other side queues until the image is complete."""
        return self.link.total_bytes - self._transfer.link_bytes if self._transfer is not None else 0

    @property
    def is_complete(self) -> bool:
        return not self._remaining and self._transfer is None

    def advance(self, now: int, state: SegmentState, coordinator: str) -> list[Effect]:
        """Send what can be sent now."""
        if self.is_complete:
            return self._report_full(now, coordinator)
        if self._transfer is None:
            segment = self._remaining.pop(0)
            self.log.add_link(now, self.link.name, self.link.incarnation, [segment], required=False)
            self._transfer, self._last_answer = SegmentTransfer(segment, self.log.seq, self.link.total_bytes), now
        transfer = self._transfer
        if transfer.image is None:
            if self.log.applied < transfer.copy_after:
                return []
            transfer.image, transfer.seq = state.image(transfer.segment), self.log.applied
            transfer.link_bytes = self.link.total_bytes
            rows = len(transfer.image.rows)
            transfer.per_piece = max(1, limits.FILL_BYTES // max(1, 4 * transfer.image.rows.shape[1] + 8))
            transfer.pieces = max(1, -(-rows // transfer.per_piece))
        return self._send(now, transfer, transfer.image)

    def handle_filled(self, now: int, message: m.BackfillReceived) -> None:
        transfer = self._transfer
        if transfer is None or (message.segment, message.seq) != (transfer.segment, transfer.seq):
            return
        if message.epoch != self.epochs[transfer.segment] or transfer.image is None:
            return
        self._last_answer = now
        transfer.acknowledged.add(message.piece)
        transfer.sent_at.pop(message.piece, None)
        if len(transfer.acknowledged) == transfer.pieces:
            self._transfer = None
            self.require()

    def require(self) -> None:
        """Make the link required: before anyone may promote that server, until we know of it."""
        self.link.required = self.link.required or self.is_complete or bool(self.reported)

    def _send(self, now: int, transfer: SegmentTransfer, image: SegmentImage) -> list[Effect]:
        late = [piece for piece, when in transfer.sent_at.items() if now - when >= 3 * self.log.timing.copy_resend]
        done = {*transfer.acknowledged, *transfer.sent_at}
        new = [piece for piece in range(transfer.pieces) if piece not in done]
        room = max(0, limits.FILLS_FLYING - len(transfer.sent_at))
        effects: list[Effect] = []
        slowly = transfer.segment in self._rate_limited
        for piece in [*late, *new[:room]]:
            if slowly and not self._rate_limit.allows(now):
                break
            if not transfer.sent_at:
                self._last_answer = now  # no answer was due before
            transfer.sent_at[piece] = now
            effects.append(self._piece(transfer, image, piece))
            if slowly:
                self._rate_limit.sent(image.nbytes // transfer.pieces)
        return effects

    def _piece(self, transfer: SegmentTransfer, image: SegmentImage, piece: int) -> Effect:
        low, high = piece * transfer.per_piece, (piece + 1) * transfer.per_piece
        arrays: list[m.Array] = [image.rows[low:high].reshape(-1)]
        if image.names is not None:
            arrays.insert(0, image.names[low:high])
        fill = m.BackfillPiece(
            self.log.table,
            self.log.view,
            self.log.incarnation,
            self.link.incarnation,
            transfer.segment,
            self.epochs[transfer.segment],
            transfer.seq,
            piece,
            transfer.pieces,
            len(image.rows[low:high]),
            image.rows.shape[1],
            image.books if piece == 0 else None,
        )
        return Send(self.link.name, fill, arrays)

    def _report_full(self, now: int, coordinator: str) -> list[Effect]:
        self.require()  # a view may leave it nothing more to get
        recent = self._reported_at is not None and now - self._reported_at < self.log.timing.notice
        if recent or self.link.acked < self.log.applied:
            return []  # it must also have what was counted before it was required
        self._reported_at = now
        self.reported = dict(self.epochs)
        segments = sorted(self.epochs)
        epochs = [self.epochs[segment] for segment in segments]
        full = m.BackfillComplete(
            self.log.incarnation, self.log.table, segments, epochs, self.link.name, self.link.incarnation
        )
        return [Send(coordinator, full)]

    def is_stuck(self, now: int) -> bool:
        """Whether nothing came back for too long; true now and then while it lasts."""
        if self._transfer is None or not self._transfer.sent_at or now - self._last_answer < self.log.timing.shrink:
            return False
        self._last_answer = now - self.log.timing.shrink + self.log.timing.notice
        return True
