"""Draws joins, leaves and faults of segments that move, and carries them out.

    join      a new server joins and gets its share
    drain     a server leaves (``how``: by the operator, or by its own process); it may come back
    roll      all servers restart, one after another
    ambush    waits for a stage of a segment's move, then strikes one of those involved

``with_moves`` adds these to a plan; four plans in ten have no other faults, and then no call may
fail. One plan in five is a rush: several servers join at once, clients push without a break, and
few segments move at a time. So a push always reaches a deposed owner that does not know it yet.

``MovesDriver`` follows a move in the coordinator's roster and in messages:

    named     the roster names the new holder and the one it replaces
    copied    the first piece of the segment is sent
    full      the primary reports that the new holder has all of it
    handed    the roster has made the replacement

It checks what planned changes promise (P9): a released server holds nothing, and without other
faults no call fails and segments stall only briefly. After the healing no server is leaving,
nothing moves, and segments are balanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from msgspec.structs import replace

from shoal.cluster import rebalance_plan
from shoal.events import End, Event, Handed, RunEvent
from shoal.limits import COORDINATOR, MILLISECOND, SECOND
from shoal.simulation.cluster import SimulatedCluster
from shoal.simulation.faults import (
    STRAGGLING,
    Fault,
    FaultPlan,
    FaultTarget,
    Nemesis,
    Stragglers,
    by_time,
    strikes,
    times,
)
from shoal.simulation.scenarios import Violation, Violations
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


class MovesDriver:
    def __init__(self, cluster: SimulatedCluster, plan: FaultPlan, target: FaultTarget) -> None:
        self.cluster, self.world, self.plan = cluster, cluster.world, plan
        self.nemesis = Nemesis(self.world, plan, target, cluster.may_silence)
        self.stragglers = Stragglers(plan, lambda: self.world.now)
        self.violations = Violations()
        self.stalls: list[float] = []  # seconds
        self._leaving: dict[str, LeavingServer] = {}
        self._rolling: list[str] = []
        self._roll: Fault | None = None
        self._returning = 0  # gone, and on their way back
        self._armed: list[Fault] = []
        self._moves: dict[Key, MovingSegment] = {}
        self._copied: set[tuple[Key, MovingSegment]] = set()
        self._seen_view = (0, -1)
        self._requests = FIRST_REQUEST
        self._over = False
        self.world.watch(self._on_fill, m.BackfillPiece)
        self.world.watch(self._on_full, m.BackfillComplete)
        self.world.watch(self._on_refusal, m.Refusal)

    def carry_out(self, fault: Fault, until: int) -> bool:
        """Carry out a fault; False if no server is available."""
        match fault.kind:
            case "join":
                if fault.who in self.cluster.servers:
                    return False
                self.cluster.restart(fault.who)
            case "drain":
                return self._begin_drain(fault.who, fault.how, fault.lasts or -1)
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
                raise ValueError(f"unknown fault {other!r}")
        return True

    def heal(self) -> None:
        self._over, self._rolling = True, []
        self.stragglers.heal()
        self._armed.clear()

    @property
    def settled(self) -> bool:
        return not (self._leaving or self._returning or self._rolling)

    def _begin_drain(self, name: str, how: str, back: int, rolls: bool = False) -> bool:
        host = self.world.hosts.get(name)
        server = self.cluster.servers.get(name)
        if host is None or name in self._leaving or server is None or not server.member.joined:
            return False  # an end before joining says nothing of the former life
        others = self.cluster.servers.keys() & self.world.hosts.keys() - self._leaving.keys() - {name}
        if not others:
            return False  # the last one cannot leave
        leaving = self._leaving[name] = LeavingServer(name, host.life, how, back, rolls)
        self._request_drain(leaving)
        return True

    def _request_drain(self, leaving: LeavingServer) -> None:
        """Repeats the request until the server has left or was killed."""
        host = self.world.hosts.get(leaving.name)
        if self._leaving.get(leaving.name) is not leaving:
            return
        if host is None or host.life != leaving.life:  # killed on its way out
            self._drain_ended(leaving, "killed while it was leaving")
            return
        if leaving.how == "leave":
            self.cluster.drainables[leaving.name].leave()
            self.world.tell(leaving.name)
        else:
            leaving.request = self._requests = self._requests + 1
            self.world.send("operator", COORDINATOR, m.Drain(leaving.request, leaving.name))
        self.world.at(self.world.now + ASK_AGAIN, lambda: self._request_drain(leaving))

    def _on_refusal(self, sender: str, to: str, no: m.Refusal) -> None:
        """Ends a drain that was refused: no other server stays."""
        for one in list(self._leaving.values()):
            theirs = (to, no.request) == (one.name, 0) if one.how == "leave" else no.request == one.request
            if sender == COORDINATOR and theirs:
                self._drain_ended(one, "refused to leave")

    def after_event(self, name: str) -> None:
        if name == COORDINATOR:
            self._see_moves()
        drainable = self.cluster.drainables.get(name)
        if drainable is None or not drainable.end or name not in self.world.hosts:
            return
        if drainable.end == "released":
            self._on_release(name)
            return
        self.world.counts[f"servers that ended: {drainable.end}"] += 1
        if drainable.end != "refused":  # by the coordinator: the only other end in these plans
            self.violations.add("I13 live", f"{name} was {drainable.end}: {drainable.why}")
        self.cluster.start_again(name)

    def _on_release(self, name: str) -> None:
        entry = self.cluster.coordinator.roster.members.get(name)
        ours = entry is not None and entry.member.incarnation == self.cluster.servers[name].member.incarnation
        for table in self.cluster.tables() if ours else ():  # else a former life of it did
            if held := [segment for segment, place in enumerate(table.places) if name in place.servers]:
                what = f"{name} was released, but still holds segments {held} of table {table.number}"
                self.violations.add("P9 planned", what)
        self.cluster.end(name)
        self.world.counts["moves: servers that left"] += 1
        if (leaving := self._leaving.get(name)) is not None:
            self._drain_ended(leaving, "gone")

    def _drain_ended(self, leaving: LeavingServer, why: str) -> None:
        del self._leaving[leaving.name]
        if why != "gone":
            self.world.counts[f"moves: servers {why}"] += 1
        elif leaving.back >= 0:
            self._returning += 1
            self.world.at(self.world.now + leaving.back * MILLISECOND, lambda: self._return(leaving))
            return
        if leaving.rolls:
            self._next()

    def _return(self, leaving: LeavingServer) -> None:
        self._returning -= 1
        if leaving.name not in self.cluster.servers:
            self.cluster.restart(leaving.name)
            self.world.counts["moves: servers that came back"] += 1
        if leaving.rolls:
            self.world.at(self.world.now + ASK_AGAIN, self._next)

    def _next(self) -> None:
        """Restart the next server once the previous one is a member again."""
        if self._roll is None or not self._rolling:
            return
        if len(self.cluster.servers) > 1 and not self.cluster.all_joined():
            self.world.at(self.world.now + ASK_AGAIN, self._next)
            return
        name = self._rolling.pop(0)
        if not self._begin_drain(name, self._roll.how, self._roll.lasts, rolls=True):
            self._next()
        elif not self._rolling:
            self.world.counts["moves: rolled through all servers"] += 1

    def _see_moves(self) -> None:
        roster = self.cluster.coordinator.roster
        if self._seen_view == (roster.term, roster.number):
            return
        self._seen_view = (roster.term, roster.number)
        before, self._moves = self._moves, dict(self._current_moves())
        places = {table.number: table.places for table in self.cluster.tables()}
        for key, move in self._moves.items():
            if before.get(key) != move:
                self._on_stage("named", move)
        for key, move in before.items():
            if self._moves.get(key) == move:
                continue
            now = places.get(key[0], [])[key[1] : key[1] + 1]
            if now and move.target in now[0].servers and move.left not in now[0].servers:
                self._on_stage("handed", move)
            else:
                self.world.counts["moves: given up"] += 1

    def _current_moves(self) -> Iterator[tuple[Key, MovingSegment]]:
        for table in self.cluster.tables():
            for segment, place in enumerate(table.places):
                if place.filling and place.instead and place.servers:
                    others = tuple(one for one in place.servers[1:] if one != place.instead)
                    source, target = place.servers[0], place.filling
                    yield (table.number, segment), MovingSegment(source, target, place.instead, others, place.epoch)

    def _on_fill(self, sender: str, to: str, fill: m.BackfillPiece) -> None:
        key = fill.table, fill.segment
        move = self._moves.get(key)
        if move is not None and (sender, to) == (move.source, move.target) and (key, move) not in self._copied:
            self._copied.add((key, move))
            self._on_stage("copied", move)

    def _on_full(self, sender: str, to: str, full: m.BackfillComplete) -> None:
        for segment in full.segments:
            move = self._moves.get((full.table, segment))
            if move is not None and (sender, full.server) == (move.source, move.target):
                self._on_stage("full", move)
                return

    def _on_stage(self, stage: str, move: MovingSegment) -> None:
        self.world.counts[f"moves: {stage}"] += 1
        others = {"source": move.source, "target": move.target, "left": move.left, "other": next(iter(move.others), "")}
        for fault in [fault for fault in self._armed if fault.how == stage]:
            if victim := others.get(fault.who, COORDINATOR):
                self._armed.remove(fault)
                later = self.world.now + int(fault.rate * MILLISECOND)
                self.world.at(later, partial(self._strike, fault, victim, move))

    def _strike(self, fault: Fault, victim: str, move: MovingSegment) -> None:
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

    def on_event(self, event: RunEvent) -> None:
        if isinstance(event, Handed):
            self.stalls.append(event.stall)
            self.world.counts["moves: hand-over reported"] += 1

    def check(self, history: list[Event]) -> list[Violation]:
        """P9, in plans with nothing but joins and leaves."""
        found = Violations(self.violations)
        if any(fault.kind not in PLANNED for fault in self.plan.faults):
            return found
        failed = next((one for one in history if isinstance(one, End) and one.outcome != "ok"), None)
        if failed is not None:
            found.add("P9 planned", f"call {failed.call} failed: {failed.error}")
        counts = sum((one.counts for one in self.cluster.coordinators), Counter[str]())
        for what in ("shrunk", "removed", "hand-overs unheard"):
            if counts[what]:
                found.add("P9 planned", f"{what}: {counts[what]} times, though no node failed")
        if (longest := max(self.stalls, default=0.0)) * SECOND > LONGEST_STALL:
            found.add("P9 planned", f"a segment stalled for {longest:.3f} s")
        return found

    def uneven(self) -> str:
        """Describes pending moves or an uneven placement; empty: segments are balanced."""
        servers = sorted(self.cluster.servers)
        if self.plan.balance != "count" or not servers:
            return ""
        if wanted := rebalance_plan.plan(self.cluster.tables(), servers, balance="count"):
            return f"{len(wanted)} segments should move, the first is {wanted[0]}"
        for table in self.cluster.tables():
            owned = Counter(dict.fromkeys(servers, 0) | Counter(place.servers[0] for place in table.places))
            if max(owned.values()) - min(owned.values()) > 1:
                return f"table {table.number} is held by {dict(owned)}"
        return ""

    def stuck(self) -> Iterator[str]:
        for name in self._leaving:
            yield f"{name} was asked to leave, but has not left"
        if self._returning or self._rolling:
            yield "servers have not returned yet"
        if self._moves:
            key, move = next(iter(self._moves.items()))
            yield f"{len(self._moves)} segments are still moving, one of them {key} from {move.source} to {move.target}"
        if uneven := self.uneven():
            yield uneven


STAGES = ("named", "copied", "full", "handed")
VICTIMS = ("source", "target", "left", "other", "coordinator")
ACTIONS = ("crash", "pause", "cut", "deaf", "alone")
PLANNED = ("join", "drain", "roll")  # an operator's actions: no faults
RUSHED = 0.2  # of all plans
LONGEST_WAIT = 30  # milliseconds from a stage to the fault; another stage may be reached by then


# clocks stop; a disk is slow
_FREEZES = strikes("freeze", [300, 1_500, 6_000], lambda plan: plan.names, [1, 2, 3])
_SLUGGISH = strikes("sluggish", [200, 1_000, 4_000], counts=[1, 2, 3])


def draw(seed: int) -> FaultPlan:
    return with_moves(FaultPlan.draw(seed))


def with_moves(plan: FaultPlan) -> FaultPlan:
    random = Random(f"{plan.seed}/moves")
    alone = random.random() < 0.4
    plan = replace(
        plan,
        faults=() if alone else plan.faults,
        lasts=max(plan.lasts, random.choice([3_000, 6_000, 10_000])),
        think=random.choice([50, 300, 300, 1_200]),  # there must be something to do while they move
        balance=random.choice(["count", "count", "load", "none"]),
    )
    habits = tuple(one for one in ("bystander", "slow copies", "small batches") if random.random() < 0.4)
    faults = [*plan.faults, *_joins_and_leaves(plan, random)]
    if not alone or random.random() < 0.5:
        faults += _ambushes(plan, random)
        for draw_more in random.sample([_FREEZES, _SLUGGISH, _worker_cuts, _one_way], random.choice([0, 0, 1, 2])):
            faults += draw_more(plan, random)
    plan = replace(plan, faults=by_time(faults), habits=(*plan.habits, *habits))
    rush = Random(f"{plan.seed}/rush")  # drawn separately, so that other plans do not change
    return rushed(plan, rush) if rush.random() < RUSHED else plan


def rushed(plan: FaultPlan, random: Random) -> FaultPlan:
    """The same cluster in a rush, without other faults."""
    servers = random.choice([1, 2, 2, 3])
    plan = replace(
        plan,
        kind="clients",
        servers=servers,
        copies=min(servers, random.choice([1, 1, 1, 2])),  # with few copies it may count alone
        workers=random.choice([3, 4, 4, 6]),
        slots=random.choice([40, 60]),
        slots_per_pass=None,
        think=random.choice([3, 10, 10]),
        delay=random.choice([3, 10, 10]),
        lasts=3_000,
        checkpoint=0,
        beyond=False,
        balance="count",
        habits=tuple(dict.fromkeys([*plan.habits, "pipeline", "small batches"])),
    )
    joins = [plan.newcomer(i) for i in range(random.choice([2, 3, 3]))]
    first, within = random.randrange(100, 300), random.choice([50, 300, 600])
    faults = [Fault("join", first + random.randrange(within), who=name) for name in joins]
    if random.random() < 0.3:
        faults.append(Fault("drain", first + random.randrange(1_000), 0, random.choice(plan.server_names), how="drain"))
    faults += _far(plan, random, joins)
    if random.random() < 0.3:
        faults.append(Fault("slow", lasts=plan.lasts, rate=0.05))
    return replace(plan, faults=by_time(faults))


def _far(plan: FaultPlan, random: Random, joins: list[str]) -> list[Fault]:
    """Slow links: to newcomers, from the coordinator, or between any two nodes."""

    def far(who: str, others: list[str]) -> Fault:
        some = tuple(random.sample(others, random.randint(1, len(others))))
        return Fault("far", 0, plan.lasts, who, some, rate=random.choice([20, 50, 80, 80, 150]), how="out")

    found = [far(random.choice(joins), plan.server_names), far("coordinator", plan.worker_names)]
    if random.random() < 0.5:
        found.append(far("coordinator", plan.server_names))
    if random.random() < 0.3:
        who = random.choice([*plan.names, *joins])
        found.append(far(who, [name for name in (*plan.names, *joins) if name != who]))
    return found


def _joins_and_leaves(plan: FaultPlan, random: Random) -> list[Fault]:
    if random.random() < 0.2:
        lasts = random.choice([0, 100, 1_000])
        return [Fault("roll", random.randrange(500), lasts, how=random.choice(["drain", "leave"]))]
    joins = [plan.newcomer(i) for i in range(random.choice([0, 1, 1, 2, 3]))]
    faults = [Fault("join", random.randrange(plan.lasts * 2 // 3), who=name) for name in joins]
    for _ in range(random.choice([0, 1, 1, 2]) if joins else 1):
        who, back = random.choice([*plan.server_names, *joins]), random.choice([0, 0, 200, 2_000])
        how = random.choice(["drain", "leave"])
        faults.append(Fault("drain", random.randrange(plan.lasts), back, who, how=how))
    return faults


def _ambushes(plan: FaultPlan, random: Random) -> list[Fault]:
    return [
        Fault(
            "ambush",
            random.randrange(plan.lasts * 2 // 3),
            random.choice([0, 300, 1_500, 3_000, 7_000]),
            random.choice(VICTIMS),
            (random.choice(ACTIONS),),
            rate=random.choice([0, 0, random.randrange(5), random.randrange(LONGEST_WAIT)]),
            how=random.choice(STAGES),
        )
        for _ in range(random.choice([0, 1, 1, 2, 3]))
    ]


def _worker_cuts(plan: FaultPlan, random: Random) -> list[Fault]:
    found = []
    for at in times(plan, random, [1, 2]):
        lasts, worker = random.choice([300, 1_500, 4_000]), random.choice(plan.worker_names)
        found.append(Fault("cut", at, lasts, worker, (random.choice(plan.server_names),)))
    return found


def _one_way(plan: FaultPlan, random: Random) -> list[Fault]:
    who, other = random.choice(plan.server_names), random.choice(plan.names)
    if who == other:
        return []
    how = random.choice(["in", "out"])
    return [Fault("cut", random.randrange(plan.lasts), random.choice([300, 3_000, 7_000]), who, (other,), how=how)]
