"""Workers join and leave on schedule; the training here only counts (S1-30, S4-23)."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from shoal.errors import ClusterError, Invalid, ShoalError, StartFailed
from shoal.job import Job
from shoal.launch.resource_manager import ResourceManager
from shoal.settings_tree import changed
from tests.support.sandbox import soon


class Counting:
    """Workers that are only names."""

    def __init__(self) -> None:
        self.here: list[str] = []
        self.started = 0
        self.signals: list[tuple[str, int]] = []
        self.fails: list[ShoalError] = []  # the errors of the next starts
        self.said: list[str] = []

    @property
    def workers(self) -> list[str]:
        return list(self.here)

    def add_worker(self) -> str:
        if self.fails:
            raise self.fails.pop(0)
        name, self.started = f"worker-{self.started}", self.started + 1
        self.here.append(name)
        return name

    def signal(self, name: str, number: int) -> None:
        self.signals.append((name, number))
        if number == signal.SIGKILL:
            self.here.remove(name)


def coming(hands: Counting, over: threading.Event, **emulate: Any) -> ResourceManager:
    changes = {f"emulate.{name}": value for name, value in emulate.items()}
    return ResourceManager(
        hands, Job.of(changed({"data": "clicks"}, {"workers": 3, **changes})), over, hands.said.append, retry=0.01
    )


def test_a_gang_is_started_at_once_and_nobody_is_added() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over)
    one.start(3)
    one.worker_ended()
    one.close()
    assert hands.started == 3 and not hands.signals


def test_workers_that_arrive_one_by_one_are_all_there_in_the_end() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over, arrive=0.01)
    one.start(3)
    assert hands.started >= 1
    assert soon(lambda: hands.started == 3)
    one.close()
    assert hands.started == 3


def test_a_worker_that_stands_still_goes_on_before_anything_is_closed() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over, preempt=0.01, away=3600, sticky=True)
    one.start(3)
    assert soon(lambda: len(hands.signals) >= 3)
    one.close()
    stopped = [name for name, number in hands.signals if number == signal.SIGSTOP]
    assert sorted(stopped) == sorted(name for name, number in hands.signals if number == signal.SIGCONT)
    assert len(set(stopped)) == len(stopped), "who stands still is not taken away again"


def test_a_worker_that_is_killed_is_replaced_by_another() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over, preempt=0.01, away=0.0)
    one.start(3)
    assert soon(lambda: hands.started >= 6)
    one.close()
    assert {number for _, number in hands.signals} == {signal.SIGKILL}


def test_who_has_done_its_task_is_replaced_until_the_run_is_over() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over, task=1)
    one.start(3)
    hands.here.clear()
    one.worker_ended()
    assert soon(lambda: hands.started == 6)
    over.set()
    hands.here.clear()
    one.worker_ended()
    one.close()
    assert hands.started == 6


def test_a_worker_that_does_not_start_is_told_of_and_another_is_started() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over, task=1)
    one.start(3)
    hands.fails = [StartFailed("worker-3 did not start: it was killed"), StartFailed("worker-4 did not start")]
    hands.here.clear()
    one.worker_ended()
    assert soon(lambda: hands.started == 6)
    hands.here.clear()  # later workers are replaced as before
    one.worker_ended()
    assert soon(lambda: hands.started == 9)
    one.close()
    (said,) = hands.said  # reported once while starts keep failing
    assert (
        said.startswith("worker-3 did not start: it was killed; training goes on") and "another start is tried" in said
    )


def test_where_the_cluster_is_gone_nobody_is_started_and_nothing_is_said() -> None:
    hands, over = Counting(), threading.Event()
    one = coming(hands, over, task=1)
    one.start(3)
    hands.fails = [ClusterError("the cluster is gone: start another one")] * 2
    hands.here.clear()
    one.worker_ended()
    assert one._thread is not None
    one._thread.join(60)
    assert not one._thread.is_alive() and hands.started == 3 and not hands.said
    one.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"strategy": "gossip", "emulate.arrive": 1.0}, "choose sync, bounded or async"),
        ({"launch.how": "threads", "emulate.preempt": 1.0}, "takes processes away"),
        ({"emulate.task": -1}, "needs a number of slots"),
        ({"emulate.away": 1e9}, "needs 0 to 3600 seconds"),
    ],
)
def test_what_cannot_come_and_go_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        Job.of(changed({"data": "clicks"}, changes))
