"""The messages of peer-to-peer runs: words that all peers hear, membership, and observers.

A *word* is broadcast: each peer numbers its words from 1, and all others hear them in that order,
each once, from the peer itself or relayed by another. What a peer has heard of each other is its
version of the run. A *life* is one incarnation of a peer.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from shoal.wire.messages.base import Count, Message, Numbered

Run = tuple[Count, Count]  # slots [first, stop), counted over all epochs
Heard = dict[str, Count]  # by life: all of its words up to this number


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """A peer, in one of its lives."""

    life: str  # its name on the wire: worker-1.3f9c, a new one after every start
    name: str  # worker-1
    number: Count  # the lowest one leads
    address: str


# ---------------------------------------------------------------- words


class Learned(msgspec.Struct, frozen=True, array_like=True, tag="learned"):
    """ "I have learned from these slots, with this change"; or it went to the owners."""

    slots: list[Run]
    rows: Count
    loss: float  # summed over them
    spent: list[Count] = []  # microseconds since the last one: computed, communicated, idle
    moved: tuple[Count, Count] = (0, 0)  # bytes sent and received, in this life
    part: Count = 0  # number of its contribution to the owners; 0: the change is attached
    stale: Count = 0  # changes of others, published before this one, that it did not know


class SlotsDealt(msgspec.Struct, frozen=True, array_like=True, tag="dealt"):
    """Leader: "learn from these"."""

    slots: list[tuple[str, list[Run]]]  # by life
    again: Count = 0  # so many of them belonged to a peer that is gone


class EvaluationDone(msgspec.Struct, frozen=True, array_like=True, tag="judged"):
    """Leader: "I have evaluated the model"."""

    number: Count
    seconds: float  # of the run, when the weights were read
    now: float  # when the evaluation was done
    done: Count  # slots in it
    rows: Count
    loss: float | None  # None: not finite
    metrics: dict[str, float | None]
    train: float | None
    workers: Count
    best: bool
    patience: list[float | None]  # the state of the stop rules: schedule.stop_rules.Patience
    by: str = ""  # the life that made it, and has the weights


class Halt(msgspec.Struct, frozen=True, array_like=True, tag="halt"):
    """Leader: "the run is over: finish, publish what you learned, and rest"."""

    why: str
    failed: bool = False
    judge: bool = True  # evaluate what was learned since the last evaluation


class Rested(msgspec.Struct, frozen=True, array_like=True, tag="rested"):
    """ "I publish nothing more" (after Halt)."""


class PeersEnded(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """Leader: "all rest, and have heard all: go"."""

    why: str
    failed: bool
    seconds: float


class PeerLeaving(msgspec.Struct, frozen=True, array_like=True, tag="leaving"):
    """ "I leave, and give these slots back"."""

    why: str  # empty: in order; otherwise an error, and the others stop talking to me
    back: list[Run] = []


class OwnersChanged(msgspec.Struct, frozen=True, array_like=True, tag="owners"):
    """Leader: "from now on these own the parts of the weights"."""

    version: Count
    lives: list[str]  # of part 0, 1, ...
    others: list[str] = []  # those who own nothing, and only contribute


class Yielded(msgspec.Struct, frozen=True, array_like=True, tag="yielded"):
    """ "I have published all I had as an owner before this version"."""

    version: Count


class Owned(msgspec.Struct, frozen=True, array_like=True, tag="owned"):
    """Owner: "this is the sum for these parts, of everybody up to these contributions"."""

    parts: list[tuple[Count, dict[str, Count]]]  # part; by life, up to which contribution


Word = (
    Learned | SlotsDealt | EvaluationDone | Halt | Rested | PeersEnded | PeerLeaving | OwnersChanged | Yielded | Owned
)


class Relay(Message, frozen=True, tag="said"):
    """Peer to peer: "this is a word, of mine or of another"."""

    frames: ClassVar[str] = "KV"
    origin: str  # its life
    number: Count
    word: Word
    heard: Heard = {}  # what the sender has heard; empty: not said
    after: Heard = {}  # must be heard before the word


# ---------------------------------------------------------------- membership


class Beat(Message, frozen=True, tag="beat"):
    """Peer to peer, often: "I am here; I have heard this; these are here, and these are gone"."""

    me: Peer
    heard: Heard
    peers: list[Peer]
    gone: dict[str, str]  # by life, and why
    filled: bool = True  # False: I have no model yet
    new: list[str] = []  # lives of others that have none, as far as I know
    copied: Heard = {}  # what was in the model that I copied: I cannot relay these words


class Greet(Numbered, frozen=True, tag="greet"):
    """Newcomer or observer to any peer: "who is here, and what is the run about?"."""

    comes: str = ""  # a random token of one that joins: it gets a number of its own


class PeerGreeting(Numbered, frozen=True, tag="here"):
    """Peer: "these are here, and this is the run"."""

    job: str  # as TOML
    rows: Count  # of the data set, which must be the same
    features: Count
    peers: list[Peer]
    gone: dict[str, str]
    lost: list[Peer] = []  # gone since they were silent: they may be cut off, and go on elsewhere
    number: Count = 0  # for one that joins


class Fetch(Numbered, frozen=True, tag="fetch"):
    """Newcomer to a peer that has entered it: "give me this piece of the model"."""

    life: str
    piece: Count = 0


class ModelPiece(Numbered, frozen=True, tag="piece"):
    """Peer: "this is a piece of the model, at the version that the first piece names"."""

    frames: ClassVar[str] = "V"
    piece: Count
    pieces: Count
    heard: Heard = {}
    state: bytes = b""  # of the first piece: the run log


class PeerStatus(Numbered, frozen=True, tag="account"):
    """Peer to observer: "this is the state of the run" (answers ``Watch``)."""

    lead: str  # the life that leads
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
    judged: list[EvaluationDone]  # from the number on that was asked for
    staleness: list[Count]
    counts: dict[str, Count]
    over: str = ""
    failed: bool = False
    ended: bool = False


class Watch(Numbered, frozen=True, tag="watch"):
    """Observer to a peer, a few times a second: "what is the state of the run?"."""

    judged: Count = 0  # how many evaluations it knows


class Weigh(Numbered, frozen=True, tag="weigh"):
    """Observer to a peer: "give me this piece of the weights of an evaluation" (``ModelPiece``).

    ``whole``: "give me a snapshot of model and log"; every new request is a new snapshot. The
    answer has no pieces if the peer does not have the weights.
    """

    number: Count
    piece: Count = 0
    whole: bool = False


class StopPeers(Numbered, frozen=True, tag="stop"):
    """Observer to the leader: "end the run".

    To any peer, with ``leave``: "you leave"; with ``ended``: "the process of this life has ended".
    """

    why: str
    leave: bool = False
    ended: str = ""


class OwnedShare(Message, frozen=True, tag="share"):
    """Peer to an owner, repeated until ``Owned`` has it: "this is my change to your parts"."""

    frames: ClassVar[str] = "KV"
    life: str
    number: Count  # of the contribution, from 1; every owner gets every one, maybe empty
    version: Count  # of the owners
    parts: list[Count]


PeerMessage = (
    Relay | Beat | Greet | PeerGreeting | Fetch | ModelPiece | PeerStatus | Watch | Weigh | StopPeers | OwnedShare
)
