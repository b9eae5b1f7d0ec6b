"""The faults of a mesh of peers, drawn from one seed, as data.

Peers join and leave, so a fault does not name its victim: ``pick`` chooses among the members.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from shoal.simulation.faults import draw_scale
from shoal.timing import Timing, TimingSettings

WEATHER = ("loss", "repeat", "slow")


class PeersFault(msgspec.Struct, frozen=True):
    """One fault, join or leave."""

    kind: str
    at: int  # milliseconds from the beginning
    lasts: int = 0
    pick: float = 0.0  # selects the victim among the members
    other: float = 0.0
    rate: float = 0.0
    how: str = ""


class PeersPlan(msgspec.Struct, frozen=True):
    """One mesh and its faults."""

    seed: int
    founders: int
    lasts: int  # milliseconds until all is healed
    delay: int  # milliseconds that a message takes, on average
    told: bool  # the launcher reports deaths at once
    every: int  # milliseconds between two words of a peer
    faults: tuple[PeersFault, ...] = ()
    send: str = "all"  # or owned; or "": no model
    slots: int = 0  # to be learned
    told_every: int = 1  # slots
    took: int = 20  # milliseconds for one, at most
    scale: float = 1.0  # of the timing of all nodes

    @classmethod
    def draw(cls, seed: int) -> PeersPlan:
        random = Random(f"{seed}/peers")
        plan = cls(
            seed,
            founders=random.choice([1, 2, 2, 3, 3, 4, 5, 6]),
            lasts=random.choice([4_000, 8_000, 14_000]),
            delay=random.choice([1, 1, 5, 30]),
            told=random.random() < 0.5,
            every=random.choice([100, 300, 700]),
            send=random.choice(["", "all", "all", "owned"]),
            slots=random.choice([30, 100, 250]),
            told_every=random.choice([1, 3, 8]),
            took=random.choice([20, 200, 400]),
            scale=draw_scale(seed),
        )
        families = random.sample(list(_DRAW), random.choice([0, 1, 2, 2, 3, 4, 5]))
        faults = [fault for family in families for fault in _DRAW[family](plan, random)]
        if random.random() < 0.1:
            faults += _hushed(plan, random)
        return msgspec.structs.replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))

    @property
    def timing(self) -> TimingSettings:
        return Timing(scale=self.scale).intervals()

    def __str__(self) -> str:
        faults = ", ".join(f"{one.kind}{' ' + one.how if one.how else ''}@{one.at}" for one in self.faults)
        what = f"{self.slots} slots, {self.send}" if self.send else "talk"
        return f"seed {self.seed}: {self.founders} peers, {what}, {self.lasts} ms, told={self.told}: {faults or 'no faults'}"


def _times(plan: PeersPlan, random: Random, most: int = 4) -> list[int]:
    return [random.randrange(plan.lasts) for _ in range(random.randint(1, most))]


def _joins(plan: PeersPlan, random: Random) -> list[PeersFault]:
    return [PeersFault("join", at, pick=random.random()) for at in _times(plan, random)]


def _crowd(plan: PeersPlan, random: Random) -> list[PeersFault]:
    """Several peers join at once, through different peers."""
    at = random.randrange(plan.lasts)
    return [PeersFault("join", at + random.randrange(50), pick=random.random()) for _ in range(random.randint(2, 4))]


def _leaves(plan: PeersPlan, random: Random) -> list[PeersFault]:
    return [PeersFault("leave", at, pick=random.random()) for at in _times(plan, random, 2)]


def _crashes(plan: PeersPlan, random: Random) -> list[PeersFault]:
    return [
        PeersFault("crash", at, random.choice([0, 0, 500, 3_000]), random.random(), how=random.choice(["", "", "lead"]))
        for at in _times(plan, random, 3)
    ]


def _row(plan: PeersPlan, random: Random) -> list[PeersFault]:
    """Peers die one after the other, up to all but one."""
    at = random.randrange(plan.lasts)
    gap = random.choice([0, 20, 400])
    return [
        PeersFault("crash", at + i * gap, random.choice([0, 1_000]), random.random())
        for i in range(random.randint(2, 5))
    ]


def _half_joined(plan: PeersPlan, random: Random) -> list[PeersFault]:
    """The donor, the newcomer or another peer dies during a model transfer."""
    return [
        fault
        for at in _times(plan, random, 2)
        for fault in (
            PeersFault("join", at, pick=random.random()),
            PeersFault("join", at + random.randrange(30), pick=random.random()),
            PeersFault(
                "crash on piece", at, pick=random.random(), how=random.choice(["donor", "donor", "newcomer", "other"])
            ),
        )
    ]


def _hushed(plan: PeersPlan, random: Random) -> list[PeersFault]:
    """A newcomer copies words that no other peer has heard, and the donor dies."""
    at = random.randrange(plan.lasts)
    crash = PeersFault("crash on piece", at + 300, pick=random.random() / 3, how="donor")
    return [PeersFault("hush", at, 3_000), PeersFault("join", at + 300, pick=random.random()), crash]


def _mid_word(plan: PeersPlan, random: Random) -> list[PeersFault]:
    """A peer dies after it has sent a word to some peers only."""
    return [
        PeersFault("crash on word", at, random.choice([0, 1_000]), random.random()) for at in _times(plan, random, 3)
    ]


def _pauses(plan: PeersPlan, random: Random) -> list[PeersFault]:
    lasts = [300, 2_000, 6_500, 9_000]
    return [PeersFault("pause", at, random.choice(lasts), random.random()) for at in _times(plan, random, 2)]


def _cuts(plan: PeersPlan, random: Random) -> list[PeersFault]:
    """Cuts between two peers, in one direction, or around one peer."""
    return [
        PeersFault("cut", at, random.choice([500, 3_000, 7_000]), random.random(), random.random(), how=how)
        for at in _times(plan, random, 3)
        for how in (random.choice(["both", "one way", "all in", "all out", "alone"]),)
    ]


def _partition(plan: PeersPlan, random: Random) -> list[PeersFault]:
    at = random.randrange(plan.lasts)
    return [PeersFault("part", at, random.choice([1_000, 6_000, 8_000]), random.random(), random.random())]


def _weather(kind: str, rates: list[float]) -> Callable[[PeersPlan, Random], list[PeersFault]]:
    def draw(plan: PeersPlan, random: Random) -> list[PeersFault]:
        return [
            PeersFault(kind, at, random.choice([1_000, 5_000]), rate=random.choice(rates))
            for at in _times(plan, random, 2)
        ]

    return draw


_DRAW: dict[str, Callable[[PeersPlan, Random], list[PeersFault]]] = {
    "joins": _joins,
    "crowd": _crowd,
    "leaves": _leaves,
    "crashes": _crashes,
    "row": _row,
    "half joined": _half_joined,
    "mid word": _mid_word,
    "pauses": _pauses,
    "cuts": _cuts,
    "partition": _partition,
    "loss": _weather("loss", [0.05, 0.2, 0.5]),
    "repeat": _weather("repeat", [0.2, 0.5]),
    "slow": _weather("slow", [0.05, 0.2]),
}
