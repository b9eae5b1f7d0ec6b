"""A client node resumes coroutines when their tasks are done, without asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

from shoal.errors import Closed, Fenced, Refused, Unanswered
from shoal.limits import SECOND
from shoal.nodes.worker import Worker, is_rolling_back
from shoal.store.client.task import Task
from shoal.tables import Dense
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Connect, Effect, Received, Send, Tick, Wake

START = 50 * SECOND


def view(number: int = 3, incarnation: int = 7) -> m.View:
    members = [m.Member("ann", 1, "server", "memory:ann"), m.Member("me", incarnation, "worker", "")]
    table = m.TablePlaces(1, "w", Dense(rows=8), [0], [m.Replicas(1, ["ann"])])
    return m.View(1, number, 0, members, [table])


def node(joined: bool = True, role: str = "client") -> Worker:
    made = Worker("me", role, "token")
    made.handle(START, Tick())
    if joined:
        made.handle(START, Received("coordinator", m.Welcome("token.0", 7, view())))
    return made


def sends(effects: list[Effect], to: str = "ann") -> list[Any]:
    return [one.message for one in effects if isinstance(one, Send) and one.to == to]


def answer(made: Worker, request: int, *rows: float) -> list[Effect]:
    values = np.array(rows, np.float32)
    return made.handle(START, Received("ann", m.Values(request, len(rows), [1]), [values]))


def run(made: Worker, coroutine: Coroutine[Task, None, Any]) -> tuple[Task, list[Effect]]:
    whole = made.start(coroutine)
    return whole, made.handle(START, Tick())


def test_a_coroutine_is_resumed_when_its_task_is_done() -> None:
    made = node()

    async def story() -> float:
        rows = await made.client.pull("w", [1, 2])
        await made.client.push("w", [1], rows[:1] * 2)
        return float(rows.sum())

    whole, effects = run(made, story())
    (pull,) = sends(effects)
    assert isinstance(pull, m.Pull) and not whole.done
    (push,) = sends(answer(made, pull.request, 3, 4))
    assert isinstance(push, m.Push) and not whole.done
    made.handle(START, Received("ann", m.Counted(push.request, new=True)))
    assert whole.result() == 7


def test_several_coroutines_take_turns() -> None:
    made = node()
    seen = []

    async def story(name: str, key: int) -> None:
        for _ in range(2):
            await made.client.pull("w", [key])
            seen.append(name)

    one, two = made.start(story("one", 1)), made.start(story("two", 2))
    first, second = sends(made.handle(START, Tick()))
    (third,) = sends(answer(made, second.request, 0))
    answer(made, third.request, 0)
    assert (one.done, two.done) == (False, True)
    (fourth,) = sends(answer(made, first.request, 0))
    answer(made, fourth.request, 0)
    assert one.done
    assert seen == ["two", "two", "one", "one"]


def test_a_coroutine_may_wait_for_what_is_done_and_for_another_coroutine() -> None:
    made = node()

    async def inner() -> int:
        await made.sleep(0)
        return 4

    async def outer() -> int:
        part = made.start(inner())
        return await part + await part

    whole, _ = run(made, outer())
    while not whole.done:
        made.handle(START, Tick())
    assert whole.result() == 8


def test_an_error_is_met_where_it_is_awaited() -> None:
    made = node()

    async def story() -> str:
        try:
            await made.client.pull("w", [1])
        except Refused as error:
            return error.reason
        return ""

    whole, effects = run(made, story())
    (pull,) = sends(effects)
    made.handle(START, Received("ann", m.Refusal(pull.request, "full", "no memory")))
    assert whole.result() == "no memory"


def test_an_error_that_nobody_catches_ends_the_coroutine_and_nothing_else() -> None:
    made = node()

    async def broken() -> None:
        await made.client.pull("w", [1])
        raise ZeroDivisionError

    async def well() -> str:
        await made.client.pull("w", [2])
        return "well"

    one, two = made.start(broken()), made.start(well())
    for pull in sends(made.handle(START, Tick())):
        answer(made, pull.request, 0)
    with pytest.raises(ZeroDivisionError):
        one.result()
    assert two.result() == "well"


def test_sleep_takes_as_long_as_it_says() -> None:
    made = node()
    task = made.sleep(3 * SECOND)
    made.handle(START + 3 * SECOND - 1, Tick())
    assert not task.done
    made.handle(START + 3 * SECOND, Tick())
    assert task.done


def test_a_node_is_woken_for_whatever_comes_first() -> None:
    made = node()

    def wakes() -> int:
        (wake,) = [one for one in made.handle(START, Tick()) if isinstance(one, Wake)]
        return wake.at - START

    assert wakes() == DEFAULT.heartbeat
    made.sleep(10)
    assert wakes() == 10


def test_a_node_is_woken_to_send_again() -> None:
    made = node()
    made.client.pull("w", [1])
    effects = made.handle(START, Tick())
    (wake,) = [one for one in effects if isinstance(one, Wake)]
    assert wake.at <= made.client.dispatcher.inflight.next


def test_joining_is_a_task() -> None:
    made = node(joined=False)
    assert not made.joined.done
    effects = made.handle(START, Received("coordinator", m.Welcome("token.0", 7, view())))
    assert made.joined.done and made.client.session.incarnation == 7
    assert Connect("ann", "memory:ann") in effects


def test_what_is_asked_before_the_welcome_is_sent_after_it() -> None:
    made = node(joined=False)
    made.client.refresh()
    assert sends(made.handle(START, Tick()), "coordinator") == []
    effects = made.handle(START, Received("coordinator", m.Welcome("token.0", 7, view())))
    assert [type(one) for one in sends(effects, "coordinator")] == [m.Refresh]


def test_a_refused_node_says_so() -> None:
    made = node(joined=False)
    task = made.client.refresh()
    made.handle(START, Received("coordinator", m.Refusal(0, "setting", "the cluster is full")))
    for one in (made.joined, task):
        with pytest.raises(Refused, match="the cluster is full"):
            one.result()


def test_one_that_is_patient_waits_until_the_disk_of_the_coordinator_has_room_again() -> None:
    """A node of a run does not end because the disk is full: it sends hello again."""
    made = node(joined=False)
    made.client.dispatcher.patient = True
    task = made.client.refresh()
    made.handle(START, Tick())
    made.handle(START, Received("coordinator", m.Refusal(0, "full", "the journal cannot be written")))
    assert not made.joined.done and not task.done
    assert [type(one) for one in sends(made.handle(START + SECOND, Tick()), "coordinator")] == [m.Hello]
    made.handle(START + SECOND, Received("coordinator", m.Welcome("token.0", 7, view())))
    assert made.joined.done and made.joined.error is None


def test_a_hello_that_nobody_answers_is_an_error_in_the_end() -> None:
    made = node(joined=False)
    task = made.client.refresh()
    made.handle(START + DEFAULT.silence - 1, Tick())
    assert not task.done
    made.handle(START + DEFAULT.silence, Tick())
    for one in (made.joined, task):
        with pytest.raises(Unanswered, match="coordinator"):
            one.result()


def test_a_fenced_node_fails_its_tasks_tells_and_joins_again() -> None:
    made = node()
    told = []
    made.on_fenced = lambda: told.append(made.client.session.incarnation)
    task = made.client.pull("w", [1])
    made.handle(START, Tick())
    effects = made.handle(START, Received("ann", m.Fence(7 << 32 | 1, 7)))
    assert [type(one) for one in sends(effects, "coordinator")] == [m.Hello]
    with pytest.raises(Fenced):
        task.result()
    assert told == [0]
    made.handle(START, Received("coordinator", m.Welcome("token.1", 9, view(4, 9))))
    assert made.client.session.incarnation == 9


def test_a_coroutine_outlives_its_nodes_first_life() -> None:
    made = node()

    async def story() -> str:
        try:
            await made.client.pull("w", [1])
        except Fenced:
            rows = await made.client.pull("w", [1])
            return f"again: {rows[0]:g}"
        return "never fenced"

    whole, _ = run(made, story())
    made.handle(START, Received("coordinator", m.Fence(0, 7)))
    effects = made.handle(START, Received("coordinator", m.Welcome("token.1", 9, view(4, 9))))
    (pull,) = sends(effects)
    answer(made, pull.request, 5)
    assert whole.result() == "again: 5"


def test_a_heartbeat_shows_the_newest_view() -> None:
    made = node()
    made.handle(START, Received("coordinator", view(8)))
    (beat,) = sends(made.handle(START + SECOND, Tick()), "coordinator")
    assert beat == m.Heartbeat(7, 8)


def test_leaving_ends_what_is_under_way() -> None:
    made = node()
    task = made.client.pull("w", [1])
    made.handle(START, Tick())
    assert made.leave() == [Send("coordinator", m.Leave(7))]
    with pytest.raises(Closed):
        task.result()


def asked(tables: dict[str, list[str]], generation: int = 0, group: str = "") -> bool:
    """Returns whether a worker that began in generation 0 sees a rollback.

    ``tables``: by name, with the servers of their only segment.
    """
    worker = Worker("worker-0", "worker", "token", group=group)
    places = [
        m.TablePlaces(n, name, Dense(rows=8), [0], [m.Replicas(1, servers)])
        for n, (name, servers) in enumerate(tables.items(), 1)
    ]
    view = m.View(1, 1, generation, [m.Member("worker-0", 7, "worker", "", group=group)], places)
    worker.handle(START, Tick())
    worker.handle(START, Received("coordinator", m.Welcome("token.0", 7, view)))
    task = worker.start(is_rolling_back(worker, 0))
    sent = [one.message for one in worker.handle(START, Tick()) if isinstance(one, Send)]
    (refresh,) = [one for one in sent if isinstance(one, m.Refresh)]
    worker.handle(START, Received("coordinator", m.Done(refresh.request)))
    assert task.done and task.error is None
    return bool(task.value)


@pytest.mark.parametrize(
    ("tables", "back"),
    [
        ({"weights": ["server-0"]}, False),
        ({"weights": []}, True),
        ({}, True),
        ({"weights": ["server-0"], "tally": []}, True),  # the run rolls back for any of its tables
        # A table of another group belongs to another run.
        ({"weights": ["server-0"], "other/weights": []}, False),
    ],
)
def test_a_run_goes_back_when_nobody_has_a_part_of_one_of_its_tables(tables: dict[str, list[str]], back: bool) -> None:
    assert asked(tables) is back
    assert asked(tables, generation=1)


def test_a_group_looks_at_its_own_tables() -> None:
    assert not asked({"b/weights": ["server-0"], "weights": []}, group="b")
    assert asked({"b/weights": ["server-0"], "b/tally": []}, group="b")
