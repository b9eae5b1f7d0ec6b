"""A gossip run: every worker has a model, and this process tracks them. It is their home.

It works in legs (``controller``), and while all workers rest the mean of their models is evaluated;
the clock stands still. A worker that is lost takes its model along: the slots it had reported stay
counted, since its neighbours have what it handed on, and the others compute the rest. A checkpoint
holds the mean: in a resumed run all workers begin from it, without their differences.
"""

from __future__ import annotations

import random
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from shoal.data.batch import Ids
from shoal.errors import Invalid
from shoal.events import RunEvent
from shoal.job import Job
from shoal.launch.process_main import Process, ProcessOrders
from shoal.launch.serverless_pool import BY_ITSELF, LOOK, PoolRun, PoolWorkerSpec, WorkerPool, name_of
from shoal.launch.worker_process import number_of
from shoal.models.linear import Floats
from shoal.nodes.loop import Loop
from shoal.security.safety import Safety
from shoal.store.table.update import rule_named
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip import Gossip
from shoal.strategies.gossip.controller import GossipController
from shoal.strategies.gossip.model import Consensus, assign_rows, check_size, describe_split, model_of
from shoal.strategies.gossip.topology import LINKS, Graph, keep_links
from shoal.strategies.gossip.worker import HOME, GossipWorker
from shoal.training.local_checkpoint import Snapshot, is_finite
from shoal.training.tracked_run import RunStart
from shoal.wire import Transport
from shoal.wire.effects import Effect
from shoal.wire.memory import Hub
from shoal.wire.zmq import ZmqTransport

MAIN = "shoal.strategies.gossip.run"


class GossipRun(PoolRun):
    out_of_memory = "no memory is left to evaluate the models: take a smaller one, or fewer workers"
    progress_word = "went on"
    dealt_again = ", and its slots are reassigned"

    def __init__(self, start: RunStart) -> None:
        job = start.job
        assert isinstance(job.strategy, Gossip)
        self._strategy = job.strategy
        graph, changed = graph_of(job, start.folder)
        graph.check(job.strategy.allow_disconnected)
        super().__init__(start)
        rule = rule_named(job.update.update().name)
        shape = (self.learner.keys, self.learner.width * (1 + rule.state))
        check_size(shape[0] * shape[1])
        position: tuple[int, Ids | None] = (0, None)
        if self.resume is not None:
            self.resume.check_shape(shape)
            position = self.resume.position
        _, shares, notes = assign_rows(job, self.dataset.train, job.workers)
        self._notes = [*changed, *notes]
        parts = Shards(self.tracker.slots, job.workers, shares, None, *position)
        self._spec = PoolWorkerSpec.of(job, self.dataset, self.resume)
        self._names = [name_of(number) for number in range(job.workers)]
        self._addresses = dict.fromkeys(self._names, "")
        self._ended: deque[tuple[str, str]] = deque()  # name, and why
        self.pool = WorkerPool(job, MAIN, self._on_ended, sockets=True)
        self._controller = GossipController(
            self._names,
            self._addresses,
            graph,
            parts,
            job.strategy.mode,
            job.strategy.split == "even",
            job.timing.intervals(),
        )
        self._controller.on_ready, self._controller.on_failed = self.tracker.joined, self._end_worker
        self._transport: Transport
        self._loop: Loop
        self._loops: dict[str, Loop] = {}  # of threads
        self._closing = False
        self._models = Consensus(self.learner, self.dataset.test, shape)
        self._counted_to = 0.0  # when time was counted last
        self._at: Snapshot | None = None  # the mean when all rested last, and how far the run was

    def __enter__(self) -> GossipRun:
        try:
            self.learner.settle()
            self._start()
            self._loop = Loop(self._controller, self._transport)
        except BaseException:
            self._close_workers()
            raise
        return self

    def close(self) -> None:
        super().close()
        try:
            self._close_workers()
        finally:
            self._loop.close()

    @property
    def workers(self) -> list[str]:
        return self._controller.living

    # ------------------------------------------------------------ workers: threads, or processes

    def _start(self) -> None:
        if not self.pool.has_processes:
            hub = Hub()
            self._transport = hub.open(HOME)
            for name in self._names:
                transport = hub.open(name)
                self._addresses[name] = transport.address
                self.pool.run_thread(name, partial(run_worker, name, self._spec, transport, self._add_loop))
            return
        self.pool.start("gossip")
        safety = Safety.local().checking(self.job.launch.checksums)
        self.pool.wait_until_started()  # the folder of sockets is there
        self._transport = ZmqTransport(HOME, self._bind(HOME), safety)
        home = self._transport.address
        for name in self._names:
            self.pool.fork(name, self._spec, bind=self._bind(name), coordinator=home, safety=safety.plain)
        # In place: the controller holds this dict.
        self._addresses.update(zip(self._names, self.pool.wait_until_running(self._names), strict=True))

    def _bind(self, name: str) -> str:
        return "tcp://127.0.0.1:*" if self.job.launch.transport == "tcp" else f"ipc://{self.pool.folder}/{name}"

    def _add_loop(self, name: str, loop: Loop) -> None:
        self._loops[name] = loop
        if self._closing:
            loop.stop()

    def _end_worker(self, name: str, why: str) -> None:
        self._ended.append((name, why))  # first: the end of its process comes later
        if self.pool.has_processes:
            self.pool.signal(name, signal.SIGKILL)
        elif name in self._loops:
            self._loops[name].stop()

    def _on_ended(self, name: str, why: str) -> None:
        """On another thread."""
        self._ended.append((name, why or BY_ITSELF))
        if not self.pool.closed:
            self._transport.wake()

    def _close_workers(self) -> None:
        self._closing = True
        for loop in list(self._loops.values()):
            loop.stop()
        self.pool.close()

    # ------------------------------------------------------------ legs

    def _announce(self) -> None:
        keep_links(self._controller.graph, self.folder)
        for note in self._notes:
            self.tracker.warn(note)
        self.listener(self._linked(rows=describe_split(self.job, self.dataset.train, self.job.workers)))
        self._carry_out(self._controller.begin(time.monotonic_ns()))

    def _start_done(self) -> bool:
        return self._controller.resting

    def _ready(self) -> None:
        self._counted_to = time.perf_counter()
        self._remember()
        resumed, self.resume = self.resume is not None, None  # it is as large as the model
        if resumed and len(self.workers) > 1 and self.tracker.room() > 0:
            self.tracker.warn(
                "resumed: every worker begins from the mean of all models, and their differences are not kept"
            )

    def _round(self) -> None:
        if self._controller.resting:
            stop, tracker = self.job.stop.seconds, self.tracker
            left = None if stop is None else stop - tracker.seconds
            self._reset_patience()
            self._carry_out(self._controller.next_leg(time.monotonic_ns(), tracker.room(), left))
        self._until_rest()

    def _until_rest(self) -> None:
        tracker = self.tracker
        while not self._controller.resting:
            self._attend()
        self._controller.end_leg(time.monotonic_ns())
        if not self._controller.states:
            tracker.take_back(*self._controller.counted)  # no worker has it now
            self._nobody_left()
            self._keep()
            return
        self._remember()
        self._controller.counted = [0, 0]
        self._tell_exchanges()
        if tracker.due or (tracker.why and tracker.unevaluated) or not is_finite(self._models.mean):
            self._evaluate()
        if self.checkpoints.due and not tracker.failed:
            self._keep()

    def _settle(self) -> None:
        """Let the leg end; unfinished slots are lost."""
        try:
            if self._begun and not self._controller.resting:
                self._until_rest()
        finally:
            self.tracker.take_back(*self._controller.counted)

    def _finish(self) -> None:
        super()._finish()
        self._carry_out(self._controller.dismiss())

    def _remember(self) -> None:
        models = [(one.slab, one.result) for one in self._controller.states.values()]
        # Where the graph fell apart, weights gather at the ends of its links: then all count alike.
        whole = self._controller.graph.directed and not self._controller.was_apart
        self._models.take([(slab, one.weight if whole else 1.0) for slab, one in models if slab is not None and one])
        self._at = self._position()

    def _position(self) -> Snapshot:
        parts = self._controller.parts
        return self._models.mean, parts.of_pass, parts.left(), self.tracker.state(), self.tracker.steps

    def _weights(self) -> Floats | None:
        return None if self._at is None else self._models.weights_in(self._at[0]).copy()

    def _evaluate(self) -> None:
        """Evaluate the mean, and how the models differ from it; the clock stands still."""
        began = time.perf_counter()
        spread = self._models.spread()
        if spread and self._strategy.mode == "sync":
            spread["rounds"] = float(self._controller.mixed)
        if spread and (pieces := len(self._controller.graph.parts)) > 1:
            spread["pieces"] = float(pieces)
        self.tracker.evaluate(self._models.weights_in(self._models.mean).copy(), spread)
        self._at = self._position()
        self._counted_to += time.perf_counter() - began

    def _keep(self) -> None:
        began = time.perf_counter()
        super()._keep()
        self._counted_to += time.perf_counter() - began

    def _snapshot(self) -> Snapshot | None:
        at = self._at
        return at if at is not None and at[3].done and is_finite(at[0]) else None

    # ------------------------------------------------------------ what workers report

    def _is_starting(self) -> bool:
        return not self._begun

    def _awaited(self) -> tuple[list[str], list[str]]:
        states = self._controller.states
        # One that is done with its slots is awaited, too: for answers, and for its model.
        awaited = [name for name, one in states.items() if one.slab is None]
        names = [name for name in awaited if states[name].result is None] or awaited
        lacked = {name for one in states.values() for name in one.waits_for}
        return awaited, [name for name in names if name in lacked and not states[name].waits_for] or names

    def _listen(self) -> bool:
        self._loop.turn(LOOK)
        new = self._controller.take_progress()
        progress = bool(new.steps) or bool(self._ended)
        while self._ended:
            self._end(*self._ended.popleft())
        tracker, now = self.tracker, time.perf_counter()
        tracker.sent, tracker.received = tracker.sent + new.sent, tracker.received + new.received
        if self._begun:
            took, self._counted_to = max(0.0, now - self._counted_to), now
            tracker.add(new.slots, new.rows, new.loss, took, new.spent)
        return progress

    def _end(self, name: str, why: str) -> None:
        loss = self._controller.lose(time.monotonic_ns(), name)
        if loss is None:
            return
        again, apart, effects = loss
        self.tracker.counts["slots dealt again"] += again
        self.tracker.workers = len(self.workers)
        self._lose(name, why, again)
        self._carry_out(effects)
        if not self.workers:
            return
        self.listener(self._linked(f"{name} is gone"))
        if apart:
            self.tracker.warn(
                f"without {name} the others are not connected any more ({self._controller.graph.words()}): "
                f"each group goes on, and they can never agree"
            )

    def _tell_exchanges(self) -> None:
        """Count the exchanges of the leg, and warn of those that only one side completed."""
        meetings, lost = self._controller.exchanges()
        self.tracker.counts["meetings"] += meetings
        if lost > 0:
            self.tracker.warn(
                f"exchanges with lost workers may be incomplete: the sum of all models moved by at most {lost:.3g}"
            )

    def _carry_out(self, effects: list[Effect]) -> None:
        self._loop.carry_out(effects)
        self._loop.transport.flush()

    def _linked(self, why: str = "", rows: str = "") -> RunEvent:
        pairs = self._strategy.mode == "async"
        return self._controller.graph.event(self.tracker.seconds, self._names, why, pairs, rows)


def graph_of(job: Job, folder: Path | None) -> tuple[Graph, list[str]]:
    """The graph that a run began with, or the one of the settings; and notes for the user.

    The links of a file are copied into the run's folder, since the file may change or be moved.
    """
    assert isinstance(job.strategy, Gossip)
    if job.strategy.topology != "file" or folder is None or not (folder / LINKS).is_file():
        return job.strategy.graph(job.workers, job.seed), []
    own = msgspec.structs.replace(job.strategy, edges=str(folder / LINKS)).graph(job.workers, job.seed)
    try:
        now = job.strategy.graph(job.workers, job.seed)
    except Invalid:  # the file may be gone
        return own, []
    if (now.links, now.directed) == (own.links, own.directed):
        return own, []
    return own, [
        f"{job.strategy.edges} has changed since the run began: the run goes on with its own links ({LINKS} in its folder)"
    ]


open_run = GossipRun.open


def run_worker(name: str, spec: PoolWorkerSpec, transport: Transport, began: Callable[[str, Loop], None]) -> None:
    """A worker in a thread or a process of its own; ``began`` gets its loop."""
    number = number_of(name)
    job, model = model_of(spec, number)
    assert isinstance(job.strategy, Gossip)
    node = GossipWorker(
        name,
        model,
        job.strategy.mode,
        chance=random.Random(f"meetings {job.seed} {number}"),
        pace=job.emulate.pace(number, job.seed),
        link=job.emulate.link,
        clock=time.monotonic_ns,
        traffic=lambda: transport.traffic,
        timing=job.timing.intervals(),
    )
    loop = Loop(node, transport)
    began(name, loop)
    try:
        while not node.over and not loop.stopped.is_set():
            loop.turn()
    finally:
        loop.close()


def main(orders: ProcessOrders, process: Process) -> None:
    transport = ZmqTransport(orders.name, orders.bind, Safety.of_plain(orders.safety))
    transport.connect(HOME, orders.coordinator)
    process.ready(transport.address)
    run_worker(orders.name, msgspec.convert(orders.work, PoolWorkerSpec), transport, lambda name, loop: None)
