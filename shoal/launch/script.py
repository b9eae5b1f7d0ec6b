"""Servers, and a script so many times beside them: what ``shoal launch`` does.

Each worker is a process in a session of its own, told by its environment who it is and where the servers are. One that dies
stops nobody: those who wait for it hear of it through the coordinator and the table of those who ended. Whatever happens
to the launcher, nothing stays: the servers and the workers end with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO

from shoal import limits
from shoal.client import KV
from shoal.errors import Invalid, ShoalError
from shoal.launch.local import local
from shoal.launch.processes import ProcessCluster
from shoal.store.table.update import Sum
from shoal.tables import Dense

ADDRESS, RANK, WORLD = "SHOAL_ADDRESS", "SHOAL_RANK", "SHOAL_WORLD"
SAYS = "shoal: "  # how a line of ours begins: what several workers say is shown once
ENDED = "ended"  # the launcher's table: row r is 1 once the process of worker r is no more
_LINE = 8_192  # bytes of a line that are shown as one: progress bars have none
_ALIKE = 1.0  # seconds within which all of them may fail, of the same cause
_GRACE = 5.0  # seconds that a worker has to end when it is asked to
_THREADS = "OMP_NUM_THREADS"  # one each, or the workers take each other's cores


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How the process of a worker ended."""

    rank: int
    code: int
    like: str = ""  # whose error it had, too

    def __str__(self) -> str:
        how = f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return f"worker-{self.rank} ({how}{self.like})"


class ScriptLauncher:
    """A cluster and the workers beside it. Use as a context: all of it ends with the block."""

    def __init__(self, workers: int, servers: int, copies: int, show: Callable[[str, bool], None]) -> None:
        if not 1 <= workers <= limits.MEMBERS // 4:
            raise Invalid(f"workers={workers}: needs 1 to {limits.MEMBERS // 4}")
        self.workers, self._servers, self._copies, self._show = workers, servers, copies, show
        self._processes: list[subprocess.Popen[bytes]] = []
        self._said: dict[str, int] = {}  # a line of shoal's own, and who said it first
        self._last: dict[int, str] = {}  # line of each worker's errors
        self._readers: list[threading.Thread] = []
        self._news: queue.SimpleQueue[WorkerExit | str] = queue.SimpleQueue()  # whose end, or a line to show

    def __enter__(self) -> ScriptLauncher:
        cluster = local(self._servers, copies=self._copies, processes=True)
        assert isinstance(cluster, ProcessCluster)
        self._cluster = cluster
        self._cluster.on_ended = self._server_ended
        self._cluster.parting = ""  # the workers are ours, and end first
        self._cluster.on_back = lambda name: self._news.put(f"shoal: {name} is back\n")
        try:
            self._kv: KV = self._cluster.client("launcher")
            self._kv.create(ENDED, Dense(rows=self.workers, update=Sum()))
        except BaseException:
            self._cluster.close()
            raise
        return self

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def pids(self) -> dict[str, int]:
        """The processes of the servers and the coordinator."""
        return self._cluster.pids

    def start(self, command: Sequence[str]) -> None:
        """The script, once for each worker: what stands behind ``python`` on a command line."""
        for rank in range(self.workers):
            link = self._cluster.folder / f"shoal worker-{rank}"
            told = {ADDRESS: self.address, RANK: str(rank), WORLD: str(self.workers), "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal.launch.script_worker", str(os.getpid()), str(link), *command],
                env={_THREADS: "1", **os.environ, **told},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the launcher's to hear
            )
            self._processes.append(process)
            for stream, is_error in ((process.stdout, False), (process.stderr, True)):
                self._readers.append(_thread(self._read, rank, stream, is_error))
            _thread(self._watch, rank, process)

    def wait(self) -> list[WorkerExit]:
        """Until all have ended; how each did, by rank."""
        ends: list[WorkerExit] = []
        failed: list[WorkerExit] = []  # not told yet: perhaps all fail alike
        while len(ends) < len(self._processes):
            news = self._next(_ALIKE if failed else None)
            if isinstance(news, str):
                self._show(news, True)
            elif news is not None:
                ends.append(news)
                self._tell(news)
            if failed and (news is None or (isinstance(news, WorkerExit) and not news.code)):
                have = "has" if len(failed) == 1 else "have"
                self._show(f"{SAYS}{', '.join(map(str, failed))} {have} ended; the others go on\n", True)
                failed = []
            if isinstance(news, WorkerExit) and news.code:
                failed.append(news)
        for reader in self._readers:
            reader.join(_GRACE)
        if any(not end.code for end in ends) and not self._used():
            self._show(
                "shoal: no worker called shoal.torch.distribute: each has trained a model of its own; add the line "
                "optimizer = shoal.torch.distribute(model, optimizer)\n",
                True,
            )
        return sorted((self._likened(end) for end in ends), key=lambda end: end.rank)

    def _likened(self, end: WorkerExit) -> WorkerExit:
        """Its last words may have been another one's before."""
        first = self._said.get(self._last.get(end.rank, ""), end.rank)
        return end if first == end.rank else replace(end, like=f", as worker-{first}")

    def _next(self, seconds: float | None) -> WorkerExit | str | None:
        try:
            return self._news.get(timeout=seconds)
        except queue.Empty:
            return None

    def stop(self, number: int) -> None:
        """Ask those who run to end, by this signal; who does not is killed."""
        for process in self._processes:
            _signal(process, number)
        deadline = time.monotonic() + _GRACE
        try:
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also if somebody is impatient
            for process in self._processes:
                _signal(process, signal.SIGKILL)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.stop(signal.SIGINT if kind is KeyboardInterrupt else signal.SIGTERM)
        finally:
            self._cluster.close()

    def _used(self) -> bool:
        """Has any worker made a table? Who distributes a model or has an embedding makes one."""
        try:
            return set(self._kv.tables()) != {ENDED}
        except ShoalError:  # the servers are gone: others have said so
            return True

    def _tell(self, end: WorkerExit) -> None:
        """Whoever waits for this worker need not."""
        name = f"worker-{end.rank}"
        with contextlib.suppress(ShoalError):
            self._kv.push(ENDED, [end.rank], [1.0]).result(_GRACE)
            for member in self._kv.members:
                if member.startswith(f"{name}-"):
                    self._cluster.tell_ended(member, f"its process ended ({end})")

    def _server_ended(self, name: str, why: str) -> None:
        """A server, or the coordinator. Said by the thread that waits: this one must not."""
        lost = "with it the only copy of its part of the model"
        then = "it is started again" if self._cluster.restarts(name) else lost
        self._news.put(f"shoal: {name} is gone: {why}; {then}\n")

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        # Seen, not taken yet: its number is still its own, so whatever it left in its session can be ended.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self._news.put(WorkerExit(rank, process.wait()))

    def _read(self, rank: int, stream: IO[bytes], is_error: bool) -> None:
        name = f"worker-{rank}".ljust(len(f"worker-{self.workers - 1}"))
        with stream:
            while line := stream.readline(_LINE):
                text = line.decode(errors="replace").rstrip("\n")
                if is_error:
                    self._last[rank] = text
                    if text.startswith(SAYS) and self._said.setdefault(text, rank) != rank:
                        continue  # another one has said it
                self._show(f"{name} | {text}\n", is_error)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _thread(call: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread
