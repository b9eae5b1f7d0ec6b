"""A run on servers: servers, workers, the evaluator and the coordinator, and how they end.

    with ServerRun(job, dataset, listener) as run:      everything is up, or nothing is left
        run.add_worker()       at any time
        run.drain("worker-1")  finishes its slots, and leaves
        outcome = run.wait()

The evaluator is a thread of this process; the others are processes or threads, and end with it.
What is known here of the run is what the coordinator says of it: it may be killed and restarted.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.errors import ClusterError, Invalid, ShoalError, StoreError
from shoal.events import Evaluated, RunEvent, Stopped, Warned
from shoal.inspect.status import ADDRESS, PATIENCE, ClusterStatus, further, write_address
from shoal.job import Job
from shoal.launch import coordinator_process, worker_process
from shoal.launch.cluster import Cluster
from shoal.launch.local import ThreadCluster
from shoal.launch.processes import ProcessCluster, safety_of
from shoal.launch.resource_manager import ResourceManager
from shoal.nodes.evaluator import Evaluator
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.nodes.scheduler_journal import JournalSnapshot, ScheduleState
from shoal.nodes.trainer import Trainer
from shoal.nodes.worker import Worker
from shoal.store.checkpoint.manifest import Manifest
from shoal.store.client.task import Task
from shoal.tables import TABLE
from shoal.training.local_checkpoint import BestModel
from shoal.training.preflight import check, table_of
from shoal.training.tracked_run import RunStart
from shoal.training.tracker import RunResult, result_of
from shoal.wire import messages as m
from shoal.wire.messages.groups import member_name

Launcher = Callable[[Job, JournalFile], Cluster]  # where the nodes of a run are
NOTHING = m.RunProgress(0, 1, 1, 0, False, 0, 0.0, 0.0, 0, 0, "", "", False, {}, {})
_LOOK_WITHIN = 10.0  # seconds: a coordinator that was killed is back sooner


class ServerRun:
    """One run. Use as a context: leaving it ends everything that was started."""

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None] = lambda event: None,
        folder: Path | None = None,
        resume: tuple[Path, Manifest] | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        """``resume``: a checkpoint in the folder, from which the run continues."""
        self.learner = check(job, dataset)
        self._resume, self._goes_on = resume, resume is not None
        self.job, self.dataset = job, dataset
        self._listener = listener
        self._over, self._closed = threading.Event(), threading.Event()
        self._why = ""
        self._lock, self._listener_lock = threading.Lock(), threading.Lock()
        self._evaluated_last = False  # no more evaluations are reported
        self._numbers = 0
        self._threads: dict[str, tuple[threading.Thread, Trainer]] = {}
        self._broken = ""  # what went wrong outside the coordinator's sight
        self._folder = folder
        self._per_pass = job.slots(dataset.train.rows).per_pass
        self._course = msgspec.structs.replace(NOTHING, per_pass=self._per_pass)  # as last known
        journal = JournalFile(folder / "coordinator.journal" if folder is not None else None)
        self._cluster = (launcher or _cluster_of)(job, journal)
        self._cluster.train(coordinator_process.RunFacts.of(job, dataset, folder), self._on_event)
        if resume is not None:
            state = msgspec.json.decode(resume[1].state, type=ScheduleState)
            self._cluster.begin_with(msgspec.msgpack.encode(JournalSnapshot(state)))
        self._worker_end = threading.Condition()  # a worker has ended
        if isinstance(self._cluster, ProcessCluster):
            self._cluster.on_ended = self._worker_gone
        self._evaluator: Evaluator | None = None
        self._resources = ResourceManager(self, job, self._over, self._warn)

    def __enter__(self) -> ServerRun:
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
        threads = [name for name, (thread, _) in list(self._threads.items()) if thread.is_alive()]
        return [name for name in self.pids if name.startswith("worker")] + threads

    @property
    def pids(self) -> dict[str, int]:
        return self._cluster.pids if isinstance(self._cluster, ProcessCluster) else {}

    def look(self, seconds: float = _LOOK_WITHIN) -> m.StatusReply:
        standing = self._cluster.look(seconds)
        if standing.course is not None:
            self._course = standing.course
        return standing

    @property
    def course(self) -> m.RunProgress:
        """The progress, now or when the coordinator last answered."""
        if not self._cluster.ended and not self._closed.is_set():
            with contextlib.suppress(ShoalError):
                self.look(_LOOK_WITHIN if self._over.is_set() else PATIENCE)
        return self._course

    def status(self) -> ClusterStatus:
        return self._cluster.status()

    def signal(self, name: str, number: int) -> None:
        self.processes.signal(name, number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)

    def pause(self, name: str) -> None:
        self.signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.signal(name, signal.SIGCONT)

    @property
    def processes(self) -> ProcessCluster:
        if not isinstance(self._cluster, ProcessCluster):
            raise Invalid("a run of threads has no processes: set launch.how to 'processes'")
        return self._cluster

    def add_worker(self) -> str:
        """Start one more; it takes part as soon as it has joined."""
        with self._lock:
            name, self._numbers = f"worker-{self._numbers}", self._numbers + 1
        folder, cache = str(self.dataset.train.folder), worker_process.cache_bytes(self.job)
        orders = worker_process.WorkerSpec(self.job.toml(), folder, cache, self._cluster.group)
        if isinstance(self._cluster, ThreadCluster):
            transport = self._cluster._transport(name)
            trainer = worker_process.trainer_of(name, secrets.token_hex(8), transport, orders)
            trainer.learner.settle()  # or it would take as many threads as the evaluator left
            thread = threading.Thread(target=self._in_thread, args=(name, trainer, transport), name=name, daemon=True)
            self._threads[name] = (thread, trainer)
            thread.start()
        else:
            self.processes.fork(name, "worker", msgspec.to_builtins(orders))
        return name

    def add_server(self, n: int = 1) -> list[str]:
        """Start more servers; they get their share of the model during training."""
        return self._cluster.add_server(n)

    def remove_server(self, name: str) -> None:
        """Remove a server after others took over its segments."""
        self._cluster.remove_server(name)

    def drain(self, name: str) -> None:
        """Ask a worker to finish its slot, return the others, and leave."""
        if name in self._threads:
            self._threads[name][1].leave()
        elif name in self.workers:
            self.signal(name, signal.SIGTERM)
        else:
            raise Invalid(f"no worker {name!r} here (workers: {', '.join(self.workers)})")

    def wait(self, seconds: float | None = None) -> RunResult | None:
        """Until the run is over; None if ``seconds`` have passed first."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._over.wait(0.2 if deadline is None else max(0.0, min(0.2, deadline - time.monotonic()))):
            if self._cluster.ended or self._broken:
                self._why = self._why or self._cluster.ended or self._broken
                break
            if deadline is not None and time.monotonic() >= deadline:
                return None
        with self._worker_end:  # the last reports of the workers are part of the figures
            self._worker_end.wait_for(lambda: not self.workers or self._cluster.ended, limits.DRAIN / limits.SECOND)
        return self.outcome()

    def outcome(self) -> RunResult:
        course, evaluator = self.course, self._evaluator
        ended = self._over.is_set() and not course.failed
        judged = None
        if evaluator is not None:
            judged = evaluator.best if self.job.stop.keeps_best or course.failed else evaluator.last
        staleness: list[int] = []
        if ended:
            with contextlib.suppress(ClusterError, StoreError):
                staleness = self._client.stats(TABLE)["staleness"]
        return result_of(course, judged, self._why or "interrupted", not ended, staleness)

    def interrupted(self) -> RunResult:
        """End now: save and evaluate the model, if the servers answer."""
        self._why = self._why or "interrupted"
        pulled, workers = None, len(self.workers)
        if self._folder is not None and self.course.done:
            with contextlib.suppress(ShoalError, AttributeError):  # use the last checkpoint
                self._client.save(limits.DRAIN / limits.SECOND)
        with contextlib.suppress(ShoalError, AttributeError):  # or the last evaluated model
            pulled = self._client.pull(TABLE, slice(None), exact=True).result(limits.DRAIN / limits.SECOND)
        _ = self.course  # the last status
        self.close()  # before the evaluation, so that the checkpoint has all that was computed
        if self._evaluator is not None and pulled is not None:
            judged = self._evaluator.evaluate_now(pulled)
            with self._listener_lock:
                self._evaluated_last = True
                course = self.course
                self._listener(
                    Evaluated(
                        seconds=course.seconds,
                        number=judged.number,
                        passes=course.done / course.per_pass,
                        steps=course.steps,
                        examples=course.examples,
                        train_loss=None,
                        test_loss=judged.loss,
                        metrics=judged.metrics,
                        workers=workers,
                        best=self._evaluator.best is judged,
                    )
                )
        return self.outcome()

    def close(self) -> None:
        """End all processes; unfinished work is lost."""
        self._closed.set()
        self._resources.close()
        self.learner.release()
        if self._folder is not None:
            (self._folder / ADDRESS).unlink(missing_ok=True)
        self._cluster.close()
        for thread, _ in list(self._threads.values()):
            thread.join(limits.DRAIN / limits.SECOND)

    def _start(self) -> None:
        worker_process.warm()
        self.learner.settle()  # the evaluator takes no core from the workers
        self._cluster.start()
        if self._folder is not None and isinstance(self._cluster, ProcessCluster):
            write_address(self._folder, self._cluster.address)
        job = self.job
        table = table_of(job, self.learner, self._per_pass, self._folder or self._cluster.folder)
        self._client = self._cluster.client("launcher")
        if TABLE in self._client.tables():  # servers of an earlier process of this run
            self._goes_on = True
        elif self._resume is None:
            self._client.create(TABLE, table)
        else:
            path, manifest = self._resume
            (was,) = (one for one in manifest.tables if one.name == TABLE)
            self._client.create(TABLE, table, starts=was.starts, origin=str(path))
        self._start_evaluator()
        self._resources.start(self._cluster.workers_here(job.workers))

    def _start_evaluator(self) -> None:
        group, name = self._cluster.group, member_name("evaluator", self._cluster.group)
        worker = Worker(name, "evaluator", secrets.token_hex(8), group=group)
        worker.clock = time.monotonic_ns
        best = None
        if self._folder is not None and self.job.stop.saves_best:
            best = BestModel(self._folder / "best.safetensors", self.learner, self._listener)
        found = best.read() if best is not None and self._goes_on else None
        write = None if best is None else best.write
        self._evaluator = Evaluator(worker, self.learner, self.dataset.test, found, write)
        done = self._evaluator.start()
        loop = Loop(worker, self._cluster._transport(name))

        def ended(task: Task) -> None:
            if task.error is not None and not self._over.is_set():
                self._broken = f"the evaluator failed: {task.error}"
            loop.stop()

        done.then(ended)
        self._cluster._run(loop)

    def _in_thread(self, name: str, trainer: Trainer, transport: Any) -> None:
        try:
            worker_process.run(trainer, transport, self._closed.is_set)
        except BaseException as error:
            if not self._over.is_set() and not self._cluster.ended:
                self._cluster.tell_ended(name, f"{type(error).__name__}: {error}")
        finally:
            del self._threads[name]
            self._worker_gone()

    def _worker_gone(self, *_: str) -> None:
        self._resources.worker_ended()
        with self._worker_end:
            self._worker_end.notify_all()

    def _on_event(self, event: RunEvent) -> None:
        if self._over.is_set() and isinstance(event, Stopped):
            return  # a coordinator that was killed at the very end may say it twice
        self._course = further(self._course, event)
        with self._listener_lock:
            if not (self._evaluated_last and isinstance(event, Evaluated)):
                self._listener(event)
        if isinstance(event, Stopped):
            self._why = event.why
            self._over.set()

    def _warn(self, what: str) -> None:
        """Of something that the coordinator does not see."""
        with self._listener_lock:
            self._listener(Warned(seconds=self._course.seconds, what=what))


def _cluster_of(job: Job, journal: JournalFile) -> Cluster:
    if job.launch.how == "threads":
        return ThreadCluster(job.servers, tuple(job.launch.modules), journal, job.copies)
    return ProcessCluster(job.servers, job.launch, journal, job.copies, True, safety_of(job))


def open_run(start: RunStart, begin: Callable[[], None]) -> ServerRun:
    begin()
    return ServerRun(start.job, start.dataset, start.listener, start.folder, start.resume, start.launcher)
