"""Messages about members, tables, moving segments, keys, and the status of the cluster.

A segment moves in four stages, and only the coordinator begins or ends one:

    named      the placement says which server is ``filling``, and ``instead`` of which
    copied     the owner serves on; sends an image (``BackfillPiece``), then every ``Append``
    full       from here on the owner counts nothing that the newcomer lacks (``BackfillComplete``)
    handed     a new view replaces the owner; the newcomer serves, and says so (``Opened``)
"""

from __future__ import annotations

import msgspec

from shoal import limits
from shoal.tables import Table
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.messages import groups as g
from shoal.wire.messages.base import Count, Message, Numbered


class Member(msgspec.Struct, frozen=True, array_like=True):
    """One node of the cluster."""

    name: str
    incarnation: Count
    role: str
    address: str
    leaving: bool = False  # it is given nothing new, and goes when others have what it has
    group: str = ""  # of workers that do the same job; empty: the cluster's own


class Replicas(msgspec.Struct, frozen=True, array_like=True):
    """The replicas of a segment: the first is primary, the others backups; none: lost."""

    epoch: int  # the number of the view in which its set of servers last changed
    servers: list[str]
    last: str = ""  # who held it last, if nobody does
    filling: str = ""  # who is being brought up to hold it, too: no member of the set yet
    since: int = 0  # the view in which the first of the servers became the first
    instead: str = ""  # whose place it takes when it is full; empty: it is one more


class TablePlaces(msgspec.Struct, frozen=True, array_like=True):
    """A table and its segments: segment i starts at key starts[i], up to the next start."""

    number: int  # never given twice: a table created again under a name is another table
    name: str
    spec: Table
    starts: list[int]
    places: list[Replicas]
    origin: str = ""  # the folder of the checkpoint that its rows come from, if any
    cut: int = 0  # the view in which a segment of it was last made two; 0: never


class View(Message, frozen=True, tag="view"):
    """Coordinator: "these are the members and the tables from now on"."""

    term: Count
    number: Count
    generation: Count
    members: list[Member]
    tables: list[TablePlaces]
    groups: list[g.GroupLimits] = []  # those that the operator has named
    timing: TimingSettings = DEFAULT  # that everybody goes by


class Hello(Message, frozen=True, tag="hello"):
    """Anyone to coordinator: "I am here; this is my name, what I do and where I am reached"."""

    name: str
    role: str
    token: str  # made afresh for each life of a node: tells a resent hello from a second process
    address: str = ""
    group: str = ""


class Welcome(Message, frozen=True, tag="welcome"):
    """Coordinator: "you are this incarnation, and this is the view with you in it"."""

    token: str
    incarnation: Count
    view: View
    move_rate: Count = limits.MOVE_RATE  # bytes a second that a server sends of what changes hands


class IncarnationOver(Message, frozen=True, tag="over"):
    """Coordinator: "the incarnation with this token is over; if it is yours, join again"."""

    token: str


class Heartbeat(Message, frozen=True, tag="heartbeat"):
    """Anyone to coordinator: "I am alive, and this is the view I know"."""

    incarnation: Count
    view: Count
    failed: dict[int, str] = {}  # tables that this server could not set up, and why
    loads: dict[int, dict[int, float]] = {}  # now and then: rows a second, by table and segment
    halves: dict[int, dict[int, int]] = {}  # of the hottest, the key that cuts their load in two


class Alive(Message, frozen=True, tag="alive"):
    """Coordinator: "I received your heartbeat"."""

    term: Count
    view: Count


class Leave(Message, frozen=True, tag="leave"):
    """Anyone to coordinator: "I leave, do not wait for me"."""

    incarnation: Count
    patiently: bool = False  # I go when others have what I have: I wait for your word (Release)


class Allowed(Message, frozen=True, tag="allowed"):
    """Coordinator to listening nodes: "only these keys may call you".

    For each its role, name, key, the group it is bound to (or none), and its expiry (0: never).
    """

    keys: list[tuple[str, str, str, str, Count]]


class Create(Numbered, frozen=True, tag="create"):
    """Client to coordinator: "create this table"."""

    name: str
    spec: Table
    starts: list[int] = []  # of its segments, up to 2^63; empty: as the servers there are suggest
    origin: str = ""  # the folder of a checkpoint that has its rows
    like: str = ""  # another table: cut and placed as that one is


class Drop(Numbered, frozen=True, tag="drop"):
    """Client to coordinator: "drop this table"."""

    name: str


class Delay(Numbered, frozen=True, tag="delay"):
    """Client to coordinator: "from now on workers may run this far ahead"."""

    name: str
    max_delay: int | None


class Refresh(Numbered, frozen=True, tag="refresh"):
    """Client to coordinator: "send me the newest view"."""


class Drain(Numbered, frozen=True, tag="drain"):
    """Any member to coordinator: "let that node leave, once others have what it holds"."""

    name: str


class Release(Message, frozen=True, tag="release"):
    """Coordinator to a node that is leaving: "nobody needs you any more"."""

    incarnation: Count


class Opened(Message, frozen=True, tag="opened"):
    """New primary to coordinator: "these segments are served by me, from this view on"."""

    incarnation: Count
    table: Count
    view: Count
    segments: list[int]


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A segment that is moving, as the coordinator knows it."""

    table: str
    segment: Count
    source: str
    target: str
    since: Count  # nanoseconds since it was named
    why: str  # count, leaving, load, copies


class StatusRequest(Numbered, frozen=True, tag="look"):
    """Anyone to coordinator: "what is the status?"."""


class MemberStatus(msgspec.Struct, frozen=True, array_like=True):
    """A member, as the coordinator knows it."""

    name: str
    role: str
    incarnation: Count
    view: Count  # the newest that it said it has
    silence: Count  # nanoseconds since it was heard
    suspected: bool
    leaving: bool = False
    group: str = ""
    load: float = 0.0  # of a server: rows a second
    address: str = ""


class RunProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a run."""

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
    filtered: dict[str, list[int]] = {}  # bytes into and out of each filter, of all workers
    left: tuple[float, float] = (0.0, 0.0)  # norms of what filters left for later, and lost


class StatusReply(Numbered, frozen=True, tag="standing"):
    """Coordinator: "this is the status"."""

    term: Count
    view: Count
    generation: Count
    copies: Count
    members: list[MemberStatus]
    lost: dict[str, str]  # servers that are gone, and why
    course: RunProgress | None  # of the run, if there is one
    checkpoint: str  # the newest one; empty: none
    counts: dict[str, int]  # what happened to the coordinator
    moves: list[Move] = []  # segments that are changing hands
    timing: TimingSettings = DEFAULT  # that everybody goes by


class Save(Numbered, frozen=True, tag="save"):
    """Client to coordinator: "write a checkpoint now, and answer when it is on disk"."""


class Done(Numbered, frozen=True, tag="done"):
    """Coordinator or server: "done"."""


MembershipMessage = (
    View | Hello | Welcome | IncarnationOver | Heartbeat | Alive | Leave | Allowed | Create | Drop | Delay | Refresh
    | Save | Drain | Release | Opened | StatusRequest | StatusReply | Done
)  # fmt: skip
