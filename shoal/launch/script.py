"""Starts servers, and a user's script in N processes beside them (``shoal launch``).

Each worker is a process in its own session; environment variables give it its rank and the address
of the servers. A worker's death stops no other: the coordinator and a table of ended workers tell
those who wait for it. Servers and workers end with the launcher, however it ends.
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
SAYS = "shoal: "  # starts our own lines: what several workers print is shown once
ENDED = "ended"  # the launcher's table: row r is 1 once the process of worker r has ended
_LINE = 8_192  # bytes shown as one line: progress bars have no line ends
_ALIKE = 1.0  # seconds within which workers may fail of the same cause
_GRACE = 5.0  # seconds for a worker to end when asked to
_THREADS = "OMP_NUM_THREADS"  # one each, or the workers compete for cores


@dataclass(frozen=True, slots=True)
class WorkerExit:
    rank: int
    code: int
    like: str = ""  # another worker with the same error

    def __str__(self) -> str:
        how = f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return f"worker-{self.rank} ({how}{self.like})"


class ScriptLauncher:
    """A cluster and the script's processes. A context manager: all end with the block."""

    def __init__(self, workers: int, servers: int, copies: int, show: Callable[[str, bool], None]) -> None:
        if not 1 <= workers <= limits.MEMBERS // 4:
            raise Invalid(f"workers={workers}: needs 1 to {limits.MEMBERS // 4}")
        self.workers, self._servers, self._copies, self._show = workers, servers, copies, show
        self._processes: list[subprocess.Popen[bytes]] = []
        self._first_printed_by: dict[str, int] = {}  # our own lines, by worker
        self._last: dict[int, str] = {}  # each worker's last line of standard error
        self._readers: list[threading.Thread] = []
        # an exit, or a line to show
        self._reports: queue.SimpleQueue[WorkerExit | str] = queue.SimpleQueue()

    def __enter__(self) -> ScriptLauncher:
        cluster = local(self._servers, copies=self._copies, processes=True)
        assert isinstance(cluster, ProcessCluster)
        self._cluster = cluster
        cluster.on_ended = self._server_ended
        cluster.close_reason = ""  # we end the workers ourselves, first
        cluster.on_back = lambda name: self._reports.put(f"shoal: {name} was restarted\n")
        try:
            self._kv: KV = cluster.client("launcher")
            self._kv.create(ENDED, Dense(rows=self.workers, update=Sum()))
        except BaseException:
            cluster.close()
            raise
        return self

    @property
    def address(self) -> str:
        return self._cluster.address

    @property
    def pids(self) -> dict[str, int]:
        return self._cluster.pids

    def start(self, command: Sequence[str]) -> None:
        """Start the script once for each worker: ``command`` is what follows ``python``."""
        for rank in range(self.workers):
            link = self._cluster.folder / f"shoal worker-{rank}"
            variables = {ADDRESS: self.address, RANK: str(rank), WORLD: str(self.workers), "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(
                [sys.executable, "-m", "shoal.launch.script_worker", str(os.getpid()), str(link), *command],
                env={_THREADS: "1", **os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the launcher
            )
            self._processes.append(process)
            for stream, is_error in ((process.stdout, False), (process.stderr, True)):
                self._readers.append(_thread(self._read, rank, stream, is_error))
            _thread(self._watch, rank, process)

    def wait(self) -> list[WorkerExit]:
        """Wait until all have ended; how each did, by rank."""
        ends: list[WorkerExit] = []
        failed: list[WorkerExit] = []  # not shown yet: perhaps all fail alike
        while len(ends) < len(self._processes):
            report: WorkerExit | str | None = None
            with contextlib.suppress(queue.Empty):
                report = self._reports.get(timeout=_ALIKE if failed else None)
            if isinstance(report, str):
                self._show(report, True)
            elif report is not None:
                ends.append(report)
                self._report_end(report)
            if failed and (report is None or (isinstance(report, WorkerExit) and not report.code)):
                have = "has" if len(failed) == 1 else "have"
                self._show(f"{SAYS}{', '.join(map(str, failed))} {have} ended; the others go on\n", True)
                failed = []
            if isinstance(report, WorkerExit) and report.code:
                failed.append(report)
        for reader in self._readers:
            reader.join(_GRACE)
        if any(not end.code for end in ends) and not self._used():
            self._show(
                "shoal: no worker called shoal.torch.distribute, so each trained its own model; add the line "
                "optimizer = shoal.torch.distribute(model, optimizer)\n",
                True,
            )
        for number, end in enumerate(ends):  # who printed the same last line first?
            first = self._first_printed_by.get(self._last.get(end.rank, ""), end.rank)
            if first != end.rank:
                ends[number] = replace(end, like=f", as worker-{first}")
        return sorted(ends, key=lambda end: end.rank)

    def stop(self, number: int) -> None:
        """Send this signal to the workers, and kill those that do not end."""
        for process in self._processes:
            _signal(process, number)
        deadline = time.monotonic() + _GRACE
        try:
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also on a second Ctrl-C
            for process in self._processes:
                _signal(process, signal.SIGKILL)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.stop(signal.SIGINT if kind is KeyboardInterrupt else signal.SIGTERM)
        finally:
            self._cluster.close()

    def _used(self) -> bool:
        """Whether a worker created a table, as a distributed model or an embedding does."""
        try:
            return set(self._kv.tables()) != {ENDED}
        except ShoalError:  # the servers are gone, which was reported
            return True

    def _report_end(self, end: WorkerExit) -> None:
        name = f"worker-{end.rank}"
        with contextlib.suppress(ShoalError):
            self._kv.push(ENDED, [end.rank], [1.0]).result(_GRACE)
            for member in self._kv.members:
                if member.startswith(f"{name}-"):
                    self._cluster.tell_ended(member, f"its process ended ({end})")

    def _server_ended(self, name: str, why: str) -> None:
        """Queue a line about the end of a server or the coordinator: this thread must not block."""
        lost = "with it the only copy of its segments"
        then = "it is restarted" if self._cluster.restarts(name) else lost
        self._reports.put(f"shoal: {name} has ended: {why}; {then}\n")

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        # Not reaped yet, so its id is still its own: end what it left in its session.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        self._reports.put(WorkerExit(rank, process.wait()))

    def _read(self, rank: int, stream: IO[bytes], is_error: bool) -> None:
        name = f"worker-{rank}".ljust(len(f"worker-{self.workers - 1}"))
        with stream:
            while line := stream.readline(_LINE):
                text = line.decode(errors="replace").rstrip("\n")
                if is_error:
                    self._last[rank] = text
                    if text.startswith(SAYS) and self._first_printed_by.setdefault(text, rank) != rank:
                        continue  # another worker has printed it
                self._show(f"{name} | {text}\n", is_error)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _thread(call: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread
