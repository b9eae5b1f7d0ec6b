"""A cluster of processes on this machine, forked by a fresh forkserver (nothing is pickled).

The coordinator is restarted when it ends, and servers are if there are copies to fill them from. A
coordinator restarts at the same address with the same journal, and its orders list the processes
that ended meanwhile. A server restarts empty, as a new incarnation.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import msgspec

from shoal import limits
from shoal.client import connected
from shoal.cluster.move_settings import MoveSettings
from shoal.errors import ClusterError, Invalid, ShoalError, StartFailed, Unanswered
from shoal.events import RunEvent, Stopped
from shoal.job import Job, LaunchSettings
from shoal.launch.addresses import bind_of, check_callable, check_free, host_of
from shoal.launch.cluster import START_WITHIN, Cluster
from shoal.launch.coordinator_process import CoordinatorProcess, ProcessEnded, RunEnds
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.process_main import MAINS, ProcessOrders, sweep
from shoal.launch.process_pool import ProcessPool
from shoal.nodes.journal import JournalFile
from shoal.security.safety import Safety
from shoal.wire import Transport

MOST = 10  # restarts of one name
WITHIN = 60.0  # seconds
_SOON = 0.05  # seconds before the third restart, doubled for each further one
_LATEST = 5.0  # seconds at most


class Supervisor:
    """Restarts processes with exponential backoff, until one ends too often: that is a fault.

    The first two restarts are made at once (or after ``delay``). Each has its own thread, since the
    thread that reports an end must not block.
    """

    def __init__(self, restart: Callable[[str], None], give_up: Callable[[str], None], most: int = 0) -> None:
        self.delay = 0.0  # seconds before any restart
        self.restarts: dict[str, int] = {}
        self._restart, self._give_up, self._most = restart, give_up, most
        self._times: dict[str, deque[float]] = {}
        self._closed = threading.Event()

    def ended(self, name: str, why: str) -> None:
        """Restart it, or give up. Returns at once."""
        if self._closed.is_set():
            return
        now = time.monotonic()
        times = self._times.setdefault(name, deque())
        while times and now - times[0] > WITHIN:
            times.popleft()
        if len(times) >= (most := self._most or MOST):
            self._give_up(f"{name} was restarted {most} times in {WITHIN:g} s, and always ended (the last time: {why})")
            return
        wait = self.delay + (min(_LATEST, _SOON * 2.0 ** (len(times) - 2)) if len(times) >= 2 else 0.0)
        times.append(now)
        threading.Thread(target=self._run, args=(name, wait), name=f"shoal-restart-{name}", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _run(self, name: str, wait: float) -> None:
        if self._closed.wait(wait):
            return
        try:
            self._restart(name)
            self.restarts[name] = self.restarts.get(name, 0) + 1
        except ShoalError as error:
            self.ended(name, str(error))


_DISMISS = 2.0  # seconds for nodes that others started to learn that it is over
REASON = 500  # characters: keeps the line shorter than PIPE_BUF, even if all are escaped


class ProcessCluster(Cluster):
    """A process for the coordinator, each server and each worker; clients are in this process."""

    lead = "coordinator"  # our process that schedules: it is restarted, and learns of process ends

    def __init__(
        self,
        servers: int,
        launch: LaunchSettings,
        journal: JournalFile,
        copies: int = 1,
        restart: bool = False,
        safety: Safety | None = None,
    ) -> None:
        """``restart``: servers, too. Of ``launch``, transport, modules and addresses count."""
        listen, advertise = launch.listen, launch.advertise
        check_callable(listen, advertise)
        self._safety = safety or Safety.local()
        if listen:
            self._safety.check(bind_of(listen))
        super().__init__(journal, copies)
        journal.close()  # the coordinator's process opens it
        # Called with a process's name and why it ended. Must not block, so must not ``fork``.
        self.on_ended: Callable[[str, str], None] | None = None
        # Called with the name of a process that was restarted and runs; after ``on_ended``.
        self.on_back: Callable[[str], None] | None = None
        self.moves: MoveSettings | None = None  # where no job says so; set before the start
        self.supervisor = Supervisor(self._start_again, self._give_up)
        self._names = [f"server-{i}" for i in range(servers)]
        self._taken.update(self._names)
        self._modules, self._restart, self._over_tcp = launch.modules, restart, launch.transport == "tcp"
        self._children = ProcessPool(self.tell_ended, self._child_ended, self._on_event, self._on_forkserver_end)
        # Sent on close to nodes that others started; empty: they wait for a restart.
        self.close_reason = "its owner has ended it"
        self._address, self._listen, self._advertise = "", listen and bind_of(listen), host_of(advertise)
        self._tokens: dict[str, str] = {}  # of the current holder of each name
        self._servers: set[str] = set()
        # Servers being removed: why one ended meanwhile, if it did; it is not restarted.
        self._removing: dict[str, str] = {}
        self._ends_seen: deque[ProcessEnded] = deque(maxlen=limits.MEMBERS)
        # A new coordinator gets every process end either with its orders or by its inbox.
        self._report_ends = threading.Lock()
        # The forkserver makes it: a parent that is killed at once could not remove it.
        self._folder = short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}")

    def begin_with(self, record: bytes) -> None:
        super().begin_with(record)
        self._journal.close()

    @property
    def address(self) -> str:
        return self._address

    @property
    def folder(self) -> Path:
        return Path(self._folder)

    @property
    def pids(self) -> dict[str, int]:
        return self._children.pids

    def start(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        self._start_forkservers(deadline)
        self._fork_lead(deadline)
        for name in self._names:
            self._of(name).order(self._orders(name, "server", {}))
        for name in self._names:
            self._of(name).wait_until_running([name], deadline)
        self._wait_for_servers(self._names)

    def fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        """Start a "server", a "worker" or a module's ``main``; returns its process id once it runs.

        ``work`` is handed to it unchanged. Its end is reported to ``on_ended``.
        """
        self._check_usable()
        if kind not in ("server", "worker") and "." not in kind:
            raise Invalid(f"kind={kind!r}: needs 'server', 'worker' or the module of a strategy's worker")
        if not re.fullmatch(r"\w[\w.-]{0,63}", name):
            raise Invalid(f"name={name!r}: needs 1 to 64 letters, digits, dots and dashes")
        if name == "coordinator" or any(one.name == name and not one.closed for one in self._clients):
            raise Invalid(f"the name {name!r} is taken: choose another")
        return self._fork(name, kind, work)

    def signal(self, name: str, signal: int) -> None:
        """Send a signal to a process that was forked here; nothing happens if it has ended."""
        self._check_usable()
        self._of(name).signal(name, signal)

    def close(self) -> None:
        if os.getpid() == self._pid and not self._closed and self.close_reason and "coordinator" in self.pids:
            self._dismiss_others()
        super().close()
        if os.getpid() == self._pid:
            self._stop_others()  # also after a close that was interrupted
            sweep(self._folder)

    def _dismiss_others(self) -> None:
        deadline = time.monotonic() + _DISMISS
        with contextlib.suppress(Unanswered, Invalid):
            while time.monotonic() < deadline and not self.ended:
                ours = self._taken.union(client.name for client in self._clients)
                members = [one for one in self.look(_DISMISS / 4).members if one.name not in ours]
                if not any(one.role in ("server", "worker") for one in members):
                    return
                self._children.pass_on("coordinator", RunEnds(self.close_reason))
                time.sleep(_DISMISS / 20)  # nothing signals who has left

    # ------------------------------------------------------------ starting

    def _of(self, name: str) -> ProcessPool:
        return self._children

    def _start_forkservers(self, deadline: float) -> None:
        self._children.start(ForkserverSetup(os.getpid(), self._folder, self._modules, sys.path), self._id)
        self._children.wait_until_started(deadline)

    def _fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        children = self._of(name)
        children.order(self._orders(name, kind, work))
        self._taken.add(name)
        children.wait_until_running([name], time.monotonic() + START_WITHIN)
        self._check_usable()  # another thread may have closed the cluster meanwhile
        return children.states[name].pid

    def _start_server(self, name: str) -> None:
        self._check_usable()
        self._fork(name, "server", {})

    def remove_server(self, name: str) -> None:
        """Drain a server and end it for good; also one that is just being restarted."""
        self._removing[name] = ""
        try:
            super().remove_server(name)
        except BaseException:
            if (why := self._removing.pop(name, "")) and self.restarts(name):
                self.supervisor.ended(name, why)  # it is not removed, so it is restarted after all
            raise
        self._removing.pop(name, "")

    def _forget_server(self, name: str) -> None:
        children = self._of(name)
        if name not in children.states:
            return
        if not children.has_ended(name, time.monotonic() + limits.DRAIN / limits.SECOND):
            # another incarnation that holds segments by now
            if any(one.name == name for one in self._looking.view().members):
                raise ClusterError(f"{name} left, and was restarted meanwhile: remove it once more")
            children.signal(name, SIGKILL)
        self._servers.discard(name)

    def _fork_lead(self, deadline: float) -> None:
        journal = self._journal.path or f"{self._folder}/{self.lead}.journal"
        with self._report_ends:
            more = (self.moves, str(self.checkpoints or ""), self.timing, self.group)
            facts = CoordinatorProcess(str(journal), self._copies, self._run_facts, list(self._ends_seen), *more)
            self._children.order(self._orders(self.lead, self.lead, msgspec.to_builtins(facts)))
        self._children.wait_until_running([self.lead], deadline)
        if not self.group:
            self._address = self._children.states[self.lead].address

    def _orders(self, name: str, kind: str, work: dict[str, Any]) -> ProcessOrders:
        if kind == "server":
            self._servers.add(name)
        self._tokens[name] = token = secrets.token_hex(8)
        main, inbox = MAINS.get(kind, kind), kind in ("coordinator", "scheduler")
        at = (self._bind(name), self._address, self._folder)
        return ProcessOrders(name, main, token, *at, work, self._safety.plain, self._advertise, inbox)

    def _bind(self, name: str) -> str:
        if name == "coordinator" and self._address:  # all nodes know this address
            return bind_of(self._listen, self._address.rpartition(":")[2]) if self._listen else self._address
        if self._listen:
            return self._listen if name == "coordinator" else bind_of(self._listen, "*")
        return "tcp://127.0.0.1:*" if self._over_tcp else f"ipc://{self._folder}/{name}"

    def _check_usable(self) -> None:
        if self._children.gone and not self._closed:
            raise StartFailed(f"{self._children.gone}: start another cluster")
        if self.ended:
            raise ClusterError(f"{self.ended}: start another one")
        if os.getpid() != self._pid:
            raise ClusterError(f"this cluster belongs to process {self._pid}: start one here")

    # ------------------------------------------------------------ ends and restarts

    def tell_ended(self, name: str, reason: str) -> None:
        if name == self.lead:
            return
        ended = ProcessEnded(name, reason[:REASON], self._tokens.get(name, ""))
        with self._report_ends:
            self._ends_seen.append(ended)
            self._children.pass_on(self.lead, ended)

    def _child_ended(self, name: str, why: str) -> None:
        try:
            if self.on_ended is not None:
                self.on_ended(name, why)
        finally:
            if name in self._removing:
                self._removing[name] = why
            elif self.restarts(name):
                self.supervisor.ended(name, why)

    def restarts(self, name: str) -> bool:
        """Whether it is restarted when it ends. A drained server is not."""
        child = self._of(name).states.get(name)
        restarted = self._restart and name in self._servers and not (child is not None and child.retired)
        return name == self.lead or restarted

    def _start_again(self, name: str) -> None:
        if name == self.lead:
            self._fork_lead(time.monotonic() + START_WITHIN)
        elif name in self._removing or name not in self._servers:  # it is being removed, or was
            if name in self._removing:
                self._removing[name] = "it was to be restarted"
            return
        else:
            self._fork(name, "server", {})
        if self.on_back is not None:
            self.on_back(name)

    def _give_up(self, why: str) -> None:
        self.ended = self.ended or why

    def _on_forkserver_end(self, why: str) -> None:
        """The forkserver is gone, so nothing can be restarted."""
        self.supervisor.close()
        self.ended = self.ended or why

    def _on_event(self, event: RunEvent) -> None:
        if isinstance(event, Stopped) and self.close_reason:
            self.close_reason = f"the run is over: {event.why}"
        if self._event_thread is not None:
            self._event_thread(event)

    def _stop_others(self) -> None:
        self.supervisor.close()
        self._children.close()

    def _transport(self, name: str) -> Transport:
        return connected(name, self.address, self._safety)


def safety_of(job: Job) -> Safety:
    """The job's security; one that listens to other hosts uses the default keys."""
    at = job.launch.listen
    safety = Safety.chosen(job.launch.keys, job.launch.insecure, at if "://" in at or not at else f"tcp://{at}")
    return safety.checking(job.launch.checksums)


def check_listening(job: Job) -> None:
    if job.launch.listen:
        check_callable(job.launch.listen, job.launch.advertise)
        safety_of(job).check(bind := bind_of(job.launch.listen))
        check_free(bind)


def short_folder(name: str) -> str:
    """A path for sockets that is short enough, in a folder for temporary files."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        _sweep_stale(parent)
        if len(parent.encode()) + len(name) + len("/coordinator") < 90 and os.access(parent, os.W_OK | os.X_OK):
            return f"{parent}/{name}"
    raise StartFailed("no folder for sockets: set TMPDIR to a short path that you may write to, or transport='tcp'")


def _sweep_stale(parent: str) -> None:
    """Remove folders of clusters whose every process was killed."""
    for path in Path(parent).glob("shoal-*-????????"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.split("-")[1])
            if path.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                sweep(str(path))
