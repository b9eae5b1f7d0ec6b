"""A cluster whose servers and workers come from elsewhere: here is the coordinator, at an address that others know.

    shoal launch coordinator clicks --listen tcp://10.0.0.1:7000      a run: the evaluator is here, too
    shoal launch server --at tcp://10.0.0.1:7000                      on any host, as often as wanted
    shoal launch worker --at tcp://10.0.0.1:7000

When it is ended and started again with the same folder, it goes on with those who are still there: the journal knows them, and
they wait for it for a minute. If no server is left by then, the run goes back to its newest checkpoint when others come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from shoal import limits
from shoal.errors import ClusterError, StartFailed, Unanswered
from shoal.events import counted
from shoal.job import Job
from shoal.launch.coordinator_process import RunFacts
from shoal.launch.local import START_WITHIN
from shoal.launch.processes import ProcessCluster, safety_of
from shoal.nodes.journal import JournalFile
from shoal.nodes.membership_journal import MembershipRecord, members_and_tables
from shoal.security.safety import Safety
from shoal.training.event_thread import Listener
from shoal.training.preflight import crew

_TELL = 30.0  # seconds between two lines about whom it waits for, if nobody comes
_LOOK = 0.1  # seconds between two looks: nobody tells us who came

Say = Callable[[str], None]


class RemoteCluster(ProcessCluster):
    """A coordinator, and whoever comes."""

    def __init__(
        self,
        servers: int,
        journal: JournalFile,
        safety: Safety,
        listen: str,
        advertise: str = "",
        copies: int = 1,
        modules: tuple[str, ...] = (),
        say: Say = lambda text: None,
        within: float = limits.HOSTS_WITHIN / limits.SECOND,
    ) -> None:
        """Waits for so many ``servers`` when it is started, ``within`` so many seconds; 0 servers: it waits for none."""
        self._wanted, self._say, self._within = servers, say, within
        super().__init__(0, "tcp", modules, journal, copies, False, safety, listen, advertise)

    def _begin(self, journal: JournalFile) -> None:
        if not stands(journal):
            super()._begin(journal)

    def train(self, run: RunFacts, listener: Listener) -> None:
        super().train(msgspec.structs.replace(run, elsewhere=True), listener)

    def workers_here(self, workers: int) -> int:
        return 0

    def start(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        self._start_nurseries(deadline)
        self._fork_coordinator(deadline)
        self._say(f"the coordinator listens at {self.address}")
        self._wait_for_some()

    def _wait_for_some(self) -> None:
        """Until there are servers enough: who comes is not known by name."""
        began = now = time.monotonic()
        told, known = -1.0, -1
        while (missing := self._wanted - len(self.servers())) > 0:
            if self.ended:
                raise StartFailed(self.ended)
            if now - began > self._within:
                raise ClusterError(
                    f"{counted(missing, 'server')} did not come in {self._within:g} s: start them (shoal launch server --at "
                    f"{self.address}), and this again"
                )
            if known != missing or now - told >= _TELL:
                told, known = now, missing
                here, left = self._wanted - missing, self._within - (now - began)
                self._say(
                    f"waiting for servers, {here} of {self._wanted} here, for {left:.0f} s more: shoal launch server --at {self.address}"
                )
            time.sleep(_LOOK)  # the coordinator is another process, and tells of members only who asks
            now = time.monotonic()

    def servers(self) -> list[str]:
        """Those that are members now; none, as far as is known, while the coordinator does not answer."""
        try:
            return [one.name for one in self.look(1.0).members if one.role == "server"]
        except Unanswered:
            return []


def stands(journal: JournalFile) -> bool:
    """There was a coordinator before, with servers that hold tables, and they may be there still."""
    kept: MembershipRecord | None = members_and_tables(journal.records)
    return kept is not None and bool(kept.tables) and any(one.role == "server" for one, _ in kept.people)


def stands_in(folder: Path) -> bool:
    """The same, of the run in this folder."""
    path = folder / "coordinator.journal"
    if not path.is_file():
        return False
    journal = JournalFile(path)
    try:
        return stands(journal)
    finally:
        journal.close()


class RemoteHosts:
    """Where the nodes of a run are, for ``execute``: elsewhere. Knows the cluster when there is one."""

    def __init__(self, say: Say, within: float) -> None:
        self._say, self._within = say, within
        self.cluster: RemoteCluster | None = None

    def __call__(self, job: Job, journal: JournalFile) -> RemoteCluster:
        said, safety = job.launch, safety_of(job)
        self.cluster = RemoteCluster(
            job.servers, journal, safety, said.listen, said.advertise, job.copies, tuple(said.modules), self._say, self._within
        )  # fmt: skip
        return self.cluster

    def begins(self, job: Job) -> str:
        return f"starting the coordinator; {crew(job)} come from elsewhere"

    def expect_another(self) -> None:
        """It ends and may be started again: whoever is here waits for that."""
        if self.cluster is not None:
            self.cluster.parting = ""
