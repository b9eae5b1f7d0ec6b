"""A model of a few numbers that records everything done to it, for checkers of gossip; and the names of simulated workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.strategies.gossip.model import Floats, mix_into

STEP = 0.0625  # of the simulated rule

Doubles = npt.NDArray[np.float64]


def name_of(node: int) -> str:
    return f"worker-{node}"


def node_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def pull_of(slot: int, size: int) -> Floats:
    """Where a slot draws a model to."""
    drawn: Floats = np.random.default_rng(slot).normal(0.0, 1.0, size).astype(np.float32)
    return drawn


class SimulatedGossipModel:
    """A model of a few numbers, with a record."""

    def __init__(self, start: Floats, step: float = STEP) -> None:
        """``step`` of the rule; 0: slots are worked through, and nothing is learned."""
        self._step = np.float32(step)
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
        self.slab[:, 0] -= np.float32(scale) * self._step * self._kept
        change = self.weights - before
        self.steps.append(change)
        self.moved += change
