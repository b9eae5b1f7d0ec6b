"""Checks workers that gossip, by their models after every event (I10) and at the end.

Rounds: a worker's model after a round is, number for number, what the leg's matrix makes of its
neighbours' models at the beginning of that round, plus one step. A dead neighbour may be missing;
then its weight is the worker's own. So the sum over the living changes only by steps and by what
the dead took part in. Push-sum: the same for weights and models.

Meetings: the sum of all models, minus their steps, minus what only one side of a meeting has moved
by so far, changes only by what a dead worker had.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from shoal.simulation.gossip_driver import Doubles, GossipDriver, SimulatedGossipModel, node_of
from shoal.simulation.gossip_plan import name_of
from shoal.simulation.scenarios import Violations
from shoal.strategies.gossip.model import Floats
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.synchronous import Synchronous
from shoal.strategies.gossip.worker import GossipWorker

CLOSE = 1e-4  # of numbers of size 1, after hundreds of roundings


def _apart(a: Floats | Doubles, b: Floats | Doubles) -> float:
    """The distance: absolute for numbers up to 1, relative above."""
    return float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0) / max(1.0, np.max(np.abs(b), initial=0.0)))


@dataclass
class RoundChecker:
    driver: GossipDriver
    nodes: dict[str, GossipWorker]
    models: dict[str, SimulatedGossipModel]
    violations: Violations = field(default_factory=Violations)
    # leg, round, worker: its model
    said: dict[tuple[int, int, str], Floats] = field(default_factory=dict)
    weights: dict[tuple[int, int, str], float] = field(default_factory=dict)
    # its inputs of each round by sender
    flows: dict[tuple[int, int, str], Doubles] = field(default_factory=dict)
    steps: dict[tuple[int, int, str], Doubles] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)

    @property
    def directed(self) -> bool:
        return self.driver.controller.graph.directed

    def see(self, name: str) -> None:
        part, model = self.nodes[name].part, self.models[name]
        assert isinstance(part, Synchronous)
        found = {(part.leg, number): (said.model, said.weight) for number, said in part._said.items()}
        if part.leg and part.is_over and not part._settling:
            found[part.leg, part.round] = model.weights, part.weight
        for leg, number in sorted(found):
            if (leg, number, name) not in self.said:
                self.said[leg, number, name] = found[leg, number][0].copy()
                self.weights[leg, number, name] = found[leg, number][1]
                if number:
                    self._round(leg, number - 1, name)

    def crash(self, name: str) -> None:
        self.dead.append(name)

    def _round(self, leg: int, number: int, name: str) -> None:
        """Check a worker from the beginning of a round to that of the next."""
        model, matrix, me = self.models[name], self.driver.matrices[leg], node_of(name)
        before, after = self.said[leg, number, name].astype(np.float64), self.said[leg, number + 1, name]
        own, parts = model.mixes.pop(0) if model.mixes else (1.0, [])
        step = np.zeros(before.size)
        if number < len(self.driver.dealt[leg].get(name, [])):
            if not model.steps:
                self._broken(leg, number, name, "learned nothing, and had a slot")
                return
            step += model.steps.pop(0)
        self.steps[leg, number, name] = step
        heard = [name_of(int(other)) for other in np.flatnonzero(matrix[me]) if other != me]
        expected, used = own * before, list[str]()
        for weight, values in parts:
            sender = self._who_said(leg, number, values, [one for one in heard if one not in used])
            if not sender:
                self._broken(leg, number, name, "took what no neighbour said at the beginning of this round")
                return
            used.append(sender)
            expected += weight * values.astype(np.float64)
            self.flows[leg, number, name + "/" + sender] = weight * (values.astype(np.float64) - before)
        if missing := [one for one in heard if one not in used and one not in self.dead]:
            self._broken(leg, number, name, f"went on without {missing[0]}, who lives")
        if _apart(after, expected + step) > CLOSE:
            self._broken(leg, number, name, f"is {_apart(after, expected + step):g} off the mean and the step")
        if self.directed:
            self._shares(leg, number, name, dict(zip(used, (weight for weight, _ in parts), strict=True)))
        else:
            wanted = {one: float(matrix[me, node_of(one)]) for one in used}
            wrong = [one for one, (weight, _) in zip(used, parts, strict=True) if abs(weight - wanted[one]) > 1e-12]
            if wrong or abs(own + sum(wanted.values()) - 1) > 1e-9:
                self._broken(leg, number, name, f"took other weights than the leg's: {own:g} of its own")

    def _who_said(self, leg: int, number: int, values: Floats, among: list[str]) -> str:
        # agreeing workers have equal values
        among = sorted(among, key=lambda one: one in self.dead)
        return next((one for one in among if np.array_equal(self.said.get((leg, number, one), ()), values)), "")

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
            self._broken(leg, number, name, f"took another share of {wrong[0]} than it was given")

    def end(self) -> None:
        """The sum over the living has changed only by steps and by what the dead took part in."""
        living = [name for name in self.nodes if name not in self.dead]
        for leg in self.driver.matrices if not self.directed else []:
            for number in range(self.driver.rounds[leg]):
                change = sum(
                    (
                        self.said[leg, number + 1, name].astype(np.float64) - self.said[leg, number, name]
                        for name in living
                        if (leg, number + 1, name) in self.said
                    ),
                    np.zeros(self.driver.plan.size),
                )
                for name in living:
                    change = change - self.steps.get((leg, number, name), 0.0)
                    for dead in self.dead:
                        change = change - self.flows.get((leg, number, f"{name}/{dead}"), 0.0)
                if _apart(change, np.zeros(change.size)) > CLOSE:
                    self.violations.add(
                        "I10 conservation", f"leg {leg}, round {number}: the sum moved by {np.abs(change).max():g}"
                    )
        for name in living:
            self._counted(name)
        if not self.dead:
            self._product()

    def _counted(self, name: str) -> None:
        """Of a neighbour that died in a leg, our half of the last exchange is counted as lost."""
        node, lost = self.nodes[name], 0.0
        for dead, leg in node._gone.items():
            last = max((key[1] for key in self.flows if key[0] == leg and key[2] == f"{name}/{dead}"), default=None)
            if last is not None and not self.directed:
                lost += float(np.linalg.norm(self.flows[leg, last, f"{name}/{dead}"]))
        if node.part.lost < lost - CLOSE:
            self.violations.add("I10 lost", f"{name} lost up to {lost:g} and counts {node.part.lost:g}")

    def _product(self) -> None:
        """Without losses, models follow the matrix, and push-sum's weights add up."""
        if self.directed:
            total = sum(node.part.weight for node in self.nodes.values() if isinstance(node.part, Synchronous))
            if abs(total - len(self.nodes)) > 1e-9:
                self.violations.add("I10 conservation", f"the weights add up to {total:.12g}")
        if self.driver.plan.learns or self.directed:
            return
        now = np.stack([self.said[1, 0, name].astype(np.float64) for name in self.nodes])
        for leg, matrix in self.driver.matrices.items():
            for _ in range(self.driver.rounds[leg]):
                now = matrix @ now
            shown = np.stack([self.driver.slabs[leg][name] for name in self.nodes])
            if _apart(shown, now) > CLOSE:
                self.violations.add(
                    "I10 product", f"leg {leg}: {_apart(shown, now):g} from what the matrix makes of it"
                )

    def _broken(self, leg: int, number: int, name: str, what: str) -> None:
        self.violations.add("I10 conservation", f"{name}, leg {leg}, round {number}: {what}")


@dataclass
class HalfMeeting:
    """One side of a meeting has moved, and the other has not (yet)."""

    who: str
    moved: Floats
    asker: str = ""  # once it is known


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
        total: Doubles = sum(
            (model.weights.astype(np.float64) - model.moved for model in living), np.zeros(self.driver.plan.size)
        )
        for half in self.halves:
            total = total - half.moved
        return total

    def see(self, name: str) -> None:
        """Checks after an event at this worker; others may have computed meanwhile."""
        for who, model in self.models.items():
            for moved, times in model.adds:
                self._moved(who, moved, times)
            model.adds.clear()
        part = self.nodes[name].part
        assert isinstance(part, Pairwise)
        for half in self.halves:
            if half.who == name and not half.asker:
                half.asker = next((a for a, (_, d) in part.answered.items() if d is not None and half.moved is d), "")
        shown = self.driver.slabs.get(part.leg, {}).get(name) if part.frozen else None
        if shown is not None and not np.array_equal(shown, self.models[name].weights):
            self.violations.add("I10 conservation", f"{name} moved after it had shown its model")
        if (apart := _apart(self._total(), self.base)) > CLOSE:
            self.violations.add("I10 conservation", f"after an event at {name} the sum is {apart:g} off")

    def _moved(self, who: str, moved: Floats, times: float) -> None:
        if not moved.any():  # of two that agree: a half like any other, and no loss
            return
        if times > 0:
            self.halves.append(HalfMeeting(who, moved))
            return
        # the last one: that of a dead worker may be equal
        for i, half in reversed(list(enumerate(self.halves))):
            if half.asker in ("", who) and np.array_equal(half.moved, moved):
                del self.halves[i]
                return
        self.violations.add("I10 conservation", f"{who} moved by what nobody has moved by")

    def crash(self, name: str) -> None:
        self.base = self.base - (self.models[name].weights.astype(np.float64) - self.models[name].moved)
        self.dead.append(name)

    def end(self) -> None:
        """At the end meetings are settled, losses counted, and models of one moment."""
        for half in self.halves:
            if half.who in self.dead:
                continue
            # A move towards a worker that was gone already was counted as lost at once.
            was_gone = not half.asker and bool(self.dead)
            if not was_gone and half.asker not in self.dead:
                self.violations.add("I10 conservation", f"{half.who} moved towards {half.asker}, who never moved")
            elif (was_gone or half.asker in self.nodes[half.who]._gone) and not self.nodes[half.who].queue.is_at_work:
                counted, size = self.nodes[half.who].part.lost, float(np.linalg.norm(half.moved))
                if counted < size - CLOSE:
                    self.violations.add(
                        "I10 lost",
                        f"{half.who} lost {size:g} with {half.asker or 'one that was gone'} and counts {counted:g}",
                    )
        if self.dead:
            return
        shown = sum(
            (slab.astype(np.float64) for slab in self.driver.slabs[max(self.driver.slabs)].values()), np.zeros(1)
        )
        steps = sum((model.moved for model in self.models.values()), np.zeros(1))
        if _apart(shown - steps, self.base) > CLOSE:
            self.violations.add("I10 conservation", "what was shown at the end is not of one moment")
