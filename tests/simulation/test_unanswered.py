"""A server that is alive and reachable is never called silent (I14).

This holds however many messages to it were lost at once.
"""

from __future__ import annotations

import pytest

from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.server import Server
from shoal.nodes.worker import Worker
from shoal.simulation.world import World
from shoal.store.client.task import Task
from shoal.tables import Dense
from shoal.wire import messages as m

PUSHES, ROWS = 400, 8


def _served(world: World, name: str) -> None:
    world.add(Server(name, name, address=f"memory:{name}"))


@pytest.mark.variants(slow=["1-*", "2-*"])
@pytest.mark.parametrize("lost", ["questions", "answers", "both"])
@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_pushes_that_were_lost_at_once_are_all_counted_once(seed: int, lost: str) -> None:
    """A live server is not called silent when a connection breaks with all pushes in flight."""
    world = World(seed)
    world.add(Coordinator(copies=2))
    for number in range(2):
        _served(world, f"server-{number}")
    ann, tasks = Worker("ann", "client", "ann"), list[Task]()

    async def life() -> None:
        await ann.client.create("w", Dense(rows=ROWS))
        world.drop = drop
        tasks.extend(ann.client.push("w", slice(0, ROWS), [1.0] * ROWS) for _ in range(PUSHES))
        for task in tasks:
            await task

    until: list[int] = []
    dropped = 0

    def drop(sender: str, to: str, message: m.Message) -> bool:
        nonlocal dropped
        until.append(world.now + 300 * MILLISECOND) if not until else None
        ours = (sender == "ann" and lost != "answers" and isinstance(message, m.Push)) or (
            to == "ann" and lost != "questions" and isinstance(message, m.Counted | m.RequestHeld)
        )
        dropped += ours and world.now < until[0]
        return ours and world.now < until[0]

    whole = ann.start(life())
    world.add(ann)
    assert world.run(lambda: whole.done, 60 * SECOND, 2_000_000)
    assert whole.error is None
    assert dropped >= PUSHES
    assert ann.client.session.counts["unanswered"] == 0
    assert [task.error for task in tasks if task.error is not None] == []
    found: list[list[float]] = []

    async def look() -> None:
        found.append((await ann.client.pull("w", slice(0, ROWS))).tolist())

    after = ann.start(look())
    world.tell("ann")
    assert world.run(lambda: after.done, 120 * SECOND, 4_000_000)
    assert found == [[float(PUSHES)] * ROWS]
