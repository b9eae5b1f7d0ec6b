"""Drives the real gossip controller in a simulated world; models record all changes.

``GossipDriver`` begins the next leg after a pause, as for an evaluation, reports ended workers to
the controller, and ends the run when all slots are counted. It records what the checkers need of
every leg: mixing matrix, assigned slots, rounds and models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND
from shoal.simulation.gossip_plan import GossipPlan, name_of
from shoal.simulation.world import World
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip.controller import GossipController
from shoal.strategies.gossip.model import Floats, GossipModel
from shoal.strategies.gossip.topology import Graph, Matrix
from shoal.strategies.gossip.worker import HOME
from shoal.wire.effects import Effect

STEP = 0.0625  # of the simulated rule

Doubles = npt.NDArray[np.float64]


def node_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def pull_of(slot: int, size: int) -> Floats:
    drawn: Floats = np.random.default_rng(slot).normal(0.0, 1.0, size).astype(np.float32)
    return drawn


class SimulatedGossipModel(GossipModel):
    def __init__(self, start: Floats, step: float = STEP) -> None:
        """``step`` of the rule; 0: slots are worked through, and nothing is learned."""
        self._step = np.float32(step)
        slab = start.reshape(-1, 1).copy()
        super().__init__(slab, slab[:, 0])
        self.moved: Doubles = np.zeros(start.size)  # by all steps
        self.mixes: list[tuple[float, list[tuple[float, Floats]]]] = []
        self.adds: list[tuple[Floats, float]] = []
        self.steps: list[Floats] = []
        self.slots: list[int] = []
        self._kept = np.zeros(start.size, np.float32)

    def gradient(self, slot: int) -> tuple[float, int]:
        self.slots.append(slot)
        self._kept = self.weights - pull_of(slot, self.size)
        return 1.0, 1

    def mix(self, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
        self.mixes.append((own, [(weight, values.copy()) for weight, values in parts]))
        super().mix(own, parts)

    def add(self, delta: Floats, times: float = 1.0) -> None:
        self.adds.append((delta, times))
        super().add(delta, times)

    def step(self, scale: float = 1.0) -> None:
        before = self.weights
        self.slab[:, 0] -= np.float32(scale) * self._step * self._kept
        change = self.weights - before
        self.steps.append(change)
        self.moved += change


PAUSES = (0, 0, 30, 400)  # milliseconds between two legs


class GossipDriver:
    def __init__(self, world: World, plan: GossipPlan, graph: Graph) -> None:
        self.world, self.plan = world, plan
        self.over = False
        self.done, self.rows, self.loss, self.meetings = 0, 0, 0.0, 0  # as the controller counts
        self.ready: list[str] = []
        self.errors: list[str] = []
        self.matrices: dict[int, Matrix] = {}  # of each leg, by its number; and so are these
        self.rounds: dict[int, int] = {}
        self.dealt: dict[int, dict[str, list[int]]] = {}
        self.slabs: dict[int, dict[str, Floats]] = {}
        self.kept: dict[str, list[int]] = {}  # slots of lost workers that stay counted
        names = [name_of(node) for node in range(plan.nodes)]
        self.every = plan.rounds * plan.nodes  # slots between evaluations
        self.total = plan.legs * self.every
        self._per_pass = max(1, self.every - plan.seed % 3)  # an epoch may end within a leg
        parts = Shards(Slots(self._per_pass, 1, plan.seed), plan.nodes)
        self.controller = GossipController(
            names,
            {name: f"memory:{name}" for name in names},
            graph,
            parts,
            plan.mode,
            by_speed=bool(plan.seed % 2),
            timing=plan.timing,
        )
        self.controller.on_ready = self.ready.append
        self.controller.on_failed = lambda name, why: self.errors.append(f"{name}: {why}")
        self._pauses = Random(f"{plan.seed}/judged")
        self._ended: deque[str] = deque()
        self._begun = self._pausing = False

    def begin(self) -> None:
        self.world.add(self.controller)
        self._set_off(self.controller.begin(self._now()))

    def ended(self, name: str) -> None:
        """A worker's process has ended; ignored during an evaluation."""
        self._ended.append(name)
        if not self._pausing:
            self.look()

    def look(self) -> None:
        """Run after each event of the controller, as after a turn of its loop."""
        controller = self.controller
        self._count()
        while self._ended and not self._pausing:
            self._lose(self._ended.popleft())
        for name, one in controller.states.items():
            if one.slab is not None:
                self.slabs[controller.leg].setdefault(name, one.slab.copy())
        if self.over or self._pausing or not controller.resting:
            return
        if self._begun:
            controller.end_leg(self._now())
            self.meetings += controller.exchanges()[0]
        self._begun = True
        if self.done >= self.total or not controller.living:
            self.over = True
            self.world.carry_out(HOME, controller.dismiss())
            return
        self._pausing = True
        self.world.at(self.world.now + self._pauses.choice(PAUSES) * MILLISECOND, self._next)

    def unseen(self, counted: list[int]) -> list[int]:
        """Slots of begun epochs that are neither counted nor left to assign."""
        parts = self.controller.parts
        seen = {*counted, *parts.left().tolist()}
        return [slot for slot in range((parts.of_pass + 1) * self._per_pass) if slot not in seen]

    def _next(self) -> None:
        self._pausing = False
        room = min(self.every - self.done % self.every, self.total - self.done)
        self._set_off(self.controller.next_leg(self._now(), room, self.plan.left))
        self.look()

    def _set_off(self, effects: list[Effect]) -> None:
        home, graph = self.controller, self.controller.graph
        self.matrices[home.leg], self.rounds[home.leg], self.slabs[home.leg] = graph.mixing(), home.rounds, {}
        self.dealt[home.leg] = {name: one.slots.tolist() for name, one in home.states.items()}
        self.world.carry_out(HOME, effects)

    def _count(self) -> None:
        fresh = self.controller.fresh()
        self.done, self.rows, self.loss = self.done + fresh.slots, self.rows + fresh.rows, self.loss + fresh.loss

    def _lose(self, name: str) -> None:
        home = self.controller
        done = home.states[name].done if name in home.states else 0
        kept = [slot for leg, dealt in self.dealt.items() if leg < home.leg for slot in dealt.get(name, [])]
        self.kept[name] = kept + self.dealt[home.leg].get(name, [])[:done]
        loss = self.controller.lose(self._now(), name)
        if loss is not None:
            self.world.carry_out(HOME, loss[2])

    def _now(self) -> int:
        return self.world.local_time(self.world.hosts[HOME])
