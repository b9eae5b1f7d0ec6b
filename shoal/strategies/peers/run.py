"""A run of peers: starts them, watches them, and reports events.

This process is not a peer: the peers assign slots, evaluate the model and decide the end among
themselves. If this process is killed its own peers end with it, and those that joined from
elsewhere go on. It reports at once when a process of its own has ended (the others would wait for
its silence to last), copies the weights that were evaluated, and writes checkpoints. Every wait for
an answer has a deadline; a peer that is silent is passed over for the next.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import deque

from shoal import limits
from shoal.errors import ClusterError, Invalid, Unanswered
from shoal.events import Stopped
from shoal.inspect.status import ADDRESS
from shoal.launch.process_main import state_of
from shoal.models.linear import Floats, Linear
from shoal.nodes.evaluator import EvaluatedModel
from shoal.strategies.peers.mesh import is_over
from shoal.strategies.peers.observer import LEFT, PeerEvents, PeerObserver
from shoal.strategies.peers.run_log import check_left, snapshot_of
from shoal.strategies.peers.worker import PeerWorkers
from shoal.training.local_checkpoint import Snapshot
from shoal.training.tracked_run import RunStart, TrackedRun
from shoal.training.tracker import RunResult
from shoal.wire.messages import peers as p

_CHECK = 0.1  # seconds between two checks
_ANSWER = 1.0  # seconds for one answer
_GIVE_UP = 120.0  # seconds without any answer


class PeerRun(TrackedRun):
    patience = 10.0  # seconds without an answer until a warning, then twice that, ...

    def __init__(self, start: RunStart) -> None:
        job = start.job
        if job.workers > limits.PEERS:
            raise Invalid(f"workers={job.workers}: at most {limits.PEERS} peers can be in one run")
        if job.launch.how == "mpi":
            raise Invalid("peers connect to each other directly, not over MPI: run it without --on mpi")
        super().__init__(start)
        self.events = PeerEvents(self.tracker, self.listener)
        if self.resume is not None:
            check_left(self.resume, self.tracker.slots.per_pass)
            self.events.evaluations = self.resume.facts.standing.evaluations
        self._workers = PeerWorkers(job, self.dataset, self.resume, self._ended)
        self.resume = None  # it is as large as the model
        self._ends: deque[tuple[str, str]] = deque()  # names of our processes that ended, and why
        self._wake = threading.Event()
        self._began, self._silent_since, self._reminders = False, math.inf, 0
        self._to_copy: deque[p.EvaluationDone] = deque()

    def __enter__(self) -> PeerRun:
        self.observer = PeerObserver(self._workers.open_observer())
        try:
            self.learner.settle()
            founders = self._workers.start(self.job.workers)
            self.observer.meet(founders)
            self._write_address(founders[0])
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        if self.folder is not None:
            (self.folder / ADDRESS).unlink(missing_ok=True)
        try:
            self._workers.close()
        finally:
            self.observer.close()
            super().close()

    @property
    def pids(self) -> dict[str, int]:
        return self._workers.pool.pids

    @property
    def workers(self) -> list[str]:
        """Those that were started here and have not ended, and those that joined from elsewhere."""
        return self._workers.running + [name for name in self.events.living if name not in self._workers.peers]

    def add_worker(self) -> str:
        names = {*self._workers.peers, *self._workers.failed, *self.events.names.values()}
        number = 1 + max((int(name.rpartition("-")[2]) for name in names), default=-1)
        through = [one for one in self.observer.known if not self._has_ended(one.life)]
        if not through:
            raise ClusterError("no peer is left that could give a newcomer the model: start the run again")
        peer = self._workers.add(number, through)
        self.observer.meet([peer])
        return peer.name

    def drain(self, name: str) -> None:
        """Ask a worker to finish, publish what it learned, and leave."""
        lives = [life for life, one in self.events.names.items() if one == name and life not in self.events.gone]
        if not lives:
            raise Invalid(f"no worker {name!r} here (workers: {', '.join(self.workers)})")
        self.observer.stop(lives[-1], "asked to leave", leave=True)

    def signal(self, name: str, number: int) -> None:
        self._workers.pool.signal(name, number)

    def interrupted(self) -> RunResult:
        """End the run now: the peers get a few seconds to finish, and evaluate the model."""
        tracker, deadline, ask_at = self.tracker, time.monotonic() + limits.DRAIN / limits.SECOND, 0.0
        while not tracker.why and time.monotonic() < deadline:
            if time.monotonic() >= ask_at and (to := self.observer.lead or next(iter(self._lives()), "")):
                self.observer.stop(to, "interrupted")
                ask_at = time.monotonic() + 1.0  # the message may be lost, or its receiver gone
            self._check()
            self._wake.wait(_CHECK / 2)
        if tracker.why and not tracker.ended:
            tracker.report_progress()
            self.listener(Stopped(seconds=tracker.seconds, why=tracker.why))
        tracker.why = tracker.why or "interrupted"
        self._copy_models()
        if not tracker.failed:
            self._keep()
        return tracker.outcome()

    def _begin(self) -> None:
        if self._began:
            return
        self._began = True
        self.tracker.begin(len(self._workers.peers))
        for name, why in self._workers.failed.items():
            self.tracker.warn(f"{name} did not start, and the others begin without it: {why}")

    def _round(self) -> None:
        self._check_deadline()
        self._check()
        if not self.tracker.why:
            self._wake.wait(_CHECK)
            self._wake.clear()

    def _finish(self) -> None:
        if self.checkpoints.has_some and not self.tracker.failed:
            self._keep()

    def _weights(self) -> Floats | None:
        return None  # the peers evaluate it

    def _lives(self) -> list[str]:
        return [peer.life for peer in self.observer.known if peer.life not in self.events.gone]

    def _check(self) -> None:
        self._report_ends()
        try:
            status = self.observer.status(self.events.evaluations, _ANSWER)
        except Unanswered:
            self._on_silence()
            return
        self._silent_since, self._reminders = math.inf, 0
        self.observer.meet(status.peers)
        for life, why in status.gone.items():
            (self.observer.forget if is_over(why) else self.observer.doubt)(life)
        lead = self.events.lead
        self._to_copy += self.events.update(status)
        if lead != self.events.lead:
            self._write_address(next((one for one in status.peers if one.life == status.lead), None))
        self._copy_models()
        if status.ended:
            self._end(status)
        elif self.checkpoints.due:
            self._keep()

    def _end(self, status: p.PeerStatus) -> None:
        self.tracker.why, self.tracker.failed = status.over, status.failed

    def _report_ends(self) -> None:
        """Tell all peers that a process ended, at each check, until one says that it is gone."""
        for name, why in list(self._ends):
            life = self._workers.peers[name].life
            self.events.why[life] = why
            self.observer.forget(life)
            if life in self.events.gone or not self._lives():
                self._ends.remove((name, why))
                self.events.mark_gone(life, why)
            for other in self._lives():
                self.observer.stop(other, why or LEFT, ended=life)

    def _on_silence(self) -> None:
        self._silent_since = min(self._silent_since, now := time.monotonic())
        silent = now - self._silent_since
        if not self._workers.running and (not self._lives() or silent > self.patience):
            self._report_ends()
            last = next(iter(reversed(self.events.gone.items())), None)
            who = f" (the last was {self.events.names.get(last[0], last[0])}: {last[1] or LEFT})" if last else ""
            # A worker that failed by an error of its own would fail again, however many there are.
            killed = last is None or not last[1] or "killed by signal" in last[1]
            how = "with more workers" if killed else "when the cause is fixed"
            self.tracker.fail(f"no worker is left to compute: start it again, {how}{who}")
        elif silent > _GIVE_UP:
            self.tracker.fail(f"no peer has answered for {silent:.0f} s: look at what they print, and start it again")
        elif silent >= self.patience * 2**self._reminders:
            self._reminders += 1
            stopped = [name for name, pid in self.pids.items() if state_of(pid) == "T"]
            which = f"{', '.join(stopped)} stopped (kill -CONT goes on)" if stopped else ", ".join(self.pids)
            self.tracker.warn(f"no peer has answered for {silent:.0f} s: waiting for {which}")

    def _copy_models(self) -> None:
        """Copy the weights of the newest and the best evaluation, from their peers."""
        while self._to_copy:
            one = self._to_copy.popleft()
            wanted = not self._to_copy or (one.best and not any(later.best for later in self._to_copy))
            if not wanted or self._has_ended(one.by):
                continue
            try:
                flat = self.observer.evaluated(one.by, one.number, lambda life=one.by: self._has_ended(life))  # type: ignore[misc]
            except (Unanswered, Invalid):
                flat = None
            if flat is None or flat.size != self.learner.keys * self.learner.width:
                continue  # lost with its peer: the next one is copied
            loss = math.inf if one.loss is None else one.loss
            weights = flat if isinstance(self.job.model, Linear) else flat.reshape(-1, self.learner.width)
            self.tracker.keep(EvaluatedModel(one.number, weights, loss, one.metrics), one.best)

    def _snapshot(self) -> Snapshot | None:
        for life in self._lives():
            with contextlib.suppress(Unanswered, Invalid):
                state, flat = self.observer.snapshot(life)
                if flat is not None:
                    counts = dict(self.tracker.counts)
                    return snapshot_of(state, flat, self.tracker.slots.per_pass, self.learner.keys, counts)
        if self._lives():
            self.tracker.warn("cannot keep the run: no peer sent its model in time")
        return None

    def _has_ended(self, life: str) -> bool:
        return life in self.events.gone or life in [self._workers.peers[name].life for name, _ in self._ends]

    def _ended(self, name: str, why: str) -> None:
        self._ends.append((name, why))
        self._wake.set()

    def _write_address(self, peer: p.Peer | None) -> None:
        if self.folder is None or peer is None or self.job.launch.how == "threads":
            return
        with contextlib.suppress(OSError):  # a full disk: then no peer can join by the folder
            handle = os.open(self.folder / ADDRESS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{peer.address}\n")


open_run = PeerRun.open
