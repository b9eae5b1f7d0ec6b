"""Bounded delay with real threads: who may run ahead, how far, and what ends a wait.

The counting model: row 0 counts the steps of the fast worker and row 1 those of the slow one, so
the values that a worker pulls *are* the list of steps that they contain. The slow worker takes a
step only when the fast one is seen to wait. So every run reaches the bound, and no test depends on
the speed of this machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid, TimedOut
from tests.support import PATIENCE

STEPS = 12


@pytest.fixture(scope="module", params=["threads", "ipc"])
def cluster(request: pytest.FixtureRequest) -> Iterator[shoal.Cluster]:
    with shoal.local(servers=2, processes=request.param == "ipc") as cluster:
        yield cluster


@pytest.fixture
def kv(cluster: shoal.Cluster) -> Iterator[shoal.KV]:
    with cluster.client() as kv:
        yield kv
        for table in kv.tables():
            kv.drop(table)


def entered(cluster: shoal.Cluster, *names: str, table: str = "w") -> list[shoal.KV]:
    """Return workers that take part: each has pulled once."""
    workers = [cluster.worker(name) for name in names]
    for worker in workers:
        worker.pull(table, [0]).result(PATIENCE)
    return workers


def a_step(worker: shoal.KV, row: int) -> None:
    worker.push("w", [row], [1.0]).result(PATIENCE)


def until_it_waits(task: shoal.Task) -> str:
    """Wait until the servers report that this task waits, and return for whom."""
    deadline = time.monotonic() + PATIENCE
    while not task.waits_for and not task.done and time.monotonic() < deadline:
        time.sleep(0.002)
    assert not task.done, "it was answered at once"
    return task.waits_for


# ---------------------------------------------------------------- the bound


@pytest.mark.parametrize("max_delay", [0, 1, 3])
def test_the_fast_worker_is_never_more_than_max_delay_ahead(
    cluster: shoal.Cluster, kv: shoal.KV, max_delay: int
) -> None:
    kv.create("w", shoal.Dense(rows=2, max_delay=max_delay))
    fast, slow = entered(cluster, "fast", "slow")
    go = threading.Semaphore(0)
    leads: list[float] = []
    told: list[str] = []
    errors: list[BaseException] = []

    def run_fast() -> None:
        for step in range(STEPS):
            a_step(fast, 0)
            pull = fast.pull("w", [0, 1])
            if step >= max_delay:  # only now the slow worker continues
                told.append(until_it_waits(pull))
                go.release()
            mine, theirs = pull.result(PATIENCE)
            leads.append(int(mine - theirs))

    def run_slow() -> None:
        for _ in range(STEPS - max_delay):
            assert go.acquire(timeout=PATIENCE)
            a_step(slow, 1)

    def kept(run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=kept, args=(run,), daemon=True) for run in (run_fast, run_slow)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive()
    assert errors == []
    # It is as far ahead as allowed, and never further.
    assert leads == [min(step + 1, max_delay) for step in range(STEPS)]
    assert [one.split(": ")[1] for one in told] == [f"slow at step {step}" for step in range(STEPS - max_delay)]
    for worker in (fast, slow):
        worker.close()


def test_without_a_bound_nobody_waits(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=2, max_delay=None))
    fast, slow = entered(cluster, "fast", "slow")
    for step in range(STEPS):
        a_step(fast, 0)
        assert list(fast.pull("w", [0, 1]).result(PATIENCE)) == [step + 1, 0]
    assert kv.stats("w").get("waited", 0) == 0
    for worker in (fast, slow):
        worker.close()


def test_a_client_has_no_clock_and_never_waits(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=2, max_delay=0))
    (slow,) = entered(cluster, "slow")
    for step in range(3):
        kv.push("w", [0], [1.0]).result(PATIENCE)
        assert list(kv.pull("w", [0]).result(PATIENCE)) == [step + 1]
    with pytest.raises(Invalid, match="only a worker"):
        kv.park()
    slow.close()


def test_a_newcomer_is_level_with_the_slowest(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=3, max_delay=2))
    fast, slow = entered(cluster, "fast", "slow")
    for _ in range(3):
        a_step(slow, 1)
    for _ in range(5):
        a_step(fast, 0)
    (late,) = entered(cluster, "late")
    assert late.clock == 3
    # The newcomer has not set it back.
    assert list(fast.pull("w", [0, 1]).result(PATIENCE)) == [5, 3]
    a_step(fast, 0)
    # But workers wait for the newcomer like for any other.
    assert "late at step 3" in until_it_waits(fast.pull("w", [0]))
    for worker in (fast, slow, late):
        worker.close()


# ---------------------------------------------------------------- what ends a wait


@pytest.fixture
def waiting(cluster: shoal.Cluster, kv: shoal.KV) -> Iterator[tuple[shoal.KV, shoal.KV, shoal.Task]]:
    """Yield the fast worker, the slow one, and the fast one's pull that waits for it."""
    kv.create("w", shoal.Dense(rows=2, max_delay=1))
    fast, slow = entered(cluster, "fast", "slow")
    for _ in range(2):
        a_step(fast, 0)
    pull = fast.pull("w", [0, 1])
    assert "slow at step 0" in until_it_waits(pull)
    with pytest.raises(TimedOut, match="slow at step 0"):
        pull.result(0.1)
    assert kv.stats("w")["waiting"] >= 1
    yield fast, slow, pull
    for worker in (fast, slow):
        worker.close()


def test_a_wait_ends_when_the_slow_worker_takes_its_step(waiting: tuple[shoal.KV, shoal.KV, shoal.Task]) -> None:
    _, slow, pull = waiting
    a_step(slow, 1)
    assert list(pull.result(PATIENCE)) == [2, 1]


def test_a_wait_ends_when_the_slow_worker_parks(waiting: tuple[shoal.KV, shoal.KV, shoal.Task]) -> None:
    fast, slow, pull = waiting
    slow.park().result(PATIENCE)
    assert list(pull.result(PATIENCE)) == [2, 0]
    for _ in range(4):  # nobody waits for a parked worker, however long
        a_step(fast, 0)
        fast.pull("w", [0, 1]).result(PATIENCE)
    # It is back, at the same step as the others.
    assert list(slow.pull("w", [0, 1]).result(PATIENCE)) == [6, 0]
    assert slow.clock == fast.clock
    a_step(fast, 0)
    a_step(fast, 0)
    assert "slow at step 6" in until_it_waits(fast.pull("w", [0]))  # and others wait for it again


def test_a_wait_ends_when_the_slow_worker_leaves(waiting: tuple[shoal.KV, shoal.KV, shoal.Task]) -> None:
    _, slow, pull = waiting
    slow.close()
    assert list(pull.result(PATIENCE)) == [2, 0]


def test_a_wait_ends_when_the_bound_is_lifted(kv: shoal.KV, waiting: tuple[shoal.KV, shoal.KV, shoal.Task]) -> None:
    fast, _, pull = waiting
    kv.set_max_delay("w", None)
    assert list(pull.result(PATIENCE)) == [2, 0]
    kv.set_max_delay("w", 1)  # the bound can be set again
    assert "slow at step 0" in until_it_waits(fast.pull("w", [0]))


def test_a_wait_ends_when_the_bound_is_widened_enough(
    kv: shoal.KV, waiting: tuple[shoal.KV, shoal.KV, shoal.Task]
) -> None:
    fast, _, pull = waiting
    a_step(fast, 0)
    later = fast.pull("w", [0, 1])
    kv.set_max_delay("w", 2)
    # It was two ahead when it was sent, which is allowed now.
    assert list(pull.result(PATIENCE)) == [3, 0]
    assert "slow at step 0" in until_it_waits(later)  # three ahead
    kv.set_max_delay("w", 3)
    assert list(later.result(PATIENCE)) == [3, 0]


def test_a_wait_ends_when_the_table_is_dropped(kv: shoal.KV, waiting: tuple[shoal.KV, shoal.KV, shoal.Task]) -> None:
    _, _, pull = waiting
    kv.drop("w")
    with pytest.raises(shoal.ShoalError, match="was dropped while"):
        pull.result(PATIENCE)


def test_one_step_may_push_to_several_tables(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    for table in ("w", "bias"):
        kv.create(table, shoal.Dense(rows=2, max_delay=0))
    fast, slow = entered(cluster, "fast", "slow")
    for worker in (fast, slow):
        worker.pull("bias", [0]).result(PATIENCE)
    for table in ("w", "bias"):
        fast.push(table, [0], [1.0], step=1).result(PATIENCE)
    assert fast.clock == 1
    pulls = [fast.pull(table, [0, 1]) for table in ("w", "bias")]
    slow.push("w", [1], [1.0], step=1).result(PATIENCE)
    assert list(pulls[0].result(PATIENCE)) == [1, 1]
    assert "slow at step 0" in until_it_waits(pulls[1])  # its step has not reached this table yet
    slow.push("bias", [1], [1.0], step=1).result(PATIENCE)
    assert list(pulls[1].result(PATIENCE)) == [1, 1]
    for worker in (fast, slow):
        worker.close()


# ---------------------------------------------------------------- staleness and void slots


def test_the_servers_count_how_stale_each_push_was(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=1))  # one row, so one segment
    other = cluster.client()
    first = kv.pull("w", [0])
    first.result(PATIENCE)
    for _ in range(3):
        # It never pulled, so its staleness is not known.
        other.push("w", [0], [1.0]).result(PATIENCE)
    kv.push("w", [0], [1.0]).result(PATIENCE)  # three versions behind what it read
    kv.pull("w", [0]).result(PATIENCE)
    kv.push("w", [0], [1.0]).result(PATIENCE)  # fresh
    kv.push("w", [0], [1.0], of=first).result(PATIENCE)  # computed from the first pull: five behind
    assert kv.stats("w")["staleness"] == [1, 0, 0, 1, 0, 1]
    other.close()


def test_bounded_delay_bounds_staleness(cluster: shoal.Cluster, kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=1, max_delay=0))
    workers = entered(cluster, "ann", "bob", "cleo")
    # All pull, then all push: each is stale by the pushes before its own.
    for _ in range(4):
        kv.wait([worker.pull("w", [0]) for worker in workers], PATIENCE)
        for worker in workers:
            a_step(worker, 0)
    assert kv.stats("w")["staleness"] == [4, 4, 4]
    for worker in workers:
        worker.close()


@pytest.mark.parametrize(("combine", "expected"), [("sum", [5.0, 2.0]), ("mean", [2.5, 1.0])])
def test_a_void_slot_ends_its_step_and_takes_no_part_in_the_mean(
    kv: shoal.KV, combine: str, expected: list[float]
) -> None:
    kv.create("w", shoal.Dense(rows=2, apply=shoal.Step(slots=3, combine=combine), max_delay=0))  # type: ignore[arg-type]
    pushes = [kv.push("w", [0], [2.0], slot=(0, 0)), kv.push("w", [0, 1], [3.0, 2.0], slot=(0, 2))]
    following = kv.pull("w", [0, 1], slot=(0, 3))
    assert "slots 1 of step 0" in until_it_waits(following)
    pushes.append(kv.push("w", (), (), slot=(0, 1), void=True))
    assert list(following.result(PATIENCE)) == expected
    kv.wait(pushes, PATIENCE)
    stats = kv.stats("w")
    assert stats["void"] == len(stats["servers"])  # every server got it
    # It is computed after all, but too late, so it is not counted.
    kv.push("w", [0], [9.0], slot=(0, 1)).result(PATIENCE)
    assert list(kv.pull("w", [0, 1]).result(PATIENCE)) == expected


def test_a_step_of_void_slots_changes_nothing_and_is_over_all_the_same(kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=2, apply=shoal.Step(slots=2, combine="mean"), max_delay=0))
    kv.wait([kv.push("w", (), (), slot=(0, number), void=True) for number in range(2)], PATIENCE)
    assert list(kv.pull("w", [0, 1], slot=(0, 2)).result(PATIENCE)) == [0.0, 0.0]
    assert all(facts["version"] == 1 for facts in kv.stats("w")["servers"].values())


def test_a_step_waits_for_its_slots_and_says_which(kv: shoal.KV) -> None:
    kv.create("w", shoal.Sparse(keys=100, apply=shoal.Step(slots=4), max_delay=0))
    push = kv.push("w", [1, 99], [1.0, 1.0], slot=(0, 2))
    assert "slots 0, 1, 3 of step 0" in until_it_waits(push)
    ahead = kv.push("w", [1], [5.0], slot=(0, 4))  # a slot of the next step is held, not refused
    assert until_it_waits(ahead)
    # A pull reads nothing of an open step.
    assert list(kv.pull("w", [1]).result(PATIENCE)) == [0.0]
    others = [kv.push("w", [1], [1.0], slot=(0, number)) for number in (3, 0, 1)]
    kv.wait([push, *others], PATIENCE)
    assert not ahead.done
    assert list(kv.pull("w", np.array([1, 99]), slot=(0, 7)).result(PATIENCE)) == [4.0, 1.0]


def test_a_step_table_with_a_delay_lets_readers_run_ahead(kv: shoal.KV) -> None:
    kv.create("w", shoal.Dense(rows=1, apply=shoal.Step(slots=1), max_delay=2))
    for number in range(3):
        assert kv.pull("w", [0], slot=(0, number)).result(PATIENCE) == [0.0]
    waits = kv.pull("w", [0], slot=(0, 3))
    assert "version 1" in until_it_waits(waits)
    kv.push("w", [0], [1.0], slot=(0, 0)).result(PATIENCE)
    assert waits.result(PATIENCE) == [1.0]
