"""The state machine of one peer: it learns, publishes its changes and adds those of others.

    learning    in short visits to its model (``compute``), which add the changes of others first
    publishing  after ``every`` rows, to all or to the owners of the weights (``ownership``)
    leading     if it is the first living peer (``leader``)
    leaving     in order: it publishes what it learned and gives back the slots it did not;
                after an error: the others continue without it

Time, the network and the evaluation are passed in: the same peer runs in a process, in a thread and
in the simulator. It never ends by itself: its owner asks ``may_go``, and until then it answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from shoal import limits
from shoal.errors import ShoalError
from shoal.schedule.intervals import Runs
from shoal.strategies.peers.compute import Change, Floats, Pacer, PeerCompute, Replica, Visit
from shoal.strategies.peers.leader import Evaluate, Leader, PeerFacts
from shoal.strategies.peers.mesh import Mesh
from shoal.strategies.peers.ownership import OPEN, Ownership
from shoal.strategies.peers.run_log import MOST_EVALUATIONS, PARTLY, MessageCheck, RunLog
from shoal.wire.effects import Computed, Effect, Event, Received, Send, Stored, Wake
from shoal.wire.messages import peers as p
from shoal.wire.messages.base import Arrays

_CHECK = 100 * limits.MILLISECOND  # between two checks of the clock, where one waits
_FRAME = limits.FRAME_BYTES // 8  # keys in one


class PeerNode:
    """One peer."""

    def __init__(
        self,
        mesh: Mesh,
        replica: Replica,
        facts: PeerFacts,
        evaluate: Evaluate,
        *,
        begin: RunLog | None = None,  # where a resumed run continues
        pacer: Pacer | None = None,
        link: float = 0.0,  # seconds that messages of peers take
        traffic: Callable[[], tuple[int, int]] = lambda: (0, 0),
        keys: int = 0,  # weights; 0: not known
        parts: int = limits.PEER_PARTS,  # of the weights, if they have owners
    ) -> None:
        self.name, self.mesh, self.facts = mesh.me.life, mesh, facts
        owned_parts = parts if facts.owned else 0
        mesh.check = self._check = MessageCheck(keys, facts.limit[0], facts.slots.batch, owned_parts)
        self.log = RunLog() if begin is None else RunLog.unpack(begin.pack())
        self.log.included = self.log.included or [{} for _ in range(owned_parts)]
        self.why = ""  # why it left; empty: in order, or it did not
        self.ownership = Ownership(self.name, parts, keys, mesh.timing) if facts.owned else None
        self.compute = PeerCompute(replica, facts.every, facts.slots.batch, pacer)
        self.has_left = False  # it published that it leaves
        self.may_go = False  # no longer needed, or not requested for long
        self.evicted = ""  # the others consider it gone: it must rejoin as a new life
        self._traffic = traffic
        self._leader = Leader(mesh, facts, evaluate, self.log, self.ownership)
        self._link = round(link * limits.SECOND)
        self._delayed: deque[tuple[int, Event]] = deque()  # in order of arrival
        self._changes_heard = 0  # changes of others that were heard
        self._leave_reason: str | None = None  # it is to leave, and why; empty: in order
        self._over_at: int | None = None  # when it left, or heard that the run ended

    @property
    def ended(self) -> bool:
        return self.log.ended is not None

    @property
    def leads(self) -> bool:
        return self._leader.leads

    def leave(self) -> None:
        self._leave_reason = "" if self._leave_reason is None else self._leave_reason

    def handle(self, now: int, event: Event) -> list[Effect]:
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
            case Computed(_, _, error):
                return self._computed(now, error)
            case Stored(token, result, error):
                return self._publish_all(now, self._leader.evaluated(now, token, result, error))
            case Received(sender, p.Watch() as watch):
                return [Send(sender, self.status(now, watch))] if self.mesh.has_model else []
            case Received(sender, p.Weigh() as weigh):
                return self._leader.answers.weigh(sender, weigh) if self.mesh.has_model else []
            case Received(_, p.StopPeers() as stop):
                if stop.ended:
                    return self.mesh.mark_gone(now, stop.ended, stop.why)
                if stop.leave:
                    self.leave()
                else:
                    self._leader.stop = self._leader.stop or stop.why or "stopped"
                return []
            case Received(sender, p.OwnedShare() as share, arrays):
                return self._on_share(now, sender, share, arrays)
        return self.mesh.handle(now, event)

    def _wake_at(self, now: int) -> int:
        times = [self.mesh.wake_at]
        if self._delayed:
            times.append(self._delayed[0][0])
        if self.leads or (self._over_at is not None and not self.may_go):
            times.append(now + _CHECK)
        if self.ownership is not None and not self.has_left and not self.mesh.evicted:
            times.append(self.ownership.wake_at(now, self.mesh.may_publish))
        return max(min(times), now + limits.MILLISECOND)

    def _turn(self, now: int) -> list[Effect]:
        """After every event: apply what was heard, lead if it is us, and start the next visit."""
        if self.mesh.evicted:
            return self._wind_down(now)
        if (given := self.mesh.newcomer.take()) is not None:
            self._adopt(now, *given)
        effects = self._deliver(now)
        if self.mesh.has_model:
            effects += self._update_owned(now)
            while words := self._leader.decide(now, not self.has_left):
                effects += self._publish_all(now, words)
            effects += self._finish(now)
            effects += self._start(now)
            self._check_over(now)
        return effects

    def _adopt(self, now: int, packed: bytes, slab: Floats) -> None:
        self.log = self._leader.log = RunLog.unpack(packed)
        self.compute.model = slab
        if self.log.judged:
            self._leader.set_clock(now, self.log.seconds)

    def _publish(self, now: int, word: p.Word, arrays: Arrays = ()) -> list[Effect]:
        if self.compute.running is not None:
            self.compute.running.published.append(word)
        return self.mesh.publish(now, word, arrays) + self._deliver(now)

    def _publish_all(self, now: int, words: Sequence[p.Word]) -> list[Effect]:
        return [effect for word in words for effect in self._publish(now, word)]

    def _deliver(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for delivery in self.mesh.broadcast.drain():
            origin, word, arrays = delivery.origin, delivery.word, delivery.arrays
            self.log.apply(origin, word)
            match word:
                case p.Learned() if origin != self.name:
                    self._changes_heard += bool(word.slots)
                    if len(arrays) == 2:
                        self.compute.inbox.append((arrays[0], arrays[1]))
                case p.Owned() if self.ownership is not None and len(arrays) == 2:
                    self.compute.inbox += self.ownership.changes_of(word, (arrays[0], arrays[1]))
                case p.SlotsDealt(slots):
                    self._leader.set_clock(now, 0.0)
                    lives = [one.life for one in self.mesh.living]
                    for life, runs in slots if self.log.halt is None and not self.has_left else ():
                        if life == self.name:
                            self.compute.todo.add(runs)
                            self.compute.stagger(lives.index(life), len(lives))
                case p.EvaluationDone() if word.now:  # its clock may be ahead of ours
                    self._leader.set_clock(now, word.now)
                case p.Halt():
                    self.compute.drop()
                case p.PeerLeaving(why) if origin != self.name:
                    effects += self.mesh.mark_gone(now, origin, why)
        return effects

    def _start(self, now: int) -> list[Effect]:
        if self.compute.running is not None:
            return []
        waiting, log, ownership = self.mesh.donor.waiting, self.log, self.ownership
        stops = self._leave_reason is not None or log.halt is not None or self.has_left
        visit = self.compute.plan(
            learns=not stops,
            may_publish=self.mesh.may_publish and (ownership is None or len(ownership.unconfirmed) < OPEN),
            weighs=self._leader.is_evaluation_due(now),
            copies=bool(waiting or self._leader.answers.snapshots.waiting),
        )
        if visit is None:
            return []
        visit.owned, visit.version, visit.seen = ownership is not None, dict(self.mesh.heard), self._changes_heard
        visit.progress = log.done, log.rows, log.loss
        if visit.copy:
            visit.receivers, visit.state = waiting, log.pack(self._leader.seconds(now))
            visit.without = ownership.pending() if ownership is not None else []
        return [self.compute.start(now, visit)]

    def _computed(self, now: int, error: BaseException | None) -> list[Effect]:
        visit, own, effects = self.compute.end(now), self.compute.unpublished, list[Effect]()
        if error is not None:
            return self._failed(now, error)
        if self.mesh.evicted:
            return []
        if visit.change is not None:
            effects += self._publish_change(now, visit.change, visit)
        if visit.weights is not None:
            done, rows, loss = visit.progress
            if self.ownership is None:  # what we learned ourselves is in the weights
                done, rows = done + own.slots.size, rows + own.rows
                loss = (loss[0] + own.loss, loss[1] + own.rows)
            effects += self._leader.evaluate(now, visit.weights, done, rows, loss)
        if visit.slab is not None:
            effects += self._give_copies(visit, visit.slab)
        return effects

    def _publish_change(self, now: int, change: Change, visit: Visit) -> list[Effect]:
        word, (keys, values) = self.compute.word(self._traffic(), self._changes_heard), change
        if self.ownership is not None:
            word = msgspec.structs.replace(word, part=self.ownership.contribute(change))
            visit.published.append(word)
            return self._publish(now, word) + self.ownership.send(now, self.log)
        effects: list[Effect] = []
        last = max(0, (len(keys) - 1) // _FRAME * _FRAME)
        for at in range(0, last + 1, _FRAME):  # a frame holds no more; slots count with the last
            part = word if at == last else p.Learned([], 0, 0.0)
            visit.published.append(part)
            effects += self._publish(now, part, (keys[at : at + _FRAME], values[at : at + _FRAME]))
        return effects

    def _give_copies(self, visit: Visit, slab: Floats) -> list[Effect]:
        """A copy contains what was heard when the visit began and what we published since."""
        log = RunLog.unpack(visit.state)
        for word in visit.published:
            log.apply(self.name, word)
        version = {**visit.version, self.name: visit.version.get(self.name, 0) + len(visit.published)}
        state, flat = log.pack(), np.ascontiguousarray(slab, np.float32).reshape(-1)
        observers = self._leader.answers.snapshots
        effects = [effect for to in observers.waiting for effect in observers.give(to, state, flat, version)]
        for life in visit.receivers:
            effects += self.mesh.give(life, state, flat, version)
        return effects

    def _on_share(self, now: int, sender: str, share: p.OwnedShare, arrays: Arrays) -> list[Effect]:
        if self.ownership is None or self.has_left or sender not in self.mesh.members or share.life != sender:
            return []
        if wrong := self._check.error_in_change(arrays):  # or they refuse our sum
            return self.mesh.mark_gone(now, sender, f"it sent an invalid message: {wrong}")
        self.ownership.receive(now, share, arrays, self.log)
        return []

    def _update_owned(self, now: int) -> list[Effect]:
        """Weights with owners: send our contributions, publish the sums that we own."""
        ownership = self.ownership
        if ownership is None or self.has_left:
            return []
        ownership.begin(now, self.log, self.mesh)
        effects = ownership.send(now, self.log)
        if self.compute.running is not None and self.compute.running.copy:
            return effects  # the sum would count as part of the copy, and not be in it
        hurry = self._leave_reason is not None or self.log.halt is not None
        for word, arrays in ownership.words(now, self.log, self.mesh, hurry):
            effects += self._publish(now, word, arrays)
        return effects

    def _finish(self, now: int) -> list[Effect]:
        settled = self.ownership is None or not self.ownership.unconfirmed
        if self.compute.running is not None or self.compute.unpublished.slots or self.has_left or not settled:
            return []
        if self.log.halt is not None:
            return [] if self.name in self.log.rested else self._publish(now, p.Rested())
        if self._leave_reason is None:
            return []
        if len(self.mesh.living) > 1:
            return self._say_goodbye(now, self._leave_reason, self.compute.drop()) if self.mesh.may_leave(now) else []
        if self.leads:
            self._leader.end("the last peer was asked to leave", now=True)
        return []

    def _say_goodbye(self, now: int, why: str, back: Runs) -> list[Effect]:
        self.has_left, self._leader.leads, self.why, self._over_at = True, False, why, now
        return self._publish(now, p.PeerLeaving(why, back))

    def _failed(self, now: int, error: BaseException) -> list[Effect]:
        """The others go on without it; without others the run ends."""
        why = str(error) if isinstance(error, ShoalError) and str(error) else f"{type(error).__name__}: {error}"
        self.compute.forget()
        if self.has_left or self.mesh.evicted:
            return []
        self._leave_reason, self.why = why, why
        if not self.leads or len(self.mesh.living) > 1:
            return self._say_goodbye(now, why, [])
        self._leader.end(why, failed=True)
        return []

    def _wind_down(self, now: int) -> list[Effect]:
        """The others removed us: apply the words heard so far, then end this life."""
        self._leader.leads = False
        self.may_go = self.has_left
        self._deliver(now)
        if self.has_left or self.evicted or self.compute.running is not None:
            return []
        self.compute.forget()  # not published: others will be assigned it
        visit = self.compute.plan(learns=False)
        if visit is None:
            self.evicted = self.mesh.evicted
            return []
        return [self.compute.start(now, visit)]

    def _check_over(self, now: int) -> None:
        if self.ended and self._over_at is None:
            self._over_at = now
        if self._over_at is None or self.may_go:
            return
        quiet = self.mesh.is_quiet if self.ended else not self.mesh.unheard
        self.may_go = (quiet and self.compute.is_idle) or now - self._over_at > self.mesh.timing.drain

    def status(self, now: int, watch: p.Watch) -> p.PeerStatus:
        log, mesh, ended = self.log, self.mesh, self.log.ended
        moved = {**log.moved, mesh.me.life: self._traffic()}.values()
        counts = {name: number for name, number in log.counts.items() if number}
        if partly := log.partly(self._leader.is_closed):
            counts[PARTLY] = partly
        return p.PeerStatus(
            request=watch.request,
            lead=mesh.leads,
            peers=mesh.all_peers,
            gone=dict(mesh.gone),
            done=log.done,
            limit=self.facts.limit[0],
            per_pass=self.facts.slots.per_pass,
            rows=log.rows,
            loss=log.loss,
            seconds=ended.seconds if ended is not None else self._leader.seconds(now),
            spent=list(log.spent),
            moved=(sum(sent for sent, _ in moved), sum(received for _, received in moved)),
            judged=[one for one in log.judged if one.number >= watch.judged][:MOST_EVALUATIONS],
            staleness=list(log.staleness),
            counts=counts,
            over=ended.why if ended is not None else log.halt.why if log.halt is not None else "",
            failed=ended.failed if ended is not None else False,
            ended=ended is not None,
        )
