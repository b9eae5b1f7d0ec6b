"""Every pull can return the vector clocks of its keys (S1-18).

All keys of a range with the same history share one clock (S1-19).
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import shoal
from shoal.store.server.vector_clock import VectorClock


@pytest.mark.parametrize("processes", [False, True])
def test_a_pull_tells_who_pushed_to_its_keys_and_how_often(processes: bool) -> None:
    with shoal.local(servers=2, processes=processes) as cluster:
        ann, bob = cluster.client("ann"), cluster.client("bob")
        ann.create("w", shoal.Dense(rows=1_000, update=shoal.Sum()))
        ann.push("w", slice(0, 1_000), np.ones(1_000)).result()
        bob.push("w", slice(200, 400), np.ones(200)).result()
        pull = ann.pull("w", slice(0, 1_000), clocks=True)
        pull.result()
        ann_is, bob_is = ann._client.session.incarnation, bob._client.session.incarnation
        found = {(keys.start, keys.stop): clock for keys, clock in pull.clocks}
        assert sum(stop - start for start, stop in found) == 1_000
        for (start, stop), clock in found.items():
            pushed = {ann_is: 1, bob_is: 1} if 200 <= start < 400 else {ann_is: 1}
            assert clock == VectorClock(pushed), f"keys {start} to {stop}"
            assert stop <= 200 or start >= 200  # split where bob's range begins
        assert not ann.pull("w", slice(0, 10)).clocks  # only on request


def test_a_segment_takes_its_clocks_along_when_its_server_is_killed() -> None:
    with shoal.local(servers=3, copies=2, processes=True) as cluster:
        ann = cluster.client("ann")
        ann.create("w", shoal.Dense(rows=960, update=shoal.Sum()))
        for _ in range(3):
            ann.push("w", slice(0, 960), np.ones(960)).result()
        os.kill(cluster.pids["server-1"], signal.SIGKILL)
        ann.push("w", slice(0, 960), np.ones(960)).result(60)
        pull = ann.pull("w", slice(0, 960), clocks=True)
        assert (pull.result(60) == 4).all()
        assert {clock[ann._client.session.incarnation] for _, clock in pull.clocks} == {4}
        assert sum(len(keys) for keys, _ in pull.clocks) == 960
