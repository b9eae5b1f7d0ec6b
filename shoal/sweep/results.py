"""Figures of a study's runs and points, and how they compare.

*Time to the target* is when the weights of the first evaluation at or below it were read, without
interpolation. A run that never reached it is *censored*: it has no time, and a point has one only
if all of its seeds reached it. Over seeds a figure is a median, with the lowest and the highest.

    speedup = time of the best serial run / time        all up to the target
            = (rows/s / its rows/s)  x (its rows / rows)
            = hardware efficiency    x statistical efficiency

Each seed is compared with the serial run of the same seed. Where all runs learn from equally many
rows, the speedup of the same rows is the serial run's seconds / seconds, whatever the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from shoal.events import Evaluated
from shoal.sweep.disk import PointResult, Sweep
from shoal.sweep.grid import Axis, AxisChoice, Point
from shoal.sweep.study import Target
from shoal.views.run_record import NEVER_LATE, seconds_of

ALIKE = 0.01  # of the rows: largest difference that counts as equal
_OF_ALL_SEEDS = ("time_to_target", "rows_to_target", "rate", "speedup", "hardware_efficiency", "statistical_efficiency")


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of one run, named as in table.csv. None: unknown, or never reached."""

    result: PointResult = field(repr=False)
    target: float | None
    time_to_target: float | None = None  # seconds
    rows_to_target: int | None = None
    seconds: float | None = None
    computing_seconds: float | None = None  # without the final evaluation
    cpu_seconds: float | None = None  # of all its processes
    rows_per_second: float | None = None  # of the whole run
    last_loss: float | None = None
    best_loss: float | None = None
    accuracy: float | None = None  # of the last evaluation
    train_loss: float | None = None
    worst_loss: float | None = None  # of the workers' own models, if any
    distance: float | None = None  # of these models from their mean
    compute: float | None = None  # shares of the workers' time
    communicate: float | None = None
    wait: float | None = None
    idle: float | None = None
    staleness_mean: float | None = None
    staleness_p95: float | None = None
    staleness_max: float | None = None
    bytes: int | None = None
    speedup: float | None = None
    hardware_efficiency: float | None = None
    statistical_efficiency: float | None = None
    speedup_same_rows: float | None = None

    @property
    def waiting(self) -> float | None:
        known = any(share is not None for share in (self.compute, self.communicate, self.wait, self.idle))
        return (self.wait or 0.0) if known else None

    @property
    def reached(self) -> bool:
        return self.time_to_target is not None

    @property
    def rate(self) -> float | None:
        """Rows a second up to the target."""
        rows, time = self.rows_to_target, self.time_to_target
        return rows / time if rows is not None and time else None

    @property
    def evaluations(self) -> list[Evaluated]:
        return [event for event in self.result.events if isinstance(event, Evaluated)]

    @property
    def at_target(self) -> Evaluated | None:
        """The first evaluation that met the target."""
        goal = self.target
        return None if goal is None else next((one for one in self.evaluations if one.test_loss <= goal), None)

    @property
    def learned(self) -> int:
        """The rows of a run that ended after all its epochs; 0 if it did not."""
        last = self.evaluations[-1:] if self.result.state == "finished" else []
        return sum(one.examples for one in last)


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

    def text(self, form: Callable[[float], str], unit: str = "", between: str = "to") -> str:
        """12.3 s (11.9 to 13.1)."""
        middle, low, high = form(self.median), form(self.low), form(self.high)
        return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low} {between} {high})"


@dataclass(frozen=True, slots=True)
class PointFigures:
    """The runs of one point, and their figures over seeds."""

    point: Point
    runs: list[RunFigures] = field(repr=False)

    def spread(self, figure: str) -> Spread | None:
        """A figure over seeds. What is about the target: only if all seeds reached it."""
        if figure in _OF_ALL_SEEDS and self.reached < len(self.runs):
            return None
        if figure == "speedup_same_rows" and not self.complete:
            return None
        return Spread.of([getattr(run, figure) for run in self.runs])

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
    def diverged(self) -> bool:
        return any(run.result.state == "diverged" for run in self.runs)

    @property
    def censored(self) -> bool:
        """Whether all seeds were run, but not all reached the target."""
        return self.complete and self.runs[0].target is not None and self.reached < len(self.runs)


def known(points: Sequence[PointFigures], figure: str) -> list[tuple[PointFigures, Spread]]:
    return [(one, spread) for one in points if (spread := one.spread(figure)) is not None]


@dataclass(frozen=True, slots=True)
class StudyFigures:
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
        return self.has_target and bool(known(self.shown, "time_to_target"))

    @property
    def measure(self) -> str:
        """The figure that points are compared by; the best loss if none reached the target."""
        return "time_to_target" if self.timed else "best_loss" if self.has_target else "last_loss"

    @property
    def measured(self) -> str:
        """The measure in words."""
        return "seconds to the target" if self.timed else f"{'best' if self.has_target else 'last'} test loss"

    def alone(self, figure: str) -> Spread | None:
        return None if self.best_serial is None else self.best_serial.spread(figure)

    @property
    def tied(self) -> list[PointFigures]:
        """Points whose range over seeds overlaps with that of the best."""
        mine = None if self.best is None else self.best.spread(self.measure)
        others = known([one for one in self.shown if one is not self.best and one.complete], self.measure)
        return [one for one, theirs in others if mine and mine.overlaps(theirs)]

    @property
    def same_work(self) -> bool:
        """Whether all finished runs learned from about equally many rows."""
        learned = [run.learned for point in [*self.points, *self.serial] for run in point.runs if run.learned]
        return len(learned) > 1 and max(learned) <= (1 + ALIKE) * min(learned)


def figures(sweep: Sweep) -> StudyFigures:
    study, target = sweep.study, sweep.study.target
    goals = dict.fromkeys(study.seeds, None if target is None else target.loss)
    serial = [_point(sweep, point, goals) for point in study.points if point.serial]
    best_serial = best_of(serial, None)[0]
    if target is not None and target.above is not None:  # each seed has a target of its own
        runs = [] if best_serial is None else best_serial.runs
        losses = {run.result.run.seed: run.last_loss for run in runs}
        finite = {seed: loss for seed, loss in losses.items() if loss is not None and math.isfinite(loss)}
        goals = dict.fromkeys(losses) | {seed: loss + target.above * abs(loss) for seed, loss in finite.items()}
        again = [_point(sweep, one.point, goals) for one in serial]
        best_serial = next((new for new, old in zip(again, serial, strict=True) if old is best_serial), None)
        serial = again
    points = [_point(sweep, point, goals, best_serial) for point in study.points if not point.serial]
    best, best_by = best_of(points or serial, target)
    said = [run.result.summary.get("emulated", "") for point in points or serial for run in point.runs]
    return StudyFigures(sweep, points, serial, best_serial, best, best_by, list(dict.fromkeys(filter(None, said))))


def of_run(result: PointResult, target: float | None) -> RunFigures:
    one = RunFigures(result, target)
    if not result.is_done:
        return one
    summary, last = result.summary, one.evaluations[-1:]
    stale = summary.get("staleness") if result.run.job.strategy.name not in NEVER_LATE else None
    shares = summary.get("spent") or {}
    more: dict[str, Any] = {kind: shares.get(kind) for kind in ("compute", "communicate", "wait", "idle")}
    more |= {f"staleness_{what}": (stale or {}).get(what) for what in ("mean", "p95", "max")}
    metrics, models = (last[0].metrics, last[0].spread) if last else ({}, {})
    finite = [event.test_loss for event in one.evaluations if math.isfinite(event.test_loss)]
    reached = one.at_target if result.state == "finished" else None
    return replace(
        one,
        time_to_target=None if reached is None else seconds_of(reached),
        rows_to_target=None if reached is None else reached.examples,
        seconds=summary.get("seconds"),
        computing_seconds=summary.get("computing_seconds") or summary.get("seconds"),
        cpu_seconds=summary.get("cpu_seconds"),
        rows_per_second=summary.get("examples_per_second"),
        last_loss=math.inf if result.state == "diverged" else last[0].test_loss if last else None,
        best_loss=min(finite, default=None),
        accuracy=metrics.get("accuracy"),
        train_loss=summary.get("train_loss"),
        worst_loss=models.get("worst"),
        distance=models.get("distance"),
        bytes=summary.get("bytes_sent", 0) + summary.get("bytes_received", 0),
        **more,
    )


def best_of(points: Sequence[PointFigures], target: Target | None) -> tuple[PointFigures | None, str]:
    """The first at the target with all its seeds; else that of the lowest median loss."""
    if timed := known(points, "time_to_target"):
        return min(timed, key=lambda pair: pair[1].median)[0], "soonest at the target"
    missed = "" if target is None else "; no point reached the target with all seeds"
    whole = [one for one in points if one.complete and not one.diverged]
    losses = known(whole, "last_loss" if target is None else "best_loss")
    if not losses:
        return None, ""
    return min(losses, key=lambda pair: pair[1].median)[0], f"lowest median test loss{missed}"


def _point(
    sweep: Sweep, point: Point, goals: Mapping[int, float | None], serial: PointFigures | None = None
) -> PointFigures:
    results = [one for one in sweep.results if one.run.point.name == point.name]
    runs = [of_run(one, goals.get(one.run.seed)) for one in results]
    if serial is not None:
        by_seed = {run.result.run.seed: run for run in serial.runs}
        timed = serial.spread("time_to_target") is not None
        runs = [_against(run, by_seed[run.result.run.seed], timed) for run in runs]
    return PointFigures(point, runs)


def _against(run: RunFigures, serial: RunFigures, timed: bool) -> RunFigures:
    """The run with its speedups; ``timed``: all seeds of the serial run reached the target."""
    least, most = sorted((run.learned, serial.learned))
    if least and most <= (1 + ALIKE) * least and run.computing_seconds and serial.computing_seconds:
        run = replace(run, speedup_same_rows=serial.computing_seconds / run.computing_seconds)
    if not (timed and run.rate and serial.rate and run.time_to_target and serial.time_to_target):
        return run
    return replace(
        run,
        speedup=serial.time_to_target / run.time_to_target,
        hardware_efficiency=run.rate / serial.rate,
        statistical_efficiency=(serial.rows_to_target or 0) / (run.rows_to_target or 1),
    )


STEEP = 6.0  # highest over lowest from which a scale is logarithmic, if the values grow by factors


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
        known = sorted((one.number, self.places[one.label]) for one in self.choices if one.number is not None)
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
    axes = of.sweep.study.axes or of.sweep.study.serial_axes
    return next((axis for axis in axes if axis.name == of.sweep.study.x), None)


def lines_of(of: StudyFigures) -> dict[str, list[PointFigures]]:
    """A line for each combination of all other axes, which label it, in the axis's order."""
    axis, first = x_axis(of), of.sweep.study.lines
    lines: dict[str, list[PointFigures]] = {}
    for one in of.shown:
        others = [name for name in one.point.choices if axis is None or name != axis.name]
        label = ", ".join(one.point.words(name) for name in sorted(others, key=lambda name: name != first))
        lines.setdefault(label, []).append(one)
    if axis is not None:
        order = [choice.label for choice in axis.choices]
        for points in lines.values():
            points.sort(key=lambda one: order.index(at(one, axis)))
    return lines


def at(one: PointFigures, axis: Axis) -> str:
    return one.point.choices[axis.name].label
