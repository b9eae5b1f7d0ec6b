"""The head rank under torchrun, and the cluster whose nodes run below the other ranks.

Every other rank connects to the head and stays connected: a ``RankSeat``. The head starts a
forkserver at a seat (again if it was killed), which forks one node and is controlled by pipes like
the head's own. Coordinator, servers and workers are restarted where they were; a worker that ends
too often is given up, and others take its slots.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import IO, Any

import msgspec

from shoal.errors import StartFailed
from shoal.events import RunEvent, Warned
from shoal.job import Job
from shoal.launch.forkserver import WORKERS_NEED, ForkserverSetup
from shoal.launch.process_main import ProcessOrders
from shoal.launch.process_pool import DONE, ProcessPool
from shoal.launch.processes import ProcessCluster
from shoal.launch.restarts import Supervisor
from shoal.launch.torchrun import (
    LINE,
    MEET_WITHIN,
    RankClosed,
    RankForkserver,
    RankHello,
    RankRelease,
    TorchrunRank,
    is_ours,
    roles,
    staffed,
)
from shoal.nodes.journal import JournalFile

_WORKER_RESTARTS = 3  # within a minute
_GONE_WITHIN = 2.0  # seconds
_NAMED = 10  # missing ranks that a message names
_LOOK = 1.0  # seconds between two checks that torchrun is alive
_SAY_WITHIN = 5.0  # seconds for a new connection to say its rank; and at the end for late ranks
_BY_SIGNAL = 128  # exit codes from here on mean a signal, which all ranks got


class RemoteForkserver:
    """The forkserver of another rank, with the interface of Popen."""

    def __init__(self, seat: RankSeat) -> None:
        orders, ours = os.pipe()
        reports, theirs = os.pipe()
        self.stdin: IO[bytes] | None = os.fdopen(ours, "wb", 0)
        self.stdout: IO[bytes] | None = os.fdopen(reports, "rb", 0)
        self._seat, self._ended, self._code = seat, threading.Event(), 0
        try:
            seat.send(RankForkserver(), [orders, theirs])
        except OSError:
            self.ended(-signal.SIGKILL)
        finally:
            os.close(orders)
            os.close(theirs)

    def ended(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def poll(self) -> int | None:
        return self._code if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("forkserver", timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """Hang up: its rank then kills it."""
        self._seat.hang_up()


class RankSeat:
    """The connection to another rank."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        self._forkserver: RemoteForkserver | None = None
        self._gone = False
        threading.Thread(target=self._hear, name="shoal-rank", daemon=True).start()

    def forkserver(self) -> RemoteForkserver:
        self._forkserver = away = RemoteForkserver(self)
        if self._gone:  # perhaps just now
            away.ended(-signal.SIGKILL)
        return away

    def send(self, line: RankForkserver | RankRelease, descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.connection, [msgspec.json.encode(line)], descriptors or [])

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _hear(self) -> None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while line := self.connection.recv(LINE):
                code = msgspec.json.decode(line, type=RankClosed).code
                if self._forkserver is not None:
                    self._forkserver.ended(code)
        self._gone = True
        if self._forkserver is not None:
            self._forkserver.ended(-signal.SIGKILL)


class HeadRank:
    """The first rank: a context around the whole command that releases the others at the end."""

    def __init__(self, me: TorchrunRank) -> None:
        self.rank = me
        self.words = ""  # a sentence about the roles
        self._seats: dict[int, RankSeat] = {}
        self._came = threading.Condition()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = threading.Event()

    def __enter__(self) -> HeadRank:
        try:
            self._door.bind(self.rank.door)
        except OSError as error:
            sys.exit(
                f"Error: the ranks cannot meet ({error.strerror}): end what is left of an earlier run, or wait for it"
            )
        self._door.listen(self.rank.world)
        for task in (self._let_in, self._watch):
            threading.Thread(target=task, name="shoal-head", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        self._closed.set()
        with self._came:
            if code < _BY_SIGNAL:  # a very short command: release late ranks, too
                self._came.wait_for(self._are_all_here, _SAY_WITHIN)
            for seat in self._seats.values():
                with contextlib.suppress(OSError):
                    seat.send(RankRelease(code))
        # Connections close with this process, not before: torchrun blames the rank that ends first.

    def close(self) -> None:
        """Release all ranks at once, for a process that goes on."""
        for one in (self._door, *(seat.connection for seat in self._seats.values())):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the threads that wait there
            one.close()

    def staffed(self, job: Job, anew: bool = False) -> Job:
        """The job with a worker for each free rank; ``anew``: no run folder says what to resume."""
        job, self.words = staffed(job, self.rank)
        if anew and self.rank.restarts:
            self.words += "; torchrun has restarted it, and it begins again: with --out it would resume"
        return job

    def cluster(self, job: Job, journal: JournalFile) -> RankCluster:
        """The cluster of a run."""
        return RankCluster(self, job, journal)

    def seats(self) -> dict[int, RankSeat]:
        """All other ranks by number, once they have connected."""
        with self._came:
            if not self._came.wait_for(self._are_all_here, MEET_WITHIN):
                absent = [str(number) for number in range(1, self.rank.world) if number not in self._seats]
                missing = ", ".join(absent[:_NAMED]) + (
                    f" and {more:,} more" if (more := len(absent) - _NAMED) > 0 else ""
                )
                raise StartFailed(f"rank {missing} did not connect in {MEET_WITHIN:g} s: look at what it printed")
            return dict(self._seats)

    def _are_all_here(self) -> bool:
        return len(self._seats) == self.rank.world - 1

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # the socket is closed
            while True:
                connection, _ = self._door.accept()
                connection.settimeout(_SAY_WITHIN)
                try:
                    pid, line = is_ours(connection), connection.recv(LINE)
                    number = msgspec.json.decode(line, type=RankHello).rank
                except (OSError, msgspec.MsgspecError):
                    pid = number = 0
                connection.settimeout(None)
                with self._came:
                    if not pid or not 1 <= number < self.rank.world or number in self._seats:
                        connection.close()
                        continue
                    self._seats[number] = RankSeat(pid, connection)
                    self._came.notify_all()

    def _watch(self) -> None:
        """End with torchrun, also if it is killed."""
        torchrun = os.getppid()
        while not self._closed.wait(_LOOK):
            if os.getppid() != torchrun:
                os.kill(os.getpid(), signal.SIGTERM)
                return


class RankCluster(ProcessCluster):
    """Forks coordinator and server-0 here, every other node below the rank that has its role."""

    def __init__(self, head: HeadRank, job: Job, journal: JournalFile) -> None:
        super().__init__(
            job.servers, job.launch.transport, tuple(job.launch.modules), journal, job.copies, restart=True
        )
        self._head = head
        self._roles = roles(job.servers, head.rank.world)
        self._seats: dict[int, RankSeat] = {}
        self._away: dict[str, ProcessPool] = {}  # by node
        self._work: dict[str, dict[str, Any]] = {}  # by worker
        self._seconds = 0.0  # of the run, at its last event
        self._workers = Supervisor(self._again, self._give_worker_up, _WORKER_RESTARTS)

    @property
    def pids(self) -> dict[str, int]:
        return {name: pid for one in (self._children, *self._away.values()) for name, pid in one.pids.items()}

    def fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        if kind == "worker":
            self._work[name] = work
        return super().fork(name, kind, work)

    def _start_forkservers(self, deadline: float) -> None:
        self._seats = self._head.seats()
        for name in self._roles:  # all at once: a start is mostly imports
            self._start_away(name)
        super()._start_forkservers(deadline)

    def _start_away(self, name: str) -> None:
        seat = self._seats[self._roles[name]]
        needed = list(WORKERS_NEED) if name.startswith("worker") else []
        self._away[name] = children = ProcessPool(self._lost, self._child_ended)
        children.start(
            ForkserverSetup(seat.pid, "", [*self._modules, *needed], sys.path),
            f"{self._id}-{name}",
            start=seat.forkserver,
        )

    def _of(self, name: str) -> ProcessPool:
        return self._away.get(name, self._children)

    def _orders(self, name: str, kind: Any, work: dict[str, Any]) -> ProcessOrders:
        orders = super()._orders(name, kind, work)
        # The folder belongs to the head: another rank must not remove it.
        return msgspec.structs.replace(orders, folder="") if name in self._away else orders

    def _child_ended(self, name: str, why: str) -> None:
        if name in self._work and why != DONE:
            self._workers.ended(name, why)
        super()._child_ended(name, why)

    def _again(self, name: str) -> None:
        if self._of(name).gone and name in self._away:  # its forkserver was killed
            self._start_away(name)
        if name in self._work:
            self._wait_until_gone(name)
            self._fork(name, "worker", self._work[name])
        else:
            super()._again(name)

    def _wait_until_gone(self, name: str) -> None:
        """Wait until the coordinator knows how it ended, so that the reason is reported."""
        deadline = time.monotonic() + _GONE_WITHIN
        while time.monotonic() < deadline and any(one.name == name for one in self.look().members):
            threading.Event().wait(0.02)

    def _happened(self, event: RunEvent) -> None:
        self._seconds = event.seconds
        super()._happened(event)

    def _give_worker_up(self, why: str) -> None:
        if self._telling is not None:
            self._telling(Warned(seconds=self._seconds, what=f"{why}: the others go on without it"))

    def _stop_others(self) -> None:
        self._workers.close()
        for one in self._away.values():
            one.hang_up()
        super()._stop_others()
        for one in self._away.values():
            one.close()
