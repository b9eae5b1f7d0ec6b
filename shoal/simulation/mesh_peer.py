"""A peer that only talks: the mesh by itself, with a model in which every slot is a weight of its own.

It learns a slot, adds 1 to that weight, and says so when it may; what others say it adds. So the model shows what was heard of whom,
how often; and a copy of it, taken at some version, must hold just that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from shoal.limits import MILLISECOND
from shoal.strategies.peers.compute import Floats
from shoal.strategies.peers.mesh import Mesh
from shoal.wire.effects import Effect, Event, Wake
from shoal.wire.messages import peers as p

SLOTS = 2_048  # weights


class MeshPeer:
    """One peer. ``draw`` gives it the next slot, or None while nothing is to be learned."""

    def __init__(self, mesh: Mesh, draw: Callable[[str], int | None], every: int) -> None:
        self.mesh, self.name = mesh, mesh.me.life
        self.base = np.zeros(SLOTS, np.float32)  # all that was heard
        self.pending: list[int] = []  # learned, and not said
        self.said: list[int] = []
        self.leaving = self.left = self._said_goodbye = False
        self._draw, self._every, self._next = draw, every * MILLISECOND, 0

    @property
    def node(self) -> MeshPeer:
        return self

    @property
    def evicted(self) -> bool:
        return bool(self.mesh.evicted)

    @property
    def settled(self) -> bool:
        """Nothing is left to say."""
        return not self.pending

    @property
    def leads(self) -> bool:
        """Nothing is decided where all only talk."""
        return False

    def leave(self) -> None:
        self.leaving = True

    @property
    def model(self) -> Floats:
        return self.base

    def wrong(self) -> list[str]:
        """What is not in the weights once."""
        found = []
        if (self.base > 1).any():
            found.append(f"slots {(self.base > 1).nonzero()[0].tolist()} are there more than once")
        if missing := [slot for slot in self.said if not self.base[slot]]:
            found.append(f"it said {missing}, and does not have it")
        return found

    def happened(self) -> Counter[str]:
        return Counter()

    def told(self) -> str:
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
        for life in mesh.wanted:
            state = msgspec.msgpack.encode(int(self.base.sum()))
            effects += mesh.give(life, state, self.base.copy(), dict(mesh.heard))
        self.left = self.leaving and (bool(mesh.evicted) or (self._said_goodbye and mesh.unheard == 0))
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
            self.said += self.pending
            self.pending = []
            effects = self.mesh.publish(now, word, (keys, np.ones(len(keys), np.float32)))
        # As a ``PeerNode``: one that is alone, as far as it knows, does not take the only model of its half along.
        may_leave = len(self.mesh.living) > 1 and self.mesh.may_leave(now)
        if self.leaving and not self._said_goodbye and may_leave:
            self._said_goodbye = True
            effects += self.mesh.publish(now, p.PeerLeaving(""))
        return effects

    def _hear(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in self.mesh.deliveries():
            match one.word:
                case p.Learned():
                    keys, values = one.arrays
                    self.base[keys.astype(np.int64)] += values
                case p.PeerLeaving() if one.origin != self.name:
                    effects += self.mesh.mark_gone(now, one.origin, "")
        return effects
