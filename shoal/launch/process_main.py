"""What a forked process does: it serves or works, and it ends when the top process does.

    top process  --orders-->  nursery  --fork-->  child          both see it when the top process hangs up
         ^-------reports--------'-----------------'              whole lines, so they may share one pipe

A child never reads the pipe that the orders come by, it only watches it: the other end is the top process's alone, so a
hang-up means that it is gone. When that happens, or the nursery is gone, the child removes the cluster's folder and ends.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import os
import select
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import ShoalError
from shoal.events import RunEvent
from shoal.user_code import import_modules

if TYPE_CHECKING:
    from shoal.wire import Transport

LOOK = 1_000  # milliseconds between two looks at who our parent is
_PIECE = 3_000  # characters of an event in one line, which is shorter than PIPE_BUF
_ERROR_CHARS = 500  # a report is shorter than PIPE_BUF (4,096 bytes), even if every character is escaped
MAINS = {  # of the nodes of a cluster; a strategy's own workers are named by their modules
    "server": "shoal.launch.server_process",
    "worker": "shoal.launch.worker_process",
    "coordinator": "shoal.launch.coordinator_process",
    "scheduler": "shoal.launch.scheduler_process",
}


class ProcessMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all that is said between top process, nursery and children: one line of JSON each."""


class ProcessOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who a process is to be, and what it is to do."""

    name: str
    main: str  # the module whose ``main(orders, process)`` it runs
    token: str
    bind: str  # where it listens, if others call it
    coordinator: str
    folder: str  # of sockets; empty if there is none
    work: dict[str, Any] = {}  # plain data, handed on as it is
    safety: str = "local"  # Safety.plain: where its keys are, if it has any; never a key
    advertise: str = ""  # the host that others know this one by
    inbox: bool = False  # the top process has more to say to it later


class ProcessRunning(ProcessMessage, frozen=True, tag="running"):
    """Child to top process: "I run, and listen there" (a worker that nobody calls listens nowhere)."""

    name: str
    address: str = ""


class ProcessFailed(ProcessMessage, frozen=True, tag="failed"):
    """Child or nursery to top process: "this is why I end"; that it has ended is told afterwards."""

    name: str
    error: str


class ProcessRetired(ProcessMessage, frozen=True, tag="retired"):
    """Server to top process: "they let me go: I am not needed any more"; that it has ended is told afterwards."""

    name: str


class ProcessEvent(ProcessMessage, frozen=True, tag="happened"):
    """Coordinator to top process: "this happened": a piece of an event."""

    name: str
    piece: str  # of msgpack, which knows infinity, in base64
    more: bool  # of the same event follows

    @classmethod
    def pieces(cls, name: str, event: RunEvent) -> list[ProcessEvent]:
        text = base64.b64encode(msgspec.msgpack.encode(event)).decode()
        return [cls(name, text[at : at + _PIECE], at + _PIECE < len(text)) for at in range(0, len(text), _PIECE)]


@dataclass(frozen=True, slots=True)
class Process:
    """What runs in a forked process knows it by this: how to say that it is ready, and where it hears from the top."""

    name: str
    reports: int  # a descriptor to write to
    inbox: int  # one to read from, where the orders say so; -1: none

    def ready(self, address: str = "") -> None:
        """It runs, and listens there if it listens at all."""
        say(self.reports, ProcessRunning(self.name, address))

    def say(self, line: ProcessMessage) -> None:
        say(self.reports, line)

    def tell(self, event: RunEvent) -> None:
        """To whoever looks at the run."""
        for piece in ProcessEvent.pieces(self.name, event):
            say(self.reports, piece)


def event_of(text: str) -> RunEvent:
    """All pieces of one, put together."""
    event: RunEvent = msgspec.msgpack.decode(base64.b64decode(text), type=RunEvent)
    return event


def prepare(modules: Sequence[str]) -> None:
    """Import what this process needs: the kernels, and the modules that the operator named."""
    importlib.import_module("shoal.store.table.kernels")
    import_modules(modules)


def moved_by(transport: Transport) -> Callable[[], dict[str, int]]:
    """What a server tells of its transport, beside what it knows itself: bytes, of all its tables and of all else."""
    return lambda: dict(zip(("sent", "received"), transport.traffic, strict=True))


def run(orders: ProcessOrders, nursery: int, hangup: int, reports: int, inbox: int = -1) -> int:
    """Do what was ordered, to the end; returns the exit code.

    ``hangup`` is watched, ``reports`` written to; by ``inbox`` it hears from the top process, where its orders say so.
    """
    from shoal.security.descriptors import raise_descriptors  # late: it brings all messages, and --help needs none

    raise_descriptors()
    watch = threading.Thread(target=end_with, args=(nursery, hangup, orders.folder), name="shoal-watch", daemon=True)
    watch.start()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as title:  # what `top` shows
        title.write(f"shoal {orders.name}"[:15])
    try:
        importlib.import_module(orders.main).main(orders, Process(orders.name, reports, inbox))
    except ShoalError as error:
        say(reports, ProcessFailed(orders.name, str(error)))
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        say(reports, ProcessFailed(orders.name, f"{type(error).__name__}: {error}; the traceback is on standard error"))
        return 1
    return 0


def transport_of(orders: ProcessOrders, bind: str | None = None, name: str = "") -> Transport:
    """Of a node that was ordered, under its name in the cluster if that is another; it calls the coordinator, if there is one yet."""
    from shoal.security.safety import Safety
    from shoal.wire.zmq import ZmqTransport

    transport = ZmqTransport(name or orders.name, bind, Safety.of_plain(orders.safety), orders.advertise)
    if orders.coordinator and orders.name != "coordinator":
        transport.connect("coordinator", orders.coordinator)
    return transport


def say(reports: int, report: ProcessMessage) -> None:
    """One line in one write: the kernel keeps lines of this length whole, whoever else writes."""
    if isinstance(report, ProcessFailed) and len(report.error) > _ERROR_CHARS:
        report = ProcessFailed(report.name, report.error[:_ERROR_CHARS] + "...")
    with contextlib.suppress(OSError):  # nobody listens any more: the watch will see that too
        os.write(reports, msgspec.json.encode(report) + b"\n")


def end_with(parent: int, hangup: int, folder: str, until: int = -1) -> None:
    """End this process, and remove the folder, when ``hangup`` hangs up or ``parent`` is not our parent any more.

    Returns when ``until`` hangs up first: the nursery watches so while it imports, and has no thread when it forks.
    """
    poll = select.poll()
    poll.register(hangup, 0)  # a hang-up is told unasked; the bytes in the pipe are for the nursery
    if until >= 0:
        poll.register(until, 0)
    while True:
        seen = [descriptor for descriptor, _ in poll.poll(LOOK)]
        if hangup in seen or os.getppid() != parent:
            sweep(folder)
            os._exit(0)
        if seen:
            return


def sweep(folder: str) -> None:
    """Remove the folder of sockets; again, if somebody who ends at the same time was just binding one."""
    for _ in range(10):
        if not folder or not os.path.lexists(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)


def flush() -> None:
    """What is printed but not yet written would be written twice after a fork, and never before a hard end."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def state_of(pid: int) -> str:
    """What the kernel says of a process: R, S, ... and T for one that was stopped; nothing if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
