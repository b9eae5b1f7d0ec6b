"""A run of one worker group on the servers of a running cluster.

Its scheduler, workers and evaluator are processes of ours. When the run ends while this process
lives, the group's tables are dropped; those of a killed run stay until the group is dissolved. An
observer of this run (its folder has the scheduler's address) sees the group's tables under the
names that the group has for them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

import msgspec

from shoal.client import connected
from shoal.errors import ClusterError, Invalid, ShoalError, StartFailed, Unanswered
from shoal.events import counted
from shoal.inspect.status import PATIENCE, StatusClient, address_of, look_at, transport_to
from shoal.job import Job, LaunchSettings
from shoal.launch.cluster import START_WITHIN, Cluster
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from shoal.security.safety import Safety
from shoal.strategies.parameter_server.run import Launcher
from shoal.timing import Timing
from shoal.wire import Transport
from shoal.wire import messages as m
from shoal.wire.messages.groups import SCHEDULER, dealer, is_group, namespace

_LOOK = 0.02  # seconds between checks whether the scheduler has joined


def guest(job: Job, where: str | Cluster | None, group: str | None) -> tuple[Job, Launcher]:
    """The job of this group on the servers at ``where`` (address, run folder or cluster)."""
    if where is None or group is None:
        raise Invalid(
            "a group needs servers and a name: give the address (--servers-at, cluster=) and --group or group="
        )
    if not is_group(group):
        raise Invalid(f"group {group!r}: needs 1 to 32 letters, digits, dots and dashes, and not 'cluster'")
    if job.launch.how != "processes":
        raise Invalid(f"launch.how={job.launch.how!r}: the workers of a group are processes, leave it out")
    if not job.has_servers or job.strategy.name == "averaging":
        raise Invalid(f"strategy {job.strategy.name!r} trains on no servers: choose sync, bounded or async for a group")
    if job.timing != Timing():
        raise Invalid(
            "timing is set where the cluster starts (shoal launch coordinator --set timing.scale=4): leave it out"
        )
    address = address_of(where) if isinstance(where, str) else where.address
    safety = _safety(job, address)
    if safety.has_keys and not safety.may_be(dealer(group), "client"):
        raise Invalid(
            f"a run of group {group!r} needs the key of that name in {safety.folder}, a client's: shoal key new {group} --role client, and on the "
            f"coordinator's machine shoal key add LINE --group {group}"
        )
    standing = check_free(address, group, safety)
    servers = sum(one.role == "server" for one in standing.members)
    found = msgspec.structs.replace(job, servers=servers, copies=min(standing.copies, servers))
    return found, GroupAttachment(address, group)


class GroupAttachment:
    """Where the nodes of a group's run are: its workers here, its servers there."""

    def __init__(self, address: str, group: str) -> None:
        self._address, self._group = address, group

    def __call__(self, job: Job, journal: JournalFile) -> GroupCluster:
        return GroupCluster(self._address, self._group, job, journal)

    def begins(self, job: Job) -> str:
        return f"starting {counted(job.workers, 'worker')} on {counted(job.servers, 'server')} of another cluster"


def _safety(job: Job, address: str) -> Safety:
    """As the job says; the usual folder of keys serves, if the cluster is one of another host."""
    return Safety.chosen(job.launch.keys, job.launch.insecure, at=address).checking(job.launch.checksums)


def check_free(address: str, group: str, safety: Safety | None = None) -> m.StatusReply:
    """How the cluster stands; raises if this group cannot begin a run there."""
    with contextlib.closing(look_at(address, safety)) as looking:
        try:
            standing, view = looking.look(), looking.view()
        except Unanswered:
            raise ClusterError(f"nobody answers at {address}: start the servers, or give another address") from None
    if not any(one.role == "server" for one in view.members):
        raise ClusterError(f"the cluster at {address} has no server yet: start one, then this run")
    if any(one.name == dealer(group) for one in view.members):
        raise Invalid(f"group {group!r} is at work at {address}: take another name, or wait for its end")
    if left := [table.name for table in view.tables if namespace(table.name) == group]:
        what = f"group {group!r} has tables from before ({', '.join(left)}): take another name, or forget them"
        raise Invalid(f"{what}: shoal groups {address} --dissolve {group}")
    return standing


class GroupCluster(ProcessCluster):
    """The processes of one group, and the cluster that they are guests of."""

    lead = SCHEDULER

    def __init__(self, manager: str, group: str, job: Job, journal: JournalFile) -> None:
        safety = _safety(job, manager)
        # With keys the scheduler is called by its key, too, and a Unix socket has none: the
        # coordinator would not have it.
        transport = "tcp" if safety.has_keys else job.launch.transport
        how = LaunchSettings(transport=transport, modules=job.launch.modules)
        super().__init__(0, how, journal, safety=safety)
        self.group, self._manager = group, manager
        self._address = manager  # what our processes call the coordinator's
        self._taken.add(SCHEDULER)
        self._looking = StatusClient(lambda name: transport_to(self.address, self._safety)(name))
        self._joined = False

    @property
    def address(self) -> str:
        """Of the scheduler: an observer there sees this group's run."""
        return self._children.states[SCHEDULER].address if SCHEDULER in self._children.states else ""

    def start(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        self._start_forkservers(deadline)
        self._fork_lead(deadline)
        self._wait_until_joined(deadline)

    def close(self) -> None:
        if os.getpid() == self._pid and self._joined and not self._closed:
            self._joined = False
            with contextlib.suppress(ShoalError):  # no server has them now
                self._dissolve()
        super().close()

    def _dissolve(self) -> None:
        with contextlib.closing(look_at(self._manager, self._safety)) as looking:
            looking.look(PATIENCE)  # or no server answers, and there is no need to wait
        # First: a scheduler that is seen off while it runs joins again, and its group would be at
        # work until it counts as dead.
        self._stop_others()
        for kv in [one for one in self._clients if not one.closed]:  # a full group takes no more
            with contextlib.suppress(ShoalError):
                kv.dissolve(self.group)
                return
        with self.client("closing") as kv:
            kv.dissolve(self.group)

    def _bind(self, name: str) -> str:
        if name == SCHEDULER and self.address:
            return self.address  # a public name
        return super()._bind(name)

    def _wait_until_joined(self, deadline: float) -> None:
        while True:
            if self.ended or time.monotonic() > deadline:
                raise StartFailed(self.ended or f"{dealer(self.group)} did not join the cluster at {self._manager}")
            try:
                standing = self.look()
            except Unanswered:
                continue
            if standing.course is not None and standing.course.failed:
                raise Invalid(standing.course.failed)
            if standing.view:
                self._joined = True
                return
            threading.Event().wait(_LOOK)

    def _transport(self, name: str) -> Transport:
        return connected(name, self._manager, self._safety)
