"""Draws workers that gossip and their faults from one seed; times are milliseconds.

Most seeds have one or two kinds of faults: a rare path is reached more often when the others are
quiet. The network's faults last until all is healed. A crash ``lasts`` until the controller hears
of it; with a ``rate``, it comes after so many messages to neighbours.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from msgspec.structs import replace

from shoal.limits import MILLISECOND
from shoal.simulation.faults import Fault, SeedPlan, draw_scale
from shoal.strategies.gossip import Gossip, Topology
from shoal.strategies.gossip.topology import Graph
from shoal.strategies.gossip.worker import HOME

BOTH_WAYS: tuple[Topology, ...] = ("ring", "ring", "star", "complete", "exponential", "random")
TROUBLE = ("loss", "repeat", "slow", "pause", "cut", "crash", "crash", "last words")


def name_of(node: int) -> str:
    return f"worker-{node}"


class GossipPlan(SeedPlan, frozen=True, kw_only=True, repr_omit_defaults=True):
    of = "gossip"
    mode: Literal["sync", "async"] = "sync"
    shape: str = "ring"  # a topology; "arcs": a ring one way, and some more links that go one way
    nodes: int = 2
    legs: int = 1
    rounds: int = 4  # of each leg
    size: int = 4  # of the model
    learns: bool = True
    quick: int = MILLISECOND  # below 0: everything is computed on the compute thread
    link: float = 0.0
    left: float | None = None  # seconds that every leg may take, at most

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
            plan = replace(plan, faults=(*plan.faults, *_faults(plan, trouble, random)))
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
    def dying(self) -> set[str]:
        return {fault.who for fault in self.faults if fault.kind == "crash"}

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.mode}, {self.shape} of {self.nodes}, {self.legs} legs of {self.rounds} rounds, "
            f"{'learning' if self.learns else 'only means'}, {self.described_faults()}"
        )


def _faults(plan: GossipPlan, trouble: str, random: Random) -> list[Fault]:
    who, at = name_of(random.randrange(plan.nodes)), random.randrange(plan.lasts)
    match trouble:
        case "loss":
            return [Fault("loss", rate=random.choice([0.02, 0.1, 0.3]))]
        case "repeat":
            repeat = Fault("repeat", rate=random.choice([0.1, 0.4]))
            return [repeat, Fault("late", rate=random.choice([0.0, 0.2, 0.5]))]
        case "slow":
            return [Fault("slow", rate=random.choice([0.05, 0.2]))]
        case "pause":
            return [Fault("pause", at, random.choice([100, 1_000, 4_000]), who)]
        case "cut":
            to = name_of(random.randrange(plan.nodes))
            return [Fault("cut", at, random.choice([300, 3_000]), who, (to,), how="out")]
        case "crash":
            early = random.choice([30, 300, plan.lasts])  # many runs are over soon
            crash = Fault("crash", 1 + random.randrange(early), random.choice([0, 50, 1_000]), who)
        case _:
            crash = Fault("crash", who=who, rate=random.randrange(1, 12), lasts=random.choice([0, 50, 1_000]))
    return [crash] if len({*plan.dying, who}) < plan.nodes else []  # one worker stays


def _with_home(plan: GossipPlan, random: Random) -> GossipPlan:
    """Faults of the controller, drawn apart so that they reshuffle nothing else."""
    trouble, at, faults = random.random(), random.randrange(plan.lasts), list(plan.faults)
    if plan.dying and random.random() < 0.3:  # its reports of losses are lost
        faults.append(Fault("loss", rate=random.choice([0.1, 0.3])))
    if trouble < 0.15:
        faults.append(Fault("pause", at, random.choice([100, 1_000, 4_000]), HOME))
    elif trouble < 0.3:
        who, told = name_of(random.randrange(plan.nodes)), random.random() < 0.5
        sender, to = (HOME, who) if told else (who, HOME)
        faults.append(Fault("cut", at, random.choice([300, 3_000]), sender, (to,), how="out"))
    left = random.choice([0.05, 0.5]) if 0.3 <= trouble < 0.4 else None
    return replace(plan, faults=tuple(faults), left=left)
