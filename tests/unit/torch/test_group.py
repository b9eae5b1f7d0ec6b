"""A task that ends between two checks of a wait is done, not late."""

from __future__ import annotations

import pytest

from shoal.errors import TimedOut
from shoal.store.client.task import Task
from shoal.torch.group import WorkerGroup


def late(ranks: list[int]) -> None:
    raise AssertionError("nobody was late")


def ends_as_a_look_is_over(value: object = None, error: Exception | None = None) -> Task:
    def wait(task: Task, seconds: float | None) -> None:
        task.finish(value, error)
        raise TimedOut(task.what, seconds or 0.0, "server-1")

    task = Task("push 16 keys")
    task._waiter = wait
    return task


def test_a_task_that_ends_just_when_a_look_at_it_is_over_is_done() -> None:
    assert WorkerGroup.__new__(WorkerGroup).wait(ends_as_a_look_is_over(value=7), late) == 7


def test_a_task_that_ended_by_a_time_limit_says_so() -> None:
    before = TimedOut("the task before", 1.0, "server-0")
    with pytest.raises(TimedOut, match="the task before"):
        WorkerGroup.__new__(WorkerGroup).wait(ends_as_a_look_is_over(error=before), late)
