"""A cluster, a job and what befalls them, drawn from one seed.

Swarm testing: every seed first draws the shape (servers, workers, consistency, sizes) and then which families of faults
are on, most runs only one to three of them, since a rare path is reached more often when the others are quiet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from shoal.limits import INLINE_ELEMENTS, MILLISECOND, SECOND
from shoal.simulation.world import World

FAMILIES = ("loss", "repeat", "slow", "partition", "pause", "crash", "drift", "rogue")
HABITS = ("park", "second copies", "void", "change delay", "pipeline")


@dataclass(slots=True)
class Plan:
    """What one seed stands for."""

    seed: int
    servers: int
    workers: int
    kind: Literal["clients", "each", "step"]
    max_delay: int | None
    slots_per_step: int
    slots: int  # in all; for clients: pushes of each
    slots_per_pass: int | None
    dense: bool
    inline: int
    think: int  # longest time a worker computes
    faults: list[str] = field(default_factory=list)
    habits: list[str] = field(default_factory=list)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        random = Random(f"{seed}/plan")
        kind: Literal["clients", "each", "step"] = random.choice(["clients", "each", "each", "step"])
        slots_per_step = random.choice([1, 2, 3, 4, 5])
        slots = random.randrange(8, 24)
        slots_per_pass = None
        if kind == "step":  # whole passes of whole steps: what is never complete is never counted
            slots_per_pass = random.choice([None, None, slots_per_step * 2, slots_per_step + 1])
            unit = slots_per_pass or slots_per_step
            slots = -(-slots // unit) * unit
        return cls(
            seed=seed,
            servers=random.choice([1, 1, 2, 2, 3]),
            workers=random.choice([1, 2, 2, 3, 3, 4, 5]),
            kind=kind,
            max_delay=random.choice([0, 0, 1, 1, 2, 3, None]),
            slots_per_step=slots_per_step,
            slots=slots,
            slots_per_pass=slots_per_pass,
            dense=random.random() < 0.3,
            inline=random.choice([0, 16, INLINE_ELEMENTS]),
            think=random.choice([5, 50, 300]) * MILLISECOND,
            faults=random.sample(FAMILIES, random.choice([0, 1, 1, 2, 2, 3])),
            habits=random.sample(HABITS, random.choice([0, 1, 2, 3])),
        )

    def __str__(self) -> str:
        delay = "any" if self.max_delay is None else self.max_delay
        return (
            f"seed {self.seed}: {self.servers} servers, {self.workers} workers, {self.kind}, max_delay {delay}, "
            f"{self.slots} slots, {self.slots_per_step} a step, {'dense' if self.dense else 'sparse'}, "
            f"faults: {', '.join(self.faults) or 'none'}; habits: {', '.join(self.habits) or 'none'}"
        )


class Nemesis:
    """Brings the faults of a plan about, for a while, and then heals everything."""

    def __init__(self, world: World, plan: Plan, victims: list[str]) -> None:
        self._world, self._plan, self._victims = world, plan, victims
        self._random = Random(f"{plan.seed}/nemesis")
        self.crashed: list[tuple[str, int]] = []  # who was crashed, and when it is to start again
        self.lasts = self._random.choice([1, 2, 4, 9]) * SECOND
        self.over = False

    def begin(self) -> None:
        weather, random, faults = self._world.weather, self._random, self._plan.faults
        weather.delay = random.choice([1, 3, 10]) * MILLISECOND
        if "loss" in faults:
            weather.loss = random.choice([0.02, 0.1, 0.3])
        if "repeat" in faults:
            weather.repeat, weather.late = random.choice([0.1, 0.3]), random.choice([0.0, 0.2, 0.5])
        if "slow" in faults:
            weather.slow = random.choice([0.05, 0.2])
        start = self._world.now
        for family in ("partition", "pause", "crash"):
            if family in faults:
                for _ in range(random.choice([1, 2, 3])):
                    self._world.at(start + random.randrange(self.lasts), getattr(self, "_" + family))
        self._world.at(start + self.lasts, self._heal)

    def _partition(self) -> None:
        """One node is cut off from some others, both ways or one way."""
        names = sorted(self._world.hosts)
        one = self._random.choice(names)
        others = [name for name in names if name != one and self._random.random() < 0.6]
        until = self._world.now + self._random.choice([300, 1_500, 7_000]) * MILLISECOND
        directions = self._random.choice([(True, True), (True, True), (True, False), (False, True)])
        self._world.counts["partitions"] += 1
        for other in others:
            for on, link in zip(directions, ((one, other), (other, one)), strict=True):
                if on:
                    self._world.weather.cuts[link] = until

    def _pause(self) -> None:
        name = self._random.choice(sorted(self._world.hosts))
        self._world.counts["pauses"] += 1
        self._world.pause(name, self._random.choice([100, 1_000, 3_000, 8_000]) * MILLISECOND)

    def _crash(self) -> None:
        alive = [name for name in self._victims if name in self._world.hosts]
        if alive:
            name = self._random.choice(alive)
            self._world.counts["crashes"] += 1
            self._world.crash(name)
            back = self._random.choice([0, 500, 3_000, 7_000]) * MILLISECOND
            self.crashed.append((name, self._world.now + back))

    def _heal(self) -> None:
        weather = self._world.weather
        weather.loss = weather.repeat = weather.slow = 0.0
        weather.cuts.clear()
        for host in self._world.hosts.values():
            host.paused_until = min(host.paused_until, self._world.now + 6 * SECOND)
        self.over = True
