"""A gossip run: every worker has a model, and this process keeps the score. It is their ``home``, and computes nothing.

It works in legs. A leg is some slots for each, never past where the model is to be judged: the workers are set off, tell how far they
are, and rest when they are done, each with its model. While everybody rests the mean of all is judged, and the clock stands still.
How long a leg is ``gossip_pace`` says; where nothing is judged between two, time goes on.

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

import numpy as np

from shoal import limits
from shoal.data.batch import Ids
from shoal.data.datasets import Dataset
from shoal.events import Gone, Joined, RunEvent, Warned
from shoal.job import Job
from shoal.launch import links
from shoal.launch.beginning import check
from shoal.launch.child import state_of
from shoal.launch.gossip_core import dealt, who_learns
from shoal.launch.gossip_home import Home
from shoal.launch.gossip_pace import LegPace
from shoal.launch.gossip_tally import Tally
from shoal.launch.gossipers import Gossipers
from shoal.launch.kept_slab import Keeper, Kept, Standing, is_finite
from shoal.launch.models_apart import Apart
from shoal.launch.score import Score
from shoal.launch.training import Outcome
from shoal.models.linear import Floats
from shoal.nodes.loop import Loop
from shoal.nodes.stepper import check_size
from shoal.store.update import rule_named
from shoal.strategies.gossip import Gossip
from shoal.strategies.parts import Parts
from shoal.wire.effects import Effect
from shoal.wire.messages import Course
from shoal.wire.neighbours import Along, Rest

_LOOK = 0.05  # seconds between two looks at who has ended
_LONG = 300  # characters of a reason that is told again


class _LateError(Exception):
    """Nobody waits any longer."""


class GossipRun:
    """One run. Use as a context, as ``Training``."""

    patience = 10.0  # seconds without a word until it is told who is waited for; who is stopped is killed then

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None],
        folder: Path | None = None,
        kept: Kept | None = None,
    ) -> None:
        """With ``kept``, what a former life of the run has left, it goes on from there."""
        assert isinstance(job.strategy, Gossip)
        self._graph, changed = links.graph_of(job, folder)
        self._graph.check(job.strategy.allow_disconnected)
        self.learner = check(job, dataset)
        self.job, self.dataset, self._strategy, self._listener = job, dataset, job.strategy, listener
        rule = rule_named(job.update.update().name)
        self._shape = (self.learner.keys, self.learner.width * (1 + rule.state))
        check_size(self._shape[0] * self._shape[1])
        self.score = Score(job, dataset, self.learner, listener, folder)
        start = self.learner.start()
        self._keeper = Keeper(folder, job, "" if start is None else start[1], listener)
        _, self._shares, notes = dealt(job, dataset.train, job.workers)
        self._notes, self._folder = [*changed, *notes], folder
        position: tuple[int, Ids | None] = (0, None)
        if kept is not None:
            kept.check_shape(self._shape)
            self.score.restore(kept.facts.standing)
            position = kept.position
        self._parts = Parts(self.score.slots, job.workers, self._shares, None, *position)
        self._workers = Gossipers(job, str(dataset.train.folder), "" if kept is None else str(kept.path))
        self._resumed = kept is not None
        self._home = Home(self._workers.names, self._workers.addresses)
        self._home.heard = self._heard
        self._loop: Loop
        self._apart = Apart(self.learner, dataset.test, self._shape)
        self._told = self._begun = False  # that it starts; everybody has rested with its first model
        self._mixed = 0  # rounds so far
        self._pace = LegPace(job.strategy.mode)
        self._seen = 0.0  # up to when time is counted
        self._tally = Tally(self._parts.rows)
        self._in_leg = [0, 0]  # slots and rows that were counted in this leg
        self._mean: Floats | None = None  # a slab, when all rested last: it is kept, and judged if it is interrupted
        self._at: tuple[Standing, int, int, Ids] | None = None  # how far it was then
        self._lost: dict[str, float] = {}  # what each says went with lost neighbours
        self._last = ""  # who ended last, and why
        self._quiet, self._told_waiting = 0.0, 0  # seconds since somebody went on, and how often that was told
        self._deadline: float | None = None

    # ------------------------------------------------------------ the beginning and the end

    def __enter__(self) -> GossipRun:
        try:
            self.learner.settle()
            self._workers.start()
            self._loop = Loop(self._home, self._workers.home)
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
        return [self._workers.names[i] for i in self._graph.living]

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        self._workers.signal(name, number)

    # ------------------------------------------------------------ how it goes

    @property
    def course(self) -> Course:
        return self.score.course()

    def outcome(self) -> Outcome:
        return self.score.outcome()

    def wait(self, seconds: float | None = None) -> Outcome | None:
        """Until it is over; None if ``seconds`` have passed first: then it may be waited for again."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        try:
            self._begin()
            while not self.score.why:
                if self._home.resting:
                    self._send_off()
                self._until_rest()
        except _LateError:
            return None
        except MemoryError:
            self.score.fail("no memory is left to judge the models: take a smaller one, or fewer workers")
        if self._keeper.has_some and not self.score.failed:
            self._keep()
        self._carry_out(self._home.dismiss())
        return self.score.end()

    def interrupted(self) -> Outcome:
        """The leg that is under way is waited for; if that takes too long, what all had before it is judged, and kept."""
        score = self.score
        score.why = score.why or "interrupted"
        self._deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        with contextlib.suppress(_LateError):
            if self._begun and not self._home.resting:
                self._until_rest()
        slots, rows = self._in_leg
        score.take_back(slots, rows)
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
            links.keep(self._graph, self._folder)
            score.begin(self.job.workers)
            for note in self._notes:
                self._warn(note)
            rows = who_learns(self.job, self.dataset.train, self.job.workers)
            self._listener(self._linked(rows=rows))
            nothing = np.empty(0, np.int64)
            self._seen = time.perf_counter()
            self._carry_out(self._home.set_off(time.monotonic_ns(), self._graph, dict.fromkeys(self.workers, nothing)))
        if self._begun:
            return
        while not self._home.resting:
            self._attend(counts=False)
        self._begun = True
        if not self._home.told:
            score.fail(f"no worker was there for the first slot (the last was {self._last})")
            return
        self._remember()
        if score.unjudged or score.room() <= 0:
            self._judge()
        self._seen = time.perf_counter()
        if self._resumed and len(self._graph.living) > 1 and not score.why:
            self._warn("taken up again, every worker begins from the mean of all: what set them apart is not kept")

    def _send_off(self) -> None:
        """The next leg."""
        parts, stop, living = self._parts, self.job.stop.seconds, self.workers
        left = None if stop is None else stop - self.score.seconds
        rounds = self._pace.rounds(time.perf_counter(), self._home.rounds, left)
        room = min(self.score.room(), rounds * len(living))
        if self._strategy.split == "even" and (shares := self._pace.shares(living)) is not None:
            parts.share(shares)
        dealt_out: dict[int, list[Ids]] = {rank: [np.empty(0, np.int64)] for rank in parts.living}
        while room > 0:  # a leg may have more than one pass
            for rank, ids in parts.plan(room).items():
                dealt_out[rank].append(ids)
                room -= len(ids)
            parts.settle(parts.living)
        names = self._workers.names
        slots = {names[rank]: np.concatenate(ids) for rank, ids in dealt_out.items()}
        self._in_leg = [0, 0]
        self._quiet, self._told_waiting = 0.0, 0
        self._pace.begin(time.perf_counter())
        self._carry_out(self._home.set_off(time.monotonic_ns(), self._graph, slots))

    def _until_rest(self) -> None:
        """Until the leg is over; then see what has come of it."""
        score = self.score
        while not self._home.resting:
            self._attend()
        self._pace.end(time.perf_counter(), {name: one.done for name, one in self._home.told.items()})
        self._mixed += self._home.rounds
        self._parts.fed()
        if not self._home.told:
            score.take_back(*self._in_leg)  # nobody has it any more
            score.fail(f"no worker is left to compute: start it again, with more workers (the last was {self._last})")
            self._keep()
            return
        self._remember()
        self._in_leg = [0, 0]
        self._tell_lost()
        if score.due or (score.why and score.unjudged) or not is_finite(self._apart.mean):
            self._judge()
        if self._keeper.due and not score.failed:
            self._keep()

    def _remember(self) -> None:
        """The mean of what all have now, and how far that is; who is interrupted meanwhile still has the one before."""
        told = [(one.slab, one.rest) for one in self._home.told.values()]
        whole = self._graph.directed and len(self._graph.parts()) == 1  # otherwise weights gather where links end
        self._apart.take([(slab, rest.weight if whole else 1.0) for slab, rest in told if slab is not None and rest])
        self._mean, self._at = self._apart.mean, self._position()

    def _position(self) -> tuple[Standing, int, int, Ids]:
        return self.score.state(), self.score.steps, self._parts.of_pass, self._parts.left()

    def _judge(self) -> None:
        """The mean, and how all differ from it; the clock stands still."""
        began = time.perf_counter()
        spread = self._apart.spread()
        if spread and self._strategy.mode == "sync":
            spread["rounds"] = float(self._mixed)
        if spread and (pieces := len(self._graph.parts())) > 1:
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
        fresh = self._tally.fresh()
        heard = fresh.steps or bool(self._workers.ended)
        while self._workers.ended:
            self._gone(*self._workers.ended.popleft())
        score, now = self.score, time.perf_counter()
        score.sent, score.received = score.sent + fresh.sent, score.received + fresh.received
        if counts:
            took, self._seen = max(0.0, now - self._seen), now
            self._in_leg = [self._in_leg[0] + fresh.slots, self._in_leg[1] + fresh.rows]
            score.add(fresh.slots, fresh.rows, fresh.loss, took, fresh.spent)
        if heard:
            self._quiet, self._told_waiting = 0.0, 0
        else:
            # No more than was waited: if all of us stood still, nobody is to blame.
            self._quiet += min(time.perf_counter() - began, 2 * _LOOK)
            self._see_to_the_silent()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise _LateError

    def _heard(self, name: str, said: Along | Rest) -> None:
        """A worker has said something of this leg."""
        if isinstance(said, Rest) and said.error:
            self._workers.end(name, said.error)
            return
        if isinstance(said, Rest) and not self._begun:
            self._listener(Joined(seconds=self.score.seconds, name=name, role="worker"))
        if isinstance(said, Rest):
            self._pace.is_done(name, time.perf_counter())
        self._tally.hear(name, self._home.told[name], said)

    # ------------------------------------------------------------ who goes

    def _gone(self, name: str, why: str) -> None:
        if name not in self.workers:
            return
        score, number = self.score, self._workers.names.index(name)
        told = self._home.told.get(name)
        again = self._parts.lose(number, 0 if told is None else told.done)
        before, self._graph = self._graph, self._graph.without(number)
        score.counts["workers lost"] += 1
        score.counts["slots dealt again"] += again
        score.workers = len(self._graph.living)
        self._last = f"{name}: {why[:_LONG]}{'...' * (len(why) > _LONG)}"
        self._listener(Gone(seconds=score.seconds, name=name, role="worker", why=why, slots=again))
        self._carry_out(self._home.lose(time.monotonic_ns(), name, self._graph))
        if not self._graph.living:
            return
        self._listener(self._linked(f"{name} is gone"))
        if len(self._graph.parts()) > len(before.parts()):
            self._warn(
                f"without {name} the others are not connected any more ({self._graph.words()}): each group goes on, and they can "
                f"never agree"
            )

    def _tell_lost(self) -> None:
        """What went with lost neighbours: of an exchange that one side had taken and the other not (P12)."""
        rests = {name: one.rest for name, one in self._home.told.items() if one.rest is not None}
        self.score.counts["meetings"] += sum(rest.met for rest in rests.values())
        lost = sum(rest.lost - self._lost.get(name, 0.0) for name, rest in rests.items())
        self._lost |= {name: rest.lost for name, rest in rests.items()}
        if lost > 0:
            self._warn(
                f"exchanges with those who are gone may be half done: the sum of all models moved by at most {lost:.3g}"
            )

    def _see_to_the_silent(self) -> None:
        patience = self.patience if self._begun else 3 * self.patience  # PyTorch alone may take 10 s to import
        if self._quiet < patience * 2**self._told_waiting:
            return
        self._told_waiting += 1
        pids = self.pids
        names = [name for name, one in self._home.told.items() if one.rest is None]
        stopped = [name for name in names if name in pids and state_of(pids[name]) == "T"]
        for name in stopped:
            self._warn(f"{name} is stopped, and everybody waits for it: it is killed, and its slots are dealt again")
            self._workers.signal(name, signal.SIGKILL)
        if names and not stopped:
            lacked = {name for one in self._home.told.values() for name in one.lacks}
            culprits = [name for name in names if name in lacked and not self._home.told[name].lacks] or names
            what = "went on" if self._begun else "was ready to begin"
            self._warn(f"nobody {what} for {self._quiet:.0f} s: waiting for {', '.join(culprits)}")

    def _carry_out(self, effects: list[Effect]) -> None:
        self._loop.carry_out(effects)
        self._loop.transport.flush()

    def _linked(self, why: str = "", rows: str = "") -> RunEvent:
        pairs = self._strategy.mode == "async"
        return self._graph.event(self.score.seconds, self._workers.names, why, pairs, rows)

    def _warn(self, what: str) -> None:
        self._listener(Warned(seconds=self.score.seconds, what=what))
