"""When a run's workers come and go: all at once and to the end, or as a resource manager would have it (``emulate``, S1-30, S4-23).

    gang            all are started, and training begins when all are there
    arrive          one after another: those that are there begin
    preempt         one at a time is taken away for a while: it stands still, or it is killed and another is started in its place
    task            a worker leaves after so many slots, by its own: another is started in its place

All of it happens on one thread of its own, which waits for the time or for a word that a worker has ended. One that does not start is told
of, and another is started a little later. Nothing is started any more when the run is over.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Protocol

from shoal.errors import ShoalError, StartFailed
from shoal.job import Job

_AGAIN = 5.0  # seconds: what kept one worker from starting may pass


class WorkerStarter(Protocol):
    """What it takes to start workers and take them away: a training."""

    @property
    def workers(self) -> list[str]: ...

    def add_worker(self) -> str: ...

    def signal(self, name: str, number: int) -> None: ...


class Arrivals:
    """The comings and goings of one run's workers."""

    def __init__(
        self, hands: WorkerStarter, job: Job, over: threading.Event, say: Callable[[str], None], again: float = _AGAIN
    ) -> None:
        """``say`` is told what did not go as it should, from the thread of these comings."""
        self._say, self._again, self._failing = say, again, False
        self._hands, self._emulate, self._wanted, self._over = hands, job.emulate, 0, over
        self._news = threading.Condition()
        self._closed = self._looked = False
        self._started = 0  # of those that are to be there at the same time
        # When it is to come back; who stands still, or nobody: another is started.
        self._away: list[tuple[float, str]] = []
        self._turn = 0  # whose turn it is to be taken away
        self._thread: threading.Thread | None = None

    def start(self, workers: int) -> None:
        """So many are to come, if they come from here. Those that are there from the start have been started when this returns."""
        self._wanted = workers
        first = min(1, workers) if self._emulate.arrive else workers
        for _ in range(first):
            self._hands.add_worker()
        self._started = first
        if self._emulate.comes_and_goes:
            self._thread = threading.Thread(target=self._run, name="shoal-coming", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """A worker has ended. Returns at once."""
        with self._news:
            self._looked = True
            self._news.notify_all()

    def close(self) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for _, name in self._away:  # one that stands still could not end
            if name:
                with contextlib.suppress(ShoalError):
                    self._hands.signal(name, signal.SIGCONT)
        self._away = []

    def _run(self) -> None:
        emulate, now = self._emulate, time.monotonic()
        arrive = now + emulate.arrive if self._started < self._wanted else float("inf")
        preempt = now + emulate.preempt if emulate.preempt else float("inf")
        with contextlib.suppress(ShoalError):  # the cluster is gone: nobody comes any more
            while self._wait(min(arrive, preempt, *(at for at, _ in self._away), float("inf"))):
                now = time.monotonic()
                if now >= arrive:
                    self._start_one()
                    self._started += 1
                    arrive = arrive + emulate.arrive if self._started < self._wanted else float("inf")
                if now >= preempt:
                    self._take_away(now)
                    preempt += emulate.preempt
                self._bring_back(now)
                if emulate.task:
                    self._replace()

    def _wait(self, until: float) -> bool:
        """Until then, or until there is news; False if it is over."""
        with self._news:
            left = max(0.0, until - time.monotonic())
            # The end of a run is nobody's news: it is looked for now and then.
            self._news.wait_for(lambda: self._closed or self._looked, min(left, 0.2))
            self._looked = False
            return not self._closed and not self._over.is_set()

    def _take_away(self, now: float) -> None:
        still = {name for _, name in self._away}
        here = [name for name in self._hands.workers if name not in still]
        if not here:
            return
        name, self._turn = here[self._turn % len(here)], self._turn + 1
        self._hands.signal(name, signal.SIGSTOP if self._emulate.sticky else signal.SIGKILL)
        self._away.append((now + self._emulate.away, name if self._emulate.sticky else ""))

    def _bring_back(self, now: float) -> None:
        back = [one for one in self._away if one[0] <= now]
        self._away = [one for one in self._away if one[0] > now]
        for _, name in back:
            if name:
                self._hands.signal(name, signal.SIGCONT)
            else:
                self._start_one()

    def _replace(self) -> None:
        """Who has done its task has left: as many are to be here as were started, but for those that are away."""
        killed = sum(not name for _, name in self._away)
        for _ in range(self._started - killed - len(self._hands.workers)):
            self._start_one()

    def _start_one(self) -> None:
        """One more; or another one later, if it does not start, which is said once until one does."""
        try:
            self._hands.add_worker()
            self._failing = False
        except StartFailed as error:
            self._away.append((time.monotonic() + self._again, ""))
            if not self._failing:
                self._say(
                    f"{error}; training goes on with those that are there, and another is tried every {self._again:g} s"
                )
            self._failing = True
