"""Many seeds, on all cores, added up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from shoal.simulation.mutants import mutated
from shoal.simulation.run import simulate

_CHUNK = 25

# What must happen in some seed or other, or the faults are not reaching where they should.
SOMETIMES = (
    "checkpoints",
    "client: busy",
    "client: counted before",
    "client: fenced",
    "client: late answers",
    "client: lists, forgotten",
    "client: lists, hits",
    "client: resent",
    "client: unanswered",
    "coordinator: fenced",
    "coordinator: filled",
    "coordinator: late hello",
    "coordinator: removed",
    "coordinator: shrunk",
    "delays that changed",
    "disk: records refused by a full disk",
    "disk: records that were never acknowledged, and survived",
    "disk: writes torn by a crash",
    "fault: clog",
    "fault: crash coordinator",
    "fault: crash server",
    "fault: crash worker",
    "fault: cut coordinator",
    "fault: cut server",
    "fault: cut worker",
    "fault: pause coordinator",
    "fault: pause server",
    "fault: pause worker",
    "fault: full coordinator",
    "fault: halting worker",
    "fault: power",
    "fault: rogue",
    "fault: rot",
    "fault: slower worker",
    "fault: stall worker",
    "fault: twin server",
    "fault: twin worker",
    "fault: withheld",
    "fenced workers",
    "lives that stopped",
    "network: clogged",
    "network: cut off",
    "network: dropped",
    "network: lost",
    "network: repeated",
    "network: slow",
    "network: very late",
    "rare: adopt with changes",
    "rare: coordinator crashed during a failover",
    "rare: coordinator crashed during a fill",
    "rare: duplicate reached the new primary",
    "rare: filled with what was counted",
    "rare: levels with changes",
    "rare: restored from an older checkpoint",
    "rare: server crashed during a fill",
    "rare: told by a deposed server",
    "rogue pushes",
    "server: lists let go",
    "rollbacks",
    "server: another life",
    "server: fenced",
    "server: held again",
    "server: levelled",
    "server: moved",
    "server: opening",
    "server: out of order",
    "server: promoted",
    "server: refused",
    "server: repeated",
    "server: returned from parking",
    "server: steps",
    "server: view behind",
    "server: void",
    "server: waited",
    "slots lent",
    "slots that took longer",
)


@dataclass(slots=True)
class Tally:
    """What many seeds came to."""

    seeds: int = 0
    events: int = 0
    virtual_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, str]] = field(default_factory=list)  # (plan, what)
    first_broken: int | None = None

    def add(self, more: Tally) -> None:
        self.seeds += more.seeds
        self.events += more.events
        self.virtual_seconds += more.virtual_seconds
        self.counts.update(more.counts)
        self.broken += more.broken
        if self.first_broken is None:
            self.first_broken = more.first_broken

    def never(self) -> list[str]:
        """What should have happened somewhere, and did not."""
        return [what for what in SOMETIMES if not self.counts[what]]

    def facts(self) -> dict[str, Any]:
        return {
            "schedules": self.seeds,
            "events": self.events,
            "virtual_seconds": self.virtual_seconds,
            "broken": [{"plan": plan, "violation": what} for plan, what in self.broken],
            "counts": dict(sorted(self.counts.items())),
            "never": self.never(),
        }


def simulate_many(
    seeds: range, jobs: int | None = None, mutant: str = "", progress: Callable[[Tally], None] = lambda _: None
) -> Tally:
    tally = Tally()
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    for part in _parts(chunks, min(jobs or os.cpu_count() or 1, len(chunks)), mutant):
        tally.add(part)
        progress(tally)
    return tally


def _parts(chunks: list[range], jobs: int, mutant: str) -> Iterator[Tally]:
    if jobs == 1:
        for chunk in chunks:
            yield run_chunk(chunk, mutant)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_chunk, chunks, [mutant] * len(chunks))


def run_chunk(seeds: range, mutant: str = "") -> Tally:
    tally = Tally()
    with mutated(mutant):
        for seed in seeds:
            verdict = simulate(seed)
            tally.seeds += 1
            tally.events += verdict.events
            tally.virtual_seconds += verdict.seconds
            tally.counts.update(verdict.counts)
            if not verdict.ok:
                tally.broken += [(str(verdict.plan), str(one)) for one in verdict.violations]
                if tally.first_broken is None:
                    tally.first_broken = seed
    return tally
