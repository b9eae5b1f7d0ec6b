"""Draws faults from a seed, within what the cluster has promised to survive.

    kill        SIGKILL; the process is started again, empty and as a new incarnation
    pause       SIGSTOP for one to eight seconds; the longer ones are taken for death
    cut         two nodes do not hear each other for as long; all others do
    join        one more server is started, and gets its share
    drain       a server is asked to leave, and others take over what it has

A segment survives as long as one server of its set has not been hurt since the set was last
complete. So a server is hit only if each of its segments has another healthy server; with
``beyond`` this rule is off, and rollbacks are expected. Nodes that join or leave may be hurt by
the same rule. One worker is always left alone: a run without workers ends.

The same seed draws the same gaps, kinds and lengths; who is hit also depends on who may be. A
drill kills at least one server, if there is time for one and one may be killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

import msgspec

COORDINATOR = "coordinator"
WEIGHTS = {"worker": 4.0, "server": 4.0, COORDINATOR: 2.0}  # weights of the victims
Kind = Literal["kill", "pause", "cut", "join", "drain"]
PLANNED: tuple[Kind, ...] = ("join", "drain")  # these are no faults


class ChaosFault(msgspec.Struct, frozen=True):
    kind: Kind
    name: str
    seconds: float = 0.0  # how long a pause or a cut is, or how long a dead worker is not replaced
    other: str = ""  # the other side of a cut

    @property
    def role(self) -> str:
        return role_of(self.name)

    def __str__(self) -> str:
        what = "kill -9" if self.kind == "kill" else self.kind
        whom = f" from {self.other}" if self.kind == "cut" else ""
        lasts = f" for {self.seconds:.1f} s" if self.kind in ("cut", "pause") else ""
        return f"{what} {self.name}{whom}{lasts}"


def role_of(name: str) -> str:
    return name.rpartition("-")[0] or name


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The severity of a drill."""

    seed: int = 0
    beyond: bool = False  # also faults that need a rollback
    gap: tuple[float, float] = (2.0, 5.0)  # seconds between faults
    pause: tuple[float, float] = (1.0, 8.0)
    pauses: float = 0.4  # shares among the other faults:
    cuts: float = 0.0
    joins: float = 0.0
    drains: float = 0.0
    servers: tuple[int, int] = (0, 0)  # there are never fewer, or more, by what is planned
    together: float = 0.15  # share of faults that come in twos
    weights: dict[str, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))


@dataclass(frozen=True, slots=True)
class ClusterState:
    well: Sequence[str]  # live processes that have recovered from all faults
    sets: Sequence[Sequence[str]] = ()  # holders of each segment; empty: unknown
    staying: Sequence[str] = ()  # servers that are present or joining, and not leaving
    next_server: str = ""  # the name of the next server; empty: none may join

    def after(self, fault: ChaosFault) -> ClusterState:
        if fault.kind == "join":
            return replace(self, staying=[*self.staying, fault.name], next_server="")
        if fault.kind == "drain":
            return replace(self, staying=[one for one in self.staying if one != fault.name])
        return replace(self, well=[one for one in self.well if one != fault.name])


class FaultPlanner:
    def __init__(self, settings: ChaosSettings) -> None:
        self.settings = settings
        self._draw = Random(f"nemesis {settings.seed}")
        self._draw_server = Random(f"server of {settings.seed}")

    def gap(self) -> float:
        return self._draw.uniform(*self.settings.gap)

    def next(self, situation: ClusterState, kill_server: bool = False) -> list[ChaosFault]:
        """The next fault, sometimes two, or none; ``kill_server``: a server's, if it may be."""
        faults, state = [], situation
        for _ in range(1 + (self._draw.random() < self.settings.together)):
            fault = self._one(state)
            if fault is not None:
                faults.append(fault)
                state = state.after(fault)
        settings = self.settings
        kills = (1 - settings.pauses) * (1 - settings.joins - settings.drains - settings.cuts) > 1e-9
        servers = sorted(name for name in situation.well if role_of(name) == "server")
        may = [name for name in servers if self.may_hurt(name, situation)] if kill_server and kills else []
        return [ChaosFault("kill", self._draw_server.choice(may))] if may else faults

    def may_hurt(self, name: str, situation: ClusterState) -> bool:
        if name not in situation.well or self.settings.weights.get(role_of(name), 0) <= 0:
            return False
        left = [one for one in situation.well if one != name]
        match role_of(name):
            case "worker":
                return any(role_of(one) == "worker" for one in left)
            case "server":
                held = [holders for holders in situation.sets if name in holders]
                return bool(situation.sets) and (
                    self.settings.beyond or all(any(one in left for one in holders) for holders in held)
                )
        return True

    def _one(self, situation: ClusterState) -> ChaosFault | None:
        # A fixed number of draws, so that the later schedule does not change.
        role, pick, kind, length, whom = (self._draw.random() for _ in range(5))
        settings, well = self.settings, situation.well
        low, high = settings.pause
        seconds = round(low + (high - low) * length, 1)
        kind -= settings.joins
        if kind < 0:
            room = situation.sets and len(situation.staying) < settings.servers[1]
            return ChaosFault("join", situation.next_server) if room and situation.next_server else None
        kind -= settings.drains
        if kind < 0:  # a healthy server, if enough others remain
            names = sorted(name for name in situation.staying if name in well)
            enough = situation.sets and len(names) > max(1, settings.servers[0])
            return ChaosFault("drain", names[int(pick * len(names))]) if enough else None
        allowed = sorted(name for name in well if self.may_hurt(name, situation))
        kind -= settings.cuts
        if 0 > kind >= -settings.cuts:
            allowed = [name for name in allowed if name != COORDINATOR]
        roles = sorted({role_of(name) for name in allowed})
        if not roles:
            return None
        total = sum(settings.weights[one] for one in roles) * role
        for chosen in roles:
            total -= settings.weights[chosen]
            if total < 0:
                break
        names = [name for name in allowed if role_of(name) == chosen]
        name = names[int(pick * len(names))]
        if kind < 0:
            others = sorted(one for one in well if role_of(one) in ("server", COORDINATOR) and one != name)
            return ChaosFault("cut", name, seconds, others[int(whom * len(others))]) if others else None
        if kind < settings.pauses * (1 - settings.joins - settings.drains - settings.cuts):
            return ChaosFault("pause", name, seconds)
        return ChaosFault("kill", name, min(seconds, 2.0) if chosen == "worker" else 0.0)
