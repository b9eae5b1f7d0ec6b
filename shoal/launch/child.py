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
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from shoal.errors import Invalid, ShoalError
from shoal.events import RunEvent

if TYPE_CHECKING:
    from shoal.wire import Transport

LOOK = 1_000  # milliseconds between two looks at who our parent is
_PIECE = 3_000  # characters of an event in one line, which is shorter than PIPE_BUF
_ERROR_CHARS = 500  # a report is shorter than PIPE_BUF (4,096 bytes), even if every character is escaped


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all that is said between top process, nursery and children: one line of JSON each."""


class Orders(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who a process is to be, and what it is to do."""

    name: str
    kind: Literal["server", "worker", "racer", "rank", "gossiper", "peer", "coordinator", "scheduler"]
    token: str
    bind: str  # where it listens, if others call it
    coordinator: str
    folder: str  # of sockets; empty if there is none
    work: dict[str, Any] = {}  # plain data, handed on as it is
    safety: str = "local"  # Safety.plain: where its keys are, if it has any; never a key
    advertise: str = ""  # the host that others know this one by


class Running(Line, frozen=True, tag="running"):
    """Child to top process: "I run, and listen there" (a worker that nobody calls listens nowhere)."""

    name: str
    address: str = ""


class Failed(Line, frozen=True, tag="failed"):
    """Child or nursery to top process: "this is why I end"; that it has ended is told afterwards."""

    name: str
    error: str


class Retired(Line, frozen=True, tag="retired"):
    """Server to top process: "they let me go: I am not needed any more"; that it has ended is told afterwards."""

    name: str


class Happened(Line, frozen=True, tag="happened"):
    """Coordinator to top process: "this happened": a piece of an event."""

    name: str
    piece: str  # of msgpack, which knows infinity, in base64
    more: bool  # of the same event follows

    @classmethod
    def pieces(cls, name: str, event: RunEvent) -> list[Happened]:
        text = base64.b64encode(msgspec.msgpack.encode(event)).decode()
        return [cls(name, text[at : at + _PIECE], at + _PIECE < len(text)) for at in range(0, len(text), _PIECE)]


def event_of(text: str) -> RunEvent:
    """All pieces of one, put together."""
    event: RunEvent = msgspec.msgpack.decode(base64.b64decode(text), type=RunEvent)
    return event


def prepare(modules: Sequence[str]) -> None:
    """Import what this process needs: the kernels, and the modules that the operator named, wherever they are needed.

    They are found where Python looks, and after that in the current folder, however shoal was called.
    """
    importlib.import_module("shoal.store.kernels")
    with contextlib.suppress(FileNotFoundError):  # somebody may have removed it
        if modules and (here := os.getcwd()) not in sys.path:
            sys.path.append(here)  # last: a file that happens to lie there is nobody else's module
            importlib.invalidate_caches()
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise Invalid(
                f"cannot import {module!r}, which was named in modules=: {error}; go to the folder it is in, or name that: "
                f"export PYTHONPATH=folder"
            ) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may raise what it likes, and may want to leave
            traceback.print_exc()
            raise Invalid(
                f"{type(error).__name__} while importing {module!r}, which was named in modules=: {error}; see its traceback"
            ) from None


def moved_by(transport: Transport) -> Callable[[], dict[str, int]]:
    """What a server tells of its transport, beside what it knows itself: bytes, of all its tables and of all else."""
    return lambda: dict(zip(("sent", "received"), transport.traffic, strict=True))


def run(orders: Orders, nursery: int, hangup: int, reports: int, inbox: int = -1) -> int:
    """Do what was ordered, to the end; returns the exit code.

    ``hangup`` is watched, ``reports`` written to; by ``inbox`` a coordinator or a peer hears from the top process.
    """
    from shoal.wire.descriptors import raise_descriptors  # late: it brings all messages, and --help needs none

    raise_descriptors()
    watch = threading.Thread(target=end_with, args=(nursery, hangup, orders.folder), name="shoal-watch", daemon=True)
    watch.start()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as title:  # what `top` shows
        title.write(f"shoal {orders.name}"[:15])
    try:
        match orders.kind:
            case "server":
                _serve(orders, reports)
            case "worker":
                _work(orders, reports)
            case "racer":
                _race(orders, reports)
            case "rank":
                _be_rank(orders, reports)
            case "gossiper":
                _gossip(orders, reports)
            case "peer":
                _be_peer(orders, reports, inbox)
            case "coordinator":
                _coordinate(orders, reports, inbox)
            case "scheduler":
                _schedule(orders, reports, inbox)
    except ShoalError as error:
        say(reports, Failed(orders.name, str(error)))
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        say(reports, Failed(orders.name, f"{type(error).__name__}: {error}; the traceback is on standard error"))
        return 1
    return 0


def transport_of(orders: Orders, bind: str | None = None, name: str = "") -> Transport:
    """Of a node that was ordered, under its name in the cluster if that is another; it calls the coordinator, if there is one yet."""
    from shoal.wire.security import Safety
    from shoal.wire.zmq import ZmqTransport

    transport = ZmqTransport(name or orders.name, bind, Safety.of_plain(orders.safety), orders.advertise)
    if orders.coordinator and orders.name != "coordinator":
        transport.connect("coordinator", orders.coordinator)
    return transport


def _serve(orders: Orders, reports: int) -> None:
    from shoal.launch.serving import Serving, heard

    transport = transport_of(orders, orders.bind)
    serving = Serving(orders.name, orders.token, transport)
    serving.keep_apart()
    with heard([signal.SIGTERM], serving.leave):
        say(reports, Running(orders.name, transport.address))
        serving.run()
    if not serving.guest.asks:  # somebody let it go: nobody is to start it again
        say(reports, Retired(orders.name))


def _work(orders: Orders, reports: int) -> None:
    from shoal.launch.work import work

    work(orders, lambda: say(reports, Running(orders.name)))


def _race(orders: Orders, reports: int) -> None:
    from shoal.launch.racer import race

    race(orders, lambda: say(reports, Running(orders.name)))


def _be_rank(orders: Orders, reports: int) -> None:
    from shoal.launch.others import be_rank

    be_rank(orders, lambda: say(reports, Running(orders.name)))


def _gossip(orders: Orders, reports: int) -> None:
    from shoal.launch.gossipers import gossip

    gossip(orders, lambda address: say(reports, Running(orders.name, address)))


def _be_peer(orders: Orders, reports: int, inbox: int) -> None:
    from shoal.launch.peer_process import be_peer

    be_peer(orders, lambda address: say(reports, Running(orders.name, address)), inbox)


def _coordinate(orders: Orders, reports: int, inbox: int) -> None:
    from shoal.launch.coordination import coordinate

    coordinate(orders, reports, inbox)


def _schedule(orders: Orders, reports: int, inbox: int) -> None:
    from shoal.launch.scheduling import schedule

    schedule(orders, reports, inbox)


def say(reports: int, report: Line) -> None:
    """One line in one write: the kernel keeps lines of this length whole, whoever else writes."""
    if isinstance(report, Failed) and len(report.error) > _ERROR_CHARS:
        report = Failed(report.name, report.error[:_ERROR_CHARS] + "...")
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
