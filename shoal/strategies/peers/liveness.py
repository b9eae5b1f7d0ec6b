"""How one peer stands among the others: who lives and who leads, what has reached whom. Asked for after every event, and cheap.

All of it follows from what the mesh keeps (``mesh``); nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal import limits
from shoal.strategies.peers.broadcast import Broadcast
from shoal.strategies.peers.members import PeerMember, all_know, have_heard
from shoal.strategies.peers.partition_merge import rank
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.messages import peers as p


class Liveness:
    """What the holder of a mesh may ask."""

    def __init__(self, me: p.Peer, founders: Sequence[p.Peer], timing: TimingSettings = DEFAULT) -> None:
        self.me, self.timing = me, timing
        self.gone: dict[str, str] = {}  # by life, and why; for good
        self.streams = Broadcast()
        self.streams.heard[me.life] = 0
        self.members = {one.life: PeerMember(one, -1, True, patient=True, knows=True) for one in founders if one != me}
        self._filled = True
        self._living: list[p.Peer] | None = None  # if that has not changed
        self._known: tuple[tuple[object, ...], bool] = ((), False)  # all know of all who are gone; as of these

    @property
    def filled(self) -> bool:
        """We have a model."""
        return self._filled

    @property
    def heard(self) -> dict[str, int]:
        """Of each life, our own included, how much we have heard: copy it at the moment at which a model is cut."""
        return self.streams.heard

    @property
    def version(self) -> p.Heard:
        return dict(self.streams.heard)

    @property
    def living(self) -> list[p.Peer]:
        """All that have a model, the one that leads first."""
        if self._living is None:  # asked for after every event, and the same for a long time
            found = [one.peer for one in self.members.values() if one.filled] + ([self.me] if self._filled else [])
            self._living = sorted(found, key=rank)
        return list(self._living)

    @property
    def leads(self) -> str:
        """The life that leads; empty while nobody has a model."""
        living = self.living
        return living[0].life if living else ""

    @property
    def may_begin_to_lead(self) -> bool:
        """Every decision of another lead has been heard: all others know that we have a model, and the words of the dead are complete."""
        for life, one in self.members.items():
            if not one.knows or one.heard.get(life, 0) > self.streams.heard.get(life, 0):
                return False
        return all(map(self.is_closed, self.gone))

    @property
    def is_met(self) -> bool:
        """Everybody that is here has been heard at least once."""
        return all(one.met for one in self.members.values())

    @property
    def may_say(self) -> bool:
        words, size = self.streams.own_unheard(self.me.life, self._others)
        return self._filled and words < limits.PEER_WINDOW and size < limits.PEER_BYTES

    @property
    def unheard(self) -> int:
        """Words of ours that somebody here has not heard."""
        return self.streams.own_unheard(self.me.life, self._others)[0]

    @property
    def is_quiet(self) -> bool:
        """Everybody here has heard all that we know was said, we as well."""
        return have_heard(self.members, self.streams.heard)

    def is_closed(self, life: str) -> bool:
        """Nothing more can come of this one, here or anywhere: all know that it is gone, and nobody has heard more of it than we."""
        heard = self.streams.heard.get(life, 0)
        least = all(one.heard.get(life, 0) <= heard for one in self.members.values())
        return life in self.gone and least and self._all_know()

    def _all_know(self) -> bool:
        # Asked for each that is gone, after every event. What a life knows only grows, so its size says whether that is news.
        sizes = (len(self.gone), *((life, len(one.gone)) for life, one in self.members.items()))
        if sizes != self._known[0]:
            self._known = sizes, all_know(self.members, self.gone)
        return self._known[1]

    @property
    def _others(self) -> list[dict[str, int]]:
        return [one.heard for one in self.members.values()]
