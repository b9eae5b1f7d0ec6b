"""Draws joins, leaves and faults of segments that move.

    join      a new server joins and gets its share
    drain     a server leaves (``how``: by the operator, or by its own process); it may come back
    roll      all servers restart, one after another
    ambush    waits for a stage of a segment's move, then strikes one of those involved
    freeze    a clock stands still
    sluggish  a disk is slow
    far       messages between some nodes take longer, so that they learn of a view late

``with_moves`` adds these to a plan, which may have other faults; four plans in ten have none, and
then no call may fail.

One plan in five is a rush: several servers join within moments, clients push without a break, and
segments move a few at a time. So many views arrive during a move, and a deposed owner that does not
know it yet always gets a push.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from shoal.simulation.faults import Fault, FaultPlan, by_time

STAGES = ("named", "copied", "full", "handed")
VICTIMS = ("source", "target", "left", "other", "coordinator")
ACTIONS = ("crash", "pause", "cut", "deaf", "alone")
PLANNED = ("join", "drain", "roll")  # an operator's actions: no faults
RUSHED = 0.2  # of all plans
LONGEST_WAIT = 30  # milliseconds from a stage to the fault; another stage may be reached by then


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
    faults = [*plan.faults, *_comings(plan, random)]
    if not alone or random.random() < 0.5:
        faults += _ambushes(plan, random)
        for draw_more in random.sample([_freezes, _sluggish, _worker_cuts, _one_way], random.choice([0, 0, 1, 2])):
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


def _comings(plan: FaultPlan, random: Random) -> list[Fault]:
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


def _freezes(plan: FaultPlan, random: Random) -> list[Fault]:
    return [
        Fault("freeze", random.randrange(plan.lasts), random.choice([300, 1_500, 6_000]), random.choice(plan.names))
        for _ in range(random.choice([1, 2, 3]))
    ]


def _sluggish(plan: FaultPlan, random: Random) -> list[Fault]:
    return [
        Fault("sluggish", random.randrange(plan.lasts), random.choice([200, 1_000, 4_000]), "coordinator")
        for _ in range(random.choice([1, 2, 3]))
    ]


def _worker_cuts(plan: FaultPlan, random: Random) -> list[Fault]:
    return [
        Fault(
            "cut",
            random.randrange(plan.lasts),
            random.choice([300, 1_500, 4_000]),
            random.choice(plan.worker_names),
            (random.choice(plan.server_names),),
        )
        for _ in range(random.choice([1, 2]))
    ]


def _one_way(plan: FaultPlan, random: Random) -> list[Fault]:
    who, other = random.choice(plan.server_names), random.choice(plan.names)
    if who == other:
        return []
    how = random.choice(["in", "out"])
    return [Fault("cut", random.randrange(plan.lasts), random.choice([300, 3_000, 7_000]), who, (other,), how=how)]
