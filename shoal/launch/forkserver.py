"""One warm process that forks all others of a cluster, so that each costs milliseconds instead of imports.

It is started afresh, so it has nothing of the user's program: no threads, no sockets, no locks that somebody holds. It
imports what servers need (and, at the first worker, what workers need), checks that it still has one thread only, and
then forks on order. Orders come as lines on standard input, reports go out as lines on standard output; nobody but the
top process has the other ends. Every Fork is answered by Forked and Running, or Failed, and in the end by one Ended.

When the top process hangs up the nursery waits a moment for its children, which see the same, kills those that did
not end, removes the folder of sockets and ends. It never computes, and never forks once it has another thread.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator

import msgspec

from shoal.decoding import look_up
from shoal.errors import Invalid
from shoal.launch.process_main import (
    LOOK,
    MAINS,
    ProcessEvent,
    ProcessFailed,
    ProcessMessage,
    ProcessOrders,
    ProcessRetired,
    ProcessRunning,
    end_with,
    flush,
    prepare,
    run,
    say,
    sweep,
)

_GRACE = 1.0  # seconds for the children to end by themselves
SERVERS_NEED = (
    "shoal.launch.coordinator_process",
    "shoal.launch.server_process",
    "shoal.store.table.codegen",
    "shoal.wire.zmq",
)
WORKERS_NEED = ("shoal.launch.worker_process", "shoal.data.kernels", "shoal.models.kernels")


class ForkserverSetup(ProcessMessage, frozen=True, tag="setup"):
    """Top process to nursery, first: "make this folder, import these"."""

    parent: int  # the top process
    folder: str  # of sockets; empty if there is none
    modules: list[str]
    path: list[str]  # where the top process finds modules


class ForkOrder(ProcessMessage, frozen=True, tag="fork"):
    """Top process to nursery: "a process with these orders"."""

    orders: ProcessOrders


class SignalOrder(ProcessMessage, frozen=True, tag="signal"):
    """Top process to nursery: "send it this signal, if it still runs"."""

    name: str
    number: int


class PassFile(ProcessMessage, frozen=True, tag="handon"):
    """Top process to nursery: "hand this line on to it, if it still runs"; for a coordinator, a scheduler or a peer."""

    name: str
    line: str


class ForkserverReady(ProcessMessage, frozen=True, tag="settled"):
    """Nursery to top process: "the folder is there, the imports begin"."""


class ModulesRefused(ProcessMessage, frozen=True, tag="refused"):
    """Nursery to top process: "the modules you named cannot be used"."""

    reason: str


class ChildForked(ProcessMessage, frozen=True, tag="forked"):
    """Nursery to top process: "it has this process number"."""

    name: str
    pid: int


class ChildEnded(ProcessMessage, frozen=True, tag="ended"):
    """Nursery to top process: "it is no more"."""

    name: str
    code: int  # of its exit; of the signal that killed it, with a minus


Order = ForkOrder | SignalOrder | PassFile
Report = (
    ForkserverReady
    | ModulesRefused
    | ChildForked
    | ProcessRunning
    | ProcessFailed
    | ProcessEvent
    | ProcessRetired
    | ChildEnded
)


class Forkserver:
    """The process that forks. Its own thread is the only one."""

    def __init__(self, setup: ForkserverSetup, orders: int, reports: int, rest: bytes = b"") -> None:
        self._setup, self._orders, self._reports = setup, orders, reports
        self._pid = os.getpid()
        self._children: dict[int, str] = {}  # by process number
        self._inboxes: dict[str, int] = {}  # where coordinators and peers hear what is handed on to them
        self._works = False  # whether workers can be forked, too
        self._rest = rest  # read, but not a whole line yet
        self._alarm, self._bell = os.pipe()  # a signal rings it, so that the end of a child wakes us
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)

    def prepare(self) -> None:
        """Import what servers need. Raises Invalid if a module of the operator's cannot be used."""
        with self._watched():
            prepare(self._setup.modules)
            for module in SERVERS_NEED:
                importlib.import_module(module)
        if not _alone():
            raise Invalid(
                f"modules that start threads cannot be used with forked processes: of {self._setup.modules} one left "
                f"a thread behind when it was imported; start it when it is first needed"
            )

    def run(self) -> None:
        """Fork, signal and reap until the top process is gone; then see that everything else is, too."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # ignored, it would not ring
        signal.set_wakeup_fd(self._bell)
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        poll.register(self._alarm, select.POLLIN)
        self._take(b"")
        while True:
            seen = dict(poll.poll(LOOK))
            if seen.get(self._orders, 0) & ~select.POLLIN or os.getppid() != self._setup.parent:
                break  # orders that are still in the pipe are nobody's
            if self._orders in seen:
                self._take(os.read(self._orders, 65_536))
            self._reap(seen)
        self._end()

    def _take(self, more: bytes) -> None:
        *lines, self._rest = (self._rest + more).split(b"\n")
        for line in lines:
            match msgspec.json.decode(line, type=Order):
                case ForkOrder(orders):
                    self._fork(orders)
                case SignalOrder(name, number):
                    for pid in [pid for pid, one in self._children.items() if one == name]:
                        os.kill(pid, number)  # not reaped yet, so the number is still its own
                case PassFile(name, text):
                    self._hand_on(name, text)

    def _fork(self, orders: ProcessOrders) -> None:
        inbox = -1
        try:
            self._ready_for(orders)
            if orders.inbox:
                inbox, self._inboxes[orders.name] = os.pipe()
                os.set_blocking(self._inboxes[orders.name], False)
            flush()
            pid = os.fork()
        except (Invalid, OSError) as error:
            say(self._reports, ProcessFailed(orders.name, f"cannot fork: {error}"))
            say(self._reports, ChildEnded(orders.name, 1))
            self._close_inbox(orders.name, inbox)
            return
        if pid == 0:
            self._be(orders, inbox)
        if inbox >= 0:
            os.close(inbox)
        self._children[pid] = orders.name
        say(self._reports, ChildForked(orders.name, pid))

    def _be(self, orders: ProcessOrders, inbox: int) -> None:
        """We are the child: nothing that lies below us on the stack may ever be returned to."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._alarm, self._bell, *self._inboxes.values()):
                os.close(descriptor)
            self._children.clear()
            code = run(orders, self._pid, self._orders, self._reports, inbox)
        finally:
            flush()
            os._exit(code)

    def _hand_on(self, name: str, line: str) -> None:
        """Never waits: what one that is stopped cannot take, it is told when it is started again."""
        if name in self._inboxes:
            with contextlib.suppress(OSError):
                os.write(self._inboxes[name], line.encode() + b"\n")

    def _close_inbox(self, name: str, other: int = -1) -> None:
        for descriptor in (self._inboxes.pop(name, -1), other):
            if descriptor >= 0:
                os.close(descriptor)

    def _ready_for(self, orders: ProcessOrders) -> None:
        """The first worker, or a coordinator of a run, brings more imports: here, once, instead of in every process."""
        plain = orders.main in (MAINS["server"], MAINS["coordinator"]) and not orders.work.get("run")
        if self._works or plain:
            return
        try:
            with self._watched():
                for module in WORKERS_NEED:
                    importlib.import_module(module)
                prefork = getattr(importlib.import_module(orders.main), "prefork", None)
                if prefork is not None:
                    prefork(orders.work)
        except Exception as error:
            raise Invalid(f"{type(error).__name__} while importing what workers need: {error}") from None
        if not _alone():
            raise Invalid("what workers need left a thread behind when it was imported")
        self._works = True

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """End with the top process while we import, too: the first start on a machine compiles the kernels."""
        until, stop = os.pipe()
        facts = (self._setup.parent, self._orders, self._setup.folder, until)
        watch = threading.Thread(target=end_with, args=facts, name="shoal-watch", daemon=True)
        watch.start()
        try:
            yield
        finally:
            os.close(stop)
            watch.join()
            os.close(until)

    def _reap(self, seen: dict[int, int]) -> None:
        if self._alarm in seen:
            with contextlib.suppress(BlockingIOError):
                os.read(self._alarm, 4_096)
        for pid, name in list(self._children.items()):  # not just any child: a module may have some of its own
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                self._close_inbox(name)
                say(self._reports, ChildEnded(name, os.waitstatus_to_exitcode(status)))

    def _end(self) -> None:
        deadline = time.monotonic() + _GRACE
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        while self._children and time.monotonic() < deadline:
            self._reap(dict(poll.poll(50)))
        for pid in self._children:  # one that is stopped, or deep in something that never looks up
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        sweep(self._setup.folder)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the top process, which ends us
    orders, reports = _take_over()
    begin = b""
    while b"\n" not in begin:
        more = os.read(orders, 65_536)
        if not more:
            return  # the top process died before it could say anything
        begin += more
    line, _, rest = begin.partition(b"\n")
    setup = msgspec.json.decode(line, type=ForkserverSetup)
    sys.path[:] = setup.path
    try:
        if setup.folder:  # made by us, not by the top process: whoever makes it must be there to remove it
            os.mkdir(setup.folder, 0o700)
    except OSError as error:
        say(reports, ProcessFailed("nursery", f"cannot make the folder {setup.folder}: {error.strerror}"))
        return
    code = 1
    try:
        code = _keep(Forkserver(setup, orders, reports, rest), setup, reports)
    except BaseException:
        traceback.print_exc()
    finally:
        sweep(setup.folder)
        flush()
        os._exit(code)  # no finalizers: what there is to close, the kernel closes


def _keep(nursery: Forkserver, setup: ForkserverSetup, reports: int) -> int:
    say(reports, ForkserverReady())
    try:
        nursery.prepare()
    except Invalid as error:
        say(reports, ModulesRefused(str(error)))
        return 1
    except BaseException as error:
        traceback.print_exc()
        say(
            reports,
            ModulesRefused(f"{type(error).__name__} while importing what servers need: {error}; see its traceback"),
        )
        return 1
    nursery.run()
    return 0


def _take_over() -> tuple[int, int]:
    """Keep standard input and output for ourselves: what a module prints must not pass for a report."""
    orders, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # the top process has no standard error
        os.dup2(nothing, 1)
    os.close(nothing)
    return orders, reports


def _alone() -> bool:
    """Whether this process has one thread only; one that was joined may need a moment to be gone."""
    deadline = time.monotonic() + 1.0
    while threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


look_up(ForkserverSetup, Order, Report)

if __name__ == "__main__":
    main()
