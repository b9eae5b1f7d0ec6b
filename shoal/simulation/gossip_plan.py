"""Draws workers that gossip and their faults from one seed; times are milliseconds.

Most seeds have one or two kinds of faults: a rare path is reached more often when the others are
quiet.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from shoal.limits import MILLISECOND
from shoal.simulation.faults import draw_scale
from shoal.strategies.gossip import Gossip, Topology
from shoal.strategies.gossip.topology import Graph

BOTH_WAYS: tuple[Topology, ...] = ("ring", "ring", "star", "complete", "exponential", "random")
TROUBLE = ("loss", "repeat", "slow", "pause", "cut", "crash", "crash", "last words")


class PlannedCrash(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A worker crashes at a time or between messages; the controller hears it later."""

    who: int
    at: int = 0
    words: int = 0  # after so many messages to its neighbours; others sent at that moment are lost
    told: int = 0


class GossipPlan(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The plan of one seed."""

    seed: int
    mode: Literal["sync", "async"] = "sync"
    shape: str = "ring"  # a topology; "arcs": a ring one way, and some more links that go one way
    nodes: int = 2
    legs: int = 1
    rounds: int = 4  # of each leg
    size: int = 4  # of the model
    learns: bool = True
    quick: int = MILLISECOND  # below 0: everything is computed on the compute thread
    link: float = 0.0
    delay: int = 1
    lasts: int = 2_000  # then all faults are healed
    loss: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    pauses: tuple[tuple[int, int, int], ...] = ()  # worker, time, length
    cuts: tuple[tuple[int, int, int, int], ...] = ()  # sender, receiver, time, length
    crashes: tuple[PlannedCrash, ...] = ()
    scale: float = 1.0  # of the timing of all nodes
    left: float | None = None  # seconds that every leg may take, at most
    home_pauses: tuple[tuple[int, int], ...] = ()  # time, length
    # worker, from or to the controller, time, length
    home_cuts: tuple[tuple[int, bool, int, int], ...] = ()

    @classmethod
    def draw(cls, seed: int) -> GossipPlan:
        random = Random(f"{seed}/gossip")
        mode: Literal["sync", "async"] = random.choice(["sync", "sync", "async"])
        one_way = mode == "sync" and random.random() < 0.35
        plan = cls(
            seed=seed,
            mode=mode,
            shape=random.choice(["one-way", "arcs"]) if one_way else random.choice(BOTH_WAYS),
            nodes=random.randrange(2, 9),
            legs=random.choice([1, 2, 2, 3]),
            rounds=random.choice([1, 2, 5, 9]),
            size=random.choice([1, 4, 9]),
            learns=random.random() < 0.6,
            quick=random.choice([MILLISECOND, -1]),
            link=random.choice([0.0, 0.0, 0.02, 0.3]),
            delay=random.choice([1, 5, 20]),
            lasts=random.choice([500, 2_000, 5_000]),
            scale=draw_scale(seed),
        )
        for trouble in sorted(set(random.sample(TROUBLE, random.choice([0, 1, 2, 2, 3])))):
            plan = _with(plan, trouble, random)
        return _with_home(plan, Random(f"{seed}/home"))

    def graph(self) -> Graph:
        if self.shape == "arcs":
            random = Random(f"{self.seed}/arcs")
            ring = [(i, (i + 1) % self.nodes) for i in range(self.nodes)]
            pairs = [(i, j) for i in range(self.nodes) for j in range(self.nodes) if i != j]
            return Graph("arcs", self.nodes, sorted({*ring, *random.sample(pairs, len(pairs) // 3)}), directed=True)
        degree = 2 if self.nodes > 2 else 1
        strategy = Gossip(topology=self.shape, mode=self.mode, degree=degree)  # type: ignore[arg-type]
        return strategy.graph(self.nodes, self.seed)

    @property
    def is_spared(self) -> bool:
        """Whether no worker dies."""
        return not self.crashes

    def __str__(self) -> str:
        trouble = [
            f"{name} {getattr(self, name):g}" for name in ("loss", "repeat", "late", "slow") if getattr(self, name)
        ]
        trouble += [f"worker-{who} pauses at {at} for {lasts}" for who, at, lasts in self.pauses]
        trouble += [f"worker-{a} to worker-{b} cut at {at} for {lasts}" for a, b, at, lasts in self.cuts]
        trouble += [f"home pauses at {at} for {lasts}" for at, lasts in self.home_pauses]
        trouble += [
            f"home {'to' if told else 'from'} worker-{who} cut at {at} for {lasts}"
            for who, told, at, lasts in self.home_cuts
        ]
        trouble += [
            f"worker-{one.who} dies " + (f"after {one.words} words" if one.words else f"at {one.at}")
            for one in self.crashes
        ]
        return (
            f"seed {self.seed}: {self.mode}, {self.shape} of {self.nodes}, {self.legs} legs of {self.rounds} rounds, "
            f"{'learning' if self.learns else 'only means'}, trouble: {'; '.join(trouble) or 'none'}"
        )


def _with(plan: GossipPlan, trouble: str, random: Random) -> GossipPlan:
    replace, who = msgspec.structs.replace, random.randrange(plan.nodes)
    at = random.randrange(plan.lasts)
    match trouble:
        case "loss":
            return replace(plan, loss=random.choice([0.02, 0.1, 0.3]))
        case "repeat":
            return replace(plan, repeat=random.choice([0.1, 0.4]), late=random.choice([0.0, 0.2, 0.5]))
        case "slow":
            return replace(plan, slow=random.choice([0.05, 0.2]))
        case "pause":
            return replace(plan, pauses=((who, at, random.choice([100, 1_000, 4_000])),))
        case "cut":
            return replace(plan, cuts=((who, random.randrange(plan.nodes), at, random.choice([300, 3_000])),))
        case "crash":
            early = random.choice([30, 300, plan.lasts])  # many runs are over soon
            crash = PlannedCrash(who, at=1 + random.randrange(early), told=random.choice([0, 50, 1_000]))
        case _:
            crash = PlannedCrash(who, words=random.randrange(1, 12), told=random.choice([0, 50, 1_000]))
    if len({one.who for one in plan.crashes} | {who}) == plan.nodes:
        return plan  # one worker stays
    return replace(plan, crashes=(*plan.crashes, crash))


def _with_home(plan: GossipPlan, random: Random) -> GossipPlan:
    """Faults of the controller, drawn apart so that they reshuffle nothing else."""
    trouble, at = random.random(), random.randrange(plan.lasts)
    if plan.crashes and random.random() < 0.3:  # its reports of losses are lost
        plan = msgspec.structs.replace(plan, loss=max(plan.loss, random.choice([0.1, 0.3])))
    if trouble < 0.15:
        return msgspec.structs.replace(plan, home_pauses=((at, random.choice([100, 1_000, 4_000])),))
    if trouble < 0.3:
        cut = random.randrange(plan.nodes), random.random() < 0.5, at, random.choice([300, 3_000])
        return msgspec.structs.replace(plan, home_cuts=(cut,))
    return msgspec.structs.replace(plan, left=random.choice([0.05, 0.5])) if trouble < 0.4 else plan
