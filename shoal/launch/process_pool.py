"""Orders processes from a forkserver, and tracks which run and how each ended.

The pipes to the forkserver are the lifeline: when the top process closes them, or ends in any way,
everything that was forked ends. When the forkserver is gone, its children end by themselves, and
each is reported as lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import msgspec

from shoal import limits
from shoal.errors import Invalid, StartFailed
from shoal.events import RunEvent
from shoal.launch import forkserver, process_main

_COUNTS = Path("/proc/vmstat")
_COUNT = "oom_kill "


class ExitReasons:
    """Explains how processes ended, by exit codes and the kernel's out-of-memory count.

    Such a kill looks like any other, and the count is of the whole machine: if it has risen, the
    message says that the kernel has killed *a* process.
    """

    def __init__(self, counts: Path = _COUNTS) -> None:
        self._counts = counts
        self._before = self._oom_kills()

    def how(self, code: int) -> str:
        """In words, for an exit code as Python has it: negative for a signal."""
        if code >= 0:
            return f"exit code {code}"
        words = f"killed by signal {-code}"
        if -code != signal.SIGKILL:
            return words
        before, self._before = self._before, self._oom_kills()
        if self._before <= before:
            return words
        return f"{words}; the kernel killed a process for lack of memory: add memory, or use more servers"

    def _oom_kills(self) -> int:
        try:
            lines = self._counts.read_text().splitlines()
        except OSError:  # another kernel
            return 0
        return next((int(line.removeprefix(_COUNT)) for line in lines if line.startswith(_COUNT)), 0)


DONE = "it ended"  # in order
_LOOK = 500  # milliseconds between two checks of the forkserver: its children hold its pipe, too
_SOON = 20  # milliseconds: the same, once it is gone
_LAST_WORDS = 1.0  # seconds for its children to end then (a stopped one does not)


class ProcessFactory(Protocol):
    """A forkserver's process: a Popen, or the forkserver of another rank."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def start_forkserver(stdin: int = subprocess.PIPE, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: never import from the current folder
        [sys.executable, "-P", "-m", "shoal.launch.forkserver"],
        stdin=stdin,
        stdout=stdout,
        start_new_session=True,  # Ctrl-C is ours to answer
        env=environment(),
    )


@dataclass(slots=True)
class ChildState:
    pid: int = 0
    running: bool = False
    address: str = ""
    error: str = ""
    event: str = ""  # the pieces of an event so far
    ended: str = ""  # how
    retired: bool = False  # drained, so not to be restarted

    def is_decided(self) -> bool:
        return bool(self.ended) or (self.running and self.pid > 0)


class ProcessPool:
    """A forkserver and its children.

    When a running child ends, ``lost`` is called before its name can be used again (unless it ended
    in order), then ``ended``. Events go to ``happened``, the end of the forkserver to ``gone``. All
    callbacks run on the thread that reads the forkserver's reports.
    """

    def __init__(
        self,
        lost: Callable[[str, str], None],
        ended: Callable[[str, str], None],
        happened: Callable[[RunEvent], None] = lambda event: None,
        gone: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.states: dict[str, ChildState] = {}
        self._happened, self._on_gone = happened, gone
        self.gone = ""  # why there is no forkserver any more
        self._lost, self._ended = lost, ended
        self._endings = ExitReasons()
        self._started = False
        self._refused = ""
        self._error = ""  # of the forkserver itself
        self._changed = threading.Condition()
        self._ordering = threading.Lock()
        self._closing = False
        self._forkserver: ProcessFactory | None = None
        self._listener: threading.Thread | None = None

    def start(
        self, setup: forkserver.ForkserverSetup, label: str, start: Callable[[], ProcessFactory] | None = None
    ) -> None:
        """Start the forkserver, by ``start`` if it is another rank's; ``close`` ends it."""
        self._forkserver = process = (start or start_forkserver)()
        listener = threading.Thread(target=self._listen, args=(process,), name=f"shoal-{label}-forkserver", daemon=True)
        listener.start()
        self._listener = listener
        self._order(setup)

    @property
    def pids(self) -> dict[str, int]:
        with self._changed:
            return {name: child.pid for name, child in self.states.items() if child.pid and not child.ended}

    def wait_until_started(self, deadline: float) -> None:
        self._wait(lambda: self._started, "the forkserver", deadline)

    def order(self, orders: process_main.ProcessOrders) -> None:
        if threading.current_thread() is self._listener:
            raise Invalid("on_ended runs on the thread that would report the new process: fork from another thread")
        with self._changed:
            old = self.states.get(orders.name)
            if old is not None and not old.ended:
                raise Invalid(f"the name {orders.name!r} is taken by process {old.pid}: choose another")
            self.states[orders.name] = ChildState()
        try:
            self._order(forkserver.ForkOrder(orders))
        except Invalid:
            del self.states[orders.name]
            raise

    def wait_until_running(self, names: Sequence[str], deadline: float) -> None:
        """Wait until all of them run; raises the reason of the first that does not."""
        for name in names:
            child = self.states[name]
            try:
                self._wait(child.is_decided, name, deadline)
            except StartFailed:
                self.signal(name, signal.SIGKILL)  # or it would start when nobody waits for it
                raise
            if not child.running:
                raise StartFailed(f"{name} did not start: {child.error or child.ended}; what it printed is above")

    def has_ended(self, name: str, deadline: float) -> bool:
        """Wait until then for its process to end; whether it did."""
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            return bool(self._changed.wait_for(lambda: self.states[name].ended or self.gone, left))

    def signal(self, name: str, number: int) -> None:
        """Nothing happens if it has ended."""
        if name not in self.states:
            raise Invalid(f"no process {name!r} here (processes: {', '.join(self.pids)})")
        if number not in signal.valid_signals():
            raise Invalid(f"signal={number!r}: no such signal")
        self._order(forkserver.SignalOrder(name, number))

    def pass_on(self, name: str, line: process_main.ProcessMessage) -> None:
        self._order(forkserver.PassLine(name, msgspec.json.encode(line).decode()))

    def hang_up(self) -> None:
        self._closing = True
        self._hang_up()

    def close(self) -> None:
        self.hang_up()
        if self._forkserver is None:
            return
        try:
            self._forkserver.wait(limits.DRAIN / limits.SECOND)
        except subprocess.TimeoutExpired:  # it is stuck: it reaps nobody, so the ids are theirs
            for pid in self.pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._forkserver.kill()
            self._forkserver.wait()
        if self._listener is None:  # interrupted before anybody listened
            assert self._forkserver.stdout is not None
            self._forkserver.stdout.close()
        elif self._listener is not threading.current_thread():
            self._listener.join()

    def _hang_up(self) -> None:
        with self._ordering:
            if self._forkserver is not None and self._forkserver.stdin is not None:
                self._forkserver.stdin.close()

    def _order(self, line: process_main.ProcessMessage) -> None:
        try:
            rest = msgspec.json.encode(line) + b"\n"
        except TypeError as error:
            raise Invalid(f"orders must be plain data: {error}") from None
        with self._ordering:
            assert self._forkserver is not None and self._forkserver.stdin is not None
            try:
                while rest and not self._forkserver.stdin.closed:
                    rest = rest[os.write(self._forkserver.stdin.fileno(), rest) :]
            except BrokenPipeError:
                return  # it is dead, which the listener reports

    # ------------------------------------------------------------ reports of the forkserver

    def _wait(self, done: Callable[[], object], who: str, deadline: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: done() or self._refused or self._error or self.gone, max(0.0, deadline - time.monotonic())
            )
            if self._refused:
                raise Invalid(self._refused)
            if self._error:
                raise StartFailed(f"{who} did not start: {self._error}")
            if not done():
                how = self.gone or "it did not report in time"
                raise StartFailed(f"{who} did not start: {how}; what it printed is above")

    def _listen(self, process: ProcessFactory) -> None:
        for line in _lines(process, self._hang_up):
            match msgspec.json.decode(line, type=forkserver.Report):
                case forkserver.ChildEnded(name, 0):  # its work is done, and it has left
                    self._end(name, DONE, lost=False)
                case forkserver.ChildEnded(name, code):
                    error = self.states[name].error
                    self._end(name, f"its process ended ({error or self._endings.how(code)})")
                case report:
                    with self._changed:
                        self._note(report)
                        self._changed.notify_all()
        how = self._endings.how(process.wait())
        if not self._closing:
            self._on_gone(f"the forkserver ended ({how})")
        with self._changed:
            left = [name for name, child in self.states.items() if not child.ended]
        for name in left:
            self._end(name, f"its process ended with the forkserver ({how})")
        with self._changed:
            self.gone = f"the forkserver ended ({how})"
            self._changed.notify_all()

    def _note(self, report: forkserver.Report) -> None:
        match report:
            case forkserver.ForkserverStarted():
                self._started = True
            case forkserver.ModulesRefused(reason):
                self._refused = reason
            case process_main.ProcessFailed(forkserver.FORKSERVER, error):
                self._error = error
            case process_main.ProcessFailed(name, error):
                self.states[name].error = error
            case forkserver.ChildForked(name, pid):
                self.states[name].pid = pid
            case process_main.ProcessRunning(name, address):
                self.states[name].running, self.states[name].address = True, address
            case process_main.ProcessRetired(name):
                self.states[name].retired = True
            case process_main.ProcessEvent(name, piece, more):
                child = self.states[name]
                text = child.event + piece
                child.event = text if more else ""
                if not more:
                    self._happened(process_main.event_of(text))

    def _end(self, name: str, why: str, lost: bool = True) -> None:
        child = self.states[name]
        reported = child.running and not self._closing
        if reported and lost:
            self._lost(name, why)
        with self._changed:
            child.ended = why
            self._changed.notify_all()
        if reported:
            try:
                self._ended(name, why)
            except Exception as error:  # of the callback: other ends must still be reported
                print(f"shoal: {type(error).__name__}: {error} in on_ended of {name}", file=sys.stderr)


def _lines(process: ProcessFactory, hang_up: Callable[[], None]) -> Iterator[bytes]:
    """Whole lines of reports, until every writer is gone."""
    assert process.stdout is not None
    rest, poll = b"", select.poll()
    with process.stdout as source:
        poll.register(source, select.POLLIN)
        while True:
            # asked first, so that its last reports are not missed
            over = process.poll() is not None
            seen = poll.poll(0 if over else _LOOK)
            more = os.read(source.fileno(), 65_536) if seen else b""
            if not more and (seen or over):
                break
            *lines, rest = (rest + more).split(b"\n")
            yield from lines
        # its children hold the pipe, too, and end now; none is reported lost before it ended
        hang_up()
        until = time.monotonic() + _LAST_WORDS
        while time.monotonic() < until and not (poll.poll(_SOON) and not os.read(source.fileno(), 65_536)):
            pass


def environment() -> dict[str, str]:
    """Puts this very shoal first, and keeps numpy from starting threads on import."""
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
