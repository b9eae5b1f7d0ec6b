"""How many bytes each filter saves, and what that costs: the same training with none, with each alone, and with all together.

    ftrl              async, with L1: pushes are sums, so filters may leave out, shorten and send later
    block-proximal    solved to the end: nothing that is pushed may come later, and the KKT filter leaves keys out

Bytes are those of keys and values as workers count them, without headers; plain ones are 8-byte keys and 4-byte values. To servers go
the keys of pulls and of pushes, and gradients; to workers go weights, 4 bytes each: an answer never brings keys. (Where it does, as key-value
messages may, plain ones are three times as many, and so are the ratios.)
How many times fewer is against the plain bytes of the run without filters, so what a run does more often is counted.

The objective is of the training rows and the final weights, exactly: the mean loss + L1, for FTRL with the weight that its updates give it (l1
over the number of pushes, whose gradients are means): both solvers have the same one. An async run is never the same twice: several are
made, and by how much they differ is said.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import benchmarks.as_is  # noqa: F401  (known here, and by its name where servers and workers are)
from benchmarks.store import Machine, _machine
from shoal.data.datasets import NAMED, VARIABLE, load
from shoal.data.dense_file import sparse
from shoal.errors import Invalid
from shoal.events import Evaluated
from shoal.job import Job
from shoal.models.optimum import judge
from shoal.models.trained import Trained
from shoal.run.finished import Run
from shoal.run.run import execute

FTRL, BLOCKS = "ftrl", "block-proximal"
NONE, HANDLES, KKT, ALL = "none", "handles", "kkt", "all together"
Named = str | dict[str, str | float]
_COUNTED: list[Named] = ["as_is"]


class Way(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is switched on in a run."""

    name: str
    filters: list[Named] = []
    handles: bool = False
    kkt: bool = False


class Set(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows, and how they are learned from."""

    data: str
    rows: int | None = None  # made up: how many
    repeat: int = 2  # runs with ftrl without filters and with all, of which the median counts
    batch: int = 256
    passes: float = 5.0  # of ftrl
    step: float = 1.0
    l1: float = 1.0  # beside the sum of the losses of all rows
    blocks: int = 16
    objective: float | None = 1e-6  # block-proximal: when it is solved
    violation: float | None = 0.1
    most: float = 150.0  # passes of block-proximal
    every: float = 5.0  # passes from one evaluation to the next


PRESSING = (Way("delta", ["delta"]), Way("lz4", ["lz4"]), Way("zstd", ["zstd"]))
SIXTEEN = (Way("float16", ["float16"]), Way("bfloat16", ["bfloat16"]))
SUMS = (
    Way("significant", [{"name": "significant", "threshold": 1e-4}]),
    Way("skip", ["skip"]),
    Way("top", ["top"]),
    *SIXTEEN,
    Way("int8", ["int8"]),
    Way("one_bit", ["one_bit"]),
)
WAYS = {
    FTRL: (
        Way(NONE),
        Way(HANDLES, handles=True),
        *PRESSING,
        *SUMS,
        Way(ALL, ["int8", "delta", "zstd"], handles=True),
    ),
    BLOCKS: (
        Way(NONE),
        Way(HANDLES, handles=True),
        *PRESSING,
        *SIXTEEN,
        Way("int8, pulls", [{"name": "int8", "pushes": 0}]),
        Way(KKT, kkt=True),
        Way(ALL, ["float16", "delta", "zstd"], handles=True, kkt=True),
    ),
}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is measured, and on what."""

    sets: tuple[Set, ...] = (
        Set(data="rcv1", step=0.5, passes=10.0, repeat=3),
        Set(data="criteo_tb", step=0.03, passes=10.0, l1=10.0, repeat=3, violation=None, most=100.0),
        Set(
            data="clicks",
            rows=2_000_000,
            batch=1024,
            step=0.05,
            passes=4.0,
            l1=10.0,
            objective=None,
            violation=None,
            most=12.0,
        ),
    )
    solvers: tuple[str, ...] = (FTRL, BLOCKS)
    only: tuple[str, ...] = ()  # ways by name, besides none
    workers: int = 2
    servers: int = 2
    how: str = "processes"
    seed: int = 0


FULL = Settings()
QUICK = Settings(
    sets=(Set(data="clicks", rows=10_000, step=0.05, passes=2.0, blocks=4, objective=1e-3, violation=None),),
    how="threads",
)


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One way, by the run whose objective is the median."""

    data: str
    solver: str
    way: Way
    to_servers: int  # bytes of keys and values
    to_workers: int
    plain_to_servers: int  # of this very run
    plain_to_workers: int
    wire_to_servers: int  # all that workers sent
    wire_to_workers: int
    passes: float
    seconds: float
    objective: float  # of a row: mean loss + penalty
    nonzero: int
    loss: float  # on held-out rows
    skipped: list[float]  # share of keys that are left out, at each evaluation (block-proximal)
    stopped: str
    spread: float = 0.0  # of the objectives of several runs: half of the range, relative

    @property
    def key(self) -> tuple[str, str]:
        return self.data, self.solver


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of one run of the benchmark."""

    machine: Machine
    settings: Settings
    seconds: float
    cases: list[Case]
    missing: list[str]

    def none(self, case: Case) -> Case:
        """The run without filters that another is held against."""
        return next(one for one in self.cases if one.key == case.key and one.way.name == NONE)

    def ratios(self, case: Case) -> tuple[float, float]:
        """How many times fewer bytes went to servers and to workers than plain ones."""
        none = self.none(case)
        return none.plain_to_servers / case.to_servers, none.plain_to_workers / case.to_workers

    def wire_ratios(self, case: Case) -> tuple[float, float]:
        none = self.none(case)
        return none.wire_to_servers / case.wire_to_servers, none.wire_to_workers / case.wire_to_workers

    def off(self, case: Case) -> float:
        """The objective's distance from that without filters, relative."""
        none = self.none(case)
        return case.objective / none.objective - 1


def chosen(
    settings: Settings,
    rows: int | None = None,
    data: tuple[str, ...] = (),
    solver: str | None = None,
    only: tuple[str, ...] = (),
) -> Settings:
    """With fewer sets, solvers and ways, and with so many rows of clicks."""
    sets = tuple(one for one in settings.sets if not data or one.data in data)
    if not sets:
        raise Invalid(f"no set {', '.join(data)}: there are {', '.join(one.data for one in settings.sets)}")
    if rows is not None:
        sets = tuple(one if one.rows is None else msgspec.structs.replace(one, rows=rows) for one in sets)
    return msgspec.structs.replace(settings, sets=sets, only=only, solvers=(solver,) if solver else settings.solvers)


def measure(settings: Settings, progress: Callable[[str], None]) -> Results:
    """Run it all. ``progress`` is told what is going on, one line at a time."""
    for solver in settings.solvers:
        if solver not in WAYS:
            raise Invalid(f"no solver {solver!r}: there are {', '.join(WAYS)}")
    known = {way.name for ways in WAYS.values() for way in ways}
    if (strange := [name for name in settings.only if name not in known]) != []:
        raise Invalid(f"no way {strange[0]!r}: there are {', '.join(sorted(known))}")
    began = time.perf_counter()
    missing = [
        one.data
        for one in settings.sets
        if one.data in NAMED and NAMED[one.data].train and not os.environ.get(VARIABLE)
    ]
    for name in missing:
        progress(f"{name} is left out: set {VARIABLE} to the folder that has it")
    cases: list[Case] = []
    results = Results(_machine(), settings, 0.0, cases, missing)
    for one in settings.sets:
        for solver in settings.solvers if one.data not in missing else ():
            for case in _runs(settings, one, solver):
                cases.append(case)
                progress(_line(results, case))
    return msgspec.structs.replace(results, seconds=time.perf_counter() - began)


def _runs(settings: Settings, one: Set, solver: str) -> Iterator[Case]:
    for way in WAYS[solver]:
        if not settings.only or way.name in (NONE, *settings.only):
            job = job_of(settings, one, solver, way)
            alike = solver == BLOCKS or way.name not in (NONE, ALL)  # block by block it is always the same
            times = 1 if alike else one.repeat
            cases = sorted(
                (_case(one.data, solver, way, execute(job)) for _ in range(times)), key=lambda case: case.objective
            )
            spread = (cases[-1].objective - cases[0].objective) / 2 / cases[0].objective
            yield msgspec.structs.replace(cases[(times - 1) // 2], spread=spread)


def job_of(settings: Settings, one: Set, solver: str, way: Way) -> Job:
    """The run of one way."""
    data: dict[str, Any] = {"source": one.data, "batch": one.batch}
    if one.rows is not None:
        data["rows"] = one.rows
    tree: dict[str, Any] = {
        "data": data,
        "model": {"bias": False},
        "workers": settings.workers,
        "servers": settings.servers,
        "seed": settings.seed,
        "handles": way.handles,
        "filters": way.filters or _COUNTED,
        "launch": {"how": settings.how, "modules": ["benchmarks.as_is"]},
        "checkpoint": {"every": math.inf},
    }
    if solver == FTRL:
        tree |= {
            "strategy": "async",
            "update": {"rule": "ftrl", "step": one.step, "l1": one.l1 * one.passes / one.batch},
            "stop": {"epochs": one.passes},
            "evaluate": {"every": math.inf},
        }
    else:
        tree |= {
            "strategy": {"name": BLOCKS, "blocks": one.blocks, "kkt": "nips" if way.kkt else "off"},
            "update": {"l1": one.l1},
            "evaluate": {"every": one.every},
            "stop": {"epochs": one.most}
            | {name: at for name in ("objective", "violation") if (at := getattr(one, name)) is not None},
        }
    return Job.of(tree)


def _case(data: str, solver: str, way: Way, run: Run) -> Case:
    told, counted = run.summary, run.summary["filters"]
    train = sparse(load(run.job.data, run.job.seed).train)
    assert isinstance(run.model, Trained)
    l1 = run.job.update.l1 * (train.rows / told["steps"] if solver == FTRL else 1.0)
    found = judge(train, run.job.linear, run.model.table, l1)
    return Case(
        data=data,
        solver=solver,
        way=way,
        to_servers=counted["sent"]["to_servers"],
        to_workers=counted["sent"]["to_workers"],
        plain_to_servers=counted["plain"]["to_servers"],
        plain_to_workers=counted["plain"]["to_workers"],
        wire_to_servers=told["bytes_sent"],
        wire_to_workers=told["bytes_received"],
        passes=told["examples"] / train.rows,
        seconds=told["computing_seconds"],
        objective=found["objective"] / train.rows,
        nonzero=int(found["nonzero"]),
        loss=told["test_loss"],
        skipped=[event.metrics.get("skipped") or 0.0 for event in run.events if isinstance(event, Evaluated)]
        if solver == BLOCKS
        else [],
        stopped=told["stopped_because"],
    )


def _line(results: Results, case: Case) -> str:
    to_servers, to_workers = results.ratios(case)
    return (
        f"{case.data}, {case.solver}, {case.way.name}: {to_servers:.1f} and {to_workers:.1f} times fewer to servers and to workers, "
        f"objective {case.objective:.6f} ({results.off(case):+.3%}), {case.nonzero:,} nonzeros, {case.passes:.3g} passes, {case.seconds:.1f} s"
    )
