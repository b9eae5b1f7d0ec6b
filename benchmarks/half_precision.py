"""Push and pull of a dense table whose values travel as float32, float16 or bfloat16, timed in turn.

    table     sums, one range of all rows; one server
    path      threads (references), ipc, tcp
    bytes     of a push and a pull, as the server counted them; on a network of so many bits a second they are the time

A case is many short batches, the forms by turns, whoever is first changes. A time is the median of the batches; a ratio is of
throughputs, a form's over float32's, so above 1 it is the faster: the median over the turns. ``shorten`` and ``restore`` are the
conversions alone, on one core.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

import msgspec
import numpy as np

from benchmarks.harness import Bench
from benchmarks.store import (
    Machine,
    Transport,
    _batch,
    _calls,
    _cluster,
    _machine,
)
from benchmarks.store_rivals import Array
from shoal.client import KV
from shoal.errors import Invalid
from shoal.tables import Dense, Wire
from shoal.wire.half_precision import restored, shortened

if TYPE_CHECKING:
    from rich.table import Table

FORMS: tuple[Wire, ...] = get_args(Wire)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is measured, and how often."""

    rows: int = 1_000_000
    transports: tuple[Transport, ...] = ("threads", "ipc", "tcp")
    repeat: int = 15  # batches of each
    seconds: float = 0.04  # of one batch, about


FULL = Settings()
QUICK = Settings(repeat=5, seconds=0.02)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One form over one path: milliseconds a call, ratios to float32 over the same path, and bytes of a push and a pull."""

    transport: Transport
    form: Wire
    push: float
    pull: float
    push_ratio: float
    pull_ratio: float
    sent: int
    received: int


class Alone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conversions of one form, in milliseconds."""

    form: Wire
    shorten: float
    restore: float


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of one run."""

    machine: Machine
    settings: Settings
    seconds: float
    cases: list[Case]
    alone: list[Alone]


def measure(settings: Settings, progress: Callable[[str], None]) -> Results:
    """Run it all. ``progress`` is told what is going on, one line at a time."""
    if settings.rows < 1 or settings.repeat < 1 or settings.seconds < 0 or not settings.transports:
        raise Invalid("a benchmark needs rows, a transport, and at least one repeat")
    began = time.perf_counter()
    values = np.random.default_rng(0).standard_normal(settings.rows, np.float32)
    cases: list[Case] = []
    for transport in settings.transports:
        progress(f"{transport}: {settings.rows:,} rows in {len(FORMS)} forms")
        with _cluster(transport, 1) as cluster, cluster.client() as kv:
            cases += _race(settings, transport, kv, values)
    alone = [_alone(settings, form, values) for form in FORMS if form != "float32"]
    return Results(_machine(), settings, time.perf_counter() - began, cases, alone)


def _race(settings: Settings, transport: Transport, kv: KV, values: Array) -> list[Case]:
    everything = slice(0, len(values))
    for form in FORMS:
        kv.create(form, Dense(rows=len(values), wire=form))
    times: dict[str, dict[Wire, list[float]]] = {}
    for what in ("push", "pull"):

        def call(form: Wire, what: str = what) -> None:
            (kv.push(form, everything, values) if what == "push" else kv.pull(form, everything)).result()

        times[what] = _by_turns(settings, {form: lambda form=form: call(form) for form in FORMS})  # type: ignore[misc]
    cases = []
    for form in FORMS:
        before = kv.stats(form)
        kv.push_pull(form, everything, values).result()
        after = kv.stats(form)
        push, pull = (float(np.median(times[what][form])) / 1e3 for what in ("push", "pull"))
        ratios = [float(np.median(np.divide(one["float32"], one[form]))) for one in times.values()]
        moved = [after[name] - before[name] for name in ("bytes in", "bytes out")]
        cases.append(Case(transport, form, push, pull, ratios[0], ratios[1], moved[0], moved[1]))
    return cases


def _by_turns(settings: Settings, calls: dict[Wire, Callable[[], None]]) -> dict[Wire, list[float]]:
    """Microseconds a call, batch by batch."""
    names = list(calls)
    counts = {name: _calls(call, settings.seconds) for name, call in calls.items()}
    batches: dict[Wire, list[float]] = {name: [] for name in names}
    gc.collect()
    for turn in range(settings.repeat):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            batches[name].append(_batch(calls[name], counts[name]))
    return batches


def _alone(settings: Settings, form: Wire, values: Array) -> Alone:
    short = shortened(values, form)
    assert short is not None
    calls = (lambda: shortened(values, form)), (lambda: restored(short, form))
    taken = [min(_batch(call, 3) for _ in range(settings.repeat)) / 1e3 for call in calls]
    return Alone(form, *taken)


def table(results: Results) -> Table:
    """The figures to look at."""
    from rich import box
    from rich.table import Table

    alone = ", ".join(f"{one.form} {one.shorten:.2f} and {one.restore:.2f} ms" for one in results.alone)
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=f"a dense table of {results.settings.rows:,} rows, {results.machine.cores} cores of {results.machine.cpu}",
        caption=f"x: throughput over that of float32, above 1 it is faster. To shorten and to restore alone: {alone}.",
    )
    for name in ("over", "wire", "MB pushed", "MB pulled", "push ms", "x", "pull ms", "x"):
        shown.add_column(name, justify="left" if name in ("over", "wire") else "right", no_wrap=True)
    for case in results.cases:
        shown.add_row(
            case.transport,
            case.form,
            f"{case.sent / 1e6:.2f}",
            f"{case.received / 1e6:.2f}",
            f"{case.push:.2f}",
            f"{case.push_ratio:.2f}",
            f"{case.pull:.2f}",
            f"{case.pull_ratio:.2f}",
            end_section=case.form == FORMS[-1],
        )
    return shown


BENCH = Bench(
    help="Values that travel as float32, float16 and bfloat16: bytes, and the time of a push and a pull.",
    quick_help="Fewer repeats.",
    measure=measure,
    table=table,
)
