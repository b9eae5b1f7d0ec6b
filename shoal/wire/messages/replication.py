"""What servers tell each other about replicas, and the coordinator about checkpoints.

A ``ReplicatedChange`` is one entry of a primary's log; ``SegmentBooks`` are all that is known of a
segment besides its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.limits import LEDGER_WINDOW
from shoal.wire.messages.base import NO_CLOCK, Count, Events, Message, Signed


class ReplicatedChange(msgspec.Struct, frozen=True, array_like=True):
    """One change to the segments of a server, in the order of its log."""

    seq: Count
    kind: str  # push, step, tick, enter, park, evict
    count: Count = 0  # rows, of those that ride behind the message
    start: int = -1  # they are a range, not a list of keys
    stop: int = -1
    only: list[int] = []  # the segments it is for; empty: all that the message covers
    stream: Signed = 0
    number: Count = 0
    floor: Count = 0
    incarnation: Count = 0
    step: Count = 0
    spell: Count = 0
    entered: Count = 0
    name: str = ""


class Counts(msgspec.Struct, frozen=True, array_like=True):
    """Counted numbers: all below the mark, and those whose bit is set, from the mark on."""

    mark: Count
    bits: Annotated[bytes, msgspec.Meta(max_length=LEDGER_WINDOW // 8 + 8)] = b""

    @classmethod
    def of(cls, mark: int, numbers: Iterable[int]) -> Counts:
        """All below the mark, and these."""
        ahead = np.fromiter(numbers, np.int64) - mark
        bits = np.zeros(int(ahead.max()) + 1 if len(ahead) else 0, np.bool_)
        bits[ahead] = True
        return cls(mark, np.packbits(bits, bitorder="little").tobytes())

    @property
    def ahead(self) -> npt.NDArray[np.int64]:
        """Those above the mark, in order."""
        return self.mark + np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, np.uint8), bitorder="little"))


class ClockedWorker(msgspec.Struct, frozen=True, array_like=True):
    """A worker, as one segment knows it."""

    name: str
    spell: Signed
    parked: bool
    entered: Count
    counted: Counts


class SegmentBooks(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of a segment besides its rows."""

    version: Count
    ledger: dict[int, Counts] = {}  # by stream
    clocks: dict[int, ClockedWorker] = {}  # by the workers' incarnations
    events: Events = []  # the vector clocks of its keys


class LogMessage(Message, frozen=True):
    """Base of messages about the log of one table's primary."""

    table: Count
    view: Count
    incarnation: Count  # of the primary


class ReplicaMessage(LogMessage, frozen=True):
    """Base of messages of a primary to another replica."""

    to: Count  # the incarnation of that replica


class Append(ReplicaMessage, frozen=True, tag="append"):
    """Primary to backup: "record these in order; all up to ``committed`` are on all replicas"."""

    frames: ClassVar[str] = "KV"
    covers: list[int]  # the segments that these are for
    base: Count  # where its following of this log begins
    committed: Count
    changes: list[ReplicatedChange]


class Appended(Message, frozen=True, tag="appended"):
    """Backup to primary: "I have all of your changes up to this one"."""

    table: Count
    incarnation: Count  # of the primary
    seq: Count


class BackfillPiece(ReplicaMessage, frozen=True, tag="fill"):
    """Primary to a future backup: "a piece of that segment, as it was after this change"."""

    frames: ClassVar[str] = "KV"
    segment: Count
    epoch: Count
    seq: Count
    piece: Count
    pieces: Count
    rows: Count  # in this piece, ...
    words: Count  # ... and floats in each, to detect damage
    books: SegmentBooks | None = None  # with the first piece


class BackfillReceived(Message, frozen=True, tag="filled"):
    """A server being filled to the primary: "I have that piece"."""

    table: Count
    incarnation: Count  # of the primary
    segment: Count
    epoch: Count
    seq: Count
    piece: Count


class Level(ReplicaMessage, frozen=True, tag="level"):
    """New primary to another survivor: "of the last primary's changes I have these; and you?"."""

    segments: list[int]
    seqs: list[Count]
    of: Count = 0  # incarnation of the last primary, whose log it is


class Levels(LogMessage, frozen=True, tag="levels"):
    """Survivor to new primary: "I have these, and here is what you lack"."""

    frames: ClassVar[str] = "KV"
    segments: list[int]
    seqs: list[Count]
    changes: list[ReplicatedChange]


class Adopt(ReplicaMessage, frozen=True, tag="adopt"):
    """New primary to survivor: "with these you are level; follow my changes after ``seq``"."""

    frames: ClassVar[str] = "KV"
    segments: list[int]
    seq: Count
    changes: list[ReplicatedChange]


class Adopted(LogMessage, frozen=True, tag="adopted"):
    """Survivor to new primary: "I follow you now"."""

    segments: list[int]


class Shrink(Message, frozen=True, tag="shrink"):
    """Primary to coordinator: "I cannot reach that backup: remove it from the set"."""

    incarnation: Count
    server: str
    theirs: Count  # its incarnation


class BackfillComplete(Message, frozen=True, tag="full"):
    """Primary to coordinator: "that server has all of these segments: it may join their sets"."""

    incarnation: Count
    table: Count
    segments: list[int]
    epochs: list[Count]  # of these segments, as the primary knows them
    server: str
    theirs: Count


class Snap(Message, frozen=True, tag="snap"):
    """Coordinator to server: "write your segments of this table there, after so many steps"."""

    number: Count  # of the checkpoint
    table: Count
    view: Count
    folder: str
    clock: Signed = NO_CLOCK  # where the table knows steps; otherwise: as they are


class Written(msgspec.Struct, frozen=True, array_like=True):
    """A segment on disk."""

    table: Count
    segment: Count
    file: str
    bytes: Count
    sha256: str
    books: SegmentBooks


class Snapped(Message, frozen=True, tag="snapped"):
    """Server to coordinator: "they are on disk"; or why not."""

    number: Count
    incarnation: Count
    written: list[Written]
    error: str = ""


ReplicationMessage = (
    Append | Appended | BackfillPiece | BackfillReceived | Level | Levels | Adopt | Adopted | Shrink | BackfillComplete | Snap
    | Snapped
)  # fmt: skip
