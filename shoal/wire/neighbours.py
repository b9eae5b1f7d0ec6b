"""What workers that gossip say to each other, and to the process that was called. Part of the page that ``messages`` is.

A *leg* is the rounds up to where all models are judged. In a leg every worker has a list of slots, one for each round.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from shoal.wire.base import Count, Message


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A worker that another one hears or speaks to."""

    name: str
    address: str
    weight: float  # of what it says in a mean; of push-sum: the share that it is sent


class Leg(Message, frozen=True):
    """Caller to worker: "these slots next, among these neighbours"."""

    frames: ClassVar[str] = "K"  # the slots: pass * slots in a pass + number
    number: Count  # of the leg
    rounds: Count  # of everybody: who has fewer slots takes part in the others without a gradient
    own: float  # weight of its own model in a mean
    hears: list[Link]
    tells: list[Link]
    rides: Count = 0  # 1: push-sum, a share of the weights' weight rides with every message


class Without(Message, frozen=True):
    """Caller to worker: "this one is gone; from now on these are your weights"."""

    leg: Count
    name: str
    own: float
    hears: list[Link]
    tells: list[Link]


class Offer(Message, frozen=True):
    """Worker to neighbour, sync: "this is what I have at the beginning of this round" (push-sum: "your share of it")."""

    frames: ClassVar[str] = "V"
    leg: Count
    round: Count
    weight: float = 1.0  # of push-sum


class Meet(Message, frozen=True):
    """Worker to neighbour, async: "this is what I have: let us take the mean"."""

    frames: ClassVar[str] = "V"
    number: Count  # of this meeting, by who asks: counted from 1, in its life
    done: Count  # its meetings up to this one are settled: you need not remember them


class Met(Message, frozen=True):
    """Neighbour, async: "I have moved by this towards you: move as much towards me"; without it: "not now"."""

    frames: ClassVar[str] = "V"
    number: Count


class Along(Message, frozen=True):
    """Worker to caller: "so far I am"."""

    leg: Count
    rounds: Count
    rows: Count
    loss: float
    spent: list[Count] = []  # microseconds: computed, communicated, waited
    sent: Count = 0
    received: Count = 0


class Rest(Message, frozen=True):
    """Worker to caller, again and again until it hears of the next leg: "I am done with this leg, and this is my model"."""

    frames: ClassVar[str] = "V"  # its slab: weights, and what the rule keeps
    leg: Count
    along: list[float]  # rounds, rows, loss, sent, received
    weight: float = 1.0  # of push-sum
    met: Count = 0  # meetings that both sides settled
    lost: float = 0.0  # size of what a lost neighbour took along
    error: str = ""


class Heard(Message, frozen=True):
    """Caller to worker: "I have your model of this leg"; with ``over``: "it was the last one, go"."""

    leg: Count
    over: bool = False
