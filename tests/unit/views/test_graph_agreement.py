"""The distance between models is measured, drawn and described."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import RunEvent
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.topology import Graph
from shoal.views import event_line, graph, summary_figures
from shoal.views.explain import of_one
from shoal.views.plots import loss
from shoal.views.report_sections import sections
from shoal.views.run_record import RunRecord, tell
from shoal.views.summary_figures import spread


def run(story: Any, distances: Sequence[float], rounds: bool = True, name: str = "ring") -> list[RunEvent]:
    links = Gossip(topology=name).graph(8, 0)  # type: ignore[arg-type]
    events: list[RunEvent] = [replace(story.started(8, 0), strategy="gossip")]
    events.append(links.event(0.0, [f"worker-{i}" for i in range(8)]))
    for at, distance in enumerate(distances):
        told = {"best": 0.5 - 0.01 * at, "worst": 0.7 - 0.01 * at, "distance": distance}
        told |= {"rounds": float(at)} if rounds else {}
        events.append(replace(story.evaluated(at, at / 2, at / 4, 0.6 - 0.01 * at), spread=told, workers=8))
    return events


def told(story: Any, distances: Sequence[float], **how: Any) -> RunRecord:
    return tell("one", run(story, distances, **how))


def test_a_picture_has_the_measured_line_and_the_predicted_one_where_models_began_apart(story: Any) -> None:
    figure = graph.picture(told(story, [0.8**at for at in range(20)]).run)
    assert figure is not None
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    assert list(lines) == ["if nobody learned: 0.805 of it left by a round", "measured"]
    predicted = lines["if nobody learned: 0.805 of it left by a round"].get_ydata()
    assert predicted[-1] == pytest.approx(0.8047**19, rel=0.01)  # type: ignore[index]
    assert figure.axes[0].get_xlabel() == "rounds" and figure.axes[0].get_yscale() == "log"


def test_models_that_began_as_one_have_no_prediction(story: Any) -> None:
    figure = graph.picture(told(story, [0.0, 0.2, 0.3, 0.25]).run)
    assert figure is not None and [line.get_label() for line in figure.axes[0].lines] == ["measured"]


def test_without_rounds_the_distance_is_over_passes(story: Any) -> None:
    figure = graph.picture(told(story, [0.1, 0.2], rounds=False).run)
    assert figure is not None and figure.axes[0].get_xlabel() == "epochs"
    assert graph.picture(told(story, [0.0, math.nan]).run) is None


def test_a_report_shows_the_graph_and_the_distance_and_says_what_it_means(story: Any) -> None:
    one = told(story, [0.0, 0.4, 0.1, 0.1])
    found = {section.title: section for section in sections([one])}
    assert [picture.name for picture in found["Who hears whom"].pictures] == ["graph-one", "distance-one"]
    text = " ".join(of_one(one))
    assert "their mean, which no worker has" in text
    assert "that of the best worker 0.4700, that of the worst 0.6700" in text
    assert "They are 0.1 from it, and were 0.4 at most." in text
    assert "a hundredth of a distance would be left after 21 rounds, if nobody learned meanwhile" in text


def test_a_graph_in_pieces_is_named_as_the_reason(story: Any) -> None:
    events = run(story, [0.5, 0.5])
    apart = Graph("file", 8, [(0, 1)]).event(0.0, [str(i) for i in range(8)])
    text = graph.seen(tell("one", [events[0], apart, *events[2:]]))
    assert "The graph is in 7 pieces, which do not exchange models and never agree." in text
    assert "as far as they ever were" in text


def test_a_distance_that_falls_slowly_is_not_as_far_as_ever(story: Any) -> None:
    text = graph.seen(told(story, [0.0599, 0.0565, 0.0531, 0.0504, 0.0482]))
    assert "They are 0.0482 from it, and were 0.0599 at most." in text


def test_of_those_who_meet_two_at_a_time_no_rounds_are_predicted(story: Any) -> None:
    links = Gossip().graph(8, 0)
    pairs = links.event(0.0, [f"worker-{i}" for i in range(8)], pairs=True, rows="rows by label")
    assert event_line.linked(pairs).endswith("spectral gap 0.195, two meet at a time; rows by label")
    events = run(story, [0.5, 0.4], rounds=False)
    text = graph.seen(tell("one", [events[0], pairs, *events[2:]]))
    assert "Two meet at a time" in text and "rounds" not in text


def test_who_is_gone_is_not_counted(story: Any) -> None:
    left = Gossip().graph(4, 0).without(1).event(1.0, list("abcd"), "b is gone")
    assert event_line.linked(left).startswith("ring of 3 workers with 2 links")


def test_other_runs_say_nothing_of_it(story: Any) -> None:
    one = tell("one", list(story.run()))
    assert graph.seen(one) == "" and graph.section(one, "") is None and graph.picture(one.run) is None


def test_the_loss_picture_has_a_band_from_the_best_to_the_worst(story: Any) -> None:
    axes = loss(run(story, [0.1, 0.2, 0.3])).axes[0]
    assert "each worker's own, best to worst" in [text.get_text() for text in axes.get_legend().get_texts()]  # type: ignore[union-attr]
    plain = loss(story.run()).axes[0].get_legend()
    assert plain is not None and not any("best to worst" in text.get_text() for text in plain.get_texts())


def test_an_evaluation_says_how_unlike_the_models_are(story: Any) -> None:
    event = replace(
        story.evaluated(1, 1.0, 1.0, 0.5), metrics={}, spread={"best": 0.4, "worst": 0.7, "distance": 0.0123}
    )
    assert event_line.evaluation(event) == "test loss 0.5000  each 0.4000 to 0.7000, 0.0123 from the mean  best"
    odd = replace(event, spread={"best": math.nan, "worst": math.inf, "distance": math.nan, "rounds": -1})
    assert "each nan to inf, nan from the mean" in event_line.evaluation(odd)
    assert "each" not in event_line.evaluation(replace(event, spread={}))


def test_a_summary_has_the_spread_of_the_model_that_was_kept(story: Any) -> None:
    events = run(story, [0.1, 0.2, 0.3])
    assert spread(0.59, events)["distance"] == 0.2
    assert spread(None, events) == {} == spread(0.13, list(story.run()))
    said = summary_figures.models(spread(0.59, events))
    assert said.endswith("test losses of 0.4900 to 0.6900, and are 0.2 from it after 1 round")
    assert summary_figures.models(spread(0.59, events) | {"pieces": 2.0}).endswith(
        "; they are in 2 pieces, and never agree"
    )
    assert summary_figures.models({"best": 0.5, "worst": 0.5, "distance": 0.0}) == "every worker has this model"
    assert summary_figures.models({}) == "" == summary_figures.models(None)


def test_several_happenings_keep_the_last_graph(story: Any) -> None:
    first, last = (Graph("file", 4, links).event(1.0, list("abcd")) for links in ([(0, 1)], [(0, 1), (1, 2), (2, 3)]))
    said = event_line.summary([first, story.gone(1.0, "worker-3"), last])
    assert "worker-3 gone" in said and "with 3 links" in said and "with 1 links" not in said
