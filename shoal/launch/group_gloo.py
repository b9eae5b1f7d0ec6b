"""Ranks that add up over gloo, which is PyTorch's own way (torch.distributed), on the loopback of this machine.

They meet by a file in a folder that is this run's alone, so two runs never meet each other and no port is fixed. A rank that ends
takes everybody's sums with it: nobody can go on, and ``RankLost`` says who it was. The others wait then for rank 0 to end them.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from shoal import limits
from shoal.data.datasets import Dataset
from shoal.errors import Invalid, RankLost, StartFailed
from shoal.job import Job
from shoal.launch.child import Orders, sweep
from shoal.launch.children import Children
from shoal.launch.group import Group, name_of
from shoal.launch.local import _START_WITHIN
from shoal.launch.nursery import Setup
from shoal.launch.others import Started, Warn
from shoal.launch.processes import _short_folder
from shoal.models import needs_torch
from shoal.models.linear import Floats

_ROUND = timedelta(days=7)  # gloo's own patience: who waits for whom is looked at here
_SHORT, _LONG = 2e-5, 1e-3  # seconds between two looks whether a sum is done
_LOOK = 0.05  # seconds between two looks at who has ended
_LAST_WORDS = 2.0  # seconds until the nursery has told of an end that gloo has seen


class GlooGroup:
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
                store.set_timeout(timedelta(seconds=_START_WITHIN))
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

    def total(self, vector: Floats) -> Floats:
        tensor = self._torch.from_numpy(vector)
        try:
            work = self.process_group.allreduce([tensor])
            self._wait(work)
            work.wait()
        except RuntimeError as error:
            self._lost(str(error))
        moved = 2 * vector.nbytes * (self.size - 1) // self.size  # a ring: so much from each to the next
        self.sent += moved
        self.received += moved
        return vector

    def close(self) -> None:
        self.process_group = None

    def _wait(self, work: Any) -> None:
        began, pause, look = time.monotonic(), _SHORT, _LOOK
        while not work.is_completed():
            threading.Event().wait(pause)
            pause = min(2 * pause, _LONG)
            if (waited := time.monotonic() - began) >= look:
                look = waited + _LOOK
                self._check(waited)

    def _lost(self, error: str) -> None:
        if self.rank:
            threading.Event().wait()  # rank 0 sees it, too, and ends us with itself
        until = time.monotonic() + _LAST_WORDS
        while time.monotonic() < until:
            self._check(0.0)
            threading.Event().wait(_LOOK)
        raise RankLost("a worker", f"gloo says: {' '.join(error.split())[:200]}")


class OverGloo(Started):
    """Processes forked by a nursery of this run's own."""

    def __init__(self, job: Job, dataset: Dataset, kept: Path | None, warn: Warn) -> None:
        if job.launch.how == "threads":
            raise Invalid(
                "over gloo every rank is a process: set launch.how to 'processes', or strategy.over to 'store'"
            )
        needs_torch("strategy.over='gloo'")
        super().__init__(job, dataset, kept, warn)
        self._folder = _short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")
        self._children = Children(lambda name, why: None, self._on_ended)
        self._stopped: dict[str, float] = {}  # since when it was seen so

    @property
    def pids(self) -> dict[str, int]:
        return self._children.pids

    def start(self) -> Group:
        deadline = time.monotonic() + _START_WITHIN
        setup = Setup(os.getpid(), self._folder, list(self._job.launch.modules), sys.path)
        self._children.start(setup, "ranks")
        self._children.wait_until_settled(deadline)
        names = [name_of(rank) for rank in range(1, self._job.workers)]
        for name in names:
            self._children.order(Orders(name, "rank", secrets.token_hex(8), "", "", self._folder, self._work))
        self._children.wait_until_running(names, deadline)
        return GlooGroup(Path(self._folder), 0, self._job.workers, self._check)

    def close(self) -> None:
        self._children.close()
        sweep(self._folder)

    def _check(self, waited: float) -> None:
        """Is everybody there, that a sum is waited for?"""
        for rank, why in sorted(self._ended.items()):
            raise RankLost(name_of(rank), why)
        now = time.monotonic()
        for name, pid in self.pids.items():
            if _state_of(pid) != "T":
                self._stopped.pop(name, None)
            elif now - self._stopped.setdefault(name, now) > limits.DEAD_AFTER / limits.SECOND:
                raise RankLost(name, "its process is stopped")
        self._tell_long_wait(waited)


def _state_of(pid: int) -> str:
    """What the kernel says of a process: T is one that was stopped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
