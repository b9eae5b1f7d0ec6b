"""The process that deals legs, as a small state machine; and a model of a few numbers that keeps a record of what is done to it.

Home says everything again until it has its answer, and tells who is gone to those who have not rested yet. It has no clock of its own
and nothing to judge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.limits import MILLISECOND
from shoal.nodes.stepper import Floats, mix_into
from shoal.simulation.gossip_plan import GossipPlan
from shoal.strategies.topology import Graph, Matrix
from shoal.wire.effects import Effect, Ended, Event, Received, Send, Wake
from shoal.wire.neighbours import Along, Heard, Leg, Link, Rest, Show, Without

HOME = "home"
_AGAIN = 300 * MILLISECOND
STEP = np.float32(0.0625)  # of the simulated rule

Doubles = npt.NDArray[np.float64]


def name_of(node: int) -> str:
    return f"worker-{node}"


def node_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def pull_of(slot: int, size: int) -> Floats:
    """Where a slot draws a model to."""
    drawn: Floats = np.random.default_rng(slot).normal(0.0, 1.0, size).astype(np.float32)
    return drawn


class SimStepper:
    """A model of a few numbers, with a record."""

    def __init__(self, start: Floats) -> None:
        self.slab = start.reshape(-1, 1).copy()
        self.moved: Doubles = np.zeros(start.size)  # by all steps
        self.mixes: list[tuple[float, list[tuple[float, Floats]]]] = []
        self.adds: list[tuple[Floats, float]] = []
        self.steps: list[Floats] = []
        self.slots: list[int] = []
        self._kept = np.zeros(start.size, np.float32)

    @property
    def size(self) -> int:
        return self.slab.size

    @property
    def weights(self) -> Floats:
        return self.slab[:, 0].copy()

    def gradient(self, slot: int) -> tuple[float, int]:
        self.slots.append(slot)
        self._kept = self.weights - pull_of(slot, self.size)
        return 1.0, 1

    def mix(self, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
        self.mixes.append((own, [(weight, values.copy()) for weight, values in parts]))
        mix_into(self.slab[:, 0], own, parts)

    def add(self, delta: Floats, times: float = 1.0) -> None:
        self.adds.append((delta, times))
        self.slab[:, 0] += np.float32(times) * delta

    def step(self, scale: float = 1.0) -> None:
        before = self.weights
        self.slab[:, 0] -= np.float32(scale) * STEP * self._kept
        change = self.weights - before
        self.steps.append(change)
        self.moved += change


class SimHome:
    """Deals legs, hears rests."""

    name = HOME

    def __init__(self, plan: GossipPlan, graph: Graph) -> None:
        self.plan, self.graph = plan, graph
        self.leg = 0
        self.over = False
        self.matrices: dict[int, Matrix] = {}  # of each leg
        self.slabs: dict[int, dict[str, Floats]] = {}
        self.lost: dict[str, float] = {}
        self.errors: list[str] = []
        self.gone: list[str] = []
        self.rides = 0
        self.dealt: dict[int, dict[str, list[int]]] = {}
        self._legs: dict[str, Leg] = {}
        self._reached: set[str] = set()  # who has heard of the leg
        self._done: set[str] = set()  # who is done, and has not shown its model
        self._next = 0

    @property
    def living(self) -> list[str]:
        return [name_of(node) for node in self.graph.living]

    def handle(self, now: int, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(sender, Along(leg)) if leg == self.leg:
                self._reached.add(sender)
            case Received(sender, Rest() as rest, arrays):
                effects += self._rests(sender, rest, arrays)
            case Ended(name) if name not in self.gone:
                self.gone.append(name)
                self.graph = self.graph.without(node_of(name))
                self._next = now
        if not self.over and (not self.leg or all(name in self.slabs[self.leg] for name in self.living)):
            self._deal(now)
        if now >= self._next:
            self._next = now + _AGAIN
            effects += self._say_again()
        return [*effects, Wake(self._next)]

    def _rests(self, sender: str, rest: Rest, arrays: Sequence[npt.NDArray[np.float32]]) -> list[Effect]:
        self.lost[sender] = max(rest.lost, self.lost.get(sender, 0.0))
        if rest.error:
            self.errors.append(f"{sender}: {rest.error}")
        if rest.leg != self.leg:
            return [Send(sender, Heard(rest.leg, self.over))] if arrays else []
        self._reached.add(sender)
        if not arrays:
            self._done.add(sender)
            if all(name in self._done for name in self.living):
                self._next = 0
            return []
        self.slabs[self.leg].setdefault(sender, arrays[0].copy())
        return [Send(sender, Heard(rest.leg, self.over))]

    def _deal(self, now: int) -> None:
        """The next leg, or the end."""
        if self.leg == self.plan.legs or not self.living:
            self.over, self._next = True, now
            return
        self.leg += 1
        self._reached, self._done, self._next, self._legs = set(), set(), now, {}
        self.slabs[self.leg], self.dealt[self.leg] = {}, {}
        matrix = self.matrices[self.leg] = self.graph.mixing()
        self.rides = (1 if len(self.graph.parts()) == 1 else 2) if self.graph.directed else 0
        for node in self.graph.living:
            self._legs[name_of(node)] = self._leg_of(node, matrix)
            # Some have fewer slots than there are rounds.
            slots = max(0, self.plan.rounds - node % 2) if self.plan.learns else 0
            first = (self.leg * self.plan.nodes + node) * self.plan.rounds
            self.dealt[self.leg][name_of(node)] = list(range(first, first + slots))

    def _leg_of(self, node: int, matrix: Matrix) -> Leg:
        hears = [Link(name_of(other), "", float(matrix[node, other])) for other in self.graph.hears(node)]
        tells = [Link(name_of(other), "", float(matrix[other, node])) for other in self.graph.tells(node)]
        return Leg(self.leg, self.plan.rounds, float(matrix[node, node]), hears, tells, self.rides)

    def _say_again(self) -> list[Effect]:
        effects: list[Effect] = []
        for name in self.living:
            if self.over:
                effects.append(Send(name, Heard(self.leg, True)))
                continue
            if name not in self._reached:
                effects.append(Send(name, self._legs[name], (np.array(self.dealt[self.leg][name], np.uint64),)))
            if name not in self.slabs[self.leg]:
                effects += [Send(name, Without(self.leg, gone)) for gone in self.gone if gone in self._legs]
                if all(other in self._done for other in self.living):
                    effects.append(Send(name, Show(self.leg)))
        return effects
