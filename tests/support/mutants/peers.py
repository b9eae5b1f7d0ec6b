"""Broken variants of the mesh. Each must be caught within the seeds of a normal test run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from shoal.strategies.peers.broadcast import Broadcast, Delivery, SentMessage
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.model_transfer import Newcomer, PeerMember, SnapshotServer
from shoal.wire.effects import Effect
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Array, Arrays
from tests.support.mutants.patches import Mutants

MUTANTS = Mutants()
mutant = MUTANTS.add


@mutant
def words_heard_again() -> Any:
    """A message that comes again is delivered again."""
    real = Broadcast.take

    def take(self: Broadcast, now: int, delivery: Delivery, wait: bool = False) -> None:
        if not wait and delivery.number <= self.heard.get(delivery.origin, 0):
            self._ready.append(delivery)
        real(self, now, delivery, wait)

    return mock.patch.object(Broadcast, "take", take)


@mutant
def nothing_handed_on() -> Any:
    """Messages of a lost peer are not relayed."""
    real = Broadcast.lacking

    def lacking(self: Broadcast, theirs: Mapping[str, int]) -> Iterator[SentMessage]:
        first = next(iter(self.heard), "")  # a founder's own incarnation
        return (one for one in real(self, theirs) if one.delivery.origin == first)

    return mock.patch.object(Broadcast, "lacking", lacking)


@mutant
def copied_before_entered() -> Any:
    """A joining peer copies a model before all others keep messages for it."""
    real = Newcomer._choose

    def choose(self: Newcomer, now: int, members: Mapping[str, PeerMember]) -> bool:
        return real(self, now, {life: one for life, one in members.items() if one.lists_me})

    return mock.patch.object(Newcomer, "_choose", choose)


@mutant
def nothing_kept_for_newcomers() -> Any:
    """Messages that all peers with a model have received are dropped."""

    def others(self: Mesh) -> list[dict[str, int]]:
        return [one.heard for one in self.members.values() if one.has_model]

    return mock.patch.object(Mesh, "_others", property(others))


@mutant
def version_off_by_one() -> Any:
    """A donor claims one message more than is in its copy."""
    real = SnapshotServer.give

    def give(self: SnapshotServer, life: str, state: bytes, slab: Array, version: p.Heard) -> list[Effect]:
        last = next(reversed(version), "")
        return real(self, life, state, slab, {one: number + (one == last) for one, number in version.items()})

    return mock.patch.object(SnapshotServer, "give", give)


@mutant
def taken_from_the_dead() -> Any:
    """Messages from a peer that is gone are accepted."""
    real = Mesh._on_relay

    def heard(self: Mesh, now: int, sender: str, said: p.Relay, arrays: Arrays) -> list[Effect]:
        if sender in self.gone and self.has_model:
            self.broadcast.take(now, Delivery(said.origin, said.number, said.word, arrays))
        return real(self, now, sender, said, arrays)

    return mock.patch.object(Mesh, "_on_relay", heard)


@mutant
def closed_at_once() -> Any:
    """A lost peer is closed at once, though others may have received more of its messages."""
    return mock.patch.object(Mesh, "is_closed", lambda self, life: life in self.gone)


@mutant
def early_words_of_the_dead() -> Any:
    """Early messages of a lost peer are delivered when the gap is filled."""
    return mock.patch.object(Broadcast, "drop_early", lambda self, origin: None)


@mutant
def adopted_at_once() -> Any:
    """A joining peer adopts its copy before the others have received all that is in it."""
    real = Newcomer.ready

    def ready(self: Newcomer, members: Mapping[str, PeerMember]) -> p.Heard | None:
        return real(self, {})

    return mock.patch.object(Newcomer, "ready", ready)


@mutant
def halves_that_never_call() -> Any:
    """Silent peers are never called."""
    return mock.patch.object(Mesh, "_call_lost", lambda self, now: [])


@mutant
def no_half_gives_way() -> Any:
    """After a network partition no half gives way."""

    return mock.patch("shoal.strategies.peers.mesh.gives_way", lambda me, ours, beat, over: False)
