"""What workers that gossip say to each other, and to the process that was called. Part of the page that ``messages`` is.

A *leg* is the rounds up to where all models are judged. In a leg every worker has a list of slots, one for each round.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from shoal.wire.messages.base import Count, Message


class GossipLink(msgspec.Struct, frozen=True, array_like=True):
    """A worker that another one hears or speaks to."""

    name: str
    address: str
    weight: float  # of what it says in a mean; of push-sum: the share that it is sent


class Leg(Message, frozen=True, tag="leg"):
    """Caller to worker: "these slots next, among these neighbours"."""

    frames: ClassVar[str] = "K"  # the slots: pass * slots in a pass + number
    number: Count  # of the leg
    rounds: Count  # of everybody: who has fewer slots takes part in the others without a gradient
    own: float  # weight of its own model in a mean
    hears: list[GossipLink]
    tells: list[GossipLink]
    rides: Count = 0  # push-sum, a share of the weights' weight rides with every message: 1; 2 if not all hear of all


class Without(Message, frozen=True, tag="without"):
    """Caller to worker: "this one is gone: until the next leg its weight is yours"."""

    leg: Count
    name: str


class Offer(Message, frozen=True, tag="offer"):
    """Worker to neighbour, sync: "this is what I have at the beginning of this round" (push-sum: "and your share of its weight")."""

    frames: ClassVar[str] = "VVVV"  # one vector, cut where a frame would be too long
    leg: Count
    round: Count
    weight: float = 1.0  # of push-sum


class Reached(Message, frozen=True, tag="reached"):
    """Worker to whom it hears, sync: "I am in this round"; with ``lacks``: "send me your offer of it again"."""

    leg: Count
    round: Count
    lacks: bool = False


class Meet(Message, frozen=True, tag="meet"):
    """Worker to neighbour, async: "this is what I have: let us take the mean"."""

    frames: ClassVar[str] = "VVVV"
    number: Count  # of this meeting, by who asks: higher than any before, one at a time


class MeetReply(Message, frozen=True, tag="met"):
    """Neighbour, async: "I have moved by this towards you: move as much towards me"; without it: "not now"."""

    frames: ClassVar[str] = "VVVV"
    number: Count


class GossipProgressReport(Message, frozen=True, tag="along"):
    """Worker to caller: "so far I am"."""

    leg: Count
    rounds: Count  # of this leg, as are rows and loss
    rows: Count
    loss: float
    spent: list[Count] = []  # microseconds of its life: computed, communicated, waited
    sent: Count = 0  # bytes, of its life
    received: Count = 0
    lacks: list[str] = []  # neighbours that it has been waiting for


class LegDone(Message, frozen=True, tag="rest"):
    """Worker to caller, again and again until it is heard: "I am done with this leg, and this is my model".

    Without the model (async): "I am done, and still meet others; ask me to show it when all are".
    """

    frames: ClassVar[str] = "VVVV"  # its slab: weights, and what the rule keeps
    leg: Count
    along: list[float]  # rounds, rows, loss, sent, received, and what its time was spent for
    weight: float = 1.0  # of push-sum
    met: Count = 0  # meetings of this leg that it asked for and settled
    lost: float = 0.0  # at most so much went with lost neighbours: the length of it, in its life
    error: str = ""


class Show(Message, frozen=True, tag="show"):
    """Caller to worker, async: "all are done with this leg: meet nobody until the next, and show me your model"."""

    leg: Count


class LegReceived(Message, frozen=True, tag="heard"):
    """Caller to worker: "I have your model of this leg"; with ``over``: "it was the last one, go"."""

    leg: Count
    over: bool = False


GossipMessage = Leg | Without | Offer | Reached | Meet | MeetReply | GossipProgressReport | LegDone | Show | LegReceived
