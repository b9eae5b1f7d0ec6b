"""Runs a cluster in the ranks that torchrun started on this host.

    rank 0              the head: runs the command, coordinator, evaluator, view, and server-0
    1 .. servers - 1    the other servers
    the rest            workers

torchrun ends everything as soon as one of its processes fails. So a rank is only a shield: a
forkserver below it forks its node, which may be killed and restarted, while the rank stays until
the head is gone and ends with the head's exit code. Nodes are restarted where they were; a worker
that ends too often is given up, and others take its slots.

The ranks meet at an abstract Unix socket. All derive its name from torchrun's variables, and the
kernel tells whose process is at the other end. The head passes each rank the pipes of a forkserver,
and controls that forkserver as its own. torchrun's store is not used: it listens on the whole
network and accepts writes from anyone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

import msgspec

from shoal import limits
from shoal.errors import Invalid, StartFailed
from shoal.events import RunEvent, Warned
from shoal.job import Job, LaunchSettings
from shoal.launch.forkserver import WORKERS_NEED, ForkserverSetup
from shoal.launch.mpirun_rank import refuse
from shoal.launch.process_main import ProcessMessage, ProcessOrders
from shoal.launch.process_pool import DONE, ProcessPool, start_forkserver
from shoal.launch.processes import ProcessCluster, Supervisor
from shoal.nodes.journal import JournalFile

MEET_WITHIN = 60.0  # seconds until all ranks have found each other
LINE = 4_096  # bytes of one message
_RETRY = 0.02  # seconds between two attempts to connect to the head
_DIGITS = 9  # of a number in torchrun's variables
_SET_BY = "torchrun sets these: start it with torchrun, or, to run without, unset TORCHELASTIC_RUN_ID"


class RankHello(ProcessMessage, frozen=True, tag="here"):
    """Rank to head: "this is who I am"."""

    rank: int


class RankForkserver(ProcessMessage, frozen=True, tag="nurse"):
    """Head to rank: "start a forkserver with these two file descriptors for orders and reports"."""


class RankClosed(ProcessMessage, frozen=True, tag="closed"):
    """Rank to head: "the forkserver has ended"."""

    code: int  # exit code; minus the signal that killed it


class RankRelease(ProcessMessage, frozen=True, tag="over"):
    """Head to rank: "the run is over; end with this code when I have ended"."""

    code: int


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    number: int
    world: int  # the number of ranks
    hosts: int
    restarts: int  # of all ranks, by torchrun
    socket_name: bytes  # the name of the head's socket


def rank(variables: Mapping[str, str] | None = None) -> TorchrunRank | None:
    """This process's rank; None if torchrun did not start it."""
    known = os.environ if variables is None else variables
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    if "TORCHELASTIC_RUN_ID" not in known or not all(known.get(name, "").isdecimal() for name in names):
        return None
    meant = [str(os.getuid()), *(known.get(name, "") for name in ("MASTER_PORT", "GROUP_RANK", "TORCHELASTIC_RUN_ID"))]
    meant.append(known["TORCHELASTIC_RESTART_COUNT"])
    socket_name = hashlib.sha256("\0".join(meant).encode(errors="surrogateescape")).hexdigest()[:32]
    number, world, hosts, restarts = (_count(name, known[name]) for name in names)
    if number >= world:
        raise Invalid(f"LOCAL_RANK={number} and LOCAL_WORLD_SIZE={world}: ranks are 0 to one less; {_SET_BY}")
    if world > limits.MEMBERS:
        raise Invalid(f"LOCAL_WORLD_SIZE={world}: needs at most {limits.MEMBERS:,}: use fewer ranks (--nproc-per-node)")
    return TorchrunRank(number, world, hosts, restarts, f"\0shoal-{socket_name}".encode())


def _count(name: str, text: str) -> int:
    if len(text) > _DIGITS:
        raise Invalid(f"{name}={text[:_DIGITS]}... has {len(text):,} digits; {_SET_BY}")
    return int(text)


def staffed(job: Job, me: TorchrunRank) -> tuple[Job, str]:
    """The job with a worker for each free rank, and a sentence about the roles."""
    if me.hosts > 1:
        raise Invalid(
            f"torchrun has started ranks on {me.hosts} hosts, and shoal uses torchrun on a single host only: use one "
            f"(--nnodes 1) with more ranks (--nproc-per-node), or shoal launch on each host"
        )
    if not job.has_servers:
        raise Invalid(f"strategy {job.strategy.name!r} is one process: start it without torchrun (shoal train ...)")
    if job.launch.how != "processes":
        raise Invalid(
            f"launch.how={job.launch.how!r} is a single process, but torchrun starts one for each rank: leave it out, "
            f"or start it without torchrun (shoal train ...)"
        )
    least = job.servers + 1
    if me.world < least:
        fewer = f", or fewer servers (--servers {me.world - 1})" if me.world > 1 else ""
        raise Invalid(
            f"torchrun has started {me.world} {'rank' if me.world == 1 else 'ranks'}, and servers={job.servers} and a worker "
            f"need {least}: use more (--nproc-per-node {least}){fewer}"
        )
    workers = me.world - job.servers
    words = f"torchrun: {_ranks(0, 1)} leads, {_ranks(0, job.servers)} {'serve' if job.servers > 1 else 'serves'}, "
    words += f"{_ranks(job.servers, me.world)} {'work' if workers > 1 else 'works'}: "
    words += f"{workers} {'workers' if workers > 1 else 'worker'}"
    return msgspec.structs.replace(job, workers=workers), words


def _ranks(first: int, stop: int) -> str:
    if stop - first == 1:
        return f"rank {first}"
    return f"ranks {first} {'and' if stop - first == 2 else 'to'} {stop - 1}"


def roles(servers: int, world: int) -> dict[str, int]:
    """The nodes that other ranks than the head fork, and their ranks."""
    names = [f"server-{i}" for i in range(1, servers)] + [f"worker-{i}" for i in range(world - servers)]
    return {name: number for number, name in enumerate(names, 1)}


def is_ours(connection: socket.socket) -> int:
    """The id of the process at the other end if this user owns it; otherwise 0."""
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid) if user == os.getuid() else 0


# ---------------------------------------------------------------- the shield


def take_part(call: Callable[[HeadRank | None], object]) -> object:
    """Runs a command in rank 0, and nodes in the others; without torchrun, only the command."""
    try:
        me = rank()
    except Invalid as error:
        refuse(str(error))
    if me is None:
        return call(None)
    if me.number:
        sys.exit(run_rank(me))
    with HeadRank(me) as head:
        return call(head)


def run_rank(me: TorchrunRank) -> int:
    """Run a rank other than the first. Returns its exit code when the head is gone."""
    head = _connect(me)
    if head is None:
        print(
            f"shoal: rank {me.number} found no rank 0 within {MEET_WITHIN:g} s: look at what rank 0 printed",
            file=sys.stderr,
        )
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # the head gets the same signal, and may need our node to save the run
        signal.signal(number, lambda *_: None)
    with head:
        return _shield(me, head)


def _connect(me: TorchrunRank) -> socket.socket | None:
    deadline = time.monotonic() + MEET_WITHIN
    while time.monotonic() < deadline:
        head = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            head.connect(me.socket_name)
            if is_ours(head):
                head.send(msgspec.json.encode(RankHello(me.number)))
                return head
        except OSError:  # it is not there yet
            pass
        head.close()
        time.sleep(_RETRY)
    return None


def _shield(me: TorchrunRank, head: socket.socket) -> int:
    code, forkserver = 1, None  # a head that sends no release was killed
    with contextlib.suppress(ConnectionError):
        while True:
            line, descriptors, _, _ = socket.recv_fds(head, LINE, 2)
            if not line:
                break
            match msgspec.json.decode(line, type=RankForkserver | RankRelease):
                case RankForkserver():
                    forkserver = start_forkserver(*descriptors)
                    threading.Thread(target=_report_end, args=(forkserver, head), daemon=True).start()
                case RankRelease(code):
                    pass
            for descriptor in descriptors:
                os.close(descriptor)
    if forkserver is not None:  # it sees the same hang-up
        try:
            forkserver.wait(limits.DRAIN / limits.SECOND)
        except subprocess.TimeoutExpired:
            forkserver.kill()
    return code


def _report_end(forkserver: subprocess.Popen[bytes], head: socket.socket) -> None:
    code = forkserver.wait()
    with contextlib.suppress(OSError):
        head.send(msgspec.json.encode(RankClosed(code)))


_WORKER_RESTARTS = 3  # within a minute
_GONE_WITHIN = 2.0  # seconds
_NAMED = 10  # missing ranks that a message names
_LOOK = 1.0  # seconds between two checks that torchrun is alive
_SAY_WITHIN = 5.0  # seconds for a new connection to say its rank; and at the end for late ranks
_BY_SIGNAL = 128  # exit codes from here on mean a signal, which all ranks got


class RankSeat:
    """The connection to another rank; of its latest forkserver it has the interface of Popen."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self.connection = pid, connection
        self._code, self._ended, self._closed = 0, threading.Event(), False
        threading.Thread(target=self._receive, name="shoal-rank", daemon=True).start()

    def forkserver(self) -> RankSeat:
        """Start a forkserver there; the one before has ended."""
        orders, ours = os.pipe()
        reports, theirs = os.pipe()
        self.stdin, self.stdout = os.fdopen(ours, "wb", 0), os.fdopen(reports, "rb", 0)
        self._ended.clear()
        try:
            self.send(RankForkserver(), [orders, theirs])
        except OSError:
            self._end(-signal.SIGKILL)
        finally:
            os.close(orders)
            os.close(theirs)
        if self._closed:  # perhaps just now
            self._end(-signal.SIGKILL)
        return self

    def poll(self) -> int | None:
        return self._code if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("forkserver", timeout or 0.0)
        return self._code

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def send(self, line: RankForkserver | RankRelease, descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.connection, [msgspec.json.encode(line)], descriptors or [])

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def _receive(self) -> None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while line := self.connection.recv(LINE):
                self._end(msgspec.json.decode(line, type=RankClosed).code)
        self._closed = True
        self._end(-signal.SIGKILL)


class HeadRank:
    """The first rank: a context around the whole command that releases the others at the end."""

    def __init__(self, me: TorchrunRank) -> None:
        self.rank = me
        self.words = ""  # a sentence about the roles
        self._seats: dict[int, RankSeat] = {}
        self._connected = threading.Condition()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closed = threading.Event()

    def __enter__(self) -> HeadRank:
        try:
            self._socket.bind(self.rank.socket_name)
        except OSError as error:
            sys.exit(f"Error: the ranks cannot meet ({error.strerror}): end the processes of an earlier run")
        self._socket.listen(self.rank.world)
        for task in (self._accept, self._watch):
            threading.Thread(target=task, name="shoal-head", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        self._closed.set()
        with self._connected:
            if code < _BY_SIGNAL:  # a very short command: release late ranks, too
                self._connected.wait_for(self._are_all_here, _SAY_WITHIN)
            for seat in self._seats.values():
                with contextlib.suppress(OSError):
                    seat.send(RankRelease(code))
        # Connections close with this process, not before: torchrun blames the rank that ends first.

    def close(self) -> None:
        """Release all ranks at once, for a process that goes on."""
        for one in (self._socket, *(seat.connection for seat in self._seats.values())):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the threads that wait there
            one.close()

    def staffed(self, job: Job, fresh: bool = False) -> Job:
        """The job with a worker for each free rank; ``fresh``: there is nothing to resume."""
        job, self.words = staffed(job, self.rank)
        if fresh and self.rank.restarts:
            self.words += "; torchrun has restarted it, and it begins again: with --out it would resume"
        return job

    def cluster(self, job: Job, journal: JournalFile) -> RankCluster:
        return RankCluster(self, job, journal)

    def seats(self) -> dict[int, RankSeat]:
        """All other ranks by number, once they have connected."""
        with self._connected:
            if not self._connected.wait_for(self._are_all_here, MEET_WITHIN):
                absent = [str(number) for number in range(1, self.rank.world) if number not in self._seats]
                missing = ", ".join(absent[:_NAMED]) + (
                    f" and {more:,} more" if (more := len(absent) - _NAMED) > 0 else ""
                )
                raise StartFailed(f"rank {missing} did not connect in {MEET_WITHIN:g} s: look at what it printed")
            return dict(self._seats)

    def _are_all_here(self) -> bool:
        return len(self._seats) == self.rank.world - 1

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the socket is closed
            while True:
                connection, _ = self._socket.accept()
                connection.settimeout(_SAY_WITHIN)
                try:
                    pid, line = is_ours(connection), connection.recv(LINE)
                    number = msgspec.json.decode(line, type=RankHello).rank
                except (OSError, msgspec.MsgspecError):
                    pid = number = 0
                connection.settimeout(None)
                with self._connected:
                    if not pid or not 1 <= number < self.rank.world or number in self._seats:
                        connection.close()
                        continue
                    self._seats[number] = RankSeat(pid, connection)
                    self._connected.notify_all()

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
        how = LaunchSettings(transport=job.launch.transport, modules=job.launch.modules)
        super().__init__(job.servers, how, journal, job.copies, restart=True)
        self._head = head
        self._roles = roles(job.servers, head.rank.world)
        self._seats: dict[int, RankSeat] = {}
        self._away: dict[str, ProcessPool] = {}  # by node
        self._work: dict[str, dict[str, Any]] = {}  # by worker
        self._seconds = 0.0  # of the run, at its last event
        self._workers = Supervisor(self._start_again, self._give_worker_up, _WORKER_RESTARTS)

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
        self._away[name] = children = ProcessPool(self.tell_ended, self._child_ended)
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

    def _start_again(self, name: str) -> None:
        if self._of(name).gone and name in self._away:  # its forkserver was killed
            self._start_away(name)
        if name in self._work:
            self._wait_until_gone(name)
            self._fork(name, "worker", self._work[name])
        else:
            super()._start_again(name)

    def _wait_until_gone(self, name: str) -> None:
        """Wait until the coordinator knows how it ended, so that the reason is reported."""
        deadline = time.monotonic() + _GONE_WITHIN
        while time.monotonic() < deadline and any(one.name == name for one in self.look().members):
            threading.Event().wait(0.02)

    def _on_event(self, event: RunEvent) -> None:
        self._seconds = event.seconds
        super()._on_event(event)

    def _give_worker_up(self, why: str) -> None:
        if self._event_thread is not None:
            self._event_thread(Warned(seconds=self._seconds, what=f"{why}: the others go on without it"))

    def _stop_others(self) -> None:
        self._workers.close()
        for one in self._away.values():
            one.hang_up()
        super()._stop_others()
        for one in self._away.values():
            one.close()
