"""A task is one push or pull in flight: finished once, awaited in two ways."""

from __future__ import annotations

import pytest

from shoal.errors import BadValues, Invalid
from shoal.store.client.task import Task


def test_a_task_is_done_once() -> None:
    task = Task("push")
    assert not task.done
    task.finish(7)
    task.finish(8)
    task.finish(error=BadValues("late"))
    assert task.done
    assert task.result() == 7


def test_a_failed_task_raises_its_error_every_time() -> None:
    task = Task("push")
    task.finish(error=BadValues("not finite"))
    for _ in range(2):
        with pytest.raises(BadValues, match="not finite"):
            task.result()


def test_whoever_waits_is_called_once_in_order() -> None:
    task, seen = Task("push"), []
    task.then(lambda done: seen.append(("first", done.value)))
    task.then(lambda done: seen.append(("second", done.value)))
    assert seen == []
    task.finish(3)
    task.finish(4)
    task.then(lambda done: seen.append(("late", done.value)))  # called at once
    assert seen == [("first", 3), ("second", 3), ("late", 3)]


def test_a_coroutine_yields_the_task_it_waits_for() -> None:
    task = Task("pull")

    async def story() -> int:
        return 1 + await task

    running = story()
    assert running.send(None) is task
    assert running.send(None) is task  # woken too early: it goes on waiting
    task.finish(41)
    with pytest.raises(StopIteration) as end:
        running.send(None)
    assert end.value.value == 42


def test_a_coroutine_meets_the_error_where_it_waits() -> None:
    task = Task("pull")

    async def story() -> str:
        try:
            await task
        except BadValues as error:
            return str(error)
        return "no error"

    running = story()
    running.send(None)
    task.finish(error=BadValues("not finite"))
    with pytest.raises(StopIteration) as end:
        running.send(None)
    assert end.value.value == "not finite"


def test_a_task_that_is_done_is_not_waited_for() -> None:
    task = Task("pull")
    task.finish(1)

    async def story() -> int:
        return await task

    with pytest.raises(StopIteration) as end:
        story().send(None)
    assert end.value.value == 1


def test_a_thread_waits_with_the_one_who_can_make_it_wait() -> None:
    task, asked = Task("pull"), []

    def wait(waited: Task, seconds: float | None) -> None:
        asked.append(seconds)
        waited.finish(9)

    task._waiter = wait
    assert task.result(timeout=2.5) == 9
    assert task.result() == 9  # it is done: no wait
    assert asked == [2.5]


def test_a_task_of_a_coroutine_cannot_make_a_thread_wait() -> None:
    with pytest.raises(Invalid, match="await it"):
        Task("pull 3 keys").result()


def test_a_task_says_what_it_is_and_what_it_waits_for() -> None:
    task = Task("pull 3 keys")
    assert repr(task) == "<pull 3 keys: waits for an answer>"
    task.waits_for = "ann: bob at step 3"
    assert repr(task) == "<pull 3 keys: waits for ann: bob at step 3>"
    task.finish()
    assert repr(task) == "<pull 3 keys: done>"
    failed = Task("push")
    failed.finish(error=Invalid("no"))
    assert repr(failed) == "<push: failed>"
