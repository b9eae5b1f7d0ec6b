"""The live state of a run is a fold over its events, in bounded memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.events import Stopped
from shoal.views.live_state import POINTS, Curve, LiveState


def taken(*events: Any) -> LiveState:
    so_far = LiveState()
    for event in events:
        so_far.take(event)
    return so_far


def test_the_rate_is_that_of_the_last_seconds(story: Any) -> None:
    slow = [story.progress(at, at / 100) for at in range(100)]  # 1 pass in 100 s
    fast = [story.progress(99 + at, 0.99 + at) for at in range(1, 11)]  # then 1 pass per second
    so_far = taken(story.started(), *slow, *fast)
    assert so_far.rate == pytest.approx(20_242, rel=1e-3)
    so_far.take(Stopped(seconds=109, why="done"))
    # At the end it is the rate of the whole run.
    assert so_far.rate == pytest.approx(10.99 * 20_242 / 109, rel=1e-3)


def test_a_rollback_makes_no_negative_rate(story: Any) -> None:
    so_far = taken(story.progress(1, 2), story.progress(2, 1))
    assert so_far.rate == pytest.approx(2 * 20_242)  # the rate from before, not "-"
    so_far.take(story.progress(3, 2))
    assert so_far.rate == pytest.approx(20_242)


def test_the_train_loss_comes_from_evaluations_where_nobody_else_tells_it(story: Any) -> None:
    so_far = taken(story.evaluated(0, 0, 0, 0.7), story.evaluated(1, 1, 1, 0.5, train_loss=0.6))
    assert so_far.train_loss == 0.6
    assert so_far.train.points == [(1, 0.6)]
    so_far.take(story.progress(2, 2, 0.4))
    so_far.take(story.evaluated(2, 2, 2, 0.45, train_loss=0.5))
    assert so_far.train_loss == 0.4


def test_the_last_known_train_loss_stays_until_there_is_another(story: Any) -> None:
    assert taken(story.progress(1, 1, 0.4), story.progress(2, 2, None)).train_loss == 0.4


def test_the_best_evaluation_is_finite(story: Any) -> None:
    so_far = taken(
        story.evaluated(0, 0, 0, 0.7), story.evaluated(1, 1, 1, math.nan), story.evaluated(2, 2, 2, 0.8, best=False)
    )
    assert so_far.best is not None
    assert so_far.best.number == 0


def test_a_million_points_stay_a_curve_of_a_few_with_the_same_shape() -> None:
    curve = Curve()
    for at in range(100_000):
        curve.add(at, 2.0 * at)
    assert POINTS // 2 <= len(curve.points) < POINTS
    assert all(y == pytest.approx(2 * x) for x, y in curve.points)
    assert [x for x, _ in curve.points] == sorted(x for x, _ in curve.points)
    assert curve.points[-1][0] > 99_000


def test_what_is_not_finite_is_no_point_of_a_curve_and_huge_ones_do_not_overflow() -> None:
    curve = Curve()
    for value in (1.0, math.nan, math.inf, None, *[1.7e308] * POINTS):
        curve.add(1.0, value)
    assert all(math.isfinite(y) for _, y in curve.points)
    assert len(curve.points) > 1
