"""A warm process that forks all others of a cluster, so that a start costs milliseconds.

It is started fresh, so it inherits nothing from the user's program: no threads, sockets or held
locks. It imports what servers need (and, before the first worker, what workers need), checks that
it still has a single thread, and forks on order. Orders arrive as lines on standard input, reports
leave as lines on standard output; only the top process has the other ends. Every ForkOrder is
answered by ChildForked and ProcessRunning, or ProcessFailed, and finally by one ChildEnded.

When the top process hangs up, the forkserver gives its children a moment to end (they see the
same), kills the rest, removes the socket folder and ends. It computes nothing.
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

from shoal.decoding import resolve_types
from shoal.errors import Invalid
from shoal.launch import process_main
from shoal.launch.process_main import ProcessFailed, ProcessMessage, ProcessOrders

_GRACE = 1.0  # seconds for the children to end by themselves
FORKSERVER = "forkserver"  # its name in reports
SERVERS_NEED = (
    "shoal.launch.coordinator_process",
    "shoal.launch.server_process",
    "shoal.store.table.codegen",
    "shoal.wire.zmq",
)
WORKERS_NEED = ("shoal.launch.worker_process", "shoal.data.kernels", "shoal.models.kernels")


class ForkserverSetup(ProcessMessage, frozen=True, tag="setup"):
    """Top process to forkserver, first: "make this folder, import these modules"."""

    parent: int  # the top process
    folder: str  # of sockets; empty: none
    modules: list[str]
    path: list[str]  # where the top process finds modules


class ForkOrder(ProcessMessage, frozen=True, tag="fork"):
    """Top process to forkserver: "fork a process with these orders"."""

    orders: ProcessOrders


class SignalOrder(ProcessMessage, frozen=True, tag="signal"):
    """Top process to forkserver: "send it this signal, if it still runs"."""

    name: str
    number: int


class PassLine(ProcessMessage, frozen=True, tag="handon"):
    """Top process to forkserver: "write this line to its inbox, if it still runs"."""

    name: str
    line: str


class ForkserverStarted(ProcessMessage, frozen=True, tag="settled"):
    """Forkserver to top process: "the folder exists, the imports begin"."""


class ModulesRefused(ProcessMessage, frozen=True, tag="refused"):
    """Forkserver to top process: "the modules you named cannot be used"."""

    reason: str


class ChildForked(ProcessMessage, frozen=True, tag="forked"):
    """Forkserver to top process: "it has this process id"."""

    name: str
    pid: int


class ChildEnded(ProcessMessage, frozen=True, tag="ended"):
    """Forkserver to top process: "it has ended"."""

    name: str
    code: int  # exit code; minus the signal that killed it


Order = ForkOrder | SignalOrder | PassLine
ChildReport = process_main.ProcessRunning | ProcessFailed | process_main.ProcessEvent | process_main.ProcessRetired
Report = ForkserverStarted | ModulesRefused | ChildForked | ChildReport | ChildEnded


class Forkserver:
    """Forks, signals and reaps. Single-threaded."""

    def __init__(self, setup: ForkserverSetup, orders: int, reports: int, rest: bytes = b"") -> None:
        self._setup, self._orders, self._reports = setup, orders, reports
        self._pid = os.getpid()
        self._children: dict[int, str] = {}  # by process id
        self._inboxes: dict[str, int] = {}  # pipes to children that take lines later
        self._workers_imported = False
        self._rest = rest  # an incomplete line
        self._alarm, self._bell = os.pipe()  # written by the signal handler: a child's end wakes us
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)

    def prepare(self) -> None:
        """Import what servers need. Raises Invalid if a module of the user cannot be used."""
        with self._watched():
            process_main.prepare(self._setup.modules)
            for module in SERVERS_NEED:
                importlib.import_module(module)
        if not _has_one_thread():
            raise Invalid(
                f"one of the modules {self._setup.modules} started a thread when it was imported, which forked "
                f"processes cannot have: start the thread when it is first needed"
            )

    def run(self) -> None:
        """Fork, signal and reap until the top process is gone; then end all children."""
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal writes no wakeup byte
        signal.set_wakeup_fd(self._bell)
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        poll.register(self._alarm, select.POLLIN)
        self._take(b"")
        while True:
            seen = dict(poll.poll(process_main.LOOK))
            if seen.get(self._orders, 0) & ~select.POLLIN or os.getppid() != self._setup.parent:
                break  # orders left in the pipe no longer count
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
                        os.kill(pid, number)  # not reaped yet, so the id is still its own
                case PassLine(name, text) if name in self._inboxes:
                    # Never blocks: a stopped process gets what it missed with its next orders.
                    with contextlib.suppress(OSError):
                        os.write(self._inboxes[name], text.encode() + b"\n")

    def _fork(self, orders: ProcessOrders) -> None:
        inbox = -1
        try:
            self._ready_for(orders)
            if orders.inbox:
                inbox, self._inboxes[orders.name] = os.pipe()
                os.set_blocking(self._inboxes[orders.name], False)
            process_main.flush()
            pid = os.fork()
        except (Invalid, OSError) as error:
            process_main.say(self._reports, ProcessFailed(orders.name, f"cannot fork: {error}"))
            process_main.say(self._reports, ChildEnded(orders.name, 1))
            self._close_inbox(orders.name, inbox)
            return
        if pid == 0:
            self._run_child(orders, inbox)
        if inbox >= 0:
            os.close(inbox)
        self._children[pid] = orders.name
        process_main.say(self._reports, ChildForked(orders.name, pid))

    def _run_child(self, orders: ProcessOrders, inbox: int) -> None:
        """Run as the child. Never returns into the frames of the forkserver."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._alarm, self._bell, *self._inboxes.values()):
                os.close(descriptor)
            self._children.clear()
            code = process_main.run(orders, self._pid, self._orders, self._reports, inbox)
        finally:
            process_main.flush()
            os._exit(code)

    def _close_inbox(self, name: str, other: int = -1) -> None:
        for descriptor in (self._inboxes.pop(name, -1), other):
            if descriptor >= 0:
                os.close(descriptor)

    def _ready_for(self, orders: ProcessOrders) -> None:
        """Import what workers need here, once, before the first of them is forked."""
        plain = orders.main in (
            process_main.MAINS["server"],
            process_main.MAINS["coordinator"],
        ) and not orders.work.get("run")
        if self._workers_imported or plain:
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
        if not _has_one_thread():
            raise Invalid("importing what workers need started a thread, which forked processes cannot have")
        self._workers_imported = True

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """End with the top process also during imports: the first start compiles the kernels."""
        until, stop = os.pipe()
        facts = (self._setup.parent, self._orders, self._setup.folder, until)
        watch = threading.Thread(target=process_main.end_with, args=facts, name="shoal-watch", daemon=True)
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
        # not any child: a module may have children of its own
        for pid, name in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._children[pid]
                self._close_inbox(name)
                process_main.say(self._reports, ChildEnded(name, os.waitstatus_to_exitcode(status)))

    def _end(self) -> None:
        deadline = time.monotonic() + _GRACE
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        while self._children and time.monotonic() < deadline:
            self._reap(dict(poll.poll(50)))
        for pid in self._children:  # stopped, or in a call that never returns
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        process_main.sweep(self._setup.folder)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the top process, which ends us
    orders, reports = _take_over()
    begin = b""
    while b"\n" not in begin:
        more = os.read(orders, 65_536)
        if not more:
            return  # the top process died before its first order
        begin += more
    line, _, rest = begin.partition(b"\n")
    setup = msgspec.json.decode(line, type=ForkserverSetup)
    sys.path[:] = setup.path
    try:
        # made here, not in the top process, which may be killed before removing it
        if setup.folder:
            os.mkdir(setup.folder, 0o700)
    except OSError as error:
        process_main.say(reports, ProcessFailed(FORKSERVER, f"cannot make the folder {setup.folder}: {error.strerror}"))
        return
    code = 1
    try:
        code = _serve(Forkserver(setup, orders, reports, rest), reports)
    except BaseException:
        traceback.print_exc()
    finally:
        process_main.sweep(setup.folder)
        process_main.flush()
        os._exit(code)  # no finalizers: the kernel closes everything


def _serve(forkserver: Forkserver, reports: int) -> int:
    process_main.say(reports, ForkserverStarted())
    try:
        forkserver.prepare()
    except BaseException as error:
        why = str(error)
        if not isinstance(error, Invalid):
            traceback.print_exc()
            why = f"{type(error).__name__} while importing what servers need: {error}; see its traceback"
        process_main.say(reports, ModulesRefused(why))
        return 1
    forkserver.run()
    return 0


def _take_over() -> tuple[int, int]:
    """Take standard input and output away, so that a module's print is never read as a report."""
    orders, reports = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # the top process has no standard error
        os.dup2(nothing, 1)
    os.close(nothing)
    return orders, reports


def _has_one_thread() -> bool:
    """Whether this process has a single thread; a joined one may need a moment to go."""
    deadline = time.monotonic() + 1.0
    while threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


resolve_types(ForkserverSetup, Order, Report)

if __name__ == "__main__":
    main()
