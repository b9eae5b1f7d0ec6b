"""All nodes of a run in one thread, with a seeded order of messages: nothing sleeps, and a run is a function of its seed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from shoal.data.arrays import sparse
from shoal.data.datasets import Dataset
from shoal.data.slots import Slots
from shoal.events import RunEvent
from shoal.filters import described
from shoal.job import Job
from shoal.launch.coordination import dealing_for
from shoal.launch.work import parts_of
from shoal.limits import SECOND
from shoal.models.learning import learner_of
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.rows import Rows as SparseRows
from shoal.nodes.server import Server
from shoal.nodes.trainer import Shelf, Trainer
from shoal.nodes.worker import Worker
from shoal.settings import changed
from shoal.store.task import Task
from shoal.strategies import TABLE
from shoal.strategies.turns import Turns
from shoal.wire import messages as m
from shoal.wire.effects import (
    Compute,
    Computed,
    Durable,
    Ended,
    Event,
    Node,
    Persist,
    Received,
    Send,
    Store,
    Stored,
    Tell,
    Tick,
    Wake,
)

JOB: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": 400, "features": 1_000, "batch": 16},  # a pass has 25 slots
    "stop": {"epochs": 3},
    "servers": 2,
}


class Ship:
    """All nodes of a run. Messages between two of them keep their order, all else is drawn by lot."""

    def __init__(self, rows: Dataset, seed: int = 0, cache: int = 1 << 30, **settings: Any) -> None:
        changes = {name.replace("__", "."): value for name, value in settings.items()}
        self.job, self.rows, self.cache = Job.of(changed(JOB, changes)), rows, cache
        self.dealing = dealing_for(self.job, rows)
        self.draw = random.Random(seed)
        self.now = 1_000 * SECOND
        self.nodes: dict[str, Node] = {}
        self.wakes: dict[str, int] = {}
        self.roads: dict[tuple[str, str], deque[Event]] = {}
        self.told: list[RunEvent] = []
        self.trainers: dict[str, Trainer] = {}
        self.ends: dict[str, Task] = {}
        self.drop: Callable[[str, str, m.Message], bool] = lambda sender, to, message: False
        self.journal: list[bytes] = []
        self.board(Coordinator(copies=self.job.copies, dealing=self.dealing, moves=self.job.moves))
        for i in range(self.job.servers):
            self.board(Server(f"server-{i}", "token", f"memory:server-{i}"))
        client = Worker("launcher", "client", "token")
        self.board(client)
        self.learner = learner_of(self.job.model, rows.train, self.job.seed)
        keys = self.learner.keys
        table = self.job.servers_strategy.table(keys, self.job.update.update(), self.dealing.workload.per_pass)
        table = msgspec.structs.replace(table, filters=described(self.job.filters))
        self.until(lambda: client.joined.done and len(client.member.view.members) == 1 + self.job.servers)
        made = client.client.create(TABLE, table)
        self.feed("launcher", Tick())
        self.until(lambda: made.done)
        assert made.error is None
        self.launcher = client
        self.evaluator = Evaluator(Worker("evaluator", "evaluator", "token"), self.learner, rows.test)
        self.ends["evaluator"] = self.evaluator.start()
        self.board(self.evaluator.worker)
        for i in range(self.job.workers):
            self.hire(f"worker-{i}")

    def board(self, node: Node) -> None:
        self.nodes[node.name] = node
        self.feed(node.name, Tick())

    def hire(self, name: str) -> Trainer:
        worker = Worker(name, "worker", "token")
        slots = self.dealing.workload.order
        assert isinstance(slots, Slots | Turns)
        if isinstance(slots, Turns):
            shelf: Shelf = parts_of(self.job, self.learner, slots)
        else:
            shelf = SparseRows(worker, sparse(self.rows.train), slots, self.job.linear.bias, self.cache)
        trainer = Trainer(
            worker,
            self.job.servers_strategy,
            self.learner,
            shelf,
            slots,
            lambda: (0, 0),
        )
        self.trainers[name] = trainer
        self.ends[name] = trainer.start()
        self.board(worker)
        return trainer

    def feed(self, name: str, event: Event) -> None:
        for effect in self.nodes[name].handle(self.now, event):
            match effect:
                case Send(to, message, arrays) if not self.drop(name, to, message):
                    self.roads.setdefault((name, to), deque()).append(Received(name, message, arrays))
                case Wake(at) if name in self.nodes:
                    self.wakes[name] = at
                case Compute(token, function):
                    self.roads.setdefault((name, name), deque()).append(Computed(token, function()))
                case Store(token, function):
                    self.roads.setdefault((name, name), deque()).append(Stored(token, function()))
                case Persist(token, record):
                    self.journal.append(record)
                    self.roads.setdefault((name, name), deque()).append(Durable(token))
                case Tell(happening):
                    self.told.append(happening)

    def turn(self) -> None:
        for name in [name for name, node in self.nodes.items() if getattr(node, "released", False)]:
            self.nodes.pop(name)  # it was let go, and its process ends
            self.wakes.pop(name)
        open_roads = [road for road, letters in self.roads.items() if letters]
        if open_roads:
            road = self.draw.choice(open_roads)
            event = self.roads[road].popleft()
            if road[1] in self.nodes:
                self.feed(road[1], event)
            return
        name = min(self.wakes, key=lambda one: (self.wakes[one], one))
        self.now = max(self.now, self.wakes[name])
        self.feed(name, Tick())

    def until(self, done: Callable[[], bool], turns: int = 60_000) -> None:
        for _ in range(turns):
            if done():
                return
            self.turn()
        raise AssertionError(f"not done at {self.now / SECOND:.1f} s: {self.told[-3:]}")

    def kill(self, name: str) -> None:
        self.nodes.pop(name)
        self.wakes.pop(name)
        self.ends.pop(name, None)
        self.feed("coordinator", Ended(name, "killed by signal 9"))

    def restart_coordinator(self) -> None:
        """The coordinator dies; of what was on its way, to it and from it, some arrives. Another goes on by the journal."""
        for road, letters in self.roads.items():
            if road == ("coordinator", "coordinator"):
                letters.clear()
            elif "coordinator" in road:  # in order: of what it said the last is lost, of what it was told the first
                arrives = self.draw.randrange(len(letters) + 1)
                for _ in range(len(letters) - arrives):
                    letters.pop() if road[0] == "coordinator" else letters.popleft()
        self.dealing = dealing_for(self.job, self.rows)
        self.board(
            Coordinator(copies=self.job.copies, journal=self.journal, dealing=self.dealing, moves=self.job.moves)
        )

    def home(self) -> Ship:
        """To the end of the run, and of all who take part."""
        self.until(lambda: all(task.done for task in self.ends.values()))
        return self

    def slots_done(self) -> int:
        return self.dealing.workload.done

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def weights(self) -> Any:
        assert self.evaluator.last is not None
        return self.evaluator.last.weights
