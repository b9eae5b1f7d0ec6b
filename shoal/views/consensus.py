"""How far the models of gossiping workers are from their mean: figures, a picture, words.

The distance is the root of the mean, over all workers, of the squared distance of their weights
from the mean of all weights. Without learning, a round of averaging leaves a share of it: the
second eigenvalue of the mixing matrix. Learning moves models apart again, so that in training
the distance stays where both are in balance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from shoal.events import Evaluated, Linked
from shoal.views import axes as draw
from shoal.views import format, graph
from shoal.views.axes import SERIES, pictures
from shoal.views.page import PictureSection, Section
from shoal.views.plots import FEW
from shoal.views.run_record import RunMetrics, RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]  # rounds (or epochs), distance

FALLEN = (1e-1, 1e-5)  # of the first distance: only the slowest mode is left, and no rounding
CAPTION = " The test loss of workers that each have a model is that of the mean of all."


def points(run: RunMetrics) -> tuple[str, list[Point]]:
    """Distances over rounds; over epochs where no rounds are recorded."""
    judged = [event for event in run.evaluations if math.isfinite(event.spread.get("distance", math.nan))]
    if judged and all("rounds" in event.spread for event in judged):
        return "rounds", [(event.spread["rounds"], event.spread["distance"]) for event in judged]
    return "epochs", [(event.passes, event.spread["distance"]) for event in judged]


def decay(found: Sequence[Point]) -> float | None:
    """The share of the distance that one round leaves, fitted; None: it fell too little."""
    import numpy as np

    first = found[0][1] if found else 0.0
    most, least = (share * first for share in FALLEN)
    used = [(at, math.log(distance)) for at, distance in found if least <= distance <= most and distance > 0]
    if len(used) < 2 or used[0][0] == used[-1][0]:
        return None
    slope = np.polyfit([at for at, _ in used], [value for _, value in used], 1)[0]
    return float(math.exp(slope))


def graphs(run: RunMetrics) -> list[Linked]:
    """The graph at first, and after every loss of a worker."""
    return [event for event in run.happened if isinstance(event, Linked)]


def picture(run: RunMetrics) -> Figure | None:
    """The distance over rounds, and the prediction of the graph without learning."""
    over, found = points(run)
    drawn = [(at, distance) for at, distance in found if distance > 0]
    if not drawn:
        return None
    figure = draw.canvas(3.2)
    axes = figure.subplots()
    x, y = zip(*drawn, strict=True)
    if predicted := _predicted(run, over, found):
        axes.plot(*zip(*predicted, strict=True), "--", color=SERIES[1], linewidth=1.2, label=_label(graphs(run)[0]))
    (line,) = axes.plot(x, y, "-", color=SERIES[0], marker="o" if len(drawn) <= FEW else None, label="measured")
    line.set(linewidth=1.5, markersize=4.5, markeredgecolor="white", markeredgewidth=0.6)
    if not draw.log_if_steep(axes.yaxis, y):
        axes.set_ylim(bottom=0)
    axes.set(ylabel="distance from the mean", xlabel=over)
    draw.legend(axes)
    draw.tidy(axes)
    return figure


def _predicted(run: RunMetrics, over: str, found: Sequence[Point]) -> list[Point]:
    """Only where models differ from the start; what learning adds is not predicted."""
    told = graphs(run)
    if over != "rounds" or len(found) < 2 or not told or found[0][1] <= 0 or not 0 <= told[0].gap <= 1:
        return []
    (start, first), last = found[0], found[-1][0]
    second, least = 1 - told[0].gap, min((distance for _, distance in found if distance > 0), default=first)
    if second <= 0:
        return []
    end = last if second >= 1 else min(last, start + math.log(least / first / 10) / math.log(second))
    steps = 50
    at = [start + (end - start) * step / steps for step in range(steps + 1)]
    return [(one, first * second ** (one - start)) for one in at]


def _label(event: Linked) -> str:
    return f"if nobody learned: {1 - event.gap:.3f} of it left by a round"


def columns(events: Sequence[Evaluated]) -> dict[str, Callable[[Evaluated], str]]:
    """Columns for the table of evaluations; none where all workers share a model."""
    said = {
        "best worker": lambda event: format.loss(event.spread.get("best")),
        "worst worker": lambda event: format.loss(event.spread.get("worst")),
        "distance": lambda event: format.distance(event.spread["distance"]) if "distance" in event.spread else "-",
    }
    return said if any(event.spread for event in events) else {}


def section(one: RunRecord, of: str) -> Section | None:
    """The section on the graph and the agreement of its workers."""
    told = graphs(one.run)
    drawn: list[PictureSection] = []
    if told:
        drawn += pictures(
            f"graph-{one.name}",
            lambda: graph.draw(told[-1], before=told[0]),
            f"{'An arrow goes to who hears' if told[-1].directed else 'A line joins two who hear each other'}."
            f"{f' Who learns from which: {format.clean(told[0].rows)}.' if told[0].rows else ''}",
        )
    if any("distance" in event.spread for event in one.run.evaluations):
        drawn += pictures(
            f"distance-{one.name}",
            lambda: picture(one.run),
            "How far models are from their mean: the root of the mean, over all workers, of the squared distance.",
        )
    return Section(f"Who hears whom{of}", [], drawn) if told else None


def seen(told: RunRecord) -> str:
    """The finding about the models' distance."""
    judged = [event for event in told.run.finite if "distance" in event.spread]
    if not judged:
        return ""
    last = judged[-1]
    said = "Every worker has a model of its own: the loss told here is that of their mean, which no worker has."
    if {"best", "worst"} <= last.spread.keys():
        said += (
            f" At the end it was {format.loss(last.test_loss)}, that of the best worker {format.loss(last.spread['best'])}, that of "
            f"the worst {format.loss(last.spread['worst'])}."
        )
    return f"{said} {_moved(told.run)} {_graph(told.run)}".strip()


def _moved(run: RunMetrics) -> str:
    """The first and last distance, in words."""
    _, found = points(run)
    last = found[-1][1]
    if last == 0:
        return "All models are the same."
    most = max(distance for _, distance in found)
    if most <= last:
        return f"They are {format.distance(last)} from it, which is as far as they ever were."
    return f"They are {format.distance(last)} from it, and were {format.distance(most)} at most."


def _graph(run: RunMetrics) -> str:
    told = graphs(run)
    if not told:
        return ""
    if told[-1].rounds is None:
        return f"The graph is in {format.many(len(told[-1].parts), 'piece')}, which do not hear each other and never agree."
    if told[-1].rounds <= 0:
        return ""
    if told[-1].pairs:
        return f"Two meet at a time, whenever they are ready (spectral gap of the graph {told[-1].gap:.3g})."
    return (
        f"By its graph (spectral gap {told[-1].gap:.3g}) a hundredth of a distance would be left after "
        f"{format.rounds(told[-1].rounds)}, if nobody learned meanwhile."
    )
