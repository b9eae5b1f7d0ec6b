"""Copies a model from one peer to a newcomer, or to an observer, piece by piece.

A newcomer must get a model that misses no word:

    greet     ask any peer, which answers with the list of peers
    enter     send beats to all of them until each lists us: from then on each keeps new words for
              us
    fetch     a model from one of them, with the version at which the copy was made
    adopt     the copy once every other peer has heard all words in it. We have the effect of those
              words, but cannot relay them: if the donor died, the others could never hear them. If
              the donor is lost before that, fetch from another peer
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
    """Another peer. What it has heard, and the lives it considers gone, only grow."""

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
    def __init__(self, me: str, through: list[tuple[str, str]], timing: TimingSettings = DEFAULT) -> None:
        self._me, self._through, self._timing = me, through, timing
        self.donor, self.donors_lost = "", 0
        self._answered, self._turn, self._request = False, 0, 0
        self._ask_at, self._wait = 0, timing.resend_first
        self._since = 0  # when the donor last gave something
        self._first: p.ModelPiece | None = None  # it names the version, and has the log
        self._pieces: list[Array] = []
        self._model: tuple[bytes, Array] | None = None

    def take(self) -> tuple[bytes, Array] | None:
        """The log and the model, once; words that are delivered from now on follow it."""
        model, self._model = self._model, None
        return model

    def tick(self, now: int, members: Mapping[str, PeerMember]) -> list[Effect]:
        if not self._answered or not members:
            return self._greet(now)
        if self._is_complete:
            return []  # it is adopted when the others have heard what is in it
        if self.donor and now - self._since > self._timing.dead:
            self._turn += 1
            self.lost(self.donor)
        if (not self.donor and not self._choose(now, members)) or now < self._ask_at:
            return []
        self._ask_at, self._wait = now + self._wait, min(2 * self._wait, self._timing.resend_most)
        return [self._fetch()]

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

    def _choose(self, now: int, members: Mapping[str, PeerMember]) -> bool:
        """Choose a donor once all peers list us; newcomers spread over the donors."""
        donors = sorted(life for life, one in members.items() if one.has_model)
        if not donors or not all(one.lists_me for one in members.values()):
            return False
        self.donor = donors[(crc32(self._me.encode()) + self._turn) % len(donors)]
        self._request += 1
        self._since, self._ask_at, self._wait = now, now, self._timing.resend_first
        return True

    def _fetch(self) -> Effect:
        return Send(self.donor, p.Fetch(self._request, self._me, len(self._pieces)))

    def lost(self, life: str) -> None:
        if life and life == self.donor:
            self.donor, self._first, self._pieces = "", None, []
            self.donors_lost += 1

    @property
    def _is_complete(self) -> bool:
        return self._first is not None and len(self._pieces) >= self._first.pieces

    def piece(self, now: int, sender: str, piece: p.ModelPiece, arrays: Arrays) -> list[Effect]:
        asked = sender == self.donor and (piece.request, piece.piece) == (self._request, len(self._pieces))
        if not asked or self._is_complete or piece.pieces <= piece.piece:
            return []
        self._first = self._first or piece
        self._pieces.append(np.array(arrays[-1] if arrays else (), np.float32))
        self._since, self._wait = now, self._timing.resend_first
        self._ask_at = now + self._wait
        return [] if self._is_complete else [self._fetch()]

    def ready(self, members: Mapping[str, PeerMember]) -> p.Heard | None:
        """The version of the model, if it may be adopted now."""
        first = self._first
        if first is None or not self._is_complete:
            return None
        others = [one.heard for life, one in members.items() if one.has_model and life != self.donor]
        if any(heard.get(origin, 0) < number for heard in others for origin, number in first.heard.items()):
            return None
        self._model = first.state, np.concatenate(self._pieces)
        self._first, self._pieces = None, []
        return first.heard


class SnapshotServer:
    """Serves snapshots of our model; each stays until its receiver asks for a newer one."""

    def __init__(self, most: int = limits.PEERS) -> None:
        self._most = most  # receivers that are served at the same time
        # By receiver: its newest request, and the log, model and version for it.
        self._requests: dict[str, tuple[int, tuple[bytes, Array, p.Heard] | None]] = {}

    @property
    def waiting(self) -> list[str]:
        """The receivers that wait for a snapshot: make one, and ``give`` it."""
        return [to for to, (_, snapshot) in self._requests.items() if snapshot is None]

    def fetch(self, to: str, request: int, piece: int) -> list[Effect]:
        newest, snapshot = self._requests.get(to, (0, None))
        if piece == 0 and newest < request and self._has_room(to):
            self._requests[to] = newest, snapshot = request, None  # it starts again
        return [_piece(to, request, piece, *snapshot)] if snapshot is not None and request == newest else []

    def _has_room(self, to: str) -> bool:
        served = [one for one, (_, snapshot) in self._requests.items() if snapshot is not None]
        if to not in self._requests and len(self._requests) >= self._most and served:
            self.done(served[0])
        return to in self._requests or len(self._requests) < self._most

    def give(self, to: str, state: bytes, slab: Array, version: p.Heard) -> list[Effect]:
        if to not in self._requests:
            return []
        request, snapshot = self._requests[to][0], (state, slab.reshape(-1), dict(version))
        self._requests[to] = request, snapshot
        return [_piece(to, request, 0, *snapshot)]

    def done(self, to: str) -> None:
        self._requests.pop(to, None)


class ObserverAnswers:
    """Answers observers: the weights of the last and the best evaluation, and whole snapshots."""

    def __init__(self) -> None:
        self.snapshots = SnapshotServer(_OBSERVERS)
        self._weights: dict[int, Array] = {}  # by evaluation
        self._best = -1

    def keep(self, number: int, weights: Array) -> None:
        """Evaluation ``number`` is running on these weights."""
        self._weights[number] = np.ascontiguousarray(weights, np.float32).reshape(-1)

    def evaluated(self, number: int, best: bool) -> None:
        self._best = number if best else self._best
        self._weights = {one: weights for one, weights in self._weights.items() if one in (number, self._best)}

    def weigh(self, sender: str, request: p.Weigh) -> list[Effect]:
        if request.whole:
            return self.snapshots.fetch(sender, request.request, request.piece)
        weights = self._weights.get(request.number)
        if weights is None:
            return [Send(sender, p.ModelPiece(request.request, 0, 0))]
        return [_piece(sender, request.request, request.piece, b"", weights, {})]


def _piece(to: str, request: int, number: int, state: bytes, flat: Array, version: p.Heard) -> Effect:
    pieces = max(1, -(-flat.size // _FLOATS))
    message = p.ModelPiece(request, number, pieces) if number else p.ModelPiece(request, 0, pieces, version, state)
    return Send(to, message, (flat[number * _FLOATS : (number + 1) * _FLOATS],))
