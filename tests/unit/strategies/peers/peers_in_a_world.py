"""Peers on virtual time, for tests: a replica that counts slots, an evaluation that adds up.

A world holds the peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as numbers

import numpy as np
import numpy.typing as npt

from shoal.data.slots import Slots
from shoal.limits import MILLISECOND, SECOND
from shoal.schedule.stop_rules import StopRules
from shoal.simulation.world import World
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.peer import PeerNode
from shoal.strategies.peers.run_log import RunLog
from shoal.wire.messages import peers as p

Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.uint64]
KEYS = 256


class Counting:
    """A model where every slot adds 1 to its own keys.

    The weights show what was learned how often.
    """

    def __init__(self, keys: int = KEYS) -> None:
        self.weights_now, self.unsaid = np.zeros(keys, np.float32), np.zeros(keys, np.float32)
        self.learned: list[int] = []
        self.breaks_at: int | None = None

    def run(self, slots: Sequence[tuple[int, int]]) -> tuple[float, int]:
        found = [slot for first, stop in slots for slot in range(first, stop)]
        if self.breaks_at is not None and len(self.learned) + len(found) > self.breaks_at:
            raise MemoryError("no room")
        for slot in found:
            keys = keys_of(slot, len(self.weights_now))
            self.weights_now[keys] += 1
            self.unsaid[keys] += 1
        self.learned += found
        return float(len(found)), len(found)

    def take(self) -> tuple[Keys, Floats]:
        keys = np.flatnonzero(self.unsaid)
        values = self.unsaid[keys].copy()
        self.unsaid[:] = 0
        return keys.astype(np.uint64), values

    def add(self, keys: Keys, values: Floats) -> None:
        assert (np.diff(keys.astype(np.int64)) > 0).all(), "keys in order, each once"
        self.weights_now[keys] += values

    def snapshot(self) -> Floats:
        return self.weights_now.copy()

    def restore(self, slab: Floats) -> None:
        self.weights_now[:] = slab
        self.unsaid[:] = 0

    def weights(self) -> Floats:
        return self.weights_now.copy()


def keys_of(slot: int, keys: int) -> list[int]:
    return sorted((slot + offset) % keys for offset in (0, 100, 171))


def weights_of(slots: Sequence[int], keys: int = KEYS) -> Floats:
    weights = np.zeros(keys, np.float32)
    for slot in slots:
        weights[keys_of(slot, keys)] += 1
    return weights


class Peers:
    """A run of peers."""

    def __init__(
        self,
        founders: int,
        stop: StopRules,
        seed: int = 1,
        per_pass: int = 60,
        owned: bool = False,
        every: int = 5,
        begin: RunLog | None = None,
    ) -> None:
        self.world = World(seed)
        self.facts = PeerFacts(Slots(per_pass, 1, 0), stop, per_pass, every, owned)
        self.replicas: dict[str, Counting] = {}
        self.nodes: dict[str, PeerNode] = {}
        self._lives, self._begin = numbers(), begin
        self.judged: list[Floats] = []
        found = [self._peer(number) for number in range(founders)]
        for one in found:
            self._add(Mesh(one, found))

    def _peer(self, number: int) -> p.Peer:
        return p.Peer(f"worker-{number}.{next(self._lives)}", f"worker-{number}", number, f"memory:{number}")

    def _add(self, mesh: Mesh) -> PeerNode:
        life = mesh.me.life
        replica = self.replicas[life] = Counting()
        node = self.nodes[life] = PeerNode(
            mesh, replica, self.facts, self._evaluate, begin=self._begin, keys=KEYS, parts=8
        )
        self.world.add(node)
        return node

    def _evaluate(self, weights: Floats) -> tuple[float, dict[str, float | None]]:
        self.judged.append(weights)
        return 1.0 / (1.0 + float(weights.sum())), {}

    def join(self) -> PeerNode:
        """Add a peer, which joins through any peer that is here."""
        number = max(node.mesh.me.number for node in self.nodes.values()) + 1
        through = [
            (life, f"memory:{life}") for life, node in self.nodes.items() if node.mesh.has_model and not node.has_left
        ]
        return self._add(Mesh(self._peer(number), through=through))

    def kill(self, life: str) -> None:
        self.world.crash(life)
        del self.nodes[life], self.replicas[life]

    @property
    def lives(self) -> list[str]:
        return list(self.nodes)

    def until_done(self, share: int) -> None:
        assert self.world.run(
            lambda: any(node.log.done >= share for node in self.nodes.values()), 600 * SECOND, 2_000_000
        )

    def until_over(self) -> None:
        assert self.world.run(lambda: all(node.may_go for node in self.nodes.values()), 600 * SECOND, 2_000_000)

    def wait(self, milliseconds: int) -> None:
        end, over = self.world.now + milliseconds * MILLISECOND, list[bool]()
        self.world.at(end, lambda: over.append(True))
        assert self.world.run(lambda: bool(over), end, 2_000_000)

    def check(self, slots: int) -> None:
        """Check that all living peers have the same weights, with every counted slot once."""
        for life, node in self.nodes.items():
            if node.has_left:
                continue
            assert node.log.counted.runs == [(0, slots)], (life, node.log.counted.runs)
            assert node.log.rows == slots and node.log.loss == (slots, slots)
            np.testing.assert_array_equal(self.replicas[life].weights_now, weights_of(range(slots)), err_msg=life)
            assert node.ended and node.log.ended is not None and not node.log.ended.failed
            assert node.log.counts["slots learned twice"] == 0
