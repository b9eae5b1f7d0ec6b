"""Keeps the coordinator and the servers of a simulated cluster over all their lives.

A server runs inside ``DrainableServer``, as in production. A server that restarts is empty and
keeps its name; one that the coordinator refuses is restarted by its supervisor. The coordinator
restarts with the journal that survived on its disk.

Copies protect a segment while one member of its current set survives. So ``may_lose`` forbids a
crash that takes the last one, unless the plan goes beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shoal import limits
from shoal.cluster.move_settings import MoveSettings
from shoal.cluster.roster import Roster
from shoal.errors import ShoalError
from shoal.limits import COORDINATOR, MILLISECOND
from shoal.nodes.checkpointing import CheckpointManager, CheckpointWriter
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.server import Server
from shoal.nodes.worker import Worker
from shoal.simulation.disk import SimulatedDisk
from shoal.simulation.faults import Fault, FaultPlan
from shoal.simulation.world import World
from shoal.store.checkpoint import manifest
from shoal.store.server.segment_state import SegmentState
from shoal.store.server.table_server import TableServer
from shoal.wire.effects import Node, ProcessEnd
from shoal.wire.messages import Replicas, Shrink, TablePlaces

ROOT = Path("/checkpoints")
SLOW_COPIES = 0.005  # MB/s: a segment takes some 50 ms
START_AGAIN = 300 * MILLISECOND  # after a server has ended by itself


class SimulatedCluster:
    def __init__(self, world: World, plan: FaultPlan, scheduler: Callable[[], Scheduler | None]) -> None:
        """``scheduler`` makes the scheduler of the coordinator's next life."""
        self.world, self.plan, self._scheduler = world, plan, scheduler
        self.damaged: set[int] = set()  # checkpoints that were damaged
        self.job = ""  # whose checkpoints are made
        self.disk = world.disk = SimulatedDisk(plan.seed)
        self._drifts = {fault.who: fault for fault in plan.faults if fault.kind == "drift"}
        self._lives = 0
        self._checked, self._complete = (0, -1), False
        world.track(Shrink)
        self.coordinators: list[Coordinator] = []  # all lives, the last one is the present
        self.servers: dict[str, Server] = {}  # the present life of each
        self.drainables: dict[str, DrainableNode] = {}  # the drainable server of each
        self.former: list[Server] = []

    @property
    def coordinator(self) -> Coordinator:
        return self.coordinators[-1]

    def set_up(self) -> None:
        self.restart(COORDINATOR)
        for name in self.plan.server_names:
            self.restart(name)

    def add(self, node: Node) -> None:
        drift = self._drifts.get(node.name, Fault("drift"))
        self.world.add(node, drift.rate, drift.lasts * MILLISECOND)

    def restart(self, name: str) -> None:
        if name == COORDINATOR:
            self.coordinators.append(self._coordinator(self.world.durable_records(COORDINATOR)))
            self.add(self.coordinator)
            return
        if name in self.servers:
            self.former.append(self.servers[name])
        drainable = self.drainables[name] = self.server(name)
        assert isinstance(drainable.node, Server)
        self.servers[name] = drainable.node
        self.add(drainable)

    def end(self, name: str) -> None:
        """End the process of a released server; its supervisor does not restart it."""
        self.world.carry_out(name, self.drainables.pop(name).member.leave())
        self.former.append(self.servers.pop(name))
        self.world.end(name)

    def start_again(self, name: str) -> None:
        """Restart a server that ended by itself without a release."""
        drainable = self.drainables[name]
        self.world.carry_out(name, drainable.member.leave())
        self.world.end(name)

        def start() -> None:
            # no other code has restarted it
            if self.drainables.get(name) is drainable and name not in self.world.hosts:
                self.restart(name)

        self.world.at(self.world.now + START_AGAIN, start)

    def crash(self, name: str, seen: bool) -> bool:
        """Crash a node; False if the copies would not tolerate it."""
        if name != COORDINATOR and not self.plan.beyond and not self.may_lose(name):
            return False
        if any(place.filling for table in self.tables() for place in table.places):
            self.world.counts[f"rare: {name.partition('-')[0]} crashed during a fill"] += 1
        if name == COORDINATOR and any(one not in self.world.hosts for one in self.servers):
            self.world.counts["rare: coordinator crashed during a failover"] += 1
        self.world.crash(name)
        if seen:  # the launcher reports it a moment later
            later = self.world.now + 10 * MILLISECOND
            self.world.at(later, lambda: self.world.tell(COORDINATOR, ProcessEnd(name, "it was killed")))
        return True

    def server(self, name: str) -> DrainableNode:
        """A server: of the launcher, or on another host, where it may give up."""
        self._lives += 1
        server = Server(name, f"life-{self._lives}", f"memory:{name}", self.plan.inline, self.disk)
        return DrainableNode(server, server.member, "timing" if self.plan.seed % 2 else None)

    def _coordinator(self, journal: list[bytes]) -> Coordinator:
        every = self.plan.checkpoint * MILLISECOND
        writer = CheckpointWriter(ROOT, self.job, every, disk=self.disk) if every else CheckpointWriter()
        checkpoints = CheckpointManager(writer)
        rate = SLOW_COPIES if "slow copies" in self.plan.habits else limits.MOVE_RATE / limits.MB
        return Coordinator(
            copies=self.plan.copies,
            journal=journal,
            scheduler=self._scheduler(),
            checkpoints=checkpoints,
            moves=MoveSettings(self.plan.balance, rate),
            timing=self.plan.timing,
        )

    def power_cut(self, seed: str, *others: str) -> list[str]:
        """Crashes all that write to the disk, and loses unsynced data; returns the names."""
        gone = [name for name in (COORDINATOR, *self.servers, *others) if name in self.world.hosts]
        for name in gone:
            self.world.crash(name)
        self.disk = self.world.disk = self.disk.crash(seed)
        return gone

    def rot(self, seed: int) -> bool:
        """Flip a bit in the newest checkpoint's files for good. False if there is none."""
        number = max((int(name) for name in self.disk.names(ROOT) if name.isdigit()), default=0)
        folder = manifest.folder_of(ROOT, number)
        names = self.disk.names(folder) if number else []
        if manifest.MANIFEST not in names:
            return False
        path = folder / names[seed % len(names)]
        with self.disk.open(path) as file:
            found = bytearray(file.read())
        found[seed % len(found)] ^= 1 << seed % 8
        self.disk.damage(path, bytes(found))
        self.damaged.add(number)
        return True

    def tables(self) -> list[TablePlaces]:
        return list(self.coordinator.roster.tables.values())

    def incarnations(self) -> list[int]:
        return [entry.member.incarnation for entry in self.coordinator.roster.members.values()]

    def may_lose(self, name: str) -> bool:
        """Whether another live server holds every segment that this server holds."""
        for roster in self._rosters():
            shrunk = self._shrunk(roster)
            for table in roster.tables.values():
                for segment, place in enumerate(table.places):
                    takes_over = self._has_taken_over(name, table, segment)
                    if not (takes_over or name in place.servers):
                        continue
                    out = {name, place.instead if takes_over else name, *self._releasable(name, roster, place)}
                    others = (one for one in place.servers if one not in out and (place.servers[0], one) not in shrunk)
                    if not any(self._is_member(roster, other) and self._is_reachable(other) for other in others):
                        return False
        return True

    def _releasable(self, name: str, roster: Roster, place: Replicas) -> Iterator[str]:
        """Members of a set that are leaving, and that may be released because this server answered.

        If no server can replace them, the set shrinks once a member that stays has sent a message
        after it learned that they leave. That message is a moment old when the set shrinks: if the
        member dies in that moment, the last copy is lost. No protocol avoids this, so copies do not
        protect from it.
        """
        server = self.servers.get(name)
        free = any(one not in place.servers and not roster.members[one].suspected for one in roster.staying())
        if server is None or free:
            return
        for member in server.member.view.members:
            if member.leaving and member.role == "server":
                yield member.name

    def _shrunk(self, roster: Roster) -> set[tuple[str, str]]:
        """(primary, backup) of each ``Shrink`` in flight, which outlives its sender.

        The request is right: the primary cannot reach the backup, and pushes wait. The primary may
        count alone as soon as it has the view. If it dies then, nobody knows whether the backup
        has everything, so the request makes the primary the last copy.
        """
        lives = {name: entry.member.incarnation for name, entry in roster.members.items()}
        return {
            (sender, shrink.server)
            for sender, _, shrink in self.world.in_flight(Shrink)
            if lives.get(sender) == shrink.incarnation and lives.get(shrink.server) == shrink.theirs
        }

    def _has_taken_over(self, name: str, table: TablePlaces, segment: int) -> bool:
        """Whether it has a complete segment to take over; the report may be in flight."""
        place = table.places[segment]
        replaces = place.instead and place.filling == name
        table_server = self.table_server(name, table.number) if replaces else None
        backups = () if table_server is None else table_server.backups.by_primary.values()
        return any(segment in backup.segments or segment in backup._complete for backup in backups)

    def may_silence(self, name: str) -> bool:
        """Whether it may be silent until it is removed; the only member of all its sets may."""
        if self.plan.beyond or self.plan.copies == 1 or name not in self.servers:
            return True
        sets = [place.servers for table in self.tables() for place in table.places if name in place.servers]
        return all(one == [name] for one in sets) or self.may_lose(name)

    def _is_reachable(self, name: str) -> bool:
        """Whether the coordinator receives its messages, so that it is not removed as silent."""
        world, weather = self.world, self.world.weather
        if world.hosts[name].paused_until > world.now or weather.clogs.get(name, 0) > world.now:
            return False
        if weather.cuts.get((name, COORDINATOR), 0) > world.now:
            return False
        host = world.hosts.get(COORDINATOR)
        entry = self.coordinator.roster.members.get(name)
        return host is None or entry is None or world.local_time(host) - entry.last_seen < self.plan.timing.suspect

    def _rosters(self) -> Iterator[Roster]:
        """The coordinator's roster, and the one after a crash now."""
        yield self.coordinator.roster
        journal = self.world.journals.get(COORDINATOR)
        if journal is not None:
            writing = list(journal.writing)
            for survived in range(len(writing) + 1):
                yield Coordinator(copies=self.plan.copies, journal=journal.durable + writing[:survived]).roster

    def _is_member(self, roster: Roster, name: str) -> bool:
        if name not in self.world.hosts or name in self.world.twins:
            return False
        member = self.servers[name].member
        return name in roster.members and roster.members[name].member.incarnation == member.incarnation

    def all_joined(self) -> bool:
        roster, servers = self.coordinator.roster, self.servers
        return all(self._is_member(roster, name) for name in servers) and len(roster.servers()) == len(servers)

    def all_have_newest_view(self) -> bool:
        newest = self.coordinator.roster.number
        return all(server.member.active_view == newest for server in self.servers.values())

    def is_complete(self) -> bool:
        """Whether all servers are members and every segment has all its copies."""
        roster = self.coordinator.roster
        if not self.all_joined():
            return False
        if self._checked != (roster.term, roster.number):
            self._checked, most = (roster.term, roster.number), min(self.plan.copies, len(self.servers))
            places = [place for table in self.tables() for place in table.places]
            self._complete = all(len(place.servers) >= most and not place.filling for place in places)
        return self._complete

    def table_server(self, server: str, table: int) -> TableServer | None:
        return self.servers[server].tables.get(table) if server in self.servers else None

    def segment_state(self, server: str, table: int, segment: int) -> SegmentState | None:
        table_server = self.table_server(server, table)
        if table_server is None:
            return None
        states = [table_server.primary, *(backup.state for backup in table_server.backups.by_primary.values())]
        return next((state for state in states if state is not None and segment in state.segments), None)

    def state_from(self, server: str, table: int, start: int) -> tuple[SegmentState, int] | None:
        """The copy of the segment that begins with this key, and its number."""
        table_server = self.table_server(server, table)
        if table_server is None or start not in table_server.placed.starts:
            return None
        segment = table_server.placed.starts.index(start)
        state = self.segment_state(server, table, segment)
        return None if state is None else (state, segment)


def close_coroutines(workers: list[Worker]) -> None:
    for worker in workers:
        for coroutine, _, _ in worker._coroutines:
            coroutine.close()


def client_counts(workers: list[Worker]) -> Iterator[dict[str, int]]:
    for worker in workers:
        yield {f"client: {what}": n for what, n in worker.client.session.counts.items()}
        yield {"client: resent": worker.client.dispatcher.inflight.resent}


def calls_of(worker: Worker) -> list[str]:
    return [repr(op.task) for op in dict.fromkeys(worker.client.dispatcher.running.values())] or ["no call in flight"]


async def servers_joined(worker: Worker, servers: int) -> None:
    while sum(member.role == "server" for member in worker.client.session.view.members) < servers:
        await worker.sleep(10 * MILLISECOND)


async def pull_until_answered(worker: Worker, *what: Any, **how: Any) -> Any:
    """A pull, again if the worker was paused and is a new incarnation by now."""
    while True:
        try:
            return await worker.client.pull(*what, **how)
        except ShoalError:
            await worker.sleep(100 * MILLISECOND)
