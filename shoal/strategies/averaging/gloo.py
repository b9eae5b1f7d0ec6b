"""Ranks that add up over gloo, which is PyTorch's own way (torch.distributed), on the loopback of this machine.

They meet by a file in a folder that is this run's alone, so two runs never meet each other and no port is fixed. A rank that ends
takes everybody's sums with it: nobody can go on, and ``RankLost`` says who it was. The others wait then for rank 0 to end them.

What waits inside gloo hears no signal, and does not see that somebody was stopped: whoever calls it looks here meanwhile.
"""

from __future__ import annotations

import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.errors import Invalid, RankLost, StartFailed
from shoal.job import Job
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.local import START_WITHIN
from shoal.launch.process_main import ProcessOrders, state_of, sweep
from shoal.launch.process_pool import ProcessPool
from shoal.launch.processes import short_folder
from shoal.models import needs_torch
from shoal.models.linear import Floats
from shoal.strategies.averaging.collective import Collective, name_of
from shoal.strategies.averaging.processes import MAIN, RankStates, Warn
from shoal.strategies.averaging.settings import Averaging

_ROUND = timedelta(days=7)  # gloo's own patience: who waits for whom is looked at here
_SHORT, _LONG = 2e-5, 1e-3  # seconds between two looks whether a sum is done
_LOOK = 0.05  # seconds between two looks at who has ended
_LAST_WORDS = 2.0  # seconds until the forkserver has told of an end that gloo has seen
_ENDED_WITHIN = 60.0  # seconds: rank 0 has ended us by then, or never will


class GlooCollective:
    """One rank's. ``check``, of rank 0, is called while a sum is waited for, with the seconds; it raises RankLost."""

    def __init__(
        self, folder: Path, rank: int, size: int, check: Callable[[float], None] = lambda waited: None
    ) -> None:
        self.rank, self.size = rank, size
        self.sent = self.received = 0
        self._check = check
        self._torch = needs_torch("strategy.over='gloo'")
        distributed = self._torch.distributed
        options = distributed.ProcessGroupGloo._Options()
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout, options._threads = _ROUND, 1
        found: list[Any] = []

        def meet() -> None:
            try:
                store = distributed.FileStore(str(folder / "meeting"), size)
                store.set_timeout(timedelta(seconds=START_WITHIN))
                found.append(distributed.ProcessGroupGloo(store, rank, size, options))
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=meet, name="shoal-meeting", daemon=True)
        thread.start()  # so that an end of one of them is seen while all are waited for
        began = time.monotonic()
        while not found:
            thread.join(_LOOK)
            check(time.monotonic() - began)
        if isinstance(found[0], Exception):
            raise StartFailed(f"the ranks did not meet over gloo: {found[0]}")
        self.process_group = found[0]
        self._calls: queue.SimpleQueue[GlooCall] | None = None
        self._under_way: GlooCall | None = None

    def aside(self, call: Callable[[], None]) -> None:
        """Have it done by a thread that is always the same, and look meanwhile at who has ended."""
        if self._calls is None:
            self._calls = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._calls,), name="shoal-aside", daemon=True).start()
        self._under_way = one = GlooCall(call)
        self._calls.put(one)
        began = time.monotonic()
        while not one.done.wait(_LOOK):
            self._check(time.monotonic() - began)
        self._under_way = None
        if one.error is not None:
            raise one.error

    def total(self, vector: Floats) -> Floats:
        tensor = self._torch.from_numpy(vector)
        try:
            work = self.process_group.allreduce([tensor])
            self._wait(work)
            work.wait()
        except RuntimeError as error:
            self.lost(str(error))
        moved = 2 * vector.nbytes * (self.size - 1) // self.size  # a ring: so much from each to the next
        self.sent += moved
        self.received += moved
        return vector

    def close(self) -> None:
        """The others have ended, or end by themselves; what waits for them fails."""
        if self._under_way is not None:
            self._under_way.done.wait(_LAST_WORDS)
        # PyTorch's destructor waits for a sum that is under way, seldom for good although everybody else has ended: not here.
        last, self.process_group = [self.process_group], None
        thread = threading.Thread(target=last.clear, name="shoal-parting", daemon=True)
        thread.start()
        thread.join(_LAST_WORDS)

    def _wait(self, work: Any) -> None:
        began, pause, look = time.monotonic(), _SHORT, _LOOK
        while not work.is_completed():
            threading.Event().wait(pause)
            pause = min(2 * pause, _LONG)
            if (waited := time.monotonic() - began) >= look:
                look = waited + _LOOK
                self._check(waited)

    def lost(self, error: str) -> None:
        """gloo has failed: whose fault that is."""
        if self.rank:
            threading.Event().wait(_ENDED_WITHIN)  # rank 0 sees it, too, and ends us with itself
            raise RankLost("another rank", f"gloo says: {' '.join(error.split())[:200]}")
        until = time.monotonic() + _LAST_WORDS
        while time.monotonic() < until:
            self._check(0.0)
            threading.Event().wait(_LOOK)
        raise RankLost("another rank", f"gloo says: {' '.join(error.split())[:200]}")


class GlooCall:
    """A call that another thread makes."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call, self.done = call, threading.Event()
        self.error: BaseException | None = None


def _serve(calls: queue.SimpleQueue[GlooCall]) -> None:
    while True:
        one = calls.get()
        try:
            one.call()
        except BaseException as error:  # it is the caller's
            one.error = error
        one.done.set()
        del one  # what it holds is as large as the model


def is_of_gloo(error: RuntimeError) -> bool:
    """Not of the module: gloo says where in its own files it failed."""
    return "gloo" in str(error).lower()


class GlooProcesses(RankStates):
    """Processes forked by a forkserver of this run's own."""

    def __init__(self, job: Job, dataset: Dataset, kept: Path | None, warn: Warn) -> None:
        if job.launch.how == "threads":
            store = ", or strategy.over to 'store'" if isinstance(job.strategy, Averaging) else ""
            raise Invalid(f"over gloo every rank is a process: set launch.how to 'processes'{store}")
        if find_spec("torch") is None:
            needs_torch("strategy.over='gloo'")
        super().__init__(job, dataset, kept, warn)
        self._folder = short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")
        self._children = ProcessPool(lambda name, why: None, self._on_ended)
        self._stopped: dict[str, float] = {}  # since when it was seen so
        self._group: GlooCollective | None = None

    @property
    def pids(self) -> dict[str, int]:
        return self._children.pids

    def start(self) -> Collective:
        deadline = time.monotonic() + START_WITHIN
        # PyTorch once, and not once in every rank: that takes seconds, and starts no threads until it is used.
        modules = [*self._job.launch.modules, "torch.distributed"]
        setup = ForkserverSetup(os.getpid(), self._folder, modules, sys.path)
        self._children.start(setup, "ranks")
        needs_torch("strategy.over='gloo'")  # here, while the forkserver imports it as well
        self._children.wait_until_settled(deadline)
        names = [name_of(rank) for rank in range(1, self._job.workers)]
        for name in names:
            self._children.order(ProcessOrders(name, MAIN, secrets.token_hex(8), "", "", self._folder, self._work))
        self._children.wait_until_running(names, deadline)
        self._group = GlooCollective(Path(self._folder), 0, self._job.workers, self._check)
        return self._group

    def close(self) -> None:
        self._children.close()
        if self._group is not None:
            self._group.close()
        sweep(self._folder)

    def _check(self, waited: float) -> None:
        """Is everybody there, that a sum is waited for?"""
        for rank, why in self._ended.items():  # who ended first
            raise RankLost(name_of(rank), why)
        now = time.monotonic()
        for name, pid in self.pids.items():
            if state_of(pid) != "T":
                self._stopped.pop(name, None)
            elif now - self._stopped.setdefault(name, now) > self._job.timing.intervals().dead / limits.SECOND:
                raise RankLost(name, "its process is stopped")
        self._tell_long_wait(waited)
