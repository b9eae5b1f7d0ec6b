"""The points of a sweep as lines over one axis: what pictures are drawn of, and what is said of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from shoal.sweep.figures import PointFigures, Spread, StudyFigures
from shoal.sweep.grid import Axis, AxisChoice

STEEP = 6.0  # highest over lowest from which a scale is logarithmic, if the values grow by factors


@dataclass(frozen=True, slots=True)
class PlotLine:
    """The points that differ along the axis only."""

    label: str  # what they have in common; nothing if that is everything
    points: list[PointFigures]


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Where the choices of an axis lie on a picture.

    Values that grow by factors are spread evenly, with 0 one step before the least; what is no number comes last.
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
        """Where a number lies, also between choices; None if it lies outside of them."""
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
    """One for each combination of all other axes, each in the order of its axis; the axis that tells lines apart comes first."""
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


def measure(one: PointFigures, has_target: bool) -> Spread | None:
    """What points are judged by: the time to the target; where there is none, the last test loss."""
    return one.time if has_target else one.last_loss
