"""Membership and reliable broadcast among peers, without a server.

Each peer periodically sends all others a beat: what it has heard, who is a member and who is gone.
Everything else follows from beats:

    publish   a word goes to all peers. It is retained until all have heard it, and resent to those
              that lack it
    relay     peers resend the words of a peer that is gone: all living peers hear them, or none
    gone      is final, and is repeated in every beat. Nothing more is accepted from that life. It
              is *closed* once every living peer knows all lives that are gone, and none has heard
              more of it than we have: then nothing more of it can arrive
    evicted   the others consider us gone although we live: this life is over. After a network
              partition the peers of the smaller half are evicted and rejoin as new lives

A newcomer is entered by all before it copies a model (``model_transfer``), so all keep for it the
words that the copy lacks. No rule needs clocks that agree, or an order between words of different
peers. Nothing here sends, sleeps, reads the time or draws random numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from shoal import limits
from shoal.errors import Invalid
from shoal.security.address import check_address
from shoal.strategies.peers.broadcast import Broadcast, Delivery
from shoal.strategies.peers.model_transfer import Newcomer, PeerMember, SnapshotServer
from shoal.strategies.peers.run_log import MessageCheck
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Connect, Effect, Event, Received, Send, Tick
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Array, Arrays

# Words of each other peer that we may hear before we confirm them: nobody is a window ahead.
_UNCONFIRMED = limits.PEER_WINDOW // 4
SILENT = "silent"  # how the reason begins when a peer was not heard from
SMALLER = "of the smaller half"
CUT_SHORT = "it lacks messages that no peer can relay any more"


class Mesh:
    """One peer's view of the mesh. Its owner passes events in and carries the effects out."""

    def __init__(
        self,
        me: p.Peer,
        founders: Sequence[p.Peer] = (),
        *,
        through: Sequence[tuple[str, str]] | None = None,  # a newcomer asks these (name, address)
        about: tuple[str, int, int] = ("", 0, 0),  # the job, and the rows and features of its data
        timing: TimingSettings = DEFAULT,
    ) -> None:
        self.me, self.timing, self._about = me, timing, about
        self.check: MessageCheck | None = None  # refuses invalid words; None: all are accepted
        self.evicted = ""  # why this life is over
        self.contacts: list[p.Peer] = []  # to rejoin
        self.gone: dict[str, str] = {}  # by life, and why; for good
        self.counts: Counter[str] = Counter()
        self.broadcast = Broadcast()
        self.heard[me.life] = 0
        self.members = {one.life: PeerMember(one, -1, True, patient=True, knows=True) for one in founders if one != me}
        self.greeting: p.PeerGreeting | None = None  # what a newcomer was answered
        self.newcomer = Newcomer(me.life, list(through or ()), timing)
        self.has_model = through is None
        self.donor, self._is_leaving = SnapshotServer(), False
        self._assigned_numbers: dict[str, int] = {}  # to newcomers, by their token
        self._beat, self._dead_after = timing.heartbeat, timing.dead
        self.started_at = self._last_event = self._woke_at = -1
        self._next_beat = self._next_check = self._next_call = self._confirmed_at = 0
        self._answered_at = 0  # when a newcomer was answered
        self._unconfirmed = 0  # words that arrived since we last said what we have heard
        self._lost: dict[str, tuple[p.Peer, int]] = {}  # and until when we call them
        self._notified_at: dict[str, int] = {}  # when lives that are gone were last told so
        self._claims: dict[str, int] = {}  # since when lives say that they go on without us

    @property
    def heard(self) -> dict[str, int]:
        """By life, our own included: how many of its words we have heard."""
        return self.broadcast.heard

    @property
    def living(self) -> list[p.Peer]:
        """All peers that have a model; the first one leads."""
        found = [one.peer for one in self.members.values() if one.has_model]
        return sorted(found + ([self.me] if self.has_model else []), key=rank)

    @property
    def leads(self) -> str:
        return next((one.life for one in self.living), "")

    @property
    def may_begin_to_lead(self) -> bool:
        """Have we heard every decision that another leader made, or may still make?"""
        heard = all(one.heard.get(life, 0) <= self.heard.get(life, 0) for life, one in self.members.items())
        return heard and all(one.knows for one in self.members.values()) and all(map(self.is_closed, self.gone))

    @property
    def is_met(self) -> bool:
        return all(one.met for one in self.members.values())

    @property
    def may_publish(self) -> bool:
        words, size = self.broadcast.own_unheard(self.me.life, self._others)
        return self.has_model and words < limits.PEER_WINDOW and size < limits.PEER_BYTES

    @property
    def unheard(self) -> int:
        return self.broadcast.own_unheard(self.me.life, self._others)[0]

    @property
    def is_quiet(self) -> bool:
        """Every member has heard exactly what we have heard."""
        ours = {life: number for life, number in self.heard.items() if number}
        return all(one.heard == ours for one in self.members.values())

    def is_closed(self, life: str) -> bool:
        """Nothing more of it can arrive: all know that it is gone, none has heard more of it."""
        heard = self.heard.get(life, 0)
        least = all(one.heard.get(life, 0) <= heard for one in self.members.values())
        return life in self.gone and least and self._all_know_gone()

    def _all_know_gone(self) -> bool:
        """A member that does not know might still accept a word that one of the gone relays."""
        return all(len(one.gone) == len(self.gone) for one in self.members.values())

    @property
    def _others(self) -> list[dict[str, int]]:
        return [one.heard for one in self.members.values()]

    def give(self, life: str, state: bytes, slab: Array, version: p.Heard) -> list[Effect]:
        """Our model for a newcomer, with what had been heard (and is in it) when it was copied."""
        if life not in self.members or self.broadcast.is_behind(version):
            return []  # it still waits: nobody keeps what this version lacks
        return self.donor.give(life, state, slab, version)

    @property
    def wake_at(self) -> int:
        return min(self._next_beat, self._next_check)

    def may_leave(self, now: int) -> bool:
        """Not soon after a suspension: only we know both halves, and both must reach us."""
        return self._woke_at < 0 or now - self._woke_at >= self._dead_after

    def publish(self, now: int, word: p.Word, arrays: Arrays = ()) -> list[Effect]:
        self._is_leaving |= isinstance(word, p.PeerLeaving)  # the others may then consider us gone
        number, after = self.heard[self.me.life] + 1, self._after(word)
        self.broadcast.take(now, Delivery(self.me.life, number, word, arrays, after))
        heard: p.Heard = {}  # it grows with the number of peers, so it is not in every message
        if now - self._confirmed_at >= self._beat or self._unconfirmed >= _UNCONFIRMED * len(self.members):
            self._confirmed_at, self._unconfirmed = now, 0
            heard = dict(self.heard)
        return self._send_all(p.Relay(self.me.life, number, word, heard, after), arrays)

    def _after(self, word: p.Word) -> p.Heard:
        """What must be heard before this word, since all who know that may die."""
        match word:
            # Nobody may hear that all is counted, and never what. Nor may anybody take an owner
            # for new, not having heard who owned before.
            case p.Halt() | p.PeersEnded() | p.OwnersChanged():
                return dict(self.heard)
            case p.Owned(parts):  # nobody may apply what they never hear to have been learned
                lives = dict.fromkeys(life for _, upto in parts for life in upto if life != self.me.life)
                return {life: self.heard[life] for life in lives if life in self.heard}
        return {}

    def _on_relay(self, now: int, sender: str, relay: p.Relay, arrays: Arrays) -> list[Effect]:
        if self.evicted or (not self.has_model and self.greeting is None):
            return []
        if sender in self.gone:
            return self._tell_gone(now, sender)
        one = self.members.get(sender)
        if one is None:
            return []  # it is entered by its beat, and sends this again
        one.met, one.since = True, now
        # No other peer sends our words. One without a model, as far as we know, resends this.
        if relay.origin == self.me.life or not one.has_model:
            return []
        if self.check is not None and (wrong := self.check.error_in(relay.word, arrays)):
            return self.mark_gone(now, sender, f"it sent an invalid message: {wrong}")
        one.learn({relay.origin: relay.number})  # words are sent by those who have heard them
        delivery = Delivery(relay.origin, relay.number, relay.word, arrays, relay.after)
        self.broadcast.take(now, delivery, wait=not self.has_model)
        effects = self._send_lacking(now, one, relay.heard) if relay.heard else []
        self._unconfirmed += 1
        if self._unconfirmed >= 2 * _UNCONFIRMED * len(self.members):  # they wait for a beat
            effects += self._beat_all(now)
        return effects

    def _send_lacking(self, now: int, one: PeerMember, heard: p.Heard) -> list[Effect]:
        one.learn(heard)
        if not self.has_model or not one.has_model:
            return []
        effects, size = list[Effect](), 0
        for sent in self.broadcast.lacking(one.heard):
            word = sent.delivery
            if sent.may_send(now, one.peer.life, self._resend_turn(word.origin, word.number), self.timing):
                relay = p.Relay(word.origin, word.number, word.word, {}, word.after)
                effects.append(Send(one.peer.life, relay, word.arrays))
                self.counts["relayed" if word.origin != self.me.life else "resent"] += 1
                if (size := size + sent.size) > limits.PIECE_BYTES or len(effects) >= limits.PEER_WINDOW:
                    break  # the rest when it has these
        return effects

    def _resend_turn(self, origin: str, number: int) -> int:
        """How many waits pass before we resend: the sender is first, then others."""
        if origin == self.me.life:
            return 1
        have = [one.peer for one in self.members.values() if one.has_model and one.heard.get(origin, 0) >= number]
        return sum(rank(peer) < rank(self.me) for peer in have) + (0 if origin in self.gone else 4)

    def handle(self, now: int, event: Event) -> list[Effect]:
        if self.started_at >= 0 and now - self._last_event > self._dead_after // 2:
            # We were suspended: we cannot tell who was silent. Who considers us gone is right.
            self._woke_at = now
            for one in self.members.values():
                one.since = now
        self._last_event = now
        match event:
            case Tick():
                return self._tick(now)
            case Received(_, p.Beat() as beat):
                return self._on_beat(now, beat)
            case Received(sender, p.Relay() as relay, arrays):
                return self._on_relay(now, sender, relay, arrays)
            case Received(sender, p.Greet() as greet):
                return self._on_greet(sender, greet)
            case Received(_, p.PeerGreeting() as greeting):
                return self._on_greeting(now, greeting)
            case Received(_, p.Fetch() as fetch):
                known = self.has_model and fetch.life in self.members and not self.evicted
                return self.donor.fetch(fetch.life, fetch.request, fetch.piece) if known else []
            case Received(sender, p.ModelPiece() as piece, arrays) if not self.has_model:
                known = sender in self.members and not self.evicted
                return self.newcomer.piece(now, sender, piece, arrays) + self._adopt_model(now) if known else []
        return []

    def _tick(self, now: int) -> list[Effect]:
        if self.evicted:
            self._next_beat = self._next_check = now + self._dead_after
            return []
        effects: list[Effect] = []
        if self.started_at < 0:
            self.started_at = now
            for one in self.members.values():
                one.since = now
                effects.append(Connect(one.peer.life, one.peer.address, mutual=True))
        if now >= self._next_check:
            self._next_check = now + self._beat
            effects += self._check_members(now)
        if now >= self._next_beat:
            effects += self._beat_all(now)
        return effects

    def _check_members(self, now: int) -> list[Effect]:
        """Find silent members, drop unneeded words, and go on with joining."""
        effects: list[Effect] = []
        patience = max(self._dead_after, 10 * self._period)
        # A newcomer evicts nobody: it may be the one that is not reached. Nor does one that leaves:
        # the others must not give way to it.
        if self.has_model and not self._is_leaving:
            for life, one in list(self.members.items()):
                most = max(patience, self.timing.join_within) if one.patient and not one.met else patience
                if now - one.since > most:
                    effects += self.mark_gone(now, life, f"{SILENT} for {(now - one.since) / limits.SECOND:.1f} s")
        self.broadcast.forget(self._others)
        if self.has_model:
            return effects + self._call_lost(now)
        effects += self._join(now)
        heard = max((one.since for one in self.members.values() if one.has_model), default=self._answered_at)
        if self.greeting is not None and self.members and not self.has_model and now - heard > 2 * patience:
            lost = [*self.greeting.peers, *(peer for peer, _ in self._lost.values())]
            self._give_way("no peer with a model was heard from for too long", lost)
        return effects

    @property
    def _period(self) -> int:
        """Between two beats: longer with many peers, since each sends to each."""
        return max(self._beat, len(self.members) * limits.SECOND // 16)

    def _beat_now(self) -> p.Beat:
        new = [life for life, one in self.members.items() if not one.has_model]
        copied = dict(self.broadcast.copied)
        return p.Beat(self.me, dict(self.heard), self.all_peers, dict(self.gone), self.has_model, new, copied)

    @property
    def all_peers(self) -> list[p.Peer]:
        """Those with and without a model, this one first."""
        return [self.me, *(one.peer for one in self.members.values())]

    def _beat_all(self, now: int) -> list[Effect]:
        self._next_beat = now + self._period
        self._confirmed_at, self._unconfirmed = now, 0
        return self._send_all(self._beat_now())

    def _send_all(self, message: p.Beat | p.Relay, arrays: Arrays = ()) -> list[Effect]:
        return [Send(life, message, arrays) for life in self.members]

    def _on_beat(self, now: int, beat: p.Beat) -> list[Effect]:
        life = beat.me.life
        if self.evicted or life == self.me.life or (not self.has_model and self.greeting is None):
            return []
        if is_over(self.gone.get(life)):
            return self._tell_gone(now, life)  # also if it considers us gone: it has ended
        # A peer gets a model only after all have entered it. So an unknown peer with a model is of
        # another half, and so is one that considers us gone.
        stranger = beat.filled and life not in self.members and life not in self.gone
        if self.me.life in beat.gone or (stranger and self.has_model):
            return self._contend(now, beat)
        if life in self.gone:
            return self._tell_gone(now, life)
        effects = self._enter(now, [beat.me]) if not stranger else []
        one = self.members.get(life)
        if one is None:
            return effects
        effects += self._mark_all_gone(now, beat.gone)
        effects += self._enter(now, beat.peers)
        if not one.met:  # it waits for a beat that lists it
            effects.append(Send(life, self._beat_now()))
        one.met, one.since = True, now
        lists_me = any(peer.life == self.me.life for peer in beat.peers)
        one.lists_me |= lists_me
        one.knows |= lists_me and self.me.life not in beat.new
        one.gone.update(gone for gone in beat.gone if gone in self.gone)
        if beat.filled:
            one.has_model, one.copied = True, beat.copied
            self.donor.done(life)
        effects += self._send_lacking(now, one, beat.heard)
        if self._is_cut_short(one) and self._is_sure(now, life):
            self.counts["cut short"] += 1
            self._give_way(CUT_SHORT, beat.peers)
            return []
        return effects + self._join(now)

    def _is_cut_short(self, one: PeerMember) -> bool:
        """Do we lack words that this member copied and nobody can relay? Then one must rejoin."""
        # If all know who is gone, what they have heard of those is final, except for relays.
        if not one.copied or not self.has_model or self._is_leaving or not self._all_know_gone():
            return False
        versions = [(other.heard, other.copied) for other in self.members.values() if other.has_model]
        if not is_cut_short(self.heard, one.copied, versions, self.gone):
            return False
        # It may also lack words that we or others copied. Then the first one stays.
        versions.append((self.heard, self.broadcast.copied))
        return rank(one.peer) < rank(self.me) or not any(
            is_cut_short(one.heard, copied, versions, self.gone) for _, copied in versions
        )

    def _enter(self, now: int, peers: Sequence[p.Peer]) -> list[Effect]:
        effects: list[Effect] = []
        for peer in peers:
            known = peer.life == self.me.life or peer.life in self.members or peer.life in self.gone
            if not known and len(self.members) + 1 < limits.PEERS and is_valid(peer):
                self.members[peer.life] = PeerMember(peer, now)
                self.counts["entered"] += 1
                effects.append(Connect(peer.life, peer.address, mutual=True))
        return effects

    def _mark_all_gone(self, now: int, gone: Mapping[str, str]) -> list[Effect]:
        return [effect for life, why in gone.items() for effect in self.mark_gone(now, life, why)]

    def mark_gone(self, now: int, life: str, why: str) -> list[Effect]:
        if life in self.gone or life == self.me.life or self.evicted:
            return []
        if life not in self.members and (len(self.gone) >= limits.PEER_GONE or len(life) > limits.PEER_NAME):
            return []
        self.gone[life] = why[: limits.PEER_WHY]
        self.counts["gone"] += 1
        self.donor.done(life)
        self._next_beat = now  # all must know before it is closed
        # Early words count as heard by no peer. Those of lives that are gone must arrive again,
        # from a living peer.
        for origin in self.gone:
            self.broadcast.drop_early(origin)
        if not self.has_model:
            self.newcomer.lost(life)
        one = self.members.pop(life, None)
        if one is None:
            return []
        # Call also one that another peer refused ("of the smaller half"): that peer may die before
        # it has said so.
        return [Connect(life, "") if is_over(why) else self._lose(now, one.peer)]

    def _contend(self, now: int, beat: p.Beat) -> list[Effect]:
        """Two halves met and only one can go on. Keep our place, or give way."""
        life = beat.me.life
        if life in self.members:
            self.members[life].learn(beat.heard)
        if self.has_model and self.gone.get(life) == SMALLER != beat.gone.get(self.me.life):
            # A late beat: we have refused it since, and it has not refused us.
            return self._tell_gone(now, life)
        if self.has_model and not self._is_leaving:
            # After a suspension we do not know the members. Who considers us gone went on.
            slept = 0 <= self._woke_at > now - self._dead_after and life not in self.gone
            ours = [one.peer for one in self.members.values() if one.has_model and one.since > self._woke_at]
            over = [one for one, why in self.gone.items() if is_over(why)]
            if not slept and not gives_way(self.me, ours, beat, over):
                self.counts["claims refused"] += 1
                effects = self.mark_gone(now, life, SMALLER)
                self.gone[life] = SMALLER  # also if it was silent before
                return [*effects, self._lose(now, beat.me), *self._tell_gone(now, life)]
            # A peer without a model only repeats the claims of others: those may be dead by now,
            # and our model may be the last.
            if not beat.filled or not self._is_sure(now, life):
                return [self._lose(now, beat.me), *self._tell_gone(now, life)]
        self._give_way(beat.gone.get(self.me.life, ""), [beat.me, *beat.peers])
        return self._send_all(beat)  # the peers of our half must learn of them, too

    def _give_way(self, why: str, theirs: Sequence[p.Peer]) -> None:
        self.evicted = why or "the others go on without it"
        known = {one.life: one for one in (*theirs, *(one.peer for one in self.members.values()))}
        self.contacts = [one for life, one in known.items() if life != self.me.life]
        self.counts["evicted"] += 1

    def _tell_gone(self, now: int, to: str) -> list[Effect]:
        """Tells a life that it is gone, at most once per beat."""
        if now - self._notified_at.get(to, now - self._beat) < self._beat:
            return []
        self._notified_at[to] = now
        return [Send(to, self._beat_now())]

    def _lose(self, now: int, peer: p.Peer) -> Effect:
        """It may be cut off: keep calling it."""
        self._lost[peer.life] = (peer, now + self.timing.called)
        return Connect(peer.life, peer.address, mutual=True)

    def _call_lost(self, now: int) -> list[Effect]:
        """Sends lost peers a beat: two halves that never meet would continue as two runs."""
        if now < self._next_call:
            return []
        self._next_call = now + 4 * self._period
        over = [life for life, (_, until) in self._lost.items() if now > until]
        for life in over:
            del self._lost[life]
        beat = self._beat_now()
        return [*(Connect(life, "") for life in over), *(Send(life, beat) for life in self._lost)]

    def _is_sure(self, now: int, life: str) -> bool:
        """Does it repeat its claim? After a suspension, messages of dead peers may arrive."""
        return now - self._claims.setdefault(life, now) >= self._beat // 2

    def _on_greet(self, sender: str, greet: p.Greet) -> list[Effect]:
        if not self.has_model or self.evicted:
            return []
        number, assigned = 0, self._assigned_numbers
        if greet.comes:  # a number that no other newcomer gets, entered or not
            taken = [*(one.number for one in self.all_peers), *assigned.values()]
            number = assigned.setdefault(greet.comes, 1 + max(taken))
            for old in list(assigned)[: -limits.PEERS]:
                del assigned[old]
        gone, lost = dict(self.gone), [peer for peer, _ in self._lost.values()]
        return [Send(sender, p.PeerGreeting(greet.request, *self._about, self.all_peers, gone, lost, number))]

    def _on_greeting(self, now: int, greeting: p.PeerGreeting) -> list[Effect]:
        if self.has_model or (self.greeting is not None and self.members) or self.evicted:
            return []
        self.greeting, self._answered_at = greeting, now
        if self.me.life in greeting.gone:
            self._give_way(greeting.gone[self.me.life], greeting.peers)
            return []
        effects = self.newcomer.answered() + self._mark_all_gone(now, greeting.gone) + self._enter(now, greeting.peers)
        return [*effects, *(self._lose(now, peer) for peer in greeting.lost), *self._beat_all(now)]

    def _join(self, now: int) -> list[Effect]:
        return [] if self.has_model else self.newcomer.tick(now, self.members) + self._adopt_model(now)

    def _adopt_model(self, now: int) -> list[Effect]:
        """Use the copied model, if no death can take its words from the others."""
        if self.has_model or (version := self.newcomer.ready(self.members)) is None:
            return []
        self.has_model = True
        self.broadcast.begin_at(now, {self.me.life: 0, **version})
        self.counts["models copied"] += 1
        return self._beat_all(now)


# ---------------------------------------------------------------- rules


def rank(peer: p.Peer) -> tuple[int, str]:
    """The peer with the lowest rank leads."""
    return peer.number, peer.life


def is_valid(peer: p.Peer) -> bool:
    """It has names of valid length, and an address on this machine."""
    try:
        check_address(peer.address)
    except Invalid:
        return False
    return 0 < len(peer.life) <= limits.PEER_NAME and 0 < len(peer.name) <= limits.PEER_NAME


def is_over(why: str | None) -> bool:
    """Did a life that is gone for this reason end? Otherwise it may still run somewhere."""
    return why is not None and not why.startswith((SILENT, SMALLER))


# What each peer has heard, and what of that it copied.
Versions = Collection[tuple[Mapping[str, int], Mapping[str, int]]]


def is_cut_short(
    heard: Mapping[str, int], copied: Mapping[str, int], versions: Versions, gone: Collection[str]
) -> bool:
    """Can a peer with ``heard`` never hear all that is ``copied``, since nobody can relay it?

    Two newcomers copied at different moments, and all died who had the words in between.
    """
    for origin, number in copied.items():
        known = heard.get(origin, 0)
        can_relay = (theirs.get(origin, 0) > known >= those.get(origin, 0) for theirs, those in versions)
        if known < number and origin in gone and not any(can_relay):
            return True
    return False


def gives_way(me: p.Peer, ours: Sequence[p.Peer], beat: p.Beat, over: Collection[str] = ()) -> bool:
    """Does our half give way to the sender's half? Both halves compute the same answer.

    The smaller half gives way; of two equal halves, the one without the peer of lowest rank. Only
    peers count that have a model, that only one of the two holds for its own and that are not
    ``over``.
    """
    if not beat.filled:
        return False  # it only repeats what others said: they will send beats themselves
    lives = [one.life for one in beat.peers if one.life not in beat.new]
    known = [one.life for one in ours]
    others = [one for one in beat.peers if one.life in lives and one.life not in (me.life, beat.me.life, *known, *over)]
    theirs = [beat.me, *others]
    rest = [one for one in ours if one.life not in (beat.me.life, *lives)]
    return _weight(theirs) > _weight([me, *rest])


def _weight(side: Sequence[p.Peer]) -> tuple[int, int, str]:
    first = min(side, key=rank)
    return len(side), -first.number, first.life
