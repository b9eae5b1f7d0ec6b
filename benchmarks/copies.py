"""What one, two and three copies cost: pushes a second, and bytes between servers.

    dense each     the whole table in every push, counted at once: a copy needs every push again
    dense step     the same in steps of 8 slots: a copy needs only the sum of a step, an eighth
    sparse each    lists of keys, drawn by Zipf's law from a large set
    sparse step    the same in steps of 8 slots: a copy needs each key of a step once

The rival is one copy. Clusters with one, two and three copies run together and take turns; a rate
is the median over the turns, a ratio the median of ratios of batches that ran side by side. One
client has several pushes in flight. A push is acknowledged when all copies have it.

Bytes between servers are what all servers received minus what the client sent, heartbeats included.
With k = copies - 1 and m slots in a step, k/m of the pushed bytes are expected where all slots have
the same keys, and u k/m where a step has u times the keys of a slot, the union factor.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.harness import Bench, Option, Record, Report, Say, pipelined, quiet, report, sheet, turns
from shoal.client import KV
from shoal.errors import Invalid
from shoal.launch.local import local
from shoal.store.table.update import AdaGrad, Sum
from shoal.tables import Apply, Dense, Each, Sparse, Step
from shoal.tables import Table as Spec

if TYPE_CHECKING:
    from rich.table import Table

KINDS = ("dense each", "dense step", "sparse each", "sparse step")
ALLOWANCE = 1.3  # times k/m: what copies of dense steps may cost
_WITHIN = 60.0  # seconds for one push


class Settings(Record, frozen=True, kw_only=True):
    """What is measured, and how often."""

    servers: int = 3
    copies: tuple[int, ...] = (1, 2, 3)
    floats: int = 1_000_000  # of the dense table, and of every push to it
    keys: int = 1_000_000  # that the sparse table has
    drawn: int = 10_000  # in one push; those that repeat are one
    zipf: float = 1.1
    slots: int = 8  # of a step
    flying: int = 16  # pushes under way
    dense_pushes: int = 48  # in one batch
    sparse_pushes: int = 480
    repeat: int = 7
    seed: int = 0


FULL = Settings()
QUICK = Settings(floats=200_000, dense_pushes=32, sparse_pushes=160, repeat=3)


class Case(Record, frozen=True):
    """One kind of pushes to so many copies."""

    kind: str
    copies: int
    rates: list[float]  # pushes a second, in the order they were run
    rate: float  # their median
    ratio: float  # to one copy
    pushed: float  # bytes that the client sent for a push
    between: float  # bytes that servers sent each other for it
    share: float  # of the pushed bytes
    expected: float  # u k/m
    union: float  # u: keys of a step to those of a slot

    @property
    def limit(self) -> float | None:
        """What the share must stay below, where that is claimed."""
        return ALLOWANCE * self.expected if self.kind == "dense step" and self.copies > 1 else None


Results = Report[Settings, Case]


@dataclass(frozen=True, slots=True)
class Load:
    """What is pushed, over and over."""

    kind: str
    spec: Spec
    keys: list[Any]
    values: list[npt.NDArray[np.float32]]
    pushes: int  # in a batch
    union: float
    m: int  # pushes that are counted together


@dataclass(slots=True)
class Contestant:
    """A cluster with so many copies, and what was seen of it."""

    copies: int
    kv: KV
    slot: int = 0
    rates: list[float] = field(default_factory=list)
    pushed: int = 0
    between: int = 0


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    _check(settings)
    return report(Results, settings, _cases(settings, say), say, COLUMNS)


def _cases(settings: Settings, say: Say) -> Iterator[Case]:
    with contextlib.ExitStack() as stack:
        kvs = {}
        for copies in settings.copies:
            say(f"starting {settings.servers} servers, {copies} cop{'y' if copies == 1 else 'ies'}")
            cluster = stack.enter_context(local(settings.servers, copies=copies, processes=True))
            kvs[copies] = stack.enter_context(cluster.client())
        for load in _loads(settings):
            yield from _race(settings, load, [Contestant(copies, kv) for copies, kv in kvs.items()])


def _limit(case: Case) -> str:
    return "" if case.limit is None else f"{case.limit:.3f} {'held' if case.share < case.limit else 'PASSED'}"


COLUMNS = (
    ("<pushes", "{0.kind}"),
    ("copies", "{0.copies}"),
    ("pushes/s", "{0.rate:,.0f}"),
    ("x one", "{0.ratio:.2f}"),
    ("KB pushed", lambda case: f"{case.pushed / 1e3:,.1f}"),
    ("KB between", lambda case: f"{case.between / 1e3:,.1f}"),
    ("share", "{0.share:.3f}"),
    ("expected", "{0.expected:.3f}"),
    ("union u", "{0.union:.2f}"),
    ("limit", _limit),
)


def table(results: Results) -> Table:
    return sheet(
        f"pushes to {results.settings.servers} servers with copies, {results.machine}",
        COLUMNS,
        results.cases,
        "x one: pushes a second to those with one copy, above 1 faster; between servers: as a share of what was pushed; "
        f"expected: u k/m, k = copies - 1, m = {results.settings.slots} slots in a step; "
        f"below {ALLOWANCE:g} k/m: the claim for dense steps",
        section=lambda case: case.kind,
    )


# ---------------------------------------------------------------- what is pushed


def _loads(settings: Settings) -> Iterator[Load]:
    chance = np.random.default_rng(settings.seed)
    applies: dict[str, Apply] = {"each": Each(), "step": Step(slots=settings.slots)}
    floats = [chance.standard_normal(settings.floats, np.float32) for _ in range(4)]
    drawn = np.unique(chance.integers(0, 1 << 63, settings.keys + settings.keys // 100 + 10, dtype=np.uint64))
    universe = chance.permutation(drawn)[: settings.keys]  # the most frequent first
    odds = np.cumsum(np.arange(1, settings.keys + 1) ** -settings.zipf)  # Zipf's law
    ranks = [np.searchsorted(odds, chance.random(settings.drawn) * odds[-1]) for _ in range(8 * settings.slots)]
    lists = [np.unique(universe[ranked]) for ranked in ranks]
    values = [chance.standard_normal(len(keys), np.float32) for keys in lists]
    steps = [lists[first : first + settings.slots] for first in range(0, len(lists), settings.slots)]
    union = sum(len(np.unique(np.concatenate(step))) for step in steps) / sum(map(len, lists)) * settings.slots
    for name, apply in applies.items():
        m = settings.slots if name == "step" else 1
        spec = Dense(rows=settings.floats, update=Sum(), apply=apply)
        yield Load(f"dense {name}", spec, [slice(0, settings.floats)] * 4, floats, settings.dense_pushes, 1.0, m)
    for name, apply in applies.items():
        m = settings.slots if name == "step" else 1
        sparse = Sparse(keys=1 << 63, update=AdaGrad(step=0.1), apply=apply)
        yield Load(f"sparse {name}", sparse, lists, values, settings.sparse_pushes, union if m > 1 else 1.0, m)


# ---------------------------------------------------------------- one kind


def _race(settings: Settings, load: Load, contestants: list[Contestant]) -> Iterator[Case]:
    for one in contestants:
        one.kv.create("w", load.spec)
        _batch(settings, load, one)  # the first one, in which rows are born, is thrown away
        one.rates, one.pushed, one.between = [], 0, 0
    gc.collect()
    for one in turns(contestants, settings.repeat):
        _batch(settings, load, one)
    alone = np.array(contestants[0].rates)
    for one in contestants:
        one.kv.drop("w")
        total = load.pushes * settings.repeat
        expected = load.union * (one.copies - 1) / load.m
        yield Case(
            load.kind,
            one.copies,
            [round(rate, 2) for rate in one.rates],
            float(np.median(one.rates)),
            float(np.median(np.array(one.rates) / alone)),
            one.pushed / total,
            one.between / total,
            one.between / one.pushed,
            expected,
            load.union,
        )


def _batch(settings: Settings, load: Load, one: Contestant) -> None:
    """So many pushes, several under way; what they took, and how many bytes travelled."""
    kv, stepwise = one.kv, load.m > 1
    pushed, received = _moved(kv)

    def calls() -> Iterator[Any]:
        for number in range(one.slot, one.slot + load.pushes):
            at = number % len(load.keys)
            named = {"slot": (0, number)} if stepwise else {}
            yield kv.push("w", load.keys[at], load.values[at], **named)

    began = time.perf_counter()
    pipelined(calls(), settings.flying, _WITHIN)
    one.rates.append(load.pushes / (time.perf_counter() - began))
    one.slot += load.pushes
    pushed_now, received_now = _moved(kv)
    one.pushed += pushed_now - pushed
    one.between += (received_now - received) - (pushed_now - pushed)


def _moved(kv: KV) -> tuple[int, int]:
    """Bytes that this client has sent, and all that its servers have received."""
    received = int(kv.stats("w")["received"])
    return kv._loop.transport.traffic[0], received


def _check(settings: Settings) -> None:
    if settings.repeat < 1 or settings.copies[:1] != (1,):
        raise Invalid("a benchmark needs at least one repeat, and one copy first, which the others are held against")
    if not 1 < settings.slots <= settings.flying:
        raise Invalid("a step is counted when its last slot is there: flying must be at least slots, and slots above 1")
    if settings.dense_pushes % settings.slots or settings.sparse_pushes % settings.slots:
        raise Invalid(f"a batch is whole steps: pushes must be a multiple of {settings.slots}")


BENCH = Bench(
    help="Pushes to servers that keep one, two or three copies: how many a second, and the bytes between servers.",
    quick_help="Smaller pushes, fewer of them.",
    measure=measure,
    table=table,
    options=(Option("repeat", "Batches of each contestant in each case.", click.IntRange(1)),),
)
