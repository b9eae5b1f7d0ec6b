"""The run under test: controls a training run from outside.

A thread watches the coordinator without being a member, and keeps its last snapshot: callers never
wait for a dead coordinator. A client of our own writes and reads the tally.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.chaos import audit
from shoal.chaos.audit import PushAudit, PushProbes
from shoal.chaos.plan import ChaosFault
from shoal.chaos.proxy import ProxiedCluster, Proxy
from shoal.client import KV
from shoal.data.datasets import Dataset
from shoal.errors import ShoalError
from shoal.events import RunEvent
from shoal.inspect.status import look_at
from shoal.job import Job
from shoal.launch.cluster import Cluster
from shoal.nodes.journal import JournalFile
from shoal.store.client.task import Task
from shoal.strategies.parameter_server.run import ServerRun
from shoal.tables import TABLE, TALLY
from shoal.wire import messages as m

LOOK_EVERY = 0.1  # seconds
LOOK_WITHIN = 1.0  # seconds until a query is repeated
READ_WITHIN = 30.0  # seconds: the tally may have to wait for a failover
RESTART_DELAY = 1.0  # seconds that a dead server or coordinator stays dead


class CountingJob(ServerRun):
    """A training run with a tally beside its model."""

    def _start_evaluator(self) -> None:
        self._client.create(TALLY, audit.TABLE)  # before any worker is there
        super()._start_evaluator()


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    view: m.View
    standing: m.StatusReply
    asked: float  # when, on the monotonic clock


class RunUnderTest:
    """Use as a context: leaving it ends all processes, also stopped ones."""

    _kv: KV  # of our own client

    def __init__(self, job: Job, dataset: Dataset, listener: Callable[[RunEvent], None], cuts: bool = False) -> None:
        """With ``cuts`` all messages go through a proxy, which can keep two nodes apart."""
        self.job = job
        self._proxy = Proxy() if cuts else None
        self.training = CountingJob(job, dataset, listener, launcher=self._proxied if cuts else None)
        self.probes = PushProbes()
        self.seen: ClusterSnapshot | None = None  # the last snapshot
        self._looked = threading.Event()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="shoal-chaos-look", daemon=True)

    def __enter__(self) -> RunUnderTest:
        with contextlib.ExitStack() as stack:
            if self._proxy is not None:
                stack.callback(self._proxy.close)
            self.training.__enter__()
            stack.callback(self.training.close)
            self.training.processes.supervisor.delay = RESTART_DELAY
            self._kv = self.training._cluster.client("nemesis")
            self._kv._client.dispatcher.patient = True  # a silent node may be back
            self._kv.tables()
            placed = next(one for one in self._kv._client.session.view.tables if one.name == TALLY)
            self.probes = PushProbes.for_segments(placed.starts)
            self._watcher.start()
            self._stack = stack.pop_all()
        return self

    def _proxied(self, job: Job, journal: JournalFile) -> Cluster:
        assert self._proxy is not None
        return ProxiedCluster(
            self._proxy.through, job.servers, job.copies, tuple(job.launch.modules), journal, restart=True
        )

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        for task in self._kv._client.dispatcher.failed:
            task.was_read = True  # the audit finds errors: ignore them here
        self._stack.close()
        self._watcher.join(2 * LOOK_WITHIN)

    def inject(self, fault: ChaosFault) -> None:
        with contextlib.suppress(ShoalError):  # the process has ended by itself, or the run is over
            match fault.kind:
                case "kill":
                    self.training.kill(fault.name)
                case "pause":
                    self.training.pause(fault.name)
                case "cut":
                    assert self._proxy is not None
                    self._proxy.apart |= {(fault.name, fault.other), (fault.other, fault.name)}
                case "join":
                    self.training.processes.fork(fault.name, "server", {})
                case "drain":
                    client, name = self._kv._client, fault.name
                    self._kv._call(lambda: client.ask(f"let {name} go", lambda request: m.Drain(request, name), m.Done))

    def end(self, fault: ChaosFault) -> None:
        if self._proxy is not None:
            self._proxy.apart -= {(fault.name, fault.other), (fault.other, fault.name)}
        with contextlib.suppress(ShoalError):
            if fault.kind == "pause":
                self.training.resume(fault.name)

    def next_look(self, seconds: float) -> None:
        """Wait for a newer snapshot, up to a time limit."""
        self._looked.clear()
        self._looked.wait(seconds)

    def _watch(self) -> None:
        looking = look_at(self.training._cluster.address)
        try:
            while not self._closing.wait(LOOK_EVERY):
                asked = time.monotonic()
                with contextlib.suppress(ShoalError):
                    standing = looking.look(LOOK_WITHIN)
                    self.seen = ClusterSnapshot(looking.view(LOOK_WITHIN), standing, asked)
                    self._looked.set()
        finally:
            looking.close()

    def owned(self, view: m.View, server: str) -> list[int]:
        """Segments of the tally that this server is the primary of."""
        places = [place for one in view.tables if one.name == TALLY for place in one.places]
        return [i for i, place in enumerate(places) if place.servers[:1] == [server]]

    def probe(self, segments: list[int], done: Callable[[], None]) -> None:
        """Push to these segments; ``done`` is called on another thread when all counted it."""
        keys, at = self.probes.keys[segments], np.array(segments)
        self.probes.sent[at] += 1

        def ended(task: Task) -> None:
            if task.error is None:
                self.probes.acknowledged[at] += 1
            done()

        self._kv.push(TALLY, keys, np.ones(len(keys), np.float32)).then(ended)

    def balance(self, rolled_back: bool = False) -> PushAudit:
        """Read the values on the servers and compare. Raises errors of the store."""
        if rolled_back:  # every slot must be there; acknowledgements of our own client are void
            self.probes.acknowledged[:] = 0
        course = self.training.course
        tally: Any = self._kv.pull(TALLY, slice(None)).result(READ_WITHIN)
        task = self._kv.pull(TABLE, slice(None))
        task.result(READ_WITHIN)
        # A run that the clock stops ends with any slots: which ones is not known.
        whole = self.job.stop.epochs is not None and course.done >= course.limit
        versions, per_pass = (_versions(task, course), course.per_pass) if whole else ({}, 0)
        sent = course.done + course.counts.get("slots dealt again", 0)
        return audit.balance(tally.keys, tally.values, course.done, sent, self.probes, versions, per_pass)


def _versions(task: Task, course: m.RunProgress) -> dict[str, int]:
    per_version = course.done / course.steps if course.in_steps and course.steps else 1.0
    return {
        f"segment {i} on {server}": round(version * per_version)
        for server, versions in task.versions.items()
        for i, version in enumerate(versions)
    }
