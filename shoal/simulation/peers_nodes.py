"""The peers of the simulator: the mesh alone, and the real peer with a model that counts.

``MeshPeer`` only talks: it learns a slot, adds 1 to a weight of that slot, and publishes it when it
may. ``CountingLearner`` holds the real ``PeerNode``; a slot adds 1 to a few weights of its own.
Either way the weights say which slots are in them, and how often. Sums of ones are exact in
float32: two models are equal to the last bit, or something was lost or added twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND
from shoal.schedule.stop_rules import StopRules
from shoal.simulation.peers_plan import PeersPlan
from shoal.strategies.peers.compute import Change, Floats, Keys
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import AGAIN, TWICE
from shoal.wire.effects import Effect, Event, Wake
from shoal.wire.messages import peers as p

SLOTS = 2_048  # weights of a MeshPeer
PLACES = 3  # weights of one slot, far from each other: they have different owners
PARTS = 8
ALONE = "the last peer was asked to leave"  # an early end


class MeshPeer:
    """A mesh, and a model in which every slot is one weight.

    ``draw`` gives it the next slot, or None while there is nothing to learn.
    """

    def __init__(self, mesh: Mesh, draw: Callable[[str], int | None], every: int) -> None:
        self.mesh, self.name = mesh, mesh.me.life
        self.base = np.zeros(SLOTS, np.float32)  # what was heard
        self.pending: list[int] = []  # learned, not published
        self.published: list[int] = []
        self.leaving = self.left = False
        self._goodbye: int | None = None  # when it published that it leaves
        self._draw, self._every, self._next = draw, every * MILLISECOND, 0

    @property
    def node(self) -> MeshPeer:
        return self

    @property
    def evicted(self) -> bool:
        return bool(self.mesh.evicted)

    @property
    def settled(self) -> bool:
        """Whether all is published."""
        return not self.pending

    @property
    def leads(self) -> bool:
        """There is nothing to decide."""
        return False

    def leave(self) -> None:
        self.leaving = True

    @property
    def model(self) -> Floats:
        return self.base

    def wrong(self) -> list[str]:
        """Slots that are not in the weights exactly once."""
        found = []
        if (self.base > 1).any():
            found.append(f"slots {(self.base > 1).nonzero()[0].tolist()} are there more than once")
        if missing := [slot for slot in self.published if not self.base[slot]]:
            found.append(f"it published {missing}, and does not have it")
        return found

    def happened(self) -> Counter[str]:
        return Counter()

    def describe(self) -> str:
        return f"pending={self.pending}"

    def handle(self, now: int, event: Event) -> list[Effect]:
        mesh = self.mesh
        effects = mesh.handle(now, event) or []
        if mesh.has_model and not mesh.evicted:
            effects += self._learn(now)
        if (given := mesh.take_model()) is not None:
            state, flat = given
            self.base = flat.copy()
            assert msgspec.msgpack.decode(state) == int(flat.sum())
        effects += self._hear(now)
        for life in mesh.donor.wanted:
            state = msgspec.msgpack.encode(int(self.base.sum()))
            effects += mesh.give(life, state, self.base.copy(), dict(mesh.heard))
        # As a ``PeerNode``: it goes when all have heard that it leaves, or after a while.
        drained = self._goodbye is not None and now - self._goodbye > mesh.timing.drain
        heard = self._goodbye is not None and mesh.unheard == 0
        self.left = self.leaving and (bool(mesh.evicted) or heard or drained)
        learns = mesh.has_model and not mesh.evicted and not self.leaving
        return [*effects, Wake(min(mesh.wake_at, self._next) if learns else mesh.wake_at)]

    def _learn(self, now: int) -> list[Effect]:
        if now >= self._next and not self.leaving:
            self._next = now + self._every
            if (slot := self._draw(self.name)) is not None:
                self.pending.append(slot)
        if not self.mesh.may_publish or self.left:
            return []
        effects: list[Effect] = []
        if self.pending:
            keys = np.array(self.pending, np.uint64)
            word = p.Learned([(slot, slot + 1) for slot in self.pending], len(self.pending), 0.0)
            self.published += self.pending
            self.pending = []
            effects = self.mesh.publish(now, word, (keys, np.ones(len(keys), np.float32)))
        # As a ``PeerNode``: one that seems to be alone keeps the only model of its half.
        may_leave = len(self.mesh.living) > 1 and self.mesh.may_leave(now)
        if self.leaving and self._goodbye is None and may_leave:
            self._goodbye = now
            effects += self.mesh.publish(now, p.PeerLeaving(""))
        return effects

    def _hear(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in self.mesh.broadcast.drain():
            match one.word:
                case p.Learned():
                    keys, values = one.arrays
                    self.base[keys.astype(np.int64)] += values
                case p.PeerLeaving() if one.origin != self.name:
                    effects += self.mesh.mark_gone(now, one.origin, "")
        return effects


class CountingReplica:
    """All weights, and our own slots that are not published yet."""

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
    """A loss that falls with every learned slot."""
    return 1.0 / (1.0 + float(weights.sum())), {}


class CountingLearner:
    """A real peer with a counting model."""

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
        """Where the weights differ from what the log says."""
        log, found = self.node.log, []
        asked = log.halt is not None and log.halt.why == ALONE
        if log.done != self._limit and not asked:
            found.append(f"{log.done} of {self._limit} slots are counted: {log.counted.runs}")
        more = self._replica.weights().reshape(PLACES, -1) - self._expected()
        if (more < 0).any():
            found.append(f"slots {np.unique((more < 0).nonzero()[1]).tolist()} are known of and not in the weights")
        twice, many = log.counts[TWICE], more.clip(min=0).sum() / PLACES
        if round(PLACES * many) != PLACES * twice:
            slots = np.unique((more > 0).nonzero()[1]).tolist()
            found.append(f"{many:g} slots too many are in the weights, {twice} are known of: {slots}")
        return found

    def happened(self) -> Counter[str]:
        log = self.node.log
        found = Counter({name: log.counts[name] for name in (TWICE, AGAIN)})
        found["elections"] = len({one.by for one in log.judged}) - 1
        found["words of owners"] = len(log.since)
        return found

    def _expected(self) -> Floats:
        """By weight: slots that are counted, and those in some parts of the weights only.

        The latter are of peers that died: promised to be known, not undone (decision 0034). They
        are expected weight by weight, so a slot that nobody knows of is found beside them.
        """
        log = self.node.log
        expected = np.zeros((PLACES, self._limit), np.float32)
        for first, stop in log.counted.runs:
            expected[:, first:stop] += 1
        size = expected.size
        part_of = (np.arange(size) * PARTS // size).reshape(PLACES, -1)
        for life, contributions in log.open.items():
            for one in contributions if self.mesh.is_closed(life) else ():
                is_in = np.array([part.get(life, 0) >= one.number for part in log.included])
                for first, stop in one.slots:
                    expected[:, first:stop] += is_in[part_of[:, first:stop]]
        return expected

    def describe(self) -> str:
        node, log = self.node, self.node.log
        out = {life: slots.runs for life, slots in log.out.items() if slots}
        return (
            f"leads={node.leads} ended={node.ended} may_go={node.may_go} done={log.done} "
            f"halt={log.halt is not None} todo={node.compute.todo.size} "
            f"running={node.compute.running is not None} out={out} judged={len(log.judged)} "
            f"rested={list(log.rested)} unpublished={node.compute.unpublished.slots.size}"
        )
