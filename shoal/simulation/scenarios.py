"""Defines a scenario and its verdict; runs many seeds on all cores and adds them up."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from itertools import repeat
from multiprocessing import active_children, get_context
from pathlib import Path
from traceback import format_tb
from typing import Any

from shoal.events import Event
from shoal.limits import SECOND
from shoal.signals import end_with_parent
from shoal.simulation import SCENARIOS
from shoal.simulation.world import World

Trace = Callable[[str], None]
_CHUNK = 25
_ROOT = Path(__file__).parents[2]  # of a checkout


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


class Violations(list[Violation]):
    def add(self, rule: str, what: str) -> None:
        if (found := Violation(rule, what)) not in self:
            self.append(found)


@dataclass(slots=True)
class Verdict:
    plan: Any  # of its scenario
    violations: list[Violation]
    events: int
    seconds: float  # virtual
    digest: str
    counts: Counter[str] = field(default_factory=Counter)
    history: list[Event] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations


def judge(
    plan: Any, run: Callable[[], Iterable[Violation]], worlds: list[World], history: list[Event] | None = None
) -> Verdict:
    """Run a plan, in worlds that may be added meanwhile."""
    try:
        violations = list(run())
    except Exception as error:  # no node may ever let one reach the scenario
        what = f"{error}: {format_tb(error.__traceback__)[-1]}"
        violations = [Violation(f"raised {type(error).__name__}", what)]
    return Verdict(
        plan,
        violations,
        sum(world.events for world in worlds),
        sum(world.now for world in worlds) / SECOND,
        "".join(world.digest for world in worlds),
        sum((world.counts for world in worlds), Counter[str]()),
        history or [],
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of cluster: how its plan is drawn from a seed, and how a plan is run and checked."""

    name: str
    draw: Callable[[int], Any]
    run: Callable[[Any, Trace | None], Verdict]
    sometimes: tuple[str, ...]  # must happen in some seed, or the faults miss their targets

    def simulate(self, seed: int, trace: Trace | None = None) -> Verdict:
        return self.run(self.draw(seed), trace)

    @property
    def mutants(self) -> Mapping[str, Callable[[], AbstractContextManager[Any]]]:
        """Broken variants of what it runs, which the checks must find; only a checkout has them."""
        if not (_ROOT / "tests" / "support" / "mutants").is_dir():
            raise FileNotFoundError(
                "the mutants are not installed here: they are in tests/support/mutants of a clone of the project"
            )
        if str(_ROOT) not in sys.path:
            sys.path.insert(0, str(_ROOT))
        found: Mapping[str, Callable[[], AbstractContextManager[Any]]]
        found = import_module(f"tests.support.mutants.{self.name}").MUTANTS
        return found

    def mutated(self, mutant: str) -> AbstractContextManager[Any]:
        """A context with this mutant in place of the real method; an empty name changes nothing."""
        return self.mutants[mutant]() if mutant else nullcontext()


def counters(text: str) -> tuple[str, ...]:
    """Names of counters, from lines of ``prefix: name; name`` or ``name; name``."""
    found: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        prefix, colon, names = line.rpartition(": ")
        found += (prefix + colon + name for name in names.split("; "))
    return tuple(found)


def scenario(name: str) -> Scenario:
    module, attribute = SCENARIOS[name]
    found: Scenario = getattr(import_module(f"shoal.simulation.{module}"), attribute)
    return found


@dataclass(slots=True)
class SeedTotals:
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
        return [what for what in scenario(self.of).sometimes if not self.counts[what]]

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
    totals = SeedTotals(of)
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    jobs = min(jobs or os.cpu_count() or 1, len(chunks))
    with _processes(jobs) as each:
        for part in each(run_chunk, chunks, repeat(mutant), repeat(of)):
            totals.add(part)
            progress(totals)
    return totals


@contextmanager
def _processes(jobs: int) -> Iterator[Callable[..., Iterable[SeedTotals]]]:
    """A ``map`` in so many processes, which end with this one or when it is interrupted."""
    if jobs == 1:
        yield map
        return
    others = active_children()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin_process, (os.getpid(),)) as pool:
        try:
            yield pool.map
        except BaseException:
            for process in active_children():
                if process not in others:
                    process.kill()  # else the pool would wait for what they have begun
            raise


def _begin_process(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    end_with_parent(parent)


def run_chunk(seeds: range, mutant: str = "", of: str = "store") -> SeedTotals:
    totals, chosen = SeedTotals(of), scenario(of)
    with chosen.mutated(mutant):
        for seed in seeds:
            verdict = chosen.simulate(seed)
            broken = [(str(verdict.plan), str(one)) for one in verdict.violations]
            first = seed if broken else None
            totals.add(SeedTotals(of, 1, verdict.events, verdict.seconds, verdict.counts, broken, first))
    return totals
