"""How a newcomer gets a model that misses nothing: it is entered by all, then it copies, then it hears what followed.

    greet     any peer, which answers with who is here
    enter     its beats go to all of them, until each has answered with a beat that lists it: from then on each keeps for it what it hears
    fetch     a model from one of them, piece by piece, with the version of the moment at which it was cut; newcomers choose different ones
    adopt     once everybody else has heard all that is in it: a word that only the donor and we knew would be lost to the others if
              the donor died, for we have its effect, not the word. If the donor is gone before that, another one is asked

``Newcomer`` is the side that comes, ``Donor`` the side that gives. Neither knows who is here: the mesh tells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol
from zlib import crc32

import numpy as np

from shoal import limits
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Connect, Effect, Send
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Array, Arrays

_FLOATS = limits.PIECE_BYTES // 4  # in one piece


class DonorState(Protocol):
    """A member, as a newcomer sees it."""

    peer: p.Peer
    filled: bool
    lists_me: bool
    heard: dict[str, int]


class Newcomer:
    """One that has no model yet."""

    def __init__(self, through: list[tuple[str, str]], timing: TimingSettings = DEFAULT) -> None:
        self._timing = timing
        self.donor = ""
        self.donors_lost = 0
        self._through, self._turn, self._answered = through, 0, False
        self._request = 0
        self._ask_at, self._wait = 0, self._timing.resend_first
        self._since = 0  # when the donor last gave something
        self._pieces: list[Array] = []
        self._left = -1  # pieces to come; -1: the first one has not come
        self._version: dict[str, int] = {}
        self._state = b""
        self._given: tuple[bytes, Array] | None = None

    def take(self) -> tuple[bytes, Array] | None:
        """The model, once."""
        given, self._given = self._given, None
        return given

    # ------------------------------------------------------------ asking

    def tick(self, now: int, me: str, members: Mapping[str, DonorState]) -> list[Effect]:
        if not self._answered or not members:
            return self._greet(now)
        if self._left == 0:
            return []  # whole: it is adopted when the others have heard what is in it
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
        if self._turn % len(self._through) == 0:  # nobody has answered
            self._wait = min(2 * self._wait, self._timing.resend_most)
        called: list[Effect] = [Connect(name, address)] if address else []
        return [*called, Send(name, p.Greet(self._turn))]

    def answered(self) -> list[Effect]:
        self._answered, self._turn = True, 0
        self._ask_at, self._wait = 0, self._timing.resend_first
        # Calls go by the names of lives from now on.
        return [Connect(name, "") for name, address in self._through if address]

    def _choose(self, now: int, me: str, members: Mapping[str, DonorState]) -> bool:
        """Whom to fetch from: only when all have entered us, and not all newcomers from the same."""
        filled = sorted(life for life, one in members.items() if one.filled)
        if not filled or not all(one.lists_me for one in members.values()):
            return False
        self.donor = filled[(crc32(me.encode()) + self._turn) % len(filled)]
        self._request += 1
        self._since = self._ask_at = now
        self._wait = self._timing.resend_first
        return True

    def _fetch(self, me: str) -> Effect:
        return Send(self.donor, p.Fetch(self._request, me, len(self._pieces)))

    def lost(self, life: str) -> None:
        """If this one was to give us the model: begin anew with another."""
        if life and life == self.donor:
            self.donor, self._left = "", -1
            self._pieces, self._version, self._state = [], {}, b""
            self.donors_lost += 1

    # ------------------------------------------------------------ getting

    def piece(self, now: int, me: str, sender: str, piece: p.ModelPiece, arrays: Arrays) -> list[Effect]:
        expected = sender == self.donor and piece.request == self._request and piece.piece == len(self._pieces)
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

    def ready(self, members: Mapping[str, DonorState]) -> p.Heard | None:
        """The version of the model that may be adopted now."""
        if self._left != 0:
            return None
        for life, one in members.items():
            behind = any(one.heard.get(origin, 0) < number for origin, number in self._version.items())
            if one.filled and life != self.donor and behind:
                return None
        self._given = self._state, np.concatenate(self._pieces)
        version, self._version, self._pieces, self._state = self._version, {}, [], b""
        return version


class ModelNumbers:
    """For those who come: each gets another one, also when the one before has not been entered by anybody yet."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def give(self, to: str, taken: Iterable[int]) -> int:
        if to not in self._given:
            self._given[to] = 1 + max([*taken, *self._given.values()], default=-1)
            for old in list(self._given)[: -limits.PEERS]:
                del self._given[old]
        return self._given[to]


class Donor:
    """One that is asked for its model: what was cut for each newcomer is kept until that has it."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}  # by life: the request
        self._cut: dict[str, tuple[int, bytes, Array, p.Heard]] = {}

    @property
    def wanted(self) -> list[str]:
        return [life for life in self._asked if life not in self._cut]

    def fetch(self, fetch: p.Fetch) -> list[Effect]:
        if self._asked.get(fetch.life, 0) < fetch.request:
            self._cut.pop(fetch.life, None)  # it asked somebody else meanwhile, and begins anew
            self._asked[fetch.life] = fetch.request
        if fetch.life not in self._cut or fetch.request != self._asked[fetch.life]:
            return []
        return [self._piece(fetch.life, fetch.piece)]

    def hand(self, life: str, state: bytes, slab: Array, version: p.Heard) -> list[Effect]:
        if life not in self._asked:
            return []
        self._cut[life] = self._asked[life], state, slab.reshape(-1), dict(version)
        return [self._piece(life, 0)]

    def _piece(self, life: str, number: int) -> Effect:
        request, state, flat, version = self._cut[life]
        pieces = max(1, -(-flat.size // _FLOATS))
        first = number == 0
        message = p.ModelPiece(request, number, pieces, version if first else {}, state if first else b"")
        return Send(life, message, (flat[number * _FLOATS : (number + 1) * _FLOATS],))

    def done(self, life: str) -> None:
        """It has what it needs, or is gone."""
        self._asked.pop(life, None)
        self._cut.pop(life, None)
