"""Weights with owners: changes go to the owner of their keys, who publishes their sum.

    contribution    what a peer learned between two publications, numbered. It goes to every owner,
                    empty if need be, and is sent again until the owner has published that it is in
    owned           the word of an owner: the sum of what came for its parts and, of each peer, up
                    to which contribution. All peers add the same sum; a contributor, whose weights
                    had its own share from the start, subtracts that share again. It is heard after
                    the words of those peers, so all who have it know the slots in it
    owners          change when a peer joins or is gone. The old owners publish what they have,
                    yield and accept nothing more; a new owner begins when all of them have yielded
                    or are closed, from exactly what they published

Contributions of one peer are added in order, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal import limits
from shoal.strategies.peers.compute import Change
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.run_log import RunLog
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays

# An owner gathers for so long before it publishes, or until it has as many contributions as peers.
FLUSH = 100 * limits.MILLISECOND
OPEN = 16  # contributions on their way; beyond that, what is learned is added to the next


@dataclass(slots=True)
class UnconfirmedShare:
    """A contribution of ours that is not in every part yet."""

    number: int
    change: Change
    cuts: list[int]  # where each part begins in it
    at: int = 0  # when it was last sent, and with which version of the owners
    version: int = -1
    wait: int = 0


@dataclass(slots=True)
class GatheredShares:
    """Contributions to the parts that we own, not published yet."""

    since: int = -1
    changes: list[Change] = field(default_factory=list)
    parts: dict[int, dict[str, int]] = field(default_factory=dict)


class Ownership:
    """One peer, as a contributor and as an owner."""

    def __init__(self, me: str, parts: int, keys: int, timing: TimingSettings = DEFAULT) -> None:
        self._me, self._parts, self._timing = me, parts, timing
        self._bounds = np.array([-(-part * keys // parts) for part in range(parts + 1)], np.uint64)
        self._number = 0
        self.unconfirmed: dict[int, UnconfirmedShare] = {}  # by number; there may be up to OPEN
        self._published = [0] * parts  # by part: up to which contribution of ours is published
        self._active_version = 0  # the owners' version since which we accept contributions
        # As an owner, by part: up to which contribution of each peer we have.
        self._received: list[dict[str, int]] = [{} for _ in range(parts)]
        # Contributions that arrived before their predecessors, or before we began.
        self._early: dict[str, dict[int, tuple[p.OwnedShare, Arrays]]] = {}
        self._gathered = GatheredShares()
        self._yielded_version = 0

    def choose(self, log: RunLog, living: Sequence[str]) -> p.OwnersChanged | None:
        if not living or sorted(set(log.all_owners)) == sorted(living):
            return None
        lives = [living[part * len(living) // self._parts] for part in range(self._parts)]
        version = 1 if log.owners is None else log.owners.version + 1
        return p.OwnersChanged(version, lives, [life for life in living if life not in lives])

    def is_closed(self, life: str, log: RunLog, living: Sequence[str]) -> bool:
        """Nothing more of this life, which is gone, can be added to any part."""
        owners = log.owners
        if owners is None or life not in log.since:
            return True
        yielded = all(log.yielded.get(one, 0) >= owners.version for one in living if one in log.since)
        return yielded and life not in log.all_owners

    def contribute(self, change: Change) -> int:
        self._number += 1
        cuts = np.searchsorted(change[0], self._bounds).tolist()
        self.unconfirmed[self._number] = UnconfirmedShare(self._number, change, cuts)
        return self._number

    def send(self, now: int, log: RunLog) -> list[Effect]:
        owners = log.owners
        if owners is None:
            return []
        effects: list[Effect] = []
        for sent in self.unconfirmed.values():
            again = sent.version == owners.version
            if again and now - sent.at < sent.wait:
                continue
            sent.wait = min(2 * sent.wait, self._timing.resend_most) if again else self._timing.resend_first
            sent.at, sent.version = now, owners.version
            lacking: dict[str, list[int]] = {}
            for part, owner in enumerate(owners.lives):
                if self._published[part] < sent.number:
                    lacking.setdefault(owner, []).append(part)
            for owner, parts in lacking.items():
                message = p.OwnedShare(self._me, sent.number, owners.version, parts)
                arrays = _cut(sent.change, sent.cuts, parts)
                if owner == self._me:
                    self.receive(now, message, arrays, log)
                else:
                    effects.append(Send(owner, message, arrays))
        return effects

    def changes_of(self, word: p.Owned, change: Change) -> list[Change]:
        """What this word changes in our weights: the sum, minus our own share."""
        changes = [change] if len(change[0]) else []
        mine = {part: upto[self._me] for part, upto in word.parts if upto.get(self._me, 0) > self._published[part]}
        for sent in self.unconfirmed.values():
            fresh = [part for part in sorted(mine) if self._published[part] < sent.number <= mine[part]]
            keys, values = _cut(sent.change, sent.cuts, fresh)
            changes += [(keys, -values)] if len(keys) else []
        for part, upto in mine.items():
            self._published[part] = upto
        least = min(self._published)
        for number in [one for one in self.unconfirmed if one <= least]:
            del self.unconfirmed[number]
        return changes

    def pending(self) -> list[Change]:
        """Changes that are in our weights and are not published by their owners."""
        found = []
        for sent in self.unconfirmed.values():
            lacking = [part for part in range(self._parts) if self._published[part] < sent.number]
            found.append(_cut(sent.change, sent.cuts, lacking))
        return [change for change in found if len(change[0])]

    def receive(self, now: int, share: p.OwnedShare, arrays: Arrays, log: RunLog) -> None:
        """A contribution arrived; it waits until those before it have arrived."""
        if len(arrays) != 2 or len(arrays[0]) != len(arrays[1]) or share.version < self._yielded_version:
            return
        early = self._early.setdefault(share.life, {})
        if len(early) < 2 * OPEN:
            early[share.number] = (share, arrays)
        self._accept_early(now, share.life, log)

    def _accept_early(self, now: int, life: str, log: RunLog) -> None:
        """Accept contributions that were announced, or nobody would know their slots."""
        owners = log.owners
        if owners is None or owners.version != self._active_version or life not in log.all_owners:
            return
        early, gathered = self._early.get(life, {}), self._gathered
        for number in sorted(number for number in early if number <= log.told.get(life, 0)):
            share, (keys, values) = early[number]
            mine = [part for part in share.parts if part < self._parts and owners.lives[part] == self._me]
            fresh = [part for part in mine if self._received[part].get(life, 0) == number - 1]
            if share.version == owners.version and fresh:
                gathered.since = now if gathered.since < 0 else gathered.since
                for part in fresh:
                    self._received[part][life] = number
                    gathered.parts.setdefault(part, {})[life] = number
                cuts = np.searchsorted(keys, self._bounds).tolist()
                gathered.changes.append(_cut((keys, values), cuts, sorted(fresh)))
            if share.version < owners.version or all(self._received[part].get(life, 0) >= number for part in mine):
                del early[number]

    def words(self, now: int, log: RunLog, mesh: Mesh, hurry: bool) -> list[tuple[p.Word, Arrays]]:
        found: list[tuple[p.Word, Arrays]] = []
        gathered, owners = self._gathered, log.owners
        yields = owners is not None and owners.version > self._yielded_version
        full = len(gathered.changes) >= len(mesh.living)
        ripe = gathered.since >= 0 and (now - gathered.since >= FLUSH or full or hurry) and mesh.may_publish
        if gathered.since >= 0 and (yields or ripe):
            self._gathered = GatheredShares()
            found.append((p.Owned(sorted(gathered.parts.items())), _sum(gathered.changes)))
        if yields and owners is not None:
            self._yielded_version, self._active_version = owners.version, 0
            if self._me in log.since:
                found.append((p.Yielded(owners.version), ()))
        return found

    def begin(self, now: int, log: RunLog, mesh: Mesh) -> None:
        """Begin to accept contributions once all earlier owners have published what they had."""
        owners = log.owners
        if owners is not None and self._active_version < owners.version == self._yielded_version:
            before = [life for life, version in log.since.items() if version < owners.version]
            if all(log.yielded.get(life, 0) >= owners.version or mesh.is_closed(life) for life in before):
                self._active_version = owners.version
                self._received = [dict(part) for part in log.included]
        self._early = {life: early for life, early in self._early.items() if early and life not in mesh.gone}
        for life in self._early:
            self._accept_early(now, life, log)

    def wake_at(self, now: int, may_publish: bool) -> int:
        times = [sent.at + sent.wait for sent in self.unconfirmed.values() if sent.version >= 0]
        if self._gathered.since >= 0 and may_publish:
            times.append(self._gathered.since + FLUSH)
        return min(times, default=now + limits.SECOND)


def _cut(change: Change, cuts: Sequence[int], parts: Sequence[int]) -> Change:
    """What of a change belongs to these parts of the weights; each begins at its cut."""
    slices = [slice(cuts[part], cuts[part + 1]) for part in parts]
    parts_of = [np.concatenate([array[:0], *(array[one] for one in slices)]) for array in change]
    return parts_of[0], parts_of[1]


def _sum(changes: Sequence[Change]) -> Change:
    """The sum of these changes: the keys in order, each once."""
    keys, places = np.unique(np.concatenate([keys for keys, _ in changes]), return_inverse=True)
    values = np.bincount(places, np.concatenate([values for _, values in changes]), len(keys))
    return keys, values.astype(np.float32)
