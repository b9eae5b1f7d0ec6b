"""What clients ask of servers, and how servers answer."""

from __future__ import annotations

from typing import ClassVar

from shoal.tables import Wire
from shoal.wire.messages.base import NO_CLOCK, Count, Events, Numbered, Signed


class Push(Numbered, frozen=True, tag="push"):
    """Client to server: "count this gradient for your segments ``first`` to ``last``"."""

    frames: ClassVar[str] = "KKV"  # keys to pull instead, pushed keys unless a range, values
    table: Count
    view: Count  # the view by which this push was split
    generation: Count
    incarnation: Count
    stream: Signed  # a pass (0 and up), or minus the client's incarnation
    number: Count  # the slot, or the client's own counter
    floor: Count  # client streams: numbers below this never come again
    step: Count  # the worker's step that this ends, from 1; 0: none
    entered: Count  # the clock at which this worker started
    spell: Count  # how often this worker has returned from parking
    first: Count
    last: Count
    count: Count  # rows of values
    start: int = -1  # a range of keys instead of a list of them, if not negative
    stop: int = -1
    read: list[Count] = []  # versions its weights were read at: one, or one per segment
    void: bool = False  # an empty push in place of a slot that cannot be computed
    pull: bool = False  # answer with the new values of these keys, or ``ahead``
    clock: Signed = NO_CLOCK  # of that pull
    ahead: Signed = -1  # so many other keys come first: pull these; -1: none
    form: Wire = "float32"  # of its values, and allowed for the answer's
    filtered: bool = False  # arrays went through filters; the answer's may
    handle: Count = 0  # if not 0, the number of this key list: remember it,
    known: bool = False  # or use the keys that you know by it
    crc: Count = 0  # of those keys
    ahead_handle: Count = 0  # the same, of the keys to pull instead
    ahead_known: bool = False
    ahead_crc: Count = 0


class Pull(Numbered, frozen=True, tag="pull"):
    """Client to server: "send me these rows, as new as a worker at this clock may expect"."""

    frames: ClassVar[str] = "K"
    table: Count
    view: Count
    generation: Count
    incarnation: Count
    clock: Signed
    entered: Count
    spell: Count
    first: Count
    last: Count
    count: Count
    start: int = -1
    stop: int = -1
    enter: bool = False  # a worker's first pull, or its first since it was parked
    clocks: bool = False  # also the vector clocks of these keys
    form: Wire = "float32"  # in which the values may come
    filtered: bool = False  # as in Push
    handle: Count = 0
    known: bool = False
    crc: Count = 0


class Call(Numbered, frozen=True, tag="call"):
    """Client to server: "run the function of this name over your rows in this range"."""

    table: Count
    view: Count
    generation: Count
    name: str
    settings: dict[str, float]
    start: int
    stop: int


class Park(Numbered, frozen=True, tag="park"):
    """Worker to server: "I have nothing to do, do not wait for me"."""

    incarnation: Count
    view: Count
    spell: Count


class TableStatusRequest(Numbered, frozen=True, tag="ask"):
    """Client to server: "how is this table doing?"."""

    table: Count
    view: Count
    digests: bool = False  # also a hash of every segment that you hold


class Values(Numbered, frozen=True, tag="values"):
    """Server: "here they are" (and what was pushed with the request is counted)."""

    frames: ClassVar[str] = "KV"
    count: Count
    versions: list[int]
    entered: Signed = NO_CLOCK  # the clock at which an entering worker was entered
    resume: int = -1  # the rest of a long range starts here
    clocks: Events = []
    form: Wire = "float32"  # the one that was asked for, unless it could not hold them
    filtered: bool = False
    new: bool = True  # as in Counted, of what was pushed with the question
    part: bool = False


class Called(Numbered, frozen=True, tag="called"):
    """Server: "this is what it found"."""

    frames: ClassVar[str] = "KV"
    numbers: list[float]


class Forgot(Numbered, frozen=True, tag="forgot"):
    """Server: "I do not know these keys by that number: send the keys"."""


class Counted(Numbered, frozen=True, tag="counted"):
    """Server: "counted" (``new``: by this push, not before)."""

    new: bool
    part: bool = False  # new in some segments only: others had it before


class RequestHeld(Numbered, frozen=True, tag="held"):
    """Server: "I have it, and it waits for this"."""

    waits: str


class TableStatusReply(Numbered, frozen=True, tag="told"):
    """Server: "this is how the table is doing"."""

    facts: dict[str, int]
    staleness: list[int]  # how many pushes were counted that stale, without trailing zeros
    own: dict[int, Count] = {}  # segments that it is primary of: version
    copies: dict[int, Count] = {}  # segments that it backs up
    lag: dict[str, Count] = {}  # changes that a backup has not acknowledged
    clocks: dict[str, Signed] = {}  # workers' lowest clocks; negative: parked
    digests: dict[int, str] = {}


class Fence(Numbered, frozen=True, tag="fence"):
    """Anyone: "that incarnation is over"."""

    incarnation: Count


class SegmentsMoved(Numbered, frozen=True, tag="moved"):
    """Server: "not all of that is mine: send it again by this view or a newer one"."""

    view: Count


class Rollback(Numbered, frozen=True, tag="rollback"):
    """Server: "we rolled back to a checkpoint: this is the generation now"."""

    generation: Count


class Busy(Numbered, frozen=True, tag="busy"):
    """Server: "not now, and this is why: try again after so many nanoseconds"."""

    retry_after: int
    why: str = ""


class Refusal(Numbered, frozen=True, tag="no"):
    """Anyone: "no, and this is why; nothing was changed"."""

    kind: str  # keys, values, table, setting, question, version, full, disk, key (not let in)
    reason: str


RequestMessage = (
    Push | Pull | Call | Park | TableStatusRequest | Values | Called | Counted | Forgot | RequestHeld | TableStatusReply | Fence
    | SegmentsMoved | Rollback | Busy | Refusal
)  # fmt: skip
