"""Training with one worker and one server against the serial kernel: what the store costs.

Both take the same steps on the same slots in the same order, with their rows in memory before the
clock starts. The serial kernel runs in two ways: bare, on rows it has not seen, the rival of the
first epoch; and with key lists made beforehand, the rival of later epochs (or the bare one, if
that is faster). The worker makes its key lists in its first epoch, timed. The first epoch is a run
of one epoch, a later one a share of what a longer run takes more. Rounds alternate, and the best
of each contestant counts.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from benchmarks.harness import Bench, Option, Say, cores, sheet
from benchmarks.serial_fit import serial_fit
from shoal.data.batch import Batch
from shoal.data.datasets import Dataset, load
from shoal.data.packed import sparse
from shoal.data.slots import Slots
from shoal.job import Job
from shoal.run.run import execute

if TYPE_CHECKING:
    from rich.table import Table

TARGETS = {256: 0.3, 4_096: 0.6}


class Settings(msgspec.Struct, frozen=True):
    """What is measured."""

    rows: int = 1_000_000
    data: tuple[str, ...] = ("rcv1-like", "clicks")
    batches: tuple[int, ...] = (256, 4_096)
    strategy: str = "async"
    how: str = "threads"
    passes: int = 4
    repeat: int = 3
    seed: int = 0


FULL = Settings()
QUICK = Settings(rows=100_000, repeat=2)


class Case(msgspec.Struct, frozen=True):
    """Rows a second."""

    data: str
    batch: int
    rows: int
    bare: float  # the serial kernel on rows that it has not seen
    serial: float  # the faster of that and the one with key lists
    first: float
    later: float

    @property
    def first_ratio(self) -> float:
        return self.first / self.bare

    @property
    def later_ratio(self) -> float:
        return self.later / self.serial


class Results(msgspec.Struct, frozen=True):
    settings: Settings
    machine: str
    cores: int
    cases: list[Case]


def measure(settings: Settings, say: Say) -> Results:
    cases = []
    for name in settings.data:
        for batch in settings.batches:
            say(f"{name}, {settings.rows:,} rows, batches of {batch:,}")
            cases.append(_case(settings, name, batch, say))
    return Results(settings, platform.processor() or platform.machine(), cores(), cases)


def _case(settings: Settings, name: str, batch: int, say: Say) -> Case:
    job = Job.of(
        {
            "data": {"source": name, "rows": settings.rows, "batch": batch},
            "strategy": settings.strategy,
            "workers": 1,
            "servers": 1,
            "seed": settings.seed,
            "stop": {"epochs": float(settings.passes)},
            "evaluate": {"every": float("inf")},
            "launch": {"how": settings.how, "cache_mb": 8_192},
        }
    )
    dataset = load(job.data, job.seed)
    slots = Slots(dataset.train.rows, batch, job.seed)
    rows = in_slot_order(dataset, slots)
    order = np.stack([slots.contents(number) for number in range(settings.passes)])
    bare: list[float] = []
    serial: list[float] = []
    first: list[float] = []
    later: list[float] = []
    for round_ in range(settings.repeat):
        update = job.update.update()
        _, seconds = serial_fit(job.linear, update, rows, batch, dataset.features, settings.passes, order, bare=True)
        bare.append(min(seconds))
        _, seconds = serial_fit(job.linear, update, rows, batch, dataset.features, settings.passes, order)
        serial.append(min(seconds + bare[-1:]))
        begin = _seconds(job, 1)
        rest = (_seconds(job, settings.passes) - begin) / (settings.passes - 1)
        first.append(begin)
        later.append(rest)
        say(
            f"  round {round_ + 1}: bare {len(rows) / bare[-1]:,.0f} rows/s, serial {len(rows) / serial[-1]:,.0f}, "
            f"first pass {len(rows) / begin:,.0f}, later {len(rows) / rest:,.0f}"
        )
    count = len(rows)
    return Case(name, batch, count, count / min(bare), count / min(serial), count / min(first), count / min(later))


def in_slot_order(dataset: Dataset, slots: Slots) -> Batch:
    """All rows, in memory, those of a slot side by side."""
    return sparse(dataset.train).take(np.concatenate([slots.rows(content) for content in range(slots.per_pass)]))


def _seconds(job: Job, passes: int) -> float:
    """From the first slot to the last of a run of so many passes."""
    stop = msgspec.structs.replace(job.stop, epochs=float(passes))
    run = execute(msgspec.structs.replace(job, stop=stop))
    return float(run.summary["computing_seconds"])


COLUMNS = (
    ("<data", "{0.data}"),
    ("batch", "{0.batch:,}"),
    ("bare", "{0.bare:,.0f}"),
    ("first epoch", "{0.first:,.0f}"),
    ("ratio", "{0.first_ratio:.2f}"),
    ("serial", "{0.serial:,.0f}"),
    ("later epochs", "{0.later:,.0f}"),
    ("ratio", "{0.later_ratio:.2f}"),
    ("target", lambda case: f"{TARGETS.get(case.batch, '')}"),
)


def table(results: Results) -> Table:
    how = f"{results.settings.strategy}, one worker and one server as {results.settings.how}"
    return sheet(f"{how}, {results.cores} cores; rows a second", COLUMNS, results.cases)


BENCH = Bench(
    help="One worker and one server against the serial kernel on the same rows.",
    quick_help="A tenth of the rows.",
    measure=measure,
    table=table,
    options=(
        Option("rows", "How many.  [default: 1,000,000]", click.IntRange(10_000)),
        Option("strategy", "[default: async]", click.Choice(["sync", "bounded", "async"])),
        Option("how", "[default: threads]", click.Choice(["threads", "processes"])),
        Option("repeat", "Rounds of each case.", click.IntRange(1)),
    ),
)
