"""Each figure of a resumed run covers one span: the whole run or the last part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from shoal.events import Resumed
from shoal.job import Job
from shoal.nodes.factory import started_event
from shoal.run.run import summarise
from shoal.training.tracker import RunResult


def test_what_it_ran_on_is_of_the_last_span_and_what_it_learned_of_all() -> None:
    job = Job.of({"data": "clicks", "workers": 3})
    started = started_event(job, "clicks", 1_000, 100, 10, 8, 4, 1)
    events = [started, Resumed(seconds=5.0, checkpoint=1, steps=50), replace(started, cores=2, workers=3)]
    result = RunResult(None, "done", False, 10.0, 8.0, 80, 800, 7, 9, [], {"workers lost": 2})
    found = summarise(job, cast(Any, SimpleNamespace(name="clicks")), result, events, (6.0, 4.0))
    assert (found["resumed"], found["workers"], found["cores"]) == (1, 3, 2)
    assert (found["cpu_seconds"], found["elapsed_seconds"]) == (6.0, 4.0)
    assert (found["examples_per_second"], found["workers_lost"]) == (100.0, 2)
