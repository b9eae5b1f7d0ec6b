"""Everything one node can say to another, on one page. Each docstring is a sentence one node could say.

A message is a header and up to four arrays that ride behind it as raw frames: keys are uint64, values float32, both
little-endian (``coding`` turns them into bytes and back).

Identity: the coordinator hands every node that joins an *incarnation*, a number never given twice. Requests are numbered
from ``incarnation << 32``, so that an answer meant for an earlier life of a node matches nothing in the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
import numpy.typing as npt

from shoal.tables import Table

Array = npt.NDArray[Any]
Arrays = Sequence[Array]
EVERYWHERE = 1 << 30  # above any segment number
NO_CLOCK = -1

# Numbers in headers are bounded where they are decoded, so that no sum of two of them leaves 64 bits.
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 61)]
Signed = Annotated[int, msgspec.Meta(ge=-(1 << 61), le=1 << 61)]


class Message(msgspec.Struct, frozen=True, tag=str.lower, array_like=True, forbid_unknown_fields=True):
    """Base of every message. The tag on the wire is the class name in lower case."""

    frames: ClassVar[str] = ""  # the arrays behind the header: k for keys, v for values, capital if it may be missing


# ---------------------------------------------------------------- who is here


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One node of the cluster."""

    name: str
    incarnation: Count
    role: str
    address: str


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a segment: the first of the servers owns it, the others back it up. None: nobody is left."""

    epoch: int  # the number of the view in which its set of servers last changed
    servers: list[str]
    last: str = ""  # who held it last, if nobody does
    filling: str = ""  # who is being brought up to hold it, too: no member of the set yet
    since: int = 0  # the view in which the first of the servers became the first: what was split before goes elsewhere


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A table and where its segments are; segment i starts at key starts[i] and ends where the next one starts."""

    number: int  # never given twice, so that a table created again under the same name is another table
    name: str
    spec: Table
    starts: list[int]
    places: list[Place]
    origin: str = ""  # the folder of the checkpoint that its rows come from; empty: they begin at their initial values


class View(Message, frozen=True):
    """Coordinator: "these are the members and the tables from now on"."""

    term: Count
    number: Count
    generation: Count
    members: list[Member]
    tables: list[Placed]


class Hello(Message, frozen=True):
    """Anyone to coordinator: "I am here; this is my name, what I do and where I am reached"."""

    name: str
    role: str
    token: str  # made afresh for each life of a node: tells a resent hello from a second process
    address: str = ""


class Welcome(Message, frozen=True):
    """Coordinator: "you are this incarnation, and this is the view with you in it"."""

    token: str
    incarnation: Count
    view: View


class Over(Message, frozen=True):
    """Coordinator: "the life that said hello with this token has ended; if it is still yours, begin another"."""

    token: str


class Heartbeat(Message, frozen=True):
    """Anyone to coordinator: "I am alive, and this is the view I know"."""

    incarnation: Count
    view: Count
    failed: dict[int, str] = {}  # tables that this server could not set up, and why


class Alive(Message, frozen=True):
    """Coordinator: "I heard you"."""

    term: Count
    view: Count


class Leave(Message, frozen=True):
    """Anyone to coordinator: "I am going, do not wait for me"."""

    incarnation: Count


# ---------------------------------------------------------------- tables


class Create(Message, frozen=True):
    """Client to coordinator: "make this table"."""

    request: int
    name: str
    spec: Table


class Drop(Message, frozen=True):
    """Client to coordinator: "forget this table"."""

    request: int
    name: str


class Delay(Message, frozen=True):
    """Client to coordinator: "from now on workers may run this far ahead"."""

    request: int
    name: str
    max_delay: int | None


class Refresh(Message, frozen=True):
    """Client to coordinator: "send me the newest view"."""

    request: int


class Look(Message, frozen=True):
    """Anyone to coordinator: "how does it stand?"."""

    request: int


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A member, as the coordinator knows it."""

    name: str
    role: str
    incarnation: Count
    view: Count  # the newest that it said it has
    silence: Count  # nanoseconds since it was heard
    suspected: bool


class Course(msgspec.Struct, frozen=True, array_like=True):
    """How far a run is."""

    done: int  # slots counted
    limit: int  # of the slots that are to be
    per_pass: int
    steps: int
    in_steps: bool  # slots are counted step by step
    examples: int
    seconds: float
    computing: float  # seconds, to the last slot
    sent: int  # bytes, by all workers
    received: int
    over: str  # why nothing more is dealt
    failed: str
    ended: bool
    voids: dict[int, str]
    counts: dict[str, int]


class Standing(Message, frozen=True):
    """Coordinator: "this is how it stands"."""

    request: int
    term: Count
    view: Count
    generation: Count
    copies: Count
    members: list[Seen]
    lost: dict[str, str]  # servers that are gone, and why
    course: Course | None  # of the run, if there is one
    checkpoint: str  # the newest one; empty: none
    counts: dict[str, int]  # what happened to the coordinator


class Done(Message, frozen=True):
    """Coordinator or server: "it is so"."""

    request: int


# ---------------------------------------------------------------- training

Run = tuple[Count, Count]  # slots from the first up to, not including, the second, counted over all passes


class Want(Message, frozen=True):
    """Worker to coordinator: "these slots are counted, this is how it goes, and I have room for so many more"."""

    request: int
    incarnation: Count
    more: Count
    counted: list[Run] = []
    back: list[Run] = []  # I shall not compute these: I am leaving
    refused: dict[Count, str] = {}  # slots whose gradient cannot be pushed, and why
    examples: Count = 0  # in the slots counted now
    loss: float = 0.0  # summed over them, each before its own update
    sent: Count = 0  # bytes, in this life
    received: Count = 0
    leaving: bool = False
    newer: Count = 0  # slots, dealt again, for which some servers had taken the step already: they read newer weights


class Deal(Message, frozen=True):
    """Coordinator: "compute these, in this order"."""

    request: int
    slots: list[Run]
    again: list[Run] = []  # were dealt before, and somebody may wait for them: first
    void: list[Count] = []  # nobody can compute these: push them empty
    over: str = ""  # nothing will come any more, and why; or you are asked to leave


class Ready(Message, frozen=True):
    """Evaluator to coordinator: "I hold the weights of this evaluation, this is what I found; what next?"."""

    request: int
    incarnation: Count
    holds: Signed = -1  # the evaluation whose weights are here
    found: Signed = -1  # the one whose loss follows
    loss: float = 0.0
    metrics: dict[str, float | None] = {}
    error: str = ""  # it cannot be judged, and why


class Judge(Message, frozen=True):
    """Coordinator: "judge the model now"; or, if the number is negative, "not yet"."""

    request: int
    number: Signed = -1
    clock: Signed = NO_CLOCK  # as the model is after so many steps, where the table knows steps
    over: bool = False  # this was the last one


# ---------------------------------------------------------------- copies


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One thing that happened to the segments of a server, in the order of its log: what a backup does after it."""

    seq: Count
    kind: str  # push, step, tick, enter, park
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
    """Numbers that are counted: all below the mark, and these."""

    mark: Count
    ahead: list[Count] = []


class Clocked(msgspec.Struct, frozen=True, array_like=True):
    """A worker, as one segment knows it."""

    name: str
    spell: Signed
    parked: bool
    entered: Count
    counted: Counts


class Books(msgspec.Struct, frozen=True, array_like=True):
    """All that is known of a segment besides its rows."""

    version: Count
    ledger: dict[int, Counts] = {}  # by stream
    clocks: dict[int, Clocked] = {}  # by the workers' incarnations


class Append(Message, frozen=True):
    """Primary to backup: "record these, in this order; all up to ``committed`` are on all copies"."""

    frames: ClassVar[str] = "KV"

    table: Count
    view: Count
    incarnation: Count
    to: Count  # the backup's incarnation
    covers: list[int]  # the segments that these are for
    base: Count  # where its following of this log begins
    committed: Count
    changes: list[Change]


class Appended(Message, frozen=True):
    """Backup to primary: "I have all of your changes up to this one"."""

    table: Count
    incarnation: Count  # of the primary
    seq: Count


class Fill(Message, frozen=True):
    """Primary to a server that is to become a backup: "this is a piece of that segment, as it was after this change"."""

    frames: ClassVar[str] = "KV"

    table: Count
    view: Count
    incarnation: Count
    to: Count
    segment: Count
    epoch: Count
    seq: Count
    piece: Count
    pieces: Count
    books: Books | None = None  # with the first piece


class Filled(Message, frozen=True):
    """Who is filled to the primary: "I have that piece"."""

    table: Count
    incarnation: Count  # of the primary
    segment: Count
    epoch: Count
    seq: Count
    piece: Count


class Level(Message, frozen=True):
    """New primary to another survivor: "of the last primary's changes I have these; what have you?"."""

    table: Count
    view: Count
    incarnation: Count
    to: Count
    segments: list[int]
    seqs: list[Count]


class Levels(Message, frozen=True):
    """Survivor to new primary: "I have these, and here is what you lack"."""

    frames: ClassVar[str] = "KV"

    table: Count
    view: Count
    incarnation: Count  # of the new primary
    segments: list[int]
    seqs: list[Count]
    changes: list[Change]


class Adopt(Message, frozen=True):
    """New primary to survivor: "with these you are level; from here on follow my changes after ``seq``"."""

    frames: ClassVar[str] = "KV"

    table: Count
    view: Count
    incarnation: Count
    to: Count
    segments: list[int]
    seq: Count
    changes: list[Change]


class Adopted(Message, frozen=True):
    """Survivor to new primary: "I follow you now"."""

    table: Count
    view: Count
    incarnation: Count  # of the new primary
    segments: list[int]


class Shrink(Message, frozen=True):
    """Primary to coordinator: "I cannot reach that backup: let me go on without it"."""

    incarnation: Count
    server: str
    theirs: Count  # its incarnation


class Full(Message, frozen=True):
    """Primary to coordinator: "that server has all of these segments now: it may be a member of their sets"."""

    incarnation: Count
    table: Count
    segments: list[int]
    epochs: list[Count]  # of these segments, as the primary knows them
    server: str
    theirs: Count


class Snap(Message, frozen=True):
    """Coordinator to server: "write your segments of this table to that folder, as they are after so many steps"."""

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
    books: Books


class Snapped(Message, frozen=True):
    """Server to coordinator: "they are on disk"; or why not."""

    number: Count
    incarnation: Count
    written: list[Written]
    error: str = ""


# ---------------------------------------------------------------- data


class Push(Message, frozen=True):
    """Client to server: "count this gradient for your segments from ``first`` to ``last``, once"."""

    frames: ClassVar[str] = "KKV"  # the keys to pull instead, if any; the pushed keys, if they are no range; values

    request: int
    table: Count
    view: Count  # the view by which this push was split
    generation: Count
    incarnation: Count
    stream: Signed  # a pass (0 and up), or minus the client's incarnation
    number: Count  # the slot, or the client's own counter
    floor: Count  # client streams: all below this is over and never comes again
    step: Count  # the worker's step that this ends, counted from 1; 0: not part of a step
    entered: Count  # the clock at which this worker started: it has no steps up to there
    spell: Count  # how often this worker has come back from parking
    first: Count
    last: Count
    count: Count  # rows of values
    start: int = -1  # a range of keys instead of a list of them, if not negative
    stop: int = -1
    read: list[Count] = []  # the versions its weights were read at, one for all segments or one for each
    void: bool = False  # an empty push in place of a slot that cannot be computed
    pull: bool = False  # answer with the new values of the same keys, or of those that follow
    clock: Signed = NO_CLOCK  # of that pull
    ahead: Signed = -1  # so many other keys stand before the pushed ones: pull these instead; -1: none are named


class Pull(Message, frozen=True):
    """Client to server: "send me these rows, as new as a worker at this clock may expect"."""

    frames: ClassVar[str] = "K"

    request: int
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


class Park(Message, frozen=True):
    """Worker to server: "I have nothing to do, do not wait for me"."""

    request: int
    incarnation: Count
    view: Count
    spell: Count


class Ask(Message, frozen=True):
    """Client to server: "how is this table doing?"."""

    request: int
    table: Count
    view: Count
    digests: bool = False  # also a hash of every segment that you hold


class Values(Message, frozen=True):
    """Server: "here they are" (and what was pushed with the question is counted)."""

    frames: ClassVar[str] = "KV"

    request: int
    count: Count
    versions: list[int]
    entered: Signed = NO_CLOCK  # the clock at which an entering worker was entered
    resume: int = -1  # the rest of a long range starts here


class Counted(Message, frozen=True):
    """Server: "counted" (``new``: by this very push, not before)."""

    request: int
    new: bool


class Held(Message, frozen=True):
    """Server: "I have it, and it waits for this"."""

    request: int
    waits: str


class Told(Message, frozen=True):
    """Server: "this is how the table is doing"."""

    request: int
    facts: dict[str, int]
    staleness: list[int]  # how many pushes were counted that stale, without trailing zeros
    own: dict[int, Count] = {}  # segments that it is primary of: version
    copies: dict[int, Count] = {}  # segments that it backs up
    lag: dict[str, Count] = {}  # changes that a backup has not acknowledged
    clocks: dict[str, Signed] = {}  # workers' lowest clocks; negative: parked
    digests: dict[int, str] = {}


class Fence(Message, frozen=True):
    """Anyone: "that incarnation is over"."""

    request: int
    incarnation: Count


class Moved(Message, frozen=True):
    """Server: "not all of that is mine: look at this view or a newer one, and send it again"."""

    request: int
    view: Count


class Rollback(Message, frozen=True):
    """Server: "we went back to a checkpoint: this is the generation now"."""

    request: int
    generation: Count


class Busy(Message, frozen=True):
    """Server: "not now, and this is why: ask again after so many nanoseconds"."""

    request: int
    retry_after: int
    why: str = ""


class No(Message, frozen=True):
    """Anyone: "no, and this is why; nothing was changed"."""

    request: int
    kind: str  # keys, values, table, setting, version, full
    reason: str


AnyMessage = (
    View | Hello | Welcome | Over | Heartbeat | Alive | Leave | Create | Drop | Delay | Refresh | Look | Standing | Done | Want | Deal | Ready
    | Judge | Append | Appended | Fill | Filled | Level | Levels | Adopt | Adopted | Shrink | Full | Snap | Snapped | Push | Pull | Park | Ask | Values | Counted | Held | Told | Fence | Moved | Rollback | Busy | No
)  # fmt: skip
