"""Starts a run's workers, and emulates a resource manager that preempts them (``emulate``).

    gang            all workers start, and training begins when all have joined
    arrive          workers start one after another, and train as soon as they are there
    preempt         one worker at a time is suspended, or killed and later replaced
    task            a worker leaves after a number of slots, and is replaced

One thread does all of it. It waits for the next point in time, or for a worker's end. If a worker
does not start, the run is warned and another is started later. Nothing starts after the run's end.
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

_RETRY = 5.0  # seconds: what kept a worker from starting may be temporary


class WorkerStarter(Protocol):
    @property
    def workers(self) -> list[str]: ...

    def add_worker(self) -> str: ...

    def signal(self, name: str, number: int) -> None: ...


class ResourceManager:
    def __init__(
        self, run: WorkerStarter, job: Job, over: threading.Event, say: Callable[[str], None], retry: float = _RETRY
    ) -> None:
        """``say`` is called with warnings, from the thread of this class."""
        self._say, self._retry, self._failing = say, retry, False
        self._run, self._emulate, self._wanted, self._over = run, job.emulate, 0, over
        self._wake, self._closed = threading.Event(), False
        self._started = 0  # workers that should run at the same time
        # When each preempted worker returns, and its name if it is only suspended.
        self._absent: list[tuple[float, str]] = []
        self._next_victim = 0  # which worker is preempted next
        self._thread: threading.Thread | None = None

    def start(self, workers: int) -> None:
        """Start the first workers (all of them, unless they are to arrive one by one)."""
        self._wanted = workers
        first = min(1, workers) if self._emulate.arrive else workers
        for _ in range(first):
            self._run.add_worker()
        self._started = first
        if self._emulate.comes_and_goes:
            self._thread = threading.Thread(target=self._loop, name="shoal-arrivals", daemon=True)
            self._thread.start()

    def worker_ended(self) -> None:
        """Note that a worker has ended. Returns at once."""
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for _, name in self._absent:  # a suspended process could not end
            if name:
                with contextlib.suppress(ShoalError):
                    self._run.signal(name, signal.SIGCONT)
        self._absent = []

    def _loop(self) -> None:
        emulate, now = self._emulate, time.monotonic()
        arrive = now + emulate.arrive if self._started < self._wanted else float("inf")
        preempt = now + emulate.preempt if emulate.preempt else float("inf")
        with contextlib.suppress(ShoalError):  # the cluster is closed: nothing can start
            while self._wait(min(arrive, preempt, *(at for at, _ in self._absent), float("inf"))):
                now = time.monotonic()
                if now >= arrive:
                    self._start_one()
                    self._started += 1
                    arrive = arrive + emulate.arrive if self._started < self._wanted else float("inf")
                if now >= preempt:
                    self._preempt(now)
                    preempt += emulate.preempt
                self._bring_back(now)
                if emulate.task:
                    self._replace()

    def _wait(self, until: float) -> bool:
        """Wait until then, or until a worker ends; False once the run is over."""
        # The end of a run does not notify us, so look for it every 0.2 s.
        self._wake.wait(min(max(0.0, until - time.monotonic()), 0.2))
        self._wake.clear()
        return not self._closed and not self._over.is_set()

    def _preempt(self, now: float) -> None:
        suspended = {name for _, name in self._absent}
        running = [name for name in self._run.workers if name not in suspended]
        if not running:
            return
        name, self._next_victim = running[self._next_victim % len(running)], self._next_victim + 1
        self._run.signal(name, signal.SIGSTOP if self._emulate.sticky else signal.SIGKILL)
        self._absent.append((now + self._emulate.away, name if self._emulate.sticky else ""))

    def _bring_back(self, now: float) -> None:
        back = [one for one in self._absent if one[0] <= now]
        self._absent = [one for one in self._absent if one[0] > now]
        for _, name in back:
            if name:
                self._run.signal(name, signal.SIGCONT)
            else:
                self._start_one()

    def _replace(self) -> None:
        killed = sum(not name for _, name in self._absent)
        for _ in range(self._started - killed - len(self._run.workers)):
            self._start_one()

    def _start_one(self) -> None:
        """Start a worker. If that fails, try again later, and warn once until one starts."""
        try:
            self._run.add_worker()
            self._failing = False
        except StartFailed as error:
            self._absent.append((time.monotonic() + self._retry, ""))
            if not self._failing:
                self._say(f"{error}; training goes on without it, and another start is tried every {self._retry:g} s")
            self._failing = True
