"""Carries out the faults of a plan, each at its time, and then heals everything.

Nothing is drawn here. The ``FaultTarget`` knows the processes: it crashes, restarts and doubles
them, and may refuse a crash that would lose the last copy of something, unless the plan allows
that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Protocol

from shoal.limits import MILLISECOND, SECOND
from shoal.simulation.cluster import COORDINATOR
from shoal.simulation.faults import WEATHER, Fault, FaultPlan, SeedPlan
from shoal.simulation.world import SimulatedJournal, World

SETTLE = 6 * SECOND  # a pause may outlast the healing by so much


class FaultTarget(Protocol):
    def crash(self, fault: Fault) -> bool:
        """Crash a process; False if it must not crash now."""

    def may_silence(self, name: str) -> bool: ...

    def restart(self, name: str) -> None: ...

    def carry_out(self, fault: Fault, until: int) -> bool:
        """Carry out a fault that ``Nemesis`` does not know; False without a victim."""

    def heal(self) -> None:
        """End stragglers, joins and leaves."""


class Nemesis:
    def __init__(self, world: World, plan: SeedPlan, target: FaultTarget) -> None:
        self._world, self._plan, self._target = world, plan, target
        self._away = 0  # processes that are down and will return
        self._healed = False

    @property
    def over(self) -> bool:
        return self._healed and not self._away

    def begin(self) -> None:
        world, start = self._world, self._world.now
        world.weather.delay = self._plan.delay * MILLISECOND
        for fault in self._plan.faults:
            if fault.kind == "drift":
                continue  # since the beginning of the world
            world.at(start + fault.at * MILLISECOND, lambda fault=fault: self.strike(fault))  # type: ignore[misc]
        world.at(start + self._plan.lasts * MILLISECOND, self._heal)

    def strike(self, fault: Fault) -> None:
        if self._healed:
            return
        world, until = self._world, self._world.now + fault.lasts * MILLISECOND
        long = fault.kind in ("pause", "freeze", "cut", "clog") and until - world.now > self._plan.timing.suspect
        if long and not all(self._target.may_silence(name) for name in self._silenced(fault)):
            world.counts["fault: withheld"] += 1
            return
        match fault.kind:
            case kind if kind in WEATHER:
                setattr(world.weather, kind, max(fault.rate, 0.0 if fault.lasts else getattr(world.weather, kind)))
                if fault.lasts:  # else it is over when all is healed
                    world.at(until, lambda: setattr(world.weather, kind, 0.0))
            case "cut":
                for other in fault.others:
                    world.weather.cuts.update(dict.fromkeys(_links(fault, other), until))
            case "far":
                longer = int(fault.rate * MILLISECOND)
                for other in fault.others:
                    world.weather.far.update(dict.fromkeys(_links(fault, other), (until, longer)))
            case "clog":
                world.weather.clogs[fault.who] = until
            case "pause":
                if fault.who not in world.hosts:
                    return
                world.pause(fault.who, fault.lasts * MILLISECOND)
            case "freeze":
                if fault.who not in world.hosts:
                    return
                world.freeze(fault.who, fault.lasts * MILLISECOND)
            case "sluggish":
                world.stall_disk(fault.who, fault.lasts * MILLISECOND)
            case "full":
                world.journals.setdefault(fault.who, SimulatedJournal()).full_until = until
            case "crash":
                if fault.who not in world.hosts:
                    return
                if not self._target.crash(fault):
                    world.counts["fault: withheld"] += 1
                    return
                self.bring_back([fault.who], until)
            case _:
                if not self._target.carry_out(fault, until):
                    world.counts["fault: withheld"] += 1
                    return
        role = fault.who.partition("-")[0]
        named = role and fault.kind not in ("rogue", "clog", "ambush")
        world.counts[f"fault: {fault.kind}" + (f" {role}" if named else "")] += 1

    def stop(self) -> None:
        if not self._healed:
            self._heal()

    def bring_back(self, names: list[str], at: int) -> None:
        """Restart these processes at that time."""
        self._away += len(names)
        for name in names:
            self._world.at(at, lambda name=name: self._back(name))  # type: ignore[misc]

    def _back(self, name: str) -> None:
        self._away -= 1
        self._target.restart(name)

    def _heal(self) -> None:
        world = self._world
        for kind in WEATHER:
            setattr(world.weather, kind, 0.0)
        world.weather.cuts.clear()
        world.weather.clogs.clear()
        world.weather.far.clear()
        world.twins.clear()
        for host in world.hosts.values():
            host.paused_until = min(host.paused_until, world.now + SETTLE)
            host.frozen_until = min(host.frozen_until, world.now + SETTLE)
        for journal in world.journals.values():
            journal.full_until = 0
        self._target.heal()
        self._healed = True

    def _silenced(self, fault: Fault) -> list[str]:
        """The nodes that a fault hides from the coordinator."""
        if fault.kind == "clog" and fault.who == COORDINATOR:
            return [name for name in self._world.hosts if name.startswith("server")]
        if fault.kind != "cut":
            return [fault.who]
        if fault.who == COORDINATOR:
            return list(fault.others)
        return [fault.who] if COORDINATOR in fault.others else []


def _links(fault: Fault, other: str) -> list[tuple[str, str]]:
    """The links of a fault between two nodes: both directions, or only one of them."""
    both = [("in", (fault.who, other)), ("out", (other, fault.who))]
    return [link for but, link in both if fault.how != but]


LONGEST_BREAK = 1_000  # milliseconds


class Stragglers:
    """The computing times of each worker."""

    def __init__(self, plan: FaultPlan, now: Callable[[], int]) -> None:
        self._random, self._now = Random(f"{plan.seed}/breaks"), now
        self._faults: dict[str, list[tuple[Fault, int]]] = {}
        self.counts: Counter[str] = Counter()

    def straggle(self, fault: Fault, until: int) -> None:
        self._faults.setdefault(fault.who, []).append((fault, until))

    def heal(self) -> None:
        self._faults.clear()

    def takes(self, worker: str, nanoseconds: int) -> int:
        """The duration of a computation, from that without faults.

        Of several faults the worst counts: all of them together would stretch a slot to minutes.
        """
        now, times, more = self._now(), 1.0, 0
        for fault, until in self._faults.get(worker, ()):
            if until <= now:
                continue
            match fault.kind:
                case "slower":
                    times = max(times, fault.rate)
                case "halting" if self._random.random() < fault.rate:
                    more += self._random.randrange(LONGEST_BREAK) * MILLISECOND
                case "stall":
                    more += until - now
        whole = int(nanoseconds * times) + more
        self.counts["slots that took longer"] += whole > nanoseconds
        return whole
