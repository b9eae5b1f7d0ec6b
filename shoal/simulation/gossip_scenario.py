"""The scenario GOSSIP: the workers and the controller that ship, with faults.

After every event the sum of the models must be right (I10). At the end all legs are over in
time (I13), every slot was learned by the worker that got it and is counted once (I1), and where no
worker was lost the models follow the mixing matrix.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from unittest import mock

import numpy as np

from shoal import limits
from shoal.simulation.faults import WEATHER, Fault
from shoal.simulation.gossip_checker import MeetingChecker, RoundChecker
from shoal.simulation.gossip_driver import STEP, GossipDriver, SimulatedGossipModel
from shoal.simulation.gossip_plan import GossipPlan, name_of
from shoal.simulation.nemesis import Nemesis
from shoal.simulation.scenarios import Scenario, Trace, Verdict, Violation, Violations, each, judge
from shoal.simulation.world import World
from shoal.strategies.gossip import compute_queue
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.topology import Graph
from shoal.strategies.gossip.worker import HOME, GossipWorker
from shoal.wire.messages import Message
from shoal.wire.messages.gossip import Meet, MeetReply, Offer, Reached

MOST_EVENTS = 100_000
LIVE_WITHIN = 60 * limits.SECOND
MANY = 4  # means: fewer of push-sum, or two at a time, need not bring all models nearer
RUNAWAY = 100.0  # all that models are drawn to is of size 1
_FOREVER = 1 << 60


class GossipScenario:
    def __init__(self, plan: GossipPlan, trace: Trace | None = None, graph: Graph | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed)
        self.world.trace, self.world.after_event = trace, self._after_event
        self.counts: Counter[str] = Counter()
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
        self._words: Counter[str] = Counter()
        self._asked: set[tuple[str, int]] = set()
        self.world.watch(self._says, Offer, Reached, Meet, MeetReply)

    def verdict(self) -> Verdict:
        with mock.patch.object(compute_queue, "_IN_ONE_GO", 1):  # no round goes by unseen
            return judge(self.plan, self._run, [self.world], self.counts)

    def _run(self) -> list[Violation]:
        plan, world = self.plan, self.world
        world.weather.delay = plan.delay * limits.MILLISECOND
        for fault in plan.faults:
            if fault.kind in WEATHER:
                self.nemesis.strike(fault)
        for node in self.nodes.values():
            world.add(node)
        self.driver.begin()
        self.counts["push-sum"] += self.driver.controller.graph.directed
        for fault in plan.faults:
            if fault.kind not in WEATHER and not fault.rate:
                world.at(fault.at * limits.MILLISECOND, partial(self.nemesis.strike, fault))
        first = self._distance()
        if not self._until(plan.lasts * limits.MILLISECOND):
            self.nemesis.stop()
            if not self._until(round(LIVE_WITHIN * max(1.0, plan.scale))):
                return [*self.checker.violations[:3], Violation("I13 live", self._stuck())]
        if not self.checker.violations:
            self.checker.end()
        violations = Violations([*self.checker.violations, *self._slots(), *self._nearer(first)])
        violations += [Violation("raised", error) for error in self.driver.errors]
        if len(set(self.driver.ready)) < len(self.driver.ready):
            violations.add("I1 joined", f"a worker was ready more than once: {self.driver.ready}")
        self.counts["lost with the dead, and counted"] += any(node.part.lost > 0 for node in self.nodes.values())
        self.counts["a graph fell apart"] += len(self.driver.controller.graph.parts) > 1
        return violations

    def _until(self, within: int) -> bool:
        return self.world.run(
            lambda: self.driver.over or bool(self.checker.violations), self.world.now + within, MOST_EVENTS
        )

    def _stuck(self) -> str:
        told = [
            f"{name} in round {node.part.round} of leg {node.part.leg}"
            + (" rests" if node.rests else f" waits for {', '.join(node.part.lacking()) or 'nobody'}")
            for name, node in self.nodes.items()
            if name not in self.checker.dead
        ]
        return f"not over {LIVE_WITHIN // limits.SECOND} s after all was healed: leg {self.driver.controller.leg}; {'; '.join(told)}"

    def _slots(self) -> list[Violation]:
        """Each slot was learned by the worker that got it, and is counted once."""
        driver, violations, counted = self.driver, Violations(), list[int]()
        for name, model in self.models.items():
            dealt = [slot for leg in driver.dealt.values() for slot in leg.get(name, [])]
            if model.slots != (dealt if name not in self.checker.dead else dealt[: len(model.slots)]):
                violations.add("I1 slots", f"{name} was dealt {dealt} and learned {model.slots}")
            counted += driver.kept.get(name, dealt)
        if len(set(counted)) < len(counted):
            twice = next(slot for slot, count in Counter(counted).items() if count > 1)
            violations.add("I1 slots", f"slot {twice} is counted more than once")
        if not len(counted) == driver.done == driver.rows == driver.total or abs(driver.loss - driver.done) > 1e-6:
            told = f"{driver.done} slots of {driver.total} are counted, {driver.rows} rows, a loss of {driver.loss:g}"
            violations.add("I1 slots", f"{told}; {len(counted)} were dealt and are kept")
        if missing := driver.unseen(counted):
            violations.add("I1 slots", f"slot {missing[0]} was left out: later passes have begun")
        return violations

    def _distance(self) -> float:
        models = np.stack([model.weights for model in self.models.values()]).astype(np.float64)
        return float(np.linalg.norm(models - models.mean(0)))

    def _nearer(self, first: float) -> list[Violation]:
        """No model diverges; if no worker learns or dies, models converge."""
        plan, last = self.plan, self._distance()
        if (farthest := max(float(np.abs(model.weights).max()) for model in self.models.values())) > RUNAWAY:
            return [Violation("consensus", f"a model ran away: {farthest:g}")]
        means = plan.legs * plan.rounds
        if plan.learns or plan.dying or means < MANY:
            return []
        self.counts["came nearer"] += 1
        most = first * (0.9 if means >= 2 * MANY else 1.0)
        return [] if last <= most else [Violation("consensus", f"the distance was {first:g} and is {last:g}")]

    def crash(self, fault: Fault) -> bool:
        self.checker.crash(fault.who)
        self.world.crash(fault.who)
        return True

    def may_silence(self, name: str) -> bool:
        return True

    def restart(self, name: str) -> None:
        """No worker restarts; the controller hears of its end."""
        self.driver.ended(name)

    def carry_out(self, fault: Fault, until: int) -> bool:
        raise ValueError(f"no fault {fault.kind!r}")

    def heal(self) -> None: ...

    def _after_event(self, name: str) -> None:
        if name in self.nodes:
            self.checker.see(name)
        else:
            self.driver.look()

    def _says(self, sender: str, to: str, message: Message) -> None:
        self._count(sender, to, message)
        self._words[sender] += 1
        for fault in self.plan.faults:
            if fault.kind == "crash" and fault.who == sender and self._words[sender] == fault.rate + 1 > 1:
                for other in [HOME, *self.nodes]:  # it is cut off in the middle of what it says
                    self.world.weather.cuts[sender, other] = _FOREVER
                self.world.at(self.world.now, partial(self._crash_in_mid_exchange, fault))

    def _crash_in_mid_exchange(self, fault: Fault) -> None:
        if fault.who in self.world.hosts:
            self.counts["fault: crash in mid exchange"] += 1
            self.crash(fault)
            self.nemesis.bring_back([fault.who], self.world.now + fault.lasts * limits.MILLISECOND)

    def _count(self, sender: str, to: str, message: Message) -> None:
        match message:
            case Reached(lacks=True):
                self.counts["asked for an offer again"] += 1
            case Meet(number):
                self.counts["asked to meet again"] += (sender, number) in self._asked
                self._asked.add((sender, number))
                part = self.nodes[to].part
                if isinstance(part, Pairwise) and part.asked is not None and part.asked.name == sender:
                    self.counts["both asked each other at once"] += 1
            case MeetReply():
                part = self.nodes[sender].part
                if isinstance(part, Pairwise) and part.answered[to][1] is None:
                    self.counts["not now"] += 1
            case Offer(leg):
                self.counts["offers of the next leg came first"] += leg > self.nodes[to].part.leg


GOSSIP = Scenario(
    name="gossip",
    draw=GossipPlan.draw,
    run=lambda plan, trace: GossipScenario(plan, trace).verdict(),
    sometimes=(
        "a graph fell apart",
        "asked for an offer again",
        "asked to meet again",
        "both asked each other at once",
        "came nearer",
        "lost with the dead, and counted",
        "not now",
        "offers of the next leg came first",
        "push-sum",
        *each("fault", "crash in mid exchange", "crash worker", "cut home", "cut worker", "pause home"),
        *each("fault", "pause worker"),
        *each("network", "cut off", "lost", "repeated", "slow", "very late"),
    ),
)
