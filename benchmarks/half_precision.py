"""Push and pull of a dense table as float32, float16 or bfloat16, timed in turn.

    table     sums, one range of all rows; one server
    path      threads (references), ipc, tcp
    bytes     of a push and a pull, as the server counted them

A case is many short batches, the forms by turns. A time is the median of the batches; a ratio is of
throughputs, a form's over float32's, above 1 faster: the median over the turns. ``shorten`` and
``restore`` are the conversions alone, on one core.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, get_args

import numpy as np

from benchmarks.harness import Bench, Record, Report, Say, report, sheet, turns
from benchmarks.store import Transport, _batch, _calls, _cluster
from benchmarks.store_rivals import Array
from shoal.client import KV
from shoal.errors import Invalid
from shoal.tables import Dense, Wire
from shoal.wire.half_precision import restored, shortened

if TYPE_CHECKING:
    from rich.table import Table

FORMS: tuple[Wire, ...] = get_args(Wire)


class Settings(Record, frozen=True, kw_only=True):
    """What is measured, and how often."""

    rows: int = 1_000_000
    transports: tuple[Transport, ...] = ("threads", "ipc", "tcp")
    repeat: int = 15  # batches of each
    seconds: float = 0.04  # of one batch, about


FULL = Settings()
QUICK = Settings(repeat=5, seconds=0.02)


class Case(Record, frozen=True):
    """One form over one path: milliseconds a call, ratios to float32, and bytes."""

    transport: Transport
    form: Wire
    push: float
    pull: float
    push_ratio: float
    pull_ratio: float
    sent: int
    received: int


class Alone(Record, frozen=True):
    """The conversions of one form, in milliseconds."""

    form: Wire
    shorten: float
    restore: float


class Results(Report[Settings, Case], frozen=True):
    """With the conversions alone."""

    alone: list[Alone]


def measure(settings: Settings, say: Say) -> Results:
    if settings.rows < 1 or settings.repeat < 1 or settings.seconds < 0 or not settings.transports:
        raise Invalid("a benchmark needs rows, a transport, and at least one repeat")
    values = np.random.default_rng(0).standard_normal(settings.rows, np.float32)
    alone = [_alone(settings, form, values) for form in FORMS if form != "float32"]
    return report(Results, settings, _cases(settings, values), say, COLUMNS, alone=alone)


def _cases(settings: Settings, values: Array) -> Iterator[Case]:
    for transport in settings.transports:
        with _cluster(transport, 1) as cluster, cluster.client() as kv:
            yield from _race(settings, transport, kv, values)


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
    counts = {name: _calls(call, settings.seconds) for name, call in calls.items()}
    batches: dict[Wire, list[float]] = {name: [] for name in calls}
    gc.collect()
    for name in turns(list(calls), settings.repeat):
        batches[name].append(_batch(calls[name], counts[name]))
    return batches


def _alone(settings: Settings, form: Wire, values: Array) -> Alone:
    short = shortened(values, form)
    assert short is not None
    calls = (lambda: shortened(values, form)), (lambda: restored(short, form))
    taken = [min(_batch(call, 3) for _ in range(settings.repeat)) / 1e3 for call in calls]
    return Alone(form, *taken)


COLUMNS = (
    ("<over", "{0.transport}"),
    ("<wire", "{0.form}"),
    ("MB pushed", lambda case: f"{case.sent / 1e6:.2f}"),
    ("MB pulled", lambda case: f"{case.received / 1e6:.2f}"),
    ("push ms", "{0.push:.2f}"),
    ("x", "{0.push_ratio:.2f}"),
    ("pull ms", "{0.pull:.2f}"),
    ("x", "{0.pull_ratio:.2f}"),
)


def table(results: Results) -> Table:
    alone = ", ".join(f"{one.form} {one.shorten:.2f} and {one.restore:.2f} ms" for one in results.alone)
    return sheet(
        f"a dense table of {results.settings.rows:,} rows, {results.machine}",
        COLUMNS,
        results.cases,
        f"x: throughput over that of float32, above 1 it is faster. To shorten and to restore alone: {alone}.",
        section=lambda case: case.transport,
    )


BENCH = Bench(
    help="Values that travel as float32, float16 and bfloat16: bytes, and the time of a push and a pull.",
    quick_help="Fewer repeats.",
    measure=measure,
    table=table,
)
