"""How many bytes each filter saves, and what that costs: alone, and all together.

    ftrl              async, with L1: pushes are sums, so filters may drop, shorten and delay
    block-proximal    solved to the end: nothing may be delayed, and the KKT filter drops keys

Bytes are those of keys and values as workers count them, without headers; plain ones are 8-byte
keys and 4-byte values. Servers get the keys of pulls and pushes, and gradients; workers get
weights, 4 bytes each, and no keys. (Where answers bring keys, plain ones are three times as many,
and so are the ratios.) Ratios are to the plain bytes of the run without filters, so extra work of
a run counts.

The objective is exactly that of the training rows and the final weights: the mean loss + L1, for
FTRL with the weight that its updates give it (l1 over the number of pushes, whose gradients are
means), so both solvers have the same one. Async runs differ: several are made, and their spread is
shown.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

import benchmarks.as_is  # noqa: F401  (known here, and by its name where servers and workers are)
from benchmarks.harness import Bench, Columns, Option, Record, Report, Say, line_of, machine, names, sheet
from benchmarks.harness import load as read_results
from shoal.data.datasets import NAMED, VARIABLE, load
from shoal.data.packed import sparse
from shoal.errors import Invalid
from shoal.events import Evaluated
from shoal.job import Job
from shoal.models.learner import objective_at
from shoal.models.trained import Trained
from shoal.run.finished import Run
from shoal.run.run import execute

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Group
    from rich.table import Table

FTRL, BLOCKS = "ftrl", "block-proximal"
NONE, HANDLES, KKT, ALL = "none", "handles", "kkt", "all together"
Named = str | dict[str, str | float]
_COUNTED: list[Named] = ["as_is"]


class Way(Record, frozen=True):
    """What is switched on in a run."""

    name: str
    filters: list[Named] = []
    handles: bool = False
    kkt: bool = False


class Set(Record, frozen=True, kw_only=True):
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


class Settings(Record, frozen=True, kw_only=True):
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


class Case(Record, frozen=True, kw_only=True):
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


class Results(Report[Settings, Case], frozen=True):
    """With the sets that were not there, and how cases compare."""

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


def measure(settings: Settings, say: Say) -> Results:
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
        say(f"{name} is left out: set {VARIABLE} to the folder that has it")
    cases: list[Case] = []
    results = Results(machine(), settings, 0.0, cases, missing)
    for one in settings.sets:
        for solver in settings.solvers if one.data not in missing else ():
            for case in _runs(settings, one, solver):
                cases.append(case)
                say(f"{case.data}, {case.solver}, {line_of(_columns(results), case)}")
    return msgspec.structs.replace(results, seconds=time.perf_counter() - began)


def _runs(settings: Settings, one: Set, solver: str) -> Iterator[Case]:
    for way in WAYS[solver]:
        if not settings.only or way.name in (NONE, *settings.only):
            job = job_of(settings, one, solver, way)
            # block by block it is always the same
            alike = solver == BLOCKS or way.name not in (NONE, ALL)
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
    found = objective_at(train, run.job.linear, run.model.table, l1)
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


# ---------------------------------------------------------------- showing it

AIM = (12.0, 6.0)  # times fewer to servers and to workers, all together
WITHIN = 1e-3  # of the objective without filters


def together(several: list[Results]) -> Results:
    """One of several; where two have the same set and solver, the later ones count."""
    if not several:
        raise Invalid("nothing to show: name what bench bytes --json wrote")
    found: dict[tuple[str, str], list[Case]] = {}
    for results in several:
        for cases in groups(results):
            found[cases[0].key] = cases
    cases = [case for one in found.values() for case in one]
    sets = {one.data: one for results in several for one in results.settings.sets}
    solvers = dict.fromkeys(solver for results in several for solver in results.settings.solvers)
    settings = msgspec.structs.replace(several[-1].settings, sets=tuple(sets.values()), solvers=tuple(solvers), only=())
    seconds = sum(one.seconds for one in several)
    return msgspec.structs.replace(several[-1], settings=settings, cases=cases, seconds=seconds)


def groups(results: Results) -> list[list[Case]]:
    """The cases of each set and solver."""
    keys = dict.fromkeys(case.key for case in results.cases)
    return [[case for case in results.cases if case.key == key] for key in keys]


def verdicts(results: Results) -> list[str]:
    """What all filters together reached, and what the KKT filter left out."""
    said = []
    for case in results.cases:
        name = f"{case.data}, {case.solver}"
        if case.way.name == ALL:
            to_servers, to_workers = results.ratios(case)
            off = results.off(case)
            held = to_servers >= AIM[0] and to_workers >= AIM[1] and abs(off) <= WITHIN
            said.append(
                f"{name}: all together {to_servers:.1f} times fewer to servers and {to_workers:.1f} to workers, objective "
                f"{off:+.3%} (aim: {AIM[0]:g}, {AIM[1]:g}, {WITHIN:.1%}: {'held' if held else 'MISSED'})"
            )
        if case.way.name == KKT and len(case.skipped) > 1:
            none = results.none(case)
            said.append(
                f"{name}: KKT leaves out {case.skipped[1]:.1%} of the keys at the first evaluation, {case.skipped[-1]:.1%} at the end; objective "
                f"{results.off(case):+.4%}, {case.nonzero:,} nonzeros ({none.nonzero:,} without)"
            )
    return said


def table(results: Results) -> Group:
    from rich.console import Group
    from rich.text import Text

    said = [f"left out, as {name} is not here" for name in results.missing] + verdicts(results)
    return Group(*(_table(results, cases) for cases in groups(results)), Text("\n".join(said)))


def _columns(results: Results) -> Columns:
    return (
        ("<filters", "{0.way.name}"),
        ("MB to servers", lambda case: f"{case.to_servers / 1e6:,.2f}"),
        ("x", lambda case: f"{results.ratios(case)[0]:.1f}"),
        ("MB to workers", lambda case: f"{case.to_workers / 1e6:,.2f}"),
        ("x", lambda case: f"{results.ratios(case)[1]:.1f}"),
        ("wire x", lambda case: "{:.1f}, {:.1f}".format(*results.wire_ratios(case))),
        ("objective", "{0.objective:.6f}"),
        ("off", lambda case: _off(results, case)),
        ("nonzero", "{0.nonzero:,}"),
        ("loss", "{0.loss:.4f}"),
        ("epochs", "{0.passes:.3g}"),
        ("s", "{0.seconds:.1f}"),
    )


def _table(results: Results, cases: list[Case]) -> Table:
    where = f"{results.settings.workers} workers, {results.settings.servers} servers"
    return sheet(
        f"{cases[0].data}, {cases[0].solver}: {where}",
        _columns(results),
        cases,
        "x: how many times fewer than 8-byte keys and 4-byte values; wire: with headers, against none",
    )


def _off(results: Results, case: Case) -> str:
    if case.way.name == NONE:
        return f"± {case.spread:.3%}" if case.spread else ""
    return f"{results.off(case):+.3%}"


def picture(results: Results) -> Figure:
    """Bytes by filter, a panel for each set and solver; the numbers are how many times fewer."""
    from shoal.views import axes as draw

    found = groups(results)
    solvers = list(dict.fromkeys(cases[0].solver for cases in found))
    sets = list(dict.fromkeys(cases[0].data for cases in found))
    most = {solver: max(len(cases) for cases in found if cases[0].solver == solver) for solver in solvers}
    figure = draw.canvas(0.9 + sum(0.6 + 0.36 * count for count in most.values()), max(5.2, 3.7 * len(sets)))
    ratios = [count + 1 for count in most.values()]
    panels = figure.subplots(len(solvers), len(sets), squeeze=False, height_ratios=ratios)
    for axes in panels.flat:
        axes.set_visible(False)
    for cases in found:
        solver = cases[0].solver
        names = list(dict.fromkeys(case.way.name for case in results.cases if case.solver == solver))
        axes = panels[solvers.index(solver)][sets.index(cases[0].data)]
        axes.set_visible(True)
        _panel(axes, results, cases, names, named=cases[0].data == sets[0])
    best = max(max(results.ratios(case)) for cases in found for case in cases)
    below = "Bytes of keys and values. A number says how many times fewer\nthan 8-byte keys and 4-byte values."
    draw.headline(figure, f"Filters send up to {best:,.0f} times fewer bytes")
    draw.legend(figure, loc="outside lower center", ncols=2, title=below, title_fontsize=9)
    return figure


def _panel(axes: Axes, results: Results, cases: list[Case], names: list[str], named: bool) -> None:
    """Points, not bars: a log axis has no zero for a bar to begin at."""
    from shoal.views import axes as draw
    from shoal.views.axes import INK, MARKERS, SERIES

    for case in cases:
        row = names.index(case.way.name)
        both = zip((case.to_servers, case.to_workers), results.ratios(case), ("to servers", "to workers"), strict=True)
        for side, (size, ratio, label) in enumerate(both):
            at = row + 0.4 * side - 0.2
            axes.plot([size], [at], MARKERS[side], color=SERIES[side], label=label if row == 0 else None)
            axes.annotate(
                f"{ratio:.1f}", (size, at), (7, 0), textcoords="offset points", va="center", fontsize=7.5, color=INK
            )
    sizes = [size for case in cases for size in (case.to_servers, case.to_workers)]
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 3, max(sizes) * 4)
    draw.row_names(axes, names if named else [""] * len(names), size=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda size, _: f"{size / 1e6:,g} MB")
    draw.tidy(axes, grid="both")
    draw.titled(axes, f"{cases[0].data}, {'block-proximal' if cases[0].solver == BLOCKS else 'FTRL'}")


BENCH = Bench(
    help="Training with each filter alone and with all together: bytes both ways, and what that does to the objective.",
    quick_help="10,000 made-up rows: seconds, and no figures to quote.",
    measure=measure,
    table=table,
    options=(
        Option("rows", "Of clicks.  [default: 2,000,000]", click.IntRange(1_000)),
        Option(
            "data",
            "These sets of rcv1, criteo_tb and clicks.  [default: all that are here]",
            metavar="A,B",
            parse=names,
        ),
        Option("solver", "Only this one.  [default: both]", click.Choice(["ftrl", "block-proximal"])),
        Option(
            "only",
            "These ways, such as int8,kkt; none is always among them.  [default: all]",
            metavar="A,B",
            parse=names,
        ),
    ),
    picture=picture,
    load=lambda paths: together([read_results(path, Results) for path in paths]),
    choose=chosen,
)
