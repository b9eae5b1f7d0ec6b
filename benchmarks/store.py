"""Push and pull of the store, timed in turn with its rivals.

    table     sparse: 4M keys, AdaGrad, lists of sorted random 63-bit ids, 12 bytes a key
              dense: sums, one range, 4 bytes a float
    path      threads (references), ipc, tcp; one server, and two servers over tcp for information
    rivals    see ``store_rivals``: the plain store, the echo, the memory copy of the same bytes

A case is many short batches, ours and theirs by turns: A B C D, B C D A, ... A time is the median
of the batches with its quartiles. A ratio is of throughputs, ours over theirs, so above 1 we are
faster; it is the median over the turns, each of which compares batches that ran side by side.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click
import numpy as np

from benchmarks.harness import Bench, Cell, Option, Record, Report, Say, report, sheet, turns
from benchmarks.store_rivals import Array, Rival, copier
from shoal.client import KV
from shoal.errors import Invalid
from shoal.keys import Keys
from shoal.launch.cluster import Cluster
from shoal.launch.local import local
from shoal.store.table.update import AdaGrad, Sum
from shoal.tables import Dense, Sparse

if TYPE_CHECKING:
    from rich.table import Table

Transport = Literal["threads", "ipc", "tcp"]
Operation = Literal["push", "pull"]
Call = Callable[[], object]

OPERATIONS: tuple[Operation, ...] = ("push", "pull")
FEWEST_CALLS, MOST_CALLS = 3, 1_000  # in one batch
FILL = 250_000  # keys pushed at once while the tables are filled


class Settings(Record, frozen=True, kw_only=True):
    """What is measured, and how often."""

    keys: int = 4_000_000  # in the sparse table, before the first measured call
    sizes: tuple[int, ...] = (1, 100, 10_000, 100_000, 1_000_000)  # keys in one push or pull
    ranges: tuple[int, ...] = (1_000_000, 10_000_000)  # floats in one push or pull
    two_servers: tuple[int, ...] = (100_000, 1_000_000)  # sizes with two servers, over tcp
    transports: tuple[Transport, ...] = ("threads", "ipc", "tcp")
    repeat: int = 15  # batches of each
    seconds: float = 0.04  # of one batch, about
    seed: int = 0


FULL = Settings()
QUICK = Settings(sizes=(1, 10_000, 100_000, 1_000_000), ranges=(1_000_000,), two_servers=(), repeat=5, seconds=0.02)


class Spread(Record, frozen=True):
    """The times of one contestant: the middle and the quartiles, in microseconds a call."""

    median: float
    low: float
    high: float
    keys_per_second: float
    bytes_per_second: float
    calls: int  # in one batch
    batches: list[float]  # microseconds a call, in the order they were run


class Case(Record, frozen=True):
    """One operation of one size over one path."""

    transport: Transport
    servers: int
    table: Literal["sparse", "dense"]
    operation: Operation
    size: int  # keys or floats
    sent: int  # bytes of arrays, there and back
    received: int
    times: dict[str, Spread]  # by contestant; "shoal" is always there
    ratios: dict[str, float]  # throughput of shoal over that of each rival


Results = Report[Settings, Case]


@dataclass(frozen=True, slots=True)
class Course:
    """All that is up for one path: our client, and the rivals that can run there."""

    transport: Transport
    servers: int
    kv: KV
    store: Rival | None
    echo: Rival | None


def measure(settings: Settings, say: Say) -> Results:
    _check(settings)
    return report(Results, settings, _cases(settings, say), say, COLUMNS)


def _cases(settings: Settings, say: Say) -> Iterator[Case]:
    chance = np.random.default_rng(settings.seed)
    # Drawn with some to spare: repeats are thrown away.
    drawn = np.unique(chance.integers(0, 1 << 63, settings.keys + settings.keys // 100 + 10, dtype=np.uint64))
    universe: Keys = np.sort(chance.permutation(drawn)[: settings.keys])
    for transport in settings.transports:
        yield from _path(settings, transport, 1, universe, chance, say)
    if "tcp" in settings.transports and settings.two_servers:
        yield from _path(settings, "tcp", 2, universe, chance, say)


def _median(rival: str) -> Cell:
    return lambda case: f"{case.times[rival].median:,.0f}" if rival in case.times else ""


def _ratio(rival: str) -> Cell:
    return lambda case: f"{case.ratios[rival]:#.2g}" if rival in case.ratios else ""


COLUMNS = (
    ("<over", lambda case: case.transport + (f", {case.servers} servers" if case.servers > 1 else "")),
    ("<what", "{0.table} {0.operation}"),
    ("size", "{0.size:,}"),
    ("shoal us", "{0.times[shoal].median:,.0f} ({0.times[shoal].low:,.0f}-{0.times[shoal].high:,.0f})"),
    ("M/s", lambda case: f"{case.times['shoal'].keys_per_second / 1e6:,.2f}"),
    ("GB/s", lambda case: f"{case.times['shoal'].bytes_per_second / 1e9:,.2f}"),
    ("plain us", _median("plain store")),
    ("echo us", _median("echo")),
    ("x plain", _ratio("plain store")),
    ("x echo", _ratio("echo")),
    ("x copy", _ratio("memory copy")),
)


def table(results: Results) -> Table:
    return sheet(
        f"push and pull, {results.machine}",
        COLUMNS,
        results.cases,
        "us: microseconds, median (quartiles). x: our throughput over theirs, above 1 we are faster.",
        section=lambda case: (case.transport, case.servers, case.table),
    )


# ------------------------------------------------------------ one path


def _path(
    settings: Settings, transport: Transport, servers: int, universe: Keys, chance: np.random.Generator, say: Say
) -> Iterator[Case]:
    sizes, ranges = (settings.sizes, settings.ranges) if servers == 1 else (settings.two_servers, ())
    say(f"{transport}, {servers} server{'s' if servers > 1 else ''}: starting, filling {len(universe):,} keys")
    with _course(settings, transport, servers, universe) as course:
        for size in sizes:
            keys = np.sort(chance.choice(universe, size, replace=False))
            gradients = chance.standard_normal(size, np.float32)
            for operation in OPERATIONS:
                calls = _sparse(course, operation, keys, gradients)
                yield _race(settings, course, "sparse", operation, size, calls)
        for size in ranges:
            values = chance.standard_normal(size, np.float32)
            for operation in OPERATIONS:
                yield _race(settings, course, "dense", operation, size, _dense(course, operation, values))


@contextlib.contextmanager
def _course(settings: Settings, transport: Transport, servers: int, universe: Keys) -> Iterator[Course]:
    """Start everything, fill the tables; on the way out, whatever happened, end everything."""
    with contextlib.ExitStack() as stack:
        store = echo = None
        if transport != "threads":
            store, echo = (stack.enter_context(Rival(kind, transport)) for kind in ("store", "echo"))
        kv = stack.enter_context(stack.enter_context(_cluster(transport, servers)).client())
        kv.create("sparse", Sparse(keys=1 << 63, update=AdaGrad(step=0.1)))
        if settings.ranges:
            kv.create("dense", Dense(rows=max(settings.ranges), update=Sum()))
        for rival in (store, echo):
            if rival is not None:
                rival.wait()
        for part in np.array_split(universe, -(-len(universe) // FILL)):
            nothing = np.zeros(len(part), np.float32)
            kv.push("sparse", part, nothing).result()
            if store is not None:
                store.push(part, nothing)
        yield Course(transport, servers, kv, store, echo)


def _cluster(transport: Transport, servers: int) -> Cluster:
    if transport == "threads":
        return local(servers)
    return local(servers, processes=True, transport=transport)


def _sparse(course: Course, operation: Operation, keys: Keys, gradients: Array) -> dict[str, Call]:
    kv, store, echo = course.kv, course.store, course.echo
    calls: dict[str, Call] = {}
    if operation == "push":
        calls["shoal"] = lambda: kv.push("sparse", keys, gradients).result()
        if store is not None and echo is not None:
            calls["plain store"] = lambda: store.push(keys, gradients)
            calls["echo"] = lambda: echo.echo((keys, gradients), 0)
    else:
        calls["shoal"] = lambda: kv.pull("sparse", keys).result()
        if store is not None and echo is not None:
            calls["plain store"] = lambda: store.pull(keys)
            calls["echo"] = lambda: echo.echo((keys,), gradients.nbytes)
    calls["memory copy"] = copier(keys.nbytes + gradients.nbytes)
    return calls


def _dense(course: Course, operation: Operation, values: Array) -> dict[str, Call]:
    kv, store, echo, span = course.kv, course.store, course.echo, slice(0, len(values))
    calls: dict[str, Call] = {}
    if operation == "push":
        calls["shoal"] = lambda: kv.push("dense", span, values).result()
        if store is not None and echo is not None:
            calls["plain store"] = lambda: store.push_range(0, values)
            calls["echo"] = lambda: echo.echo((values,), 0)
    else:
        calls["shoal"] = lambda: kv.pull("dense", span).result()
        if store is not None and echo is not None:
            calls["plain store"] = lambda: store.pull_range(0, len(values))
            calls["echo"] = lambda: echo.echo((), values.nbytes)
    calls["memory copy"] = copier(values.nbytes)
    return calls


# ------------------------------------------------------------ one case


def _race(
    settings: Settings,
    course: Course,
    table: Literal["sparse", "dense"],
    operation: Operation,
    size: int,
    calls: dict[str, Call],
) -> Case:
    names = list(calls)
    counts = {name: _calls(call, settings.seconds) for name, call in calls.items()}
    batches: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    for name in turns(names, settings.repeat):
        batches[name].append(_batch(calls[name], counts[name]))
    sent = (8 * size if table == "sparse" else 0) + (4 * size if operation == "push" else 0)
    received = 4 * size if operation == "pull" else 0
    times = {name: _spread(batches[name], counts[name], size, sent + received) for name in names}
    ours = np.array(batches["shoal"])
    ratios = {name: float(np.median(np.array(batches[name]) / ours)) for name in names if name != "shoal"}
    return Case(course.transport, course.servers, table, operation, size, sent, received, times, ratios)


def _calls(call: Call, seconds: float) -> int:
    """How many calls make a batch of so many seconds."""
    call()
    took = max(_batch(call, 2) / 1e6, 1e-9)
    return max(FEWEST_CALLS, min(MOST_CALLS, int(seconds / took)))


def _batch(call: Call, calls: int) -> float:
    """Microseconds a call."""
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls * 1e6


def _spread(batches: list[float], calls: int, size: int, moved: int) -> Spread:
    low, median, high = (float(value) for value in np.quantile(batches, (0.25, 0.5, 0.75)))
    per = max(median, 1e-3)  # some clocks stand still for milliseconds
    return Spread(median, low, high, size / per * 1e6, moved / per * 1e6, calls, [round(one, 3) for one in batches])


def _check(settings: Settings) -> None:
    asked = [*settings.sizes, *settings.two_servers]
    if settings.repeat < 1 or settings.seconds < 0 or settings.keys < 1 or not settings.transports:
        raise Invalid("a benchmark needs a transport, keys, and at least one repeat")
    if any(size < 1 for size in [*asked, *settings.ranges]) or max(asked, default=1) > settings.keys:
        raise Invalid(f"sizes are 1 to {settings.keys:,}, the keys of the table")


BENCH = Bench(
    help="Push and pull of the store against a bare ZeroMQ store, an echo of the same bytes and a memory copy.",
    quick_help="Fewer sizes and repeats: under a minute.",
    measure=measure,
    table=table,
    options=(
        Option(
            "transports",
            "Measure this one; may be given several times.  [default: all]",
            click.Choice(["threads", "ipc", "tcp"]),
            spelled="transport",
            multiple=True,
        ),
        Option("repeat", "Batches of each contestant in each case.", click.IntRange(1)),
    ),
)
