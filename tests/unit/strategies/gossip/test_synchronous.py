"""A worker may learn a neighbour's progress before its own leg begins.

It does not ask for it again.
"""

from __future__ import annotations

from random import Random

import numpy as np

from shoal.limits import SECOND
from shoal.simulation.gossip_scenario import SimulatedGossipModel
from shoal.strategies.gossip.worker import GossipWorker
from shoal.wire.effects import Compute, Computed, Effect, Received, Send
from shoal.wire.messages.gossip import (
    GossipLink,
    Leg,
    LegDone,
    Offer,
    Reached,
)

SIZE = 3


def hand(node: GossipWorker, sender: str, message: object, arrays: object = ()) -> list[Effect]:
    """Hand one message to the node, and compute everything that follows."""
    effects = node.handle(SECOND, Received(sender, message, arrays))  # type: ignore[arg-type]
    for effect in effects:  # the list grows meanwhile
        if isinstance(effect, Compute):
            effects += node.handle(SECOND, Computed(effect.token, effect.function()))
    return effects


def test_one_that_is_in_the_next_leg_already_is_not_waited_for_when_our_own_begins() -> None:
    node = GossipWorker("b", SimulatedGossipModel(np.ones(SIZE, np.float32)), chance=Random(0))
    # A -> b -> c -> a.
    before, after = GossipLink("a", "ipc://a", 0.5), GossipLink("c", "ipc://c", 0.5)
    hand(node, "c", Reached(1, 0))
    hand(node, "a", Offer(1, 0, 0.5), (np.full(SIZE, 3, np.float32),))
    said = hand(node, "home", Leg(1, 1, 0.5, [before], [after], 1), (np.empty(0, np.uint64),))
    assert node.is_resting and [
        one.message for one in said if isinstance(one, Send) and isinstance(one.message, LegDone)
    ]


def test_one_of_whom_nothing_was_heard_is_waited_for() -> None:
    node = GossipWorker("b", SimulatedGossipModel(np.ones(SIZE, np.float32)), chance=Random(0))
    before, after = GossipLink("a", "ipc://a", 0.5), GossipLink("c", "ipc://c", 0.5)
    hand(node, "a", Offer(1, 0, 0.5), (np.full(SIZE, 3, np.float32),))
    hand(node, "home", Leg(1, 1, 0.5, [before], [after], 1), (np.empty(0, np.uint64),))
    assert not node.is_resting
    hand(node, "c", Reached(1, 0))
    assert node.is_resting
