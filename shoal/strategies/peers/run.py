"""A run of peers, as the process that was called has it: it starts them, watches, and tells what happens. It is no peer itself.

Nothing goes through it: slots are dealt, the model is judged and the end is decided among the peers, by the one that leads. If this
process is killed its own peers go with it, and those that joined from elsewhere go on. What it does for the run: it says at once when a
process of its own has ended (the others would wait for its silence to last), copies the weights that were judged, and keeps the run on
disk now and then. Every wait for an answer has a deadline; whoever is silent is passed over for the next.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.data.slots import Slots
from shoal.errors import ClusterError, Invalid, Unanswered
from shoal.events import RunEvent, Stopped, Warned
from shoal.inspect.status import ADDRESS
from shoal.job import Job
from shoal.launch.process_main import state_of
from shoal.models.linear import Floats, Linear
from shoal.nodes.evaluator import Judgement
from shoal.strategies.peers.checkpoint import check_left, keep
from shoal.strategies.peers.events import LEFT, PeerEvents
from shoal.strategies.peers.mesh import is_over
from shoal.strategies.peers.observer import PeerObserver
from shoal.strategies.peers.processes import PeerCrew, crew_of
from shoal.strategies.peers.settings import PeerToPeer
from shoal.training.local_checkpoint import BestModel, LocalCheckpoint, LocalCheckpoints
from shoal.training.preflight import check
from shoal.training.run import RunStart
from shoal.training.tracker import RunResult
from shoal.wire.messages import RunProgress
from shoal.wire.messages import peers as p
from shoal.wire.messages.peers import Peer, PeerStatus

_LOOK = 0.1  # seconds between two looks
_ANSWER = 1.0  # seconds: who does not say how it stands by then is passed over, for now
_GIVE_UP = 120.0  # seconds without a word from anybody


class PeerRun:
    """One run. Use as a context, as ``Training``."""

    patience = 10.0  # seconds without a word until it is told, then twice that, ...

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None],
        folder: Path | None = None,
        kept: LocalCheckpoint | None = None,
    ) -> None:
        """With ``kept``, what a former life of the run has left, it goes on from there."""
        assert isinstance(job.strategy, PeerToPeer)
        if job.workers > limits.PEERS:
            raise Invalid(f"workers={job.workers}: at most {limits.PEERS} peers can be in one run")
        if job.launch.how == "mpi":
            raise Invalid("peers call each other by addresses of their own, not over MPI: leave --on mpi away")
        self.learner = check(job, dataset)
        self.job, self.dataset, self._listener, self._folder = job, dataset, listener, folder
        self._slots = Slots(dataset.train.rows, job.data.batch, job.seed)
        self.story = PeerEvents(job, self._slots, listener)
        start = self.learner.start()
        self._keeper = LocalCheckpoints(folder, job, "" if start is None else start[1], listener)
        self._best: BestModel | None = None
        if folder is not None and job.stop.keeps_best:
            self._best = BestModel(folder / "best.safetensors", self.learner, listener)
        self._kept: dict[bool, Judgement] = {}  # by whether it is the best: the last that was copied, and the best
        if kept is not None:
            check_left(kept, self._slots.per_pass)
            self.story.goes_on_from(kept.facts.standing.evaluations, kept.facts.standing.seconds)
            if self._best is not None and (found := self._best.read()) is not None:
                self._kept[True] = found
        self._crew: PeerCrew = crew_of(job, dataset, None if kept is None else kept.path, self._ended)
        self._ends: deque[tuple[str, str]] = deque()  # names of peers of ours whose process ended, and why
        self._news = threading.Event()
        self._watching: PeerObserver | None = None
        self._began = False
        self._why, self._failed, self._over = "", False, False
        self._interrupted = False
        self._silent_since = math.inf
        self._reminded = 0
        self._to_copy: deque[p.EvaluationDone] = deque()
        self.final: dict[str, Floats] = {}  # weights of each peer at the end, by name; if ``compare`` is set
        self.compare = False

    # ------------------------------------------------------------ the beginning and the end

    def __enter__(self) -> PeerRun:
        try:
            self.learner.settle()
            founders = self._crew.start(self.job.workers)
            self._watching = PeerObserver(self._crew.eyes())
            self._watching.meet(founders)
            self._write_address(founders[0])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started here."""
        if self._folder is not None:
            (self._folder / ADDRESS).unlink(missing_ok=True)
        try:
            self._crew.close()
        finally:
            if self._watching is not None:
                self._watching.close()
            self.learner.release()

    # ------------------------------------------------------------ who is there

    @property
    def pids(self) -> dict[str, int]:
        return self._crew.pids

    @property
    def workers(self) -> list[str]:
        """Those that were started here and have not ended, and those that came from elsewhere and are here."""
        here = self._crew.here
        return here + [name for name in self.story.living if name not in self._crew.peers]

    @property
    def address(self) -> str:
        """Of the one that leads, or of any: whoever wants to join asks there."""
        watching = self._eyes
        known = {peer.life: peer for peer in watching.known}
        return known[watching.lead].address if watching.lead in known else next(iter(known.values())).address

    def add_worker(self) -> str:
        """Start one more; it learns as soon as it has the model."""
        number = 1 + max((int(name.rpartition("-")[2]) for name in self._names()), default=-1)
        through = [one for one in self._eyes.known if not self._has_ended(one.life)]
        if not through:
            raise ClusterError("no peer is here whom a newcomer could ask for the model: start the run again")
        peer = self._crew.add(number, through)
        self._eyes.meet([peer])
        return peer.name

    def drain(self, name: str) -> None:
        """Ask a worker to finish what it is at, say what it learned, and go."""
        lives = [life for life, one in self.story.names.items() if one == name and life not in self.story.gone]
        if not lives:
            raise Invalid(f"no worker {name!r} here (workers: {', '.join(self.workers)})")
        self._eyes.stop(lives[-1], "asked to leave", leave=True)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        self._crew.signal(name, number)

    # ------------------------------------------------------------ how it goes

    @property
    def course(self) -> RunProgress:
        return self.story.course(self._why, self._failed, self._over, self._counts())

    def outcome(self) -> RunResult:
        account, story = self.story.account, self.story
        judged = self._kept.get(self.job.stop.keeps_best or self._failed) or self._kept.get(False)
        sent, received = account.moved if account else (0, 0)
        done = account.done if account else 0
        return RunResult(
            judged,
            self._why or "interrupted",
            self._failed or not self._over,
            story.seconds,
            story.seconds,
            done,
            account.rows if account else 0,
            sent,
            received,
            list(account.staleness) if account else [],
            self._counts(),
        )

    def wait(self, seconds: float | None = None) -> RunResult | None:
        """Until it is over; None if ``seconds`` have passed first: then it may be waited for again."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        self._begin()
        while not self._over:
            if time.monotonic() >= deadline:
                return None
            self._look()
            if not self._over:
                self._news.wait(_LOOK)
                self._news.clear()
        return self.outcome()

    def interrupted(self) -> RunResult:
        """The peers are told; they finish what they are at, and the model is judged. Whoever takes too long is left behind."""
        deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        asked, self._interrupted = 0.0, True
        while not self._over and time.monotonic() < deadline:
            if time.monotonic() >= asked and (to := self._eyes.lead or next(iter(self._lives()), "")):
                self._eyes.stop(to, "interrupted")
                asked = time.monotonic() + 1.0  # it may have been lost, or its receiver gone
            self._look()
            self._news.wait(_LOOK / 2)
        self._why = self._why or "interrupted"
        if not self._over:
            self._copy()
            self._keep()
        self._over = False  # it was not to end yet
        return self.outcome()

    # ------------------------------------------------------------ looking

    @property
    def _eyes(self) -> PeerObserver:
        assert self._watching is not None, "not begun"
        return self._watching

    def _lives(self) -> list[str]:
        return [peer.life for peer in self._eyes.known if peer.life not in self.story.gone]

    def _begin(self) -> None:
        if self._began:
            return
        self._began = True
        self.story.tell_started(self.dataset, len(self._crew.peers))
        for name, why in self._crew.failed.items():
            self._warn(f"{name} did not come up, and the others begin without it: {why}")

    def _look(self) -> None:
        """How it stands now, and what is to be done about that."""
        self._tell_ends()
        try:
            account = self._eyes.account(self.story.evaluations, _ANSWER)
        except Unanswered:
            self._nobody_answers()
            return
        self._silent_since, self._reminded = math.inf, 0
        self._eyes.meet(account.peers)
        for life, why in account.gone.items():
            if is_over(why):
                self._eyes.forget(life)
            else:
                self._eyes.doubt(life)
        lead = self.story.lead
        self._to_copy += self.story.hear(account)
        if lead != self.story.lead:
            self._write_address(next((one for one in account.peers if one.life == account.lead), None))
        self._copy()
        if account.ended:
            self._end(account)
        elif self._keeper.due:
            self._keep()

    def _tell_ends(self) -> None:
        """To everybody: they need not wait for its silence to last. Again with each look until somebody has said that it is gone."""
        for name, why in list(self._ends):
            life = self._crew.peers[name].life
            self.story.why[life] = why
            self._eyes.forget(life)
            if life in self.story.gone or not self._lives():
                self._ends.remove((name, why))
                self.story.tell_gone(life, why)
            for other in self._lives():
                self._eyes.stop(other, why or LEFT, ended=life)

    def _nobody_answers(self) -> None:
        now = time.monotonic()
        self._silent_since = min(self._silent_since, now)
        silent = now - self._silent_since
        if not self._crew.here and (not self._lives() or silent > self.patience):
            self._tell_ends()
            last = next(iter(reversed(self.story.gone.items())), None)
            who = f" (the last was {self.story.names.get(last[0], last[0])}: {last[1] or LEFT})" if last else ""
            # Those that ended by errors of their own would do so again, however many there are.
            sent_off = last is None or not last[1] or "killed by signal" in last[1]
            how = "with more workers" if sent_off else "when what ended them is mended"
            self._fail(f"no worker is left to compute: start it again, {how}{who}")
        elif silent > _GIVE_UP:
            self._fail(f"no peer has said anything for {silent:.0f} s: look at what they print, and start it again")
        elif silent >= self.patience * 2**self._reminded:
            self._reminded += 1
            stopped = [name for name, pid in self.pids.items() if state_of(pid) == "T"]
            which = f"{', '.join(stopped)} stopped (kill -CONT goes on)" if stopped else ", ".join(self.pids)
            self._warn(f"no peer has said anything for {silent:.0f} s: waiting for {which}")

    def _copy(self) -> None:
        """The weights of the newest evaluation, and of the best: who judged them has them, as long as it is there."""
        while self._to_copy:
            one = self._to_copy.popleft()
            wanted = not self._to_copy or (one.best and not any(later.best for later in self._to_copy))
            if not wanted or self._has_ended(one.by):
                continue  # nobody waits for one that is no more: the others are to hear of that
            try:
                flat = self._eyes.judged(one.by, one.number, lambda life=one.by: self._has_ended(life))  # type: ignore[misc]
            except (Unanswered, Invalid):
                flat = None
            if flat is None or flat.size != self.learner.keys * self.learner.width:
                continue  # with whoever judged it: the next one is copied
            loss = math.inf if one.loss is None else one.loss
            weights = flat if isinstance(self.job.model, Linear) else flat.reshape(-1, self.learner.width)
            judged = Judgement(one.number, weights, loss, one.metrics)
            self._kept[False] = judged
            if one.best:
                self._kept[True] = judged
                if self._best is not None:
                    self._best.write(judged)

    def _keep(self) -> None:
        """One peer's model and what it knows of the run, to disk."""
        for life in self._lives():
            with contextlib.suppress(Unanswered, Invalid):
                state, flat = self._eyes.whole(life)
                if flat is not None:
                    keep(self._keeper, state, flat, self._slots.per_pass, self.learner.keys, self._counts())
                    return
        if self._lives():
            self._warn("cannot keep the run: no peer gave its model in time")

    def _end(self, account: PeerStatus) -> None:
        self._why, self._failed = account.over, account.failed
        if (self._keeper.has_some or self._interrupted) and not self._failed:
            self._keep()
        if self.compare:
            for peer in account.peers:
                with contextlib.suppress(Unanswered):
                    _, flat = self._eyes.whole(peer.life)
                    if flat is not None:
                        self.final[peer.name] = flat.reshape(self.learner.keys, -1)[:, : self.learner.width]
        self._stopped()

    def _fail(self, why: str) -> None:
        self._why, self._failed = why, True
        self._stopped()

    def _stopped(self) -> None:
        self._over = True
        self.story.tell_progress()
        self._listener(Stopped(seconds=self.story.seconds, why=self._why))

    # ------------------------------------------------------------ details

    def _has_ended(self, life: str) -> bool:
        return life in self.story.gone or life in [self._crew.peers[name].life for name, _ in self._ends]

    def _ended(self, name: str, why: str) -> None:
        """On the thread that listens to the forkserver, or the peer's own."""
        self._ends.append((name, why))
        self._news.set()

    def _names(self) -> set[str]:
        return {*self._crew.peers, *self._crew.failed, *self.story.names.values()}

    def _counts(self) -> dict[str, int]:
        account = self.story.account
        counts: Counter[str] = Counter(account.counts if account else {})
        counts["workers lost"] = self.story.lost
        return dict(counts)

    def _write_address(self, peer: Peer | None) -> None:
        if self._folder is None or peer is None or self.job.launch.how == "threads":
            return
        with contextlib.suppress(OSError):  # a full disk: then nobody can join by the folder
            handle = os.open(self._folder / ADDRESS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(f"{peer.address}\n")

    def _warn(self, what: str) -> None:
        self._listener(Warned(seconds=self.story.seconds, what=what))


def open_run(start: RunStart, begin: Callable[[], None]) -> PeerRun:
    """The run, not yet begun."""
    run = PeerRun(start.job, start.dataset, start.listener, start.folder, start.resume)
    begin()
    return run
