"""The axes of a study, and all their combinations.

[grid]
"strategy.max_delay" = [0, 4, 16]                     a setting and its values
[grid.method]                                         points with names, each with its settings
async = {strategy = "async"}
"sync, second copies" = {strategy = {name = "sync", second_copies = true}}
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import Invalid

NAME_CHARS = 120  # of a folder: file systems allow a little more
SERIAL = "serial"
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class AxisChoice:
    label: str
    value: Any  # of the setting; the label where it has a name
    changes: dict[str, Any]

    @property
    def number(self) -> float | None:
        """Its number on a scale, if it has one; a name may be a number, too."""
        if isinstance(self.value, str):
            return float(self.value) if _NUMBER.fullmatch(self.value) else None
        return float(self.value) if isinstance(self.value, int | float) and not isinstance(self.value, bool) else None


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting, or a name for several, and its choices."""

    name: str
    choices: list[AxisChoice]
    short: str = ""  # its name in tables and pictures


@dataclass(frozen=True, slots=True)
class Point:
    choices: dict[str, AxisChoice]  # by the name of the axis
    names: dict[str, str] = field(default_factory=dict)  # the axes' short names
    serial: bool = False

    def words(self, axis: str, between: str = " ") -> str:
        """Its choice on an axis: workers 2, or a name."""
        choice = self.choices[axis]
        is_named = axis not in choice.changes and choice.number is None
        return choice.label if is_named else f"{self.names[axis]}{between}{choice.label}"

    @property
    def title(self) -> str:
        return ", ".join([SERIAL] * self.serial + [self.words(axis) for axis in self.choices]) or "the job"

    @property
    def name(self) -> str:
        """A folder name that is safe for shells and file systems."""
        name = ",".join([SERIAL] * self.serial + [_plain(self.words(axis, "=")) for axis in self.choices]) or "job"
        exact = all(_plain(choice.label) == choice.label for choice in self.choices.values())
        if not exact or len(name) > NAME_CHARS:  # two labels might become equal
            name = f"{name[:NAME_CHARS]}-{hashlib.sha256(self.title.encode()).hexdigest()[:6]}"
        return name

    @property
    def changes(self) -> dict[str, Any]:
        return {name: value for choice in self.choices.values() for name, value in choice.changes.items()}


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=+-]+", "_", text)


def axes_of(tree: Mapping[str, Any], table: str) -> list[Axis]:
    """The axes of a [grid]; ``table`` is its name in errors."""
    axes = [axis for name, value in tree.items() for axis in _axes(name, value, table)]
    names = [axis.name for axis in axes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Invalid(f"[{table}] {twice} is there twice, with dots and as a table: leave one out")
    owner: dict[str, str] = {}
    for axis in axes:
        for setting in dict.fromkeys(name for choice in axis.choices for name in choice.changes):
            for other, theirs in owner.items():
                same = setting == other or setting == f"{other}.name" or other == f"{setting}.name"
                if same and theirs != axis.name:
                    raise Invalid(f"[{table}] {axis.name} and {theirs} both set {setting}: leave it to one of them")
            owner[setting] = axis.name
    lasts = [axis.name.split(".")[-1] for axis in axes]
    return [
        Axis(axis.name, axis.choices, last if lasts.count(last) == 1 else axis.name)
        for axis, last in zip(axes, lasts, strict=True)
    ]


def _axes(name: str, value: Any, table: str) -> Iterator[Axis]:
    where = f"[{table}] {name}"
    if isinstance(value, list):
        if not value:
            raise Invalid(f"{where} has no values: give some, or leave it out")
        choices = [AxisChoice(label(one), one, {name: one}) for one in value]
    elif not isinstance(value, Mapping):
        raise Invalid(f"{where} = {label(value)}: give a list of values; what is the same in all runs belongs to [job]")
    elif not value:
        raise Invalid(f"{where} has no points: give some, or leave it out")
    elif not all(isinstance(one, Mapping) for one in value.values()):
        if any(isinstance(one, Mapping) for one in value.values()):
            raise Invalid(f"{where} has points with names and lists of values: use one kind only")
        for inner, values in value.items():  # update.step = [...], written without quotes
            yield from _axes(f"{name}.{inner}", values, table)
        return
    else:
        # A point without settings is the plain job, for comparison.
        choices = [AxisChoice(one, one, flat(settings)) for one, settings in value.items()]
    labels = [choice.label for choice in choices]
    if twice := next((one for one in labels if labels.count(one) > 1), None):
        raise Invalid(f"{where} has {twice} twice: leave one out")
    yield Axis(name, choices)


def points_of(axes: list[Axis], serial: bool = False) -> list[Point]:
    """Every combination, the last axis turning fastest."""
    names = {axis.name: axis.short for axis in axes}
    every = itertools.product(*(axis.choices for axis in axes))
    return [Point(dict(zip(names, choices, strict=True)), names, serial) for choices in every]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their full names."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def label(value: Any) -> str:
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)
