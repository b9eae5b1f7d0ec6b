"""How soon workers that gossip agree, against what their graph predicts (S3-10).

Real runs in which nobody learns: every worker begins with weights of its own, steps have size 0,
and the distance of all models from their mean is measured after each round. The gap is 1 - the
share of the distance that a round leaves. It is predicted by the second eigenvalue of the graph's
weights, and measured by a line through the logarithms of the distances between 1/10 and 1/100,000
of the first (before that other modes fall too, after that there is rounding).

    complete        no gap to measure: after one round all must be the same, to rounding
    two rings       in two pieces: the distance between them must stay
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from benchmarks.harness import Bench, Option, Record, Report, Say, quiet, report, sheet
from shoal.errors import Invalid
from shoal.events import Evaluated
from shoal.job import Job
from shoal.run.run import execute
from shoal.strategies.gossip import Gossip

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

WITHIN = 0.1  # of the predicted gap: what we promise
SAME = 1e-6  # of the first distance: nothing but rounding
FALLEN = (1e-1, 1e-5)  # of the first distance: only the slowest mode is left, and no rounding
MORE = 6  # rounds after the distance should have fallen so far
FLOOR = 1e-8  # of the first distance: what is below is drawn there
BATCH = 64
SLOTS = 64  # in a pass: so that every round of 4, 8, 16, ... workers has a slot for each
APART = "two rings"


class Settings(Record, frozen=True, kw_only=True):
    """Which graphs, and where."""

    topologies: tuple[str, ...] = ("ring", "torus", "star", "one-way", "exponential", "complete", APART)
    nodes: tuple[int, ...] = (4, 8, 16)
    how: Literal["processes", "threads"] = "processes"
    features: int = 5_000
    apart_rounds: int = 40  # of what is in pieces: there is nothing to wait for
    seed: int = 0


FULL = Settings()
QUICK = Settings(nodes=(4, 8), topologies=("ring", "torus", "star", "complete", APART), how="threads", features=1_000)


class Case(Record, frozen=True, kw_only=True):
    """One graph, and what came of it."""

    topology: str
    nodes: int
    links: int
    pieces: int
    predicted: float  # gap
    measured: float | None  # None: there was nothing to fit a line to
    distances: list[float]  # before the first round, and after each
    seconds: float

    @property
    def ratio(self) -> float | None:
        return None if self.measured is None or not self.predicted else self.measured / self.predicted

    @property
    def left(self) -> list[float]:
        """Shares of the first distance."""
        return [one / self.distances[0] for one in self.distances]

    @property
    def kept(self) -> bool:
        """The promise of this kind of graph."""
        if self.pieces > 1:  # within pieces they agree, and from then on nothing changes
            middle, last = self.left[len(self.left) // 2], self.left[-1]
            return last > 0.01 and abs(last / middle - 1) < 0.01
        if self.predicted == 1:
            return self.left[1] < SAME
        return self.ratio is not None and abs(self.ratio - 1) <= WITHIN


Results = Report[Settings, Case]


def measure(settings: Settings = FULL, say: Say = quiet) -> Results:
    if not settings.topologies or not settings.nodes:
        raise Invalid("a benchmark needs at least one graph")
    if wrong := [n for n in settings.nodes if n < 2 or SLOTS % n or (APART in settings.topologies and n < 4)]:
        raise Invalid(f"nodes={wrong[0]}: needs 4, 8, 16, 32 or 64, so that in every round each has as much to do")
    return report(Results, settings, _cases(settings), say, COLUMNS)


def _cases(settings: Settings) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as folder:
        for topology, nodes in itertools.product(settings.topologies, settings.nodes):
            yield _case(settings, topology, nodes, Path(folder))


def _case(settings: Settings, topology: str, nodes: int, folder: Path) -> Case:
    named = {"topology": topology}
    if topology == APART:
        edges = folder / f"{nodes}.txt"
        edges.write_text(_two_rings(nodes))
        named = {"topology": "file", "edges": str(edges)}
    strategy = {"name": "gossip", **named, "start": "own", "allow_disconnected": topology == APART}
    graph = msgspec.convert(strategy, Gossip).graph(nodes, settings.seed)
    needed = graph.rounds(FALLEN[1])
    rounds = settings.apart_rounds if needed is None else math.ceil(needed) + MORE
    job = Job.of(
        {
            "data": {"source": "rcv1-like", "rows": BATCH * SLOTS, "features": settings.features, "batch": BATCH},
            "strategy": strategy,
            "update": {"rule": "sgd", "step": 0.0},
            "evaluate": {"every": nodes / SLOTS},
            "stop": {"steps": nodes * rounds},
            "launch": {"how": settings.how},
            "workers": nodes,
            "seed": settings.seed,
            "trace": {"spans": 0},
        }
    )
    began = time.perf_counter()
    points = _points([event for event in execute(job).events if isinstance(event, Evaluated)], rounds)
    left = decay(points)
    return Case(
        topology=topology,
        nodes=nodes,
        links=len(graph.links),
        pieces=len(graph.parts),
        predicted=graph.gap,
        measured=None if left is None else 1 - left,
        distances=[distance for _, distance in points],
        seconds=round(time.perf_counter() - began, 2),
    )


def decay(found: list[tuple[float, float]]) -> float | None:
    """The share of the distance that one round leaves, fitted; None: it fell too little."""
    import numpy as np

    first = found[0][1] if found else 0.0
    most, least = (share * first for share in FALLEN)
    used = [(at, math.log(distance)) for at, distance in found if least <= distance <= most and distance > 0]
    if len(used) < 2 or used[0][0] == used[-1][0]:
        return None
    slope = np.polyfit([at for at, _ in used], [value for _, value in used], 1)[0]
    return float(math.exp(slope))


def _points(judged: list[Evaluated], rounds: int) -> list[tuple[float, float]]:
    """The distance after every round; an error if one is missing, as the line would be wrong."""
    found = {event.spread["rounds"]: event.spread["distance"] for event in judged}
    if sorted(found) != [float(one) for one in range(rounds + 1)]:
        raise Invalid(f"{len(found):,} of {rounds + 1:,} rounds were judged: report this with the settings")
    if not found[0.0]:
        raise Invalid("all models were the same from the start: report this with the settings")
    return sorted(found.items())


def _two_rings(nodes: int) -> str:
    half = nodes // 2
    rings = [range(half), range(half, nodes)]
    return "".join(f"{ring[i]} {ring[(i + 1) % len(ring)]}\n" for ring in rings for i in range(len(ring)))


COLUMNS = (
    ("<graph", "{0.topology}"),
    ("workers", "{0.nodes:,}"),
    ("links", "{0.links:,}"),
    ("predicted gap", "{0.predicted:.4f}"),
    ("measured", lambda case: _number(case.measured, "{:.4f}")),
    ("ratio", lambda case: _number(case.ratio, "{:.3f}")),
    ("rounds", lambda case: f"{len(case.distances) - 1:,}"),
    ("left, 1 round", "{0.left[1]:.2e}"),
    ("left", lambda case: f"{case.left[-1]:.2e}"),
    ("kept", lambda case: "yes" if case.kept else "no"),
)


def table(results: Results) -> Table:
    return sheet(
        f"how soon {results.settings.how} that gossip agree, {results.machine}",
        COLUMNS,
        results.cases,
        f"left: the share of the first distance, after one round and after all. kept: the measured gap is within {WITHIN:.0%} "
        f"of the predicted one; complete: below {SAME:g} after one round; in pieces: the distance stays",
    )


def picture(results: Results) -> Figure:
    """A panel for each graph: measured as points, predicted as lines from the same start."""
    from shoal.views import axes as draw
    from shoal.views.axes import SERIES

    kinds = list(dict.fromkeys(case.topology for case in results.cases))
    rows = -(-len(kinds) // 3)
    figure = draw.canvas(2.9 * rows + 0.4, 9.6)
    panels = figure.subplots(rows, 3, squeeze=False, sharey=True).flatten()
    for panel, kind in zip(panels, kinds, strict=False):
        for case, color in zip([case for case in results.cases if case.topology == kind], SERIES, strict=False):
            x, y = list(range(len(case.left))), [max(left, FLOOR) for left in case.left]
            panel.plot(x, y, ".", color=color, markersize=4, label=f"{case.nodes} workers, gap {case.predicted:.3f}")
            if 0 < case.predicted < 1:
                panel.plot(x, [(1 - case.predicted) ** at for at in x], "-", color=color, linewidth=0.9)
        draw.titled(panel, kind)
        panel.set(yscale="log", ylim=(FLOOR / 2, 3), xlabel="rounds")
        draw.legend(panel, fontsize=7.5, loc="lower left" if kind == APART else "upper right")
        draw.tidy(panel)
    for panel in panels[len(kinds) :]:
        panel.set_visible(False)
    panels[0].set_ylabel("share of the first distance")
    said = f"Points: measured, those of {FLOOR:g} are at or below it. Lines: predicted by the second eigenvalue, from the start."
    draw.headline(figure, "How soon models agree: measured (points), and predicted by the graph (lines)", said, size=11)
    return figure


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


BENCH = Bench(
    help="Workers that gossip on ring, torus, star and others: how soon all models agree, against what the graph predicts.",
    quick_help="In threads, up to 8 workers.",
    measure=measure,
    table=table,
    options=(Option("how", "[default: processes]", click.Choice(["threads", "processes"])),),
    picture=picture,
)
