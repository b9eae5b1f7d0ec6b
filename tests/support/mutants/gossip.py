"""Broken variants of gossip: of its workers, and of its controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.data.batch import Ids
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip.compute_queue import NEVER
from shoal.strategies.gossip.controller import GossipController, WorkerState
from shoal.strategies.gossip.model import Floats
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.synchronous import Synchronous
from shoal.strategies.gossip.worker import GossipWorker
from shoal.wire.messages.gossip import LegDone, Meet, MeetReply, Offer
from tests.support.mutants.patches import Mutants

MUTANTS = Mutants()
mutant = MUTANTS.replacing


# ---------------------------------------------------------------- workers


@mutant(GossipWorker, "__init__")
def silent_until_the_first_leg(real: Any) -> Any:
    """A worker sends nothing before its first leg, so the controller cannot reach it."""

    def init(self: GossipWorker, *args: Any, **about: Any) -> None:
        real(self, *args, **about)
        self._report_at = NEVER

    return init


@mutant(Pairwise, "on_reply")
def met_applied_twice(real: Any) -> Any:
    """A repeated answer moves the asking worker once more."""

    def answers(self: Pairwise, sender: str, met: MeetReply, arrays: Any) -> None:
        if self.pending is None and arrays and self._number == met.number:
            self._queue.do(lambda: self._queue.model.add(arrays[0], -1.0), lambda nothing: None, 1, first=True)
            return
        real(self, sender, met, arrays)

    return answers


@mutant(Pairwise, "on_meet")
def meet_answered_twice(real: Any) -> Any:
    """A repeated request moves the asked worker once more."""

    def asks(self: Pairwise, sender: str, meet: Meet, values: Floats) -> None:
        if self.answered.get(sender, (-1, None))[0] == meet.number:
            self.answered[sender] = meet.number - 1, None
        real(self, sender, meet, values)

    return asks


@mutant(Synchronous, "offered")
def offer_of_any_round(real: Any) -> Any:
    """An offer is used in any round."""

    def offered(self: Synchronous, sender: str, offer: Offer, values: Floats) -> None:
        late = offer.leg == self.leg and sender in self._in_weights and offer.round < self.round and not self._settling
        real(self, sender, Offer(offer.leg, self.round, offer.weight) if late else offer, values)

    return offered


@mutant(Synchronous, "_leave")
def weight_of_the_dead_forgotten(real: Any) -> Any:
    """A worker that loses a neighbour averages the rest by the old weights."""

    def leave(self: Synchronous, name: str) -> None:
        own = self._own
        real(self, name)
        self._own = own

    return leave


@mutant(GossipWorker, "_finished")
def shown_before_all_are_done(real: Any) -> Any:
    """A worker shows its model when it is done itself, and averages with others after that."""

    def finished(self: GossipWorker) -> None:
        real(self)
        if isinstance(self.mixer, Pairwise):
            self._show()

    return finished


@mutant(Synchronous, "_start")
def share_kept_and_given(real: Any) -> Any:
    """Push-sum: a worker keeps the share that it gives away."""

    def start(self: Synchronous, weights: Floats) -> None:
        real(self, weights)
        self._own_offers[self.round] = self._own_offers[self.round]._replace(retained=self.weight)

    return start


@mutant(Synchronous, "_weights_of")
def steps_divided_by_what_vanishes(real: Any) -> Any:
    """Push-sum: a worker that gets no messages divides its steps by a vanishing weight."""

    def weighed(self: Synchronous, parts: Any) -> Any:
        self._push_sum = min(self._push_sum, 1)
        return real(self, parts)

    return weighed


@mutant(Synchronous, "tick")
def nobody_asks_again(_: Any) -> Any:
    """Lost messages are never requested again."""
    return lambda self, now: None


# ---------------------------------------------------------------- the controller


@mutant(GossipController, "set_off")
def slots_of_a_leg_dealt_twice(real: Any) -> Any:
    """The next leg gets the slots of the last one again."""
    last = dict[str, Ids]()

    def set_off(self: GossipController, now: int, slots: Mapping[str, Ids]) -> Any:
        again = {name: np.concatenate([last.get(name, ids[:0]), ids]) for name, ids in slots.items()}
        last.clear()
        last.update(slots)
        return real(self, now, again if self.leg else slots)

    return set_off


@mutant(GossipController, "lose")
def dead_worker_waited_for(real: Any) -> Any:
    """The controller keeps waiting for the model of a lost worker."""

    def lose(self: GossipController, now: int, name: str) -> Any:
        told = dict(self.states)
        effects = real(self, now, name)
        self.states = told
        return effects

    return lose


@mutant(GossipController, "_count_result")
def rest_counted_twice(real: Any) -> Any:
    """The last report of a worker is counted again with its model."""

    def count_rest(self: GossipController, name: str, one: WorkerState, rest: LegDone) -> None:
        if one.result is not None:
            one.rounds = one.rows = 0
            one.loss = 0.0
        real(self, name, one, rest)

    return count_rest


@mutant(Shards, "_deal")
def slots_of_the_dead_not_dealt_again(_: Any) -> Any:
    """The unfinished slots of a lost worker are dropped."""
    return lambda self, ids: None


@mutant(GossipController, "lose")
def slots_of_the_dead_taken_for_done(real: Any) -> Any:
    """All slots of a lost worker count as done."""

    def lose(self: GossipController, now: int, name: str) -> Any:
        if (one := self.states.get(name)) is not None:
            one.rounds = len(one.slots)
        return real(self, now, name)

    return lose


@mutant(GossipController, "lose")
def leg_told_again_with_other_weights(real: Any) -> Any:
    """A worker that learns of a leg after a loss gets the weights of the smaller graph."""

    def lose(self: GossipController, now: int, name: str) -> Any:
        found = real(self, now, name)
        for other, one in self.states.items():
            one.leg = self._leg(other, one.slots, self.graph.mixing())
        return found

    return lose


@mutant(GossipController, "_reminders")
def loss_told_only_once(real: Any) -> Any:
    """A loss is reported once, and the report may be lost."""

    def reminders(self: GossipController, now: int) -> Any:
        found = real(self, now)
        self._lost_in_leg = []
        return found

    return reminders


@mutant(GossipController, "_on_leg_done")
def model_of_another_leg_believed(real: Any) -> Any:
    """A late model of a former leg is taken for that of this one."""

    def rest(self: GossipController, sender: str, said: LegDone, slab: Floats | None) -> Any:
        late = LegDone(self.leg, said.along, said.weight, said.met, said.lost, said.error)
        return real(self, sender, late if 1 < said.leg < self.leg else said, slab)

    return rest
