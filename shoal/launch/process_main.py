"""The entry of every forked process, which ends with the top process.

    top process  --orders-->  forkserver  --fork-->  child    both see if the top process hangs up
         ^-------reports----------'--------------------'      whole lines, so they can share a pipe

A child never reads the order pipe, it only watches it. The top process alone has the other end, so
a hang-up means that it is gone. Then, or when the forkserver is gone, the child removes the
cluster's folder and ends.
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import ShoalError
from shoal.events import RunEvent
from shoal.user_code import import_modules

if TYPE_CHECKING:
    from shoal.wire import Transport

LOOK = 1_000  # milliseconds between two checks of our parent
# A report must be shorter than PIPE_BUF (4,096 bytes), even if every character is escaped.
_PIECE = 3_000  # characters of an event in one line
_ERROR_CHARS = 500
MAINS = {  # of a cluster's nodes; a strategy names the module of its own workers
    "server": "shoal.launch.server_process",
    "worker": "shoal.launch.worker_process",
    "coordinator": "shoal.launch.coordinator_process",
    "scheduler": "shoal.launch.coordinator_process",
}


class ProcessMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the messages between top process, forkserver and children: a line of JSON each."""


class ProcessOrders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which node a process is, and what it runs."""

    name: str
    main: str  # the module whose ``main(orders, process)`` it runs
    token: str = ""
    bind: str = ""  # where it listens, if others connect to it
    coordinator: str = ""
    folder: str = ""  # of sockets; empty: none
    work: dict[str, Any] = {}  # plain data for its main
    safety: str = "local"  # Safety.plain: where its keys are; never a key itself
    advertise: str = ""  # the host name that others use for this one
    inbox: bool = False  # the top process will send it lines later


class ProcessRunning(ProcessMessage, frozen=True, tag="running"):
    """Child to top process: "I run, and listen there" (workers listen nowhere)."""

    name: str
    address: str = ""


class ProcessFailed(ProcessMessage, frozen=True, tag="failed"):
    """Child or forkserver to top process: "this is why I end"; ChildEnded follows."""

    name: str
    error: str


class ProcessRetired(ProcessMessage, frozen=True, tag="retired"):
    """Server to top process: "I was drained: do not restart me"; ChildEnded follows."""

    name: str


class ProcessEvent(ProcessMessage, frozen=True, tag="happened"):
    """Coordinator to top process: a piece of an event."""

    name: str
    piece: str  # msgpack (which has infinity) in base64
    more: bool  # of the same event follows

    @classmethod
    def pieces(cls, name: str, event: RunEvent) -> list[ProcessEvent]:
        text = base64.b64encode(msgspec.msgpack.encode(event)).decode()
        return [cls(name, text[at : at + _PIECE], at + _PIECE < len(text)) for at in range(0, len(text), _PIECE)]


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    reports: int  # file descriptor for writing
    inbox: int  # file descriptor for reading; -1: none

    def ready(self, address: str = "") -> None:
        """Report that it runs, and where it listens, if it does."""
        say(self.reports, ProcessRunning(self.name, address))

    def say(self, line: ProcessMessage) -> None:
        say(self.reports, line)

    def tell(self, event: RunEvent) -> None:
        for piece in ProcessEvent.pieces(self.name, event):
            say(self.reports, piece)


def event_of(text: str) -> RunEvent:
    event: RunEvent = msgspec.msgpack.decode(base64.b64decode(text), type=RunEvent)
    return event


def prepare(modules: Sequence[str]) -> None:
    importlib.import_module("shoal.store.table.kernels")
    import_modules(modules)


def run(orders: ProcessOrders, forkserver: int, hangup: int, reports: int, inbox: int = -1) -> int:
    """Run the ordered main to its end; returns the exit code. ``hangup`` is watched for its end."""
    # late: it imports all messages, and --help needs none
    from shoal.security.connections import raise_descriptors

    raise_descriptors()
    watch = threading.Thread(target=end_with, args=(forkserver, hangup, orders.folder), name="shoal-watch", daemon=True)
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
    """The transport of an ordered node, connected to the coordinator if there is one yet."""
    from shoal.security.safety import Safety
    from shoal.wire.zmq import ZmqTransport

    transport = ZmqTransport(name or orders.name, bind, Safety.of_plain(orders.safety), orders.advertise)
    if orders.coordinator and orders.name != "coordinator":
        transport.connect("coordinator", orders.coordinator)
    return transport


def say(reports: int, report: ProcessMessage) -> None:
    """Write one line in one call: the kernel does not mix lines this short with others."""
    if isinstance(report, ProcessFailed) and len(report.error) > _ERROR_CHARS:
        report = ProcessFailed(report.name, report.error[:_ERROR_CHARS] + "...")
    with contextlib.suppress(OSError):  # nobody reads any more: the watch thread sees that, too
        os.write(reports, msgspec.json.encode(report) + b"\n")


def end_with(parent: int, hangup: int, folder: str, until: int = -1) -> None:
    """End this process and remove the folder when ``hangup`` hangs up or ``parent`` is gone.

    Returns if ``until`` hangs up first: the forkserver watches only while it imports, and has no
    thread when it forks.
    """
    poll = select.poll()
    poll.register(hangup, 0)  # reports hang-ups only; the bytes in the pipe are for the forkserver
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
    """Remove the socket folder; again if an ending process was just binding a socket there."""
    for _ in range(10):
        if not folder or not os.path.lexists(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)


def flush() -> None:
    """Flush output, which a fork would write twice and a hard exit never."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def state_of(pid: int) -> str:
    """The kernel's state of a process (R, S, T for stopped, ...); empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
