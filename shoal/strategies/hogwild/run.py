"""A Hogwild run: the workers share one piece of memory, and this process keeps the score.

It works in rounds. A round is the slots up to where the model is to be judged, never of two passes: they are laid on the desk, all bells
are rung, and when everybody has said DONE what is marked in the tally is counted. In between it only looks, twenty times a second. So
nobody writes while the model is judged, and the clock stands still meanwhile.

A worker that died has marked nothing for the slot it had: when the others are done that slot is dealt again. Those of its rows that it had
learned already are learned twice; the slot is counted once. One that is stopped (SIGSTOP) and holds up everybody is killed after a while:
what it would do later could not be told from what was dealt since. One that is only slow is waited for, and that is told.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal import limits
from shoal.data.batch import Ids
from shoal.data.datasets import Dataset
from shoal.errors import Invalid
from shoal.events import Gone, Joined, RunEvent, Warned
from shoal.job import Job
from shoal.launch.process_main import state_of
from shoal.launch.worker_process import number_of
from shoal.models.linear import Floats, Linear
from shoal.strategies.hogwild import loop
from shoal.strategies.hogwild.layout import check_possible, shared
from shoal.strategies.hogwild.loop import HogwildLoop
from shoal.strategies.hogwild.processes import HogwildWorkers, WorkerNews, enough_files
from shoal.strategies.hogwild.settings import Hogwild
from shoal.strategies.hogwild.worker import (
    BUSY,
    DONE,
    ENDED,
    GO,
    LEAVE,
    LOSS,
    READY,
    LinearCompute,
)
from shoal.training.local_checkpoint import LocalCheckpoint, LocalCheckpoints, is_finite
from shoal.training.preflight import check
from shoal.training.result import RunResult
from shoal.training.tracker import Tracker
from shoal.training.underway import RunStart
from shoal.wire.messages import RunProgress

_LOOK = 0.05  # seconds between two looks at how far they are
_SPARE = 8  # seats for those that come later
LEFT = "it left"
_KILLED = "(killed by signal "
_LONG = 300  # characters of a reason that is told again


_CANARY = ("updates counted", "updates lost")


class _HogwildDeadline(Exception):
    """Nobody waits any longer."""


class HogwildRun:
    """One run. Use as a context, as ``Training``."""

    patience: float  # seconds without a slot until it is told who is waited for; who is stopped is killed then

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        listener: Callable[[RunEvent], None],
        folder: Path | None = None,
        kept: LocalCheckpoint | None = None,
    ) -> None:
        """With ``kept``, what a former life of the run has left, it goes on from there."""
        assert isinstance(job.strategy, Hogwild)
        check_possible(job, job.strategy)
        self.learner = check(job, dataset)
        self.job, self.dataset, self._strategy, self._listener = job, dataset, job.strategy, listener
        self.patience = 2 * job.timing.intervals().dead / limits.SECOND
        self.score = Tracker(job, dataset, self.learner, listener, folder)
        self._slots = self.score.slots
        start = self.learner.start()
        self._about = "" if start is None else start[1]
        self._kept, self._keeper = kept, LocalCheckpoints(folder, job, self._about, listener)
        # The pass, and which of its slots are to be done, in one: an interruption comes before it is changed, or after.
        self._place = (-1, np.zeros(self._slots.per_pass, np.bool_))
        if kept is not None:
            kept.check_left(self._slots.per_pass)
            self.score.restore(kept.facts.standing)
            of_pass, left = kept.position
            self._place = (of_pass, self._place[1])
            self._place[1][left - of_pass * self._slots.per_pass] = True
        self._order = self._slots.contents(max(0, self._place[0]))  # of the slots in this pass
        self._told = self._begun = False  # that it starts; the first slot
        self._race: HogwildLoop | None = None  # of threads
        self._last, self._was_sent_off = "", True  # who ended last, and why; not by an error of its own
        self._lost_before = [self.score.counts[name] for name in _CANARY]
        # Workers, by number. One is starting, then here; busy from GO to DONE.
        self._starting, self._here, self._busy = set[int](), set[int](), set[int]()
        # The round: its slots by number, what each contains, which of them are counted; none: there is no round.
        self._numbers = self._contents = np.empty(0, np.int64)
        self._marked = np.empty(0, np.bool_)
        self._seen = 0.0  # up to when time is counted
        self._sums = np.zeros(2)  # counted so far: losses, and seconds that workers were busy
        self._idle = 0.0  # seconds that they were not, and that are not told yet
        self._quiet, self._told_waiting = 0.0, 0  # seconds since somebody did something, and how often that was told
        self._unheard: deque[WorkerNews] = deque()
        self._deadline: float | None = None

    # ------------------------------------------------------------ the beginning and the end

    def __enter__(self) -> HogwildRun:
        seats = max(self.job.workers + _SPARE, 2 * self.job.workers)
        lane = self._lane if self.job.launch.how == "threads" else None
        with enough_files("the run"), contextlib.ExitStack() as on_error:
            self._segment, self._race = shared(self.job, self.dataset, self.learner, self._slots.per_pass, seats)
            on_error.callback(self._segment.close)
            if self._kept is not None:
                self._kept.check_shape(self._segment["slab"].shape)
                self._segment["slab"][...] = self._kept.slab
                self._kept = None  # it is as large as the model
            self._racers = HogwildWorkers(
                self.job, str(self.dataset.train.folder), self._about, self._segment, seats, lane
            )
            on_error.callback(self.close)
            self.learner.settle()
            self._racers.start()
            for _ in range(self.job.workers):
                self.add_worker()
            on_error.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything; nothing is left of the memory when the last worker is gone."""
        if "desk" in self._segment.arrays:
            self._segment["desk"][loop.STOP, 0] = 1
        try:
            self._racers.close()
        finally:
            self._race = None
            self._segment.close()
            self.learner.release()

    def _lane(self, seat: int) -> LinearCompute:
        assert self._race is not None
        return LinearCompute(self._race, self._segment, seat)

    # ------------------------------------------------------------ who is there

    @property
    def pids(self) -> dict[str, int]:
        return self._racers.pids

    @property
    def workers(self) -> list[str]:
        return [f"worker-{number}" for number in self._racers.numbers]

    def add_worker(self) -> str:
        """Start one more; it takes part as soon as it is ready."""
        return self._racers.add(self._starting.add)

    def drain(self, name: str) -> None:
        """Ask a worker to finish the slot that it has, and go."""
        if name not in self.workers:
            raise Invalid(f"no worker {name!r} here (workers: {', '.join(self.workers)})")
        self._racers.ring(number_of(name), LEAVE)

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a process."""
        self._racers.signal(name, number)

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
                self._round()
        except _HogwildDeadline:
            return None
        except MemoryError:
            self.score.fail("no memory is left to judge the model: take a smaller one, or fewer keys (data.hash_bits)")
        if self.score.unjudged and self.score.done and not self.score.failed:
            self.score.judge(self.weights)
        self._count_lost()
        if self._keeper.has_some and not self.score.failed:
            self._keep()
        return self.score.end()

    def interrupted(self) -> RunResult:
        score = self.score
        score.why = score.why or "interrupted"
        self._deadline = time.monotonic() + limits.DRAIN / limits.SECOND
        with contextlib.suppress(_HogwildDeadline):  # what the others have learned will do
            while self._busy:
                self._attend()
        self._close_round()
        self._keep()
        if score.unjudged and score.done:
            score.judge(self.weights)
        self._count_lost()
        return score.outcome()

    @property
    def weights(self) -> Floats:
        """As they are now; a copy."""
        slab, learner = self._segment["slab"], self.learner
        if isinstance(self.job.model, Linear):
            found: Floats = slab[:, 0].copy()
            return found
        count = learner.keys * learner.width
        return np.array(slab[0, :count]).reshape(learner.keys, learner.width)

    @property
    def _is_finite(self) -> bool:
        return is_finite(self._segment["slab"])

    # ------------------------------------------------------------ rounds

    def _begin(self) -> None:
        """The first weights are judged when all workers are ready; who has died before that is not waited for."""
        score = self.score
        if not self._told:
            self._told = True
            score.begin(self.job.workers)
        if self._begun:
            return
        while self._starting:
            self._attend()
        self._begun = True
        if not self._here:
            score.fail(f"no worker was there for the first slot (the last was {self._last})")
        elif (
            score.unjudged or score.room() <= 0
        ):  # a former life was killed when all was done, and nothing is left to deal
            score.judge(self.weights)

    def _round(self) -> None:
        score, desk = self.score, self._segment["desk"]
        if not len(self._numbers):
            if not self._place[1].any():
                self._place = (self._place[0] + 1, np.ones(self._slots.per_pass, np.bool_))
                self._order = self._slots.contents(self._place[0])
            self._deal(np.flatnonzero(self._place[1])[: score.room()])
        while self._busy or (self._starting and not self._here):
            self._attend()
        untouched = max(0, len(self._numbers) - int(desk[loop.CURSOR, 0]))
        missing = self._close_round()
        if missing and not score.why:
            if not self._is_finite:
                score.judge(self.weights)  # which ends it
            elif self._here:
                score.counts["slots dealt again"] += missing - untouched
            else:
                # One that ended by an error of its own would do so again, however many there are.
                how = "with more workers" if self._was_sent_off else "when what ended it is mended"
                score.fail(f"no worker is left to compute: start it again, {how} (the last was {self._last})")
                self._keep()
        if score.due and not score.why:
            score.judge(self.weights)
        if self._keeper.due and not score.failed:
            if self._is_finite:
                self._keep()
            else:
                score.judge(self.weights)  # which ends it

    def _close_round(self) -> int:
        """What is marked is done; how many are not."""
        self._place[1][self._numbers[self._marked]] = False
        missing = len(self._numbers) - int(self._marked.sum())
        self._numbers, self._marked = self._numbers[:0], self._marked[:0]
        return missing

    def _keep(self) -> None:
        if not self.score.done:
            return
        self._count_lost()
        of_pass, is_left = self._place
        left = of_pass * self._slots.per_pass + np.flatnonzero(is_left)
        self._keeper.keep(self._segment["slab"], of_pass, left, self.score.state(), self.score.steps)

    def _deal(self, numbers: Ids) -> None:
        """Lay these slots on the desk, and ring: nobody is at work, so nobody sees half of it."""
        desk, count = self._segment["desk"], len(numbers)
        self._numbers, self._contents, self._marked = numbers, self._order[numbers], np.zeros(count, np.bool_)
        self._segment["tally"][:count] = 0
        self._segment["order"][:count] = self._contents
        self._segment["numbers"][:count] = numbers
        desk[loop.CURSOR, 0] = desk[loop.STOP, 0] = 0
        desk[loop.LIMIT, 0] = count
        self._segment["pass"][0] = self._place[0]
        self._quiet, self._told_waiting = 0.0, 0
        self._seen = time.perf_counter()
        for number in list(self._here):
            self._set_off(number)

    def _set_off(self, number: int) -> None:
        self._busy.add(number)
        self._racers.ring(number, GO)

    def _attend(self) -> None:
        """Hear what workers say, count what they have done, and see to those that do nothing."""
        began = time.perf_counter()
        self._unheard += self._racers.hear(_LOOK)
        heard = bool(self._unheard)
        while self._unheard:
            self._heard(self._unheard.popleft())
        if self._count() or heard:
            self._quiet, self._told_waiting = 0.0, 0
        else:
            # No more than was waited: if all of us stood still, nobody is to blame.
            self._quiet += min(time.perf_counter() - began, 2 * _LOOK)
            self._see_to_the_silent()
        if self.score.why or self._keeper.due:  # kept when everybody is done with the slot that he has
            self._segment["desk"][loop.STOP, 0] = 1
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise _HogwildDeadline

    def _count(self) -> int:
        """What is marked in the tally since the last time; how many slots."""
        if not len(self._numbers):
            return 0
        now, score = time.perf_counter(), self.score
        fresh = (self._segment["tally"][: len(self._numbers)] != 0) & ~self._marked
        self._marked |= fresh
        slots, rows = int(fresh.sum()), self._slots.rows_in(self._contents[fresh])
        sums = self._segment["sums"][:, [LOSS, BUSY]].sum(axis=0)
        loss, busy = sums - self._sums
        took, self._seen, self._sums = now - self._seen, now, sums
        self._idle += len(self._here) * took - busy  # told when it is there: work is told when it is done
        idle = max(0.0, self._idle)
        self._idle -= idle
        score.add(slots, rows, float(loss), took, {"compute": float(busy), "idle": float(idle)})
        return slots

    def _count_lost(self) -> None:
        if self._strategy.canary:
            for name, before, now in zip(_CANARY, self._lost_before, loop.lost(self._segment["desk"]), strict=True):
                self.score.counts[name] = before + now

    # ------------------------------------------------------------ coming and going

    def _heard(self, news: WorkerNews) -> None:
        number, what, why = news
        if number not in self._here and number not in self._starting:
            return
        if what == READY:
            self._starting.discard(number)
            self._here.add(number)
            self._listener(Joined(seconds=self.score.seconds, name=f"worker-{number}", role="worker"))
            if len(self._numbers) and not self.score.why:
                self._set_off(number)
        elif what == DONE:
            self._busy.discard(number)
        elif what == ENDED:
            self._gone(number, why)
        self.score.workers = len(self._here)

    def _gone(self, number: int, why: str) -> None:
        name, desk = f"worker-{number}", self._segment["desk"]
        was_busy = number in self._busy
        for among in (self._starting, self._here, self._busy):
            among.discard(number)
        loop.free(desk, self._racers.let_go(number))
        slots = 0
        if why:
            self.score.counts["workers lost"] += 1
            # It had one if more are taken and not marked than the others have, one each.
            taken = min(int(desk[loop.CURSOR, 0]), len(self._numbers))
            open_ = taken - int(np.count_nonzero(self._segment["tally"][:taken]))
            slots = int(was_busy and open_ > len(self._busy) and bool(self._here or self._starting))
            if not self._is_finite:  # the others would find that out one after another
                desk[loop.STOP, 0] = 1
        self._last = f"{name}: {(why or LEFT)[:_LONG]}{'...' * (len(why) > _LONG)}"
        self._was_sent_off = not why or _KILLED in why
        self._listener(Gone(seconds=self.score.seconds, name=name, role="worker", why=why or LEFT, slots=slots))

    def _see_to_the_silent(self) -> None:
        patience = self.patience if self._busy else 3 * self.patience  # PyTorch alone may take 10 s to import
        if self._quiet < patience * 2**self._told_waiting:
            return
        self._told_waiting += 1
        pids = self.pids
        names = [f"worker-{number}" for number in sorted(self._busy | self._starting)]
        stopped = [name for name in names if name in pids and state_of(pids[name]) == "T"]
        for name in stopped:
            self._warn(
                f"{name} is stopped, and everybody waits for it: it is killed; if it has a slot, that is dealt again"
            )
            self._racers.signal(name, signal.SIGKILL)
        if names and not stopped:
            what = "finished a slot" if self._busy else "was ready to begin"
            self._warn(f"nobody {what} for {self._quiet:.0f} s: waiting for {', '.join(names)}")

    def _warn(self, what: str) -> None:
        self._listener(Warned(seconds=self.score.seconds, what=what))


def open_run(start: RunStart, begin: Callable[[], None]) -> HogwildRun:
    """The run, not yet begun."""
    run = HogwildRun(start.job, start.dataset, start.listener, start.folder, start.resume)
    begin()
    return run
