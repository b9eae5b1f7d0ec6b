"""Many seeds, on all cores, added up."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from shoal.simulation.scenarios import kind, mutated

_CHUNK = 25


@dataclass(slots=True)
class SeedTotals:
    """What many seeds came to."""

    of: str = "store"
    seeds: int = 0
    events: int = 0
    virtual_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, str]] = field(default_factory=list)  # (plan, what)
    first_broken: int | None = None

    def add(self, more: SeedTotals) -> None:
        self.seeds += more.seeds
        self.events += more.events
        self.virtual_seconds += more.virtual_seconds
        self.counts.update(more.counts)
        self.broken += more.broken
        if self.first_broken is None:
            self.first_broken = more.first_broken

    def never(self) -> list[str]:
        """What should have happened somewhere, and did not."""
        return [what for what in kind(self.of).SOMETIMES if not self.counts[what]]

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
    seeds: range,
    jobs: int | None = None,
    mutant: str = "",
    progress: Callable[[SeedTotals], None] = lambda _: None,
    of: str = "store",
) -> SeedTotals:
    tally = SeedTotals(of)
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    for part in _parts(chunks, min(jobs or os.cpu_count() or 1, len(chunks)), mutant, of):
        tally.add(part)
        progress(tally)
    return tally


def _parts(chunks: list[range], jobs: int, mutant: str, of: str) -> Iterator[SeedTotals]:
    if jobs == 1:
        for chunk in chunks:
            yield run_chunk(chunk, mutant, of)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_chunk, chunks, [mutant] * len(chunks), [of] * len(chunks))


def run_chunk(seeds: range, mutant: str = "", of: str = "store") -> SeedTotals:
    tally, simulate = SeedTotals(of), kind(of).simulate
    with mutated(of, mutant):
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
