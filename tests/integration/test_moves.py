"""Segments move on a real cluster under load (F11, F12).

No client sees an error, nothing is lost, and nothing is counted twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import shoal
from shoal.store.table.update import Sum
from shoal.tables import Dense, Sparse, Step, Table
from tests.support import PATIENCE

ROWS = 20_000
TABLES: dict[str, Table] = {
    "dense": Dense(rows=ROWS, update=Sum()),
    "sparse": Sparse(keys=1 << 20, update=Sum()),
    "steps": Dense(rows=ROWS, update=Sum(), apply=Step(slots=2)),
}
WORKERS = 2


class Crew:
    """Workers that add 1 to all rows again and again, and check their pushes by pulls."""

    def __init__(self, cluster: shoal.Cluster, spec: Table) -> None:
        self._cluster, self._steps = cluster, isinstance(spec.apply, Step)
        self.keys = np.arange(ROWS, dtype=np.uint64) * (50 if isinstance(spec, Sparse) else 1)
        self.done = [0] * WORKERS
        self.errors: list[str] = []
        self._last = 0  # number of steps that all workers take
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(one,)) for one in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def _work(self, place: int) -> None:
        try:
            self._push_and_pull(self._cluster.worker(), place)
        except Exception as error:
            self.errors.append(f"worker {place}: {type(error).__name__}: {error}")

    def _push_and_pull(self, kv: shoal.KV, place: int) -> None:
        ones, seen = np.ones(ROWS, np.float32), 0.0
        while not self._is_over(place):
            number = self.done[place]
            slot = (0, WORKERS * number + place) if self._steps else None
            kv.push("w", self.keys, ones, slot=slot).result(PATIENCE)
            self.done[place] += 1
            values = np.asarray(kv.pull("w", self.keys).result(PATIENCE))
            least = float(values.min())
            if least < seen or least < self.done[place]:
                self.errors.append(f"worker {place} read {least} after {seen}, having pushed {self.done[place]}")
            seen = least

    def _is_over(self, place: int) -> bool:
        """Say whether this worker is done.

        With steps, all workers do equally many, so that nobody waits for a worker that has ended.
        """
        if not self._stop.is_set():
            return False
        return not self._steps or self.done[place] >= self._last

    def until(self, pushes: int) -> None:
        """Wait until each worker has counted this many more pushes."""
        goal = [one + pushes for one in self.done]
        while any(one < most for one, most in zip(self.done, goal, strict=True)) and not self.errors:
            threading.Event().wait(0.005)  # nothing signals it: poll the workers' counts

    def stop(self) -> int:
        """Stop all workers, and return how many pushes were counted in all."""
        self._last = max(self.done) + 2
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        return sum(self.done)


def wait(condition: Callable[[], bool]) -> None:
    for _ in range(round(PATIENCE / 0.05)):
        if condition():
            return
        threading.Event().wait(0.05)  # then ask the coordinator again
    raise AssertionError("it did not come about")


def owners(cluster: shoal.Cluster) -> Counter[str]:
    places = (place for table in cluster.status().view.tables for place in table.places)
    return Counter(place.servers[0] for place in places)


CASES = [(kind, copies, False) for kind in TABLES for copies in (1, 2)] + [("dense", 1, True), ("steps", 2, True)]


@pytest.mark.variants(
    slow=["sparse-1-False", "sparse-2-False", "steps-1-False", "steps-2-False", "dense-1-True", "steps-2-True"]
)
@pytest.mark.parametrize(("kind", "copies", "processes"), CASES)
def test_servers_join_and_leave_under_load(kind: str, copies: int, processes: bool) -> None:
    with shoal.local(servers=2, copies=copies, processes=processes) as cluster:
        kv = cluster.client()
        kv.create("w", TABLES[kind])
        crew = Crew(cluster, TABLES[kind])
        crew.until(3)
        (new,) = cluster.add_server()
        wait(lambda: owners(cluster)[new] >= 5 and not cluster.look().moves)
        crew.until(3)
        cluster.remove_server("server-0")
        assert "server-0" not in owners(cluster)
        crew.until(3)
        total = crew.stop()
        assert not crew.errors
        values = np.asarray(kv.pull("w", crew.keys).result(PATIENCE))
        assert float(values.min()) == float(values.max()) == total
        assert {member.name for member in cluster.look().members if member.role == "server"} == {"server-1", new}
