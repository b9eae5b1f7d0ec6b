"""The record of a run is the plain sum of its events, for any events."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.events import Gone, Joined, Resumed, Spans, Stopped
from shoal.views import format
from shoal.views.run_record import account, seconds_of


def spans(name: str, *told: tuple[str, float, float]) -> Spans:
    return Spans(seconds=9.0, name=name, spans=list(told))


def test_spans_are_in_order_and_none_lies_over_another() -> None:
    run = account(
        [
            spans("worker-0", ("compute", 1.0, 0.5), ("wait", 1.5, 0.2)),
            # It is reported later, and is a millisecond too long: a message took that time.
            spans("worker-0", ("compute", 0.0, 1.001)),
        ]
    )
    assert run.nodes["worker-0"].spans == [("compute", 0.0, 1.5), ("wait", 1.5, 1.7)]
    assert run.nodes["worker-0"].shares["compute"] == pytest.approx(1.5 / 1.7)


def test_a_gap_of_some_length_stays_one() -> None:
    run = account([spans("worker-0", ("compute", 0.0, 1.0), ("compute", 1.5, 1.0))])
    assert run.nodes["worker-0"].spans == [("compute", 0.0, 1.0), ("compute", 1.5, 2.5)]


@pytest.mark.parametrize(
    "span", [("compute", -1.0, 2.0), ("compute", math.nan, 1.0), ("compute", 1.0, -0.5), ("sleep", 1.0, 1.0)]
)
def test_a_span_that_cannot_be_is_left_out(span: tuple[str, float, float]) -> None:
    assert account([spans("worker-0", span)]).nodes["worker-0"].spans == []


def test_what_is_told_of_every_worker_is_believed_before_its_spans(story: Any) -> None:
    each = {"worker-0": {"slots": 10, "compute": 5.0, "wait": 1.0}, "worker-1": {"slots": 20, "compute": 2.0}}
    run = account([spans("worker-0", ("compute", 0.0, 1.0)), replace(story.evaluated(0, 1.0, 1.0, 0.5), each=each)] * 2)
    node, factor = run.slowest or pytest.fail("there is one")
    assert (node.name, node.slots, node.spent) == ("worker-0", 20, {"compute": 10.0, "wait": 2.0})
    assert factor == pytest.approx(5.0)


def test_one_worker_is_not_slower_than_others(story: Any) -> None:
    assert account([replace(story.evaluated(0, 1.0, 1.0, 0.5), each={"worker-0": {"slots": 2}})]).slowest is None


def test_a_loss_is_reached_when_the_weights_were_read_that_have_it(story: Any) -> None:
    run = account([replace(story.evaluated(at, at + 0.5, at, 1.0 - at / 10), read=float(at)) for at in range(4)])
    found = run.reached(0.85)
    assert found is not None and seconds_of(found) == 2.0
    assert run.reached(0.1) is None


def test_a_loss_that_is_no_number_is_no_best(story: Any) -> None:
    run = account([story.evaluated(0, 0.0, 0.0, 0.7), story.evaluated(1, 1.0, 1.0, math.nan)])
    assert run.best is not None and run.best.number == 0


def test_rows_are_back_when_they_come_as_fast_as_before_for_a_second(story: Any) -> None:
    def progress(at: float, rows: int) -> Any:
        return replace(story.progress(at, 0.0), examples=rows)

    steady = [progress(at / 4, 250 * at) for at in range(1, 41)]  # 1,000 per second for 10 s
    # 400 per second for 2 s.
    slow = [progress(10 + at / 4, 10_000 + 100 * at) for at in range(1, 9)]
    again = [progress(12 + at / 4, 10_800 + 250 * at) for at in range(1, 17)]
    assert account([*steady, *slow, *again]).back_after(10.0) == pytest.approx(2.0, abs=0.3)
    assert account([*steady, *slow]).back_after(10.0) == math.inf
    assert account(steady).back_after(5.0) == 0
    assert account(steady).back_after(0.2) is None  # nothing is known of the time before
    assert account(steady).back_after(9.9) is None  # nor of the time after
    assert account([]).back_after(1.0) is None


def test_a_node_is_here_from_when_it_joins_until_it_goes() -> None:
    gone = Gone(seconds=3.0, name="worker-0", role="worker", why="killed")
    back = Joined(seconds=5.0, name="worker-0", role="worker")
    run = account([replace(back, seconds=0.0), spans("worker-0", ("compute", 0.0, 1.0)), gone, back])
    assert run.nodes["worker-0"].here == [(0.0, 3.0), (5.0, math.inf)]


def test_a_run_that_was_taken_up_again_has_not_stopped() -> None:
    stopped = Stopped(seconds=1.0, why="interrupted")
    assert account([stopped, Resumed(seconds=1.0, checkpoint=1, steps=3)]).stopped is None


def test_names_are_sorted_as_people_count() -> None:
    assert format.natural("worker-2") < format.natural("worker-10")


def test_nothing_makes_an_account_of_nothing() -> None:
    run = account([])
    assert (run.best, run.shares, run.workers, run.examples, run.slowest) == (None, {}, [], 0, None)
