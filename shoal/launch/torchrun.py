"""Who am I, under torchrun: one of several ranks, each with its role.

    rank 0              the head: it runs the command. Coordinator, evaluator, run folder, view, and server-0
    1 .. servers - 1    the other servers
    the rest            workers

torchrun ends everybody as soon as one of its processes fails. So a rank is only a shield: its node is forked by a nursery
below it, and may be killed and started again, while the rank stays until the head is gone, and ends with its code.

The ranks meet at a Unix socket that has a name and no file; all know the name from torchrun's variables, and the kernel says
whose process is at the other end. The head hands each rank the pipes of a nursery, so it orders and hears of a node as if the
node were its own. torchrun's store is not asked: it listens to the whole network, and takes what anybody writes.
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
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.errors import Invalid
from shoal.launch.exit_status import refuse
from shoal.launch.process_main import ProcessMessage
from shoal.launch.process_pool import start_nursery

if TYPE_CHECKING:
    from shoal.job import Job
    from shoal.launch.torchrun_cluster import HeadRank

MEET_WITHIN = 60.0  # seconds until all ranks have found each other
LINE = 4_096  # bytes of one message
_AGAIN = 0.02  # seconds between two knocks at the head's door
_DIGITS = 9  # of a number among torchrun's variables
_SET_BY = "torchrun sets these: start it with torchrun, or, to run without, unset TORCHELASTIC_RUN_ID"


class RankHello(ProcessMessage, frozen=True, tag="here"):
    """Rank to head: "this is who I am"."""

    rank: int


class RankForkserver(ProcessMessage, frozen=True, tag="nurse"):
    """Head to rank: "start a nursery": its orders and reports, two descriptors, come with it."""


class RankClosed(ProcessMessage, frozen=True, tag="closed"):
    """Rank to head: "the nursery is no more"."""

    code: int  # of its exit; of the signal that killed it, with a minus


class RankRelease(ProcessMessage, frozen=True, tag="over"):
    """Head to rank: "it is over; end with this code when I have ended"."""

    code: int


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    """One of torchrun's processes on this host."""

    number: int
    world: int  # how many there are
    hosts: int
    restarts: int  # of all of them, by torchrun
    door: bytes  # where they meet


def rank(variables: Mapping[str, str] | None = None) -> TorchrunRank | None:
    """Who this process is; None if torchrun did not start it."""
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
            f"LOCAL_WORLD_SIZE={world}: a cluster has at most {limits.MEMBERS:,} nodes: take fewer ranks (--nproc-per-node)"
        )
    return TorchrunRank(number, world, hosts, restarts, f"\0shoal-{door}".encode())


def is_rank() -> bool:
    """Did torchrun start this process?"""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _count(name: str, text: str) -> int:
    if len(text) > _DIGITS:
        raise Invalid(f"{name}={text[:_DIGITS]}... has {len(text):,} digits; {_SET_BY}")
    return int(text)


def take_part(call: Callable[[HeadRank | None], object]) -> object:
    """Have the command run by whom it is for: here without torchrun, otherwise by the head, which gets all other ranks."""
    try:
        me = rank()
    except Invalid as error:
        refuse(str(error))
    if me is None:
        return call(None)
    if me.number:
        sys.exit(follow(me))
    from shoal.launch.torchrun_cluster import HeadRank

    with HeadRank(me) as head:
        return call(head)


def staffed(job: Job, me: TorchrunRank) -> tuple[Job, str]:
    """The job with as many workers as there are ranks for, and who is who, in words."""
    if me.hosts > 1:
        raise Invalid(
            f"torchrun has started ranks on {me.hosts} hosts, and shoal stays on one machine until its nodes have keys: "
            f"take one (--nnodes 1) and more ranks there (--nproc-per-node)"
        )
    if not job.has_servers:
        raise Invalid(
            f"strategy {job.strategy.name!r} is a single process: start it without torchrun (shoal train ...)"
        )
    if job.launch.how != "processes":
        raise Invalid(
            f"launch.how={job.launch.how!r} is a single process, and torchrun starts one for every rank: leave it out, "
            f"or start it without torchrun (shoal train ...)"
        )
    least = job.servers + 1
    if me.world < least:
        fewer = f", or fewer servers (--servers {me.world - 1})" if me.world > 1 else ""
        raise Invalid(
            f"torchrun has started {me.world} {'rank' if me.world == 1 else 'ranks'}, and servers={job.servers} and a worker "
            f"need {least}: take more (--nproc-per-node {least}){fewer}"
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
    """The nodes that are forked elsewhere than at the head, and their ranks."""
    names = [f"server-{i}" for i in range(1, servers)] + [f"worker-{i}" for i in range(world - servers)]
    return {name: number for number, name in enumerate(names, 1)}


def is_ours(connection: socket.socket) -> int:
    """The number of the process at the other end, if it is ours; otherwise 0."""
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid) if user == os.getuid() else 0


# ---------------------------------------------------------------- the shield


def follow(me: TorchrunRank) -> int:
    """All that a rank does but the first. Returns its exit code when the head has gone."""
    head = _knock(me)
    if head is None:
        print(
            f"shoal: rank {me.number} waited {MEET_WITHIN:g} s for rank 0, which did not come: look at what it printed",
            file=sys.stderr,
        )
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the head is told the same, and may need our node to save the run
    with head:
        return _shield(me, head)


def _knock(me: TorchrunRank) -> socket.socket | None:
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
        time.sleep(_AGAIN)
    return None


def _shield(me: TorchrunRank, head: socket.socket) -> int:
    code, nursery = 1, None  # a head that says nothing was killed
    with contextlib.suppress(ConnectionError):
        while True:
            line, descriptors, _, _ = socket.recv_fds(head, LINE, 2)
            if not line:
                break
            match msgspec.json.decode(line, type=RankForkserver | RankRelease):
                case RankForkserver():
                    nursery = start_nursery(*descriptors)
                    threading.Thread(target=_tell_end, args=(nursery, head), daemon=True).start()
                case RankRelease(code):
                    pass
            for descriptor in descriptors:
                os.close(descriptor)
    if nursery is not None:  # it has seen the same
        try:
            nursery.wait(limits.DRAIN / limits.SECOND)
        except subprocess.TimeoutExpired:
            nursery.kill()
    return code


def _tell_end(nursery: subprocess.Popen[bytes], head: socket.socket) -> None:
    code = nursery.wait()
    with contextlib.suppress(OSError):
        head.send(msgspec.json.encode(RankClosed(code)))
