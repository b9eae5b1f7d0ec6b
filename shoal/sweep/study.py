"""A study: a question, and the runs that answer it.

    what = "How far may workers be apart?"
    seeds = 3                       # 0, 1, 2; or a list
    cores = 2                       # cores to use  [default: all of this process]
    cores_per_run = 1               # cores per run; runs go in parallel  [default: all]
    target = 0.42                   # a held-out loss, fixed in advance; or "serial + 1%"
    timeout = 600                   # seconds after which a run is given up  [default: an hour]

    [job]                           # the common settings, as in a job file
    [grid]                          # every combination of all axes (see ``grid``)
    [serial]                        # a grid for the best serial run, which speedups refer to
    [picture]                       # x and lines: axes of pictures; log = true: log losses

Runs of a study record no spans ([job.trace] spans = 200 asks for them). ``emulate.per_example``
slows a serial run too, ``emulate.slow`` does not. All of it is checked before anything runs.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from shoal.errors import Invalid
from shoal.events import counted
from shoal.job import Job
from shoal.settings_tree import beside, changed
from shoal.sweep.grid import Axis, Point, axes_of, flat, label, points_of

KEYS = ("name", "what", "seeds", "cores", "cores_per_run", "target", "timeout", "job", "grid", "serial", "picture")
SEEDS = 1_000  # at most
RUNS = 10_000  # at most
TIMEOUT = 3_600.0  # seconds
_ABOVE = re.compile(r"serial\s*\+\s*(\d+(?:\.\d+)?)\s*%")
_UNSLOWED = {"emulate.slow": [], "emulate.factor": 1.0, "emulate.pause": 0.0, "emulate.stall": 0.0}


@dataclass(frozen=True, slots=True)
class Target:
    """The target loss: a number, or relative to the best serial run."""

    loss: float | None = None
    above: float | None = None  # share

    @property
    def words(self) -> str:
        return f"{self.loss:g}" if self.loss is not None else f"serial + {100 * (self.above or 0):g}%"


@dataclass(frozen=True, slots=True)
class PlannedRun:
    point: Point
    seed: int
    job: Job = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.point.name}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Study:
    name: str
    what: str
    seeds: list[int]
    cores: int | None
    cores_per_run: int | None
    target: Target | None
    timeout: float
    axes: list[Axis]
    serial_axes: list[Axis]
    runs: list[PlannedRun] = field(repr=False)  # serial first, then seed by seed
    x: str | None = None  # the axis along pictures; None: nothing varies
    lines: str | None = None  # the axis that tells their lines apart
    log: bool = False  # losses over time on a logarithmic axis
    text: str = field(default="", repr=False)

    @classmethod
    def load(cls, path: Path) -> Study:
        """Read a TOML file; errors name the file, the table and the key."""
        try:
            text = path.read_bytes().decode()
            tree = tomllib.loads(text)
        except OSError as error:
            raise Invalid(f"cannot read {path}: {error.strerror}: give a study (TOML)") from None
        except (ValueError, RecursionError) as error:
            # not TOML, not text, a number of thousands of digits, nested too deep
            raise Invalid(f"{path} is no TOML: {error}") from None
        try:
            return cls.of(tree, path.stem, path.parent, text)
        except OverflowError:
            raise Invalid(f"{path}: a number in it is too large: give one that a float can hold") from None
        except Invalid as error:
            raise Invalid(f"{path}: {error}") from None

    @classmethod
    def of(cls, tree: Mapping[str, Any], name: str = "study", folder: Path = Path(), text: str = "") -> Study:
        _check_keys(tree)
        axes = axes_of(_table(tree, "grid"), "grid")
        serial_axes = axes_of(_table(tree, "serial"), "serial")
        if "grid" not in tree and "serial" not in tree:
            raise Invalid("it has nothing to compare: add a [grid], such as workers = [1, 2, 4]")
        seeds, target = _seeds(tree.get("seeds", 3)), _target(tree.get("target"), "serial" in tree)
        cores, each = _cores(tree)
        base = _base(tree, folder)
        size = math.prod(len(axis.choices) for axis in axes) if "grid" in tree else 0
        alone = math.prod(len(axis.choices) for axis in serial_axes) if "serial" in tree else 0
        if (many := len(seeds) * (size + alone)) > RUNS:
            hint = "shorten an axis of [grid], or take fewer seeds"
            raise Invalid(f"these are {many:,} runs, and {RUNS:,} is the most: {hint}")
        points = points_of(axes) if "grid" in tree else []
        serial = points_of(serial_axes, serial=True) if "serial" in tree else []
        runs = [_planned(base, point, seed, folder) for point in serial for seed in seeds]
        runs += [_planned(base, point, seed, folder) for seed in seeds for point in points]
        _check_runs(runs, target)
        x, lines, log = _picture(_table(tree, "picture"), axes or serial_axes)
        timeout = tree.get("timeout", TIMEOUT)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise Invalid(f"timeout = {label(timeout)}: give a number above 0")
        what, name = _text(tree, "what", ""), _text(tree, "name", name)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}", name):
            allowed = "letters, digits, '-', '_', '.' and spaces, 100 at most"
            raise Invalid(f"name = {name!r}: it names a folder: give {allowed}")
        return cls(name, what, seeds, cores, each, target, float(timeout), axes, serial_axes, runs, x, lines, log, text)

    @property
    def points(self) -> list[Point]:
        return list({run.point.name: run.point for run in self.runs}.values())

    def toml(self) -> str:
        """The text of the study with its name, which may differ from the file's."""
        named = "name" in tomllib.loads(self.text)
        return self.text if named else f'name = "{self.name}"\n{self.text}'

    def places(self) -> list[list[int]]:
        """The cores of each run in parallel, disjoint; Invalid if there are not so many here."""
        here = sorted(os.sched_getaffinity(0))
        cores = self.cores or len(here)
        if cores > len(here):
            known = counted(len(here), "core")
            raise Invalid(f"cores = {cores}, but this process may use {known}: ask for at most that many")
        each = self.cores_per_run or cores
        if each > cores:
            raise Invalid(f"cores_per_run = {each}, of cores = {cores}: a run cannot have more than there are")
        return [here[first : first + each] for first in range(0, cores - each + 1, each)]


def _check_keys(tree: Mapping[str, Any]) -> None:
    for key in tree:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1, cutoff=0.6) if key not in Job.__struct_fields__ else []
            known = f"there are {', '.join(KEYS)}; settings of runs belong to [job]"
            raise Invalid(f"no key {key!r}: {f'did you mean {near[0]!r}?' if near else known}")


def _table(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = tree.get(name, {})
    if not isinstance(value, Mapping):
        raise Invalid(f"{name} = {label(value)}: write it as a table, [{name}]")
    if name == "grid" and name in tree and not value:
        raise Invalid("[grid] is empty: add an axis, such as workers = [1, 2, 4]")
    return value


def _text(tree: Mapping[str, Any], key: str, default: str) -> str:
    value = tree.get(key, default)
    if not isinstance(value, str):
        raise Invalid(f"{key} = {label(value)}: give a text")
    return value


def _seeds(value: Any) -> list[int]:
    if type(value) is int and 1 <= value <= SEEDS:
        return list(range(value))
    whole = isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
    if not whole or not 1 <= len(value) <= SEEDS or len(set(value)) < len(value):
        raise Invalid(f"seeds = {label(value)}: give how many (1 to {SEEDS:,}), or a list of different whole numbers")
    return list(value)


def _cores(tree: Mapping[str, Any]) -> tuple[int | None, int | None]:
    for key in ("cores", "cores_per_run"):
        value = tree.get(key)
        if key in tree and (type(value) is not int or value < 1):
            raise Invalid(f"{key} = {label(value)}: give a whole number, 1 or more")
    cores, each = tree.get("cores"), tree.get("cores_per_run")
    if cores is not None and each is not None and each > cores:
        raise Invalid(f"cores_per_run = {each}, of cores = {cores}: a run cannot have more than there are")
    return cores, each


def _target(value: Any, serial: bool) -> Target | None:
    if value is None:
        return None
    if isinstance(value, str):
        found = _ABOVE.fullmatch(value.strip())
        if found is None:
            raise Invalid(f"target = {value!r}: give a loss, or such as 'serial + 1%'")
        if not serial:
            raise Invalid(f"target = {value!r}, but there is no serial run: add [serial], or give a loss")
        return Target(above=float(found[1]) / 100)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Invalid(f"target = {label(value)}: give a loss, or such as 'serial + 1%'")
    return Target(float(value))


def _picture(tree: Mapping[str, Any], axes: list[Axis]) -> tuple[str | None, str | None, bool]:
    """The x axis (by default the numeric one with most values), the axis of lines, and log."""
    log, tree = tree.get("log", False), {key: value for key, value in tree.items() if key != "log"}
    if not isinstance(log, bool):
        raise Invalid(f"[picture] log = {label(log)}: give true or false")
    names = [axis.name for axis in axes]
    for key, value in tree.items():
        if key not in ("x", "lines"):
            raise Invalid(f"[picture] {key}: there are only x, lines and log")
        if value not in names:
            raise Invalid(f"[picture] {key} = {label(value)}: it is no axis (axes: {', '.join(names) or 'none'})")
    if len(tree) == 2 and tree["x"] == tree["lines"]:
        raise Invalid(f"[picture] x and lines are both {tree['x']!r}: take two different axes")
    others = [axis for axis in axes if axis.name != tree.get("lines")]
    ranked = sorted(others, key=lambda axis: -sum(choice.number is not None for choice in axis.choices))
    x = tree.get("x") or (ranked[0].name if ranked else names[0] if names else None)
    rest = [name for name in names if name != x]
    return x, tree.get("lines") or (rest[0] if rest else None), log


def _base(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    job = _table(tree, "job")
    if "data" not in job:
        raise Invalid('[job] names no data: add a line such as data = "clicks"')
    if "seed" in flat(job):
        raise Invalid("[job] seed: every run has its own: say which with seeds, at the top")
    trace = {"spans": 0} | (dict(job["trace"]) if isinstance(job.get("trace"), Mapping) else {})
    return beside(changed({**job, "trace": trace}, {}), folder)


def _planned(base: Mapping[str, Any], point: Point, seed: int, folder: Path) -> PlannedRun:
    table = "serial" if point.serial else "grid"
    changes = point.changes
    for name in changes:
        if name == "seed":
            raise Invalid(f"[{table}] seed: every point is run with every seed: say which with seeds, at the top")
        if point.serial and name in ("strategy", "strategy.name", "workers", "servers", "copies"):
            raise Invalid(f"[serial] {name}: a serial run is one process without servers: leave it out")
    if point.serial:
        combine = {name: value for name, value in flat(base).items() if name == "strategy.combine"}
        changes = {"strategy": "serial", **_UNSLOWED, **combine, **changes}
    try:
        return PlannedRun(point, seed, Job.of(beside(changed(base, {**changes, "seed": seed}), folder)))
    except Invalid as error:
        try:
            Job.of(base)
        except Invalid as alone:
            if str(alone) == str(error):
                raise Invalid(f"[job] {error}") from None
        raise Invalid(f"[{table}] {point.title}: {error}") from None


def _check_runs(runs: list[PlannedRun], target: Target | None) -> None:
    seen: dict[str, PlannedRun] = {}
    for run in runs:
        table = "serial" if run.point.serial else "grid"
        text = run.job.toml()
        if (other := seen.get(text)) is not None:
            raise Invalid(f"[{table}] {run.point.title!r} and {other.point.title!r} are the same run: leave one out")
        seen[text] = run
        ends_at = run.job.stop.target_loss
        if target is not None and target.loss is not None and ends_at is not None and ends_at > target.loss:
            early = f"stop.target_loss = {ends_at:g} ends it before it can reach target = {target.loss:g}"
            raise Invalid(f"[{table}] {run.point.title}: {early}: lower it, or leave it out")
