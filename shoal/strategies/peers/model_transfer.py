"""Copies a model from one peer to a newcomer, or to an observer, piece by piece.

A newcomer must get a model that misses no word:

    greet     ask any peer, which answers with the list of peers
    enter     send beats to all of them until each lists us: from then on each keeps new words for
              us
    fetch     a model from one of them, with the version at which the copy was made
    adopt     the copy once every other peer has heard all that is in it: we have the effect of
              those words, not the words, so if the donor died the others could never hear them. If
              the donor is lost before that, fetch from another peer

``Newcomer`` receives. ``SnapshotServer`` gives, to newcomers (``Fetch``) and to observers
(``Weigh``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from shoal import limits
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Connect, Effect, Send
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Array, Arrays

_FLOATS = limits.PIECE_BYTES // 4  # in one piece
_OBSERVERS = 8  # that are served at the same time


@dataclass(slots=True)
class PeerMember:
    """Another peer. What it has heard, and whom it holds for gone, only grows."""

    peer: p.Peer
    since: int  # when it was last heard from
    has_model: bool = False
    met: bool = False  # heard from at all
    lists_me: bool = False  # it has entered us
    knows: bool = False  # it knows that we have a model
    patient: bool = False  # a founder: its process may take a while to start
    heard: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    copied: Mapping[str, int] = field(default_factory=dict)  # it cannot relay these

    def learn(self, heard: Mapping[str, int]) -> None:
        for life, number in heard.items():
            if number > self.heard.get(life, 0):
                self.heard[life] = number


class Newcomer:
    def __init__(self, through: list[tuple[str, str]], timing: TimingSettings = DEFAULT) -> None:
        self._timing = timing
        self.donor = ""
        self.donors_lost = 0
        self._through, self._turn, self._answered = through, 0, False
        self._request = 0
        self._ask_at, self._wait = 0, self._timing.resend_first
        self._since = 0  # when the donor last gave something
        self._pieces: list[Array] = []
        self._left = -1  # pieces to come; -1: not known before the first piece
        self._version: dict[str, int] = {}
        self._state = b""
        self._model: tuple[bytes, Array] | None = None

    def take(self) -> tuple[bytes, Array] | None:
        model, self._model = self._model, None
        return model

    def tick(self, now: int, me: str, members: Mapping[str, PeerMember]) -> list[Effect]:
        if not self._answered or not members:
            return self._greet(now)
        if self._left == 0:
            return []  # complete: it is adopted when the others have heard what is in it
        if self.donor and now - self._since > self._timing.dead:
            self._turn += 1
            self.lost(self.donor)
        if not self.donor and not self._choose(now, me, members):
            return []
        if now < self._ask_at:
            return []
        self._ask_at, self._wait = now + self._wait, min(2 * self._wait, self._timing.resend_most)
        return [self._fetch(me)]

    def _greet(self, now: int) -> list[Effect]:
        if now < self._ask_at or not self._through:
            return []
        name, address = self._through[self._turn % len(self._through)]
        self._turn += 1
        self._ask_at = now + self._wait
        if self._turn % len(self._through) == 0:  # no answer yet
            self._wait = min(2 * self._wait, self._timing.resend_most)
        connect: list[Effect] = [Connect(name, address)] if address else []
        return [*connect, Send(name, p.Greet(self._turn))]

    def answered(self) -> list[Effect]:
        self._answered, self._turn = True, 0
        self._ask_at, self._wait = 0, self._timing.resend_first
        # From now on connections go by the names of lives.
        return [Connect(name, "") for name, address in self._through if address]

    def _choose(self, now: int, me: str, members: Mapping[str, PeerMember]) -> bool:
        """Choose a donor once all peers list us; newcomers spread over the donors."""
        donors = sorted(life for life, one in members.items() if one.has_model)
        if not donors or not all(one.lists_me for one in members.values()):
            return False
        self.donor = donors[(crc32(me.encode()) + self._turn) % len(donors)]
        self._request += 1
        self._since = self._ask_at = now
        self._wait = self._timing.resend_first
        return True

    def _fetch(self, me: str) -> Effect:
        return Send(self.donor, p.Fetch(self._request, me, len(self._pieces)))

    def lost(self, life: str) -> None:
        if life and life == self.donor:
            self.donor, self._left = "", -1
            self._pieces, self._version, self._state = [], {}, b""
            self.donors_lost += 1

    def piece(self, now: int, me: str, sender: str, piece: p.ModelPiece, arrays: Arrays) -> list[Effect]:
        expected = sender == self.donor and piece.request == self._request
        expected = expected and piece.piece == len(self._pieces)
        if not expected or self._left == 0 or piece.pieces <= piece.piece:
            return []
        if piece.piece == 0:
            self._version, self._state = dict(piece.heard), piece.state
        self._pieces.append(np.array(arrays[-1] if arrays else (), np.float32))
        self._left = piece.pieces - len(self._pieces)
        self._since, self._wait = now, self._timing.resend_first
        if not self._left:
            return []
        self._ask_at = now + self._wait
        return [self._fetch(me)]

    def ready(self, members: Mapping[str, PeerMember]) -> p.Heard | None:
        """The version of the model, if it may be adopted now."""
        if self._left != 0:
            return None
        for life, one in members.items():
            behind = any(one.heard.get(origin, 0) < number for origin, number in self._version.items())
            if one.has_model and life != self.donor and behind:
                return None
        self._model = self._state, np.concatenate(self._pieces)
        version, self._version, self._pieces, self._state = self._version, {}, [], b""
        return version


class SnapshotServer:
    """Serves snapshots of our model; each stays until its receiver asks for a newer one."""

    def __init__(self, most: int = limits.PEERS) -> None:
        """At most ``most`` receivers are served at the same time."""
        self._most = most
        self._requests: dict[str, int] = {}  # by receiver: the newest request
        self._snapshots: dict[str, tuple[bytes, Array, p.Heard]] = {}  # for those requests

    @property
    def wanted(self) -> list[str]:
        """The receivers that wait for a snapshot: make one, and ``give`` it."""
        return [to for to in self._requests if to not in self._snapshots]

    def fetch(self, to: str, request: int, piece: int) -> list[Effect]:
        if piece == 0 and self._requests.get(to, 0) < request and self._has_room(to):
            self._snapshots.pop(to, None)  # it starts again
            self._requests[to] = request
        if to not in self._snapshots or request != self._requests[to]:
            return []
        return [self._piece(to, piece)]

    def _has_room(self, to: str) -> bool:
        if to not in self._requests and len(self._requests) >= self._most and self._snapshots:
            self.done(next(iter(self._snapshots)))
        return to in self._requests or len(self._requests) < self._most

    def give(self, to: str, state: bytes, slab: Array, version: p.Heard) -> list[Effect]:
        if to not in self._requests:
            return []
        self._snapshots[to] = state, slab.reshape(-1), dict(version)
        return [self._piece(to, 0)]

    def _piece(self, to: str, number: int) -> Effect:
        state, flat, version = self._snapshots[to]
        return _piece(to, self._requests[to], number, flat, state, version)

    def done(self, to: str) -> None:
        self._requests.pop(to, None)
        self._snapshots.pop(to, None)


class ObserverAnswers:
    """Answers observers: the weights of the last and the best evaluation, and whole snapshots."""

    def __init__(self) -> None:
        self.snapshots = SnapshotServer(_OBSERVERS)
        self._weights: dict[int, Array] = {}  # by evaluation
        self._last, self._best = -1, -1

    def keep(self, number: int, weights: Array) -> None:
        """Evaluation ``number`` is running on these weights."""
        self._weights[number] = np.ascontiguousarray(weights, np.float32).reshape(-1)

    def evaluated(self, number: int, best: bool) -> None:
        self._last, self._best = number, number if best else self._best
        kept = (self._last, self._best)
        self._weights = {one: weights for one, weights in self._weights.items() if one in kept}

    def weigh(self, sender: str, request: p.Weigh) -> list[Effect]:
        if request.whole:
            return self.snapshots.fetch(sender, request.request, request.piece)
        weights = self._weights.get(request.number)
        if weights is None:
            return [Send(sender, p.ModelPiece(request.request, 0, 0))]
        return [_piece(sender, request.request, request.piece, weights)]


def _piece(
    to: str, request: int, number: int, flat: Array, state: bytes = b"", version: p.Heard | None = None
) -> Effect:
    pieces = max(1, -(-flat.size // _FLOATS))
    first = number == 0
    message = p.ModelPiece(request, number, pieces, (version or {}) if first else {}, state if first else b"")
    return Send(to, message, (flat[number * _FLOATS : (number + 1) * _FLOATS],))
