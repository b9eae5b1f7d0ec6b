"""What ``bench hogwild`` found, as a table, as sentences and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.harness import Bench, Option, load, numbers
from benchmarks.hogwild import FULL as FULL
from benchmarks.hogwild import QUICK as QUICK
from benchmarks.hogwild import Case, Goal, Results, measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table


def verdicts(results: Results) -> list[str]:
    """For each shape, who was best on one thread and who with all."""
    found = []
    for goal in results.goals:
        shape = goal.shape.name
        threads = max(case.threads for case in results.cases)
        said = f"{shape}: one thread is at {goal.loss:.4f} after {goal.seconds:.3f} s ({goal.serial})"
        best = results.best(shape, threads)
        if threads > 1 and best is not None:
            faster = results.speedup(best)
            said += f"; {threads} threads {faster:.1f} times as soon ({best.name}, {best.variant.rule})"
        elif threads > 1:
            said += f"; with {threads} threads nobody"
        found.append(said)
    return found


def table(results: Results) -> Table:
    from rich import box
    from rich.table import Table

    shown = Table(
        box=box.SIMPLE_HEAD,
        title=f"Hogwild by threads, {results.cores} cores of {results.machine}",
        caption="\n".join(
            [
                *verdicts(results),
                "x: against the best of one thread on that shape. lost: of the canary's updates. -: never at the loss",
            ]
        ),
    )
    for name in ("way", "rule", "threads", "step", "M rows/s", "x rows/s", "s to loss", "x", "M rows to it", "lost"):
        shown.add_column(name, justify="left" if name in ("way", "rule") else "right", no_wrap=True)
    for goal in results.goals:
        shape = goal.shape
        told = f"{shape.rows:,} rows, {shape.features:,} features"
        shown.add_row(f"[bold]{shape.name}[/]", told, *[""] * 8)
        cases = [case for case in results.cases if case.shape == shape.name]
        for case in cases:
            alone = next(one for one in cases if (one.variant, one.threads) == (case.variant, 1))
            shown.add_row(*_row(results, case, alone))
        shown.add_section()
    return shown


def _row(results: Results, case: Case, alone: Case) -> list[str]:
    faster = results.speedup(case)
    return [
        case.name if case.threads == 1 else "",
        case.variant.rule if case.threads == 1 else "",
        f"{case.threads}",
        f"{case.step:g}",
        f"{case.rows_per_second / 1e6:.2f}",
        f"{case.rows_per_second / alone.rows_per_second:.2f}" if case.threads > 1 else "",
        "-" if case.seconds is None else f"{case.seconds:.3f}",
        "-" if faster is None else f"{faster:.2f}",
        "-" if case.rows is None else f"{case.rows / 1e6:.2f}",
        f"{case.lost:.1%}" if case.threads > 1 and case.lost else "",
    ]


def picture(results: Results) -> Figure:
    """The speedup by threads, both shapes side by side."""
    from matplotlib.lines import Line2D

    from shoal.views import axes as draw

    figure = draw.canvas(4.3, 8.4)
    panels = figure.subplots(1, len(results.goals), sharey=True, squeeze=False)[0]
    shades = dict(zip(names(results), draw.colors(len(names(results))), strict=True))
    for axes, goal in zip(panels, results.goals, strict=True):
        _panel(axes, results, goal, shades)
    panels[0].set_ylabel("times as fast to the loss\nas the best of one thread")
    handles = [Line2D([], [], color=color, marker="o", label=name) for name, color in shades.items()]
    below = "Full lines: SGD; dashed: AdaGrad. A way without a line never reached the loss."
    draw.headline(figure, _sentence(results), size=11)
    draw.legend(figure, handles, loc="outside lower center", ncols=4, fontsize=8, title=below, title_fontsize=8)
    return figure


def names(results: Results) -> list[str]:
    """The ways to train, each of which has a colour."""
    return list(dict.fromkeys(case.name for case in results.cases if case.variant.way not in ("serial", "sklearn")))


def _sentence(results: Results) -> str:
    known = [(speedup, case) for case in results.cases if case.threads > 1 and (speedup := results.speedup(case))]
    if not known:
        return "No way with several threads reached the loss"
    speedup, case = max(known, key=lambda pair: pair[0])
    return f"At most {speedup:.1f} times as fast as one thread: {case.name} with {case.threads} threads on {case.shape}"


def _panel(axes: Axes, results: Results, goal: Goal, shades: dict[str, str]) -> None:
    from shoal.views import axes as draw
    from shoal.views.axes import DASHES, INK, PALE

    cases = [case for case in results.cases if case.shape == goal.shape.name]
    counts = sorted({case.threads for case in cases})
    axes.plot(counts, counts, color=PALE, linewidth=1.0)
    axes.annotate("ideal", (counts[0], counts[0]), (6, 12), textcoords="offset points", fontsize=8, color=INK)
    for case in cases:
        line = [one for one in cases if one.variant == case.variant and one.seconds is not None]
        if case.threads > 1 or case.name not in shades or not line:
            continue
        speedups = [results.speedup(one) or 0.0 for one in line]
        style: dict[str, Any] = {"marker": "o", "markersize": 3.5, "linewidth": 1.4, "color": shades[case.name]}
        axes.plot([one.threads for one in line], speedups, DASHES[case.variant.rule == "adagrad"], **style)
    for case in cases:
        if case.variant == _rival(cases) and (level := results.speedup(case)):
            draw.reference(axes, level, "scikit-learn, one thread", ":", side="left")
    if results.cores in range(counts[0], counts[-1] + 1):
        axes.axvline(results.cores, color=INK, linewidth=0.7, linestyle="--")
        text = axes.text(results.cores, 0.98, f"{results.cores} cores ", transform=axes.get_xaxis_transform())
        text.set(ha="right", va="top", fontsize=8, color=INK)
    if counts[-1] > 2:
        draw.logarithmic(axes.xaxis, base=2)
        draw.logarithmic(axes.yaxis, base=2)
    axes.set_xticks(counts, [str(count) for count in counts], minor=False)
    axes.set_xlabel("threads")
    draw.titled(axes, f"{goal.shape.name}, to a loss of {goal.loss:.3f}")
    draw.tidy(axes)


def _rival(cases: list[Case]) -> object:
    """scikit-learn's better one."""
    theirs = [case for case in cases if case.variant.way == "sklearn" and case.seconds is not None]
    return min(theirs, key=lambda case: case.seconds or 0.0).variant if theirs else None


def draw(results: Results, path: Path) -> None:
    from shoal.views.axes import save

    save(picture(results), path)


BENCH = Bench(
    help="Does Hogwild still scale? Threads on one model by rows a second and by time to a loss, for every way and rule.",
    quick_help="Few rows and steps: seconds, and no figures to quote.",
    measure=measure,
    table=table,
    options=(
        Option("rows", "Of the smaller set.  [default: 150,000 a core]", click.IntRange(2_000)),
        Option(
            "threads",
            "Counts, with commas.  [default: 1,2,4,... up to the cores]",
            parse=lambda text: tuple(sorted(set(numbers(text)))),
        ),
        Option("repeat", "Runs of each case.  [default: 3]", click.IntRange(1)),
    ),
    draw=draw,
    load=lambda paths: load(paths[-1], Results),
)
