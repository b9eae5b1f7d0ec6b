"""A client that is closed in order has its unwaited pushes counted, or says it cannot."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest

import shoal
from shoal.errors import BadKeys, Closed

PUSHES, ROWS = 300, 1_000
ONES = np.ones(ROWS, np.float32)


@pytest.fixture(params=[False, True], ids=["threads", "processes"])
def cluster(request: pytest.FixtureRequest) -> object:
    with shoal.local(servers=2, processes=request.param) as found:
        with found.client() as kv:
            kv.create("w", shoal.Dense(rows=ROWS))
        yield found


def counted(cluster: shoal.Cluster) -> list[float]:
    with cluster.client() as kv:
        return sorted(set(kv.pull("w", slice(None)).result(60).tolist()))


def test_a_block_that_ends_has_all_its_pushes_counted(cluster: shoal.Cluster) -> None:
    with cluster.client() as kv:
        for _ in range(PUSHES):
            kv.push("w", slice(None), ONES)
    assert counted(cluster) == [PUSHES]


def test_a_client_that_is_closed_has_all_its_pushes_counted(cluster: shoal.Cluster) -> None:
    kv = cluster.client()
    tasks = [kv.push("w", slice(None), ONES) for _ in range(PUSHES)]
    kv.close()
    assert all(task.done and task.error is None for task in tasks)
    assert counted(cluster) == [PUSHES]


def test_what_went_wrong_in_the_block_is_not_made_to_wait(cluster: shoal.Cluster) -> None:
    with pytest.raises(ZeroDivisionError), cluster.client() as kv:
        for _ in range(PUSHES):
            task = kv.push("w", slice(None), ONES)
        raise ZeroDivisionError
    with pytest.raises(Closed):
        task.result()


PROGRAM = """
import sys
import numpy as np, shoal
kv = shoal.connect(sys.argv[1])
for _ in range(300):
    kv.push("w", slice(None), np.ones(1_000, np.float32))
"""


def test_a_program_that_just_ends_has_all_its_pushes_counted() -> None:
    with shoal.local(servers=2, processes=True) as cluster:
        with cluster.client() as kv:
            kv.create("w", shoal.Dense(rows=ROWS))
        ended = subprocess.run([sys.executable, "-c", PROGRAM, cluster.address], capture_output=True, timeout=120)
        assert (ended.returncode, ended.stderr) == (0, b""), ended.stderr.decode()
        assert counted(cluster) == [PUSHES]


def test_pushes_that_cannot_be_counted_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with shoal.local(servers=1) as cluster, caplog.at_level(logging.WARNING, "shoal"):
        kv = cluster.client("ann")
        kv.create("w", shoal.Dense(rows=4))
        kv.create("steps", shoal.Dense(rows=1, apply=shoal.Step(slots=2)))
        # Nobody pushes the other slot.
        kv.push("w", [0], [1.0], after=[kv.push("steps", [0], [1.0], slot=(0, 0))])
        kv.close()
    assert "1 pushes of ann were not acknowledged when it was closed" in caplog.text


def test_what_filters_kept_back_is_told_of_when_a_client_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    with shoal.local(servers=1) as cluster, caplog.at_level(logging.WARNING, "shoal"):
        with cluster.client("bob") as kv:
            kv.create("w", shoal.Dense(rows=4, filters=[shoal.Significant(0.5)]))
            kv.push("w", slice(None), np.full(4, 0.25, np.float32)).result()
        assert "bob: filters of table 'w' hold back values of norm 0.5" in caplog.text
        caplog.clear()
        with cluster.client("ann") as kv:
            kv.push("w", slice(None), np.full(4, 0.25, np.float32)).result()
            kv.flush("w").result()
            assert kv.pull("w", [0]).result().tolist() == [0.25]
        assert not caplog.text


def test_a_slot_that_waits_for_others_does_not_keep_a_client_from_closing() -> None:
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=1, apply=shoal.Step(slots=2)))
        push = kv.push("w", [0], [1.0], slot=(0, 0))
        kv.close()
        with pytest.raises(Closed):
            push.result()


def test_values_to_be_assigned_under_one_key_twice_are_refused() -> None:
    """Other rules add up the values of one key; to assign the sum would be silently wrong."""
    with shoal.local(servers=2) as cluster, cluster.client() as kv:
        kv.create("set", shoal.Dense(rows=9, update=shoal.Assign()))
        kv.create("sum", shoal.Dense(rows=9))
        with pytest.raises(BadKeys, match="key 7 is given more than once, and update 'assign'"):
            kv.push("set", [8, 7, 7], [1.0, 2.0, 3.0])
        kv.push("set", [8, 7], [1.0, 2.0]).result()
        kv.push("sum", [8, 7, 7], [1.0, 2.0, 3.0]).result()
        assert kv.pull("set", [7, 8]).result().tolist() == [2.0, 1.0]
        assert kv.pull("sum", [7, 8]).result().tolist() == [5.0, 1.0]
