"""The role of a rank that torchrun started, and what ranks other than the head do.

    rank 0              the head: runs the command, coordinator, evaluator, view, and server-0
    1 .. servers - 1    the other servers
    the rest            workers

torchrun ends everything as soon as one of its processes fails. So a rank is only a shield: a
forkserver below it forks its node, which may be killed and restarted, while the rank stays until
the head is gone and ends with the head's exit code.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.errors import Invalid
from shoal.launch.process_main import ProcessMessage
from shoal.launch.process_pool import start_forkserver

if TYPE_CHECKING:
    from shoal.job import Job

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
    """One of torchrun's processes on this host."""

    number: int
    world: int  # the number of ranks
    hosts: int
    restarts: int  # of all ranks, by torchrun
    door: bytes  # the name of the head's socket


def rank(variables: Mapping[str, str] | None = None) -> TorchrunRank | None:
    """This process's rank; None if torchrun did not start it."""
    known = os.environ if variables is None else variables
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    if "TORCHELASTIC_RUN_ID" not in known or not all(known.get(name, "").isdecimal() for name in names):
        return None
    meant = [str(os.getuid()), *(known.get(name, "") for name in ("MASTER_PORT", "GROUP_RANK", "TORCHELASTIC_RUN_ID"))]
    meant.append(known["TORCHELASTIC_RESTART_COUNT"])
    door = hashlib.sha256("\0".join(meant).encode(errors="surrogateescape")).hexdigest()[:32]
    number, world, hosts, restarts = (_count(name, known[name]) for name in names)
    if number >= world:
        raise Invalid(f"LOCAL_RANK={number} and LOCAL_WORLD_SIZE={world}: ranks are 0 to one less; {_SET_BY}")
    if world > limits.MEMBERS:
        raise Invalid(
            f"LOCAL_WORLD_SIZE={world}: a cluster has at most {limits.MEMBERS:,} nodes: use fewer ranks (--nproc-per-node)"
        )
    return TorchrunRank(number, world, hosts, restarts, f"\0shoal-{door}".encode())


def is_rank() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


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
        raise Invalid(
            f"strategy {job.strategy.name!r} is a single process: start it without torchrun (shoal train ...)"
        )
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


def follow(me: TorchrunRank) -> int:
    """Run a rank other than the first. Returns its exit code when the head is gone."""
    head = _connect(me)
    if head is None:
        print(
            f"shoal: rank {me.number} waited {MEET_WITHIN:g} s for rank 0 in vain: look at what rank 0 printed",
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
            head.connect(me.door)
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
