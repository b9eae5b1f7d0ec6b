"""The contestants of ``bench hogwild``, each as a curve of test loss by seconds and rows.

    serial      OneCore: minibatches on one core, no atomics, no other thread: the rival
    others      the ways of Hogwild, as threads of this process
    sklearn     scikit-learn's SGDClassifier, one thread, if it is installed

The clock stops while the model is judged. A round begins when all threads are ready and ends with
the last of them. What repeats (key lists, hot columns) is made before and not timed; weights are
touched.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from benchmarks.harness import Record
from shoal.data.batch import Floats, Ids
from shoal.data.synthetic import MAKERS, TEST_FROM
from shoal.models.linear import Linear
from shoal.store.table.update import SGD, AdaGrad, rule_named
from shoal.strategies.hogwild import Hogwild
from shoal.strategies.hogwild.loop import CURSOR, LIMIT, LINE, HogwildLoop, desk, lost
from shoal.tables import Update
from shoal.training.one_core import OneCore

MODEL = Linear()
DIVERGED = 10 * float(np.log(2.0))  # a loss above this will not recover in time
RULES: dict[str, Callable[[float], Update]] = {"sgd": SGD, "adagrad": AdaGrad}


class Shape(Record, frozen=True):
    """A made-up set."""

    name: str
    source: str  # of shoal.data
    features: int
    rows: int
    margin: float  # over the best loss of one thread, as a share: what is to be reached


class Variant(Record, frozen=True):
    """A way to train."""

    way: str  # of Hogwild; serial; sklearn
    rule: str
    batch: int = 256  # rows of a slot, which only batched and serial take as one step
    hot: int = 0  # keys, of hot_cold
    merge: int = 0  # rows between two merges of them

    @property
    def name(self) -> str:
        sized = f" {self.batch:,}" if self.way in ("batched", "serial") else ""
        return f"{self.way}{sized}".replace("_", "/") + (f" {self.hot:,}" if self.hot else "")


class Point(Record, frozen=True, array_like=True):
    """How good after how long."""

    seconds: float
    rows: int
    loss: float


class Curve(Record, frozen=True):
    """One run."""

    step: float
    points: list[Point]
    updates_counted: int = 0  # of the canary
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
    """One run under way."""

    def advance(self, order: Ids) -> float:
        """Compute these slots; the seconds it took."""

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
    """A race of so many threads."""

    def __init__(self, race: HogwildLoop, threads: int) -> None:
        self._race, self._threads = race, threads
        self._slab = np.zeros(race.shape, np.float32)
        self._slab.fill(0.0)  # touched: pages that are born while the clock runs would be timed
        self._desk, self._sums = np.zeros(desk(threads), np.int64), np.zeros((threads, LINE))

    def advance(self, order: Ids) -> float:
        from shoal.strategies.hogwild import atomics

        tally, spans, here = np.zeros(len(order), np.int8), np.zeros((self._threads, 2)), np.zeros(LINE, np.int64)
        self._desk[CURSOR, 0], self._desk[LIMIT, 0] = 0, len(order)

        def work(worker: int) -> None:
            # starting a thread takes as long as hundreds of rows
            atomics.meet(here, 0, self._threads)
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


class Alone:
    """OneCore, from zero."""

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
    """SGDClassifier with a constant step ("sgd"), or its schedule ("optimal")."""

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
    """Train to the target loss, or for so many epochs, judged ``points`` times in each."""
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
