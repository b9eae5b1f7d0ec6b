"""A run under way on this machine: servers, workers, the evaluator and the coordinator, and how they end.

    training = Training(job, dataset, listener)
    with training:                  everything is up, or nothing is left
        training.add_worker()       at any time
        training.drain("worker-1")  finishes what it has begun, and goes
        outcome = training.wait()

The coordinator and the evaluator are threads of this process; servers and workers are processes or threads. Whatever
happens to this process, they end with it.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal import limits
from shoal.cluster.stopping import ENDLESS, Stopping
from shoal.cluster.workload import Workload
from shoal.data.datasets import Dataset
from shoal.data.labels import check_labels
from shoal.data.slots import Slots
from shoal.errors import ClusterError, Invalid, ShoalError
from shoal.events import Evaluated, RunEvent, Started, Stopped
from shoal.job import Job
from shoal.launch import work
from shoal.launch.local import Cluster, ThreadCluster
from shoal.nodes.dealing import Dealing
from shoal.nodes.evaluator import Evaluator, Judged
from shoal.nodes.loop import Loop
from shoal.nodes.storage import Journal
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.strategies import TABLE
from shoal.tables import Step

_CACHE_SHARE = 4  # a quarter of free memory may hold rows for the next pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves when it is over."""

    judged: Judged | None  # the model that is kept
    why: str  # it stopped
    failed: bool
    seconds: float  # from the first slot to the end
    computing: float  # to the last slot
    steps: int
    examples: int
    sent: int
    received: int
    staleness: list[int]  # how many pushes were counted that stale
    counts: dict[str, int]


class Training:
    """One run. Use as a context: leaving it ends everything that was started."""

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None] = lambda event: None,
        folder: Path | None = None,
    ) -> None:
        check(job, dataset)
        self.job, self.dataset = job, dataset
        self._listener = listener
        self._over, self._closed = threading.Event(), threading.Event()
        self._why = ""
        self._lock = threading.Lock()
        self._numbers = 0
        self._threads: dict[str, tuple[threading.Thread, Trainer]] = {}
        self._broken = ""  # what went wrong outside the coordinator's sight
        self.dealing = dealing_of(job, dataset)
        self._cluster = _cluster_of(job, Journal(folder / "coordinator.journal" if folder is not None else None))
        self._cluster.train(self.dealing, self._heard)
        self._gone = threading.Condition()  # a worker has ended
        if not isinstance(self._cluster, ThreadCluster):
            self._cluster.on_ended = self._worker_gone  # type: ignore[attr-defined]
        self._evaluator: Evaluator | None = None

    def __enter__(self) -> Training:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def workers(self) -> list[str]:
        """Those that were started here and have not ended."""
        pids = getattr(self._cluster, "pids", {})
        return [name for name in pids if name.startswith("worker")] + [
            name for name, (thread, _) in list(self._threads.items()) if thread.is_alive()
        ]

    @property
    def pids(self) -> dict[str, int]:
        """The processes, by name."""
        return dict(getattr(self._cluster, "pids", {}))

    def add_worker(self) -> str:
        """Start one more; it takes part as soon as it has joined."""
        with self._lock:
            name, self._numbers = f"worker-{self._numbers}", self._numbers + 1
        orders = work.Work(self.job.toml(), str(self.dataset.train.folder), self._cache_bytes())
        if isinstance(self._cluster, ThreadCluster):
            transport = self._cluster._transport(name)
            trainer = work.trainer_of(name, secrets.token_hex(8), transport, orders)
            thread = threading.Thread(target=self._in_thread, args=(name, trainer, transport), name=name, daemon=True)
            self._threads[name] = (thread, trainer)
            thread.start()
        else:
            self._cluster.fork(name, "worker", msgspec.to_builtins(orders))  # type: ignore[attr-defined]
        return name

    def drain(self, name: str) -> None:
        """Ask a worker to finish what it has begun, give the rest back, and go."""
        if name in self._threads:
            self._threads[name][1].leave()
        elif name in self.workers:
            self._cluster.signal(name, signal.SIGTERM)  # type: ignore[attr-defined]
        else:
            raise Invalid(f"no worker {name!r} here (workers: {', '.join(self.workers)})")

    def wait(self, seconds: float | None = None) -> Outcome | None:
        """Until the run is over; None if ``seconds`` have passed first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._over.wait(0.2 if deadline is None else max(0.0, min(0.2, deadline - time.monotonic()))):
            if self._cluster._ended or self._broken:
                self._why = self._why or self._cluster._ended or self._broken
                break
            if deadline is not None and time.monotonic() >= deadline:
                return None
        self._see_off()
        return self.outcome()

    def outcome(self) -> Outcome:
        """How it stands: at the end, or after an interruption."""
        dealing, evaluator = self.dealing, self._evaluator
        ended = self._over.is_set() and not dealing.failed
        judged = None
        if evaluator is not None:
            judged = evaluator.best if self.job.stop.keeps_best or dealing.failed else evaluator.last
        sent, received = dealing.traffic.totals()
        return Outcome(
            judged,
            self._why or "interrupted",
            not ended,
            dealing.seconds,
            dealing.computing_seconds,
            dealing.workload.steps,
            dealing.examples,
            sent,
            received,
            self._staleness() if ended else [],
            dict(dealing.counts),
        )

    def interrupted(self) -> Outcome:
        """Somebody wants it to end now: judge what the servers have, if they still answer, and say how it stands."""
        self._why = self._why or "interrupted"
        try:
            pulled = self._client.pull(TABLE, slice(None)).result(limits.DRAIN / limits.SECOND)
            if self._evaluator is not None:
                self._listener(self._told(self._evaluator.judge_now(pulled)))
        except (ShoalError, AttributeError):  # never begun, or servers that do not answer: what was judged last will do
            pass
        return self.outcome()

    def _told(self, judged: Judged) -> Evaluated:
        """An evaluation that nobody had asked for."""
        work = self.dealing.workload
        return Evaluated(
            seconds=self.dealing.seconds,
            number=judged.number,
            passes=work.done / work.per_pass,
            steps=work.steps,
            examples=self.dealing.examples,
            train_loss=None,
            test_loss=judged.loss,
            metrics=judged.metrics,
            workers=len(self.workers),
            best=self._evaluator is not None and self._evaluator.best is judged,
        )

    def close(self) -> None:
        """End everything; what is not finished is lost."""
        self._closed.set()
        self._cluster.close()
        for thread, _ in list(self._threads.values()):
            thread.join(limits.DRAIN / limits.SECOND)

    # ------------------------------------------------------------ inside

    def _start(self) -> None:
        work.warm()
        self._cluster.start()
        job = self.job
        per_pass = self.dealing.workload.per_pass
        table = job.strategy.table(job.model.keys(self.dataset.features), job.update.update(), per_pass)
        self._client = self._cluster.client("launcher")
        self._client.create(TABLE, table)
        self._start_evaluator()
        for _ in range(job.workers):
            self.add_worker()

    def _start_evaluator(self) -> None:
        worker = Worker("evaluator", "evaluator", secrets.token_hex(8))
        self._evaluator = Evaluator(worker, self.job.model, self.dataset.test)
        done = self._evaluator.start()
        loop = Loop(worker, self._cluster._transport("evaluator"))
        done.then(lambda task: self._evaluator_ended(task.error))
        done.then(lambda task: loop.stop())
        self._cluster._run(loop)

    def _evaluator_ended(self, error: Exception | None) -> None:
        if error is not None and not self._over.is_set():
            self._broken = f"the evaluator failed: {error}"

    def _see_off(self) -> None:
        """The workers have heard that it is over, and go: their last words are part of the figures."""
        with self._gone:
            self._gone.wait_for(lambda: not self.workers or self._cluster._ended, limits.DRAIN / limits.SECOND)

    def _in_thread(self, name: str, trainer: Trainer, transport: Any) -> None:
        try:
            work.run(trainer, transport, self._closed)
        except BaseException as error:
            if not self._over.is_set() and not self._cluster._ended:
                self._cluster._lost(name, f"{type(error).__name__}: {error}")
        finally:
            del self._threads[name]
            self._worker_gone()

    def _worker_gone(self, *_: str) -> None:
        with self._gone:
            self._gone.notify_all()

    def _heard(self, event: RunEvent) -> None:
        """On the coordinator's thread."""
        self._listener(event)
        if isinstance(event, Stopped):
            self._why = event.why
            self._over.set()

    def _staleness(self) -> list[int]:
        try:
            found: list[int] = self._client.stats(TABLE)["staleness"]
        except ClusterError:
            return []
        return found

    def _cache_bytes(self) -> int:
        if self.job.launch.cache_mb is not None:
            return self.job.launch.cache_mb * limits.MB
        import psutil

        free = int(psutil.virtual_memory().available)
        return min(limits.SLOT_CACHE, free // _CACHE_SHARE // self.job.workers)


def check(job: Job, dataset: Dataset) -> None:
    """Whatever would only be found out in the middle of the run."""
    kind: Any = "classes" if job.model.classes else "numbers"
    check_labels(dataset.train, kind)
    check_labels(dataset.test, kind, both=False)
    slots = -(-dataset.train.rows // job.data.batch)
    if slots > limits.LEDGER_WINDOW:
        raise Invalid(
            f"{slots:,} slots in a pass, at most {limits.LEDGER_WINDOW:,} are possible: "
            f"take larger ones (--set data.batch={-(-dataset.train.rows // limits.LEDGER_WINDOW)})"
        )


def dealing_of(job: Job, dataset: Dataset) -> Dealing:
    """What the coordinator needs to know."""
    slots = Slots(dataset.train.rows, job.data.batch, job.seed)
    table = job.strategy.table(job.model.keys(dataset.features), job.update.update(), slots.per_pass)
    step = table.apply if isinstance(table.apply, Step) else None
    workload = Workload(slots, ENDLESS, step)
    stopping = Stopping(job.stop)
    limit, reason = stopping.limit(
        slots.per_pass, None if job.stop.steps is None else workload.slots_until(job.stop.steps)
    )
    workload.limit = limit if limit >= ENDLESS else workload.slots_until(workload.steps_until(limit))
    every = ENDLESS
    if job.evaluate.every < ENDLESS / slots.per_pass:
        every = max(1, round(job.evaluate.every * slots.per_pass))
    started = Started(
        seconds=0.0,
        data=dataset.name,
        model=job.model.loss,
        strategy=job.strategy.name,
        workers=job.workers,
        servers=job.servers,
        seed=job.seed,
        cores=len(os.sched_getaffinity(0)),
        rows=dataset.train.rows,
        test_rows=dataset.test.rows,
        features=dataset.features,
        batch=job.data.batch,
        slots=slots.per_pass,
    )
    return Dealing(workload, stopping, started, every, reason)


def _cluster_of(job: Job, journal: Journal) -> Cluster:
    if job.launch.how == "threads":
        return ThreadCluster(job.servers, tuple(job.launch.modules), journal)
    from shoal.launch.processes import ProcessCluster

    return ProcessCluster(job.servers, job.launch.transport, tuple(job.launch.modules), journal)
