"""Broken variants of gossip, of its workers and of its controller. Each must be caught by some seeds of ``--of gossip``.

As in ``mutants``: each replaces a method of a real class for as long as its ``with`` block lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from shoal.data.batch import Ids
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip.compute_queue import NEVER
from shoal.strategies.gossip.controller import Controller, WorkerState
from shoal.strategies.gossip.legs import GossipController, WorkerLoss
from shoal.strategies.gossip.model import Floats
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.progress import GossipProgress
from shoal.strategies.gossip.synchronous import Synchronous
from shoal.strategies.gossip.topology import Graph
from shoal.strategies.gossip.worker import GossipWorker
from shoal.wire.effects import Effect
from shoal.wire.messages.gossip import (
    GossipProgressReport,
    LegDone,
    Meet,
    MeetReply,
    Offer,
)

MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(function: Callable[[], Any]) -> Callable[[], Any]:
    MUTANTS[function.__name__.replace("_", " ")] = function
    return function


# ---------------------------------------------------------------- workers


@mutant
def silent_until_the_first_leg() -> Any:
    """A worker waits for its first leg without a word: the controller has no way to reach it."""
    real = GossipWorker.__init__

    def init(self: GossipWorker, *args: Any, **about: Any) -> None:
        real(self, *args, **about)
        self._along_at = NEVER

    return mock.patch.object(GossipWorker, "__init__", init)


@mutant
def met_applied_twice() -> Any:
    """An answer that comes again moves who asked once more."""
    real = Pairwise.answers

    def answers(self: Pairwise, sender: str, met: MeetReply, arrays: Any) -> None:
        if self.asked is None and arrays and self._number == met.number:
            self._hands.do(lambda: self._hands.model.add(arrays[0], -1.0), lambda nothing: None, 1, first=True)
            return
        real(self, sender, met, arrays)

    return mock.patch.object(Pairwise, "answers", answers)


@mutant
def meet_answered_twice() -> Any:
    """A question that comes again moves who is asked once more."""
    real = Pairwise.asks

    def asks(self: Pairwise, sender: str, meet: Meet, values: Floats) -> None:
        if self.answered.get(sender, (-1, None))[0] == meet.number:
            self.answered[sender] = meet.number - 1, None
        real(self, sender, meet, values)

    return mock.patch.object(Pairwise, "asks", asks)


@mutant
def offer_of_any_round() -> Any:
    """An offer is used in whatever round it comes."""
    real = Synchronous.offered

    def offered(self: Synchronous, sender: str, offer: Offer, values: Floats) -> None:
        late = offer.leg == self.leg and sender in self._hears and offer.round < self.round and not self._settling
        real(self, sender, Offer(offer.leg, self.round, offer.weight) if late else offer, values)

    return mock.patch.object(Synchronous, "offered", offered)


@mutant
def weight_of_the_dead_forgotten() -> Any:
    """Who loses a neighbour takes the mean of what is left by the old weights."""
    real = Synchronous._leave

    def leave(self: Synchronous, name: str) -> None:
        own = self._own
        real(self, name)
        self._own = own

    return mock.patch.object(Synchronous, "_leave", leave)


@mutant
def shown_before_all_are_done() -> Any:
    """A worker shows its model when it is done itself, and is met after that."""
    real = GossipWorker._finished

    def finished(self: GossipWorker) -> None:
        real(self)
        if isinstance(self.part, Pairwise):
            self._show()

    return mock.patch.object(GossipWorker, "_finished", finished)


@mutant
def share_kept_and_given() -> Any:
    """Push-sum: what is given away is kept as well."""
    real = Synchronous._start

    def start(self: Synchronous, weights: Floats) -> None:
        real(self, weights)
        self._said[self.round] = self._said[self.round]._replace(kept=self.weight)

    return mock.patch.object(Synchronous, "_start", start)


@mutant
def steps_divided_by_what_vanishes() -> Any:
    """Push-sum: a worker that nobody tells any more divides its steps by a weight that goes to nothing."""
    real = Synchronous._weighed

    def weighed(self: Synchronous, parts: Any) -> Any:
        self._rides = min(self._rides, 1)
        return real(self, parts)

    return mock.patch.object(Synchronous, "_weighed", weighed)


@mutant
def nobody_asks_again() -> Any:
    """What is lost is never asked for again."""
    return mock.patch.object(Synchronous, "tick", lambda self, now: None)


# ---------------------------------------------------------------- the controller


@mutant
def slots_of_a_leg_dealt_twice() -> Any:
    """The next leg has the slots of the last one once more."""
    real, last = Controller.set_off, dict[str, Ids]()

    def set_off(self: Controller, now: int, graph: Graph, slots: Mapping[str, Ids]) -> list[Effect]:
        again = {name: np.concatenate([last.get(name, ids[:0]), ids]) for name, ids in slots.items()}
        last.clear()
        last.update(slots)
        return real(self, now, graph, again if self.leg else slots)

    return mock.patch.object(Controller, "set_off", set_off)


@mutant
def dead_worker_waited_for() -> Any:
    """Home goes on waiting for the model of a worker that is lost."""
    real = Controller.lose

    def lose(self: Controller, now: int, name: str) -> list[Effect]:
        told = dict(self.told)
        effects = real(self, now, name)
        self.told = told
        return effects

    return mock.patch.object(Controller, "lose", lose)


@mutant
def rest_counted_twice() -> Any:
    """What a worker reports when it is done is counted again when it shows its model."""
    real = GossipProgress.hear

    def hear(self: GossipProgress, name: str, one: WorkerState, said: GossipProgressReport | LegDone) -> None:
        if isinstance(said, LegDone) and one.rest is not None:
            one.rounds = one.rows = 0
            one.loss = 0.0
        real(self, name, one, said)

    return mock.patch.object(GossipProgress, "hear", hear)


@mutant
def slots_of_the_dead_not_dealt_again() -> Any:
    """What a lost worker had not done is left out."""
    return mock.patch.object(Shards, "_deal", lambda self, ids: None)


@mutant
def slots_of_the_dead_taken_for_done() -> Any:
    """All that a lost worker was dealt counts as done."""
    real = GossipController.lose

    def lose(self: GossipController, now: int, name: str) -> WorkerLoss | None:
        if (one := self.home.told.get(name)) is not None:
            one.rounds = len(one.slots)
        return real(self, now, name)

    return mock.patch.object(GossipController, "lose", lose)


@mutant
def leg_told_again_with_other_weights() -> Any:
    """Who hears of a leg only after somebody was lost gets weights of the graph that is left; the others have the old ones."""
    real = GossipController.lose

    def lose(self: GossipController, now: int, name: str) -> WorkerLoss | None:
        found = real(self, now, name)
        self.home._graph, self.home._mixing = self.graph, self.graph.mixing()
        return found

    return mock.patch.object(GossipController, "lose", lose)


@mutant
def loss_told_only_once() -> Any:
    """That somebody is gone is said once, and may be lost on its way."""
    real = Controller._withouts

    def withouts(self: Controller) -> list[Effect]:
        found = real(self)
        for one in self.told.values():
            one.without = []
        return found

    return mock.patch.object(Controller, "_withouts", withouts)


@mutant
def model_of_another_leg_believed() -> Any:
    """A late model of a former leg is taken for that of this one."""
    real = Controller._rest

    def rest(self: Controller, sender: str, said: LegDone, slab: Floats | None) -> list[Effect]:
        late = LegDone(self.leg, said.along, said.weight, said.met, said.lost, said.error)
        return real(self, sender, late if 1 < said.leg < self.leg else said, slab)

    return mock.patch.object(Controller, "_rest", rest)
