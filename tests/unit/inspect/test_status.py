"""The progress of a run is known from its events after all its nodes have ended.

A cluster refuses wrong arguments at once.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import shoal
from shoal.errors import Invalid
from shoal.events import Progress, Stopped
from shoal.inspect.status import further
from shoal.job import Job
from shoal.strategies.parameter_server.run import NOTHING


def test_how_far_a_run_is_follows_from_what_it_tells() -> None:
    begun = msgspec.structs.replace(NOTHING, per_pass=10, sent=5)
    told = Progress(seconds=2.0, passes=1.5, steps=7, examples=90, train_loss=None, workers=2)
    course = further(begun, told)
    assert (course.done, course.steps, course.examples, course.seconds, course.sent) == (15, 7, 90, 2.0, 5)
    assert further(course, Stopped(seconds=3.0, why="done")) is course
    # A later progress is known already.
    assert further(course, msgspec.structs.replace(told, seconds=1.0, steps=3)) is course


@pytest.mark.parametrize("seconds", ["x", True, -1, float("nan"), [1]])
def test_a_wait_that_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with shoal.local(servers=1) as cluster, pytest.raises(Invalid, match="seconds to wait at most"):
        cluster.client("ann").save(seconds)


def test_true_is_no_number_of_copies() -> None:
    with pytest.raises(Invalid, match="copies=True"):
        shoal.local(copies=True)
    with pytest.raises(Invalid, match="copies=True"):
        Job(copies=True)
    with pytest.raises(Invalid, match="copies"):
        shoal.train("clicks", copies=True)
