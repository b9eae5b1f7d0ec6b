"""The trainers and the evaluator of one run, on hosts of a simulated world: the real ones, as processes.

A process ends as it does outside: when nothing is left to compute it says good-bye; when its coroutine raised, the
launcher sees it end and tells whoever deals. A name that is hired again is another life, with another token and an empty
memory. Nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from shoal.data.datasets import Dataset
from shoal.job import Job
from shoal.limits import MILLISECOND
from shoal.models.learner import Learner
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.factory import make_judge, make_table, make_trainer
from shoal.nodes.strategy import TABLE, TALLY
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.simulation.world import World
from shoal.store.checkpoint.manifest import Manifest
from shoal.store.client.task import Task
from shoal.tables import Dense, Update
from shoal.wire.effects import Node, Send
from shoal.wire.messages.groups import member_name

CACHE = 1 << 30  # bytes of rows that a worker keeps
EVALUATOR, LAUNCHER = "evaluator", "launcher"


class TrainingNodes:
    """All of one run that is neither a server nor deals."""

    def __init__(
        self, world: World, job: Job, dataset: Dataset, group: str = "", add: Callable[[Node], object] | None = None
    ) -> None:
        """``add`` puts a node on a host of its own; by default one whose clock is right."""
        self.world, self.job, self.dataset, self.group = world, job, dataset, group
        self.learner: Learner = make_judge(job, dataset.train)
        self.per_pass = job.slots(dataset.train.rows).per_pass
        self.cache = CACHE
        self.trainers: dict[str, Trainer] = {}  # the present life of each
        self.ends: dict[str, Task] = {}  # of trainers and evaluators: done when it has nothing more to do
        self.evaluator: Evaluator | None = None
        self.everyone: list[Worker] = []  # all lives
        self.on_broken: Callable[[str, Exception], None] = lambda name, error: None  # a process ended with an error
        self.on_left: Callable[[str], None] = lambda name: None  # a process has done all that it was for
        self._add = add or world.add
        self._lives = 0

    # ------------------------------------------------------------ lives

    def hire(self, name: str) -> Trainer:
        """A new life of a worker: its name within the group."""
        trainer = self.trainer(name)
        self.trainers[trainer.worker.name] = trainer
        self.ends[trainer.worker.name] = trainer.start()
        self._add(trainer.worker)
        return trainer

    def trainer(self, name: str) -> Trainer:
        """Another one under this name, on no host yet."""
        number = name.rpartition("-")[2]
        worker = self._worker(name, "worker")
        return make_trainer(
            self.job, worker, self.dataset.train, self.cache, number=int(number) if number.isdecimal() else 0
        )

    def start_evaluator(self) -> Evaluator:
        worker = self._worker(EVALUATOR, "evaluator")
        self.evaluator = Evaluator(worker, self.learner, self.dataset.test)
        self.ends[worker.name] = self.evaluator.start()
        self._add(worker)
        return self.evaluator

    def client(self, name: str = LAUNCHER) -> Worker:
        """A plain member of the cluster, such as who creates the tables."""
        worker = self._worker(name, "client")
        self._add(worker)
        return worker

    def _worker(self, name: str, role: str) -> Worker:
        self._lives += 1
        name, token = member_name(name, self.group), f"{name}-{self._lives}"
        worker = Worker(name, role, token, seed=self._lives, group=self.group)
        self.everyone.append(worker)
        return worker

    def after_event(self, name: str) -> None:
        """A process that has nothing more to do ends."""
        task = self.ends.get(name)
        if task is None or not task.done or name not in self.world.hosts:
            return
        node = self.world.hosts[name].node
        if task.error is None and name in self.trainers and isinstance(node, Worker):
            for effect in node.leave():
                if isinstance(effect, Send):
                    self.world.send(name, effect.to, effect.message, effect.arrays)
        self.world.end(name)
        if task.error is None:
            self.on_left(name)
        else:
            self.on_broken(name, task.error)

    def close(self) -> None:
        """No coroutine outlives the world."""
        for worker in self.everyone:
            for coroutine, _, _ in worker._coroutines:
                coroutine.close()

    # ------------------------------------------------------------ the tables

    def create_tables(
        self, launcher: Worker, servers: int, tally: bool = False, origin: tuple[Path, Manifest] | None = None
    ) -> Task:
        """Done when they are there; with ``tally``, the account of every slot; as in a checkpoint, with ``origin``."""
        return launcher.start(self._create(launcher, servers, tally, origin))

    async def _create(self, launcher: Worker, servers: int, tally: bool, origin: tuple[Path, Manifest] | None) -> None:
        client = launcher.client
        while sum(member.role == "server" for member in client.view.members) < servers:
            await launcher.sleep(10 * MILLISECOND)
        specs = {TABLE: make_table(self.job, self.learner, self.per_pass)}
        if tally:
            specs[TALLY] = Dense(rows=self.tallied, update=Update("sum"), max_delay=None)
        known = {} if origin is None else {one.name: one for one in origin[1].tables}
        for name, spec in specs.items():
            make = partial(client.create, name, spec)
            was = known.get(name)  # a group's checkpoint names tables as the group does
            if was is None or origin is None:
                await make()
            else:
                await make(starts=was.starts, origin=str(origin[0]))

    @property
    def tallied(self) -> int:
        """Keys of the account: more than any slot's number, whichever rule ends the run."""
        return 1 << 12
