"""A peer: it learns from the slots that it is dealt, tells all what that changed, and adds what the others changed.

    learning    in short pieces (``at_work``); before each, what others changed meanwhile is added. Nobody waits for anybody
    telling     after ``every`` rows, or when there is nothing more to do: to all, or to the owners of the weights (``owning``)
    leading     the first of those who live deals, judges and ends (``lead``), from what all know (``cluster.book``)
    coming      a newcomer gets a copy with the version that is in it: what was heard when it was cut, and nothing else
    going       in order: it tells what it learned, and gives back what it did not; with an error: all others leave it alone (S4-05)

The model is touched in visits only (``replica``), one at a time, off the loop's thread; it is judged on the disk thread, beside the learning.
Time, the network and the judge are handed in: the same peer runs in a process, in a thread and in the simulator. It never ends by
itself: whoever holds it asks ``may_go``, and until then it answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from shoal import limits
from shoal.errors import ShoalError
from shoal.schedule.runs import Runs
from shoal.strategies.peers.broadcast import Delivery
from shoal.strategies.peers.compute import ComputeMoment, PeerCompute, SlotUnderway
from shoal.strategies.peers.leader import PeerFacts
from shoal.strategies.peers.leadership import Judge, Leadership
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.ownership import Ownership
from shoal.strategies.peers.queries import PeerQueries, account
from shoal.strategies.peers.replica import (
    Change,
    Floats,
    Replica,
    ReplicaHold,
    SlotResult,
    SlotVisit,
)
from shoal.strategies.peers.run_log import RunLog, RunLogState
from shoal.strategies.peers.validate import MessageCheck
from shoal.wire.effects import Computed, Effect, Event, Received, Send, Stored, Wake
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays

_LOOK = 100 * limits.MILLISECOND  # so often the one that leads looks at the clock, and one that goes whether it may
_FRAME = limits.FRAME_BYTES // 8  # keys in one

Traffic = Callable[[], tuple[int, int]]


class PeerNode:
    """One peer."""

    def __init__(
        self,
        mesh: Mesh,
        replica: Replica,
        facts: PeerFacts,
        judge: Judge,
        *,
        begin: RunLogState | None = None,
        hold: ReplicaHold | None = None,
        link: float = 0.0,
        traffic: Traffic = lambda: (0, 0),
        keys: int = 0,
        parts: int = limits.PEER_PARTS,
    ) -> None:
        """``begin``: where a run is taken up again, or where an earlier life was; ``link``: seconds that messages between peers take.

        ``keys`` weights (0: not known), in ``parts``, where they are owned.
        """
        self.name, self.mesh, self.facts = mesh.me.life, mesh, facts
        self._parts = parts if facts.owned else 0
        mesh.fit = MessageCheck(keys, facts.limit[0], facts.slots.batch, self._parts)
        self.book = RunLog(begin, self._parts)
        self.why = ""  # why it left; empty: in order, or it did not
        self.owning = Ownership(self.name, parts, keys, mesh.timing) if facts.owned else None
        self.work = PeerCompute(replica, facts, hold)
        self.left = False  # it said that it leaves
        self.may_go = False  # nobody needs anything of it any more, or so much time has passed that nobody will ask
        self.put_out = ""  # the others hold it for gone: begin a new life, with what ``rest`` says
        self._traffic, self._answers = traffic, PeerQueries()
        self._leading = Leadership(
            mesh, facts, judge, self._answers, self.owning, begin.seconds if begin is not None else 0.0
        )
        self._link = round(link * limits.SECOND)
        self._delayed: deque[tuple[int, Event]] = deque()  # in the order in which they came
        self._others = 0  # changes of others that were heard
        self._leave: str | None = None  # it is to leave: why; empty: in order
        self._rested = False
        self._over_at: int | None = None  # it left, or heard that the run ended

    @property
    def ended(self) -> bool:
        """The run is over: all rest, and have heard all."""
        return self.book.ended is not None

    @property
    def leads(self) -> bool:
        return self._leading.lead is not None

    @property
    def others(self) -> list[p.Peer]:
        """All that are here, for whoever must find them again."""
        return [one.peer for one in self.mesh.members.values()]

    def rest(self, now: int) -> tuple[RunLogState, p.Heard]:
        """Of one that was put out: its book, and what its model has heard."""
        return self.book.state(self._leading.seconds(now)), self.mesh.version

    def leave(self) -> None:
        """Leave in order: with the next event."""
        self._leave = "" if self._leave is None else self._leave

    # ------------------------------------------------------------ events

    def handle(self, now: int, event: Event) -> list[Effect]:
        self._leading.begin(now)
        effects: list[Effect] = []
        while self._delayed and self._delayed[0][0] <= now:
            effects += self._event(now, self._delayed.popleft()[1])
        if self._link and isinstance(event, Received) and event.sender in self.mesh.members:
            self._delayed.append((now + self._link, event))
        else:
            effects += self._event(now, event)
        effects += self._turn(now)
        return [*effects, Wake(self._wake_at(now))]

    def _event(self, now: int, event: Event) -> list[Effect]:
        match event:
            case Computed(token, result, error):
                return self._computed(now, token, result, error)
            case Stored(token, result, error):
                return self._say_all(now, self._leading.judged(now, token, result, error))
            case Received(sender, p.Watch() as watch):
                return [Send(sender, self.account(now, watch))] if self.mesh.filled else []
            case Received(sender, p.Weigh() as weigh):
                return self._answers.weigh(sender, weigh) if self.mesh.filled else []
            case Received(_, p.StopPeers() as stop):
                return self._stopped(now, stop)
            case Received(sender, p.OwnedShare() as share, arrays):
                return self._share(now, sender, share, arrays)
        return self.mesh.handle(now, event) or []

    def _wake_at(self, now: int) -> int:
        times = [self.mesh.wake_at]
        if self._delayed:
            times.append(self._delayed[0][0])
        if self.leads or (self._over_at is not None and not self.may_go):
            times.append(now + _LOOK)
        if self.owning is not None and not self.left and not self.mesh.put_out:
            times.append(self.owning.wake_at(now, self.mesh.may_say))
        return max(min(times), now + limits.MILLISECOND)

    def _turn(self, now: int) -> list[Effect]:
        """After every event: write down what was heard, lead if it is us, and see that the model is at work."""
        if self.mesh.put_out:
            return self._wind_up(now)
        if (given := self.mesh.filled_with) is not None:
            self._adopt(now, *given)
        effects = self._hear(now)
        if self.mesh.filled:
            effects += self._own(now)
            while words := self._leading.decide(now, self.book, not self.left):
                effects += self._say_all(now, words)
            effects += self._finish(now)
            effects += self._start(now)
            self._look_whether_over(now)
        return effects

    # ------------------------------------------------------------ what is heard and said

    def _adopt(self, now: int, packed: bytes, slab: Floats) -> None:
        """A newcomer's first model."""
        state = msgspec.msgpack.decode(packed, type=RunLogState)
        self.book, self._leading.lead = RunLog(state, self._parts), None
        self.work.model = slab
        if state.judged:
            self._leading.set_clock(now, state.seconds)

    def _say(self, now: int, word: p.Word, arrays: Arrays = ()) -> list[Effect]:
        if self.work.under is not None:
            self.work.under.moment.said.append(word)
        return self.mesh.say(now, word, arrays) + self._hear(now)

    def _say_all(self, now: int, words: Sequence[p.Word]) -> list[Effect]:
        return [effect for word in words for effect in self._say(now, word)]

    def _hear(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for delivery in self.mesh.heard_now():
            effects += self._heard(now, delivery)
        return effects

    def _heard(self, now: int, delivery: Delivery) -> list[Effect]:
        origin, word, arrays = delivery.origin, delivery.word, delivery.arrays
        self.book.take(origin, word)
        match word:
            case p.Learned() if origin != self.name:
                self._others += bool(word.slots)
                if len(arrays) == 2:
                    self.work.inbox.append((arrays[0], arrays[1]))
            case p.Owned() if self.owning is not None and len(arrays) == 2:
                self.work.inbox += self.owning.owned(word, (arrays[0], arrays[1]))
            case p.SlotsDealt(slots):
                self._leading.set_clock(now, 0.0)
                if self.book.halt is None and not self.left:
                    self._dealt([runs for life, runs in slots if life == self.name])
            case p.EvaluationDone():
                if word.now:  # its clock may be ahead of ours
                    self._leading.set_clock(now, word.now)
            case p.Halt():
                self.work.drop()
            case p.PeerLeaving(why) if origin != self.name:
                return self.mesh.tell_ended(now, origin, why)
        return []

    def _dealt(self, found: Sequence[Runs]) -> None:
        for runs in found:
            self.work.todo.add(runs)
        lives = [one.life for one in self.mesh.living] if found else []
        if self.name in lives:
            self.work.take_place(lives.index(self.name), len(lives))

    # ------------------------------------------------------------ the model at work

    def _start(self, now: int) -> list[Effect]:
        if self.work.under is not None:
            return []
        wanted, book = list(self.mesh.wanted), self.book
        stops = self._leave is not None or book.halt is not None or self.left
        may_tell = self.mesh.may_say and (self.owning is None or self.owning.may_contribute)
        todo = self.work.plan(
            learns=not stops,
            may_tell=may_tell,
            must_tell=stops,
            weighs=self._leading.is_to_weigh(now, book),
            copies=bool(wanted) or self._answers.wants_copy,
        )
        if todo is None:
            return []
        if self.owning is not None:
            todo.owned, todo.without = True, self.owning.pending() if todo.copy else []
        state = book.state(self._leading.seconds(now)) if todo.copy else None
        moment = ComputeMoment(self.mesh.version, state, book.done, book.rows, book.loss, self._others, wanted)
        return [self.work.start(now, todo, moment)]

    def _computed(self, now: int, token: int, found: Any, error: BaseException | None) -> list[Effect]:
        under = self.work.end(now, token)
        if under is None:
            return []
        if error is not None:
            return self._failed(now, error)
        assert isinstance(found, SlotResult)
        self.work.learned(now, under, found.rows, found.loss)
        if self.mesh.put_out:
            return []
        unsaid, moment, effects = self.work.unsaid, under.moment, list[Effect]()
        if found.change is not None:
            effects += self._tell(now, found.change, moment)
        if found.weights is not None:
            done, rows, loss = moment.done, moment.rows, moment.loss
            if self.owning is None:  # what we learned ourselves is in the weights
                done, rows = done + unsaid.slots.size, rows + unsaid.rows
                loss = (loss[0] + unsaid.loss, loss[1] + unsaid.rows)
            effects += self._leading.weighed(now, found.weights, done, rows, loss)
        if found.slab is not None:
            effects += self._hand(now, under, found.slab)
        return effects

    def _tell(self, now: int, change: Change, moment: ComputeMoment) -> list[Effect]:
        """Say what was learned, and what it changed."""
        word = self.work.word(self._traffic(), self._others)
        if self.owning is not None:
            word = msgspec.structs.replace(word, part=self.owning.contribute(change))
            moment.said.append(word)
            return self._say(now, word) + self.owning.send(now, self.book)
        keys, values = change
        effects: list[Effect] = []
        last = max(0, (len(keys) - 1) // _FRAME * _FRAME)
        for at in range(0, last, _FRAME):  # a frame holds no more; the slots count with the last
            part = p.Learned([], 0, 0.0)
            moment.said.append(part)
            effects += self._say(now, part, (keys[at : at + _FRAME], values[at : at + _FRAME]))
        moment.said.append(word)
        return effects + self._say(now, word, (keys[last:], values[last:]))

    def _hand(self, now: int, under: SlotUnderway, slab: Floats) -> list[Effect]:
        """A copy with the version that is in it: what was heard when the visit began, and what we have said since."""
        moment = under.moment
        assert moment.state is not None
        book = RunLog(moment.state, self._parts)
        for word in moment.said:
            book.take(self.name, word)
        version = {**moment.version, self.name: moment.version.get(self.name, 0) + len(moment.said)}
        state = msgspec.msgpack.encode(book.state(moment.state.seconds))
        flat = np.ascontiguousarray(slab, np.float32).reshape(-1)
        effects = self._answers.copied(state, flat, version)
        for life in moment.wanted:
            effects += self.mesh.hand(now, life, state, flat, version)
        return effects

    def _share(self, now: int, sender: str, share: p.OwnedShare, arrays: Arrays) -> list[Effect]:
        fit = self.mesh.fit
        if self.owning is None or self.left or sender not in self.mesh.members or share.life != sender:
            return []
        if fit is not None and (wrong := fit.change(arrays)):  # we would say it, and be held for gone for that
            return self.mesh.tell_ended(now, sender, f"it sent what cannot be: {wrong}")
        self.owning.share(now, share, arrays, self.book)
        return []

    def _own(self, now: int) -> list[Effect]:
        """Weights that have owners: send what is not in, tell what came."""
        owning = self.owning
        if owning is None or self.left:
            return []
        owning.begin(now, self.book, self.mesh)
        effects = owning.send(now, self.book)
        if self.work.under is not None and self.work.under.todo.copy:
            return effects  # a copy has what we have said, and this would not be in it
        hurry = self._leave is not None or self.book.halt is not None
        for word, arrays in owning.words(now, self.book, self.mesh, hurry):
            effects += self._say(now, word, arrays)
        return effects

    # ------------------------------------------------------------ the end

    def _stopped(self, now: int, stop: p.StopPeers) -> list[Effect]:
        if stop.ended:
            return self.mesh.tell_ended(now, stop.ended, stop.why)
        if stop.leave:
            self.leave()
        else:
            self._leading.stop = self._leading.stop or stop.why or "stopped"
        return []

    def _finish(self, now: int) -> list[Effect]:
        """Rest when all are told to, go when asked to."""
        if self.work.under is not None or self.work.unsaid.slots or self.left:
            return []
        if self.owning is not None and not self.owning.is_settled:
            return []
        if self.book.halt is not None:
            rested, self._rested = self._rested, True
            return [] if rested else self._say(now, p.Rested())
        if self._leave is None:
            return []
        if len(self.mesh.living) > 1:
            return self._go(now, self._leave, self.work.drop()) if self.mesh.may_leave(now) else []
        if self._leading.lead is not None:
            self._leading.lead.end("the last peer was asked to leave", now=True)
        return []

    def _go(self, now: int, why: str, back: Runs) -> list[Effect]:
        self.left, self._leading.lead, self.why, self._over_at = True, None, why, now
        return self._say(now, p.PeerLeaving(why, back))

    def _failed(self, now: int, error: BaseException) -> list[Effect]:
        """It cannot compute: the others go on without it. If there is nobody else, that is the end of the run."""
        why = str(error) if isinstance(error, ShoalError) and str(error) else f"{type(error).__name__}: {error}"
        self.work.forget()
        if self.left or self.mesh.put_out:
            return []
        self._leave, self.why = why, why
        if (lead := self._leading.lead) is None or len(self.mesh.living) > 1:
            return self._go(now, why, [])
        lead.end(why, failed=True)
        return []

    def _wind_up(self, now: int) -> list[Effect]:
        """The others hold us for gone: what was heard is added, and the next life begins with that."""
        self._leading.lead = None
        self.may_go = self.left
        for delivery in self.mesh.heard_now():
            self._heard(now, delivery)
        if self.left or self.put_out or self.work.under is not None:
            return []
        self.work.forget()  # nobody heard of it, and others will be dealt it
        if self.work.is_idle:
            self.put_out = self.mesh.put_out
            return []
        add, self.work.inbox = self.work.inbox, []
        restore, self.work.model = self.work.model, None
        return [self.work.start(now, SlotVisit(restore=restore, add=add, take=True), ComputeMoment())]

    def _look_whether_over(self, now: int) -> None:
        if self.ended and self._over_at is None:
            self._over_at = now
        if self._over_at is None or self.may_go:
            return
        quiet = self.mesh.is_quiet if self.ended else not self.mesh.unheard
        self.may_go = (quiet and self.work.is_idle) or now - self._over_at > self.mesh.timing.drain

    def account(self, now: int, watch: p.Watch) -> p.PeerStatus:
        """How the run stands, as far as we have heard."""
        limit, per_pass = self.facts.limit[0], self.facts.slots.per_pass
        seconds, is_closed = self._leading.seconds(now), self._leading.view(self.book).is_closed
        return account(self.book, self.mesh, watch, limit, per_pass, seconds, self._traffic(), is_closed)
