"""Runs are compared by their figures, and only if they are comparable."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from shoal.events import RunEvent
from shoal.views.explain import of_several
from shoal.views.run_record import RunRecord, tell


def judged(story: Any, *losses: float, every: float = 1.0) -> list[RunEvent]:
    return [story.evaluated(at, at * every, float(at), one, train_loss=0.9 - at / 10) for at, one in enumerate(losses)]


def spent(story: Any, **seconds: float) -> RunEvent:
    return replace(story.progress(10.0, 1.0), spent=seconds)


def named(story: Any, name: str, *events: RunEvent, **started: Any) -> RunRecord:
    return tell(name, [replace(story.started(), **started), *events])


def test_who_reached_the_common_loss_first_and_why(story: Any) -> None:
    sync = named(story, "sync", *judged(story, 0.7, 0.5, 0.4, every=4.0), spent(story, compute=6.0, wait=4.0))
    free = named(story, "async", *judged(story, 0.7, 0.45, 0.39), spent(story, compute=9.8, wait=0.2))
    said = " ".join(of_several([sync, free]))
    assert "All runs reached a test loss of 0.4020 (0.5% above the highest of their best)." in said
    assert "async was there first, after 2.0 s; sync took 8.0 s (4.0 times as long)." in said
    assert "sync needed 1.00 times the rows of async, at 0.25 times its speed" in said
    assert "over the whole run its workers waited 40% of their time, those of async 2.0%." in said
    assert "reached since the evaluation before" in said


def test_times_that_evaluations_cannot_tell_apart_make_no_factor(story: Any) -> None:
    near = named(story, "near", *judged(story, 0.7, 0.39, every=2.0))
    free = named(story, "free", *judged(story, 0.7, 0.39, every=0.38))
    said = " ".join(of_several([near, free]))
    assert "free was there first, after 380 ms; near took 2.0 s (too near to tell apart by evaluations)." in said
    assert "times as long" not in said and "finer" not in said


def test_runs_that_learn_something_else_are_not_compared(story: Any) -> None:
    one = named(story, "one", *judged(story, 0.7, 0.5))
    other = named(story, "other", *judged(story, 0.7, 0.5), data="clicks")
    assert of_several([one, other]) == [
        "These runs have different tasks (data: clicks, rcv1): their losses are not compared."
    ]


def test_a_run_without_a_loss_is_left_out_of_the_comparison(story: Any) -> None:
    one, other, none = (
        named(story, "one", *judged(story, 0.7, 0.5)),
        named(story, "other", *judged(story, 0.6)),
        named(story, "none", *judged(story, math.nan)),
    )
    said = of_several([one, other, none])
    assert said[0] == "No loss is known of none: not compared."
    assert of_several([one, none])[-1] == "There are no two runs with a loss to compare."


def test_a_common_loss_that_was_there_from_the_start_makes_no_factor(story: Any) -> None:
    one, other = named(story, "one", *judged(story, 0.7)), named(story, "other", *judged(story, 0.7))
    said = " ".join(of_several([one, other]))
    assert "times as long" not in said and "times the rows" not in said


def test_the_clock_of_a_serial_run_is_told_of_where_it_is_compared(story: Any) -> None:
    alone = named(story, "alone", *judged(story, 0.7, 0.5), strategy="serial")
    other = named(story, "other", *judged(story, 0.7, 0.5))
    assert "The clock of alone stops during an evaluation" in of_several([alone, other])[-1]
    racing = named(story, "racing", *judged(story, 0.7, 0.5), strategy="hogwild")
    assert "The clock of alone, racing stops during an evaluation" in " ".join(of_several([alone, racing, other]))
    assert "clock" not in " ".join(of_several([alone, racing]))
    assert "clock" not in " ".join(of_several([alone, alone]))


def test_whose_computing_is_emulated_is_said(story: Any) -> None:
    real = named(story, "real", *judged(story, 0.7, 0.5))
    other = named(story, "other", *judged(story, 0.7, 0.5), emulated="emulated compute (1 ms per example)")
    assert of_several([real, other])[0].startswith("In other, not in the others: Emulated compute (1 ms per example).")
