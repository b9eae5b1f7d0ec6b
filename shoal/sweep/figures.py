"""Figures of a study's runs and points, and how they compare.

*Time to the target* is when the weights of the first evaluation at or below it were read, without
interpolation. A run that never reached it is *censored*: it has no time, and a point has one only
if all of its seeds reached it. Over seeds a figure is a median, with the lowest and the highest.

    speedup = time of the best serial run / time        all up to the target
            = (rows/s / its rows/s)  x (its rows / rows)
            = hardware efficiency    x statistical efficiency

Each seed is compared with the serial run of the same seed. Where all runs learn from equally many
rows, *sooner* is the serial run's seconds / seconds, whatever the loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from shoal.events import Evaluated, RunEvent
from shoal.sweep.disk import PointResult, Sweep
from shoal.sweep.grid import Axis, AxisChoice, Point
from shoal.sweep.study import Target
from shoal.views.run_record import NEVER_LATE

_OVER_SEEDS = (
    "rows_per_second", "last_loss", "best_loss", "accuracy", "worst_loss", "distance", "cpu", "waiting",
    "stale_mean", "stale_p95",
)  # fmt: skip
ALIKE = 0.01  # of the rows: largest difference that counts as equal


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of one run. None: unknown, or never reached."""

    result: PointResult = field(repr=False)
    target: float | None
    time: float | None = None  # seconds to the target
    rows: int | None = None  # rows to the target
    seconds: float | None = None
    computing: float | None = None  # seconds, without the final evaluation
    cpu: float | None = None  # seconds of all its processes
    learned: int | None = None  # rows, of the whole run
    rows_per_second: float | None = None  # of the whole run
    last_loss: float | None = None
    best_loss: float | None = None
    accuracy: float | None = None  # of the last evaluation
    train_loss: float | None = None
    worst_loss: float | None = None  # of the workers' own models, if any
    distance: float | None = None  # of these models from their mean
    spent: dict[str, float] = field(default_factory=dict)  # shares of the workers' time
    stale_mean: float | None = None
    stale_p95: float | None = None
    stale_max: float | None = None
    bytes: int | None = None
    speedup: float | None = None
    hardware: float | None = None
    statistical: float | None = None
    sooner: float | None = None

    @property
    def waiting(self) -> float | None:
        return self.spent.get("wait", 0.0) if self.spent else None

    @property
    def reached(self) -> bool:
        return self.time is not None

    @property
    def rate(self) -> float | None:
        """Rows a second up to the target."""
        return self.rows / self.time if self.rows is not None and self.time else None


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over seeds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """The spread of the finite values; None if there are none."""
        known = [one for one in values if one is not None and math.isfinite(one)]
        return cls(float(median(known)), float(min(known)), float(max(known))) if known else None

    def overlaps(self, other: Spread) -> bool:
        """Whether the two ranges over seeds share a value; a single seed has no range."""
        ranges = self.low < self.high and other.low < other.high
        return ranges and self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class PointFigures:
    """The figures of one point over its seeds."""

    point: Point
    runs: list[RunFigures] = field(repr=False)
    time: Spread | None = None  # only if all seeds reached the target
    rows: Spread | None = None
    rate: Spread | None = None
    rows_per_second: Spread | None = None
    last_loss: Spread | None = None
    best_loss: Spread | None = None
    accuracy: Spread | None = None
    worst_loss: Spread | None = None
    distance: Spread | None = None
    seconds: Spread | None = None  # of the whole run
    cpu: Spread | None = None
    waiting: Spread | None = None
    stale_mean: Spread | None = None
    stale_p95: Spread | None = None
    speedup: Spread | None = None
    hardware: Spread | None = None
    statistical: Spread | None = None
    sooner: Spread | None = None

    @property
    def done(self) -> int:
        return sum(one.result.is_done for one in self.runs)

    @property
    def reached(self) -> int:
        return sum(one.reached for one in self.runs)

    @property
    def complete(self) -> bool:
        return self.done == len(self.runs)

    @property
    def censored(self) -> bool:
        """Whether all seeds were run, but not all reached the target."""
        return self.complete and self.runs[0].target is not None and self.reached < len(self.runs)


@dataclass(frozen=True, slots=True)
class StudyFigures:
    """The figures of a whole sweep."""

    sweep: Sweep = field(repr=False)
    points: list[PointFigures]  # of the grid
    serial: list[PointFigures]
    best_serial: PointFigures | None
    best: PointFigures | None
    best_by: str  # how it was chosen, in words
    emulated: list[str]  # which computation is emulated, in words

    @property
    def shown(self) -> list[PointFigures]:
        """The points of the grid; without a grid, the serial points."""
        return self.points or self.serial

    @property
    def cores(self) -> int | None:
        """The cores of each run."""
        return next((one.summary.get("cores") for one in self.sweep.results if one.is_done), None)

    @property
    def has_target(self) -> bool:
        return self.sweep.study.target is not None

    @property
    def timed(self) -> bool:
        """Whether points are compared by time: some point reached the target."""
        return self.has_target and any(one.time is not None for one in self.shown)

    @property
    def measured(self) -> str:
        """The figure that points are compared by; the best loss if none reached the target."""
        return "seconds to the target" if self.timed else f"{'best' if self.has_target else 'last'} test loss"

    def measure(self, one: PointFigures) -> Spread | None:
        return one.time if self.timed else one.best_loss if self.has_target else one.last_loss

    def measure_run(self, run: RunFigures) -> float | None:
        return run.time if self.timed else run.best_loss if self.has_target else run.last_loss

    @property
    def tied(self) -> list[PointFigures]:
        """Points whose range over seeds overlaps with that of the best."""
        mine = None if self.best is None else self.measure(self.best)
        others = [(one, self.measure(one)) for one in self.shown if one is not self.best and one.complete]
        return [one for one, theirs in others if mine and theirs and mine.overlaps(theirs)]

    @property
    def same_work(self) -> bool:
        """Whether all finished runs learned from about equally many rows."""
        learned = [run.learned or 0 for point in [*self.points, *self.serial] for run in point.runs if _done(run)]
        return len(learned) > 1 and max(learned) <= (1 + ALIKE) * min(learned)


def figures(sweep: Sweep) -> StudyFigures:
    """All figures of a sweep."""
    target = sweep.study.target
    serial, best_serial = _serial(sweep)
    relative = None if target is None or target.above is None else target.above
    losses = {} if best_serial is None else {one.result.run.seed: one.last_loss for one in best_serial.runs}
    if target is not None and relative is not None:
        goals = {seed: _above(loss, relative) for seed, loss in losses.items()}
        serial = [_point(point, _results(sweep, point), goals) for point in sweep.study.points if point.serial]
        name = "" if best_serial is None else best_serial.point.name
        best_serial = next((one for one in serial if one.point.name == name), None)
    else:
        goals = dict.fromkeys(sweep.study.seeds, None if target is None else target.loss)
    points = [_point(point, _results(sweep, point), goals) for point in sweep.study.points if not point.serial]
    points = [_held_against(one, best_serial) for one in points]
    best, best_by = best_of(points or serial, target)
    shown = [one for point in points or serial for one in point.runs]
    said = [one.result.summary.get("emulated", "") for one in shown]
    return StudyFigures(
        sweep, points, serial, best_serial, best, best_by, list(dict.fromkeys(one for one in said if one))
    )


def of_run(result: PointResult, target: float | None) -> RunFigures:
    """The figures of one run."""
    if not result.is_done:
        return RunFigures(result, target)
    summary = result.summary
    late = result.run.job.strategy.name not in NEVER_LATE
    stale = (summary.get("staleness") or {}) if late else {}
    judged = [event for event in result.events if isinstance(event, Evaluated)]
    finite = [event.test_loss for event in judged if math.isfinite(event.test_loss)]
    reached = first_at_or_below(result.events, target) if result.state == "finished" else None
    diverged = result.state == "diverged"
    return RunFigures(
        result,
        target,
        time=None if reached is None else moment(reached),
        rows=None if reached is None else reached.examples,
        seconds=summary.get("seconds"),
        computing=summary.get("computing_seconds") or summary.get("seconds"),
        cpu=summary.get("cpu_seconds"),
        learned=judged[-1].examples if judged else None,
        rows_per_second=summary.get("examples_per_second"),
        last_loss=math.inf if diverged else judged[-1].test_loss if judged else None,
        best_loss=min(finite, default=None),
        accuracy=judged[-1].metrics.get("accuracy") if judged else None,
        train_loss=summary.get("train_loss"),
        worst_loss=judged[-1].spread.get("worst") if judged else None,
        distance=judged[-1].spread.get("distance") if judged else None,
        spent=summary.get("spent") or {},
        stale_mean=stale.get("mean"),
        stale_p95=stale.get("p95"),
        stale_max=stale.get("max"),
        bytes=summary.get("bytes_sent", 0) + summary.get("bytes_received", 0),
    )


def first_at_or_below(events: Sequence[RunEvent], target: float | None) -> Evaluated | None:
    """The first evaluation that met the target."""
    judged = (event for event in events if isinstance(event, Evaluated))
    return None if target is None else next((event for event in judged if event.test_loss <= target), None)


def moment(event: Evaluated) -> float:
    """The time of an evaluation: when its weights were read."""
    return event.seconds if event.read is None else event.read


def best_of(points: Sequence[PointFigures], target: Target | None) -> tuple[PointFigures | None, str]:
    """The first point at the target with all its seeds; else that of the lowest median loss.

    Without a target that is the last loss of a run; if no run reached it, the best.
    """
    timed = [one for one in points if one.time is not None]
    if timed:
        return min(timed, key=lambda one: one.time.median if one.time else math.inf), "soonest at the target"
    missed = "" if target is None else "; no point reached the target with all seeds"
    losses = [(one.last_loss if target is None else one.best_loss, one) for one in points]
    known = [(loss.median, one) for loss, one in losses if loss and one.complete and not _ran_away(one)]
    best = min(known, key=lambda pair: pair[0], default=(math.inf, None))[1]
    return best, f"lowest median test loss{missed}" if best is not None else ""


def _serial(sweep: Sweep) -> tuple[list[PointFigures], PointFigures | None]:
    """The serial points, and the best: soonest at a fixed target, else of the lowest last loss."""
    target = sweep.study.target
    loss = None if target is None else target.loss
    goals: dict[int, float | None] = dict.fromkeys(sweep.study.seeds, loss)
    points = [_point(point, _results(sweep, point), goals) for point in sweep.study.points if point.serial]
    return points, best_of(points, None)[0]


def _results(sweep: Sweep, point: Point) -> list[PointResult]:
    return [one for one in sweep.results if one.run.point.name == point.name]


def _point(point: Point, results: Sequence[PointResult], goals: dict[int, float | None]) -> PointFigures:
    runs = [of_run(one, goals.get(one.run.seed)) for one in results]
    timed = runs if all(one.reached for one in runs) else []
    spreads = {name: Spread.of([getattr(one, name) for one in runs]) for name in _OVER_SEEDS}
    spreads |= {name: Spread.of([getattr(one, name) for one in timed]) for name in ("time", "rows", "rate")}
    return PointFigures(point, runs, seconds=Spread.of([one.computing for one in runs]), **spreads)


def _held_against(one: PointFigures, serial: PointFigures | None) -> PointFigures:
    if serial is None:
        return one
    by_seed = {run.result.run.seed: run for run in serial.runs}
    runs = [_run_against(run, by_seed[run.result.run.seed]) for run in one.runs]
    known = runs if one.time is not None and serial.time is not None else []
    return replace(
        one,
        runs=runs,
        sooner=Spread.of([run.sooner for run in runs]) if one.complete else None,
        speedup=Spread.of([run.speedup for run in known]),
        hardware=Spread.of([run.hardware for run in known]),
        statistical=Spread.of([run.statistical for run in known]),
    )


def _run_against(run: RunFigures, serial: RunFigures) -> RunFigures:
    if _done(run) and _done(serial) and _alike(run.learned, serial.learned) and run.computing and serial.computing:
        run = replace(run, sooner=serial.computing / run.computing)
    if not run.time or not run.rows or not serial.time or not serial.rows or not run.rate or not serial.rate:
        return run
    return replace(
        run, speedup=serial.time / run.time, hardware=run.rate / serial.rate, statistical=serial.rows / run.rows
    )


def _alike(one: int | None, other: int | None) -> bool:
    return bool(one and other) and max(one or 0, other or 0) <= (1 + ALIKE) * min(one or 0, other or 0)


def _done(run: RunFigures) -> bool:
    """Whether it ended after all its epochs."""
    return run.result.state == "finished" and bool(run.learned)


def _above(loss: float | None, share: float) -> float | None:
    return None if loss is None or not math.isfinite(loss) else loss + share * abs(loss)


def _ran_away(one: PointFigures) -> bool:
    return any(run.result.state == "diverged" for run in one.runs)


# ---------------------------------------------------------------- points as lines over one axis


STEEP = 6.0  # highest over lowest from which a scale is logarithmic, if the values grow by factors


@dataclass(frozen=True, slots=True)
class PlotLine:
    """The points that differ along the axis only."""

    label: str  # the common choices; empty if all are
    points: list[PointFigures]


@dataclass(frozen=True, slots=True)
class AxisScale:
    """The positions of an axis's choices in a picture.

    Values that grow by factors are spread evenly, 0 one step before the least; names come last.
    """

    choices: list[AxisChoice]
    places: dict[str, float] = field(default_factory=dict)  # by label
    step: float = 1.0  # from one to the next, about

    @classmethod
    def of(cls, axis: Axis) -> AxisScale:
        numbers = {choice.label: choice.number for choice in axis.choices if choice.number is not None}
        values = sorted(set(numbers.values()))
        if _by_factors(values):
            positive = [value for value in values if value > 0]
            factor = (positive[-1] / positive[0]) ** (1 / (len(positive) - 1))
            places = {
                label: 0.0 if not value else 1 + math.log(value / positive[0]) / math.log(factor)
                for label, value in numbers.items()
            }
        else:
            places = dict(numbers)
        step = (max(places.values()) - min(places.values())) / max(1, len(places) - 1) if places else 1.0
        beyond = max(places.values(), default=-1.0)
        for number, choice in enumerate((one for one in axis.choices if one.number is None), 1):
            places[choice.label] = beyond + number * (step or 1.0)
        return cls(axis.choices, places, step or 1.0)

    def place(self, value: float) -> float | None:
        """The position of a number, also between choices; None outside of them."""
        known = sorted(
            (choice.number, self.places[choice.label]) for choice in self.choices if choice.number is not None
        )
        for (low, left), (high, right) in pairwise(known):
            if low <= value <= high:
                return left + (right - left) * (value - low) / (high - low)
        return known[0][1] if known and value == known[0][0] else None


def _by_factors(values: list[float]) -> bool:
    positive = [value for value in values if value > 0]
    if len(positive) < 3 or values[0] < 0 or positive[-1] / positive[0] < STEEP:
        return False
    factors = [later / earlier for earlier, later in pairwise(positive)]
    return max(factors) / min(factors) < 4 and min(factors) >= 1.4


def x_axis(of: StudyFigures) -> Axis | None:
    return _axis(of, of.sweep.study.x)


def _axis(of: StudyFigures, name: str | None) -> Axis | None:
    axes = of.sweep.study.axes or of.sweep.study.serial_axes
    return next((axis for axis in axes if axis.name == name), None)


def lines_of(of: StudyFigures) -> list[PlotLine]:
    """A line for each combination of all other axes, its points in the order of the axis."""
    x, first = of.sweep.study.x, of.sweep.study.lines
    axis = x_axis(of)
    order = {choice.label: number for number, choice in enumerate(axis.choices)} if axis else {}
    groups: dict[str, list[PointFigures]] = {}
    for one in of.shown:
        others = {name: choice for name, choice in one.point.choices.items() if name != x}
        ranked = sorted(others.items(), key=lambda item: item[0] != first)
        label = ", ".join(
            choice.label if choice.has_name(name) else f"{one.point.names[name]} {choice.label}"
            for name, choice in ranked
        )
        groups.setdefault(label, []).append(one)
    return [
        PlotLine(label, sorted(points, key=lambda one: order.get(_label(one, x), 0)))
        for label, points in groups.items()
    ]


def _label(one: PointFigures, axis: str | None) -> str:
    return one.point.choices[axis].label if axis is not None and axis in one.point.choices else ""


def at(one: PointFigures, axis: Axis) -> str:
    return one.point.choices[axis.name].label
