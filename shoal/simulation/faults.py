"""Defines plans and faults, and draws a cluster, its workload and its faults from one seed.

Swarm testing: a seed draws the shape first (servers, copies, workers, consistency, sizes), then
which families of faults are on. Most runs have one to three families, because a rare path is
reached more often when the others are quiet. Each ``Fault`` has its time and its victim;
``Nemesis`` only carries them out. So a plan can be printed, read back, and shrunk one fault at a
time (``shrink``). Times in a plan are milliseconds.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any, ClassVar, Literal, Protocol, Self

import msgspec

from shoal.limits import COORDINATOR, INLINE_ELEMENTS, MILLISECOND, SECOND
from shoal.simulation.world import SimulatedJournal, World
from shoal.timing import Timing, TimingSettings

Kind = Literal["clients", "each", "step"]
WEATHER = ("loss", "repeat", "late", "slow", "corrupt")
FAMILIES = ("loss", "repeat", "slow", "corrupt", "partition", "swizzle", "pause", "crash", "drift", "rogue", "twin")
# With copies, faults of servers matter most; a missing coordinator must be met in every phase.
SERVER_FAMILIES = (
    *("server crash", "server crash", "server pause", "server partition", "server partition"),
    *("coordinator", "full disk"),
)
HABITS = ("park", "second copies", "void", "change delay", "pipeline", "small pieces")
STRAGGLING = ("slower", "halting", "stall")  # a live worker computes slowly, pauses, or stalls once
NONSENSE = ("nan", "unsorted", "short", "far")


class Fault(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """One fault: its kind, time, length, victim and severity."""

    kind: str
    at: int = 0  # after the work began
    lasts: int = 0
    who: str = ""
    others: tuple[str, ...] = ()
    rate: float = 0.0
    how: str = ""
    pick: float = 0.0  # selects a victim among those that are there
    other: float = 0.0  # the same, of a second victim

    def __str__(self) -> str:
        return " ".join(
            [self.kind, *([self.who] if self.who else []), *([f"({self.how})"] if self.how else [])]
            + ([f"from {', '.join(self.others)}"] if self.others else [])
            + ([f"{self.rate:g}"] if self.rate else [f"at {self.at} ms for {self.lasts} ms"])
        )


class SeedPlan(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The fields of every plan."""

    of: ClassVar[str] = "store"  # the scenario that runs it
    seed: int
    delay: int = 1  # of a message, on average
    lasts: int = 1_000  # then all faults are healed
    scale: float = 1.0  # of the timing of all nodes
    faults: tuple[Fault, ...] = ()

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse a printed plan of this class or of one that extends it; raises ValueError."""
        try:
            plan = _literal(ast.parse(text.strip(), mode="eval").body)
            if not isinstance(plan, cls):
                raise ValueError(f"it is not a {cls.__name__}(...)")
            plan.check()
        except (SyntaxError, TypeError, RecursionError, msgspec.MsgspecError) as error:
            raise ValueError(str(error)) from None
        return plan

    def check(self) -> None:
        """Checks the types, which the constructor of a struct does not; raises ValueError."""
        msgspec.convert(msgspec.to_builtins(self), type(self))

    @property
    def timing(self) -> TimingSettings:
        return Timing(scale=self.scale).intervals()

    def __str__(self) -> str:
        """The fields that differ from their defaults, and the faults."""
        facts = [
            f"{field.name} {getattr(self, field.name)}"
            for field in msgspec.structs.fields(self)
            if field.name not in ("seed", "faults") and getattr(self, field.name) != field.default
        ]
        return f"seed {self.seed}: {', '.join(facts)}; faults: {'; '.join(map(str, self.faults)) or 'none'}"


class FaultPlan(SeedPlan, frozen=True, kw_only=True, repr_omit_defaults=True):
    servers: int = 1
    copies: int = 1
    workers: int = 1
    kind: Kind = "each"
    max_delay: int | None = None
    slots_per_step: int = 1
    slots: int = 8  # in all; for clients: pushes of each
    slots_per_pass: int | None = None
    dense: bool = False
    inline: int = INLINE_ELEMENTS
    think: int = 50  # longest time a worker computes
    checkpoint: int = 0  # how often; 0: never
    beyond: bool = False  # more may be lost than the copies tolerate
    balance: Literal["load", "count", "none"] = "count"  # how segments are rebalanced
    habits: tuple[str, ...] = ()

    @classmethod
    def draw(cls, seed: int) -> FaultPlan:
        random = Random(f"{seed}/plan")
        kind: Kind = random.choice(["clients", "each", "each", "step"])
        slots_per_step = random.choice([1, 2, 3, 4, 5])
        slots = random.randrange(8, 24)
        slots_per_pass = None
        if kind == "step":  # complete epochs of complete steps: others are never counted
            slots_per_pass = random.choice([None, None, slots_per_step * 2, slots_per_step + 1])
            unit = slots_per_pass or slots_per_step
            slots = -(-slots // unit) * unit
        servers = random.choice([1, 1, 2, 2, 3, 3, 4, 5])
        copies = min(servers, random.choice([1, 2, 2, 2, 3, 3]))
        plan = cls(
            seed=seed,
            servers=servers,
            copies=copies,
            workers=random.choice([1, 2, 2, 3, 3, 4, 5, 8]),
            kind=kind,
            max_delay=random.choice([0, 0, 1, 1, 2, 3, None]),
            slots_per_step=slots_per_step,
            slots=slots,
            slots_per_pass=slots_per_pass,
            dense=random.random() < 0.3,
            inline=random.choice([0, 16, INLINE_ELEMENTS]),
            think=random.choice([5, 50, 300, 300 if copies == 1 else 1_200]),
            delay=random.choice([1, 3, 10]),
            lasts=random.choice([1_000, 2_000, 4_000, 9_000]),
            habits=tuple(random.sample(HABITS, random.choice([0, 1, 2, 3]))),
            scale=draw_scale(seed),
        )
        return with_stragglers(msgspec.structs.replace(plan, faults=draw_faults(plan)))

    def check(self) -> None:
        delay: object = self.max_delay
        # Annotated as a store has it; a training run may also have 'auto'.
        if not (delay in (None, "auto") or isinstance(delay, int)):
            raise ValueError(f"max_delay={delay!r}: needs a number of steps, None or 'auto'")
        SeedPlan.check(msgspec.structs.replace(self, max_delay=None))
        if not 1 <= self.copies <= self.servers or self.workers < 1 or self.slots < 1:
            raise ValueError("it needs at least one server, worker and slot, and no more copies than servers")

    @property
    def timing(self) -> TimingSettings:
        """The timing of all nodes. Runs are short: loads are reported more often than usual."""
        # Disks are full for seconds at any scale; a run must survive as long as it promises to.
        return Timing(scale=self.scale, load_every=0.5, level_again=0.05, journal=30.0).intervals()

    @property
    def names(self) -> list[str]:
        return ["coordinator", *self.server_names, *self.worker_names]

    @property
    def server_names(self) -> list[str]:
        return [f"server-{i}" for i in range(self.servers)]

    @property
    def worker_names(self) -> list[str]:
        return [f"worker-{i}" for i in range(self.workers)]

    def newcomer(self, number: int) -> str:
        return f"server-{self.servers + number}"


def _literal(node: ast.expr) -> Any:
    """Builds Fault(...) and plans from literals; evaluates nothing."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        plans: list[type[msgspec.Struct]] = [Fault, *SeedPlan.__subclasses__(), *FaultPlan.__subclasses__()]
        kinds = {one.__name__: one for one in plans}
        kinds["Plan"] = FaultPlan  # its former name
        if node.func.id in kinds:
            facts = {one.arg: _literal(one.value) for one in node.keywords if one.arg is not None}
            return kinds[node.func.id](*map(_literal, node.args), **facts)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_literal(one) for one in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)[:80]!r} is neither a literal nor a Fault(...)") from None


Family = Callable[[FaultPlan, Random], list[Fault]]


def draw_faults(plan: FaultPlan) -> tuple[Fault, ...]:
    random = Random(f"{plan.seed}/faults")
    faults: list[Fault] = []
    for family in random.sample(FAMILIES, random.choice([0, 1, 1, 2, 2, 3])):
        faults += DRAW[family](plan, random)
    if plan.copies > 1 and random.random() < 0.8:
        for family in random.sample(SERVER_FAMILIES, random.choice([1, 1, 2])):
            faults += DRAW[family](plan, random)
    elif random.random() < 0.2:
        faults += DRAW["coordinator"](plan, random)
    return by_time(faults)


def by_time(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))


def with_stragglers(plan: FaultPlan) -> FaultPlan:
    """In three plans of ten some workers are slow, by draws of their own."""
    random = Random(f"{plan.seed}/stragglers")
    if random.random() >= 0.3:
        return plan
    return msgspec.structs.replace(plan, faults=by_time([*plan.faults, *stragglers(plan, random)]))


def stragglers(plan: FaultPlan, random: Random) -> list[Fault]:
    some = random.sample(plan.worker_names, min(plan.workers, random.choice([1, 1, 2])))
    return [_straggler(plan, random, name) for name in some]


def _straggler(plan: FaultPlan, random: Random, name: str) -> Fault:
    match random.choice(["slower", "slower", "halting", "stall"]):
        case "slower":  # factor
            return Fault("slower", random.randrange(plan.lasts // 2), plan.lasts, name, rate=random.choice([3, 5, 10]))
        case "halting":  # the chance of a pause before a slot
            return Fault("halting", 0, plan.lasts, name, rate=random.choice([0.2, 0.5]))
    return Fault("stall", random.randrange(plan.lasts // 2), random.choice([500, 2_000, 6_000]), name)


def times(plan: FaultPlan, random: Random, counts: list[int]) -> Iterator[int]:
    """Draws each time lazily, after all draws of the fault before it."""
    for _ in range(random.choice(counts)):
        yield random.randrange(plan.lasts)


def _some(plan: FaultPlan, random: Random) -> list[int]:
    return list(times(plan, random, [1, 2, 3]))


def _rate(kind: str, rates: list[float]) -> Family:
    return lambda plan, random: [Fault(kind, lasts=plan.lasts, rate=random.choice(rates))]


def strikes(
    kind: str, lasts: list[int], names: Callable[[FaultPlan], list[str]] | None = None, counts: list[int] | None = None
) -> Family:
    """Some faults of a kind, of the coordinator, unless there are names."""

    def draw(plan: FaultPlan, random: Random) -> list[Fault]:
        return [
            Fault(kind, at, random.choice(lasts), random.choice(names(plan)) if names else "coordinator")
            for at in (times(plan, random, counts) if counts else _some(plan, random))
        ]

    return draw


def _repeat(plan: FaultPlan, random: Random) -> list[Fault]:
    repeat = Fault("repeat", lasts=plan.lasts, rate=random.choice([0.1, 0.3]))
    late = random.choice([0.0, 0.2, 0.5])
    return [repeat, *([Fault("late", lasts=plan.lasts, rate=late)] if late else [])]


def _partition(plan: FaultPlan, random: Random) -> list[Fault]:
    """One node is cut off from some others, both ways or one way."""
    return [_cut(plan, random, at, plan.names, plan.names) for at in _some(plan, random)]


def _server_partition(plan: FaultPlan, random: Random) -> list[Fault]:
    """A server is cut off from other servers, or from the coordinator and them."""
    if random.random() < 0.5:
        others = plan.server_names + random.choice([[], ["coordinator"]])
        return [_cut(plan, random, at, plan.server_names, others) for at in _some(plan, random)]
    # Long enough to be deposed, unknown to the workers, while servers reach each other.
    at, deaf = random.randrange(min(plan.lasts, 2_000)), random.sample(plan.worker_names, -(-plan.workers // 2))
    return [
        Fault("cut", at, 7_500, "coordinator", (random.choice(plan.server_names),)),
        Fault("cut", at, 7_500, "coordinator", tuple(deaf), how="out"),
    ]


def _cut(plan: FaultPlan, random: Random, at: int, names: list[str], others: list[str]) -> Fault:
    who = random.choice(names)
    cut = tuple(name for name in others if name != who and random.random() < 0.6)
    how = random.choice(["", "", "out", "in"])
    return Fault("cut", at, random.choice([300, 1_500, 7_000]), who, cut, how=how)


def _swizzle(plan: FaultPlan, random: Random) -> list[Fault]:
    """Clogs nodes and frees them in another order: all is late, nothing lost."""
    names = random.sample(plan.names, random.randrange(1, len(plan.names) + 1))
    each = plan.lasts // (2 * len(names))
    free = [plan.lasts // 2 + i * each for i in range(len(names))]
    random.shuffle(free)
    return [Fault("clog", i * each, free[i] - i * each, name) for i, name in enumerate(names)]


def _server_crash(plan: FaultPlan, random: Random) -> list[Fault]:
    """A server loses all it held and restarts empty; the launcher may have seen it end.

    Often another fault follows while the others take over: the coordinator dies too, or
    another server dies or pauses.
    """
    faults = []
    for at in _some(plan, random):
        how, lasts = random.choice(["seen", "seen", ""]), random.choice([0, 500, 3_000, 8_000])
        faults.append(Fault("crash", at, lasts, random.choice(plan.server_names), how=how))
        later = at + random.randrange(200) + (0 if how else 5_000)
        match random.choice(["", "crash", "pause", "coordinator", "alone", "alone"]):
            case "alone":  # its changes reach no copy
                others = [name for name in plan.server_names if name != faults[-1].who]
                some = tuple(random.sample(others, random.randint(min(1, len(others)), len(others))))
                before = random.choice([100, 500, 1_500])
                faults.append(
                    Fault("cut", max(0, at - before), before, faults[-1].who, some, how=random.choice(["", "out"]))
                )
            case "crash":
                lasts = random.choice([0, 3_000])
                faults.append(Fault("crash", later, lasts, random.choice(plan.server_names), how="seen"))
            case "pause":
                lasts = random.choice([100, 1_000, 3_000, 7_000])
                faults.append(Fault("pause", later, lasts, random.choice(plan.server_names)))
            case "coordinator":
                faults.append(Fault("crash", later, random.choice([0, 1_000]), "coordinator"))
    return faults


def beyond(plan: FaultPlan, random: Random) -> list[Fault]:
    """Loses all copies of something: servers one after another, or all processes at a power cut."""
    faults = []
    for at in _some(plan, random)[:2]:
        lasts = random.choice([0, 1_000, 4_000])
        if random.random() < 0.5:
            faults.append(Fault("power", at, lasts))
        else:
            names = random.sample(plan.server_names, min(plan.servers, plan.copies + random.randrange(2)))
            faults += [Fault("crash", at + i * 30, lasts, name, how="seen") for i, name in enumerate(names)]
        if random.random() < 0.3:
            faults.append(Fault("rot", max(0, at - 1)))
    return faults


def _drift(plan: FaultPlan, random: Random) -> list[Fault]:
    return [
        Fault("drift", lasts=random.randrange(1_000), who=name, rate=round(random.uniform(-0.1, 0.1), 4))
        for name in plan.names
    ]


def _rogue(plan: FaultPlan, random: Random) -> list[Fault]:
    return [
        Fault(
            "rogue",
            random.randrange(plan.lasts),
            who=random.choice(plan.worker_names),
            others=(random.choice(plan.server_names),),
            how=random.choice(NONSENSE),
        )
        for _ in range(3)
    ]


DRAW: dict[str, Family] = {
    "loss": _rate("loss", [0.02, 0.1, 0.3]),
    "repeat": _repeat,
    "slow": _rate("slow", [0.05, 0.2]),
    "corrupt": _rate("corrupt", [0.02, 0.1]),
    "partition": _partition,
    "server partition": _server_partition,
    "swizzle": _swizzle,
    "pause": strikes("pause", [100, 1_000, 3_000, 8_000], lambda plan: plan.names),
    # about long enough to be removed
    "server pause": strikes("pause", [1_500, 3_000, 6_000, 9_000], lambda plan: plan.server_names),
    "crash": strikes("crash", [0, 500, 3_000, 7_000], lambda plan: plan.worker_names),
    "server crash": _server_crash,
    "coordinator": strikes("crash", [0, 300, 2_000, 6_000]),  # it returns with its journal
    "full disk": strikes("full", [200, 1_500, 4_000]),
    "drift": _drift,
    "rogue": _rogue,
    # a second process under a name that is in use
    "twin": strikes(
        "twin", [500, 3_000, 6_000], lambda plan: plan.worker_names + plan.server_names * (plan.copies > 1), [1, 2]
    ),
}


def draw_scale(seed: int) -> float:
    """Draw the scale of the timing separately: three seeds in four use the defaults."""
    random = Random(f"{seed}/timing")
    return random.choice([0.2, 0.5, 2.0, 3.0]) if random.random() < 0.25 else 1.0


SETTLE = 6 * SECOND  # a pause may outlast the healing by so much


class FaultTarget(Protocol):
    def crash(self, fault: Fault) -> bool:
        """Crash a process; False if it must not crash now."""

    def restart(self, name: str) -> None: ...

    def carry_out(self, fault: Fault, until: int) -> bool:
        """Carry out a fault that ``Nemesis`` does not know; False without a victim."""

    def heal(self) -> None:
        """End stragglers, joins and leaves."""


class Nemesis:
    def __init__(
        self, world: World, plan: SeedPlan, target: FaultTarget, may_silence: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._world, self._plan, self._target, self._may_silence = world, plan, target, may_silence
        self._away = 0  # processes that are down and will return
        self._healed = False

    @property
    def over(self) -> bool:
        return self._healed and not self._away

    def begin(self) -> None:
        world, start = self._world, self._world.now
        world.weather.delay = self._plan.delay * MILLISECOND
        for fault in self._plan.faults:
            if fault.kind == "drift":
                continue  # since the beginning of the world
            world.at(start + fault.at * MILLISECOND, partial(self.strike, fault))
        world.at(start + self._plan.lasts * MILLISECOND, self.heal)

    def strike(self, fault: Fault) -> None:
        if self._healed:
            return
        world, until = self._world, self._world.now + fault.lasts * MILLISECOND
        long = fault.kind in ("pause", "freeze", "cut", "clog") and until - world.now > self._plan.timing.suspect
        if long and not all(self._may_silence(name) for name in self._silenced(fault)):
            world.counts["fault: withheld"] += 1
            return
        match fault.kind:
            case kind if kind in WEATHER:
                setattr(world.weather, kind, max(fault.rate, 0.0 if fault.lasts else getattr(world.weather, kind)))
                if fault.lasts:  # else it is over when all is healed
                    world.at(until, lambda: setattr(world.weather, kind, 0.0))
            case "cut":
                for other in fault.others:
                    world.weather.cuts.update(dict.fromkeys(_links(fault, other), until))
            case "far":
                longer = int(fault.rate * MILLISECOND)
                for other in fault.others:
                    world.weather.far.update(dict.fromkeys(_links(fault, other), (until, longer)))
            case "clog":
                world.weather.clogs[fault.who] = until
            case "pause" | "freeze" | "crash" if fault.who not in world.hosts:
                return
            case "pause":
                world.pause(fault.who, fault.lasts * MILLISECOND)
            case "freeze":
                world.freeze(fault.who, fault.lasts * MILLISECOND)
            case "sluggish":
                world.stall_disk(fault.who, fault.lasts * MILLISECOND)
            case "full":
                world.journals.setdefault(fault.who, SimulatedJournal()).full_until = until
            case _:
                crash = fault.kind == "crash"
                if not (self._target.crash(fault) if crash else self._target.carry_out(fault, until)):
                    world.counts["fault: withheld"] += 1
                    return
                if crash:
                    self.bring_back([fault.who], until)
        role = fault.who.partition("-")[0]
        named = role and fault.kind not in ("rogue", "clog", "ambush")
        world.counts[f"fault: {fault.kind}" + (f" {role}" if named else "")] += 1

    def bring_back(self, names: list[str], at: int) -> None:
        self._away += len(names)
        for name in names:
            self._world.at(at, partial(self._back, name))

    def _back(self, name: str) -> None:
        self._away -= 1
        self._target.restart(name)

    def heal(self) -> None:
        world = self._world
        if self._healed:
            return
        for kind in WEATHER:
            setattr(world.weather, kind, 0.0)
        world.weather.cuts.clear()
        world.weather.clogs.clear()
        world.weather.far.clear()
        world.twins.clear()
        world.wake_within(SETTLE)
        for host in world.hosts.values():
            host.frozen_until = min(host.frozen_until, world.now + SETTLE)
        for journal in world.journals.values():
            journal.full_until = 0
        self._target.heal()
        self._healed = True

    def _silenced(self, fault: Fault) -> list[str]:
        """The nodes that a fault hides from the coordinator."""
        if fault.kind == "clog" and fault.who == COORDINATOR:
            return [name for name in self._world.hosts if name.startswith("server")]
        if fault.kind != "cut":
            return [fault.who]
        if fault.who == COORDINATOR:
            return list(fault.others)
        return [fault.who] if COORDINATOR in fault.others else []


def _links(fault: Fault, other: str) -> list[tuple[str, str]]:
    """The links of a fault between two nodes: both directions, or only one of them."""
    both = [("in", (fault.who, other)), ("out", (other, fault.who))]
    return [link for but, link in both if fault.how != but]


LONGEST_BREAK = 1_000  # milliseconds


class Stragglers:
    """The computing times of each worker."""

    def __init__(self, plan: FaultPlan, now: Callable[[], int]) -> None:
        self._random, self._now = Random(f"{plan.seed}/breaks"), now
        self._faults: dict[str, list[tuple[Fault, int]]] = {}
        self.counts: Counter[str] = Counter()

    def straggle(self, fault: Fault, until: int) -> None:
        self._faults.setdefault(fault.who, []).append((fault, until))

    def heal(self) -> None:
        self._faults.clear()

    def duration(self, worker: str, nanoseconds: int) -> int:
        """The duration of a computation, from that without faults.

        Of several faults the worst counts: all of them together would stretch a slot to minutes.
        """
        now, times, more = self._now(), 1.0, 0
        for fault, until in self._faults.get(worker, ()):
            if until <= now:
                continue
            match fault.kind:
                case "slower":
                    times = max(times, fault.rate)
                case "halting" if self._random.random() < fault.rate:
                    more += self._random.randrange(LONGEST_BREAK) * MILLISECOND
                case "stall":
                    more += until - now
        whole = int(nanoseconds * times) + more
        self.counts["slots that took longer"] += whole > nanoseconds
        return whole
