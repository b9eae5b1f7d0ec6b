"""Starts a cluster on this machine, as threads or as processes that end with this one.

    with shoal.local(servers=2) as cluster:                     threads that pass references
    with shoal.local(servers=2, processes=True) as cluster:     processes, over Unix sockets or tcp

The coordinator is a thread or a process, too. When the parent of a process is gone, however it
ended, the process removes what it made and ends.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from shoal import limits
from shoal.client import connect as connect
from shoal.errors import Invalid
from shoal.launch.cluster import START_WITHIN as START_WITHIN
from shoal.launch.cluster import Cluster as Cluster
from shoal.launch.saved_store import lock_folder, saved_in
from shoal.nodes.journal import JournalFile
from shoal.nodes.loop import Loop
from shoal.timing import Timing, timing_from
from shoal.wire import Transport
from shoal.wire.effects import ProcessEnd


def local(
    servers: int = 2,
    *,
    copies: int = 1,
    processes: bool = False,
    transport: Literal["ipc", "tcp"] = "ipc",
    modules: Sequence[str] = (),
    folder: str | Path | None = None,
    keys: str | Path | None = None,
    checksums: bool = True,
    timing: Timing | Mapping[str, float] | None = None,
) -> Cluster:
    """Start a cluster on this machine.

    ``modules`` are imported by every server: name those with your own updates and queries. Each
    segment is on ``copies`` servers. A killed coordinator is restarted; a killed server is, if
    there are copies to fill it from. With a ``folder`` the coordinator keeps its journal there,
    ``kv.save()`` saves all tables there, and a later cluster on that folder has them again. With
    ``keys``, a folder, all tcp traffic is encrypted and other nodes need keys. Without, arrays
    between processes carry ``checksums``. ``timing`` sets how long nodes wait for each other, in
    seconds: ``timing={"dead": 20}``, or ``{"scale": 4}`` for all of them.
    """
    modules = (modules,) if isinstance(modules, str) else tuple(modules)
    if not all(isinstance(module, str) for module in modules):
        raise Invalid(f"modules={modules!r}: needs names as in an import statement: modules=['my_updates']")
    if not isinstance(servers, int) or not 1 <= servers <= limits.MEMBERS // 2:
        raise Invalid(f"servers={servers}: needs 1 to {limits.MEMBERS // 2}")
    if not isinstance(copies, int) or copies is True or not 1 <= copies <= min(limits.COPIES, servers):
        raise Invalid(f"copies={copies}: needs 1 to {limits.COPIES}, and at most the number of servers ({servers})")
    if transport not in ("ipc", "tcp"):
        raise Invalid(f"transport={transport!r}: needs 'ipc' or 'tcp'")
    if keys is not None and not (processes and transport == "tcp"):
        raise Invalid("keys need tcp: start it with processes=True and transport='tcp'")
    chosen = None if timing is None else timing_from(timing)
    with contextlib.ExitStack() as undo:
        lock = None if folder is None else lock_folder(Path(folder), "folder=")
        if lock is not None:
            undo.callback(lock.release)
        journal = JournalFile(Path(folder) / "coordinator.journal" if folder is not None else None)
        cluster: Cluster
        if processes:
            from shoal.job import LaunchSettings
            from shoal.launch.processes import ProcessCluster
            from shoal.security.safety import Safety

            safety = (Safety.local() if keys is None else Safety.with_keys(keys)).checking(checksums)
            how = LaunchSettings(transport=transport, modules=list(modules))
            cluster = ProcessCluster(servers, how, journal, copies, copies > 1, safety)
        else:
            cluster = ThreadCluster(servers, modules, journal, copies)
        cluster.lock, cluster.timing = lock, chosen
        undo.callback(cluster.close)
        found = None if folder is None else saved_in(cluster, Path(folder))
        cluster.start()
        if found is not None:
            with cluster.client() as kv:
                found.restore(kv)
        undo.pop_all()
    return cluster


class ThreadCluster(Cluster):
    """Servers as threads of this process."""

    def __init__(self, servers: int, modules: tuple[str, ...], journal: JournalFile, copies: int = 1) -> None:
        from shoal.wire.memory import Hub

        super().__init__(journal, copies)
        self._hub = Hub()
        self._servers = [f"server-{i}" for i in range(servers)]
        self._taken.update(self._servers)
        self._modules = modules
        self._coordinator: Loop | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        if self._place is None:
            self._place = tempfile.TemporaryDirectory(prefix="shoal-")
        return Path(self._place.name)

    def _stop_others(self) -> None:
        if self._place is not None:
            self._place.cleanup()

    def start(self) -> None:
        from shoal.launch.process_main import prepare

        prepare(self._modules)
        self._coordinate()
        for name in self._servers:
            self._start_server(name)
        self._wait_for_servers(self._servers)

    def _start_server(self, name: str) -> None:
        from shoal.launch.server_process import ServerProcess

        transport = self._hub.open(name)
        serving = ServerProcess(name, secrets.token_hex(8), transport)
        serving.drainable.on_end = serving.loop.stop  # when it was drained
        transport.answer_with(serving.loop.take)
        self._run(serving.loop)

    def _forget_server(self, name: str) -> None:
        for loop, thread in zip(list(self._loops), list(self._threads), strict=True):
            if loop.node.name == name:
                loop.stop()
                thread.join(limits.DRAIN / limits.SECOND)
                self._loops.remove(loop)
                self._threads.remove(thread)

    def _coordinate(self) -> None:
        from shoal.launch.coordinator_process import CoordinatorProcess

        folder = str(self.checkpoints or "")
        facts = CoordinatorProcess("", self._copies, self._run_facts, checkpoints=folder, timing=self.timing)
        node = facts.coordinator(self._journal.records)
        self._coordinator = Loop(node, self._hub.open("coordinator"), self._journal)
        if self._event_thread is not None:
            self._coordinator.listener = self._event_thread
        self._run(self._coordinator)

    def tell_ended(self, name: str, reason: str) -> None:
        if name == "coordinator":
            self.ended = f"the coordinator failed: {reason}"
        elif self._coordinator is not None:
            self._coordinator.tell(ProcessEnd(name, reason))

    def _transport(self, name: str) -> Transport:
        return self._hub.open(name)
