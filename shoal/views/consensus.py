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
from shoal.views.plots import curve
from shoal.views.run_record import RunMetrics, RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = tuple[float, float]  # rounds (or epochs), distance

STEPS = 50  # of a predicted curve
CAPTION = " The test loss of workers that each have a model is that of the mean of all."


def points(run: RunMetrics) -> tuple[str, list[Point]]:
    """Distances over rounds; over epochs where no rounds are recorded."""
    judged = [event for event in run.evaluations if math.isfinite(event.spread.get("distance", math.nan))]
    if judged and all("rounds" in event.spread for event in judged):
        return "rounds", [(event.spread["rounds"], event.spread["distance"]) for event in judged]
    return "epochs", [(event.passes, event.spread["distance"]) for event in judged]


def graphs(run: RunMetrics) -> list[Linked]:
    """The graph at first, and after every loss of a worker."""
    return [event for event in run.happened if isinstance(event, Linked)]


def picture(run: RunMetrics) -> Figure | None:
    """The distance over rounds, and the prediction of the graph without learning."""
    over, found = points(run)
    drawn = [(at, distance) for at, distance in found if distance > 0]
    if not drawn:
        return None
    figure, (axes,) = draw.stack([3.2])
    x, y = zip(*drawn, strict=True)
    if predicted := _predicted(run, over, found):
        label = f"if nobody learned: {1 - graphs(run)[0].gap:.3f} of it left by a round"
        axes.plot(*zip(*predicted, strict=True), "--", color=SERIES[1], linewidth=1.2, label=label)
    curve(axes, x, y, SERIES[0], "measured")
    if not draw.log_if_steep(axes.yaxis, y):
        axes.set_ylim(bottom=0)
    axes.set(ylabel="distance from the mean", xlabel=over)
    draw.legend(axes)
    draw.tidy(axes)
    return figure


def _predicted(run: RunMetrics, over: str, found: Sequence[Point]) -> list[Point]:
    """Only where models differ from the start; what learning adds is not predicted."""
    told = graphs(run)
    if over != "rounds" or len(found) < 2 or not told or found[0][1] <= 0 or not 0 <= told[0].gap < 1:
        return []
    (start, first), last = found[0], found[-1][0]
    second, least = 1 - told[0].gap, min(distance for _, distance in found if distance > 0)
    end = last if second >= 1 else min(last, start + math.log(least / first / 10) / math.log(second))
    at = [start + (end - start) * step / STEPS for step in range(STEPS + 1)]
    return [(one, first * second ** (one - start)) for one in at]


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
    last, spread = judged[-1], judged[-1].spread
    said = "Every worker has a model of its own: the loss told here is that of their mean, which no worker has."
    if {"best", "worst"} <= spread.keys():
        said += (
            f" At the end it was {format.loss(last.test_loss)}, that of the best worker {format.loss(spread['best'])},"
        )
        said += f" that of the worst {format.loss(spread['worst'])}."
    distances = [distance for _, distance in points(told.run)[1]]
    now, most = distances[-1], max(distances)
    if now == 0:
        said += " All models are the same."
    elif most <= now:
        said += f" They are {format.distance(now)} from it, which is as far as they ever were."
    else:
        said += f" They are {format.distance(now)} from it, and were {format.distance(most)} at most."
    graph = graphs(told.run)[-1:]
    return said + (f" {_agreement(graph[0])}" if graph else "").rstrip()


def _agreement(event: Linked) -> str:
    if event.rounds is None:
        return (
            f"The graph is in {format.many(len(event.parts), 'piece')}, which do not hear each other and never agree."
        )
    if event.rounds <= 0:
        return ""
    if event.pairs:
        return f"Two meet at a time, whenever they are ready (spectral gap of the graph {event.gap:.3g})."
    return (
        f"By its graph (spectral gap {event.gap:.3g}) a hundredth of a distance would be left after "
        f"{format.rounds(event.rounds)}, if nobody learned meanwhile."
    )
