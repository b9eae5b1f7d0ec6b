"""The coordinator and the servers of one simulated cluster: their lives, and what may befall them.

A server that comes back is empty, under its old name; the coordinator comes back with what its disk kept of its journal.
``may_lose`` is the promise's other side: copies protect from the loss of all but one member of a segment's current set, so no
crash takes the last one, unless a plan goes beyond that.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.cluster.membership import Roster
from shoal.limits import MILLISECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.server import Server
from shoal.nodes.worker import Worker
from shoal.simulation.faults import Plan
from shoal.simulation.world import World
from shoal.wire.effects import Ended
from shoal.wire.messages import Placed

COORDINATOR = "coordinator"
Process = Coordinator | Server | Worker


class Cluster:
    """All that is no worker."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self._drifts = {fault.who: fault for fault in plan.faults if fault.kind == "drift"}
        self._lives = 0
        self.coordinators: list[Coordinator] = []  # all lives, the last one is the present
        self.servers: dict[str, Server] = {}  # the present life of each
        self.former: list[Server] = []

    @property
    def coordinator(self) -> Coordinator:
        return self.coordinators[-1]

    def set_up(self) -> None:
        self.restart(COORDINATOR)
        for name in self.plan.server_names:
            self.restart(name)

    def add(self, node: Process) -> None:
        drift = self._drifts.get(node.name)
        if drift is None:
            self.world.add(node)
        else:
            self.world.add(node, drift.rate, drift.lasts * MILLISECOND)

    def restart(self, name: str) -> None:
        if name == COORDINATOR:
            self.coordinators.append(self._coordinator(self._journal()))
            self.add(self.coordinator)
            return
        if name in self.servers:
            self.former.append(self.servers[name])
        self.servers[name] = self.server(name)
        self.add(self.servers[name])

    def crash(self, name: str, seen: bool) -> bool:
        """False if that would be more than the copies can bear."""
        if name != COORDINATOR and not self.plan.beyond and not self.may_lose(name):
            return False
        if any(place.filling for table in self.tables() for place in table.places):
            self.world.counts[f"rare: {name.partition('-')[0]} crashed during a fill"] += 1
        if name == COORDINATOR and any(one not in self.world.hosts for one in self.servers):
            self.world.counts["rare: coordinator crashed during a failover"] += 1
        self.world.crash(name)
        if seen:  # the launcher tells, a moment later
            later = self.world.now + 10 * MILLISECOND
            self.world.at(later, lambda: self.world.tell(COORDINATOR, Ended(name, "it was killed")))
        return True

    def server(self, name: str) -> Server:
        self._lives += 1
        return Server(name, f"life-{self._lives}", f"memory:{name}", self.plan.inline)

    def _coordinator(self, journal: list[bytes]) -> Coordinator:
        return Coordinator(copies=self.plan.copies, journal=journal)

    def _journal(self) -> list[bytes]:
        journal = self.world.journals.get(COORDINATOR)
        return list(journal.durable) if journal is not None else []

    # ------------------------------------------------------------ what it holds

    def tables(self) -> list[Placed]:
        return list(self.coordinator.roster.tables.values())

    def may_lose(self, name: str) -> bool:
        """Whether every segment that this server holds is held by somebody else who is there, too."""
        for roster in self._rosters():
            for table in roster.tables.values():
                for place in table.places:
                    if name in place.servers and not any(
                        self._holds(roster, other) for other in place.servers if other != name
                    ):
                        return False
        return True

    def _rosters(self) -> Iterator[Roster]:
        """The coordinator's, and what it would be after a crash now."""
        yield self.coordinator.roster
        journal = self.world.journals.get(COORDINATOR)
        if journal is not None:
            writing = list(journal.writing)
            for kept in range(len(writing) + 1):
                yield self._coordinator(journal.durable + writing[:kept]).roster

    def _holds(self, roster: Roster, name: str) -> bool:
        if name not in self.world.hosts or name in self.world.twins:
            return False
        return name in roster.people and roster.people[name].member.incarnation == self.servers[name].member.incarnation

    def whole(self) -> bool:
        """Every segment has as many copies as it should, and none is being made."""
        most = min(self.plan.copies, self.plan.servers)
        return all(
            len(place.servers) >= most and not place.filling for table in self.tables() for place in table.places
        )
