"""Weights that have owners: what is learned goes to the owner of its keys, who adds up what comes and tells all (S4-10).

    contribution    what a peer learned between two times that it tells, numbered. It goes to every owner, empty if need be, and is sent
                    again until the owner has told that it is in: so nothing that i learns about a third one's part is lost
    owned           an owner's word: what came for its parts, and of each peer up to which contribution. Its effect is the same everywhere,
                    at the contributor as well, which had it from the start and takes its own part of it out again
                    It is heard after the words of those peers (``Mesh.say``), so all who have it know which slots are in it
    owners          change when somebody comes or goes. Whoever owned before tells what it has, yields, and takes nothing more;
                    a new owner begins when all of them have yielded or are closed, from exactly what they told

Contributions of one peer are added in their order, each once. Nothing here sends, sleeps or reads the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shoal import limits
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.replica import Change
from shoal.strategies.peers.run_log import RunLog
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Array, Arrays

FLUSH = (
    100 * limits.MILLISECOND
)  # an owner gathers for so long before it tells, or until one of each that is here has come
OPEN = 16  # contributions on their way; then what is learned is added to the next


@dataclass(slots=True)
class UnconfirmedShare:
    """A contribution that is not in every part yet."""

    number: int
    change: Change
    cuts: list[int]  # where each part begins in it
    at: int = 0  # when it was sent last, and with which owners
    version: int = -1
    wait: int = 0


@dataclass(slots=True)
class GatheredShares:
    """What came for an owner's parts, and was not told yet."""

    since: int = -1
    came: int = 0  # contributions
    changes: list[Change] = field(default_factory=list)
    parts: dict[int, dict[str, int]] = field(default_factory=dict)


class Ownership:
    """One peer's part in it: as a contributor, and as an owner."""

    def __init__(self, me: str, parts: int, keys: int, timing: TimingSettings = DEFAULT) -> None:
        self._me, self._parts, self._timing = me, parts, timing
        self._bounds = np.array([-(-part * keys // parts) for part in range(parts + 1)], np.uint64)
        self._number = 0
        self._sent: dict[int, UnconfirmedShare] = {}
        self._mine = [0] * parts  # by part: up to which contribution of ours it is in what all have
        self._begun = 0  # the version of the owners with which we began to take what comes
        self._has: list[dict[str, int]] = [{} for _ in range(parts)]  # as an owner: up to which contribution of each
        self._early: dict[
            str, dict[int, tuple[p.OwnedShare, Arrays]]
        ] = {}  # came before what goes before them, or before we began
        self._gathered = GatheredShares()
        self._yielded = 0

    # ------------------------------------------------------------ who owns what

    def choose(self, book: RunLog, living: Sequence[str]) -> p.OwnersChanged | None:
        """The one that leads: others than those who own now, or nothing."""
        known = [] if book.owners is None else [*book.owners.lives, *book.owners.others]
        if not living or sorted(set(known)) == sorted(living):
            return None
        lives = [living[part * len(living) // self._parts] for part in range(self._parts)]
        version = 1 if book.owners is None else book.owners.version + 1
        return p.OwnersChanged(version, lives, [life for life in living if life not in lives])

    def is_closed(self, life: str, book: RunLog, living: Sequence[str]) -> bool:
        """Of one that is gone: nothing of it can come into any part any more."""
        owners = book.owners
        if owners is None or life not in book.since:
            return True
        if life in owners.lives or life in owners.others:
            return False
        return all(book.yielded.get(one, 0) >= owners.version for one in living if one in book.since)

    def _begins(self, book: RunLog, mesh: Mesh) -> bool:
        """All that owned before have told all they had."""
        owners = book.owners
        if owners is None:
            return False
        before = [life for life, version in book.since.items() if version < owners.version]
        return all(book.yielded.get(life, 0) >= owners.version or mesh.is_closed(life) for life in before)

    # ------------------------------------------------------------ contributing

    @property
    def is_settled(self) -> bool:
        """All that we contributed is in what all have."""
        return not self._sent

    @property
    def may_contribute(self) -> bool:
        return len(self._sent) < OPEN

    def contribute(self, change: Change) -> int:
        """What was learned; its number."""
        self._number += 1
        cuts = np.searchsorted(change[0], self._bounds).tolist()
        self._sent[self._number] = UnconfirmedShare(self._number, change, cuts)
        return self._number

    def send(self, now: int, book: RunLog) -> list[Effect]:
        """What owners have not told to be in, at first and again after a while; to new owners at once."""
        owners = book.owners
        if owners is None:
            return []
        effects: list[Effect] = []
        for sent in self._sent.values():
            if sent.version == owners.version and now - sent.at < sent.wait:
                continue
            first, most = self._timing.resend_first, self._timing.resend_most
            sent.wait = first if sent.version != owners.version else min(2 * sent.wait, most)
            sent.at, sent.version = now, owners.version
            for owner, parts in self._lacking(sent.number, owners):
                message = p.OwnedShare(self._me, sent.number, owners.version, parts)
                arrays = _cut(sent, parts)
                if owner == self._me:
                    self.share(now, message, arrays, book)
                else:
                    effects.append(Send(owner, message, arrays))
        return effects

    def _lacking(self, number: int, owners: p.OwnersChanged) -> Iterator[tuple[str, list[int]]]:
        found: dict[str, list[int]] = {}
        for part, owner in enumerate(owners.lives):
            if self._mine[part] < number:
                found.setdefault(owner, []).append(part)
        yield from found.items()

    def owned(self, word: p.Owned, change: Change) -> list[Change]:
        """What this changes in our weights: all of it, less what of it is our own and was there before."""
        changes = [change] if len(change[0]) else []
        mine = [(part, upto[self._me]) for part, upto in word.parts if upto.get(self._me, 0) > self._mine[part]]
        for (before, upto), parts in _alike([(part, (self._mine[part], upto)) for part, upto in mine]):
            for sent in self._sent.values():
                if before < sent.number <= upto:
                    keys, values = _cut(sent, parts)
                    changes += [(keys, -values)] if len(keys) else []
        for part, upto in mine:
            self._mine[part] = upto
        least = min(self._mine)
        for number in [one for one in self._sent if one <= least]:
            del self._sent[number]
        return changes

    def pending(self) -> list[Change]:
        """What is in our weights and not in what all have."""
        found: list[Change] = []
        for sent in self._sent.values():
            lacking = [part for part in range(self._parts) if self._mine[part] < sent.number]
            found += [_cut(sent, parts) for _, parts in _alike([(part, (0, 0)) for part in lacking])]
        return [change for change in found if len(change[0])]

    # ------------------------------------------------------------ owning

    def share(self, now: int, share: p.OwnedShare, arrays: Arrays, book: RunLog) -> None:
        """A contribution came. What is not the next one of its peer waits, or comes again."""
        if len(arrays) != 2 or len(arrays[0]) != len(arrays[1]) or share.version < self._yielded:
            return
        early = self._early.setdefault(share.life, {})
        if len(early) < 2 * OPEN:
            early[share.number] = (share, arrays)
        self._take_early(now, share.life, book)

    def _take_early(self, now: int, life: str, book: RunLog) -> None:
        """Nothing of which we have not heard that it was learned: of one that dies then, nobody would know what is in the weights."""
        owners = book.owners
        if owners is None or owners.version != self._begun or life not in (*owners.lives, *owners.others):
            return
        early = self._early.get(life, {})
        for number in sorted(number for number in early if number <= book.told.get(life, 0)):
            share, (keys, values) = early[number]
            mine = [part for part in share.parts if part < self._parts and owners.lives[part] == self._me]
            if share.version == owners.version:
                self._gather(now, life, number, mine, keys, values)
            if share.version < owners.version or all(self._has[part].get(life, 0) >= number for part in mine):
                del early[number]

    def _gather(self, now: int, life: str, number: int, mine: Sequence[int], keys: Array, values: Array) -> None:
        fresh = [part for part in mine if self._has[part].get(life, 0) == number - 1]
        if not fresh:
            return
        cuts = np.searchsorted(keys, self._bounds).tolist()
        gathered = self._gathered
        gathered.since = now if gathered.since < 0 else gathered.since
        gathered.came += 1
        for part in fresh:
            self._has[part][life] = number
            gathered.parts.setdefault(part, {})[life] = number
        for _, parts in _alike([(part, (0, 0)) for part in fresh]):
            first, stop = cuts[parts[0]], cuts[parts[-1] + 1]
            if first < stop:
                gathered.changes.append((keys[first:stop], values[first:stop]))

    def words(self, now: int, book: RunLog, mesh: Mesh, hurry: bool) -> list[tuple[p.Word, Arrays]]:
        """What there is to be told as an owner."""
        found: list[tuple[p.Word, Arrays]] = []
        gathered, owners = self._gathered, book.owners
        yields = owners is not None and owners.version > self._yielded
        full = gathered.came >= len(mesh.living)
        ripe = gathered.since >= 0 and (now - gathered.since >= FLUSH or full or hurry) and mesh.may_say
        if gathered.since >= 0 and (yields or ripe):
            self._gathered = GatheredShares()
            found.append((p.Owned(sorted(gathered.parts.items())), _added(gathered.changes)))
        if yields and owners is not None:
            self._yielded, self._begun = owners.version, 0
            if self._me in book.since:
                found.append((p.Yielded(owners.version), ()))
        return found

    def begin(self, now: int, book: RunLog, mesh: Mesh) -> None:
        """Take what comes, if we own something now and all who owned before have told what they had."""
        owners = book.owners
        if owners is not None and self._begun < owners.version == self._yielded and self._begins(book, mesh):
            self._begun = owners.version
            self._has = [dict(part) for part in book.included]
        for life in [life for life, early in self._early.items() if early or life in mesh.gone]:
            if life in mesh.gone:
                del self._early[life]
            else:
                self._take_early(now, life, book)

    def wake_at(self, now: int, may_say: bool) -> int:
        """When there is something to be sent or told."""
        times = [sent.at + sent.wait for sent in self._sent.values() if sent.version >= 0]
        if self._gathered.since >= 0 and may_say:  # otherwise what is heard of the others is waited for
            times.append(self._gathered.since + FLUSH)
        return min(times, default=now + limits.SECOND)


def _alike(found: Sequence[tuple[int, tuple[int, int]]]) -> list[tuple[tuple[int, int], list[int]]]:
    """Parts that lie next to each other and have the same to them: they are one piece of a change."""
    pieces: list[tuple[tuple[int, int], list[int]]] = []
    for part, what in found:
        if pieces and pieces[-1][0] == what and pieces[-1][1][-1] == part - 1:
            pieces[-1][1].append(part)
        else:
            pieces.append((what, [part]))
    return pieces


def _cut(sent: UnconfirmedShare, parts: Sequence[int]) -> Change:
    """Those keys of a contribution that are in these parts."""
    keys, values = sent.change
    runs = [one for _, one in _alike([(part, (0, 0)) for part in parts])]
    if len(runs) == 1:
        piece = slice(sent.cuts[runs[0][0]], sent.cuts[runs[0][-1] + 1])
        return keys[piece], values[piece]
    pieces = [slice(sent.cuts[run[0]], sent.cuts[run[-1] + 1]) for run in runs]
    return np.concatenate([keys[piece] for piece in pieces]), np.concatenate([values[piece] for piece in pieces])


def _added(changes: Sequence[Change]) -> Change:
    """All of these in one: the keys in order, each once."""
    if not changes:
        return np.empty(0, np.uint64), np.empty(0, np.float32)
    if len(changes) == 1:
        return changes[0]
    keys, places = np.unique(np.concatenate([keys for keys, _ in changes]), return_inverse=True)
    values = np.bincount(places, np.concatenate([values for _, values in changes]), len(keys))
    return keys, values.astype(np.float32)
