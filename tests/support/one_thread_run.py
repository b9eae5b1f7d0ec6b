"""Runs all nodes of a run in a simulated world without faults: nothing sleeps.

The loop is ``simulation.world.World``; this adds the nodes, and how a test reaches them. Messages
take about a millisecond, drawn from the seed, and none is lost unless a test says so (``drop``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shoal.data.datasets import Dataset
from shoal.events import RunEvent
from shoal.job import Job
from shoal.limits import SECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.factory import scheduler_for
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.server import Server
from shoal.nodes.trainer import Trainer
from shoal.settings_tree import changed
from shoal.simulation.training_world import TrainingNodes
from shoal.simulation.world import World
from shoal.store.client.task import Task
from shoal.wire import messages as m
from shoal.wire.effects import Event, Node, ProcessEnd, Tick

COORDINATOR = "coordinator"
JOB: dict[str, Any] = {
    # 25 slots in an epoch
    "data": {"source": "rcv1-like", "rows": 400, "features": 1_000, "batch": 16},
    "stop": {"epochs": 3},
    "servers": 2,
}
Kind = TypeVar("Kind", bound=RunEvent)


class CalmWorld:
    """Nodes on hosts with correct clocks, and a network that loses nothing."""

    def __init__(self, seed: int = 0) -> None:
        self.world, self.draw = World(seed), random.Random(seed)
        self.world.on_tell, self.world.after_event = self._told, self._after_event
        self.told: list[RunEvent] = []

    @property
    def nodes(self) -> Mapping[str, Node]:
        return {name: host.node for name, host in self.world.hosts.items()}

    @property
    def now(self) -> int:
        """The time that the nodes see."""
        return SECOND + self.world.now

    @property
    def journal(self) -> list[bytes]:
        """The journal on the coordinator's disk."""
        kept = self.world.journals.get(COORDINATOR)
        return [] if kept is None else list(kept.durable)

    @property
    def drop(self) -> Callable[[str, str, m.Message], bool]:
        """Whether a message from this sender to this node is lost."""
        return self.world.drop

    @drop.setter
    def drop(self, drop: Callable[[str, str, m.Message], bool]) -> None:
        self.world.drop = drop

    def board(self, node: Node) -> None:
        self.world.add(node)
        self.feed(node.name, Tick())  # it starts even if the test never lets time pass

    def serve(self, name: str) -> DrainableNode:
        """Adds a server, inside a DrainableNode as everywhere."""
        server = Server(name, f"token of {name}", f"memory:{name}")
        guest = DrainableNode(server, server.member)
        self.board(guest)
        return guest

    def feed(self, name: str, event: Event) -> None:
        self.world.tell(name, event)

    def turn(self) -> None:
        """Runs the next event."""
        self.world.turn()

    def until(self, done: Callable[[], bool], turns: int = 300_000) -> None:
        for _ in range(turns):
            if done():
                return
            self.turn()
        raise AssertionError(f"not done at {self.world.now / SECOND:.1f} s: {self.told[-3:]}")

    def kill(self, name: str) -> None:
        """Kills a node, and the launcher notices."""
        self.world.crash(name)
        self.feed(COORDINATOR, ProcessEnd(name, "killed by signal 9"))

    def all(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.told if isinstance(event, kind)]

    def _told(self, event: RunEvent) -> None:
        self.told.append(event)

    def _after_event(self, name: str) -> None:
        node = self.world.hosts[name].node if name in self.world.hosts else None
        if isinstance(node, DrainableNode) and node.end:  # its process ends
            self.world.end(name)


class Ship(CalmWorld):
    """All nodes of a run on a data set; job settings are given as ``strategy__max_delay=1``."""

    def __init__(self, rows: Dataset, seed: int = 0, cache: int = 1 << 30, **settings: Any) -> None:
        super().__init__(seed)
        changes = {name.replace("__", "."): value for name, value in settings.items()}
        self.job, self.rows = Job.of(changed(JOB, changes)), rows
        self.run = TrainingNodes(self.world, self.job, rows, add=self.board)
        self.run.cache = cache
        self._coordinate([])
        for i in range(self.job.servers):
            self.serve(f"server-{i}")
        self.launcher = self.run.client()
        made = self.launcher.start(self.run.create_tables(self.launcher, self.job.servers))
        self.until(lambda: made.done)
        assert made.error is None
        self.evaluator: Evaluator = self.run.start_evaluator()
        for i in range(self.job.workers):
            self.hire(f"worker-{i}")

    @property
    def trainers(self) -> dict[str, Trainer]:
        return self.run.trainers

    @property
    def ends(self) -> dict[str, Task]:
        """A task for every participant: done when it has nothing more to do."""
        return self.run.ends

    def hire(self, name: str) -> Trainer:
        return self.run.hire(name)

    def _after_event(self, name: str) -> None:
        super()._after_event(name)
        self.run.after_event(name)

    def kill(self, name: str) -> None:
        self.ends.pop(name, None)
        super().kill(name)

    def restart_coordinator(self) -> None:
        """Kills the coordinator; another one goes on from the journal on disk."""
        self.world.crash(COORDINATOR)
        self._coordinate(self.journal)

    def _coordinate(self, journal: list[bytes]) -> None:
        self.scheduler: Scheduler = scheduler_for(self.job, self.rows)
        made = Coordinator(copies=self.job.copies, journal=journal, scheduler=self.scheduler, moves=self.job.moves)
        self.board(made)

    def home(self) -> Ship:
        """Runs to the end of the run and of all participants."""
        self.until(lambda: all(task.done for task in self.ends.values()))
        return self

    def slots_done(self) -> int:
        return self.scheduler.workload.done

    @property
    def weights(self) -> Any:
        assert self.evaluator.last is not None
        return self.evaluator.last.weights
