"""Gossip in rounds (D-PSGD, Lian et al., 2017; push-sum, Assran et al., 2019).

In every round of a leg a worker

    1   sends its weights (an offer) to all who hear it, and takes a gradient at just these weights
    2   waits for the offers of this round of all whom it hears; it asks for one that it lacks
    3   takes the mean, by the weights of the leg
    4   takes a step with the gradient of 1, if the round has a slot

No worker is more than one round ahead of any that hears it: both sides store two rounds' offers.

A worker adds the weight of a lost neighbour to its own, at once and until the leg is over. So what
two living workers take of each other is the same on both sides in every round, whichever notices
the loss first, and the sum of all models is kept. It cannot be known whether the lost worker
completed its last round: what it may have taken with it is added to ``lost``.

Where links go one way (push-sum), a worker has a weight beside its model, and what adds up is
weight * model. A step moves that by what the rule says, so that every worker counts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from shoal import limits
from shoal.strategies.gossip.compute_queue import NEVER, ComputeQueue, Steps
from shoal.strategies.gossip.model import Floats, to_frames
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.messages import gossip as g

_LEAST = 1e-290  # a weight stays above 0, even where it is only given away

WeightedModel = tuple[float, Floats]  # weight (push-sum: of what was sent) and model


class OfferMade(NamedTuple):
    model: Floats
    weight: float  # of push-sum, before it was shared out,
    retained: float  # and its rest after that


class Synchronous:
    def __init__(
        self, queue: ComputeQueue, link: int, finished: Callable[[], None], timing: TimingSettings = DEFAULT
    ) -> None:
        self._queue, self._link, self._finished, self._timing = queue, link, finished, timing
        self._size = queue.model.size
        self.weight = 1.0  # of push-sum
        self.leg = self.round = self._rounds = self._push_sum = 0
        self.lost = 0.0
        self._own = 1.0
        self._in_weights: dict[str, float] = {}
        self._out_weights: dict[str, float] = {}
        self._slots: Sequence[int] = ()
        self._own_offers: dict[int, OfferMade] = {}  # by round
        self._offers: dict[tuple[int, str], WeightedModel] = {}
        self._early: dict[tuple[int, str], WeightedModel] = {}  # offers of the next leg,
        self._early_rounds: dict[str, int] = {}  # and how far neighbours are in it
        self._out_rounds: dict[str, int] = {}  # the rounds of out-neighbours
        self._last: tuple[Floats, dict[str, WeightedModel]] | None = None  # inputs of the last mean
        self._waiting = self._settling = False
        self._since = self._ask_at = self._wait = 0

    @property
    def wake_at(self) -> int:
        return self._ask_at if self.lacking() else NEVER

    @property
    def is_over(self) -> bool:
        return self.round >= self._rounds

    def lacking(self) -> list[str]:
        """The neighbours that this worker waits for."""
        if not self._waiting:
            return []
        behind = [name for name in self._out_weights if self._out_rounds[name] < self.round]
        return sorted({name for name in self._in_weights if (self.round, name) not in self._offers}.union(behind))

    def waits_since(self) -> int:
        return self._since

    def begin(self, leg: g.Leg, slots: Sequence[int], gone: dict[str, int]) -> None:
        self.leg, self._rounds, self._slots, self._push_sum = leg.number, leg.rounds, slots, leg.push_sum
        self._own, self.round, self._last = leg.own, 0, None
        self._in_weights = {one.name: one.weight for one in leg.hears}
        self._out_weights = {one.name: one.weight for one in leg.tells}
        self._out_rounds = dict.fromkeys(self._out_weights, -1)
        self._own_offers.clear()
        self._offers = {key: part for key, part in self._early.items() if key[1] in self._in_weights}
        early_rounds, self._early, self._early_rounds = self._early_rounds, {}, {}
        for number, name in self._offers:
            self._out_rounds[name] = max(number, self._out_rounds.get(name, -1))
        for name, number in early_rounds.items():
            self._note_round(name, number)
        if gone:
            self._push_sum = min(2, 2 * self._push_sum)  # as in ``without``
        for name in [*gone]:
            self._leave(name)
        self._queue.run(self._leg())

    # ------------------------------------------------------------ one round

    def _leg(self) -> Steps:
        queue = self._queue
        if not self.is_over:
            weights: Floats = yield lambda: queue.model.weights, self._size
        while not self.is_over:
            self._start(weights)
            if learns := self.round < len(self._slots):
                yield from queue.gradient(self._slots[self.round])
            self._since, self._wait = queue.now, self._timing.resend_first + 2 * self._link
            self._ask_at, self._waiting = self._since + self._wait, True
            while self.lacking():
                yield None
            self._waiting, self._settling = False, True
            queue.waited(self._since, self._link)
            parts = {name: part for (number, name), part in sorted(self._offers.items()) if number == self.round}
            own, mean, weight = self._weights_of(parts)
            scale = (1.0 / weight if self._push_sum == 1 else 1.0) if learns else None
            self._last = (self._own_offers[self.round].model, parts) if parts else None
            queue.times.computing()
            weights = yield partial(self._average, own, mean, scale), self._size * (2 + len(parts))
            queue.times.computed()
            self.weight, self._settling = weight, False
            self._offers = {key: part for key, part in self._offers.items() if key[0] > self.round}
            self.round += 1
        self._finished()

    def _start(self, weights: Floats) -> None:
        self._own_offers[self.round] = OfferMade(weights, self.weight, self._own * self.weight)
        self._own_offers.pop(self.round - 2, None)
        for name in self._out_weights:
            self._offer(name, self.round)
        for name in self._in_weights:
            if name not in self._out_weights:  # one-way: it gets no offers of ours
                self._queue.send(name, g.Reached(self.leg, self.round))

    def _average(self, own: float, mean: Sequence[WeightedModel], scale: float | None) -> Floats:
        """Take the mean, and the step unless there was no slot in this round."""
        model = self._queue.model
        if mean:
            model.mix(own, mean)
        if scale is not None:
            model.step(scale)
        return model.weights

    def _weights_of(self, parts: dict[str, WeightedModel]) -> tuple[float, list[WeightedModel], float]:
        """The weights of all models in the mean; and the push-sum weight after it."""
        if not self._push_sum:
            return self._own, [(self._in_weights[name], values) for name, (_, values) in parts.items()], 1.0
        retained = self._own_offers[self.round].retained
        total = max(retained + sum(share for share, _ in parts.values()), _LEAST)
        return retained / total, [(share / total, values) for share, values in parts.values()], total

    # ------------------------------------------------------------ what others say

    def offered(self, sender: str, offer: g.Offer, values: Floats) -> None:
        if values.size != self._size or not np.isfinite(offer.weight) or offer.weight < 0:
            return
        if offer.leg == self.leg + 1 and offer.round <= 1 and len(self._early) < 2 * limits.PEERS:
            self._early.setdefault((offer.round, sender), (offer.weight, values))
            return
        if offer.leg != self.leg or sender not in self._in_weights:
            return
        self._note_round(sender, offer.round)
        if self.round + (1 if self._settling else 0) <= offer.round <= self.round + 1:
            self._offers.setdefault((offer.round, sender), (offer.weight, values))
        self._queue.notify()

    def reached(self, sender: str, message: g.Reached) -> None:
        """A neighbour says how far it is; it may lack an offer, or ask how far this worker is."""
        if message.leg == self.leg + 1 and len(self._early_rounds) < limits.PEERS:
            self._early_rounds[sender] = max(message.round, self._early_rounds.get(sender, -1))
        if message.leg != self.leg:
            return
        if sender not in self._out_weights:
            if sender in self._in_weights:
                self._queue.send(sender, g.Reached(self.leg, self.round))
            return
        self._note_round(sender, message.round)
        if message.lacks and message.round in self._own_offers:
            self._offer(sender, message.round)
        self._queue.notify()

    def without(self, name: str) -> None:
        """Remove a lost neighbour, and count what may have gone with it.

        From now on steps are not divided by a weight, which may go to 0.
        """
        self._push_sum = min(2, 2 * self._push_sum)
        if name in self._in_weights or name in self._out_weights:
            last, weight = self._last, self._in_weights.get(name, 0.0)
            if self._push_sum:
                self.lost += self._out_weights.get(name, 0.0) * sum(offer.weight for offer in self._own_offers.values())
            elif last is not None and name in last[1]:
                mine, theirs = last[0], last[1][name][1]
                self._queue.do(lambda: weight * _length(theirs, mine), self._add_lost, self._size, first=True)
            self._leave(name)
            self._queue.notify()

    def tick(self, now: int) -> None:
        if not (lacking := self.lacking()) or now < self._ask_at:
            return
        self._wait = min(2 * self._wait, self._timing.resend_most + 2 * self._link)
        self._ask_at = now + self._wait
        for name in lacking:
            self._queue.send(name, g.Reached(self.leg, self.round, name in self._in_weights))

    def _offer(self, name: str, number: int) -> None:
        offer = self._own_offers[number]
        weight = self._out_weights[name] * offer.weight if self._push_sum else 1.0
        self._queue.send(name, g.Offer(self.leg, number, weight), to_frames(offer.model))

    def _note_round(self, name: str, number: int) -> None:
        if name in self._out_rounds:
            self._out_rounds[name] = max(number, self._out_rounds[name])

    def _leave(self, name: str) -> None:
        into, out = self._in_weights.pop(name, 0.0), self._out_weights.pop(name, 0.0)
        self._own += out if self._push_sum else into
        self._out_rounds.pop(name, None)
        if not self._push_sum:  # push-sum uses what has come
            self._offers = {key: part for key, part in self._offers.items() if key[1] != name}

    def _add_lost(self, size: float) -> None:
        self.lost += size


def _length(a: Floats, b: Floats) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b))
