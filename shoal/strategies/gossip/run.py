"""A gossip run: every worker has a model, and this process keeps the score. It is their ``home``, and computes nothing.

It works in legs (``nodes.gossip_controller``). A leg is some slots for each, never past where the model is to be judged: the workers are
set off, tell how far they are, and rest when they are done, each with its model. While everybody rests the mean of all is judged, and
the clock stands still; where nothing is judged between two legs, time goes on.

A worker that is lost takes its model along. What it had told stays counted: its neighbours have it, as far as it was handed on. The rest
of its slots is the others', from the next leg on. Who is left goes on with new weights; if they are not connected any more, that is
told. One that is stopped (SIGSTOP) and holds up everybody is killed after a while; one that is only slow is waited for, and that is told.

What is kept, and taken up again, is the mean: everybody begins from it, and what set them apart is lost.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

from shoal import limits
from shoal.data.batch import Ids
from shoal.data.datasets import Dataset
from shoal.events import Gone, Joined, RunEvent, Warned
from shoal.job import Job
from shoal.launch.process_main import state_of
from shoal.models.linear import Floats
from shoal.nodes.loop import Loop
from shoal.store.table.update import rule_named
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip import edge_file
from shoal.strategies.gossip.consensus import Consensus
from shoal.strategies.gossip.legs import GossipController
from shoal.strategies.gossip.local_model import dealt, who_learns
from shoal.strategies.gossip.model import check_size
from shoal.strategies.gossip.processes import GossipWorkers
from shoal.strategies.gossip.settings import Gossip
from shoal.training.local_checkpoint import (
    LocalCheckpoint,
    LocalCheckpoints,
    LocalProgress,
    is_finite,
)
from shoal.training.preflight import check
from shoal.training.result import RunResult
from shoal.training.tracker import Tracker
from shoal.training.underway import RunStart
from shoal.wire.effects import Effect
from shoal.wire.messages import RunProgress

_LOOK = 0.05  # seconds between two looks at who has ended
_LONG = 300  # characters of a reason that is told again


class _GossipDeadline(Exception):
    """Nobody waits any longer."""


class GossipRun:
    """One run. Use as a context, as ``Training``."""

    patience: float  # seconds without a word until it is told who is waited for; who is stopped is killed then

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None],
        folder: Path | None = None,
        kept: LocalCheckpoint | None = None,
    ) -> None:
        """With ``kept``, what a former life of the run has left, it goes on from there."""
        assert isinstance(job.strategy, Gossip)
        graph, changed = edge_file.graph_of(job, folder)
        graph.check(job.strategy.allow_disconnected)
        self.learner = check(job, dataset)
        self.job, self.dataset, self._strategy, self._listener = job, dataset, job.strategy, listener
        self.patience = 2 * job.timing.intervals().dead / limits.SECOND
        rule = rule_named(job.update.update().name)
        self._shape = (self.learner.keys, self.learner.width * (1 + rule.state))
        check_size(self._shape[0] * self._shape[1])
        self.score = Tracker(job, dataset, self.learner, listener, folder)
        start = self.learner.start()
        self._keeper = LocalCheckpoints(folder, job, "" if start is None else start[1], listener)
        _, self._shares, notes = dealt(job, dataset.train, job.workers)
        self._notes, self._folder = [*changed, *notes], folder
        position: tuple[int, Ids | None] = (0, None)
        if kept is not None:
            kept.check_shape(self._shape)
            self.score.restore(kept.facts.standing)
            position = kept.position
        parts = Shards(self.score.slots, job.workers, self._shares, None, *position)
        self._workers = GossipWorkers(job, str(dataset.train.folder), "" if kept is None else str(kept.path))
        self._resumed = kept is not None
        self._legs = GossipController(
            self._workers.names,
            self._workers.addresses,
            graph,
            parts,
            job.strategy.mode,
            job.strategy.split == "even",
            job.timing.intervals(),
        )
        self._legs.on_ready, self._legs.on_failed = self._ready, self._workers.end
        self._home = self._legs.home
        self._loop: Loop
        self._apart = Consensus(self.learner, dataset.test, self._shape)
        self._told = self._begun = False  # that it starts; everybody has rested with its first model
        self._seen = 0.0  # up to when time is counted
        self._mean: Floats | None = None  # a slab, when all rested last: it is kept, and judged if it is interrupted
        self._at: tuple[LocalProgress, int, int, Ids] | None = None  # how far it was then
        self._last = ""  # who ended last, and why
        self._quiet, self._told_waiting = 0.0, 0  # seconds since somebody went on, and how often that was told
        self._deadline: float | None = None

    # ------------------------------------------------------------ the beginning and the end

    def __enter__(self) -> GossipRun:
        try:
            self.learner.settle()
            self._workers.start()
            self._loop = Loop(self._legs, self._workers.home)
        except BaseException:
            self._workers.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.learner.release()
        try:
            self._workers.close()
        finally:
            self._loop.close()

    @property
    def pids(self) -> dict[str, int]:
        return self._workers.pids

    @property
    def workers(self) -> list[str]:
        return self._legs.living

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        self._workers.signal(name, number)

    # ------------------------------------------------------------ how it goes

    @property
    def course(self) -> RunProgress:
        return self.score.course()

    def outcome(self) -> RunResult:
        return self.score.outcome()

    def wait(self, seconds: float | None = None) -> RunResult | None:
        """Until it is over; None if ``seconds`` have passed first: then it may be waited for again."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        try:
            self._begin()
            while not self.score.why:
                if self._legs.resting:
                    self._send_off()
                self._until_rest()
        except _GossipDeadline:
            return None
        except MemoryError:
            self.score.fail("no memory is left to judge the models: take a smaller one, or fewer workers")
        if self._keeper.has_some and not self.score.failed:
            self._keep()
        self._carry_out(self._legs.dismiss())
        return self.score.end()

    def interrupted(self) -> RunResult:
        """The leg that is under way is waited for; if that takes too long, what all had before it is judged, and kept."""
        score = self.score
        score.why = score.why or "interrupted"
        self._deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        with contextlib.suppress(_GossipDeadline):
            if self._begun and not self._legs.resting:
                self._until_rest()
        score.take_back(*self._legs.counted)
        self._keep()
        if score.unjudged and score.done and self._mean is not None:
            score.judge(self._apart.weights_in(self._mean).copy())
        return score.outcome()

    # ------------------------------------------------------------ legs

    def _begin(self) -> None:
        """The first models are judged when all have said theirs; who has died before that is not waited for."""
        score = self.score
        if not self._told:
            self._told = True
            edge_file.keep(self._legs.graph, self._folder)
            score.begin(self.job.workers)
            for note in self._notes:
                self._warn(note)
            rows = who_learns(self.job, self.dataset.train, self.job.workers)
            self._listener(self._linked(rows=rows))
            self._seen = time.perf_counter()
            self._carry_out(self._legs.begin(time.monotonic_ns()))
        if self._begun:
            return
        while not self._legs.resting:
            self._attend(counts=False)
        self._begun = True
        if not self._home.told:
            score.fail(f"no worker was there for the first slot (the last was {self._last})")
            return
        self._remember()
        if score.unjudged or score.room() <= 0:
            self._judge()
        self._seen = time.perf_counter()
        if self._resumed and len(self.workers) > 1 and not score.why:
            self._warn("taken up again, every worker begins from the mean of all: what set them apart is not kept")

    def _send_off(self) -> None:
        """The next leg."""
        stop = self.job.stop.seconds
        left = None if stop is None else stop - self.score.seconds
        self._quiet, self._told_waiting = 0.0, 0
        self._carry_out(self._legs.next_leg(time.monotonic_ns(), self.score.room(), left))

    def _until_rest(self) -> None:
        """Until the leg is over; then see what has come of it."""
        score = self.score
        while not self._legs.resting:
            self._attend()
        self._legs.end_leg(time.monotonic_ns())
        if not self._home.told:
            score.take_back(*self._legs.counted)  # nobody has it any more
            score.fail(f"no worker is left to compute: start it again, with more workers (the last was {self._last})")
            self._keep()
            return
        self._remember()
        self._legs.counted = [0, 0]
        self._tell_lost()
        if score.due or (score.why and score.unjudged) or not is_finite(self._apart.mean):
            self._judge()
        if self._keeper.due and not score.failed:
            self._keep()

    def _remember(self) -> None:
        """The mean of what all have now, and how far that is; who is interrupted meanwhile still has the one before."""
        told = [(one.slab, one.rest) for one in self._home.told.values()]
        whole = self._legs.graph.directed and not self._home.was_apart  # otherwise weights gather where links end
        self._apart.take([(slab, rest.weight if whole else 1.0) for slab, rest in told if slab is not None and rest])
        self._mean, self._at = self._apart.mean, self._position()

    def _position(self) -> tuple[LocalProgress, int, int, Ids]:
        parts = self._legs.parts
        return self.score.state(), self.score.steps, parts.of_pass, parts.left()

    def _judge(self) -> None:
        """The mean, and how all differ from it; the clock stands still."""
        began = time.perf_counter()
        spread = self._apart.spread()
        if spread and self._strategy.mode == "sync":
            spread["rounds"] = float(self._legs.mixed)
        if spread and (pieces := len(self._legs.graph.parts())) > 1:
            spread["pieces"] = float(pieces)
        self.score.judge(self._apart.weights_in(self._apart.mean).copy(), spread)
        self._at = self._position()
        self._seen += time.perf_counter() - began

    def _keep(self) -> None:
        began = time.perf_counter()
        if self._mean is not None and self._at is not None and self._at[0].done and is_finite(self._mean):
            standing, steps, of_pass, left = self._at
            self._keeper.keep(self._mean, of_pass, left, standing, steps)
        self._seen += time.perf_counter() - began

    # ------------------------------------------------------------ what workers say

    def _attend(self, counts: bool = True) -> None:
        """Hear what workers say, count what they have done, and see to those that are gone or say nothing."""
        began = time.perf_counter()
        self._loop.turn(_LOOK)
        fresh = self._legs.fresh()
        heard = fresh.steps or bool(self._workers.ended)
        while self._workers.ended:
            self._gone(*self._workers.ended.popleft())
        score, now = self.score, time.perf_counter()
        score.sent, score.received = score.sent + fresh.sent, score.received + fresh.received
        if counts:
            took, self._seen = max(0.0, now - self._seen), now
            score.add(fresh.slots, fresh.rows, fresh.loss, took, fresh.spent)
        if heard:
            self._quiet, self._told_waiting = 0.0, 0
        else:
            # No more than was waited: if all of us stood still, nobody is to blame.
            self._quiet += min(time.perf_counter() - began, 2 * _LOOK)
            self._see_to_the_silent()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise _GossipDeadline

    def _ready(self, name: str) -> None:
        self._listener(Joined(seconds=self.score.seconds, name=name, role="worker"))

    # ------------------------------------------------------------ who goes

    def _gone(self, name: str, why: str) -> None:
        loss, score = self._legs.lose(time.monotonic_ns(), name), self.score
        if loss is None:
            return
        score.counts["workers lost"] += 1
        score.counts["slots dealt again"] += loss.again
        score.workers = len(self.workers)
        self._last = f"{name}: {why[:_LONG]}{'...' * (len(why) > _LONG)}"
        self._listener(Gone(seconds=score.seconds, name=name, role="worker", why=why, slots=loss.again))
        self._carry_out(loss.effects)
        if not self.workers:
            return
        self._listener(self._linked(f"{name} is gone"))
        if loss.apart:
            self._warn(
                f"without {name} the others are not connected any more ({self._legs.graph.words()}): each group goes on, and they can "
                f"never agree"
            )

    def _tell_lost(self) -> None:
        """What went with lost neighbours: of an exchange that one side had taken and the other not (P12)."""
        meetings, lost = self._legs.exchanges()
        self.score.counts["meetings"] += meetings
        if lost > 0:
            self._warn(
                f"exchanges with those who are gone may be half done: the sum of all models moved by at most {lost:.3g}"
            )

    def _see_to_the_silent(self) -> None:
        patience = self.patience if self._begun else 3 * self.patience  # PyTorch alone may take 10 s to import
        if self._quiet < patience * 2**self._told_waiting:
            return
        self._told_waiting += 1
        pids, told = self.pids, self._home.told
        # One that is done with its slots is needed, too: to answer its neighbours, and to show its model.
        unseen = [name for name, one in told.items() if one.slab is None]
        stopped = [name for name in unseen if name in pids and state_of(pids[name]) == "T"]
        for name in stopped:
            self._warn(f"{name} is stopped, and everybody waits for it: it is killed, and its slots are dealt again")
            self._workers.signal(name, signal.SIGKILL)
        if unseen and not stopped:
            names = [name for name in unseen if told[name].rest is None] or unseen
            lacked = {name for one in told.values() for name in one.lacks}
            culprits = [name for name in names if name in lacked and not told[name].lacks] or names
            what = "went on" if self._begun else "was ready to begin"
            self._warn(f"nobody {what} for {self._quiet:.0f} s: waiting for {', '.join(culprits)}")

    def _carry_out(self, effects: list[Effect]) -> None:
        self._loop.carry_out(effects)
        self._loop.transport.flush()

    def _linked(self, why: str = "", rows: str = "") -> RunEvent:
        pairs = self._strategy.mode == "async"
        return self._legs.graph.event(self.score.seconds, self._workers.names, why, pairs, rows)

    def _warn(self, what: str) -> None:
        self._listener(Warned(seconds=self.score.seconds, what=what))


def open_run(start: RunStart, begin: Callable[[], None]) -> GossipRun:
    """The run, not yet begun."""
    run = GossipRun(start.job, start.dataset, start.listener, start.folder, start.resume)
    begin()
    return run
