"""The other peers, as far as one of them knows, and what follows from what they have told.

What a life has heard, and whom it holds for gone, only grows: so what it told last is never taken back, whatever comes late.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal import limits
from shoal.errors import Invalid
from shoal.security.address import check_address
from shoal.strategies.peers.partition_merge import rank
from shoal.wire.messages import peers as p


@dataclass(slots=True)
class PeerMember:
    """Another peer."""

    peer: p.Peer
    since: int  # when it was last heard
    filled: bool = False  # it has a model
    met: bool = False  # heard at all
    lists_me: bool = False  # it has entered us
    knows: bool = False  # it has told that it knows us to have a model
    patient: bool = False  # a founder: its process may take a while to begin
    heard: dict[str, int] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    copied: Mapping[str, int] = field(default_factory=dict)  # heard as part of a copy: it cannot hand these on

    def learn(self, heard: Mapping[str, int]) -> None:
        for life, number in heard.items():
            if number > self.heard.get(life, 0):
                self.heard[life] = number


@dataclass(slots=True, frozen=True)
class RunInfo:
    """What a newcomer must know of the run before it begins."""

    job: str = ""
    rows: int = 0
    features: int = 0


Members = dict[str, PeerMember]
Told = Collection[tuple[Mapping[str, int], Mapping[str, int]]]  # what each has heard, and what of that it only copied


def can_be(peer: p.Peer) -> bool:
    """It has a name, and lives on this machine."""
    try:
        check_address(peer.address)
    except Invalid:
        return False
    return 0 < len(peer.life) <= limits.PEER_NAME and 0 < len(peer.name) <= limits.PEER_NAME


def have_heard(members: Members, ours: Mapping[str, int]) -> bool:
    """Everybody has heard just what we have."""
    for one in members.values():
        if any(one.heard.get(life, 0) < number for life, number in ours.items()):
            return False
        if any(number > ours.get(life, 0) for life, number in one.heard.items()):
            return False
    return True


def all_know(members: Members, gone: Collection[str]) -> bool:
    """Of everybody who is gone: who does not could still take from one of them what that one hands on."""
    known = frozenset(gone)
    return all(known <= one.gone for one in members.values())


def is_cut_short(heard: Mapping[str, int], copied: Mapping[str, int], all_told: Told, gone: Collection[str]) -> bool:
    """Who heard only this never hears all that somebody else has copied: who said it is gone, and none can hand it on.

    Two newcomers may copy at different moments, and adopt their copies without knowing of each other. If all die then who had the words
    between the two, one model has them in it and the other never will.
    """
    for origin, number in copied.items():
        known = heard.get(origin, 0)
        able = (theirs.get(origin, 0) > known >= those.get(origin, 0) for theirs, those in all_told)
        if known < number and origin in gone and not any(able):
            return True
    return False


def turn(members: Members, me: p.Peer, gone: Collection[str], origin: str, number: int) -> int:
    """How many waits we let pass before we send this: who said it comes first, then those who have it, one after the other."""
    if origin == me.life:
        return 1
    before = [
        one
        for one in members.values()
        if one.filled and one.heard.get(origin, 0) >= number and rank(one.peer) < rank(me)
    ]
    return len(before) + (0 if origin in gone else 4)
