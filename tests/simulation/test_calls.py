"""A query reads every row once, even if servers die while it runs.

No row is older than the last push that was acknowledged before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest

from shoal.errors import StoreError
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.server import Server
from shoal.nodes.worker import Worker
from shoal.simulation.world import World
from shoal.store import query as door
from shoal.tables import Dense, Sparse, Table
from shoal.wire.effects import ProcessEnd
from shoal.wire.messages import Call

ROWS, CALLS = 24, 12
SEEDS = 8


@pytest.fixture(autouse=True)
def _asks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(door, "_questions", {})

    @door.question()
    def everything(keys: Any, weights: Any, settings: Any) -> Any:
        return len(keys), keys, weights

    yield


@dataclass
class Scene:
    """Three servers with two copies of each segment: ann pushes while bob queries.

    ann adds 1 to every row again and again; bob queries all rows.
    """

    seed: int
    spec: Table
    begun: int = 0
    acknowledged: int = 0
    # Pushes acknowledged before, pushes begun until then, and what was found.
    asked: list[tuple[int, int, Any]] = field(default_factory=list)
    crashes: int = 0
    calls: int = 0  # messages of queries

    def __post_init__(self) -> None:
        self.world, self.random = World(self.seed), Random(f"{self.seed}/scene")
        weather = self.world.weather
        weather.loss, weather.repeat, weather.slow = self.random.choice([0, 0.02]), 0.05, 0.01
        self.world.add(Coordinator(copies=2))
        for number in range(3):
            self.world.add(self._server(number))
        for name, life in (("ann", self._push), ("bob", self._ask)):
            node = Worker(name, "client", name)
            self.world.add(node)
            node.start(life(node))
            self.world.tell(name)
        self.world.watch(self._sent, Call)

    def _server(self, number: int, life: int = 0) -> Server:
        return Server(f"server-{number}", f"life-{number}-{life}", f"memory:server-{number}")

    def _sent(self, sender: str, to: str, message: Any) -> None:
        """Sometimes kills a queried server, which restarts empty.

        It dies while it is queried, or after it has responded and others have not.
        """
        self.calls += 1
        if self.crashes >= 3 or self.calls < 5 or self.random.random() < 0.7 or not self._whole():
            return
        self.crashes += 1
        victim, after = to, self.random.randrange(25 * MILLISECOND)
        # This query is delayed, and bob learns the new placement later than the servers do.
        if self.random.random() < 0.5:
            cuts, now = self.world.weather.cuts, self.world.now
            cuts["bob", to], cuts["coordinator", "bob"] = now + 200 * MILLISECOND, now + 900 * MILLISECOND
            victim, after = f"server-{(int(to[-1]) + 1) % 3}", after + 50 * MILLISECOND
        self.world.at(self.world.now + after, lambda: self._crash(victim))

    def _whole(self) -> bool:
        roster: Any = next(host.node for name, host in self.world.hosts.items() if name == "coordinator")
        places = [place for table in roster.roster.tables.values() for place in table.places]
        return len(self.world.hosts) == 6 and all(len(one.servers) == 2 and not one.filling for one in places)

    def _crash(self, name: str) -> None:
        if not self._whole():
            self.crashes -= 1
            return
        self.world.crash(name)
        later, number = self.world.now + 10 * MILLISECOND, int(name[-1])
        self.world.at(later, lambda: self.world.tell("coordinator", ProcessEnd(name, "it was killed")))
        self.world.at(later + 300 * MILLISECOND, lambda: self._restart(number))

    def _restart(self, number: int) -> None:
        self.world.add(self._server(number, self.crashes))

    async def _push(self, worker: Worker) -> None:
        await worker.client.create("w", self.spec)
        while len(self.asked) < CALLS:
            self.begun += 1
            await worker.client.push("w", np.arange(ROWS), np.ones(ROWS, np.float32))
            self.acknowledged += 1
            await worker.sleep(self.random.randrange(20 * MILLISECOND))

    async def _ask(self, worker: Worker) -> None:
        while "w" not in worker.client.session.layouts or not self.acknowledged:
            await worker.sleep(MILLISECOND)
        while len(self.asked) < CALLS:
            before = self.acknowledged
            try:
                found = await worker.client.call("w", slice(None), "everything")
            except StoreError:
                continue  # timed out with an error; try again
            self.asked.append((before, self.begun, found))
            await worker.sleep(self.random.randrange(30 * MILLISECOND))

    def run(self) -> None:
        assert self.world.run(lambda: len(self.asked) == CALLS, 300 * SECOND, 400_000)


@pytest.mark.variants(slow=["sparse"])
@pytest.mark.parametrize("spec", [Dense(rows=ROWS), Sparse(keys=ROWS)], ids=["dense", "sparse"])
def test_a_question_is_asked_of_every_row_once_whoever_is_killed(spec: Table) -> None:
    crashes = moved = 0
    for seed in range(SEEDS):
        scene = Scene(seed, spec)
        scene.run()
        last = np.zeros(ROWS)
        for before, begun, found in scene.asked:
            assert found.keys.tolist() == list(range(ROWS)) and found.numbers.tolist() == [ROWS]
            values = found.values.ravel()
            assert (values >= before).all() and (values <= begun).all() and (values >= last).all()
            last = values
        crashes += scene.crashes
        moved += sum(
            host.node.client.session.counts["moved"] for host in scene.world.hosts.values() if host.node.name == "bob"
        )  # type: ignore[attr-defined]
    assert crashes > SEEDS // 2 and moved  # the faults did happen
