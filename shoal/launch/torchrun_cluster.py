"""The head under torchrun, and the cluster whose nodes are other ranks'.

The head opens the door, and every other rank comes and stays: a ``RankSeat``. A seat is given nurseries, one after another if need
be; each forks one node, and is ordered and heard by pipes as the head's own. What ends is started again where it was: the
coordinator and servers as ever, and workers too, since their rank has nothing else to do; a worker that ends again and again
is left alone after a while, and others take its slots.
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

_WORKER_AGAIN = 3  # times within a minute
_HEARD_WITHIN = 2.0  # seconds
_NAMED = 10  # of the ranks that did not come
_LOOK = 1.0  # seconds between two looks whether torchrun is there
_SAY_WITHIN = 5.0  # seconds for who came in to say who it is; and at the end for who did not come yet
_BY_SIGNAL = 128  # and above: exit codes of who was told to end, as all others were


class RemoteForkserver:
    """A nursery of another rank, used as a Popen is."""

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
            raise subprocess.TimeoutExpired("a nursery", timeout or 0.0)
        return self._code

    def kill(self) -> None:
        """Its rank does that when we hang up."""
        self._seat.hang_up()


class RankSeat:
    """One other rank, as long as it is there."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.connection = connection
        self._nursery: RemoteForkserver | None = None
        self._gone = False
        threading.Thread(target=self._hear, name="shoal-rank", daemon=True).start()

    def nursery(self) -> RemoteForkserver:
        self._nursery = away = RemoteForkserver(self)
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
                if self._nursery is not None:
                    self._nursery.ended(code)
        self._gone = True
        if self._nursery is not None:
            self._nursery.ended(-signal.SIGKILL)


class HeadRank:
    """The first rank. Use as a context around the whole command: the others are told how it ended, and go after it."""

    def __init__(self, me: TorchrunRank) -> None:
        self.rank = me
        self.words = ""  # who is who
        self._seats: dict[int, RankSeat] = {}
        self._came = threading.Condition()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = threading.Event()

    def __enter__(self) -> HeadRank:
        try:
            self._door.bind(self.rank.door)
        except OSError as error:
            sys.exit(
                f"Error: the ranks cannot meet ({error.strerror}): end what is left of a former run, or wait for it"
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
            if code < _BY_SIGNAL:  # a command that was over at once: who comes late is told, too
                self._came.wait_for(self._are_all_here, _SAY_WITHIN)
            for seat in self._seats.values():
                with contextlib.suppress(OSError):
                    seat.send(RankRelease(code))
        # Connections are closed with this process, not before: torchrun blames who ends first.

    def close(self) -> None:
        """For a process that goes on: everybody goes now."""
        for one in (self._door, *(seat.connection for seat in self._seats.values())):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes who waits there
            one.close()

    def staffed(self, job: Job, anew: bool = False) -> Job:
        """The job, with as many workers as there are ranks for; ``anew``: nothing says which run it would go on with."""
        job, self.words = staffed(job, self.rank)
        if anew and self.rank.restarts:
            self.words += "; torchrun has started it again, and it begins anew: with --out it would go on"
        return job

    def cluster(self, job: Job, journal: JournalFile) -> RankCluster:
        """Where the nodes of a run are."""
        return RankCluster(self, job, journal)

    def seats(self) -> dict[int, RankSeat]:
        """All other ranks, by number, once they are here."""
        with self._came:
            if not self._came.wait_for(self._are_all_here, MEET_WITHIN):
                absent = [str(number) for number in range(1, self.rank.world) if number not in self._seats]
                missing = ", ".join(absent[:_NAMED]) + (
                    f" and {more:,} more" if (more := len(absent) - _NAMED) > 0 else ""
                )
                raise StartFailed(f"no word from rank {missing} in {MEET_WITHIN:g} s: look at what it printed")
            return dict(self._seats)

    def _are_all_here(self) -> bool:
        return len(self._seats) == self.rank.world - 1

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # the door is closed
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
        """If torchrun is killed there is nobody left to end us."""
        torchrun = os.getppid()
        while not self._closed.wait(_LOOK):
            if os.getppid() != torchrun:
                os.kill(os.getpid(), signal.SIGTERM)
                return


class RankCluster(ProcessCluster):
    """The coordinator and server-0 are forked here, every other node below the rank that has its role."""

    def __init__(self, head: HeadRank, job: Job, journal: JournalFile) -> None:
        super().__init__(
            job.servers, job.launch.transport, tuple(job.launch.modules), journal, job.copies, restart=True
        )
        self._head = head
        self._roles = roles(job.servers, head.rank.world)
        self._seats: dict[int, RankSeat] = {}
        self._away: dict[str, ProcessPool] = {}  # by the name of the node
        self._work: dict[str, dict[str, Any]] = {}  # of the workers
        self._seconds = 0.0  # of the run, when it was last heard of
        self._workers = Supervisor(self._again, self._leave_alone, _WORKER_AGAIN)

    @property
    def pids(self) -> dict[str, int]:
        return {name: pid for one in (self._children, *self._away.values()) for name, pid in one.pids.items()}

    def fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        if kind == "worker":
            self._work[name] = work
        return super().fork(name, kind, work)

    def _start_nurseries(self, deadline: float) -> None:
        self._seats = self._head.seats()
        for name in self._roles:  # all at once: most of a start is imports
            self._start_away(name)
        super()._start_nurseries(deadline)

    def _start_away(self, name: str) -> None:
        seat = self._seats[self._roles[name]]
        needed = list(WORKERS_NEED) if name.startswith("worker") else []
        self._away[name] = children = ProcessPool(self._lost, self._child_ended)
        children.start(
            ForkserverSetup(seat.pid, "", [*self._modules, *needed], sys.path), f"{self._id}-{name}", start=seat.nursery
        )

    def _of(self, name: str) -> ProcessPool:
        return self._away.get(name, self._children)

    def _orders(self, name: str, kind: Any, work: dict[str, Any]) -> ProcessOrders:
        orders = super()._orders(name, kind, work)
        # The folder is the head's: it must not go with another rank.
        return msgspec.structs.replace(orders, folder="") if name in self._away else orders

    def _child_ended(self, name: str, why: str) -> None:
        if name in self._work and why != DONE:
            self._workers.ended(name, why)
        super()._child_ended(name, why)

    def _again(self, name: str) -> None:
        if self._of(name).gone and name in self._away:  # its nursery was killed
            self._start_away(name)
        if name in self._work:
            self._wait_until_gone(name)
            self._fork(name, "worker", self._work[name])
        else:
            super()._again(name)

    def _wait_until_gone(self, name: str) -> None:
        """Until the coordinator has heard how it ended; or all that could be told is that another took its name."""
        deadline = time.monotonic() + _HEARD_WITHIN
        while time.monotonic() < deadline and any(one.name == name for one in self.look().members):
            threading.Event().wait(0.02)

    def _happened(self, event: RunEvent) -> None:
        self._seconds = event.seconds
        super()._happened(event)

    def _leave_alone(self, why: str) -> None:
        if self._telling is not None:
            self._telling(Warned(seconds=self._seconds, what=f"{why}: the others go on without it"))

    def _stop_others(self) -> None:
        self._workers.close()
        for one in self._away.values():
            one.hang_up()
        super()._stop_others()
        for one in self._away.values():
            one.close()
