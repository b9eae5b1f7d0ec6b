"""A coordinator whose servers and workers are started on other hosts.

    shoal launch coordinator clicks --listen tcp://10.0.0.1:7000      a run, with its evaluator
    shoal launch server --at tcp://10.0.0.1:7000                      on any host, any number
    shoal launch worker --at tcp://10.0.0.1:7000

A coordinator that is restarted on the same folder continues with the nodes that are still there:
its journal lists them, and they wait for it for a minute. If no server is left by then, the run
rolls back to its newest checkpoint when new servers join.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal import limits
from shoal.background import Listener
from shoal.errors import ClusterError, StartFailed, Unanswered
from shoal.events import counted
from shoal.job import Job, LaunchSettings
from shoal.launch.cluster import START_WITHIN
from shoal.launch.coordinator_process import RunFacts
from shoal.launch.processes import ProcessCluster, safety_of
from shoal.nodes.journal import JournalFile
from shoal.nodes.membership_journal import MembershipRecord, split
from shoal.security.safety import Safety
from shoal.training.preflight import describe_nodes

_REPORT = 30.0  # seconds between two lines about missing servers
_LOOK = 0.1  # seconds between two looks at the members

Say = Callable[[str], None]


class RemoteCluster(ProcessCluster):
    """A coordinator, and the nodes that join it."""

    def __init__(
        self,
        servers: int,
        launch: LaunchSettings,
        journal: JournalFile,
        safety: Safety,
        copies: int,
        say: Say = lambda text: None,
        within: float = limits.HOSTS_WITHIN / limits.SECOND,
    ) -> None:
        """On start it waits up to ``within`` seconds for this number of servers."""
        self._wanted, self._say, self._within = servers, say, within
        super().__init__(0, msgspec.structs.replace(launch, transport="tcp"), journal, copies, False, safety)

    def _begin(self, journal: JournalFile) -> None:
        if not nodes_may_run(journal):
            super()._begin(journal)

    def train(self, run: RunFacts, listener: Listener) -> None:
        super().train(msgspec.structs.replace(run, elsewhere=True), listener)

    def workers_here(self, workers: int) -> int:
        return 0

    def start(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        self._start_forkservers(deadline)
        self._fork_lead(deadline)
        self._say(f"the coordinator listens at {self.address}")
        self._wait_for_some()

    def _wait_for_some(self) -> None:
        """Wait until enough servers have joined, whatever their names."""
        began = now = time.monotonic()
        reported, known = -1.0, -1
        while (missing := self._wanted - len(self.servers())) > 0:
            if self.ended:
                raise StartFailed(self.ended)
            if now - began > self._within:
                raise ClusterError(
                    f"{counted(missing, 'server')} did not join in {self._within:g} s: start them (shoal launch server "
                    f"--at {self.address}), and then this again"
                )
            if known != missing or now - reported >= _REPORT:
                reported, known = now, missing
                here, left = self._wanted - missing, self._within - (now - began)
                self._say(
                    f"waiting for servers, {here} of {self._wanted} here, for {left:.0f} s more: shoal launch server --at {self.address}"
                )
            time.sleep(_LOOK)  # the coordinator reports its members only on request
            now = time.monotonic()

    def servers(self) -> list[str]:
        """The current member servers; none while the coordinator does not answer."""
        try:
            return [one.name for one in self.look(1.0).members if one.role == "server"]
        except Unanswered:
            return []


def nodes_may_run(journal: JournalFile) -> bool:
    """Whether a coordinator before had servers with tables, which may still run."""
    record: MembershipRecord | None = split(journal.records)[0]
    return record is not None and bool(record.tables) and any(one.role == "server" for one, _ in record.people)


def nodes_may_run_in(folder: Path) -> bool:
    path = folder / "coordinator.journal"
    if not path.is_file():
        return False
    journal = JournalFile(path)
    try:
        return nodes_may_run(journal)
    finally:
        journal.close()


class RemoteHosts:
    """Makes the RemoteCluster of a run, for ``execute``."""

    def __init__(self, say: Say, within: float) -> None:
        self._say, self._within = say, within
        self.cluster: RemoteCluster | None = None

    def __call__(self, job: Job, journal: JournalFile) -> RemoteCluster:
        to_others = (self._say, self._within)
        self.cluster = RemoteCluster(job.servers, job.launch, journal, safety_of(job), job.copies, *to_others)
        return self.cluster

    def begins(self, job: Job) -> str:
        return f"starting the coordinator; {describe_nodes(job)} join from other hosts"

    def expect_another(self) -> None:
        """On close, dismiss nobody: the nodes wait for a restart of the coordinator."""
        if self.cluster is not None:
            self.cluster.close_reason = ""
