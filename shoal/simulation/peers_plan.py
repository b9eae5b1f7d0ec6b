"""Draws a mesh of peers and its faults from one seed.

Peers join and leave, so a fault does not name its victim: ``pick`` chooses among the members.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from shoal.simulation.faults import Fault, SeedPlan, by_time, draw_scale


class PeersPlan(SeedPlan, frozen=True, kw_only=True, repr_omit_defaults=True):
    of = "peers"
    founders: int = 1
    told: bool = False  # the launcher reports deaths at once
    send: str = "all"  # or owned
    slots: int = 30  # to be learned
    told_every: int = 1  # slots
    took: int = 20  # milliseconds for one, at most

    @classmethod
    def draw(cls, seed: int) -> PeersPlan:
        random = Random(f"{seed}/peers")
        founders, lasts = random.choice([1, 2, 2, 3, 3, 4, 5, 6]), random.choice([4_000, 8_000, 14_000])
        delay, told = random.choice([1, 1, 5, 30]), random.random() < 0.5
        random.choice([100, 300, 700])  # no longer used: without it all seeds would be other runs
        plan = cls(
            seed=seed,
            founders=founders,
            lasts=lasts,
            delay=delay,
            told=told,
            send=random.choice(["all", "all", "all", "owned"]),
            slots=random.choice([30, 100, 250]),
            told_every=random.choice([1, 3, 8]),
            took=random.choice([20, 200, 400]),
            scale=draw_scale(seed),
        )
        families = random.sample(list(_DRAW), random.choice([0, 1, 2, 2, 3, 4, 5]))
        faults = [fault for family in families for fault in _DRAW[family](plan, random)]
        if random.random() < 0.1:
            faults += _hushed(plan, random)
        return replace(plan, faults=by_time(faults))

    def __str__(self) -> str:
        what = f"{self.slots} slots, {self.send}, {self.lasts} ms, told={self.told}"
        return f"seed {self.seed}: {self.founders} peers, {what}, {self.described_faults()}"


def _times(plan: PeersPlan, random: Random, most: int) -> list[int]:
    return [random.randrange(plan.lasts) for _ in range(random.randint(1, most))]


Family = Callable[[PeersPlan, Random], list[Fault]]


def _strikes(kind: str, most: int, lasts: list[int] | None = None, hows: list[str] | None = None) -> Family:
    def draw(plan: PeersPlan, random: Random) -> list[Fault]:
        faults = []
        for at in _times(plan, random, most):
            long, pick = random.choice(lasts) if lasts else 0, random.random()
            faults.append(Fault(kind, at, long, pick=pick, how=random.choice(hows) if hows else ""))
        return faults

    return draw


def _crowd(plan: PeersPlan, random: Random) -> list[Fault]:
    """Several peers join at once, through different peers."""
    at = random.randrange(plan.lasts)
    return [Fault("join", at + random.randrange(50), pick=random.random()) for _ in range(random.randint(2, 4))]


def _row(plan: PeersPlan, random: Random) -> list[Fault]:
    """Peers die one after the other, up to all but one."""
    at, gap = random.randrange(plan.lasts), random.choice([0, 20, 400])
    return [
        Fault("crash", at + i * gap, random.choice([0, 1_000]), pick=random.random())
        for i in range(random.randint(2, 5))
    ]


def _half_joined(plan: PeersPlan, random: Random) -> list[Fault]:
    """The donor, the newcomer or another peer dies during a model transfer."""
    faults = []
    for at in _times(plan, random, 2):
        faults += [Fault("join", at, pick=random.random())]
        faults += [Fault("join", at + random.randrange(30), pick=random.random())]
        who = random.random(), random.choice(["donor", "donor", "newcomer", "other"])
        faults += [Fault("crash on piece", at, pick=who[0], how=who[1])]
    return faults


def _hushed(plan: PeersPlan, random: Random) -> list[Fault]:
    """A newcomer copies words that no other peer has heard, and the donor dies."""
    at = random.randrange(plan.lasts)
    crash = Fault("crash on piece", at + 300, pick=random.random() / 3, how="donor")
    return [Fault("hush", at, 3_000), Fault("join", at + 300, pick=random.random()), crash]


def _cuts(plan: PeersPlan, random: Random) -> list[Fault]:
    """Cuts between two peers, in one direction, or around one peer."""
    return [
        Fault("cut", at, random.choice([500, 3_000, 7_000]), pick=random.random(), other=random.random(), how=how)
        for at in _times(plan, random, 3)
        for how in (random.choice(["both", "one way", "all in", "all out", "alone"]),)
    ]


def _partition(plan: PeersPlan, random: Random) -> list[Fault]:
    at, lasts = random.randrange(plan.lasts), random.choice([1_000, 6_000, 8_000])
    return [Fault("part", at, lasts, pick=random.random(), other=random.random())]


def _weather(kind: str, rates: list[float]) -> Family:
    return lambda plan, random: [
        Fault(kind, at, random.choice([1_000, 5_000]), rate=random.choice(rates)) for at in _times(plan, random, 2)
    ]


_DRAW: dict[str, Family] = {
    "joins": _strikes("join", 4),
    "crowd": _crowd,
    "leaves": _strikes("leave", 2),
    "crashes": _strikes("crash", 3, [0, 0, 500, 3_000], ["", "", "lead"]),
    "row": _row,
    "half joined": _half_joined,
    "mid word": _strikes("crash on word", 3, [0, 1_000]),  # it has sent a word to some peers only
    "pauses": _strikes("pause", 2, [300, 2_000, 6_500, 9_000]),
    "cuts": _cuts,
    "partition": _partition,
    "loss": _weather("loss", [0.05, 0.2, 0.5]),
    "repeat": _weather("repeat", [0.2, 0.5]),
    "slow": _weather("slow", [0.05, 0.2]),
}
