"""The log of a run is short: tens of lines for an hour, without missing anything important."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.events import (
    Delayed,
    Gone,
    Handed,
    Joined,
    Leaving,
    Linked,
    Progress,
    RunEvent,
    Saved,
    Shared,
    Spans,
    Split,
    Stopped,
    Warned,
)
from shoal.views.lines import EventLines


def told(events: Any, verbosity: int = 1) -> list[str]:
    lines = EventLines(verbosity)
    return [line for event in events for line in lines.take(event)]


def test_lines_read_like_sentences_of_a_log(story: Any) -> None:
    lines = told(
        [
            story.started(),
            story.evaluated(0, 0.0, 0.0, 0.6931, metrics={"accuracy": 0.5, "auc": None}),
            story.progress(12.0, 3.2),
            story.evaluated(1, 14.0, 4.0, 0.1422),
            story.gone(15.0, "worker-3", "its process ended with signal 9"),
            story.evaluated(2, 15.5, 5.0, 0.1431, best=False),
            Stopped(seconds=16.0, why="5 passes are done"),
        ]
    )
    assert lines == [
        "rcv1, logistic, bounded: 20,242 rows (and 5,000 to test) of 47,236 features, 4 workers x 2 servers on 2 cores",
        "   0.0 s  epoch 0    test loss 0.6931  accuracy 0.5000  auc -  best",
        "    12 s  epoch 3.2  5,398 rows/s  train loss 0.1312  4 workers",
        "    14 s  epoch 4    test loss 0.1422  accuracy 0.9478  auc 0.9880  best",
        "    15 s  worker-3 gone: its process ended with signal 9; 12 slots reassigned",
        "    16 s  epoch 5    test loss 0.1431  accuracy 0.9478  auc 0.9880",
        "    16 s  stopped: 5 passes are done; best test loss 0.1422 at epoch 4",
    ]


def test_the_graph_is_told_before_anything_is_learned_whatever_else_is_to_be_said(story: Any) -> None:
    linked = Linked(
        seconds=0, topology="ring", nodes=["a", "b"], links=[(0, 1)], directed=False, gap=1, rounds=1, parts=[[0, 1]]
    )
    warned = [Warned(seconds=0.0, what=f"{number} is odd") for number in (1, 3)]
    assert "ring of 2 workers" in told([story.started(), *warned, linked])[-1]


def test_a_figure_that_is_not_known_yet_is_left_out() -> None:
    nothing = Progress(seconds=1.0, passes=0.0, steps=0, examples=0, train_loss=None, workers=2)
    something = Progress(seconds=3.0, passes=0.5, steps=10, examples=1_000, train_loss=0.5, workers=2)
    assert told([nothing, something]) == [
        "   1.0 s  epoch 0    2 workers",
        "   3.0 s  epoch 0.5  500 rows/s  train loss 0.5000  2 workers",
    ]


def test_progress_is_told_at_doubling_intervals(story: Any) -> None:
    lines = told(story.progress(at / 4, at / 100) for at in range(4 * 70))
    assert [line.split()[0] for line in lines] == ["1.0", "3.0", "7.0", "15", "31", "63"]


@pytest.mark.parametrize("evaluations", [2, 61, 3_601])
def test_an_hour_takes_less_than_eighty_lines(story: Any, evaluations: int) -> None:
    events = list(story.run(3_600, passes=100, records=4 * 3_600, evaluations=evaluations))
    lines = told(events)
    assert 20 < len(lines) < 80
    assert any("worker-3 gone" in line for line in lines)
    assert any("worker-4 joined" in line for line in lines)
    assert "epoch 100" in lines[-2]  # the last evaluation is always there
    assert "stopped" in lines[-1]


def test_an_hour_of_coming_and_going_takes_less_than_eighty_lines_and_counts_everybody(story: Any) -> None:
    events: list[Any] = [story.started()]
    for at in range(1, 3_600):
        events += [
            story.progress(at, at / 36),
            story.gone(at, f"worker-{at}", slots=1),
            story.joined(at, f"worker-{at}"),
        ]
    lines = told([*events, Stopped(seconds=3_600, why="done")])
    assert len(lines) < 80
    again = [int(line.split(" reassigned")[0].split()[-2].replace(",", "")) for line in lines if "reassigned" in line]
    assert sum(again) == 3_599


def test_after_a_quiet_time_a_loss_is_told_at_once(story: Any) -> None:
    lines = EventLines()
    said = [line for at in range(1, 100) for line in lines.take(story.gone(at, f"worker-{at}"))]
    assert len(said) == 6  # the first at once, then after 2, 4, 8, ... s
    said = lines.take(story.gone(400, "worker-7"))
    assert said == ["   400 s  37 workers (worker-64, worker-65, worker-66 and 34 more) gone; 444 slots reassigned"]
    assert lines.take(story.gone(401, "worker-8")) == []  # this time it was not quiet before


def test_who_is_there_from_the_start_is_not_told_one_by_one(story: Any) -> None:
    assert told([story.joined(0.0, f"worker-{at}") for at in range(100)]) == []
    assert told([Warned(seconds=0.0, what="5 workers on 2 cores")]) == ["   0.0 s  warning: 5 workers on 2 cores"]


def test_what_was_held_back_is_told_at_the_end_and_only_once(story: Any) -> None:
    lines = EventLines()
    lines.take(story.evaluated(0, 0.0, 0, 0.7))
    assert lines.take(story.evaluated(1, 0.5, 1, 0.6)) == []
    lines.take(story.joined(0.5, "worker-4"))
    assert lines.take(story.joined(0.6, "worker-5")) == []
    assert [line.split("  ")[-1] for line in lines.end()] == ["worker-5 joined", "best (at 0.5 s)"]
    assert lines.end() == []


def test_a_note_on_a_new_subject_is_told_at_once_and_its_figures_now_and_then() -> None:
    lines = EventLines()
    said = [line for at in range(1_000) for line in lines.note(at / 100, f"packing rcv1 ... {at * 1_000:,} rows")]
    assert said[:2] == ["packing rcv1 ... 0 rows", "packing rcv1 ... 100,000 rows"]
    assert len(said) == 4  # at 0, 1, 3 and 7 s
    assert lines.note(10.0, "compiling kernels") == ["compiling kernels"]


def test_a_rollback_makes_no_negative_rate(story: Any) -> None:
    assert "rows/s" not in told([story.progress(2, 5), story.progress(5, 3)])[1]


# ---------------------------------------------------------------- verbosity


def busy(story: Any) -> list[RunEvent]:
    """A little of everything."""
    at_work = {"compute": 0.7, "communicate": 0.1, "wait": 0.2}
    return [
        Joined(seconds=0.0, name="worker-0", role="worker"),
        story.started(),
        story.evaluated(0, 0.0, 0.0, 0.6931),
        Spans(seconds=0.4, name="worker-0", spans=[("compute", 0.1, 0.2), ("wait", 0.3, 0.1), ("compute", 0.4, 0.1)]),
        Progress(seconds=0.5, passes=0.1, steps=7, examples=1_400, train_loss=0.5, workers=4, spent=at_work),
        Progress(seconds=2.0, passes=0.4, steps=30, examples=6_000, train_loss=0.4, workers=4, spent=at_work),
        Delayed(seconds=2.5, max_delay=4, waiting=0.21),
        Saved(seconds=3.0, number=1, steps=40, bytes=12_300_000, took=0.4),
        Warned(seconds=3.5, what="one"),
        Warned(seconds=3.5, what="two"),
        story.evaluated(1, 14.0, 4.0, 0.1422),
        Stopped(seconds=16.0, why="5 passes are done"),
    ]


def test_with_verbosity_0_nothing_is_told(story: Any) -> None:
    assert told(busy(story), 0) == []
    assert EventLines(0).note(0.0, "packing rcv1") == [] == EventLines(0).end()


def test_with_verbosity_2_joins_checkpoints_delays_and_where_time_went_are_told_too(story: Any) -> None:
    assert told(busy(story), 2)[:1] == ["   0.0 s  worker-0 joined"]
    assert told(busy(story), 2)[3:] == [
        "   2.0 s  epoch 0.4  3,000 rows/s  train loss 0.4000  4 workers  70% computing, 10% communicating, 20% waiting",
        "   2.5 s  workers may be 4 steps apart: they waited 21% of their time",
        "   3.0 s  checkpoint 1 saved at step 40: 12.3 MB in 0.4 s",
        "   3.5 s  warning: one",
        "   3.5 s  warning: two",
        "    14 s  epoch 4    test loss 0.1422  accuracy 0.9478  auc 0.9880  best",
        "    16 s  stopped: 5 passes are done; best test loss 0.1422 at epoch 4",
    ]


def test_with_verbosity_3_every_event_is_a_line(story: Any) -> None:
    events = busy(story)
    lines = told(events, 3)
    assert len(lines) == len(events)
    assert lines[3:5] == [
        "   0.4 s  worker-0: 3 spans (compute 0.300 s, wait 0.100 s)",
        "   0.5 s  epoch 0.1  7 steps  1,400 examples  train loss 0.5000  4 workers  70% computing, 10% communicating, 20% waiting",
    ]


def test_more_verbosity_never_tells_less(story: Any) -> None:
    counts = [len(told(busy(story), verbosity)) for verbosity in range(4)]
    assert counts == sorted(counts) and counts[0] == 0 < counts[1] < counts[2] < counts[3]


def test_parts_that_change_hands_are_told_however_many_and_never_as_an_empty_line() -> None:
    def handed(at: float, part: int) -> Handed:
        return Handed(
            seconds=at, table="weights", segments=[part], source="server-0", target="server-1", stall=0.25, took=1.0, why="count"
        )  # fmt: skip

    events = [
        handed(1.0, 0),
        handed(1.1, 1),
        handed(1.2, 2),
        Split(seconds=1.3, table="weights", segment=3, at=40, why="hot"),
    ]
    events += [Leaving(seconds=1.4, name="server-0", role="server", why="it asked to go"), handed(4.0, 4)]
    first, *later = told(events)
    assert (
        "1 segment of weights went from server-0 to server-1 (to even out their number), 250 ms without an answer"
        in first
    )
    assert all(line.partition(" s  ")[2].strip() for line in later) and later
    assert "3 segments went from server-0 to server-1" in " ".join(later)
    assert "1 segment was split in two" in " ".join(later) and "server-0 is leaving" in " ".join(later)


def test_times_never_go_back_and_what_was_held_says_when_it_was(story: Any) -> None:
    lines = told(
        [
            Joined(seconds=1.0, name="worker-1", role="worker"),
            Joined(seconds=1.5, name="worker-2", role="worker"),
            story.progress(1.7, 0.1),
            Stopped(seconds=1.9, why="enough"),
        ]
    )
    assert [line.split()[0] for line in lines] == ["1.0", "1.7", "1.7", "1.9"]
    assert lines[2].endswith("worker-2 joined (at 1.5 s)")


def test_who_left_in_order_is_not_said_to_be_gone(story: Any) -> None:
    left = story.gone(1.0, "server-1", "it left: others have what it had")
    (line,) = told([left])
    assert line.endswith("left: others have what it had; 12 slots reassigned") and "gone" not in line


def test_the_best_evaluation_is_never_left_out(story: Any) -> None:
    losses = [0.69, 0.5, 0.41, 0.43, 0.44, 0.45, 0.46, 0.47]
    evaluations = [
        story.evaluated(at, at / 5, at, loss, best=loss == min(losses[: at + 1])) for at, loss in enumerate(losses)
    ]
    for progress in (False, True):
        events: list[RunEvent] = [story.started()]
        for event in evaluations:
            events += [event, *([story.progress(event.seconds + 0.1, event.passes)] if progress else [])]
        lines = told([*events, Stopped(seconds=1.5, why="done")])
        assert sum("test loss 0.4100" in line and line.rpartition("  ")[2].startswith("best") for line in lines) == 1
        assert any("test loss 0.4700" in line for line in lines)
        seconds = [float(line.split()[0]) for line in lines[1:]]
        assert seconds == sorted(seconds)


def test_what_became_of_a_lost_server_is_a_line(story: Any) -> None:
    lines = told([
        story.started(),
        Shared(seconds=0.0, serves={"server-0": 4, "server-1": 4}, copies={"server-0": 4, "server-1": 4}),
        Gone(seconds=3.0, name="server-1", role="server", why="its process ended (killed by signal 9)"),
        Shared(seconds=3.0, serves={"server-0": 8}, copies={}),
        Joined(seconds=3.2, name="server-1", role="server"),
        Shared(seconds=5.5, serves={"server-0": 8, "server-1": 0}, copies={"server-1": 8}),
    ])  # fmt: skip
    assert lines[-1] == (
        "   5.5 s  server-1 killed; server-0 took over its 4 segments, nothing lost; restarted, copies back after 2.5 s"
    )
