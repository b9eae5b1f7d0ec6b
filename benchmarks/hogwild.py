"""Does Hogwild still scale? Rows a second, and the time to a loss on rows held out, by threads, for every way and rule.

    rcv1-like       47,236 features, 76 non-zeros a row: the commonest word is in 44% of the rows
    click-like      4,000,000 features, 39 in a row: a third of a row is from 13 small fields, the rest is spread wide

The loss that is to be reached is fixed before anything is timed: the best of all runs of one thread, plus a margin that belongs to the shape. The step is tuned
for each case: with one thread up and down a grid until it gets worse, then half, the same and twice of what was best with fewer threads. Then
all cases are run again in turn, ``repeat`` times, and the median of these counts; one that never reaches the loss is shown as such.

Speed-ups are against the best of everything that runs on one thread, whatever its way, never against a case's own slow self.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.hogwild_runs import (
    Curve,
    Shape,
    Stage,
    Variant,
    curve,
    has_sklearn,
)
from shoal.errors import Invalid

Say = Callable[[str], None]

PER_ROW = {"sgd": (0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0), "adagrad": (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)}
OF_BATCHES = {"sgd": (1.0, 2.5, 5.0, 10.0, 20.0), "adagrad": PER_ROW["adagrad"]}
OF_SKLEARN = {"sgd": (0.01, 0.03, 0.1, 0.3, 1.0), "optimal": (1e-6, 1e-5, 1e-4)}
TWINS = {"locked": "example", "hot_cold": "example", "serial": "batched"}  # with one thread, the same steps


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is measured."""

    rows: int | None = None  # of the smaller set; the other has twice as many. 150,000 a core, 800,000 at most
    clicks: int = 4_000_000  # features of the click-like one
    threads: tuple[int, ...] | None = None  # 1, 2, 4, ... as many as there are cores
    rules: tuple[str, ...] = ("sgd", "adagrad")
    ways: tuple[str, ...] = ("serial", "example", "locked", "batched", "hot_cold", "sklearn")
    batches: tuple[int, ...] = (64, 256, 1_024)
    splits: tuple[tuple[int, int], ...] = ((2_048, 256), (8_192, 1_024))  # hot keys, and rows between two merges
    passes: int = 3
    points: int = 4  # in a pass, at which the model is judged
    repeat: int = 3
    test_rows: int = 20_000
    grid: int = 7  # steps of a grid, at most
    seed: int = 0


FULL = Settings()
QUICK = Settings(rows=20_000, batches=(256,), splits=((2_048, 256),), passes=2, repeat=1, grid=3)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way with one rule and so many threads, at its best step."""

    shape: str
    variant: Variant
    threads: int
    step: float
    rows_per_second: float
    seconds: float | None  # to the loss; None: it never got there
    rows: int | None  # until then
    loss: float  # the lowest
    lost: float  # share of the canary's updates

    @property
    def name(self) -> str:
        return self.variant.name


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be reached on a shape, and how soon one thread was there."""

    shape: Shape
    loss: float
    nonzeros: float  # a row
    serial: str  # the best of one thread
    seconds: float


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of one run."""

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
    """All ways and rules, those after which others take their steps first."""
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
    cores = len(os.sched_getaffinity(0))
    threads = settings.threads or tuple(1 << power for power in range(cores.bit_length()) if 1 << power <= cores)
    if threads[0] != 1 or min(settings.repeat, settings.passes, settings.points) < 1:
        raise Invalid("speed-ups are against one thread: begin with 1, and take at least one pass, point and repeat")
    began = time.perf_counter()
    goals, cases = [], []
    for shape in shapes(settings, cores):
        say(f"{shape.name}: {shape.rows:,} rows of {shape.features:,} features")
        goal, found = Study(settings, shape, say).run(threads)
        goals.append(goal)
        cases += found
    return Results(settings, _cpu(), cores, time.perf_counter() - began, goals, cases)


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
        """From the middle of the grid to where both neighbours are worse."""
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
        """The best of half, the same and twice the step that was best with fewer threads; where that never got there, the same."""
        factors = (1.0, 0.5, 2.0) if before.reached(target) else (1.0,)
        tried = [self._curve(variant, factor * before.step, threads, target) for factor in factors]
        best = min(tried, key=lambda one: _rank(one, target))
        self._steps[variant, threads] = best.step
        self._say(f"  {_told(variant, threads, best, target)}")
        return best

    def _case(self, variant: Variant, threads: int, again: list[Curve], target: float) -> Case:
        there = sorted((point for one in again if (point := one.reached(target))), key=lambda point: point.seconds)
        # Half of the runs are not enough: a case that gets there by luck has not got there.
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
    """The sooner at the loss the better; who does not get there, by how low it came."""
    reached = one.reached(target)
    return (reached.seconds if reached else float("inf"), one.lowest)


def _told(variant: Variant, threads: int, one: Curve, target: float) -> str:
    point = one.reached(target)
    reached = f"there after {point.seconds:.3f} s" if point else "never there"
    speed = f"{one.rows_per_second / 1e6:.2f} M rows/s"
    return f"{variant.name}, {variant.rule}, threads: {threads}, step {one.step:g}: {speed}, {reached}"


def _cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in _models(file):
            return line
    return platform.machine()


def _models(lines: Iterator[str]) -> Iterator[str]:
    return (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
