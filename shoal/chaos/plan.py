"""Whom to hurt, how and when: drawn from a seed, within what the cluster has promised to survive.

    kill        SIGKILL; the process is started again, empty and as a new incarnation
    pause       SIGSTOP for one to eight seconds: the shorter ones are slept through, the longer ones are taken for death

A segment survives as long as one server of its set has not been hurt since the set was last whole. So a server is hurt only if
every segment it holds has another that is well; with ``beyond`` this is not asked, and a rollback is to be expected. One
worker is always left alone: a run without any ends. The same seed draws the same gaps, kinds and lengths; who is hit
depends also on who may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec

COORDINATOR = "coordinator"
WEIGHTS = {"worker": 4.0, "server": 4.0, COORDINATOR: 2.0}  # how often each is hit
Kind = Literal["kill", "pause"]


class Fault(msgspec.Struct, frozen=True):
    """What is done to a process."""

    kind: Kind
    name: str
    seconds: float = 0.0  # how long a pause is, or how long a dead worker is not replaced

    @property
    def role(self) -> str:
        return role_of(self.name)

    def __str__(self) -> str:
        return f"kill -9 {self.name}" if self.kind == "kill" else f"pause {self.name} for {self.seconds:.1f} s"


def role_of(name: str) -> str:
    return name.rpartition("-")[0] or name


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How hard it is."""

    seed: int = 0
    beyond: bool = False  # also what cannot be survived without going back to a checkpoint
    gap: tuple[float, float] = (2.0, 5.0)  # seconds between faults
    pause: tuple[float, float] = (1.0, 8.0)
    pauses: float = 0.4  # their share
    together: float = 0.15  # share of faults that come in twos
    weights: dict[str, float] = msgspec.field(default_factory=lambda: dict(WEIGHTS))


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of the cluster right now."""

    well: Sequence[str]  # processes that run and have recovered from whatever was done to them
    sets: Sequence[Sequence[str]] = ()  # who holds each segment; empty: not known, so that no server may be hurt

    def without(self, name: str) -> Situation:
        return Situation([one for one in self.well if one != name], self.sets)


class Nemesis:
    """Draws one fault after another."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._draw = Random(f"nemesis {settings.seed}")

    def gap(self) -> float:
        """Seconds until the next fault."""
        return self._draw.uniform(*self.settings.gap)

    def next(self, situation: Situation) -> list[Fault]:
        """What to do now: one fault, sometimes two at once; none if nobody can be hurt."""
        faults = []
        for _ in range(1 + (self._draw.random() < self.settings.together)):
            fault = self._one(situation)
            if fault is not None:
                faults.append(fault)
                situation = situation.without(fault.name)
        return faults

    def may_hurt(self, name: str, situation: Situation) -> bool:
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

    def _one(self, situation: Situation) -> Fault | None:
        # As many draws whatever the situation is: what comes later in the schedule stays the same.
        role, pick, pause, length = (self._draw.random() for _ in range(4))
        allowed = sorted(name for name in situation.well if self.may_hurt(name, situation))
        roles = sorted({role_of(name) for name in allowed})
        if not roles:
            return None
        total = sum(self.settings.weights[one] for one in roles) * role
        for chosen in roles:
            total -= self.settings.weights[chosen]
            if total < 0:
                break
        names = [name for name in allowed if role_of(name) == chosen]
        name = names[int(pick * len(names))]
        low, high = self.settings.pause
        seconds = round(low + (high - low) * length, 1)
        if pause < self.settings.pauses:
            return Fault("pause", name, seconds)
        return Fault("kill", name, min(seconds, 2.0) if chosen == "worker" else 0.0)
