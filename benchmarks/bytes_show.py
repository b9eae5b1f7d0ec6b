"""What ``bench bytes`` found, as tables, as sentences and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from benchmarks.bytes import ALL, BLOCKS, KKT, NONE, Case, Results, chosen, measure
from benchmarks.bytes import FULL as FULL
from benchmarks.bytes import QUICK as QUICK
from benchmarks.harness import Bench, Option, load, names
from shoal.errors import Invalid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Group
    from rich.table import Table

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


def _table(results: Results, cases: list[Case]) -> Table:
    from rich import box
    from rich.table import Table

    first = cases[0]
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=f"{first.data}, {first.solver}: {results.settings.workers} workers, {results.settings.servers} servers",
        caption="x: how many times fewer than 8-byte keys and 4-byte values; wire: with headers, against none",
    )
    for name in (
        "filters",
        "MB to servers",
        "x",
        "MB to workers",
        "x",
        "wire x",
        "objective",
        "off",
        "nonzero",
        "loss",
        "passes",
        "s",
    ):
        shown.add_column(name, justify="left" if name == "filters" else "right", no_wrap=True)
    for case in cases:
        to_servers, to_workers = results.ratios(case)
        wire = results.wire_ratios(case)
        shown.add_row(
            case.way.name,
            _megabytes(case.to_servers),
            f"{to_servers:.1f}",
            _megabytes(case.to_workers),
            f"{to_workers:.1f}",
            f"{wire[0]:.1f}, {wire[1]:.1f}",
            f"{case.objective:.6f}",
            _off(results, case),
            f"{case.nonzero:,}",
            f"{case.loss:.4f}",
            f"{case.passes:.3g}",
            f"{case.seconds:.1f}",
        )
    return shown


def _off(results: Results, case: Case) -> str:
    if case.way.name == NONE:
        return f"± {case.spread:.3%}" if case.spread else ""
    return f"{results.off(case):+.3%}"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.2f}"


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


def draw(results: Results, path: Path) -> None:
    from shoal.views.axes import save

    save(picture(results), path)


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
    draw=draw,
    load=lambda paths: together([load(path, Results) for path in paths]),
    choose=chosen,
)
