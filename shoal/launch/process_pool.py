"""The processes of a cluster as the top process knows them: ordered from the nursery, and told of by it.

The pipes to the nursery are the lifeline: when we hang up, by closing them or by ending in whatever way, everything that
was forked ends. When the nursery is gone its children end by themselves, and here each is told as lost.
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
from shoal.launch.exit_status import ExitReasons
from shoal.launch.forkserver import (
    ChildEnded,
    ChildForked,
    ForkOrder,
    ForkserverReady,
    ForkserverSetup,
    ModulesRefused,
    PassFile,
    Report,
    SignalOrder,
)
from shoal.launch.process_main import (
    ProcessEvent,
    ProcessFailed,
    ProcessMessage,
    ProcessOrders,
    ProcessRetired,
    ProcessRunning,
    event_of,
)

DONE = "it ended"  # as it should
_LOOK = 500  # milliseconds between two looks whether the nursery is alive: its children hold its pipe, too
_SOON = 20  # milliseconds: the same, when it is not
_LAST_WORDS = 1.0  # seconds for its children to end then; one that is stopped does not


class ProcessFactory(Protocol):
    """A nursery's process, as its parent has it: a Popen, or one that is another rank's."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


def start_nursery(stdin: int = subprocess.PIPE, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """A fresh process that waits for its orders."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "shoal.launch.forkserver"],  # what lies in the current folder is not ours to run
        stdin=stdin,
        stdout=stdout,
        start_new_session=True,  # Ctrl-C is ours to answer
        env=environment(),
    )


@dataclass(slots=True)
class ChildState:
    """What we were told of one process."""

    pid: int = 0
    running: bool = False
    address: str = ""
    error: str = ""
    said: str = ""  # of an event, so far
    ended: str = ""  # how
    retired: bool = False  # it was let go, and is not to be started again

    def is_decided(self) -> bool:
        """Whether it came up, or never will."""
        return bool(self.ended) or (self.running and self.pid > 0)


class ProcessPool:
    """A nursery, and all that it forked.

    When one that ran is no more, ``lost`` is called (unless it ended as it should) before its name may be used again, and
    ``ended`` after that. What happens to a run is told to ``happened``, the end of the nursery to
    ``gone``. All on the thread that listens to the nursery.
    """

    def __init__(
        self,
        lost: Callable[[str, str], None],
        ended: Callable[[str, str], None],
        happened: Callable[[RunEvent], None] = lambda event: None,
        gone: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.known: dict[str, ChildState] = {}
        self._happened, self._told_gone = happened, gone
        self.gone = ""  # why there is no nursery any more
        self._lost, self._ended = lost, ended
        self._endings = ExitReasons()
        self._settled = False
        self._refused = ""
        self._error = ""  # of the nursery itself
        self._news = threading.Condition()
        self._ordering = threading.Lock()
        self._closing = False
        self._nursery: ProcessFactory | None = None
        self._listener: threading.Thread | None = None

    def start(self, setup: ForkserverSetup, label: str, start: Callable[[], ProcessFactory] | None = None) -> None:
        """Start the nursery, by ``start`` if it is another's. If this is interrupted half way, ``close`` ends what there is of it."""
        self._nursery = nursery = (start or start_nursery)()
        listener = threading.Thread(target=self._listen, args=(nursery,), name=f"shoal-{label}-nursery", daemon=True)
        listener.start()
        self._listener = listener
        self._order(setup)

    @property
    def pids(self) -> dict[str, int]:
        with self._news:
            return {name: child.pid for name, child in self.known.items() if child.pid and not child.ended}

    def wait_until_settled(self, deadline: float) -> None:
        """Until the folder of sockets is there."""
        self._wait(lambda: self._settled, "the nursery", deadline)

    def order(self, orders: ProcessOrders) -> None:
        """Have a process forked."""
        if threading.current_thread() is self._listener:
            raise Invalid("on_ended is called by the thread that would hear of the new process: fork from another one")
        with self._news:
            old = self.known.get(orders.name)
            if old is not None and not old.ended:
                raise Invalid(f"the name {orders.name!r} is taken by process {old.pid}: choose another")
            self.known[orders.name] = ChildState()
        try:
            self._order(ForkOrder(orders))
        except Invalid:
            del self.known[orders.name]
            raise

    def wait_until_running(self, names: Sequence[str], deadline: float) -> None:
        """Until all of them run; the first that does not is an error, with its reason."""
        for name in names:
            child = self.known[name]
            try:
                self._wait(child.is_decided, name, deadline)
            except StartFailed:
                self.signal(name, signal.SIGKILL)  # or it comes up when nobody waits for it any more
                raise
            if not child.running:
                raise StartFailed(f"{name} did not start: {child.error or child.ended}; what it printed is above")

    def has_ended(self, name: str, deadline: float) -> bool:
        """Whether its process is no more by then; waits for it."""
        with self._news:
            left = max(0.0, deadline - time.monotonic())
            return bool(self._news.wait_for(lambda: self.known[name].ended or self.gone, left))

    def signal(self, name: str, number: int) -> None:
        self._order(SignalOrder(name, number))

    def hand_on(self, name: str, line: ProcessMessage) -> None:
        """Tell a coordinator something, if it runs."""
        self._order(PassFile(name, msgspec.json.encode(line).decode()))

    def hang_up(self) -> None:
        """They all go, sooner or later."""
        self._closing = True
        self._hang_up()

    def close(self) -> None:
        """End them all: they go when we hang up."""
        self.hang_up()
        if self._nursery is None:
            return
        try:
            self._nursery.wait(limits.DRAIN / limits.SECOND)
        except subprocess.TimeoutExpired:  # it is stuck or stopped, so it reaps nobody and the numbers are still theirs
            for pid in self.pids.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._nursery.kill()
            self._nursery.wait()
        if self._listener is None:  # interrupted before anybody listened
            assert self._nursery.stdout is not None
            self._nursery.stdout.close()
        elif self._listener is not threading.current_thread():
            self._listener.join()

    def _hang_up(self) -> None:
        with self._ordering:
            if self._nursery is not None and self._nursery.stdin is not None:
                self._nursery.stdin.close()

    def _order(self, line: ProcessMessage) -> None:
        try:
            rest = msgspec.json.encode(line) + b"\n"
        except TypeError as error:
            raise Invalid(f"orders are plain data: {error}") from None
        with self._ordering:
            assert self._nursery is not None and self._nursery.stdin is not None
            try:
                while rest and not self._nursery.stdin.closed:
                    rest = rest[os.write(self._nursery.stdin.fileno(), rest) :]
            except BrokenPipeError:
                return  # it is dead: the listener says so to whoever waits

    # ------------------------------------------------------------ what the nursery says

    def _wait(self, done: Callable[[], object], who: str, deadline: float) -> None:
        with self._news:
            self._news.wait_for(
                lambda: done() or self._refused or self._error or self.gone, max(0.0, deadline - time.monotonic())
            )
            if self._refused:
                raise Invalid(self._refused)
            if self._error:
                raise StartFailed(f"{who} did not start: {self._error}")
            if not done():
                how = self.gone or "no word from it in time"
                raise StartFailed(f"{who} did not start: {how}; what it printed is above")

    def _listen(self, nursery: ProcessFactory) -> None:
        for line in _lines(nursery, self._hang_up):
            match msgspec.json.decode(line, type=Report):
                case ChildEnded(name, 0):  # its work is done, and it has said good-bye itself
                    self._end(name, DONE, lost=False)
                case ChildEnded(name, code):
                    error = self.known[name].error
                    self._end(name, f"its process ended ({error or self._endings.how(code)})")
                case report:
                    with self._news:
                        self._note(report)
                        self._news.notify_all()
        how = self._endings.how(nursery.wait())
        if not self._closing:
            self._told_gone(f"the nursery ended ({how})")
        with self._news:
            left = [name for name, child in self.known.items() if not child.ended]
        for name in left:
            self._end(name, f"its process ended with the nursery ({how})")
        with self._news:
            self.gone = f"the nursery ended ({how})"
            self._news.notify_all()

    def _note(self, report: Report) -> None:
        match report:
            case ForkserverReady():
                self._settled = True
            case ModulesRefused(reason):
                self._refused = reason
            case ProcessFailed("nursery", error):
                self._error = error
            case ProcessFailed(name, error):
                self.known[name].error = error
            case ChildForked(name, pid):
                self.known[name].pid = pid
            case ProcessRunning(name, address):
                self.known[name].running, self.known[name].address = True, address
            case ProcessRetired(name):
                self.known[name].retired = True
            case ProcessEvent(name, piece, more):
                child = self.known[name]
                whole, child.said = child.said + piece, child.said + piece if more else ""
                if not more:
                    self._happened(event_of(whole))

    def _end(self, name: str, why: str, lost: bool = True) -> None:
        child = self.known[name]
        told = child.running and not self._closing
        if told and lost:
            self._lost(name, why)
        with self._news:
            child.ended = why
            self._news.notify_all()
        if told:
            try:
                self._ended(name, why)
            except Exception as error:  # of a caller's making: others may end, too, and must be told of
                print(f"shoal: {type(error).__name__}: {error} when told that {name} ended", file=sys.stderr)


def _lines(nursery: ProcessFactory, hang_up: Callable[[], None]) -> Iterator[bytes]:
    """Whole lines, until nobody can say anything any more."""
    assert nursery.stdout is not None
    rest, poll = b"", select.poll()
    with nursery.stdout as source:
        poll.register(source, select.POLLIN)
        while True:
            over = nursery.poll() is not None  # asked first, so that its last words are not missed
            seen = poll.poll(0 if over else _LOOK)
            more = os.read(source.fileno(), 65_536) if seen else b""
            if not more and (seen or over):
                break
            *lines, rest = (rest + more).split(b"\n")
            yield from lines
        hang_up()  # its children hold the pipe, too, and end now: nobody is to be called lost who is still there
        until = time.monotonic() + _LAST_WORDS
        while time.monotonic() < until and not (poll.poll(_SOON) and not os.read(source.fileno(), 65_536)):
            pass


def environment() -> dict[str, str]:
    """The very shoal that runs here comes first; and numpy's library would start threads when it is imported."""
    path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OPENBLAS_NUM_THREADS": "1"}
