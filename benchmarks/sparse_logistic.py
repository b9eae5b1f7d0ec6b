"""Sparse logistic regression, solved: block-proximal beside liblinear and saga.

Solved means an objective within ``gap`` of liblinear's finest, and as many nonzeros but for
``nonzeros`` of them, where equal columns count once (the minimum does not say which of them has
the weight). How many epochs block-proximal needs depends on the set, the delay and the blocks, not
on the workers; one thread finds it with the same run, and is timed too ("one thread"). Then runs
of so many epochs are timed with servers and workers, from the first slot to the last. liblinear
and saga get the coarsest tolerance that solves it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from benchmarks.harness import Bench, Option, Record, Report, Say, names, report, sheet
from benchmarks.sparse_rivals import Serial, alike, liblinear, saga
from shoal.data.datasets import Dataset, DataSource, load
from shoal.data.dense_file import sparse
from shoal.job import Job
from shoal.models.linear import Floats, Linear
from shoal.models.optimum import judge
from shoal.models.trained import Trained
from shoal.run.run import execute
from shoal.strategies.block_proximal.algorithm import BlockProximal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Fits = Iterator[tuple[float, Floats]]
# One column of each field is in every row: with 1 these two take a thousand epochs or more.
L1 = {"a9a": 10.0, "criteo_tb": 10.0}
LOOKS = 25  # how often a solver is judged while it doubles its epochs


class Settings(Record, frozen=True, kw_only=True):
    """What is measured."""

    data: tuple[str, ...] = ("a9a", "rcv1", "criteo_tb")
    rows: int | None = None  # of each set, at most
    l1: float | None = None  # as ``L1`` has it, or 1
    workers: tuple[int, ...] = (1, 2, 4)
    delays: tuple[int, ...] = (0, 2, 8)
    blocks: int = 16  # with delay (1 + delay) times as many, so that as much is in flight
    parts: int = 4
    servers: int = 2
    how: str = "threads"
    gap: float = 1e-4
    nonzeros: float = 0.02
    seconds: float = 120.0  # for a solver in one thread; shown as unsolved after that
    rivals: tuple[str, ...] = ("saga",)  # beside liblinear, which says what is to be reached
    seed: int = 0


FULL = Settings()
QUICK = Settings(data=("rcv1",), workers=(1, 2), delays=(0, 2), seconds=20.0)


class Case(Record, frozen=True):
    """One solver on one set."""

    data: str
    l1: float
    way: str  # liblinear, saga, one thread, workers
    workers: int
    delay: int
    blocks: int
    passes: int  # ours
    seconds: float
    objective: float
    gap: float  # relative to the reference
    nonzeros: int
    distinct: int  # of them, those whose columns differ: the minimum says no more
    violation: float
    solved: bool
    looked_at: float  # share of the keys that an iteration touches: the KKT filter drops the others

    @property
    def name(self) -> str:
        if self.way in ("liblinear", "saga"):
            return self.way
        who = "one thread" if self.way == "one thread" else f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{who}, delay {self.delay}"


Results = Report[Settings, Case]


def measure(settings: Settings, say: Say) -> Results:
    return report(Results, settings, _cases(settings, say), say, COLUMNS)


def _cases(settings: Settings, say: Say) -> Iterator[Case]:
    for name in settings.data:
        dataset = load(DataSource(source=name, rows=settings.rows), settings.seed)
        say(f"{name}: {dataset.train.rows:,} rows of {dataset.features:,} features")
        yield from Study(settings, dataset).run()


class Study:
    """One set."""

    def __init__(self, settings: Settings, dataset: Dataset) -> None:
        self._settings, self._dataset, self._train = settings, dataset, sparse(dataset.train)
        self._keys = int((self._train.counts > 0).sum())
        self._l1 = settings.l1 or L1.get(dataset.name, 1.0)
        self._alike = alike(self._train)
        self._aim = (0.0, 0)  # objective and distinct nonzeros of the reference

    def run(self) -> Iterator[Case]:
        settings = self._settings
        fits = list(liblinear(self._train, self._l1, settings.seconds))
        found = judge(self._train, Linear(bias=False), fits[-1][1], self._l1)
        self._aim = found["objective"], self._distinct(fits[-1][1])
        yield self._first("liblinear", iter(fits))
        if "saga" in settings.rivals:
            yield self._first("saga", saga(self._train, self._l1, settings.seconds / 2))
        for delay in settings.delays:
            alone = self._alone(self._job(delay, 1))
            yield alone
            for workers in settings.workers if alone.solved else ():
                yield self._together(self._job(delay, workers, alone.passes), alone)

    def _first(self, way: str, fits: Fits) -> Case:
        """The first that solves it, or the last."""
        for seconds, weights in fits:
            case = self._case(way, weights, seconds)
            if case.solved:
                return case
        return case

    def _alone(self, job: Job) -> Case:
        solver, spent, passes = Serial(job, self._dataset), 0.0, 0
        while True:
            began = time.perf_counter()
            for _ in range(1 + passes // LOOKS):
                solver.one_pass()
                passes += 1
            spent += time.perf_counter() - began
            case = self._case("one thread", solver.weights(), spent, job, passes, solver.looked_at)
            if case.solved or spent > self._settings.seconds:
                return case

    def _together(self, job: Job, alone: Case) -> Case:
        run = execute(job)
        assert isinstance(run.model, Trained)
        seconds = float(run.summary["computing_seconds"])
        case = self._case("workers", run.model.table, seconds, job, alone.passes)
        return msgspec.structs.replace(case, looked_at=alone.looked_at)

    def _job(self, delay: int, workers: int, passes: int = 1) -> Job:
        settings = self._settings
        return Job.of(
            {
                "data": {"source": self._dataset.name, **({"rows": settings.rows} if settings.rows else {})},
                "model": {"loss": "logistic", "bias": False},
                "strategy": {
                    "name": "block-proximal",
                    "blocks": min(settings.blocks * (1 + delay), self._keys),
                    "parts": settings.parts,
                    "max_delay": delay,
                },
                "update": {"l1": self._l1},
                "workers": workers,
                "servers": settings.servers,
                "seed": settings.seed,
                "stop": {"epochs": float(passes)},
                "evaluate": {"every": 1e9},
                "launch": {"how": settings.how},
            }
        )

    def _distinct(self, weights: Floats) -> int:
        return len(np.unique(self._alike[weights != 0]))

    def _case(
        self, way: str, weights: Floats, seconds: float, job: Job | None = None, passes: int = 0, looked: int = 0
    ) -> Case:
        settings = self._settings
        found = judge(self._train, Linear(bias=False), weights, self._l1)
        objective, nonzeros = self._aim
        gap = found["objective"] / objective - 1.0
        distinct = self._distinct(weights)
        solved = gap <= settings.gap and abs(distinct - nonzeros) <= settings.nonzeros * nonzeros
        delay, blocks, workers = 0, 0, 1
        if job is not None:
            assert isinstance(job.strategy, BlockProximal)
            delay, blocks, workers = job.strategy.max_delay, job.strategy.blocks, job.workers
        return Case(
            self._dataset.name, self._l1, way, workers, delay, blocks, passes, seconds, found["objective"], gap,
            int(found["nonzero"]), distinct, found["violation"], solved, looked / (passes * self._keys) if passes else 1.0,
        )  # fmt: skip


COLUMNS = (
    ("<data", "{0.data}"),
    ("l1", "{0.l1:g}"),
    ("<who", "{0.name}"),
    ("blocks", lambda case: f"{case.blocks}" if case.passes else ""),
    ("epochs", lambda case: f"{case.passes:,}" if case.passes else ""),
    ("seconds", "{0.seconds:,.2f}"),
    ("objective", "{0.objective:,.3f}"),
    ("gap", "{0.gap:.1e}"),
    ("nonzeros", "{0.nonzeros:,}"),
    ("distinct", "{0.distinct:,}"),
    ("keys looked at", lambda case: f"{case.looked_at:.1%}" if case.passes else ""),
    ("solved", lambda case: "yes" if case.solved else "no"),
)


def table(results: Results) -> Table:
    settings = results.settings
    return sheet(
        f"logistic regression with an l1 penalty, {results.machine}",
        COLUMNS,
        results.cases,
        f"solved: within {settings.gap:g} of liblinear's objective, and its distinct nonzeros but for {settings.nonzeros:.0%}; "
        f"{settings.servers} servers, {settings.parts} parts, {settings.how}",
        section=lambda case: case.data,
    )


def picture(results: Results) -> Figure:
    """Seconds of every solver, one panel for each set."""
    from shoal.views import axes as draw
    from shoal.views.axes import INK, SERIES

    sets = [data for data in results.settings.data if any(case.data == data for case in results.cases)]
    most = max(sum(case.data == data for case in results.cases) for data in sets)
    figure = draw.canvas(0.24 * most + 1.0, 3.4 * len(sets))
    for data, axes in zip(sets, figure.subplots(1, len(sets), squeeze=False).flat, strict=True):
        cases = [case for case in results.cases if case.data == data]
        for at, case in enumerate(cases):
            colour = SERIES[2] if not case.passes else SERIES[1 - (case.way == "workers")]
            axes.plot(case.seconds, at, "o", color=colour, fillstyle="full" if case.solved else "none")
            says = f"{case.seconds:.2g} s" if case.solved else f"not by {case.seconds:.2g} s"
            axes.annotate(
                says, (case.seconds, at), xytext=(6, 0), textcoords="offset points", va="center", fontsize=7, color=INK
            )
        draw.row_names(axes, [case.name for case in cases], size=8)
        axes.set_xscale("log")
        low, high = min(case.seconds for case in cases), max(case.seconds for case in cases)
        axes.set_xlim(low / 2, high * 6)  # room for words at the right
        draw.numbers(axes.xaxis)
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("seconds")
        draw.titled(axes, f"{data}, l1 = {cases[0].l1:g}")
        draw.tidy(axes)
    return figure


BENCH = Bench(
    help="Block-proximal with 1, 2, 4 workers and delays of 0, 2, 8 beside scikit-learn's liblinear and saga: seconds to the same solution.",
    quick_help="RCV1 alone, fewer workers and delays.",
    measure=measure,
    table=table,
    options=(
        Option("data", "Which sets.  [default: a9a,rcv1,criteo_tb, from SHOAL_DATA]", metavar="A,B", parse=names),
        Option("l1", "The penalty.  [default: 1 for rcv1, 10 for the others]", click.FloatRange(0, min_open=True)),
        Option("seconds", "For each solver in one thread, at most.  [default: 120]", click.FloatRange(1)),
    ),
    picture=picture,
)
