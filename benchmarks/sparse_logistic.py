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
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.harness import Bench, Option, Record, Report, Say, names, report, sheet
from shoal.data.csr_file import CsrFile
from shoal.data.datasets import Dataset, DataSource, load
from shoal.data.packed import sparse
from shoal.errors import Invalid
from shoal.job import Job
from shoal.keys import KeyRange
from shoal.models.block_margins import BlockMargins
from shoal.models.columns import ColumnBlocks, CscColumns
from shoal.models.learner import objective_at
from shoal.models.linear import Floats, Linear
from shoal.models.trained import Trained
from shoal.run.run import execute
from shoal.store.table.table import ServerTable
from shoal.strategies.block_proximal.algorithm import BlockProximal
from shoal.strategies.block_proximal.order import BlockOrder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

Fits = Iterator[tuple[float, Floats]]
# One column of each field is in every row: with 1 these two take a thousand epochs or more.
L1 = {"a9a": 10.0, "criteo_tb": 10.0}
LOOKS = 25  # how often a solver is evaluated while it doubles its epochs


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
        found = objective_at(self._train, Linear(bias=False), fits[-1][1], self._l1)
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
        found = objective_at(self._train, Linear(bias=False), weights, self._l1)
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


# ---------------------------------------------------------------- rivals


_CLIFF = 1 << 16  # passes


class Serial:
    """A block-proximal job in one thread, delays included: the same bits without messages."""

    def __init__(self, job: Job, dataset: Dataset) -> None:
        strategy, turns, data = job.strategy, job.slots(dataset.train.rows), sparse(dataset.train)
        assert isinstance(strategy, BlockProximal) and isinstance(turns, BlockOrder)
        self._strategy, self._turns = strategy, turns
        self._keys = job.linear.keys(dataset.features)
        self._table = ServerTable(
            strategy.table(self._keys, job.update.update(), turns.per_pass), [KeyRange(0, self._keys)]
        )
        self._blocks = ColumnBlocks.cut(strategy.by, strategy.blocks, data.counts, job.linear.bias, data.rows)
        self._parts = [
            BlockMargins(
                CscColumns(data.slice(*turns.part_rows(part)), self._blocks, job.linear.bias, data.features),
                strategy.max_delay,
            )
            for part in range(turns.parts)
        ]
        self._coming: dict[int, list[tuple[int, Any, Floats]]] = {}
        self._next = 0
        self.looked_at = 0  # keys, all iterations together

    def one_pass(self) -> None:
        for _ in range(self._turns.blocks):
            self._iterate()

    def weights(self) -> Floats:
        found: Floats = self._table.pull(np.arange(self._keys, dtype=np.uint64))[:, 0]
        return found

    def _iterate(self) -> None:
        t, turns = self._next, self._turns
        for part, news in zip(self._parts, self._coming.pop(t - self._strategy.max_delay - 1, []), strict=False):
            part.take(*news)
        block, everything = turns.block(t), t // turns.blocks % self._strategy.recheck == 0
        first, last = int(self._blocks.starts[block]), int(self._blocks.starts[block + 1])
        total, touched, pushed = np.zeros((last - first, 2)), np.zeros(last - first, np.bool_), []
        for part in self._parts:
            _, places, values = part.gradient(block, everything)
            keys = part.columns.keys_of(block)[places]
            total[keys - np.uint64(first)] += values
            touched[keys - np.uint64(first)] = True
            pushed.append((places, keys))
        changed = np.flatnonzero(touched)
        self.looked_at += len(changed)
        self._table.push((first + changed).astype(np.uint64), total[changed].astype(np.float32))
        self._coming[t] = [(block, places, self._table.pull(keys)[:, 0]) for places, keys in pushed]
        self._next = t + 1


def alike(train: CsrFile) -> npt.NDArray[np.uint64]:
    """A number for each column, the same for equal columns.

    A click log has many. Going key by key leaves all the weight on the first of them; stepping them
    together shares it out.
    """
    rows = train.slice(0, train.rows)
    draws = np.random.default_rng(0).integers(1 << 63, size=train.rows, dtype=np.uint64)
    terms = np.repeat(draws, np.diff(rows.indptr))
    if rows.values is not None:
        terms *= 2 * np.ascontiguousarray(rows.values).view(np.uint32).astype(np.uint64) + np.uint64(1)
    found = np.zeros(train.features, np.uint64)
    np.add.at(found, rows.columns, terms)
    return found


def liblinear(train: CsrFile, l1: float, most: float) -> Iterator[tuple[float, Floats]]:
    """Seconds and weights at finer and finer tolerances; the last is the reference."""
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        seconds, weights = _fit(train, l1, "liblinear", tol=tolerance, max_iter=10_000)
        yield seconds, weights
        if seconds > most:
            return


def saga(train: CsrFile, l1: float, most: float) -> Iterator[tuple[float, Floats]]:
    """Seconds and weights of runs with twice as many epochs each, until one takes too long."""
    passes = 10
    while passes < _CLIFF:
        seconds, weights = _fit(train, l1, "saga", tol=0.0, max_iter=passes, random_state=0)
        yield seconds, weights
        if seconds > most:
            return
        passes *= 2


def _fit(train: CsrFile, l1: float, solver: str, **settings: Any) -> tuple[float, Floats]:
    try:
        from scipy.sparse import csr_matrix
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise Invalid(f"{solver} is scikit-learn's, which is not installed: pip install 'shoal[sklearn]'") from None
    rows = train.slice(0, train.rows)
    values = np.ones(rows.nonzeros) if rows.values is None else rows.values.astype(np.float64)
    matrix = csr_matrix((values, rows.columns.astype(np.int32), rows.indptr), shape=(train.rows, train.features))
    labels = np.where(rows.labels > 0, 1, -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # saga was stopped early; the name of the penalty is old
        model = LogisticRegression(penalty="l1", solver=solver, C=1.0 / l1, fit_intercept=False, **settings)
        began = time.perf_counter()
        model.fit(matrix, labels)
        seconds = time.perf_counter() - began
    return seconds, np.ascontiguousarray(model.coef_.ravel(), np.float32)


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
