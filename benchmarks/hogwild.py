"""Hogwild by threads: rows a second and time to a test loss, for every way and rule.

    rcv1-like       47,236 features, 76 nonzeros a row: the commonest word is in 44% of the rows
    click-like      4,000,000 features, 39 in a row: a third of them from 13 small fields

The target loss is fixed before anything is timed: the best of all runs of one thread, plus a
margin of the shape. The step is tuned for each case: with one thread along a grid until it gets
worse, then half, the same and twice the best of fewer threads. Then all cases run again in turn,
``repeat`` times, and their median counts; a case that never reaches the loss is shown as such.

Speed-ups are against the best case of one thread, of any way. The contestants:

    serial      OneCore: minibatches on one core, no atomics, no other thread: the baseline
    others      the ways of Hogwild, as threads of this process
    sklearn     scikit-learn's SGDClassifier, one thread, if it is installed

The clock stops while the model is evaluated. A round begins when all threads are ready and ends
with the last of them. What repeats (key lists, hot columns) is made before and not timed.
"""

from __future__ import annotations

import importlib.util
import statistics
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import click
import numpy as np

from benchmarks.harness import Bench, Option, Record, Say, cores, cpu, load, numbers, sheet
from shoal.data.batch import Floats, Ids
from shoal.data.synthetic import MAKERS, TEST_FROM
from shoal.errors import Invalid
from shoal.models.linear import Linear
from shoal.store.table.update import SGD, AdaGrad, rule_named
from shoal.strategies.hogwild import CURSOR, LIMIT, LINE, Hogwild, desk, lost
from shoal.strategies.hogwild.loop import HogwildLoop
from shoal.tables import Update
from shoal.training.one_core import OneCore

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

# ---------------------------------------------------------------- contestants


MODEL = Linear()
DIVERGED = 10 * float(np.log(2.0))  # a loss above this will not recover in time
RULES: dict[str, Callable[[float], Update]] = {"sgd": SGD, "adagrad": AdaGrad}


class Shape(Record, frozen=True):
    """A synthetic data set."""

    name: str
    source: str  # of shoal.data
    features: int
    rows: int
    margin: float  # over the best loss of one thread, as a share: gives the target


class Variant(Record, frozen=True):
    """A way to train."""

    way: str  # a way of Hogwild, "serial" or "sklearn"
    rule: str
    batch: int = 256  # rows of a slot, which only batched and serial take as one step
    hot: int = 0  # number of hot keys, for hot_cold
    merge: int = 0  # rows between two merges of the hot keys

    @property
    def name(self) -> str:
        sized = f" {self.batch:,}" if self.way in ("batched", "serial") else ""
        return f"{self.way}{sized}".replace("_", "/") + (f" {self.hot:,}" if self.hot else "")


class Point(Record, frozen=True, array_like=True):
    """A loss after some time."""

    seconds: float
    rows: int
    loss: float


class Curve(Record, frozen=True):
    """One run."""

    step: float
    points: list[Point]
    updates_counted: int = 0  # the canary's updates that were counted
    updates_lost: int = 0

    @property
    def lowest(self) -> float:
        return min(point.loss for point in self.points)

    @property
    def rows_per_second(self) -> float:
        return self.points[-1].rows / self.points[-1].seconds

    def reached(self, target: float) -> Point | None:
        """When the loss reached the target, interpolated between two points; None: never."""
        before = self.points[0]
        for point in self.points[1:]:
            if point.loss <= target:
                share = (before.loss - target) / (before.loss - point.loss) if before.loss > target else 0.0
                seconds = before.seconds + share * (point.seconds - before.seconds)
                return Point(seconds, round(before.rows + share * (point.rows - before.rows)), target)
            before = point
        return None


class Runner(Protocol):
    """A run in progress."""

    def advance(self, order: Ids) -> float:
        """Computes these slots; returns the seconds it took."""

    @property
    def weights(self) -> Floats: ...


class Stage:
    """One shape's rows, and plans that contestants can share."""

    def __init__(self, shape: Shape, test_rows: int, seed: int) -> None:
        self.shape, self.seed = shape, seed
        maker = MAKERS[shape.source](seed, shape.features)
        self.features = maker.features
        self.rows, self.test = maker.rows(0, shape.rows), maker.rows(TEST_FROM, test_rows)
        self._plans: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._cores: dict[tuple[str, int], OneCore] = {}
        self._matrix: Any = None

    def loss(self, weights: Floats) -> float:
        from shoal.models import kernels

        return float(
            kernels.total_loss(MODEL.number, MODEL.margins(self.test, weights), self.test.labels) / len(self.test)
        )

    def runner(self, variant: Variant, step: float, threads: int) -> Runner:
        if variant.way == "sklearn":
            return Sklearn(self.matrix(), self.rows.labels, variant, step)
        if variant.way == "serial":
            return Alone(self._core(variant), RULES[variant.rule](step))
        split = {"hot": variant.hot, "merge": variant.merge} if variant.hot else {}
        strategy = Hogwild(way=variant.way, **split)  # type: ignore[arg-type]
        key = (variant.way, variant.batch, variant.hot)
        race = HogwildLoop(
            MODEL, RULES[variant.rule](step), strategy, self.rows, variant.batch, self.features, mean=True,
            plan=self._plans.get(key),
        )  # fmt: skip
        self._plans[key] = race.plan
        return Threads(race, threads)

    def _core(self, variant: Variant) -> OneCore:
        key = (variant.rule, variant.batch)
        if key not in self._cores:
            self._cores[key] = OneCore(MODEL, RULES[variant.rule](0.1), self.rows, variant.batch, self.features)
        return self._cores[key]

    def matrix(self) -> Any:
        from scipy.sparse import csr_matrix

        if self._matrix is None:
            rows = self.rows
            values = np.ones(len(rows.columns), np.float32) if rows.values is None else rows.values
            indptr = rows.indptr.astype(np.int32)
            self._matrix = csr_matrix((values, rows.columns.astype(np.int32), indptr), (len(rows), self.features))
        return self._matrix


class Threads:
    """A run of several threads."""

    def __init__(self, race: HogwildLoop, threads: int) -> None:
        self._race, self._threads = race, threads
        self._slab = np.zeros(race.shape, np.float32)
        self._slab.fill(0.0)  # touch all pages, so that page faults are not timed
        self._desk, self._sums = np.zeros(desk(threads), np.int64), np.zeros((threads, LINE))

    def advance(self, order: Ids) -> float:
        meet = _barrier()
        tally, spans, here = np.zeros(len(order), np.int8), np.zeros((self._threads, 2)), np.zeros(LINE, np.int64)
        self._desk[CURSOR, 0], self._desk[LIMIT, 0] = 0, len(order)

        def work(worker: int) -> None:
            # Starting a thread takes as long as hundreds of rows.
            meet(here, 0, self._threads)
            spans[worker, 0] = time.perf_counter()
            self._race.run(self._slab, self._desk, self._sums, tally, order, worker)
            spans[worker, 1] = time.perf_counter()

        crew = [threading.Thread(target=work, args=(worker,)) for worker in range(self._threads)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        return float(spans[:, 1].max() - spans[:, 0].min())

    @property
    def weights(self) -> Floats:
        return self._slab[:, 0].copy()

    @property
    def lost(self) -> tuple[int, int]:
        return lost(self._desk)


@lru_cache
def _barrier() -> Any:
    """Compiles a barrier: adds 1 to words[i], and waits until it is ``many``."""
    from shoal import jit
    from shoal.strategies.hogwild import kernels

    compiled: Any = jit.compiled
    add: Any = kernels.add
    read: Any = kernels.read
    give_way = kernels.give_way

    def meet(words: Any, i: int, many: int) -> None:
        add(words, i, 1)
        looks = 0
        while read(words, i) < many:
            looks += 1
            if looks % 64 == 0:
                give_way()

    return compiled("void(int64[::1], int64, int64)")(meet)


class Alone:
    """OneCore, starting from zero weights."""

    def __init__(self, core: OneCore, update: Update) -> None:
        self._core = core
        core._slab.fill(0.0)
        core._given = np.array(rule_named(update.name).settings(update.settings), np.float64)

    def advance(self, order: Ids) -> float:
        began = time.perf_counter()
        self._core.run(order)
        return time.perf_counter() - began

    @property
    def weights(self) -> Floats:
        return self._core.weights


class Sklearn:
    """SGDClassifier with a constant step ("sgd"), or with its own schedule ("optimal")."""

    def __init__(self, matrix: Any, labels: Floats, variant: Variant, step: float) -> None:
        from sklearn.linear_model import SGDClassifier

        given: dict[str, Any] = {"learning_rate": "constant", "eta0": step, "alpha": 1e-7}
        if variant.rule == "optimal":
            given = {"learning_rate": "optimal", "alpha": step}
        self._model = SGDClassifier(loss="log_loss", shuffle=False, random_state=0, **given)
        self._matrix, self._batch = matrix, variant.batch
        self._labels = np.where(labels > 0, np.float32(1.0), np.float32(-1.0))

    def advance(self, order: Ids) -> float:
        rows = _rows_of(order, self._batch, len(self._labels))
        matrix, labels = self._matrix[rows], self._labels[rows]
        began = time.perf_counter()
        self._model.partial_fit(matrix, labels, classes=np.array([-1.0, 1.0], np.float32))
        return time.perf_counter() - began

    @property
    def weights(self) -> Floats:
        both = np.concatenate((self._model.coef_[0], self._model.intercept_))
        return both.astype(np.float32)


def has_sklearn() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def _rows_of(order: Ids, batch: int, rows: int) -> Ids:
    every = (order[:, None] * batch + np.arange(batch)).ravel()
    return every[every < rows]


def curve(
    stage: Stage, variant: Variant, step: float, threads: int, passes: int, points: int, target: float | None = None
) -> Curve:
    """Trains to the target loss or for some epochs; evaluates ``points`` times in each epoch."""
    runner = stage.runner(variant, step, threads)
    count, size = len(stage.rows), variant.batch
    slots = -(-count // size)
    chance = np.random.default_rng(stage.seed)
    found = [Point(0.0, 0, float(np.log(2.0)))]
    seconds, rows = 0.0, 0
    for _ in range(passes):
        for order in np.array_split(chance.permutation(slots), points):
            seconds += runner.advance(order)
            rows += len(order) * size - (size * slots - count) * int((order == slots - 1).any())
            loss = stage.loss(runner.weights)
            found.append(Point(seconds, rows, loss))
            if not loss < DIVERGED or (target is not None and loss <= target):
                return _done(step, found, runner)
    return _done(step, found, runner)


def _done(step: float, found: list[Point], runner: Runner) -> Curve:
    return Curve(step, found, *(runner.lost if isinstance(runner, Threads) else (0, 0)))


PER_ROW = {"sgd": (0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0), "adagrad": (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)}
OF_BATCHES = {"sgd": (1.0, 2.5, 5.0, 10.0, 20.0), "adagrad": PER_ROW["adagrad"]}
OF_SKLEARN = {"sgd": (0.01, 0.03, 0.1, 0.3, 1.0), "optimal": (1e-6, 1e-5, 1e-4)}
# These take the same steps with one thread.
TWINS = {"locked": "example", "hot_cold": "example", "serial": "batched"}


class Settings(Record, frozen=True, kw_only=True):
    """The settings of a benchmark run."""

    # of the smaller set; the other has twice as many. Default: 150,000 a core, at most 800,000
    rows: int | None = None
    clicks: int = 4_000_000  # features of the click-like set
    threads: tuple[int, ...] | None = None  # default: 1, 2, 4, ... up to the number of cores
    rules: tuple[str, ...] = ("sgd", "adagrad")
    ways: tuple[str, ...] = ("serial", "example", "locked", "batched", "hot_cold", "sklearn")
    batches: tuple[int, ...] = (64, 256, 1_024)
    # hot keys, and rows between two merges
    splits: tuple[tuple[int, int], ...] = ((2_048, 256), (8_192, 1_024))
    passes: int = 3
    points: int = 4  # evaluations in a pass
    repeat: int = 3
    test_rows: int = 20_000
    grid: int = 7  # steps of a grid, at most
    seed: int = 0


FULL = Settings()
QUICK = Settings(rows=20_000, batches=(256,), splits=((2_048, 256),), passes=2, repeat=1, grid=3)


class Case(Record, frozen=True):
    """One way with one rule and a number of threads, at its best step."""

    shape: str
    variant: Variant
    threads: int
    step: float
    rows_per_second: float
    seconds: float | None  # to the target loss; None: never reached
    rows: int | None  # until then
    loss: float  # the lowest
    lost: float  # share of the canary's updates

    @property
    def name(self) -> str:
        return self.variant.name


class Goal(Record, frozen=True):
    """The target loss of a shape, and how soon one thread reached it."""

    shape: Shape
    loss: float
    nonzeros: float  # per row
    serial: str  # the best case of one thread
    seconds: float


class Results(Record, frozen=True):
    """All results of one benchmark run."""

    settings: Settings
    machine: str
    cores: int
    seconds: float
    goals: list[Goal]
    cases: list[Case]

    def speedup(self, case: Case) -> float | None:
        (goal,) = (goal for goal in self.goals if goal.shape.name == case.shape)
        return None if case.seconds is None else goal.seconds / case.seconds

    def best(self, shape: str, threads: int) -> Case | None:
        there = [case for case in self.cases if (case.shape, case.threads) == (shape, threads) and case.seconds]
        return min(there, key=lambda case: case.seconds or 0.0, default=None)


def shapes(settings: Settings, cores: int) -> list[Shape]:
    rows = settings.rows or min(150_000 * cores, 800_000)
    return [
        Shape("rcv1-like", "rcv1-like", 47_236, rows, 0.05),
        Shape("click-like", "clicks", settings.clicks, 2 * rows, 0.01),
    ]


def variants(settings: Settings) -> list[Variant]:
    """All ways and rules; ways that others copy their steps from come first."""
    found = []
    for way in sorted(settings.ways, key=lambda way: (way == "sklearn", way in TWINS)):
        if way == "sklearn":
            found += [Variant(way, rule) for rule in OF_SKLEARN] if has_sklearn() else []
            continue
        for rule in settings.rules:
            if way == "hot_cold":
                found += [Variant(way, rule, 256, *split) for split in settings.splits]
            else:
                sizes = settings.batches if way in ("batched", "serial") else (256,)
                found += [Variant(way, rule, size) for size in sizes]
    return found


def measure(settings: Settings, say: Say) -> Results:
    count = cores()
    threads = settings.threads or tuple(1 << power for power in range(count.bit_length()) if 1 << power <= count)
    if threads[0] != 1 or min(settings.repeat, settings.passes, settings.points) < 1:
        raise Invalid("speed-ups are against one thread: begin with 1, and take at least one pass, point and repeat")
    began = time.perf_counter()
    goals, cases = [], []
    for shape in shapes(settings, count):
        say(f"{shape.name}: {shape.rows:,} rows of {shape.features:,} features")
        goal, found = Study(settings, shape, say).run(threads)
        goals.append(goal)
        cases += found
    return Results(settings, cpu(), count, time.perf_counter() - began, goals, cases)


class Study:
    """One shape, from the first grid to the last case."""

    def __init__(self, settings: Settings, shape: Shape, say: Say) -> None:
        self._settings, self._say, self._shape = settings, say, shape
        self._stage = Stage(shape, settings.test_rows, settings.seed)
        self._variants = variants(settings)
        self._grids: dict[Variant, list[Curve]] = {}
        self._steps: dict[tuple[Variant, int], float] = {}

    def run(self, threads: tuple[int, ...]) -> tuple[Goal, list[Case]]:
        for variant in self._variants:
            self._tune_alone(variant)
        ours = [one for variant, grid in self._grids.items() if variant.way != "sklearn" for one in grid]
        target = min(one.lowest for one in ours) * (1.0 + self._shape.margin)
        self._say(f"  the loss to reach: {target:.4f}")
        runs: dict[tuple[Variant, int], list[Curve]] = {}
        for variant in self._variants:
            best = self._best_alone(variant, target)
            for count in threads if variant.way not in ("serial", "sklearn") else (1,):
                best = self._tuned(variant, count, best, target)
                runs[variant, count] = [] if best.reached(target) else [best]
        hopeful = {case: self._steps[case] for case in runs if not runs[case]}
        for number in range(self._settings.repeat):
            self._say(f"  round {number + 1} of {self._settings.repeat}: {len(hopeful)} cases in turn")
            for (variant, count), step in hopeful.items():
                runs[variant, count].append(self._curve(variant, step, count, target))
        cases = [self._case(variant, count, found, target) for (variant, count), found in runs.items()]
        first = min(
            (one for one in cases if one.threads == 1 and one.seconds and one.variant.way != "sklearn"),
            key=lambda one: one.seconds or 0.0,
        )
        assert first.seconds is not None
        nonzeros = self._stage.rows.nonzeros / len(self._stage.rows)
        return Goal(self._shape, target, nonzeros, f"{first.name}, {first.variant.rule}", first.seconds), cases

    def _tune_alone(self, variant: Variant) -> None:
        """Tunes from the middle of the grid to where both neighbours are worse."""
        if variant.way in TWINS and self._twin(variant) in self._grids:
            return
        grid = {"sklearn": OF_SKLEARN, "batched": OF_BATCHES, "serial": OF_BATCHES}.get(variant.way, PER_ROW)
        steps = grid[variant.rule]
        tried: dict[int, Curve] = {}
        best, following = len(steps) // 2, -1
        while best != following:
            following = best
            for place in (best, best - 1, best + 1):
                if 0 <= place < len(steps) and place not in tried and len(tried) < self._settings.grid:
                    tried[place] = self._curve(variant, steps[place], 1)
            best = min(tried, key=lambda place: tried[place].lowest)
        self._grids[variant] = [tried[place] for place in sorted(tried)]
        said = ", ".join(f"{one.step:g}: {one.lowest:.4f}" for one in self._grids[variant])
        self._say(f"  one thread, {variant.name}, {variant.rule}: {said}")

    def _twin(self, variant: Variant) -> Variant:
        return Variant(TWINS.get(variant.way, variant.way), variant.rule, variant.batch)

    def _best_alone(self, variant: Variant, target: float) -> Curve:
        return min(self._grids.get(variant) or self._grids[self._twin(variant)], key=lambda one: _rank(one, target))

    def _tuned(self, variant: Variant, threads: int, before: Curve, target: float) -> Curve:
        """The best of half, once and twice the best step of fewer threads."""
        factors = (1.0, 0.5, 2.0) if before.reached(target) else (1.0,)
        tried = [self._curve(variant, factor * before.step, threads, target) for factor in factors]
        best = min(tried, key=lambda one: _rank(one, target))
        self._steps[variant, threads] = best.step
        self._say(f"  {_told(variant, threads, best, target)}")
        return best

    def _case(self, variant: Variant, threads: int, again: list[Curve], target: float) -> Case:
        there = sorted((point for one in again if (point := one.reached(target))), key=lambda point: point.seconds)
        # More than half of the runs must reach the loss: one that does so by luck does not count.
        middle = there[len(there) // 2] if 2 * len(there) > len(again) else None
        counted = sum(one.updates_counted for one in again)
        return Case(
            self._shape.name,
            variant,
            threads,
            again[0].step,
            statistics.median(one.rows_per_second for one in again),
            middle.seconds if middle else None,
            middle.rows if middle else None,
            min(one.lowest for one in again),
            sum(one.updates_lost for one in again) / counted if counted else 0.0,
        )

    def _curve(self, variant: Variant, step: float, threads: int, target: float | None = None) -> Curve:
        return curve(self._stage, variant, step, threads, self._settings.passes, self._settings.points, target)


def _rank(one: Curve, target: float) -> tuple[float, float]:
    """Sorts by the time to the target loss; cases that never reach it, by their lowest loss."""
    reached = one.reached(target)
    return (reached.seconds if reached else float("inf"), one.lowest)


def _told(variant: Variant, threads: int, one: Curve, target: float) -> str:
    point = one.reached(target)
    reached = f"there after {point.seconds:.3f} s" if point else "never there"
    speed = f"{one.rows_per_second / 1e6:.2f} M rows/s"
    return f"{variant.name}, {variant.rule}, threads: {threads}, step {one.step:g}: {speed}, {reached}"


# ---------------------------------------------------------------- showing it


def verdicts(results: Results) -> list[str]:
    """For each shape, the best case on one thread and the best on all."""
    found = []
    for goal in results.goals:
        shape = goal.shape.name
        threads = max(case.threads for case in results.cases)
        said = f"{shape}: one thread is at {goal.loss:.4f} after {goal.seconds:.3f} s ({goal.serial})"
        best = results.best(shape, threads)
        if threads > 1 and best is not None:
            faster = results.speedup(best)
            said += f"; {threads} threads {faster:.1f} times as soon ({best.name}, {best.variant.rule})"
        elif threads > 1:
            said += f"; with {threads} threads nobody"
        found.append(said)
    return found


def table(results: Results) -> Table:
    alone = {(case.shape, case.variant): case for case in results.cases if case.threads == 1}

    def faster(case: Case) -> str:
        return (
            f"{case.rows_per_second / alone[case.shape, case.variant].rows_per_second:.2f}" if case.threads > 1 else ""
        )

    def sooner(case: Case) -> str:
        return "-" if (found := results.speedup(case)) is None else f"{found:.2f}"

    columns = (
        ("<set", "{0.shape}"),
        ("<way", lambda case: case.name if case.threads == 1 else ""),
        ("<rule", lambda case: case.variant.rule if case.threads == 1 else ""),
        ("threads", "{0.threads}"),
        ("step", "{0.step:g}"),
        ("M rows/s", lambda case: f"{case.rows_per_second / 1e6:.2f}"),
        ("x rows/s", faster),
        ("s to loss", lambda case: "-" if case.seconds is None else f"{case.seconds:.3f}"),
        ("x", sooner),
        ("M rows to it", lambda case: "-" if case.rows is None else f"{case.rows / 1e6:.2f}"),
        ("lost", lambda case: f"{case.lost:.1%}" if case.threads > 1 and case.lost else ""),
    )
    sets = [f"{one.shape.name}: {one.shape.rows:,} rows, {one.shape.features:,} features" for one in results.goals]
    said = "x: against the best of one thread on that set. lost: of the canary's updates. -: never at the loss"
    return sheet(
        f"Hogwild by threads, {results.cores} cores of {results.machine}",
        columns,
        results.cases,
        "\n".join([*verdicts(results), *sets, said]),
        section=lambda case: case.shape,
    )


def picture(results: Results) -> Figure:
    """The speedup by threads, both shapes side by side."""
    from matplotlib.lines import Line2D

    from shoal.views import axes as draw

    figure = draw.canvas(4.3, 8.4)
    panels = figure.subplots(1, len(results.goals), sharey=True, squeeze=False)[0]
    shades = dict(zip(names(results), draw.colors(len(names(results))), strict=True))
    for axes, goal in zip(panels, results.goals, strict=True):
        _panel(axes, results, goal, shades)
    panels[0].set_ylabel("times as fast to the loss\nas the best of one thread")
    handles = [Line2D([], [], color=color, marker="o", label=name) for name, color in shades.items()]
    below = "Full lines: SGD; dashed: AdaGrad. A way without a line never reached the loss."
    draw.headline(figure, _sentence(results), size=11)
    draw.legend(figure, handles, loc="outside lower center", ncols=4, fontsize=8, title=below, title_fontsize=8)
    return figure


def names(results: Results) -> list[str]:
    """The ways to train, one colour each."""
    return list(dict.fromkeys(case.name for case in results.cases if case.variant.way not in ("serial", "sklearn")))


def _sentence(results: Results) -> str:
    known = [(speedup, case) for case in results.cases if case.threads > 1 and (speedup := results.speedup(case))]
    if not known:
        return "No way with several threads reached the loss"
    speedup, case = max(known, key=lambda pair: pair[0])
    return f"At most {speedup:.1f} times as fast as one thread: {case.name} with {case.threads} threads on {case.shape}"


def _panel(axes: Axes, results: Results, goal: Goal, shades: dict[str, str]) -> None:
    from shoal.views import axes as draw
    from shoal.views.axes import DASHES, INK, PALE

    cases = [case for case in results.cases if case.shape == goal.shape.name]
    counts = sorted({case.threads for case in cases})
    axes.plot(counts, counts, color=PALE, linewidth=1.0)
    axes.annotate("ideal", (counts[0], counts[0]), (6, 12), textcoords="offset points", fontsize=8, color=INK)
    for case in cases:
        line = [one for one in cases if one.variant == case.variant and one.seconds is not None]
        if case.threads > 1 or case.name not in shades or not line:
            continue
        speedups = [results.speedup(one) or 0.0 for one in line]
        style: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.4, "color": shades[case.name]}
        axes.plot([one.threads for one in line], speedups, DASHES[case.variant.rule == "adagrad"], **style)
    for case in cases:
        if case.variant == _rival(cases) and (level := results.speedup(case)):
            draw.reference(axes, level, "scikit-learn, one thread", ":", side="left")
    if results.cores in range(counts[0], counts[-1] + 1):
        axes.axvline(results.cores, color=INK, linewidth=0.7, linestyle="--")
        text = axes.text(results.cores, 0.98, f"{results.cores} cores ", transform=axes.get_xaxis_transform())
        text.set(ha="right", va="top", fontsize=8, color=INK)
    if counts[-1] > 2:
        draw.logarithmic(axes.xaxis, base=2)
        draw.logarithmic(axes.yaxis, base=2)
    axes.set_xticks(counts, [str(count) for count in counts], minor=False)
    axes.set_xlabel("threads")
    draw.titled(axes, f"{goal.shape.name}, to a loss of {goal.loss:.3f}")
    draw.tidy(axes)


def _rival(cases: list[Case]) -> object:
    """The better case of scikit-learn."""
    theirs = [case for case in cases if case.variant.way == "sklearn" and case.seconds is not None]
    return min(theirs, key=lambda case: case.seconds or 0.0).variant if theirs else None


BENCH = Bench(
    help="Does Hogwild still scale? Threads on one model by rows a second and by time to a loss, for every way and rule.",
    quick_help="Few rows and steps: seconds, and no figures to quote.",
    measure=measure,
    table=table,
    options=(
        Option("rows", "Of the smaller set.  [default: 150,000 a core]", click.IntRange(2_000)),
        Option(
            "threads",
            "Counts, with commas.  [default: 1,2,4,... up to the cores]",
            parse=lambda text: tuple(sorted(set(numbers(text)))),
        ),
        Option("repeat", "Runs of each case.  [default: 3]", click.IntRange(1)),
    ),
    picture=picture,
    load=lambda paths: load(paths[-1], Results),
)
