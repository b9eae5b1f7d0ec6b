"""Peers without a server: who is here, and everything that is said reaches all of them.

Each peer tells all others, now and then, what it has heard, who is here and who is gone (``Beat``). That is enough for all the rest:

    said      goes to all at once, is kept until all have heard it, and is sent again to whoever says that it has not
    handed on what one that is gone has said, by whoever has it: all that live hear it, or none
    gone      for good, and told with every beat; nothing is taken from it any more. It is *closed* once all that live know so of it
              and of everybody else who is gone, and none of them has heard more of it than we: then nothing more can come
    put out   held for gone by the others, though alive: this life is over. Of two halves the smaller one gives way

A newcomer is entered by all before it copies a model (``joining``), so all keep for it what the copy does not have. No rule needs a
clock that agrees with another's, none an order between words of different peers. Nothing here sends, sleeps, reads the time or draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shoal import limits
from shoal.strategies.peers.broadcast import Delivery
from shoal.strategies.peers.join import Donor, ModelNumbers, Newcomer
from shoal.strategies.peers.liveness import Liveness
from shoal.strategies.peers.members import (
    PeerMember,
    RunInfo,
    can_be,
    is_cut_short,
    turn,
)
from shoal.strategies.peers.partition_merge import (
    SILENT,
    SMALLER,
    PartitionMerge,
    gives_way,
    is_over,
    rank,
)
from shoal.strategies.peers.validate import MessageCheck
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Connect, Effect, Event, Received, Send, Tick
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Array, Arrays

# Words of each other peer that we may hear before we tell so: nobody is a window ahead.
_UNTOLD = limits.PEER_WINDOW // 4
CUT_SHORT = "it lacks words that nobody can hand on any more"


class Mesh(Liveness):
    """One peer's part in it. Whoever holds it hands in what came, and carries out what is returned."""

    def __init__(
        self,
        me: p.Peer,
        founders: Sequence[p.Peer] = (),
        *,
        about: RunInfo | None = None,
        timing: TimingSettings = DEFAULT,
    ) -> None:
        super().__init__(me, founders, timing)
        self.about = about or RunInfo()
        self.fit: MessageCheck | None = None  # what can be said at all; None: whatever it is
        self.put_out = ""  # why this life is over
        self.ways: list[tuple[str, str]] = []  # then: names and addresses of whom to ask, for the next life
        self.counts: Counter[str] = Counter()
        self.here: p.PeerGreeting | None = None  # a newcomer's answer
        self._leaves = False
        self._newcomer: Newcomer | None = None
        self._donor, self._numbers = Donor(), ModelNumbers()
        self._beat, self._dead_after = timing.heartbeat, timing.dead
        self._begun = self._last = self._woke = -1
        self._next_beat = self._next_look = self._told_heard = 0
        self._answered = 0  # when a newcomer was
        self._untold = 0  # words that came since we told what we have heard
        self._halves = PartitionMerge(timing.called)

    @classmethod
    def joining(
        cls,
        me: p.Peer,
        through: Sequence[tuple[str, str]],
        *,
        about: RunInfo | None = None,
        timing: TimingSettings = DEFAULT,
    ) -> Mesh:
        """A newcomer, which asks these (name and address) in turn."""
        mesh = cls(me, about=about, timing=timing)
        mesh._filled = False
        mesh._newcomer = Newcomer(list(through), timing)
        return mesh

    # ------------------------------------------------------------ what its holder must see to

    @property
    def filled_with(self) -> tuple[bytes, Array] | None:
        """A newcomer's model, once; what is heard from now on follows it."""
        return self._newcomer.take() if self._newcomer is not None else None

    @property
    def wanted(self) -> list[str]:
        """Newcomers that want a model of us: cut one, and ``hand`` it."""
        return self._donor.wanted

    @property
    def wake_at(self) -> int:
        return min(self._next_beat, self._next_look)

    def may_leave(self, now: int) -> bool:
        """False for a while after a sleep: peers that went on without us must be able to reach us, for only we know both halves."""
        return self._woke < 0 or now - self._woke >= self._dead_after

    # ------------------------------------------------------------ what is said

    def say(self, now: int, word: p.Word, arrays: Arrays = ()) -> list[Effect]:
        self._leaves |= isinstance(word, p.PeerLeaving)  # then the others may well hold us for gone
        number = self.streams.heard[self.me.life] + 1
        after = self._after(word)
        self.streams.take(now, Delivery(self.me.life, number, word, arrays, after))
        return self._send_all(self._said(now, number, word, after), arrays)

    def _after(self, word: p.Word) -> p.Heard:
        """What must be heard before this word, or those who alone know it may die."""
        match word:
            # Nobody may learn that all is counted, and never what; nor take who owns for new, not having heard who did before.
            case p.Halt() | p.PeersEnded() | p.OwnersChanged():
                return self.version
            case p.Owned(parts):  # nobody may add to the weights what they never hear to have been learned
                lives = dict.fromkeys(life for _, upto in parts for life in upto if life != self.me.life)
                return {life: self.streams.heard[life] for life in lives if life in self.streams.heard}
        return {}

    def heard_now(self) -> list[Delivery]:
        return self.streams.drain()

    def _said(self, now: int, number: int, word: p.Word, after: p.Heard) -> p.Relay:
        """With what we have heard, but not every time: it grows with the number of peers."""
        if now - self._told_heard < self._beat and self._untold < _UNTOLD * len(self.members):
            return p.Relay(self.me.life, number, word, {}, after)
        self._told_heard, self._untold = now, 0
        return p.Relay(self.me.life, number, word, self.version, after)

    # ------------------------------------------------------------ events

    def handle(self, now: int, event: Event) -> list[Effect] | None:
        """What this event asks for; None: it is not the mesh's."""
        self._look_whether_slept(now)
        match event:
            case Tick():
                return self._tick(now)
            case Received(sender, p.Beat() as beat):
                return self._beaten(now, sender, beat)
            case Received(sender, p.Relay() as said, arrays):
                return self._heard(now, sender, said, arrays)
            case Received(sender, p.Greet() as greet):
                return self._greeted(sender, greet)
            case Received(sender, p.PeerGreeting() as here):
                return self._answer(now, here)
            case Received(sender, p.Fetch() as fetch):
                known = self._filled and fetch.life in self.members and not self.put_out
                return self._donor.fetch(fetch) if known else []
            case Received(sender, p.ModelPiece() as piece, arrays) if self._newcomer is not None and not self._filled:
                known = sender in self.members and not self.put_out
                return self._newcomer.piece(now, self.me.life, sender, piece, arrays) + self._fill(now) if known else []
        return None

    def _tick(self, now: int) -> list[Effect]:
        if self.put_out:
            self._next_beat = self._next_look = now + self._dead_after
            return []
        effects = self._begin(now) if self._begun < 0 else []
        if now >= self._next_look:
            self._next_look = now + self._beat
            effects += self._look(now)
        if now >= self._next_beat:
            effects += self._beat_all(now)
        return effects

    def _look_whether_slept(self, now: int) -> None:
        """Then nobody was silent, as far as we know; and whoever held us for gone meanwhile was right."""
        if self._begun >= 0 and now - self._last > self._dead_after // 2:
            self._woke = now
            for one in self.members.values():
                one.since = now
        self._last = now

    def _begin(self, now: int) -> list[Effect]:
        self._begun = now
        for one in self.members.values():
            one.since = now
        return [Connect(one.peer.life, one.peer.address, mutual=True) for one in self.members.values()]

    def _look(self, now: int) -> list[Effect]:
        """Who is silent, what need not be kept, what a newcomer does next."""
        effects: list[Effect] = []
        patience = max(self._dead_after, 10 * self._period)
        # A newcomer judges nobody: it may be the one that is not reached. Nor does one that leaves: others must not give way to it.
        if self._filled and not self._leaves:
            for life, one in list(self.members.items()):
                most = max(patience, self.timing.join_within) if one.patient and not one.met else patience
                if now - one.since > most:
                    effects += self.tell_ended(now, life, f"{SILENT} for {(now - one.since) / limits.SECOND:.1f} s")
        self.streams.forget(self._others)
        if self._filled:
            effects += self._halves.call(now, 4 * self._period, self._beat_now())
        if self._newcomer is not None and not self._filled:
            effects += self._newcomer.tick(now, self.me.life, self.members)
            effects += self._fill(now)
            self._look_whether_lost(now, 2 * patience)
        return effects

    def _look_whether_lost(self, now: int, patience: int) -> None:
        """A newcomer that hears nobody who has a model: those of whom it was told are gone. It asks everybody again of whom it knows."""
        heard = max((one.since for one in self.members.values() if one.filled), default=self._answered)
        if self.here is not None and self.members and not self._filled and now - heard > patience:
            self._give_way("nobody who has a model was heard of for long", [*self.here.peers, *self._halves.lost])

    @property
    def _period(self) -> int:
        """Between two beats: more rarely with many peers, since each tells each."""
        return max(self._beat, len(self.members) * limits.SECOND // 16)

    # ------------------------------------------------------------ beats

    def _beat_now(self) -> p.Beat:
        peers = [self.me, *(one.peer for one in self.members.values())]
        new = [life for life, one in self.members.items() if not one.filled]
        return p.Beat(self.me, self.version, peers, dict(self.gone), self._filled, new, dict(self.streams.copied))

    def _beat_all(self, now: int) -> list[Effect]:
        self._next_beat = now + self._period
        self._told_heard, self._untold = now, 0
        return self._send_all(self._beat_now())

    def _send_all(self, message: p.Beat | p.Relay, arrays: Arrays = ()) -> list[Effect]:
        return [Send(life, message, arrays) for life in self.members]

    def _beaten(self, now: int, sender: str, beat: p.Beat) -> list[Effect]:
        life = beat.me.life
        if self.put_out or life == self.me.life or (self._newcomer is not None and self.here is None):
            return []
        if is_over(self.gone.get(life)):
            return self._tell_gone(now, life)  # whatever it held us for: nobody goes on with it
        # Whoever has a model was entered by all before it got it. One that was not is of another half, and so is who holds us for gone.
        stranger = beat.filled and life not in self.members and life not in self.gone
        if self.me.life in beat.gone or (stranger and self._filled):
            return self._contend(now, beat)
        if life in self.gone:
            return self._tell_gone(now, life)
        effects = self._enter(now, [beat.me]) if not stranger else []
        one = self.members.get(life)
        if one is None:
            return effects
        effects += self._adopt(now, beat.gone)
        effects += self._enter(now, beat.peers)
        if not one.met:  # it waits for this: that we have entered it
            effects.append(Send(life, self._beat_now()))
        one.met, one.since = True, now
        if beat.filled and not one.filled:
            one.filled, self._living = True, None
        lists_me = any(peer.life == self.me.life for peer in beat.peers)
        one.lists_me |= lists_me
        one.knows |= lists_me and self.me.life not in beat.new
        one.gone.update(gone for gone in beat.gone if gone in self.gone)
        if beat.filled:
            one.copied = beat.copied
            self._donor.done(life)
        effects += self._learn(now, one, beat.heard)
        if self._is_cut_short(one) and self._halves.is_sure(now, life, self._beat // 2):
            self.counts["cut short"] += 1
            self._give_way(CUT_SHORT, beat.peers)
            return []
        if self._newcomer is not None and not self._filled:
            effects += self._newcomer.tick(now, self.me.life, self.members) + self._fill(now)
        return effects

    def _is_cut_short(self, one: PeerMember) -> bool:
        """We lack what this one copied, and nobody can hand on: one of the two must begin anew.

        All must know who is gone: what they told to have heard of those is final then, but for what one of them can hand on.
        """
        if not one.copied or not self._filled or self._leaves or not self._all_know():
            return False
        told = [(other.heard, other.copied) for other in self.members.values() if other.filled]
        if not is_cut_short(self.streams.heard, one.copied, told, self.gone):
            return False
        # It may lack something as well, that we or others copied. Then the first stays, or nobody would have a model.
        told.append((self.streams.heard, self.streams.copied))
        return rank(one.peer) < rank(self.me) or not any(
            is_cut_short(one.heard, copied, told, self.gone) for _, copied in told
        )

    def _learn(self, now: int, one: PeerMember, heard: p.Heard) -> list[Effect]:
        """This one has heard so much: send what it lacks."""
        one.learn(heard)
        if not self._filled or not one.filled:
            return []
        effects: list[Effect] = []
        size = 0
        for kept in self.streams.lacking(one.heard):
            word = kept.delivery
            its_turn = turn(self.members, self.me, self.gone, word.origin, word.number)
            if kept.may_send(now, one.peer.life, its_turn, self.timing):
                effects.append(
                    Send(one.peer.life, p.Relay(word.origin, word.number, word.word, {}, word.after), word.arrays)
                )
                self.counts["handed on" if word.origin != self.me.life else "said again"] += 1
                if (size := size + kept.size) > limits.PIECE_BYTES or len(effects) >= limits.PEER_WINDOW:
                    break  # the rest when it has these
        return effects

    # ------------------------------------------------------------ who is here

    def _enter(self, now: int, found: Sequence[p.Peer]) -> list[Effect]:
        effects: list[Effect] = []
        for peer in found:
            full = len(self.members) + 1 >= limits.PEERS
            known = peer.life == self.me.life or peer.life in self.members or peer.life in self.gone
            if known or full or not can_be(peer):
                continue
            self.members[peer.life] = PeerMember(peer, now)
            self.counts["entered"] += 1
            effects.append(Connect(peer.life, peer.address, mutual=True))
        return effects

    def _adopt(self, now: int, gone: dict[str, str]) -> list[Effect]:
        effects: list[Effect] = []
        for life, why in gone.items():
            effects += self.tell_ended(now, life, why)
        return effects

    def tell_ended(self, now: int, life: str, why: str) -> list[Effect]:
        """This one is gone, for good."""
        if life in self.gone or life == self.me.life or self.put_out:
            return []
        if life not in self.members and (len(self.gone) >= limits.PEER_GONE or len(life) > limits.PEER_NAME):
            return []
        self.gone[life] = why[: limits.PEER_WHY]
        self.counts["gone"] += 1
        self._donor.done(life)
        self._next_beat = now  # all must know before it is closed
        # What waits here is in nobody's account of what it has heard: of those that are gone it must come again, from one that lives.
        for origin in self.gone:
            self.streams.drop_early(origin)
        if self._newcomer is not None and not self._filled:
            self._newcomer.lost(life)
        one = self.members.pop(life, None)
        if one is None:
            return []
        self._living = None
        # Also one that another of us has refused ("of the smaller half"): who did may die before that one has heard so.
        return [Connect(life, "") if is_over(why) else self._halves.lose(now, one.peer)]

    def _contend(self, now: int, beat: p.Beat) -> list[Effect]:
        """Only one half can go on. The smaller one gives way; of two that are equal, the one without the first of all."""
        if beat.me.life in self.members:
            self._learn(now, self.members[beat.me.life], beat.heard)
        if self._filled and self.gone.get(beat.me.life) == SMALLER != beat.gone.get(self.me.life):
            return self._tell_gone(
                now, beat.me.life
            )  # a late word: since then we have refused it, and it has not refused us
        if self._filled and not self._leaves:
            if not self._loses(now, beat):
                self.counts["claims refused"] += 1
                effects = self.tell_ended(now, beat.me.life, SMALLER)
                self.gone[beat.me.life] = SMALLER  # if it was silent before, too
                return [*effects, self._halves.lose(now, beat.me), *self._tell_gone(now, beat.me.life)]
            # One that has no model claims at second hand: those who have one may be dead by now, and ours the last.
            if not beat.filled or not self._halves.is_sure(now, beat.me.life, self._beat // 2):
                return [self._halves.lose(now, beat.me), *self._tell_gone(now, beat.me.life)]
        self._give_way(beat.gone.get(self.me.life, ""), [beat.me, *beat.peers])
        return self._send_all(beat)  # whoever is here with us must know them, too

    def _loses(self, now: int, beat: p.Beat) -> bool:
        """Against whoever sent this. One that slept does not know who is here still; and those who hold it for gone have gone on."""
        if 0 <= self._woke > now - self._dead_after and beat.me.life not in self.gone:
            return True
        ours = [one.peer for one in self.members.values() if one.filled and one.since > self._woke]
        over = [life for life, why in self.gone.items() if is_over(why)]
        return gives_way(self.me, ours, beat, over)

    def _give_way(self, why: str, theirs: Sequence[p.Peer]) -> None:
        self.put_out = why or "the others go on without it"
        known = {one.life: one.address for one in (*theirs, *(one.peer for one in self.members.values()))}
        self.ways = [(life, address) for life, address in known.items() if life != self.me.life]
        self.counts["put out"] += 1

    def _tell_gone(self, now: int, to: str) -> list[Effect]:
        return self._halves.tell(now, to, self._beat, self._beat_now())

    # ------------------------------------------------------------ what came

    def _heard(self, now: int, sender: str, said: p.Relay, arrays: Arrays) -> list[Effect]:
        if self.put_out or (self._newcomer is not None and self.here is None):
            return []
        if sender in self.gone:
            return self._tell_gone(now, sender)
        one = self.members.get(sender)
        if one is None:
            return []  # it is entered by its beat, and says this again
        one.met, one.since = True, now
        if said.origin == self.me.life or not one.filled:
            return []  # nobody else says our words; and who has no model has nothing to say, as far as we know: it says it again
        if self.fit is not None and (wrong := self.fit.misfit(said.word, arrays)):
            return self.tell_ended(now, sender, f"it said what cannot be: {wrong}")
        one.learn({said.origin: said.number})  # words are sent by those who have heard them
        self.streams.take(now, Delivery(said.origin, said.number, said.word, arrays, said.after), wait=not self._filled)
        effects = self._learn(now, one, said.heard) if said.heard else []
        self._untold += 1
        if self._untold >= 2 * _UNTOLD * len(self.members):  # we say nothing, and they wait to hear that we have heard
            effects += self._beat_all(now)
        return effects

    # ------------------------------------------------------------ coming

    def _greeted(self, sender: str, greet: p.Greet) -> list[Effect]:
        if not self._filled or self.put_out:
            return []
        peers = [self.me, *(one.peer for one in self.members.values())]
        about, gone, lost = self.about, dict(self.gone), self._halves.lost
        number = self._numbers.give(greet.comes, [one.number for one in peers]) if greet.comes else 0
        here = p.PeerGreeting(greet.request, about.job, about.rows, about.features, peers, gone, lost, number)
        return [Send(sender, here)]

    def _answer(self, now: int, here: p.PeerGreeting) -> list[Effect]:
        answered = self.here is not None and bool(self.members)
        if self._newcomer is None or self._filled or answered or self.put_out:
            return []
        self.here, self._answered = here, now
        if self.me.life in here.gone:
            self._give_way(here.gone[self.me.life], here.peers)
            return []
        effects = self._newcomer.answered() + self._adopt(now, here.gone) + self._enter(now, here.peers)
        for peer in here.lost:
            effects.append(self._halves.lose(now, peer))
        return effects + self._beat_all(now)

    def _fill(self, now: int) -> list[Effect]:
        """The newcomer has a model that nobody's death can take from the others."""
        newcomer = self._newcomer
        version = newcomer.ready(self.members) if newcomer is not None and not self._filled else None
        if version is None:
            return []
        self._filled, self._living = True, None
        self.streams.begin_at(now, {self.me.life: 0, **version})
        self.counts["filled"] += 1
        return self._beat_all(now)

    def hand(self, now: int, life: str, state: bytes, slab: Array, version: p.Heard) -> list[Effect]:
        """The model for a newcomer, with what had been heard (and is in it) when it was cut."""
        if life not in self.members or self.streams.is_behind(version):
            return []  # it is wanted still: what this version lacks is kept by nobody
        return self._donor.hand(life, state, slab, version)
