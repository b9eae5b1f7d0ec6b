"""Training on one worker and one server against the bare serial kernel on the same rows: what the store costs.

Both take the same steps on the same slots in the same order (see ``serial``), and both have their rows in memory before
the clock starts. The serial kernel has its key lists made beforehand, untimed; the worker makes them in its first
pass, which is timed on its own. Rounds alternate, and the best of each contestant counts: machines are noisy.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from shoal.benchmarks.serial import serial_fit
from shoal.data.batch import Batch
from shoal.data.datasets import Dataset, load
from shoal.data.slots import Slots
from shoal.events import Progress, RunEvent
from shoal.job import Job
from shoal.run import execute

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
    serial: float
    first: float
    later: float

    @property
    def first_ratio(self) -> float:
        return self.first / self.serial

    @property
    def later_ratio(self) -> float:
        return self.later / self.serial


class Results(msgspec.Struct, frozen=True):
    settings: Settings
    machine: str
    cores: int
    cases: list[Case]


def measure(settings: Settings, say: Callable[[str], None]) -> Results:
    cases = []
    for name in settings.data:
        for batch in settings.batches:
            say(f"{name}, {settings.rows:,} rows, batches of {batch:,}")
            cases.append(_case(settings, name, batch, say))
    return Results(settings, platform.processor() or platform.machine(), len(os.sched_getaffinity(0)), cases)


def _case(settings: Settings, name: str, batch: int, say: Callable[[str], None]) -> Case:
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
    serial: list[float] = []
    first: list[float] = []
    later: list[float] = []
    for round_ in range(settings.repeat):
        _, seconds = serial_fit(job.model, job.update.update(), rows, batch, dataset.features, settings.passes, order)
        serial.append(min(seconds))
        events: list[RunEvent] = []
        execute(job, on_event=events.append)
        begin, rest = pass_seconds(events, settings.passes)
        first.append(begin)
        later.append(rest)
        say(
            f"  round {round_ + 1}: serial {len(rows) / serial[-1]:,.0f} rows/s, "
            f"first pass {len(rows) / begin:,.0f}, later {len(rows) / rest:,.0f}"
        )
    count = len(rows)
    return Case(name, batch, count, count / min(serial), count / min(first), count / min(later))


def in_slot_order(dataset: Dataset, slots: Slots) -> Batch:
    """All rows, in memory, those of a slot side by side."""
    return dataset.train.take(np.concatenate([slots.rows(content) for content in range(slots.per_pass)]))


def pass_seconds(events: Sequence[RunEvent], passes: int) -> tuple[float, float]:
    """Seconds of the first pass, and of each later one, read off the progress that was told."""
    told = [(event.passes, event.seconds) for event in events if isinstance(event, Progress)]
    done, seconds = np.array([0.0, *(one for one, _ in told)]), np.array([0.0, *(one for _, one in told)])
    first = float(np.interp(1.0, done, seconds))
    end = float(seconds[np.searchsorted(done, passes)])
    return first, (end - first) / max(1, passes - 1)


def table(results: Results) -> Table:
    from rich.table import Table

    settings = results.settings
    shown = Table(
        title=f"{settings.strategy}, one worker and one server as {settings.how}, {results.cores} cores; rows a second"
    )
    for heading in ("data", "batch", "serial", "first pass", "ratio", "later passes", "ratio", "target"):
        shown.add_column(heading, justify="left" if heading == "data" else "right")
    for case in results.cases:
        target = TARGETS.get(case.batch)
        shown.add_row(
            case.data,
            f"{case.batch:,}",
            f"{case.serial:,.0f}",
            f"{case.first:,.0f}",
            f"{case.first_ratio:.2f}",
            f"{case.later:,.0f}",
            f"{case.later_ratio:.2f}",
            "" if target is None else f"{target}",
        )
    return shown
