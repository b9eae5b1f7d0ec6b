"""The workers of a Hogwild run as the process that keeps the score knows them: started, rung for, heard.

Threads of this process, or processes forked by a forkserver: either way a worker has a number of its own (worker-3), a seat (its lines on
the desk, which another one gets when it is gone), and a bell. What they say, and that they have ended, is heard in one place,
in the order in which it happened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from shoal import limits
from shoal.errors import Invalid, StartFailed
from shoal.job import Job
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.local import START_WITHIN
from shoal.launch.process_main import ProcessOrders
from shoal.launch.process_pool import DONE as AS_IT_SHOULD
from shoal.launch.process_pool import ProcessPool
from shoal.launch.shared_memory import SharedMemory
from shoal.launch.worker_process import number_of
from shoal.strategies.hogwild.worker import (
    ENDED,
    LEAVE,
    LEAVING,
    NEWS,
    HogwildCompute,
    HogwildSpec,
    HogwildWorker,
)

MAIN = "shoal.strategies.hogwild.worker"
_BY_ITSELF = "its process ended (exit code 0) before anybody asked it to"


class WorkerNews(NamedTuple):
    """One thing that was heard."""

    number: int
    what: int  # READY, DONE or ENDED
    why: str = ""  # it ended; empty: as it should


class HogwildWorkers:
    """All workers of a run."""

    def __init__(
        self,
        job: Job,
        rows: str,
        about: str,
        segment: SharedMemory,
        seats: int,
        lane: Callable[[int], HogwildCompute] | None,
    ) -> None:
        """With ``lane``, which makes one for a seat, they are threads."""
        self._job, self._rows, self._about, self._segment, self._lane = job, rows, about, segment, lane
        self._lock = threading.Lock()
        self._numbers = 0
        self._free = list(range(seats))  # seats
        self.seats: dict[int, int] = {}  # by worker
        self._bells: dict[int, tuple[int, int]] = {}
        self._why: dict[int, str] = {}  # it ended
        self._leaving: set[int] = set()  # as they were asked to
        self._threads: dict[int, threading.Thread] = {}
        self._ears, self._news = os.pipe()
        os.set_blocking(self._ears, False)
        self._poll = select.poll()
        self._poll.register(self._ears, select.POLLIN)
        self._children: ProcessPool | None = None
        self._closed = False

    def start(self) -> None:
        """What they come from."""
        if self._lane is None:
            self._children = ProcessPool(lambda name, why: None, self._ended)
            self._children.start(ForkserverSetup(os.getpid(), "", list(self._job.launch.modules), sys.path), "hogwild")
            self._children.wait_until_settled(time.monotonic() + START_WITHIN)

    @property
    def pids(self) -> dict[str, int]:
        return {} if self._children is None else self._children.pids

    @property
    def numbers(self) -> list[int]:
        """Of those that have not ended, as far as was heard."""
        with self._lock:
            return list(self.seats)

    def add(self, known: Callable[[int], None]) -> str:
        """One more. ``known`` is told its number before anything is heard of it; any thread may ask."""
        with self._lock:
            if not self._free:
                raise Invalid(f"all {len(self.seats)} seats are taken: end one, or begin with more workers")
            with enough_files(f"worker-{self._numbers}"):
                bell = os.pipe()
            number, self._numbers = self._numbers, self._numbers + 1
            self.seats[number] = seat = self._free.pop(0)
            self._bells[number] = bell
        known(number)
        name = f"worker-{number}"
        if self._lane is not None:
            lane = self._lane(seat)
            thread = threading.Thread(
                target=self._in_thread, args=(number, lane, seat, bell[0]), name=name, daemon=True
            )
            self._threads[number] = thread
            thread.start()
            return name
        assert self._children is not None
        facts = HogwildSpec(self._job.toml(), self._rows, self._about, self._segment.place, seat, bell, self._news)
        try:
            self._children.order(ProcessOrders(name, MAIN, "", "", "", "", msgspec.to_builtins(facts)))
            self._children.wait_until_running([name], time.monotonic() + START_WITHIN)
        except BaseException as error:
            self._ended(name, str(error))
            raise
        return name

    def ring(self, number: int, what: bytes) -> None:
        with self._lock:
            if number in self._bells:
                os.write(self._bells[number][1], what)

    def signal(self, name: str, number: int) -> None:
        if self._children is None:
            raise Invalid("a run of threads has no processes: set launch.how to 'processes'")
        self._children.signal(name, number)

    def hear(self, seconds: float) -> list[WorkerNews]:
        """What was said; nothing if nobody said anything for so long."""
        if not self._poll.poll(1000 * seconds):
            return []
        said = os.read(self._ears, NEWS.size * 4_096)
        found = []
        for number, what in NEWS.iter_unpack(said):
            why = self._why.get(number, "") if what == ENDED else ""
            if what == LEAVING:
                self._leaving.add(number)
            elif what == ENDED and not why and number not in self._leaving:
                found.append(WorkerNews(number, what, _BY_ITSELF))
            else:
                found.append(WorkerNews(number, what, why))
        return found

    def let_go(self, number: int) -> int:
        """It has ended: its bell is taken down, and its seat is free. Which seat it had."""
        with self._lock:
            for descriptor in self._bells.pop(number, ()):
                os.close(descriptor)
            seat = self.seats.pop(number)
            self._free.append(seat)
        self._threads.pop(number, None)
        return seat

    def close(self) -> None:
        """End them all."""
        if self._closed:
            return
        self._closed = True
        for number in list(self._threads):
            self.ring(number, LEAVE)
        for thread in list(self._threads.values()):
            thread.join(limits.DRAIN / limits.SECOND)
        try:
            if self._children is not None:
                self._children.close()
        finally:
            for number in list(self.seats):
                self.let_go(number)
            os.close(self._ears)
            os.close(self._news)

    # ------------------------------------------------------------ inside

    def _in_thread(self, number: int, lane: HogwildCompute, seat: int, bell: int) -> None:
        why = AS_IT_SHOULD
        try:
            pace = self._job.emulate.pace(number, self._job.seed)
            HogwildWorker(number, bell, self._news, pace).work(lane, self._segment, seat)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
        self._ended(f"worker-{number}", why)

    def _ended(self, name: str, why: str) -> None:
        """On a thread that nobody waits for."""
        number = number_of(name)
        self._why[number] = "" if why == AS_IT_SHOULD else why
        if not self._closed:
            os.write(self._news, NEWS.pack(number, ENDED))


@contextlib.contextmanager
def enough_files(who: str) -> Iterator[None]:
    """Whoever cannot start for want of descriptors hears what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise StartFailed(
            f"{who} cannot start: too many files are open, and each worker takes two: raise the limit (ulimit -n 4096), or take "
            f"fewer workers"
        ) from None
