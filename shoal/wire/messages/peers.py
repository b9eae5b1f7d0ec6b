"""What peers say to each other where there is no server. Part of the page that ``messages`` is.

Everything that matters to all is *said*: each peer numbers what it says from 1, and all others hear it in that order, each thing once,
whoever hands it on. What a peer has heard of each is its version of the run.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from shoal.wire.messages.base import Count, Message

Run = tuple[Count, Count]  # slots from the first up to, not including, the second, counted over all passes
Heard = dict[str, Count]  # of each peer, by the name of its life: all up to this number


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One that learns."""

    life: str  # its name on the wire: worker-1.3f9c, another one after every start
    name: str  # worker-1
    number: Count  # the lowest one that is here leads
    address: str


# ---------------------------------------------------------------- what is said to all


class Learned(msgspec.Struct, frozen=True, array_like=True, tag="learned"):
    """ "I have learned from these slots, and this is what it changed"; owned: the change went to the owners."""

    slots: list[Run]
    rows: Count
    loss: float  # summed over them
    spent: list[Count] = []  # microseconds since the last of these: computed, communicated, idle
    moved: tuple[Count, Count] = (0, 0)  # bytes sent and received, in this life
    part: Count = 0  # owned: which contribution of its this is; 0: the change rides with it
    stale: Count = 0  # changes of others that were told before this one, and that it was computed without


class SlotsDealt(msgspec.Struct, frozen=True, array_like=True, tag="dealt"):
    """The one that leads: "learn from these"."""

    slots: list[tuple[str, list[Run]]]  # by life
    again: Count = 0  # so many of them were somebody's who is gone


class EvaluationDone(msgspec.Struct, frozen=True, array_like=True, tag="judged"):
    """The one that leads: "I have judged the model"."""

    number: Count
    seconds: float  # of the run, when the weights were read
    now: float  # when it was judged
    done: Count  # slots in it
    rows: Count
    loss: float | None  # None: not finite
    metrics: dict[str, float | None]
    train: float | None
    workers: Count
    best: bool
    patience: list[float | None]  # what the stop rules remember: cluster.stopping.Patience
    by: str = ""  # the life of the one that judged it, and has its weights


class Halt(msgspec.Struct, frozen=True, array_like=True, tag="halt"):
    """The one that leads: "it is over: finish what you are at, say what you learned, and rest"."""

    why: str
    failed: bool = False
    judge: bool = True  # what was learned since the last evaluation is judged


class Rested(msgspec.Struct, frozen=True, array_like=True, tag="rested"):
    """ "I say nothing more" (after Halt)."""


class PeersEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The one that leads: "all rest, and have heard all: go"."""

    why: str
    failed: bool
    seconds: float


class PeerLeaving(msgspec.Struct, frozen=True, array_like=True, tag="leaving"):
    """ "I leave; these slots I shall not do"."""

    why: str  # empty: in order; otherwise what went wrong, and the others stop talking to me (S4-05)
    back: list[Run] = []


class OwnersChanged(msgspec.Struct, frozen=True, array_like=True, tag="owners"):
    """The one that leads, owned: "from now on these own the parts of the weights"."""

    version: Count
    lives: list[str]  # of part 0, 1, ...
    others: list[str] = []  # those who own nothing, and contribute


class Yielded(msgspec.Struct, frozen=True, array_like=True, tag="yielded"):
    """ "I have given away what I do not own by this version"."""

    version: Count


class Owned(msgspec.Struct, frozen=True, array_like=True, tag="owned"):
    """An owner: "this is what came for these parts, of everybody up to these contributions"."""

    parts: list[tuple[Count, dict[str, Count]]]  # part, and of each peer (by life) up to which contribution


Word = (
    Learned | SlotsDealt | EvaluationDone | Halt | Rested | PeersEnded | PeerLeaving | OwnersChanged | Yielded | Owned
)


class Relay(Message, frozen=True, tag="said"):
    """Peer to peer: "this was said, by me or by one that is gone"."""

    frames: ClassVar[str] = "KV"
    origin: str  # its life
    number: Count
    word: Word
    heard: Heard = {}  # by the sender of this message: it need not be told so in a beat
    after: Heard = {}  # whoever has not heard all of this has not heard the word, either


# ---------------------------------------------------------------- who is here


class Beat(Message, frozen=True, tag="beat"):
    """Peer to peer, now and then: "I am here, this is what I have heard, these are here, these are gone"."""

    me: Peer
    heard: Heard
    peers: list[Peer]
    gone: dict[str, str]  # by life, and why
    filled: bool = True  # False: I am new, and have no model yet
    new: list[str] = []  # lives of those others who have none, as far as I know
    copied: Heard = {}  # what was in the copy that I began with: those words I cannot hand on


class Greet(Message, frozen=True, tag="greet"):
    """Newcomer, or whoever was called, to any peer: "who is here, and what is it about?"."""

    request: int
    comes: str = ""  # whoever wants to take part, and a word that nobody else says: it gets a number of its own


class PeerGreeting(Message, frozen=True, tag="here"):
    """Peer: "these are, and this is the run"."""

    request: int
    job: str  # as TOML
    rows: Count  # of the set, to see that it is the same
    features: Count
    peers: list[Peer]
    gone: dict[str, str]
    lost: list[
        Peer
    ] = []  # gone by their silence, and called now and then: they may be cut off, and go on by themselves
    number: Count = 0  # for one that comes


class Fetch(Message, frozen=True, tag="fetch"):
    """Newcomer to a peer that knows it: "give me the model"; ``piece`` by piece."""

    request: int
    life: str
    piece: Count = 0


class ModelPiece(Message, frozen=True, tag="piece"):
    """Peer: "this is a piece of it, of the version that the first one names"."""

    frames: ClassVar[str] = "V"
    request: int
    piece: Count
    pieces: Count
    heard: Heard = {}
    state: bytes = b""  # of the first: what is known besides the weights


class PeerStatus(Message, frozen=True, tag="account"):
    """Peer to whoever was called: "this is how it stands" (an answer to ``Watch``)."""

    request: int
    lead: str  # life of the one that leads
    peers: list[Peer]
    gone: dict[str, str]
    done: Count
    limit: Count
    per_pass: Count
    rows: Count
    loss: tuple[float, Count]  # sum and rows, of all that was learned
    seconds: float
    spent: list[Count]
    moved: tuple[Count, Count]
    judged: list[EvaluationDone]  # after the one that was asked for
    staleness: list[Count]
    counts: dict[str, Count]
    over: str = ""
    failed: bool = False
    ended: bool = False


class Watch(Message, frozen=True, tag="watch"):
    """Whoever was called, to a peer, a few times a second: "how does it stand?"."""

    request: int
    judged: Count = 0  # evaluations that it knows


class Weigh(Message, frozen=True, tag="weigh"):
    """Whoever was called, to a peer: "give me the weights of this evaluation", piece by piece (``ModelPiece``; none: it has them not).

    ``whole``: "give me all that you have, as it is now"; a new request is a new moment.
    """

    request: int
    number: Count
    piece: Count = 0
    whole: bool = False


class StopPeers(Message, frozen=True, tag="stop"):
    """Whoever was called, to the one that leads: "end it"; to any peer, with ``leave``: "you leave"; ``ended``: "this life ended"."""

    request: int
    why: str
    leave: bool = False
    ended: str = ""


class OwnedShare(Message, frozen=True, tag="share"):
    """Peer to an owner, again until ``Owned`` has it: "this is what I changed in your parts"."""

    frames: ClassVar[str] = "KV"
    life: str
    number: Count  # of the contribution, counted from 1; each owner gets each, empty if need be
    version: Count  # of the owners that it was cut by
    parts: list[Count]


PeerMessage = (
    Relay | Beat | Greet | PeerGreeting | Fetch | ModelPiece | PeerStatus | Watch | Weigh | StopPeers | OwnedShare
)
