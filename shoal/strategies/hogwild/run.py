"""A Hogwild run: the workers share one piece of memory, and this process tracks them.

It works in rounds. A round is the slots up to the next evaluation, all of one epoch: this process
writes them to the desk, tells all workers to go, and counts what they mark in the tally until every
worker has said DONE. So no worker writes while the model is evaluated.

A worker that died has not marked the slot it had: it is computed again, and counted once. One that
is stopped (SIGSTOP) and holds up the others is killed after a while, since what it would write
later could not be told from newer slots.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque

import numpy as np

from shoal.data.batch import Ids
from shoal.errors import Invalid
from shoal.job import Job
from shoal.launch.serverless_pool import LOOK, PoolRun, name_of
from shoal.launch.worker_process import number_of
from shoal.models.linear import Floats, Linear
from shoal.strategies.hogwild import CURSOR, LIMIT, STOP, Hogwild, lost
from shoal.strategies.hogwild.loop import free
from shoal.strategies.hogwild.worker import BUSY, DONE, GO, LEAVE, READY, HogwildWorkers, enough_files, make_shared
from shoal.training.local_checkpoint import Snapshot, is_finite
from shoal.training.tracked_run import RunStart

_SPARE = 8  # seats for workers that come later
_CANARY = ("updates counted", "updates lost")


class HogwildRun(PoolRun):
    out_of_memory = "no memory is left to evaluate the model: take a smaller one, or fewer keys (data.hash_bits)"
    progress_word = "finished a slot"
    dealt_again = "; if it has a slot, that is reassigned"

    def __init__(self, start: RunStart) -> None:
        assert isinstance(start.job.strategy, Hogwild)
        self._strategy = start.job.strategy
        check_possible(start.job, self._strategy)
        super().__init__(start)
        self._slots = self.tracker.slots
        # The epoch and its slots that are not done; one tuple, so that it changes at once.
        self._position = (-1, np.empty(0, np.int64))
        if self.resume is not None:
            self.resume.check_left(self._slots.per_pass)
            self._position = self.resume.position
        self._order = self._slots.contents(max(0, self._position[0]))  # of the slots in this epoch
        self._lost_before = [self.tracker.counts[name] for name in _CANARY]
        # Workers, by number: starting, then present; busy from GO to DONE.
        self._starting, self._present, self._busy = set[int](), set[int](), set[int]()
        # The round: its slots by number, their contents, which are counted. Empty between rounds.
        self._numbers = self._contents = np.empty(0, np.int64)
        self._marked = np.empty(0, np.bool_)
        self._counted_to = 0.0  # when time was counted last
        self._sums = np.zeros(2)  # counted so far: losses, and seconds that workers were busy
        self._idle = 0.0  # seconds that they were not, and that are not reported yet
        self._unread = deque[tuple[int, int, str]]()  # reports

    def __enter__(self) -> HogwildRun:
        job, seats = self.job, max(self.job.workers + _SPARE, 2 * self.job.workers)
        with enough_files("the run"), contextlib.ExitStack() as on_error:
            self._memory, loop = make_shared(job, self.dataset, self.learner, self._slots.per_pass, seats)
            on_error.callback(self._memory.close)
            if self.resume is not None:
                self.resume.check_shape(self._memory["slab"].shape)
                self._memory["slab"][...] = self.resume.slab
                self.resume = None  # it is as large as the model
            rows = str(self.dataset.train.folder)
            self._workers = HogwildWorkers(job, rows, self.module, self._memory, seats, loop)
            self.pool = self._workers.pool
            on_error.callback(self.close)
            self.learner.settle()
            self.pool.start("hogwild")
            for _ in range(job.workers):
                self.add_worker()
            on_error.pop_all()
        return self

    def close(self) -> None:
        """End everything; the memory is freed with the last worker."""
        if "desk" in self._memory.arrays:
            self._memory["desk"][STOP, 0] = 1
        try:
            self._workers.close()
        finally:
            self._memory.close()
            super().close()

    @property
    def workers(self) -> list[str]:
        return [name_of(number) for number in self._workers.numbers]

    def add_worker(self) -> str:
        """Start one more; it takes part as soon as it is ready."""
        return self._workers.add(self._starting.add)

    def drain(self, name: str) -> None:
        """Ask a worker to finish the slot that it has, and leave."""
        if name not in self.workers:
            raise Invalid(f"no worker {name!r} here (workers: {', '.join(self.workers)})")
        self._workers.send(number_of(name), LEAVE)

    # ------------------------------------------------------------ rounds

    def _round(self) -> None:
        tracker, desk = self.tracker, self._memory["desk"]
        if not len(self._numbers):
            if not len(self._position[1]):
                of_pass = self._position[0] + 1
                self._position = (of_pass, of_pass * self._slots.per_pass + np.arange(self._slots.per_pass))
                self._order = self._slots.contents(of_pass)
            self._deal(self._position[1][: tracker.room()] % self._slots.per_pass)
        while self._busy or (self._starting and not self._present):
            self._attend()
        untouched = max(0, len(self._numbers) - int(desk[CURSOR, 0]))
        missing = self._close_round()
        if missing and not tracker.why:
            if not self._is_finite:
                self._evaluate()  # which ends it
            elif self._present:
                tracker.counts["slots dealt again"] += missing - untouched
            else:
                self._nobody_left()
                self._keep()
        if tracker.due and not tracker.why:
            self._evaluate()
        if self.checkpoints.due and not tracker.failed:
            if self._is_finite:
                self._keep()
            else:
                self._evaluate()  # which ends it

    def _deal(self, numbers: Ids) -> None:
        """Write these slots to the desk, and start the workers; none computes now."""
        memory, count = self._memory, len(numbers)
        self._numbers, self._contents, self._marked = numbers, self._order[numbers], np.zeros(count, np.bool_)
        memory["tally"][:count] = 0
        memory["order"][:count] = self._contents
        memory["numbers"][:count] = numbers
        memory["desk"][CURSOR, 0] = memory["desk"][STOP, 0] = 0
        memory["desk"][LIMIT, 0] = count
        memory["pass"][0] = self._position[0]
        self._reset_patience()
        self._counted_to = time.perf_counter()
        for number in list(self._present):
            self._go(number)

    def _go(self, number: int) -> None:
        self._busy.add(number)
        self._workers.send(number, GO)

    def _close_round(self) -> int:
        """Count the marked slots as done; returns how many are not."""
        of_pass, left = self._position
        done = of_pass * self._slots.per_pass + self._numbers[self._marked]
        self._position = (of_pass, np.setdiff1d(left, done, assume_unique=True))
        missing = len(self._numbers) - int(self._marked.sum())
        self._numbers, self._marked = self._numbers[:0], self._marked[:0]
        return missing

    def _settle(self) -> None:
        try:
            while self._busy:
                self._attend()
        finally:
            self._close_round()

    def _finish(self) -> None:
        super()._finish()
        self._count_lost()

    def _weights(self) -> Floats:
        """As they are now; a copy."""
        slab, learner = self._memory["slab"], self.learner
        if isinstance(self.job.model, Linear):
            found: Floats = slab[:, 0].copy()
            return found
        count = learner.keys * learner.width
        return np.array(slab[0, :count]).reshape(learner.keys, learner.width)

    @property
    def _is_finite(self) -> bool:
        return is_finite(self._memory["slab"])

    def _snapshot(self) -> Snapshot | None:
        self._count_lost()
        if not self.tracker.done:
            return None
        return self._memory["slab"], *self._position, self.tracker.state(), self.tracker.steps

    # ------------------------------------------------------------ what workers report

    def _start_done(self) -> bool:
        return not self._starting

    def _is_starting(self) -> bool:
        return not self._busy

    def _workers_left(self) -> bool:
        return bool(self._present)

    def _awaited(self) -> tuple[list[str], list[str]]:
        names = [name_of(number) for number in sorted(self._busy | self._starting)]
        return names, names

    def _listen(self) -> bool:
        self._unread += self._workers.receive(LOOK)
        reported = bool(self._unread)
        while self._unread:
            self._take(*self._unread.popleft())
        reported = bool(self._count()) or reported
        if self.tracker.why or self.checkpoints.due:  # workers finish their slots
            self._memory["desk"][STOP, 0] = 1
        return reported

    def _take(self, number: int, what: int, why: str) -> None:
        if number not in self._present and number not in self._starting:
            return
        if what == READY:
            self._starting.discard(number)
            self._present.add(number)
            self.tracker.joined(name_of(number))
            if len(self._numbers) and not self.tracker.why:
                self._go(number)
        elif what == DONE:
            self._busy.discard(number)
        else:
            self._end(number, why)
        self.tracker.workers = len(self._present)

    def _end(self, number: int, why: str) -> None:
        desk, was_busy = self._memory["desk"], number in self._busy
        for among in (self._starting, self._present, self._busy):
            among.discard(number)
        free(desk, self._workers.release(number))
        slots = 0
        if why:
            # It had a slot if more are taken and not marked than the others have, one each.
            taken = min(int(desk[CURSOR, 0]), len(self._numbers))
            unmarked = taken - int(np.count_nonzero(self._memory["tally"][:taken]))
            slots = int(was_busy and unmarked > len(self._busy) and bool(self._present or self._starting))
            if not self._is_finite:  # the others would fail by it one after another
                desk[STOP, 0] = 1
        self._lose(name_of(number), why, slots)

    def _count(self) -> int:
        if not len(self._numbers):
            return 0
        now = time.perf_counter()
        fresh = (self._memory["tally"][: len(self._numbers)] != 0) & ~self._marked
        self._marked |= fresh
        slots, rows = int(fresh.sum()), self._slots.rows_in(self._contents[fresh])
        sums = self._memory["sums"][:, : BUSY + 1].sum(axis=0)
        loss, busy = sums - self._sums
        took, self._counted_to, self._sums = now - self._counted_to, now, sums
        self._idle += len(self._present) * took - busy  # may be below 0 for now
        idle = max(0.0, self._idle)
        self._idle -= idle
        self.tracker.add(slots, rows, float(loss), took, {"compute": float(busy), "idle": float(idle)})
        return slots

    def _count_lost(self) -> None:
        if self._strategy.canary:
            found = lost(self._memory["desk"])
            for name, before, now in zip(_CANARY, self._lost_before, found, strict=True):
                self.tracker.counts[name] = before + now


def check_possible(job: Job, strategy: Hogwild) -> None:
    if isinstance(job.model, Linear):
        return
    if job.launch.how == "threads":
        raise Invalid(
            "only one thread at a time can compute with a module, since PyTorch's generator belongs to the whole "
            "process: --set launch.how=processes"
        )
    if strategy.way not in (None, "batched"):
        raise Invalid(
            f"strategy.way={strategy.way!r}: a module's gradient has all keys, so a slot is one step: "
            f"--set strategy.way=batched"
        )


open_run = HogwildRun.open
