"""A gossip worker: works through leg after leg, and rests while models are evaluated.

    worker      a progress report of leg 0, until the first leg comes: so that home can reach it
    home        Leg: these slots, among these neighbours; legs are counted from 1
    workers     take means with each other, in rounds (``synchronous``) or pairs (``pairwise``)
    worker      progress reports, now and then;  LegDone: this is my model, until home has it
    home        LegReceived, and the next Leg, or that the run is over

A message that is lost is repeated by the side that needs the answer; one that comes twice or late
changes nothing. Time and random numbers come from outside, as the simulator needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Literal

from shoal import limits
from shoal.emulation import Slowdown
from shoal.nodes.time_accounting import IDLE
from shoal.strategies.gossip.compute_queue import NEVER, ComputeQueue
from shoal.strategies.gossip.model import Floats, GossipModel, from_frames, to_frames
from shoal.strategies.gossip.pairwise import Pairwise
from shoal.strategies.gossip.synchronous import Synchronous
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.effects import Computed, Connect, Effect, Event, Received, Wake
from shoal.wire.messages import gossip as g

HOME = "home"  # the name of the controller
_LINKED = (g.Offer, g.Reached, g.Meet, g.MeetReply)  # between neighbours


class GossipWorker:
    def __init__(
        self,
        name: str,
        model: GossipModel,
        mode: Literal["sync", "async"] = "sync",
        *,
        chance: Random,
        pace: Slowdown | None = None,
        link: float = 0.0,
        clock: Callable[[], int] | None = None,
        traffic: Callable[[], tuple[int, int]] = lambda: (0, 0),
        quick: int = limits.MILLISECOND,
        timing: TimingSettings = DEFAULT,
    ) -> None:
        """``link``: seconds. ``clock`` is finer than the times of events. ``traffic``: bytes."""
        self.name, self._model, self._traffic = name, model, traffic
        self._link, self._timing = int(link * limits.SECOND), timing
        self.queue = ComputeQueue(model, pace, clock, quick)
        self.mixer: Synchronous | Pairwise
        if mode == "sync":
            self.mixer = Synchronous(self.queue, self._link, self._finished, timing)
        else:
            self.mixer = Pairwise(name, self.queue, chance, self._link, self._finished, timing)
        self.over = False
        self.is_resting = True  # until the next leg
        self._failed = False
        self._received_by_home = True
        self._slab: Floats | None = None  # sent to home
        self._lost_in: dict[str, int] = {}  # lost workers, and in which leg
        self._links: dict[str, str] = {}  # where neighbours are
        self._late: deque[tuple[int, Received]] = deque()  # held back by the emulation
        self._times = [0, 0, 0]
        self._model_bytes = 0  # bytes of models sent to home
        self._report_at, self._done_at = 0, NEVER
        self._wait = 0

    def handle(self, now: int, event: Event) -> list[Effect]:
        self.queue.now = now
        if isinstance(event, Received):
            if self._link and isinstance(event.message, _LINKED):
                self._late.append((now + self._link, event))
            else:
                self._received(event)
        elif isinstance(event, Computed):
            self.queue.computed(event)
        while self._late and self._late[0][0] <= now:
            self._received(self._late.popleft()[1])
        if not self.is_resting:
            self.mixer.tick(now)
        self.queue.turn(now)
        if self.queue.error and not self._failed:
            self._failed = True
            self._finished()
        self._report_if_due(now)
        late = self._late[0][0] if self._late else NEVER
        mixer = NEVER if self.is_resting else self.mixer.wake_at
        self.queue.emit(Wake(min(self.queue.wake_at, mixer, late, self._report_at, self._done_at)))
        return self.queue.effects()

    # ------------------------------------------------------------ messages in

    def _received(self, event: Received) -> None:
        sender, message, mixer = event.sender, event.message, self.mixer
        if sender == HOME:
            self._from_home(event)
        elif self.queue.error or (isinstance(message, g.Offer | g.Meet) and not event.arrays):
            return
        elif isinstance(mixer, Synchronous):
            if isinstance(message, g.Offer):
                mixer.offered(sender, message, from_frames(event.arrays))
            elif isinstance(message, g.Reached):
                mixer.reached(sender, message)
        elif isinstance(message, g.Meet):
            mixer.on_meet(sender, message, from_frames(event.arrays))
        elif isinstance(message, g.MeetReply):
            mixer.on_reply(sender, message, event.arrays)

    def _from_home(self, event: Received) -> None:
        match event.message:
            case g.Leg() as leg:
                self._begin(leg, event)
            case g.Without(number, name):
                if number >= self.mixer.leg:
                    self._lost_in[name] = max(number, self._lost_in.get(name, 0))
                if number == self.mixer.leg and not self.queue.error:
                    self.mixer.without(name)
            case g.Show(number):
                mixer = self.mixer
                if number == mixer.leg and self.is_resting and isinstance(mixer, Pairwise) and not mixer.frozen:
                    mixer.frozen, self._received_by_home = True, False
                    self._show()
            case g.LegReceived(number, over):
                self.over |= over
                if number == self.mixer.leg and (self._slab is not None or self.queue.error):
                    self._received_by_home, self._slab, self._done_at = True, None, NEVER

    def _begin(self, leg: g.Leg, event: Received) -> None:
        if leg.number == self.mixer.leg:
            self._report_at = self.queue.now  # repeated: report again
        if leg.number <= self.mixer.leg or not self.is_resting or self.queue.error:
            return
        self._received_by_home, self._slab, self.is_resting, self._done_at = True, None, False, NEVER
        self.queue.rows, self.queue.loss = 0, 0.0
        self.queue.times.record(IDLE)
        self._lost_in = {name: number for name, number in self._lost_in.items() if number >= leg.number}
        self._connect({one.name: one.address for one in (*leg.hears, *leg.tells)})
        self._report_at = self.queue.now + self._timing.heartbeat
        slots = event.arrays[0].tolist() if event.arrays else []
        self.mixer.begin(leg, slots, self._lost_in)

    def _connect(self, links: dict[str, str]) -> None:
        for name in sorted(self._links.keys() - links.keys()):
            self.queue.emit(Connect(name, ""))
        for name, address in links.items():
            if self._links.get(name) != address:
                self.queue.emit(Connect(name, address, mutual=True))
        self._links = links

    # ------------------------------------------------------------ messages out

    def _finished(self) -> None:
        self.is_resting, self._received_by_home, self._report_at = True, False, NEVER
        self._wait = self._timing.resend_first
        if isinstance(self.mixer, Synchronous) and not self.queue.error:
            self._show()
        else:
            self._done_at = self.queue.now

    def _show(self) -> None:
        slab = self._model.slab
        self.queue.do(slab.copy, self._have_slab, slab.size)

    def _have_slab(self, slab: Floats) -> None:
        self._slab, self._done_at, self._wait = slab, self.queue.now, self._timing.resend_first

    def _report_if_due(self, now: int) -> None:
        if now >= self._report_at:
            self._report_at = NEVER if self.is_resting and self.mixer.leg else now + self._timing.heartbeat
            waits = not self.is_resting and now - self.mixer.waits_since() >= self._timing.heartbeat
            self.queue.send(HOME, self._report(self.mixer.lacking() if waits else []))
        if now >= self._done_at and not self._received_by_home:
            self._done_at, self._wait = now + self._wait, min(2 * self._wait, self._timing.resend_most)
            self.queue.send(HOME, self._leg_done(), to_frames(self._slab) if self._slab is not None else ())
            self._model_bytes += self._slab.nbytes if self._slab is not None else 0

    def _report(self, lacks: list[str]) -> g.GossipProgressReport:
        mixer, queue = self.mixer, self.queue
        self._times = [before + more for before, more in zip(self._times, queue.times.take()[0][:3], strict=True)]
        sent, received = self._traffic()
        moved = (max(0, sent - self._model_bytes), received)  # without models sent for evaluation
        return g.GossipProgressReport(mixer.leg, mixer.round, queue.rows, queue.loss, self._times, *moved, lacks)

    def _leg_done(self) -> g.LegDone:
        mixer, now = self.mixer, self._report([])
        along = [now.rounds, now.rows, now.loss, now.sent, now.received, *now.spent]
        weight, met = (mixer.weight, 0) if isinstance(mixer, Synchronous) else (1.0, mixer.met)
        return g.LegDone(now.leg, [float(one) for one in along], weight, met, mixer.lost, self.queue.error)
