"""A cluster of processes, forked by a nursery that is started afresh (nothing is pickled).

The coordinator and, where that is asked for, the servers are started again when they end. A coordinator comes back at the
same address with the same journal, and is told anew which processes have ended; a server comes back empty, as a new one.
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
from signal import SIGKILL, valid_signals
from typing import Any

import msgspec

from shoal import limits
from shoal.cluster.move_settings import MoveSettings
from shoal.errors import ClusterError, Invalid, StartFailed, Unanswered
from shoal.events import RunEvent, Stopped
from shoal.job import Job
from shoal.launch.addresses import bind_of, check_callable, check_free, host_of
from shoal.launch.coordinator_process import CoordinatorProcess, ProcessEnded, RunEnds
from shoal.launch.forkserver import ForkserverSetup
from shoal.launch.local import START_WITHIN, Cluster
from shoal.launch.process_main import MAINS, ProcessOrders, sweep
from shoal.launch.process_pool import ProcessPool
from shoal.launch.restarts import Supervisor
from shoal.nodes.journal import JournalFile
from shoal.security.address import check_address
from shoal.security.safety import Safety
from shoal.wire import Transport
from shoal.wire.zmq import ZmqTransport

_SEEN_OFF = 2.0  # seconds for nodes of others to hear that it is over
REASON = 500  # characters: the line is shorter than PIPE_BUF, even if every one of them is escaped


class ProcessCluster(Cluster):
    """One process for the coordinator, for each server, and for whatever else is forked; the clients are in this one."""

    def __init__(
        self,
        servers: int,
        transport: str,
        modules: tuple[str, ...],
        journal: JournalFile,
        copies: int = 1,
        restart: bool = False,
        safety: Safety | None = None,
        listen: str = "",
        advertise: str = "",
    ) -> None:
        """``listen``: an address of this host at which nodes of others reach it, too; ``advertise``: what they call it by."""
        check_callable(listen, advertise)
        self._safety = safety or Safety.local()
        if listen:
            check_address(bind_of(listen), self._safety)
        super().__init__(journal, copies)
        journal.close()  # it is the coordinator's
        self.on_ended: Callable[[str, str], None] | None = None
        """Called with the name of a process that is no more, and why. It must not wait: no ``fork`` in there."""
        self.on_back: Callable[[str], None] | None = None
        """Called with the name of a process that was started again, and runs; after ``on_ended`` has heard of its end."""
        self.moves: MoveSettings | None = None
        """How segments change hands, where no job says so; to be set before it is started."""
        self.supervisor = Supervisor(self._again, self._give_up)
        self._names = [f"server-{i}" for i in range(servers)]
        self._taken.update(self._names)
        self._modules, self._restart, self._over_tcp = modules, restart, transport == "tcp"
        self._children = ProcessPool(self._lost, self._child_ended, self._happened, self._gone)
        self.parting = "whoever began it has ended it"
        """Told to nodes that others started when it is closed; empty: nothing, so that they wait for the next life of it."""
        self._address, self._listen, self._advertise = "", listen and bind_of(listen), host_of(advertise)
        self._tokens: dict[str, str] = {}  # of whoever has the name now
        self._servers: set[str] = set()
        self._going: dict[
            str, str
        ] = {}  # servers that are being let go: why one was to be started again meanwhile, and was not
        self._saw: deque[ProcessEnded] = deque(maxlen=limits.MEMBERS)
        self._telling_ends = threading.Lock()  # a coordinator is forked with all that was told before, or told after
        # Not made here: a parent that is killed at once could not remove it. The nursery makes it.
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
        """The process of the coordinator, of each server, and of whoever else was forked, as long as it runs."""
        return self._children.pids

    def start(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        self._start_nurseries(deadline)
        self._fork_coordinator(deadline)
        for name in self._names:
            self._of(name).order(self._orders(name, "server", {}))
        for name in self._names:
            self._of(name).wait_until_running([name], deadline)
        self._wait_for_servers(self._names)

    def fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        """Start one more process, a "server", a "worker" or what a module's ``main`` does; returns its number once it runs.

        A worker gets ``work`` as it is. However it ends, ``on_ended`` is told: "it ended" if its work was done.
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
        if name not in self._of(name).known:
            raise Invalid(f"no process {name!r} here (processes: {', '.join(self.pids)})")
        if signal not in valid_signals():
            raise Invalid(f"signal={signal!r}: there is none of that number")
        self._of(name).signal(name, signal)

    def close(self) -> None:
        if os.getpid() == self._pid and not self._closed and self.parting and "coordinator" in self.pids:
            self._see_off()
        super().close()
        if os.getpid() == self._pid:
            self._stop_others()  # also if it was closed before, but not to the end
            sweep(self._folder)

    def _see_off(self) -> None:
        """Nodes that others started hear that it is over, and have a moment to go; our own end with us."""
        deadline = time.monotonic() + _SEEN_OFF
        with contextlib.suppress(Unanswered, Invalid):
            while time.monotonic() < deadline and not self.ended:
                ours = self._taken.union(client.name for client in self._clients)
                members = [one for one in self.look(_SEEN_OFF / 4).members if one.name not in ours]
                if not any(one.role in ("server", "worker") for one in members):
                    return
                self._children.hand_on("coordinator", RunEnds(self.parting))
                time.sleep(_SEEN_OFF / 20)  # nobody tells us who has gone

    # ------------------------------------------------------------ starting

    def _of(self, name: str) -> ProcessPool:
        """The nursery that forks it, and all that it forked."""
        return self._children

    def _start_nurseries(self, deadline: float) -> None:
        self._children.start(ForkserverSetup(os.getpid(), self._folder, list(self._modules), sys.path), self._id)
        self._children.wait_until_settled(deadline)

    def _fork(self, name: str, kind: str, work: dict[str, Any]) -> int:
        children = self._of(name)
        children.order(self._orders(name, kind, work))
        self._taken.add(name)
        children.wait_until_running([name], time.monotonic() + START_WITHIN)
        self._check_usable()  # still: somebody may have closed the cluster meanwhile
        return children.known[name].pid

    def _start_server(self, name: str) -> None:
        self._check_usable()
        self._fork(name, "server", {})

    def remove_server(self, name: str) -> None:
        """Others take over what it has, and it goes for good: also one that was about to leave and be started again."""
        self._going[name] = ""
        try:
            super().remove_server(name)
        except BaseException:
            if (why := self._going.pop(name, "")) and self.restarts(name):
                self.supervisor.ended(name, why)  # so it stays
            raise
        self._going.pop(name, "")

    def _forget_server(self, name: str) -> None:
        children = self._of(name)
        if name not in children.known:
            return
        if not children.has_ended(name, time.monotonic() + limits.DRAIN / limits.SECOND):
            if any(one.name == name for one in self._looking.view().members):  # another life, and it has parts by now
                raise ClusterError(f"{name} left, and was started again meanwhile: let it go once more")
            children.signal(name, SIGKILL)
        self._servers.discard(name)

    def _fork_coordinator(self, deadline: float) -> None:
        journal = self._journal.path or f"{self._folder}/coordinator.journal"
        with self._telling_ends:
            facts = CoordinatorProcess(
                str(journal),
                self._copies,
                self._run_facts,
                list(self._saw),
                self.moves,
                str(self.checkpoints or ""),
                self.timing,
            )
            self._children.order(self._orders("coordinator", "coordinator", msgspec.to_builtins(facts)))
        self._children.wait_until_running(["coordinator"], deadline)
        self._address = self._children.known["coordinator"].address

    def _orders(self, name: str, kind: str, work: dict[str, Any]) -> ProcessOrders:
        if kind == "server":
            self._servers.add(name)
        self._tokens[name] = token = secrets.token_hex(8)
        told = (self._safety.plain, self._advertise)
        main, hears = MAINS.get(kind, kind), kind in ("coordinator", "scheduler")
        return ProcessOrders(name, main, token, self._bind(name), self._address, self._folder, work, *told, inbox=hears)

    def _bind(self, name: str) -> str:
        if name == "coordinator" and self._address:  # where everybody knows it
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

    # ------------------------------------------------------------ ends, and starting again

    def _lost(self, name: str, reason: str) -> None:
        if name == "coordinator":
            return
        saw = ProcessEnded(name, reason[:REASON], self._tokens.get(name, ""))
        with self._telling_ends:
            self._saw.append(saw)
            self._children.hand_on("coordinator", saw)

    def _child_ended(self, name: str, why: str) -> None:
        try:
            if self.on_ended is not None:
                self.on_ended(name, why)
        finally:
            if name in self._going:
                self._going[name] = why
            elif self.restarts(name):
                self.supervisor.ended(name, why)

    def restarts(self, name: str) -> bool:
        """Is it started again when it ends? A server that was let go is not."""
        child = self._of(name).known.get(name)
        kept = self._restart and name in self._servers and not (child is not None and child.retired)
        return name == "coordinator" or kept

    def _again(self, name: str) -> None:
        if name == "coordinator":
            self._fork_coordinator(time.monotonic() + START_WITHIN)
        elif name in self._going or name not in self._servers:  # it is being let go, or was
            self._going.update({name: "it was to be started again"} if name in self._going else {})
            return
        else:
            self._fork(name, "server", {})
        if self.on_back is not None:
            self.on_back(name)

    def _give_up(self, why: str) -> None:
        self.ended = self.ended or why

    def _gone(self, why: str) -> None:
        """There is no nursery any more, so nobody can be started again."""
        self.supervisor.close()
        self.ended = self.ended or why

    def _happened(self, event: RunEvent) -> None:
        if isinstance(event, Stopped) and self.parting:
            self.parting = f"the run is over: {event.why}"
        if self._telling is not None:
            self._telling(event)

    def _stop_others(self) -> None:
        self.supervisor.close()
        self._children.close()

    def _transport(self, name: str) -> Transport:
        transport = ZmqTransport(name, safety=self._safety)
        transport.connect("coordinator", self.address)
        return transport


def safety_of(job: Job) -> Safety:
    """As the job says; where it listens to other hosts, the usual folder of keys serves, if it names none."""
    at = job.launch.listen
    safety = Safety.chosen(job.launch.keys, job.launch.insecure, at if "://" in at or not at else f"tcp://{at}")
    return safety.checking(job.launch.checksums)


def check_listening(job: Job) -> None:
    """Raises Invalid if others cannot reach it where the job says: known before anything is prepared."""
    if job.launch.listen:
        check_callable(job.launch.listen, job.launch.advertise)
        check_address(bind := bind_of(job.launch.listen), safety_of(job))
        check_free(bind)


def short_folder(name: str) -> str:
    """A place for sockets whose path is short enough: where temporary files go, or else where they usually do."""
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        _sweep_stale(parent)
        if len(parent.encode()) + len(name) + len("/coordinator") < 90 and os.access(parent, os.W_OK | os.X_OK):
            return f"{parent}/{name}"
    raise StartFailed("no folder for sockets: set TMPDIR to a short path that you may write to, or transport='tcp'")


def _sweep_stale(parent: str) -> None:
    """Remove what clusters of ours left there that were killed whole: nobody was left to do it."""
    for path in Path(parent).glob("shoal-*-????????"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.name.split("-")[1])
            if path.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                sweep(str(path))
