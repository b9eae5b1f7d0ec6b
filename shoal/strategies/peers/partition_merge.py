"""Peers that were cut off from each other, each half holding the other for gone: they find each other again, and one half gives way.

Whoever fell silent is called now and then, for as long as a cut may last; whoever is gone and speaks is told so. When two halves
meet, the smaller one gives way, and of two that are equal the one without the first of all: both come to the same answer, each from
the other's beat alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.timing import DEFAULT
from shoal.wire.effects import Connect, Effect, Send
from shoal.wire.messages import peers as p

SILENT = "silent"  # how it begins when somebody is held for gone because nothing came
SMALLER = "of the smaller half"


def is_over(why: str | None) -> bool:
    """Gone for this reason (None: not at all) means that it left, failed or ended, and not that it may be somewhere else."""
    return why is not None and not why.startswith((SILENT, SMALLER))


def rank(peer: p.Peer) -> tuple[int, str]:
    """The first of all leads."""
    return peer.number, peer.life


def gives_way(me: p.Peer, ours: Sequence[p.Peer], beat: p.Beat, over: Collection[str] = ()) -> bool:
    """We do, to the half of whoever sent this. Those count who have a model, and whom only one of the two has for its own; not who is ``over``."""
    if not beat.filled:
        return False  # it knows of others at second hand: whoever is there will speak for itself
    lives = [one.life for one in beat.peers if one.life not in beat.new]
    known = [one.life for one in ours]
    others = [one for one in beat.peers if one.life in lives and one.life not in (me.life, beat.me.life, *known, *over)]
    theirs = [beat.me, *others]
    rest = [one for one in ours if one.life not in (beat.me.life, *lives)]
    return _weight(theirs) > _weight([me, *rest])


def _weight(side: Sequence[p.Peer]) -> tuple[int, int, str]:
    first = min(side, key=rank)
    return len(side), -first.number, first.life


class PartitionMerge:
    """Those who are gone and may be there still, as one peer knows them."""

    def __init__(self, called: int = DEFAULT.called) -> None:
        """``called``: so long one that fell silent is called."""
        self._called = called
        self._lost: dict[str, tuple[p.Peer, int]] = {}  # where they were, and until when they are called
        self._told: dict[str, int] = {}  # when they were last told that they are gone
        self._claims: dict[str, int] = {}  # since when others say that they go on without us
        self._next = 0

    @property
    def lost(self) -> list[p.Peer]:
        return [peer for peer, _ in self._lost.values()]

    def lose(self, now: int, peer: p.Peer) -> Effect:
        """It may be cut off: call it now and then."""
        self._lost[peer.life] = (peer, now + self._called)
        return Connect(peer.life, peer.address, mutual=True)

    def call(self, now: int, pause: int, beat: p.Beat) -> list[Effect]:
        """Two halves that never speak would go on as two runs."""
        if now < self._next:
            return []
        self._next = now + pause
        over = [life for life, (_, until) in self._lost.items() if now > until]
        for life in over:
            del self._lost[life]
        return [*(Connect(life, "") for life in over), *(Send(life, beat) for life in self._lost)]

    def is_sure(self, now: int, life: str, pause: int) -> bool:
        """It says again, a while later, that it goes on without us: what comes all at once when one wakes up may be of somebody who is
        dead by now."""
        return now - self._claims.setdefault(life, now) >= pause

    def tell(self, now: int, life: str, pause: int, beat: p.Beat) -> list[Effect]:
        """One that is gone speaks: it must know, but need not be told each time."""
        if now - self._told.get(life, now - pause) < pause:
            return []
        self._told[life] = now
        return [Send(life, beat)]
