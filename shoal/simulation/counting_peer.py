"""The real peer with a model that counts: a slot adds 1 to a few weights of its own, so the weights say which slots are in them, how often.

Sums of ones are exact in float32: two models are equal to the last bit, or something was lost or added twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.data.slots import Slots
from shoal.schedule.stop_rules import StopRules
from shoal.simulation.peers_plan import PeersPlan
from shoal.strategies.peers.compute import Change, Floats, Keys
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import AGAIN, TWICE

PLACES = 3  # weights of one slot, far from each other: they have different owners
PARTS = 8
ALONE = "the last peer was asked to leave"  # an end before all is learned


class CountingReplica:
    """All weights, and which of our own slots are not told yet."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._weights = np.zeros(slots * PLACES, np.float32)
        self._own: list[int] = []

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
        learned = [slot for first, stop in slots for slot in range(first, stop)]
        self._own += learned
        np.add.at(self._weights, self._keys(learned).astype(np.int64), 1)
        return float(len(learned)), len(learned)

    def _keys(self, slots: Sequence[int]) -> Keys:
        places = np.arange(PLACES) * self._slots
        return np.unique((np.array(slots, np.int64)[:, None] + places).reshape(-1)).astype(np.uint64)

    def take(self) -> Change:
        keys = self._keys(self._own)
        self._own = []
        return keys, np.ones(len(keys), np.float32)

    def add(self, keys: Keys, values: Floats) -> None:
        np.add.at(self._weights, keys.astype(np.int64), values)

    def snapshot(self) -> Floats:
        return self._weights.copy()

    def restore(self, slab: Floats) -> None:
        self._weights = slab.copy()
        self._own = []

    def weights(self) -> Floats:
        return self._weights.copy()


def judge(weights: Floats) -> tuple[float, Mapping[str, float | None]]:
    """The more is learned the better."""
    return 1.0 / (1.0 + float(weights.sum())), {}


class CountingLearner:
    """A peer that learns, as the simulation sees it."""

    def __init__(self, mesh: Mesh, plan: PeersPlan) -> None:
        self._limit = plan.slots
        facts = PeerFacts(
            Slots(max(1, plan.slots // 3), 1, plan.seed),
            StopRules(steps=plan.slots),
            evaluate=max(1, plan.slots // 5),
            every=plan.told_every,
            owned=plan.send == "owned",
        )
        self.mesh, self.name, self.leaving = mesh, mesh.me.life, False
        self._replica = CountingReplica(plan.slots)
        self.node = PeerNode(mesh, self._replica, facts, judge, keys=plan.slots * PLACES, parts=PARTS)

    @property
    def left(self) -> bool:
        return self.node.left and self.node.may_go

    @property
    def evicted(self) -> bool:
        return bool(self.node.evicted)

    @property
    def settled(self) -> bool:
        return self.node.ended and self.node.may_go and self.node.compute.is_idle

    @property
    def leads(self) -> bool:
        return self.node.leads and not self.mesh.evicted

    def leave(self) -> None:
        self.leaving = True
        self.node.leave()

    @property
    def model(self) -> Floats:
        return self._replica.weights()

    def wrong(self) -> list[str]:
        """What the book says is in the weights, and nothing else."""
        book, found = self.node.log, []
        asked = book.halt is not None and book.halt.why == ALONE
        if book.done != self._limit and not asked:
            found.append(f"{book.done} of {self._limit} slots are counted: {book.counted.runs}")
        more = self._replica.weights().reshape(PLACES, -1) - self._expected()
        if (more < 0).any():
            found.append(f"slots {np.unique((more < 0).nonzero()[1]).tolist()} are known of and not in the weights")
        twice, many = book.counts[TWICE], more.clip(min=0).sum() / PLACES
        if round(PLACES * many) != PLACES * twice:
            slots = np.unique((more > 0).nonzero()[1]).tolist()
            found.append(f"{many:g} slots too many are in the weights, {twice} are known of: {slots}")
        return found

    def happened(self) -> Counter[str]:
        book = self.node.log
        found = Counter({name: book.counts[name] for name in (TWICE, AGAIN)})
        found["elections"] = len({one.by for one in book.judged}) - 1
        found["words of owners"] = len(book.since)
        return found

    def _expected(self) -> Floats:
        """Weight by weight: what is counted, and what is in some parts of the weights only.

        The latter is of those who died: promised to be known, not undone (decision 0034). A slot of which some weights are in must not
        make room for others: so one that nobody knows of is seen even where much is in the weights in part.
        """
        book = self.node.log
        expected = np.zeros((PLACES, self._limit), np.float32)
        for first, stop in book.counted.runs:
            expected[:, first:stop] += 1
        size = expected.size
        part_of = (np.arange(size) * PARTS // size).reshape(PLACES, -1)
        for life, contributions in book.open.items():
            for one in contributions if self.mesh.is_closed(life) else ():
                is_in = np.array([part.get(life, 0) >= one.number for part in book.included])
                for first, stop in one.slots:
                    expected[:, first:stop] += is_in[part_of[:, first:stop]]
        return expected

    def told(self) -> str:
        node, book = self.node, self.node.log
        return f"leads={node.leads} ended={node.ended} may_go={node.may_go} done={book.done} halt={book.halt is not None} todo={node.compute.todo.size} under={node.compute.running is not None} out={ {k: v.runs for k, v in book.out.items() if v} } judged={len(book.judged)} rested={list(book.rested)} unsaid={node.compute.unpublished.slots.size}"
