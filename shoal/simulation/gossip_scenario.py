"""The scenario GOSSIP: the workers and the controller that ship, with faults.

After every event the sum of the models must be right (I10):

    rounds      a worker's model after a round is what the leg's matrix makes of its neighbours'
                models at the beginning of that round, plus one step. A dead neighbour may be
                missing; then its weight is the worker's own. Push-sum: the same for weights
    meetings    the sum of all models, minus their steps and minus what only one side of a meeting
                has moved by so far, changes only by what a dead worker had

At the end all legs are over in time (I13), every slot was learned by the worker that got it and is
counted once (I1), and where no worker was lost the models follow the mixing matrix.

The network's faults last until all is healed. A crash ``lasts`` until the controller hears of it;
with a ``rate``, it comes after so many messages to neighbours.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal
from unittest import mock

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND, SECOND
from shoal.simulation.faults import WEATHER, Fault, Nemesis, SeedPlan, draw_scale
from shoal.simulation.scenarios import Scenario, Trace, Verdict, Violation, Violations, counters, judge
from shoal.simulation.world import World
from shoal.strategies.averaging.shards import Shards
from shoal.strategies.gossip import Gossip, Topology, compute_queue
from shoal.strategies.gossip.controller import GossipController
from shoal.strategies.gossip.model import Floats, GossipModel
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.synchronous import Synchronous
from shoal.strategies.gossip.topology import Graph, Matrix
from shoal.strategies.gossip.worker import HOME, GossipWorker
from shoal.wire.effects import Effect
from shoal.wire.messages import Message
from shoal.wire.messages.gossip import Meet, MeetReply, Offer, Reached

BOTH_WAYS: tuple[Topology, ...] = ("ring", "ring", "star", "complete", "exponential", "random")
TROUBLE = ("loss", "repeat", "slow", "pause", "cut", "crash", "crash", "last words")


def name_of(node: int) -> str:
    return f"worker-{node}"


class GossipPlan(SeedPlan, frozen=True, kw_only=True, repr_omit_defaults=True):
    of = "gossip"
    mode: Literal["sync", "async"] = "sync"
    shape: str = "ring"  # a topology; "arcs": a ring one way, and some more links that go one way
    nodes: int = 2
    legs: int = 1
    rounds: int = 4  # of each leg
    size: int = 4  # of the model
    learns: bool = True
    quick: int = MILLISECOND  # below 0: everything is computed on the compute thread
    link: float = 0.0
    left: float | None = None  # seconds that every leg may take, at most

    @classmethod
    def draw(cls, seed: int) -> GossipPlan:
        random = Random(f"{seed}/gossip")
        mode: Literal["sync", "async"] = random.choice(["sync", "sync", "async"])
        one_way = mode == "sync" and random.random() < 0.35
        plan = cls(
            seed=seed,
            mode=mode,
            shape=random.choice(["one-way", "arcs"]) if one_way else random.choice(BOTH_WAYS),
            nodes=random.randrange(2, 9),
            legs=random.choice([1, 2, 2, 3]),
            rounds=random.choice([1, 2, 5, 9]),
            size=random.choice([1, 4, 9]),
            learns=random.random() < 0.6,
            quick=random.choice([MILLISECOND, -1]),
            link=random.choice([0.0, 0.0, 0.02, 0.3]),
            delay=random.choice([1, 5, 20]),
            lasts=random.choice([500, 2_000, 5_000]),
            scale=draw_scale(seed),
        )
        for trouble in sorted(set(random.sample(TROUBLE, random.choice([0, 1, 2, 2, 3])))):
            plan = replace(plan, faults=(*plan.faults, *_faults(plan, trouble, random)))
        return _with_home(plan, Random(f"{seed}/home"))

    def graph(self) -> Graph:
        if self.shape == "arcs":
            random = Random(f"{self.seed}/arcs")
            ring = [(i, (i + 1) % self.nodes) for i in range(self.nodes)]
            pairs = [(i, j) for i in range(self.nodes) for j in range(self.nodes) if i != j]
            return Graph("arcs", self.nodes, sorted({*ring, *random.sample(pairs, len(pairs) // 3)}), directed=True)
        degree = 2 if self.nodes > 2 else 1
        strategy = Gossip(topology=self.shape, mode=self.mode, degree=degree)  # type: ignore[arg-type]
        return strategy.graph(self.nodes, self.seed)

    @property
    def dying(self) -> set[str]:
        return {fault.who for fault in self.faults if fault.kind == "crash"}


def _faults(plan: GossipPlan, trouble: str, random: Random) -> list[Fault]:
    who, at = name_of(random.randrange(plan.nodes)), random.randrange(plan.lasts)
    match trouble:
        case "loss":
            return [Fault("loss", rate=random.choice([0.02, 0.1, 0.3]))]
        case "repeat":
            repeat = Fault("repeat", rate=random.choice([0.1, 0.4]))
            return [repeat, Fault("late", rate=random.choice([0.0, 0.2, 0.5]))]
        case "slow":
            return [Fault("slow", rate=random.choice([0.05, 0.2]))]
        case "pause":
            return [Fault("pause", at, random.choice([100, 1_000, 4_000]), who)]
        case "cut":
            to = name_of(random.randrange(plan.nodes))
            return [Fault("cut", at, random.choice([300, 3_000]), who, (to,), how="out")]
        case "crash":
            early = random.choice([30, 300, plan.lasts])  # many runs are over soon
            crash = Fault("crash", 1 + random.randrange(early), random.choice([0, 50, 1_000]), who)
        case _:
            crash = Fault("crash", who=who, rate=random.randrange(1, 12), lasts=random.choice([0, 50, 1_000]))
    return [crash] if len({*plan.dying, who}) < plan.nodes else []  # one worker stays


def _with_home(plan: GossipPlan, random: Random) -> GossipPlan:
    """Faults of the controller, drawn separately so that other draws do not change."""
    trouble, at, faults = random.random(), random.randrange(plan.lasts), list(plan.faults)
    if plan.dying and random.random() < 0.3:  # its reports of losses are lost
        faults.append(Fault("loss", rate=random.choice([0.1, 0.3])))
    if trouble < 0.15:
        faults.append(Fault("pause", at, random.choice([100, 1_000, 4_000]), HOME))
    elif trouble < 0.3:
        who, from_home = name_of(random.randrange(plan.nodes)), random.random() < 0.5
        sender, to = (HOME, who) if from_home else (who, HOME)
        faults.append(Fault("cut", at, random.choice([300, 3_000]), sender, (to,), how="out"))
    left = random.choice([0.05, 0.5]) if 0.3 <= trouble < 0.4 else None
    return replace(plan, faults=tuple(faults), left=left)


STEP = 0.0625  # of the simulated rule
Doubles = npt.NDArray[np.float64]


def node_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def pull_of(slot: int, size: int) -> Floats:
    drawn: Floats = np.random.default_rng(slot).normal(0.0, 1.0, size).astype(np.float32)
    return drawn


class SimulatedGossipModel(GossipModel):
    def __init__(self, start: Floats, step: float = STEP) -> None:
        """``step`` of the rule; 0: slots are worked through, and nothing is learned."""
        self._step = np.float32(step)
        slab = start.reshape(-1, 1).copy()
        super().__init__(slab, slab[:, 0])
        self.moved: Doubles = np.zeros(start.size)  # by all steps
        self.mixes: list[tuple[float, list[tuple[float, Floats]]]] = []
        self.adds: list[tuple[Floats, float]] = []
        self.steps: list[Floats] = []
        self.slots: list[int] = []
        self._gradient = np.zeros(start.size, np.float32)

    def gradient(self, slot: int) -> tuple[float, int]:
        self.slots.append(slot)
        self._gradient = self.weights - pull_of(slot, self.size)
        return 1.0, 1

    def mix(self, own: float, parts: Sequence[tuple[float, Floats]]) -> None:
        self.mixes.append((own, [(weight, values.copy()) for weight, values in parts]))
        super().mix(own, parts)

    def add(self, delta: Floats, times: float = 1.0) -> None:
        self.adds.append((delta, times))
        super().add(delta, times)

    def step(self, scale: float = 1.0) -> None:
        before = self.weights
        self.slab[:, 0] -= np.float32(scale) * self._step * self._gradient
        change = self.weights - before
        self.steps.append(change)
        self.moved += change


PAUSES = (0, 0, 30, 400)  # milliseconds between two legs


class GossipDriver:
    def __init__(self, world: World, plan: GossipPlan, graph: Graph) -> None:
        self.world, self.plan = world, plan
        self.over = False
        self.done, self.rows, self.loss = 0, 0, 0.0  # as the controller counts
        self.ready: list[str] = []
        self.errors: list[str] = []
        self.matrices: dict[int, Matrix] = {}  # of each leg, by its number; and so are these
        self.rounds: dict[int, int] = {}
        self.dealt: dict[int, dict[str, list[int]]] = {}
        self.slabs: dict[int, dict[str, Floats]] = {}
        self.counted_lost: dict[str, list[int]] = {}  # slots of lost workers that stay counted
        names = [name_of(node) for node in range(plan.nodes)]
        self.every = plan.rounds * plan.nodes  # slots between evaluations
        self.total = plan.legs * self.every
        self._per_pass = max(1, self.every - plan.seed % 3)  # an epoch may end within a leg
        parts = Shards(Slots(self._per_pass, 1, plan.seed), plan.nodes)
        self.controller = GossipController(
            names,
            {name: f"memory:{name}" for name in names},
            graph,
            parts,
            plan.mode,
            by_speed=bool(plan.seed % 2),
            timing=plan.timing,
        )
        self.controller.on_ready = self.ready.append
        self.controller.on_failed = lambda name, why: self.errors.append(f"{name}: {why}")
        self._pauses = Random(f"{plan.seed}/judged")
        self._ended: deque[str] = deque()
        self._begun = self._pausing = False

    def begin(self) -> None:
        self.world.add(self.controller)
        self._set_off(self.controller.begin(self._now()))

    def ended(self, name: str) -> None:
        self._ended.append(name)
        if not self._pausing:
            self.after_event()

    def after_event(self) -> None:
        """Run after each event of the controller, as after a turn of its loop."""
        controller = self.controller
        new = controller.take_progress()
        self.done, self.rows, self.loss = self.done + new.slots, self.rows + new.rows, self.loss + new.loss
        while self._ended and not self._pausing:
            self._lose(self._ended.popleft())
        for name, one in controller.states.items():
            if one.slab is not None:
                self.slabs[controller.leg].setdefault(name, one.slab.copy())
        if self.over or self._pausing or not controller.resting:
            return
        if self._begun:
            controller.end_leg(self._now())
        self._begun = True
        if self.done >= self.total or not controller.living:
            self.over = True
            self.world.carry_out(HOME, controller.dismiss())
            return
        self._pausing = True
        self.world.at(self.world.now + self._pauses.choice(PAUSES) * MILLISECOND, self._next)

    def unseen(self, counted: list[int]) -> list[int]:
        """Slots of begun epochs that are neither counted nor left to assign."""
        parts = self.controller.parts
        seen = {*counted, *parts.left().tolist()}
        return [slot for slot in range((parts.of_pass + 1) * self._per_pass) if slot not in seen]

    def _next(self) -> None:
        self._pausing = False
        room = min(self.every - self.done % self.every, self.total - self.done)
        self._set_off(self.controller.next_leg(self._now(), room, self.plan.left))
        self.after_event()

    def _set_off(self, effects: list[Effect]) -> None:
        home, graph = self.controller, self.controller.graph
        self.matrices[home.leg], self.rounds[home.leg], self.slabs[home.leg] = graph.mixing(), home.rounds, {}
        self.dealt[home.leg] = {name: one.slots.tolist() for name, one in home.states.items()}
        self.world.carry_out(HOME, effects)

    def _lose(self, name: str) -> None:
        home = self.controller
        done = home.states[name].done if name in home.states else 0
        kept = [slot for leg, dealt in self.dealt.items() if leg < home.leg for slot in dealt.get(name, [])]
        self.counted_lost[name] = kept + self.dealt[home.leg].get(name, [])[:done]
        if (loss := home.lose(self._now(), name)) is not None:
            self.world.carry_out(HOME, loss[2])

    def _now(self) -> int:
        return self.world.local_time(self.world.hosts[HOME])


CLOSE = 1e-4  # of numbers of size 1, after hundreds of roundings


def _error(a: Floats | Doubles, b: Floats | Doubles) -> float:
    """The distance: absolute for numbers up to 1, relative above."""
    return float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0) / max(1.0, np.max(np.abs(b), initial=0.0)))


@dataclass
class RoundChecker:
    driver: GossipDriver
    nodes: dict[str, GossipWorker]
    models: dict[str, SimulatedGossipModel]
    violations: Violations = field(default_factory=Violations)
    # leg, round, worker: its model
    sent: dict[tuple[int, int, str], Floats] = field(default_factory=dict)
    weights: dict[tuple[int, int, str], float] = field(default_factory=dict)
    # its inputs of each round by sender
    flows: dict[tuple[int, int, str], Doubles] = field(default_factory=dict)
    steps: dict[tuple[int, int, str], Doubles] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)

    @property
    def directed(self) -> bool:
        return self.driver.controller.graph.directed

    def check(self, name: str) -> None:
        part, model = self.nodes[name].mixer, self.models[name]
        assert isinstance(part, Synchronous)
        found = {(part.leg, number): (offer.model, offer.weight) for number, offer in part._own_offers.items()}
        if part.leg and part.is_over and not part._settling:
            found[part.leg, part.round] = model.weights, part.weight
        for leg, number in sorted(found):
            if (leg, number, name) not in self.sent:
                self.sent[leg, number, name] = found[leg, number][0].copy()
                self.weights[leg, number, name] = found[leg, number][1]
                if number:
                    self._round(leg, number - 1, name)

    def crash(self, name: str) -> None:
        self.dead.append(name)

    def _round(self, leg: int, number: int, name: str) -> None:
        """Check a worker from the beginning of a round to that of the next."""
        model, matrix, me = self.models[name], self.driver.matrices[leg], node_of(name)
        before, after = self.sent[leg, number, name].astype(np.float64), self.sent[leg, number + 1, name]
        own, parts = model.mixes.pop(0) if model.mixes else (1.0, [])
        step = np.zeros(before.size)
        if number < len(self.driver.dealt[leg].get(name, [])):
            if not model.steps:
                self._broken(leg, number, name, "learned nothing although it had a slot")
                return
            step += model.steps.pop(0)
        self.steps[leg, number, name] = step
        heard = [name_of(int(other)) for other in np.flatnonzero(matrix[me]) if other != me]
        expected, used = own * before, list[str]()
        for weight, values in parts:
            sender = self._sender_of(leg, number, values, [one for one in heard if one not in used])
            if not sender:
                self._broken(leg, number, name, "used a model that no neighbour sent in this round")
                return
            used.append(sender)
            expected += weight * values.astype(np.float64)
            self.flows[leg, number, name + "/" + sender] = weight * (values.astype(np.float64) - before)
        if missing := [one for one in heard if one not in used and one not in self.dead]:
            self._broken(leg, number, name, f"did not wait for {missing[0]}, which is alive")
        if (error := _error(after, expected + step)) > CLOSE:
            self._broken(leg, number, name, f"differs by {error:g} from the mean plus the step")
        if self.directed:
            self._shares(leg, number, name, dict(zip(used, (weight for weight, _ in parts), strict=True)))
        else:
            wanted = {one: float(matrix[me, node_of(one)]) for one in used}
            wrong = [one for one, (weight, _) in zip(used, parts, strict=True) if abs(weight - wanted[one]) > 1e-12]
            if wrong or abs(own + sum(wanted.values()) - 1) > 1e-9:
                self._broken(leg, number, name, f"used other mixing weights than the leg's: {own:g} for itself")

    def _sender_of(self, leg: int, number: int, values: Floats, among: list[str]) -> str:
        # agreeing workers have equal values
        among = sorted(among, key=lambda one: one in self.dead)
        return next((one for one in among if np.array_equal(self.sent.get((leg, number, one), ()), values)), "")

    def _shares(self, leg: int, number: int, name: str, used: dict[str, float]) -> None:
        """Push-sum: the new weight is the kept share plus the received ones."""
        matrix, me = self.driver.matrices[leg], node_of(name)
        had, has = self.weights[leg, number, name], self.weights[leg, number + 1, name]
        came = {one: float(matrix[me, node_of(one)]) * self.weights[leg, number, one] for one in used}
        kept = (has - sum(came.values())) / had
        back = sum(float(matrix[node_of(one), me]) for one in self.dead)
        if not matrix[me, me] - 1e-9 <= kept <= matrix[me, me] + back + 1e-9:
            self._broken(leg, number, name, f"kept {kept:g} of its weight")
        if wrong := [one for one, share in used.items() if abs(share * has - came[one]) > 1e-9]:
            self._broken(leg, number, name, f"used another share of {wrong[0]} than it received")

    def end(self) -> None:
        """The sum over living workers changes only by steps and by exchanges with dead ones."""
        living = [name for name in self.nodes if name not in self.dead]
        for leg in self.driver.matrices if not self.directed else []:
            for number in range(self.driver.rounds[leg]):
                change = np.zeros(self.driver.plan.size)
                for name in living:
                    if (leg, number + 1, name) in self.sent:
                        change += self.sent[leg, number + 1, name].astype(np.float64) - self.sent[leg, number, name]
                    change -= self.steps.get((leg, number, name), 0.0)
                    for dead in self.dead:
                        change -= self.flows.get((leg, number, f"{name}/{dead}"), 0.0)
                if (moved := np.abs(change).max()) > CLOSE:
                    self.violations.add("I10 conservation", f"leg {leg}, round {number}: the sum moved by {moved:g}")
        for name in living:
            self._counted(name)
        if not self.dead:
            self._product()

    def _counted(self, name: str) -> None:
        """Our half of the last exchange with a neighbour that died in a leg is counted as lost."""
        node, lost = self.nodes[name], 0.0
        for dead, leg in node._lost_in.items():
            last = max((key[1] for key in self.flows if key[0] == leg and key[2] == f"{name}/{dead}"), default=None)
            if last is not None and not self.directed:
                lost += float(np.linalg.norm(self.flows[leg, last, f"{name}/{dead}"]))
        if node.mixer.lost < lost - CLOSE:
            self.violations.add("I10 lost", f"{name} may have lost {lost:g}, but counts {node.mixer.lost:g}")

    def _product(self) -> None:
        """Without losses, models follow the matrix, and push-sum's weights add up."""
        if self.directed:
            total = sum(node.mixer.weight for node in self.nodes.values() if isinstance(node.mixer, Synchronous))
            if abs(total - len(self.nodes)) > 1e-9:
                self.violations.add("I10 conservation", f"the weights add up to {total:.12g}")
        if self.driver.plan.learns or self.directed:
            return
        now = np.stack([self.sent[1, 0, name].astype(np.float64) for name in self.nodes])
        for leg, matrix in self.driver.matrices.items():
            for _ in range(self.driver.rounds[leg]):
                now = matrix @ now
            shown = np.stack([self.driver.slabs[leg][name] for name in self.nodes])
            if (error := _error(shown, now)) > CLOSE:
                self.violations.add("I10 product", f"leg {leg}: models differ by {error:g} from the matrix product")

    def _broken(self, leg: int, number: int, name: str, what: str) -> None:
        self.violations.add("I10 conservation", f"{name}, leg {leg}, round {number}: {what}")


@dataclass
class HalfMeeting:
    """One side of a meeting has moved, and the other has not (yet)."""

    who: str
    moved: Floats
    other: str = ""  # once it is known


@dataclass
class MeetingChecker:
    driver: GossipDriver
    nodes: dict[str, GossipWorker]
    models: dict[str, SimulatedGossipModel]
    violations: Violations = field(default_factory=Violations)
    halves: list[HalfMeeting] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    base: Doubles = field(init=False)

    def __post_init__(self) -> None:
        self.base = self._total()

    def _total(self) -> Doubles:
        living = [model for name, model in self.models.items() if name not in self.dead]
        total = np.zeros(self.driver.plan.size)
        for model in living:
            total += model.weights.astype(np.float64) - model.moved
        for half in self.halves:
            total -= half.moved
        return total

    def check(self, name: str) -> None:
        """Checks after an event at this worker; others may have computed meanwhile."""
        for who, model in self.models.items():
            for moved, times in model.adds:
                self._moved(who, moved, times)
            model.adds.clear()
        part = self.nodes[name].mixer
        assert isinstance(part, Pairwise)
        for half in self.halves:
            if half.who == name and not half.other:
                half.other = next((a for a, (_, d) in part.answered.items() if d is not None and half.moved is d), "")
        shown = self.driver.slabs.get(part.leg, {}).get(name) if part.frozen else None
        if shown is not None and not np.array_equal(shown, self.models[name].weights):
            self.violations.add("I10 conservation", f"{name} changed its model after it had sent it")
        if (error := _error(self._total(), self.base)) > CLOSE:
            self.violations.add("I10 conservation", f"after an event at {name} the sum is {error:g} off")

    def _moved(self, who: str, moved: Floats, times: float) -> None:
        if not moved.any():  # of two that agree: a half like any other, and no loss
            return
        if times > 0:
            self.halves.append(HalfMeeting(who, moved))
            return
        # the last one: that of a dead worker may be equal
        for i, half in reversed(list(enumerate(self.halves))):
            if half.other in ("", who) and np.array_equal(half.moved, moved):
                del self.halves[i]
                return
        self.violations.add("I10 conservation", f"{who} moved by a difference that no other worker moved by")

    def crash(self, name: str) -> None:
        self.base = self.base - (self.models[name].weights.astype(np.float64) - self.models[name].moved)
        self.dead.append(name)

    def end(self) -> None:
        """At the end all meetings are settled, losses counted, and models taken at one moment."""
        for half in self.halves:
            if half.who in self.dead:
                continue
            # A move towards a worker that was gone already was counted as lost at once.
            was_gone, node = not half.other and bool(self.dead), self.nodes[half.who]
            if not was_gone and half.other not in self.dead:
                self.violations.add("I10 conservation", f"{half.who} moved towards {half.other}, which never moved")
            elif (was_gone or half.other in node._lost_in) and not node.queue.is_at_work:
                counted, size = node.mixer.lost, float(np.linalg.norm(half.moved))
                if counted < size - CLOSE:
                    what = f"{half.who} lost {size:g} with {half.other or 'a lost worker'}, but counts {counted:g}"
                    self.violations.add("I10 lost", what)
        if self.dead:
            return
        shown = np.sum(list(self.driver.slabs[max(self.driver.slabs)].values()), axis=0, dtype=np.float64)
        if _error(shown - np.sum([model.moved for model in self.models.values()], axis=0), self.base) > CLOSE:
            self.violations.add("I10 conservation", "the models at the end are not of one moment")


MOST_EVENTS = 100_000
LIVE_WITHIN = 60 * SECOND
MANY = 4  # means: fewer of push-sum, or two at a time, need not bring all models nearer
RUNAWAY = 100.0  # all that models are drawn to is of size 1
_FOREVER = 1 << 60


class GossipScenario:
    def __init__(self, plan: GossipPlan, trace: Trace | None = None, graph: Graph | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed, trace)
        self.world.after_event, self.counts = self._after_event, self.world.counts
        self.driver = GossipDriver(self.world, plan, graph or plan.graph())
        drawn = np.random.default_rng(plan.seed).normal(0.0, 1.0, (plan.nodes, plan.size)).astype(np.float32)
        self.models = {
            name_of(i): SimulatedGossipModel(drawn[i], STEP if plan.learns else 0.0) for i in range(plan.nodes)
        }
        self.nodes = {
            name: GossipWorker(
                name,
                model,
                plan.mode,
                chance=Random(f"{plan.seed}/{name}"),
                link=plan.link,
                quick=plan.quick,
                timing=plan.timing,
            )
            for name, model in self.models.items()
        }
        self.checker = (RoundChecker if plan.mode == "sync" else MeetingChecker)(self.driver, self.nodes, self.models)
        self.nemesis = Nemesis(self.world, plan, self)
        self._sent: Counter[str] = Counter()
        self._requested: set[tuple[str, int]] = set()
        self.world.watch(self._on_message, Offer, Reached, Meet, MeetReply)

    def verdict(self) -> Verdict:
        with mock.patch.object(compute_queue, "_IN_ONE_GO", 1):  # no round goes by unseen
            return judge(self.plan, self._run, [self.world])

    def _run(self) -> list[Violation]:
        plan, world = self.plan, self.world
        world.weather.delay = plan.delay * MILLISECOND
        for fault in plan.faults:
            if fault.kind in WEATHER:
                self.nemesis.strike(fault)
        for node in self.nodes.values():
            world.add(node)
        self.driver.begin()
        self.counts["push-sum"] += self.driver.controller.graph.directed
        for fault in plan.faults:
            if fault.kind not in WEATHER and not fault.rate:
                world.at(fault.at * MILLISECOND, partial(self.nemesis.strike, fault))
        first = self._distance()
        if not self._until(plan.lasts * MILLISECOND):
            self.nemesis.heal()
            if not self._until(round(LIVE_WITHIN * max(1.0, plan.scale))):
                return [*self.checker.violations[:3], Violation("I13 live", self._stuck())]
        if not self.checker.violations:
            self.checker.end()
        violations = Violations([*self.checker.violations, *self._slots(), *self._converged(first)])
        violations += [Violation("raised", error) for error in self.driver.errors]
        if len(set(self.driver.ready)) < len(self.driver.ready):
            violations.add("I1 joined", f"a worker was ready more than once: {self.driver.ready}")
        self.counts["lost with the dead, and counted"] += any(node.mixer.lost > 0 for node in self.nodes.values())
        self.counts["a graph fell apart"] += len(self.driver.controller.graph.parts) > 1
        return violations

    def _until(self, within: int) -> bool:
        return self.world.run(
            lambda: self.driver.over or bool(self.checker.violations), self.world.now + within, MOST_EVENTS
        )

    def _stuck(self) -> str:
        states = [
            f"{name} in round {node.mixer.round} of leg {node.mixer.leg}"
            + (" rests" if node.is_resting else f" waits for {', '.join(node.mixer.lacking()) or 'nobody'}")
            for name, node in self.nodes.items()
            if name not in self.checker.dead
        ]
        return f"not over {LIVE_WITHIN // SECOND} s after the last fault: leg {self.driver.controller.leg}; {'; '.join(states)}"

    def _slots(self) -> list[Violation]:
        """Each slot was learned by the worker that got it, and is counted once."""
        driver, violations, counted = self.driver, Violations(), list[int]()
        for name, model in self.models.items():
            dealt = [slot for leg in driver.dealt.values() for slot in leg.get(name, [])]
            if model.slots != (dealt if name not in self.checker.dead else dealt[: len(model.slots)]):
                violations.add("I1 slots", f"{name} was assigned {dealt}, but learned {model.slots}")
            counted += driver.counted_lost.get(name, dealt)
        if len(set(counted)) < len(counted):
            twice = next(slot for slot, count in Counter(counted).items() if count > 1)
            violations.add("I1 slots", f"slot {twice} is counted more than once")
        if not len(counted) == driver.done == driver.rows == driver.total or abs(driver.loss - driver.done) > 1e-6:
            sums = f"{driver.done} of {driver.total} slots, {driver.rows} rows, loss {driver.loss:g}"
            violations.add("I1 slots", f"counted are {sums}, but {len(counted)} slots were learned")
        if missing := driver.unseen(counted):
            violations.add("I1 slots", f"slot {missing[0]} was skipped: later epochs have begun")
        return violations

    def _distance(self) -> float:
        models = np.stack([model.weights for model in self.models.values()]).astype(np.float64)
        return float(np.linalg.norm(models - models.mean(0)))

    def _converged(self, first: float) -> list[Violation]:
        """No model diverges; if no worker learns or dies, models converge."""
        plan, last = self.plan, self._distance()
        if (farthest := max(float(np.abs(model.weights).max()) for model in self.models.values())) > RUNAWAY:
            return [Violation("consensus", f"a model diverged: {farthest:g}")]
        means = plan.legs * plan.rounds
        if plan.learns or plan.dying or means < MANY:
            return []
        self.counts["models converged"] += 1
        most = first * (0.9 if means >= 2 * MANY else 1.0)
        return [] if last <= most else [Violation("consensus", f"models were {first:g} apart, and are {last:g} now")]

    def crash(self, fault: Fault) -> bool:
        self.checker.crash(fault.who)
        self.world.crash(fault.who)
        return True

    def restart(self, name: str) -> None:
        """No worker restarts; the controller hears of its end."""
        self.driver.ended(name)

    def carry_out(self, fault: Fault, until: int) -> bool:
        raise ValueError(f"unknown fault {fault.kind!r}")

    def heal(self) -> None: ...

    def _after_event(self, name: str) -> None:
        if name in self.nodes:
            self.checker.check(name)
        else:
            self.driver.after_event()

    def _on_message(self, sender: str, to: str, message: Message) -> None:
        self._count_message(sender, to, message)
        self._sent[sender] += 1
        for fault in self.plan.faults:
            if fault.kind == "crash" and fault.who == sender and self._sent[sender] == fault.rate + 1 > 1:
                for other in [HOME, *self.nodes]:  # it is cut off in the middle of what it says
                    self.world.weather.cuts[sender, other] = _FOREVER
                self.world.at(self.world.now, partial(self._crash_in_mid_exchange, fault))

    def _crash_in_mid_exchange(self, fault: Fault) -> None:
        if fault.who in self.world.hosts:
            self.counts["fault: crash in mid exchange"] += 1
            self.crash(fault)
            self.nemesis.bring_back([fault.who], self.world.now + fault.lasts * MILLISECOND)

    def _count_message(self, sender: str, to: str, message: Message) -> None:
        match message:
            case Reached(lacks=True):
                self.counts["asked for an offer again"] += 1
            case Meet(number):
                self.counts["asked to meet again"] += (sender, number) in self._requested
                self._requested.add((sender, number))
                part = self.nodes[to].mixer
                if isinstance(part, Pairwise) and part.pending is not None and part.pending.name == sender:
                    self.counts["both asked each other at once"] += 1
            case MeetReply():
                part = self.nodes[sender].mixer
                if isinstance(part, Pairwise) and part.answered[to][1] is None:
                    self.counts["meetings refused"] += 1
            case Offer(leg):
                self.counts["offers of the next leg came first"] += leg > self.nodes[to].mixer.leg


GOSSIP = Scenario(
    name="gossip",
    draw=GossipPlan.draw,
    run=lambda plan, trace: GossipScenario(plan, trace).verdict(),
    sometimes=counters("""
        a graph fell apart; asked for an offer again; asked to meet again
        both asked each other at once; models converged; lost with the dead, and counted; meetings refused
        offers of the next leg came first; push-sum
        fault: crash in mid exchange; crash worker; cut home; cut worker; pause home; pause worker
        network: cut off; lost; repeated; slow; very late
    """),
)
