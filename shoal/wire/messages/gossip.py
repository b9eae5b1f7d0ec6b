"""Messages between gossip workers, and between them and the controller.

A *leg* is the rounds until all models are evaluated. In a leg every worker has a list of slots,
one for each round.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from shoal.wire.messages.base import Count, Message


class GossipLink(msgspec.Struct, frozen=True, array_like=True):
    """A neighbour of a worker."""

    name: str
    address: str
    weight: float  # of what it says in a mean; of push-sum: the share that it is sent


class Leg(Message, frozen=True, tag="leg"):
    """Controller to worker: "these slots next, with these neighbours"."""

    frames: ClassVar[str] = "K"  # the slots: pass * slots in a pass + number
    number: Count  # of the leg
    rounds: Count  # of everybody: who has fewer slots takes part in the others without a gradient
    own: float  # weight of its own model in a mean
    hears: list[GossipLink]
    tells: list[GossipLink]
    # 1: push-sum, a share of its weight goes with every offer; 2: and not all hear of all
    push_sum: Count = msgspec.field(default=0, name="rides")


class Without(Message, frozen=True, tag="without"):
    """Controller to worker: "this neighbour is gone: its weight is yours in this leg"."""

    leg: Count
    name: str


class Offer(Message, frozen=True, tag="offer"):
    """Worker to neighbour, sync: "this is my model in this round" (push-sum: with a weight)."""

    frames: ClassVar[str] = "VVVV"  # one vector, cut where a frame would be too long
    leg: Count
    round: Count
    weight: float = 1.0  # of push-sum


class Reached(Message, frozen=True, tag="reached"):
    """Worker to neighbour, sync: "I am in this round"; ``lacks``: "send your offer again"."""

    leg: Count
    round: Count
    lacks: bool = False


class Meet(Message, frozen=True, tag="meet"):
    """Worker to neighbour, async: "this is my model: let us average"."""

    frames: ClassVar[str] = "VVVV"
    number: Count  # of this meeting, by who asks: higher than any before, one at a time


class MeetReply(Message, frozen=True, tag="met"):
    """Neighbour, async: "I moved by this towards you: do the same"; empty: "not now"."""

    frames: ClassVar[str] = "VVVV"
    number: Count


class GossipProgressReport(Message, frozen=True, tag="along"):
    """Worker to controller: "this is my progress"."""

    leg: Count
    rounds: Count  # of this leg, as are rows and loss
    rows: Count
    loss: float
    spent: list[Count] = []  # microseconds of its life: computed, communicated, waited
    sent: Count = 0  # bytes, of its life
    received: Count = 0
    lacks: list[str] = []  # neighbours that it has been waiting for


class LegDone(Message, frozen=True, tag="rest"):
    """Worker to controller, until it is acknowledged: "I finished this leg; this is my model".

    Without the model (async): "I finished, and still average with others; ask me for it when all
    have".
    """

    frames: ClassVar[str] = "VVVV"  # its slab: weights, and what the rule keeps
    leg: Count
    along: list[float]  # rounds, rows, loss, sent, received, and what its time was spent for
    weight: float = 1.0  # of push-sum
    met: Count = 0  # meetings of this leg that it asked for and settled
    lost: float = 0.0  # at most so much went with lost neighbours: the length of it, in its life
    error: str = ""


class Show(Message, frozen=True, tag="show"):
    """Controller to worker, async: "all finished this leg: stop averaging, and send your model"."""

    leg: Count


class LegReceived(Message, frozen=True, tag="heard"):
    """Controller to worker: "I have your model of this leg"; ``over``: "it was the last"."""

    leg: Count
    over: bool = False


GossipMessage = Leg | Without | Offer | Reached | Meet | MeetReply | GossipProgressReport | LegDone | Show | LegReceived
