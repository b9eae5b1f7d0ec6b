"""Whether what failed is a part of the model that is lost, by the newest view."""

from __future__ import annotations

import pytest

from shoal.limits import SECOND
from shoal.nodes.rollback_wait import goes_back
from shoal.nodes.worker import Worker
from shoal.tables import Dense
from shoal.wire import messages as m
from shoal.wire.effects import Received, Send, Tick

START = 50 * SECOND


def asked(tables: dict[str, list[str]], generation: int = 0, group: str = "") -> bool:
    """What a worker finds that began in generation 0; tables by name, with the servers of their only segment."""
    worker = Worker("worker-0", "worker", "token", group=group)
    places = [
        m.TablePlaces(n, name, Dense(rows=8), [0], [m.Replicas(1, servers)])
        for n, (name, servers) in enumerate(tables.items(), 1)
    ]
    view = m.View(1, 1, generation, [m.Member("worker-0", 7, "worker", "", group=group)], places)
    worker.handle(START, Tick())
    worker.handle(START, Received("coordinator", m.Welcome("token.0", 7, view)))
    task = worker.start(goes_back(worker, 0))
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
        ({"weights": ["server-0"], "tally": []}, True),  # the run goes back for any of its tables
        ({"weights": ["server-0"], "other/weights": []}, False),  # another group's is another run's
    ],
)
def test_a_run_goes_back_when_nobody_has_a_part_of_one_of_its_tables(tables: dict[str, list[str]], back: bool) -> None:
    assert asked(tables) is back
    assert asked(tables, generation=1)


def test_a_group_looks_at_its_own_tables() -> None:
    assert not asked({"b/weights": ["server-0"], "weights": []}, group="b")
    assert asked({"b/weights": ["server-0"], "b/tally": []}, group="b")
