"""A Hogwild run reports its workers: which left, and which ended by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from shoal.job import Job
from shoal.launch.shared_memory import SharedMemory
from shoal.strategies.hogwild import LINE, desk
from shoal.strategies.hogwild.loop import HogwildLoop
from shoal.strategies.hogwild.worker import ENDED, LEAVE, READY, HogwildWorkers, Report


class Nothing:
    def run(self, *about: Any) -> int:
        return 0


@pytest.fixture
def workers() -> Iterator[HogwildWorkers]:
    none = ((1,), "int64")
    segment = SharedMemory.make(
        {
            "desk": (desk(2), "int64"),
            "sums": ((2, LINE), "float64"),
            "slab": none,
            "tally": none,
            "order": none,
        }
    )
    of, loop = Job.of({"data": "clicks", "strategy": "hogwild"}), cast(HogwildLoop, Nothing())
    found = HogwildWorkers(of, "", "", segment, 2, loop)
    yield found
    found.close()
    segment.close()


def test_one_that_was_asked_to_leave_has_left(workers: HogwildWorkers) -> None:
    workers.add(lambda number: None)
    assert workers.receive(10) == [(0, READY, "")]
    workers.send(0, LEAVE)
    reported: list[Report] = []
    while not reported:
        reported = workers.receive(10)
    assert reported == [(0, ENDED, "")]


def test_one_that_ended_unasked_is_lost_though_its_exit_code_says_that_all_is_well(workers: HogwildWorkers) -> None:
    workers._ended("worker-1", "")
    assert workers.receive(10) == [(1, ENDED, "its process ended (exit code 0) without being asked to")]
