"""Vector clocks of ranges against a clock for every key: memory, and time of a task (S1-19).

    rival     one int64 for every key and node in a plain array, which a task adds 1 to

Nodes take turns to push to one of k ranges, whose edges are drawn at random, and now and then to
all keys. Both sides get the same tasks and must say the same in the end. Memory is what the
allocator was asked for.
"""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Bench, Record, Report, Say, quiet, report, sheet
from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.store.server.vector_clock import RangeClocks

if TYPE_CHECKING:
    from rich.table import Table

Made = TypeVar("Made")
WHOLE = 4  # every fourth task is on all keys


class Settings(Record, frozen=True, kw_only=True):
    """Which sizes, and how many tasks."""

    keys: tuple[int, ...] = (10_000, 1_000_000)
    nodes: tuple[int, ...] = (4, 32)
    ranges: tuple[int, ...] = (1, 16, 256)
    tasks: int = 500


FULL = Settings()
QUICK = Settings(keys=(10_000, 100_000), nodes=(4,), tasks=200)


class Case(Record, frozen=True):
    """n keys, m nodes, k ranges."""

    keys: int
    nodes: int
    ranges: int
    clocks: int  # that were kept in the end
    bytes: dict[str, int]  # by contestant
    microseconds: dict[str, float]  # of a task, on average

    @property
    def ratio(self) -> float:
        return self.bytes["per key"] / self.bytes["ranges"]


Results = Report[Settings, Case]


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if not (settings.keys and settings.nodes and settings.ranges) or settings.tasks < 1:
        raise Invalid("a benchmark needs at least one size and one task")
    sizes = itertools.product(settings.keys, settings.nodes, settings.ranges)
    return report(Results, settings, (_case(*size, settings.tasks) for size in sizes), say, COLUMNS)


COLUMNS = (
    ("keys n", "{0.keys:,}"),
    ("nodes m", "{0.nodes:,}"),
    ("ranges k", "{0.ranges:,}"),
    ("clocks", "{0.clocks:,}"),
    ("ranges KB", lambda case: f"{case.bytes['ranges'] / 1e3:,.1f}"),
    ("per key KB", lambda case: f"{case.bytes['per key'] / 1e3:,.1f}"),
    ("x smaller", "{0.ratio:,.0f}"),
    ("ranges us", lambda case: f"{case.microseconds['ranges']:,.1f}"),
    ("per key us", lambda case: f"{case.microseconds['per key']:,.1f}"),
)


def table(results: Results) -> Table:
    return sheet(
        f"vector clocks, one thread of {results.machine}",
        COLUMNS,
        results.cases,
        f"{results.settings.tasks:,} tasks, every fourth on all keys; a clock per key is a plain array",
    )


class _PerKey:
    """The plain way."""

    def __init__(self, keys: int, nodes: int) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros((keys, nodes), np.int64)

    def tick(self, node: int, keys: KeyRange | None) -> None:
        if keys is None:
            self.counts[:, node] += 1
        else:
            self.counts[keys.start : keys.stop, node] += 1


def _case(keys: int, nodes: int, ranges: int, tasks: int) -> Case:
    draw = Random(f"{keys} {nodes} {ranges}")
    named = []
    for _ in range(ranges):
        start = draw.randrange(keys)
        named.append(KeyRange(start, draw.randint(start + 1, keys)))
    todo = [
        (i % nodes, None if i % WHOLE == 0 else named[draw.randrange(ranges)]) for i in range(max(tasks, 2 * nodes))
    ]

    def ours() -> RangeClocks:
        made = RangeClocks(keys)
        for node, part in todo:
            made.tick(node, part)
        return made

    def theirs() -> _PerKey:
        made = _PerKey(keys, nodes)
        for node, part in todo:
            made.tick(node, part)
        return made

    ranged, ranged_bytes, ranged_seconds = _timed(ours)
    plain, plain_bytes, plain_seconds = _timed(theirs)
    _same(ranged, plain)
    sizes = {"ranges": ranged_bytes, "per key": plain_bytes}
    times = {"ranges": ranged_seconds / len(todo) * 1e6, "per key": plain_seconds / len(todo) * 1e6}
    return Case(keys, nodes, ranges, len(ranged), sizes, {name: round(value, 2) for name, value in times.items()})


def _timed(make: Callable[[], Made]) -> tuple[Made, int, float]:
    """The result, the bytes that it takes, and the seconds without counting bytes."""
    began = time.perf_counter()
    make()
    seconds = time.perf_counter() - began
    gc.collect()
    tracemalloc.start()
    try:
        made = make()
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return made, kept, seconds


def _same(ranged: RangeClocks, plain: _PerKey) -> None:
    for keys, clock in ranged.read():
        said = np.array([clock[node] for node in range(plain.counts.shape[1])])
        if not (plain.counts[keys.start : keys.stop] == said).all():
            raise Invalid(f"the clocks of keys {keys} are not what happened to them: report this with the settings")


BENCH = Bench(
    help="Vector clocks of ranges against a clock for every key: memory, and the time of a task.",
    quick_help="Fewer sizes and tasks.",
    measure=measure,
    table=table,
)
