"""Lets servers join and leave a simulated cluster, and strikes them during moves.

``ElasticDriver`` starts new servers, asks servers to leave until they are gone, rolls a restart
through all of them, and carries out ambushes (see ``moves_plan``). It follows a move in the
coordinator's roster and in messages:

    named     the roster names the new holder and the one it replaces
    copied    the first piece of the segment is sent
    full      the primary reports that the new holder has all of it
    handed    the roster has made the replacement

It checks what planned changes promise (P9): a released server holds nothing, and without other
faults no call fails and segments stall only briefly. After the healing no server is leaving,
nothing moves, and the segments lie evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from shoal.cluster import rebalance
from shoal.events import End, Event, Handed, RunEvent
from shoal.limits import MILLISECOND, SECOND
from shoal.nodes.drainable import DrainableNode
from shoal.simulation.cluster import COORDINATOR, SimulatedCluster
from shoal.simulation.faults import STRAGGLING, Fault, FaultPlan
from shoal.simulation.moves_plan import PLANNED
from shoal.simulation.nemesis import Nemesis, Stragglers
from shoal.simulation.scenarios import Violation
from shoal.wire import messages as m

ASK_AGAIN = 300 * MILLISECOND
LONGEST_STALL = SECOND  # where nothing else goes wrong
FIRST_REQUEST = 1 << 40  # of the operator's: far from those of its client
Key = tuple[int, int]  # table and segment


@dataclass(slots=True)
class LeavingServer:
    name: str
    life: int  # of its process
    how: str
    back: int  # when it returns after leaving; negative: never
    rolls: bool = False
    request: int = 0  # the operator's last


@dataclass(slots=True, frozen=True)
class MovingSegment:
    """A moving segment, by the coordinator's roster."""

    source: str  # the primary: it sends
    target: str
    left: str  # the server that it replaces
    others: tuple[str, ...]
    epoch: int


class ElasticDriver:
    def __init__(self, cluster: SimulatedCluster, plan: FaultPlan) -> None:
        self.cluster, self.world, self.plan = cluster, cluster.world, plan
        self.nemesis: Nemesis | None = None
        self.stragglers = Stragglers(plan, lambda: self.world.now)
        self.violations: list[Violation] = []
        self.stalls: list[float] = []  # seconds
        self._leaving: dict[str, LeavingServer] = {}
        self._rolling: list[str] = []
        self._roll: Fault | None = None
        self._away = 0  # gone, and on their way back
        self._armed: list[Fault] = []
        self._moves: dict[Key, MovingSegment] = {}
        self._copied: set[tuple[Key, MovingSegment]] = set()
        self._seen = (0, -1)
        self._requests = FIRST_REQUEST
        self._over = False
        self.world.watch(self._filled, m.Fill)
        self.world.watch(self._full, m.Full)
        self.world.watch(self._refused, m.Refusal)

    def carry_out(self, fault: Fault, until: int) -> bool:
        """Carry out a fault; False if no server is available."""
        match fault.kind:
            case "join":
                if fault.who in self.cluster.servers:
                    return False
                self.cluster.restart(fault.who)
            case "drain":
                return self._ask(fault.who, fault.how, fault.lasts or -1)
            case "roll":
                self._roll, self._rolling = fault, list(self.cluster.servers)
                self._next()
            case "ambush":
                self._armed.append(fault)
            case "twin":
                if fault.who in self.cluster.servers and self.cluster.may_lose(fault.who):
                    self.world.add_twin(self.cluster.server(fault.who), until - self.world.now)
            case kind if kind in STRAGGLING:
                self.stragglers.straggle(fault, until)
            case other:
                raise ValueError(f"no fault {other!r}")
        return True

    def heal(self) -> None:
        self._over, self._rolling = True, []
        self.stragglers.heal()
        self._armed.clear()

    @property
    def settled(self) -> bool:
        return not (self._leaving or self._away or self._rolling)

    def _ask(self, name: str, how: str, back: int, rolls: bool = False) -> bool:
        host = self.world.hosts.get(name)
        server = self.cluster.servers.get(name)
        if host is None or name in self._leaving or server is None or not server.member.joined:
            return False  # an end before joining says nothing of the former life
        if not any(
            other in self.world.hosts and other not in self._leaving for other in self.cluster.servers if other != name
        ):
            return False  # the last one cannot go
        leaving = self._leaving[name] = LeavingServer(name, host.life, how, back, rolls)
        self._urge(leaving)
        return True

    def _urge(self, leaving: LeavingServer) -> None:
        """Repeat the request until it leaves, up to a limit; ``settled`` finds the rest."""
        host = self.world.hosts.get(leaving.name)
        if self._leaving.get(leaving.name) is not leaving:
            return
        if host is None or host.life != leaving.life:  # killed on its way out
            self._gone(leaving, "killed while it was leaving")
            return
        if leaving.how == "leave":
            self.cluster.drainables[leaving.name].leave()
            self.world.poke(leaving.name)
        else:
            leaving.request = self._requests = self._requests + 1
            self.world.send("operator", COORDINATOR, m.Drain(leaving.request, leaving.name))
        self.world.at(self.world.now + ASK_AGAIN, lambda: self._urge(leaving))

    def _refused(self, sender: str, to: str, no: m.Refusal) -> None:
        """Whether it cannot leave now: no other server stays."""
        for one in list(self._leaving.values()):
            theirs = (to, no.request) == (one.name, 0) if one.how == "leave" else no.request == one.request
            if sender == COORDINATOR and theirs:
                self._gone(one, "refused to go")

    def after_event(self, name: str) -> None:
        if name == COORDINATOR:
            self._see_moves()
        elif (
            (drainable := self.cluster.drainables.get(name)) is not None and drainable.end and name in self.world.hosts
        ):
            self._ended(drainable)

    def _ended(self, drainable: DrainableNode) -> None:
        """End a process that was released, or refused by the coordinator."""
        if drainable.end == "released":
            self._released(drainable.name)
            return
        self.world.counts[f"servers that ended: {drainable.end}"] += 1
        if drainable.end != "refused":  # the only end in these plans
            self.violations.append(Violation("I13 live", f"{drainable.name} was {drainable.end}: {drainable.why}"))
        self.cluster.start_again(drainable.name)

    def _released(self, name: str) -> None:
        person = self.cluster.coordinator.roster.people.get(name)
        ours = person is not None and person.member.incarnation == self.cluster.servers[name].member.incarnation
        for segment in self._held_by(name) if ours else ():  # else a former life of it did
            self.violations.append(Violation("P9 planned", f"{name} was told to go, and holds {segment}"))
        self.cluster.end(name)
        self.world.counts["moves: servers that left"] += 1
        if (leaving := self._leaving.get(name)) is not None:
            self._gone(leaving, "gone")

    def _gone(self, leaving: LeavingServer, why: str) -> None:
        del self._leaving[leaving.name]
        if why != "gone":
            self.world.counts[f"moves: servers {why}"] += 1
        elif leaving.back >= 0:
            self._away += 1
            self.world.at(self.world.now + leaving.back * MILLISECOND, lambda: self._back(leaving))
            return
        if leaving.rolls:
            self._next()

    def _back(self, leaving: LeavingServer) -> None:
        self._away -= 1
        if leaving.name not in self.cluster.servers:
            self.cluster.restart(leaving.name)
            self.world.counts["moves: servers that came back"] += 1
        if leaving.rolls:
            self.world.at(self.world.now + ASK_AGAIN, self._next)

    def _next(self) -> None:
        """Restart the next server once the previous one is a member again."""
        if self._roll is None or not self._rolling:
            return
        if len(self.cluster.servers) > 1 and not self.cluster.all_here():
            self.world.at(self.world.now + ASK_AGAIN, self._next)
            return
        name = self._rolling.pop(0)
        if not self._ask(name, self._roll.how, self._roll.lasts, rolls=True):
            self._next()
        elif not self._rolling:
            self.world.counts["moves: rolled through all servers"] += 1

    def _see_moves(self) -> None:
        roster = self.cluster.coordinator.roster
        if self._seen == (roster.term, roster.number):
            return
        self._seen = (roster.term, roster.number)
        before, self._moves = self._moves, dict(self._under_way())
        places = {table.number: table.places for table in self.cluster.tables()}
        for key, move in self._moves.items():
            if before.get(key) != move:
                self._reached("named", move)
        for key, move in before.items():
            if self._moves.get(key) == move:
                continue
            now = places.get(key[0], [])[key[1] : key[1] + 1]
            if now and move.target in now[0].servers and move.left not in now[0].servers:
                self._reached("handed", move)
            else:
                self.world.counts["moves: given up"] += 1

    def _under_way(self) -> Iterator[tuple[Key, MovingSegment]]:
        for table in self.cluster.tables():
            for segment, place in enumerate(table.places):
                if place.filling and place.instead and place.servers:
                    others = tuple(one for one in place.servers[1:] if one != place.instead)
                    source, target = place.servers[0], place.filling
                    yield (table.number, segment), MovingSegment(source, target, place.instead, others, place.epoch)

    def _filled(self, sender: str, to: str, fill: m.Fill) -> None:
        key = fill.table, fill.segment
        move = self._moves.get(key)
        if move is not None and (sender, to) == (move.source, move.target) and (key, move) not in self._copied:
            self._copied.add((key, move))
            self._reached("copied", move)

    def _full(self, sender: str, to: str, full: m.Full) -> None:
        for segment in full.segments:
            move = self._moves.get((full.table, segment))
            if move is not None and (sender, full.server) == (move.source, move.target):
                self._reached("full", move)
                return

    def _reached(self, stage: str, move: MovingSegment) -> None:
        self.world.counts[f"moves: {stage}"] += 1
        for fault in [fault for fault in self._armed if fault.how == stage]:
            victim = self._victim(fault, move)
            if victim:
                self._armed.remove(fault)
                later = self.world.now + int(fault.rate * MILLISECOND)
                self.world.at(later, lambda fault=fault, victim=victim: self._pounce(fault, victim, move))  # type: ignore[misc]

    def _victim(self, fault: Fault, move: MovingSegment) -> str:
        others = {"source": move.source, "target": move.target, "left": move.left, "other": next(iter(move.others), "")}
        return others.get(fault.who, COORDINATOR)

    def _pounce(self, fault: Fault, victim: str, move: MovingSegment) -> None:
        assert self.nemesis is not None
        if self._over:
            return
        action, who, others = fault.others[0], victim, tuple(name for name in self.cluster.servers if name != victim)
        if action == "cut":  # the two of the move do not reach each other
            who, others = move.source, (move.target,)
        elif victim != COORDINATOR:  # workers still reach it
            others = (COORDINATOR,) if action == "deaf" else (*others, COORDINATOR)
        if action in ("crash", "pause"):
            one = Fault(action, 0, fault.lasts, who, how="seen" if action == "crash" and fault.at % 2 else "")
        else:
            one = Fault("cut", 0, fault.lasts, who, others)
        self.world.counts[f"moves: {action} of {fault.who} when {fault.how}"] += 1
        self.nemesis.strike(one)

    def told(self, event: RunEvent) -> None:
        if isinstance(event, Handed):
            self.stalls.append(event.stall)
            self.world.counts["moves: told that it was handed over"] += 1

    def check(self, history: list[Event]) -> list[Violation]:
        """P9, in plans with nothing but joins and leaves."""
        found = list(self.violations)
        if all(fault.kind in PLANNED for fault in self.plan.faults):
            failed = next((one for one in history if isinstance(one, End) and one.outcome != "ok"), None)
            if failed is not None:
                found.append(Violation("P9 planned", f"call {failed.call} failed: {failed.error}"))
            told = sum((one.counts for one in self.cluster.coordinators), Counter[str]())
            for what in ("shrunk", "removed", "hand-overs unheard"):
                if told[what]:
                    found.append(Violation("P9 planned", f"{what}, {told[what]} times, though nobody failed"))
            if self.stalls and max(self.stalls) * SECOND > LONGEST_STALL:
                found.append(Violation("P9 planned", f"a segment stood still for {max(self.stalls):.3f} s"))
        return found

    def uneven(self) -> str:
        """Pending moves, or servers with too much or too little; empty: all is even."""
        servers = sorted(self.cluster.servers)
        if self.plan.balance != "count" or not servers:
            return ""
        if wanted := rebalance.plan(self.cluster.tables(), servers, balance="count"):
            return f"{len(wanted)} segments should move, the first of them {wanted[0]}"
        for table in self.cluster.tables():
            owned = Counter(dict.fromkeys(servers, 0) | Counter(place.servers[0] for place in table.places))
            if max(owned.values()) - min(owned.values()) > 1:
                return f"table {table.number} is held by {dict(owned)}"
        return ""

    def stuck(self) -> Iterator[str]:
        for name in self._leaving:
            yield f"{name} was asked to go, and is still there"
        if self._away or self._rolling:
            yield "servers are on their way back"
        if self._moves:
            key, move = next(iter(self._moves.items()))
            yield f"{len(self._moves)} segments are on their way, one of them {key} from {move.source} to {move.target}"
        if uneven := self.uneven():
            yield uneven

    def _held_by(self, name: str) -> Iterator[str]:
        for table in self.cluster.tables():
            for segment, place in enumerate(table.places):
                if name in place.servers:
                    yield f"segment {segment} of table {table.number}"
