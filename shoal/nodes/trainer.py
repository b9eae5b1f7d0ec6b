"""A worker that trains: it asks the coordinator for slots, runs a strategy over them, and reports what is counted.

It can read all rows and holds those of the slots it computed, up to a bound: what is dealt to it again in a later pass is
there, already in places of its own key list (S4-12, S4-13). Where slots come in steps, those that come again are computed on
lanes of their own, one for each deal: others wait for them, and this worker's other lanes may wait for a later step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from shoal import limits
from shoal.data.slots import SlotOrder
from shoal.emulation import Slowdown
from shoal.errors import Fenced, Invalid, ShoalError
from shoal.models.learner import Learner
from shoal.nodes.rollback_wait import goes_back
from shoal.nodes.slot_stream import SlotStream
from shoal.nodes.strategy import TABLE, TALLY, ServerStrategy, Slot, SlotRows
from shoal.nodes.time_accounting import TimeAccounting
from shoal.nodes.worker import Worker
from shoal.schedule.runs import runs, spread
from shoal.schedule.slot_queue import MOST
from shoal.store.client.task import Task
from shoal.tables import Given
from shoal.wire import messages as m

_AHEAD = 500 * limits.MILLISECOND  # of work is asked for ahead
_REPORT = 200 * limits.MILLISECOND  # at least so often
_SOON = 2 * limits.MILLISECOND  # when there is nothing to do: at first, then twice that,
_LATER = 10 * limits.MILLISECOND  # up to this
_FEWEST = 4  # slots asked for
_FIRST = 16  # at first: how long one takes is not known; then as many as are done
_NOTHING = Task("nothing to count")
_NOTHING.finish()


class BatchSource(Protocol):
    """Where a slot's rows are."""

    def local(self, slot: Slot) -> SlotRows: ...

    def make_ready(self, queue: Iterable[int]) -> None:
        """These slots come next."""


class Trainer:
    """One worker's part in a run."""

    def __init__(
        self,
        worker: Worker,
        strategy: ServerStrategy,
        learner: Learner,
        shelf: BatchSource,
        slots: SlotOrder,
        traffic: Callable[[], tuple[int, int]],
        pace: Slowdown | None = None,
        spans: int = 0,
        most: int = 0,
    ) -> None:
        """``pace`` holds computation up, ``spans`` is how many of a second's are told one by one; it leaves after ``most`` slots."""
        self.worker, self.strategy, self.learner, self.slots = worker, strategy, learner, slots
        self.over = False
        self.leaving = False
        self.void: set[int] = set()
        self.refused: dict[int, str] = {}
        self._life = 0  # the incarnation that the slots here were dealt to
        self._generation = 0  # when it began
        worker.on_fenced, worker.on_leaving = self._fenced, self.leave
        worker.client.dispatcher.patient = True  # who is silent may be back: if not, the view says so
        self._traffic, self._pace = traffic, pace
        self._closed = threading.Event()
        self.spent = TimeAccounting(worker.clock, spans)
        self._shelf = shelf
        self._lane = SlotStream(self)
        self._lanes: dict[SlotStream, Task] = {}  # at work: the first, and those of slots that came again
        self._mine: set[int] = set()  # slots that are dealt to us, and neither pushed nor refused
        self._highest = 0  # of those on the first lane
        self._counted: list[int] = []
        self._back, self._left = list[int](), set[int]()  # slots to be given back, and all that ever were
        self._tallies: dict[Task, None] = {}  # under way
        self._newer: list[Task] = []  # slots with weights that are newer in part: said before they are pushed
        self._examples, self._loss = 0, 0.0
        self._rate = 0.0  # slots a second
        self._idle = _SOON
        self._nap: Task | None = None
        self.low = 0  # slots in the queue at which more are asked for
        self._done = self._measured = self._last = 0
        self._leaves_since = 0
        self._most, self._taken = most, 0  # slots that it may have, and has had; 0: as many as there are

    def start(self) -> Task:
        """The task is done when this worker has nothing more to do."""
        return self.worker.start(self._work())

    def leave(self) -> None:
        """Finish what is begun, give the rest back, and go. From any thread."""
        self.leaving = True

    def ask_now(self) -> None:
        """Few slots are left: do not wait for the next report."""
        if self._nap is not None:
            self._nap.finish()

    def look_ahead(self, queue: deque[int]) -> None:
        """The slots to come are made ready while this one is seen to."""
        self._shelf.make_ready(queue)

    def number(self, slot: Slot) -> int:
        return slot[0] * self.slots.per_pass + slot[1]

    # ------------------------------------------------------------ computing

    def local(self, slot: Slot) -> SlotRows:
        return self._shelf.local(slot)

    def gradient(self, local: SlotRows, weights: Any, mean: bool) -> Task:
        return self.compute(partial(self.learner.gradient, local, weights, mean), local.nonzeros // 2, len(local))

    def compute(self, function: Callable[[], Any], cost: int, rows: int) -> Task:
        self.spent.computing()
        if self._pace is not None:
            task = self.worker.compute(partial(self._held_up, self._pace, function, rows), limits.INLINE_ELEMENTS + 1)
        else:
            task = self.worker.compute(function, cost)
        task.then(lambda _: self.spent.computed())
        return task

    def computes_beside(self, local: SlotRows) -> bool:
        """On a thread of its own, and as fast as it can."""
        return self._pace is None and local.nonzeros // 2 > limits.INLINE_ELEMENTS

    def _held_up(self, pace: Slowdown, function: Callable[[], Any], rows: int) -> Any:
        """Off the loop, which stays awake; whoever ends the worker does not wait for it."""
        began = self.worker.clock()
        result = function()
        self._closed.wait(pace.extra(rows, (self.worker.clock() - began) / limits.SECOND))
        return result

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._closed.set()

    def tally(self, lane: SlotStream, slot: Slot) -> Task:
        """Add 1 to the slot's own key, where an account is kept; done when that is counted."""
        if TALLY not in lane.client.session.layouts:
            return _NOTHING
        task = lane.client.push(TALLY, [self.number(slot)], [1.0], slot=slot, step=0)
        self._tallies[task] = None
        task.then(partial(self._tallied, lane))
        return task

    def _tallied(self, lane: SlotStream, task: Task) -> None:
        self._tallies.pop(task, None)
        if task.error is not None:
            lane.close(task.error)  # as with any push that fails for good: this life ends

    def pushed(self, slot: int, rows: int, loss: float, task: Task) -> None:
        self._mine.discard(slot)
        if task.error is None:
            self._counted.append(slot)
            self._examples += rows
            self._loss += loss
            self._done += 1

    def refuse(self, slot: int, why: str) -> None:
        self._mine.discard(slot)
        self.refused[slot] = why

    def leaves(self, slot: int) -> bool:
        """Give it back: who pushed it will see to it, with the weights of its step. If it comes again, that one is dead."""
        if slot in self._left:
            return False
        self._left.add(slot)
        self._mine.discard(slot)
        self._back.append(slot)
        self.ask_now()
        return True

    def admit(self, newer: Task) -> None:
        """Finished when who deals has heard of it."""
        self._newer.append(newer)
        self.ask_now()

    # ------------------------------------------------------------ life

    async def _work(self) -> None:
        """A life after another, until nothing is left: one that was declared dead joins again and starts afresh."""
        await self.worker.joined
        while True:
            try:
                await self._live()
                return
            except Fenced:
                self._forget()
            except ShoalError:
                self._fenced()  # whatever else is under way ends with it
                try:
                    if not await goes_back(self.worker, self._generation):
                        raise
                    while not self.over:  # nothing is asked for: we are fenced when it has gone back
                        await self._report(idle=True)
                        await self.worker.sleep(_REPORT)
                    return
                except Fenced:
                    self._forget()

    async def _live(self) -> None:
        while TABLE not in self.worker.client.session.layouts or not self.worker.client.session.incarnation:
            await self.worker.client.refresh()
            await self.worker.sleep(20 * limits.MILLISECOND)
        self._check_module()
        self._life, self._generation = (
            self.worker.client.session.incarnation,
            self.worker.client.session.view.generation,
        )
        self.spent.skip()
        self._run(self._lane)
        while self._lanes:
            await self._report()
            if self._most and self._taken >= self._most and not any(lane.queue for lane in self._lanes):
                self.leaving = True  # others may be what it waits for
            if self._waits_in_vain():
                break
            for lane, task in list(self._lanes.items()):
                if task.done:
                    await task  # one that failed ends this life: another may wait for its slot
                    del self._lanes[lane]
                elif lane.closed is not None:
                    raise lane.closed  # a push failed for good, and what the lane waits for may wait for that push
            self._nap = self.worker.sleep(self._pause())
            await self._nap
        for task in list(self._tallies):
            await task
        if self.leaving and not self.strategy.in_steps:
            await self.worker.client.flush(TABLE)
        await self._report()

    def _waits_in_vain(self) -> bool:
        """It would go, and its last slots are held in a step that nobody completes: perhaps all others would go, too.

        So it goes: whoever is dealt these slots again pushes them under the same numbers, and servers count them once.
        """
        if not self.leaving or not self.strategy.in_steps:
            return False
        self._leaves_since = self._leaves_since or self.worker.now
        return self.worker.now - self._leaves_since > self.worker.member.timing.drain

    def _check_module(self) -> None:
        """A module that is another one here would learn nothing, or nonsense."""
        initial, start = self.worker.client.session.layout(TABLE).spec.initial, self.learner.start()
        if isinstance(initial, Given) and start is not None and start[1] != initial.about:
            raise Invalid(
                f"the module of {self.worker.name} is not the run's: it has {start[1]}, the run's has {initial.about}: "
                f"see that every node makes it by the same code, from the same files, without chance"
            )

    def _run(self, lane: SlotStream) -> None:
        self._lanes[lane] = self.worker.start(self.strategy.run(lane))

    async def _report(self, idle: bool = False) -> None:
        """Say what is counted, ask for more; unless there is nothing to do it with."""
        back, self._back = self._back, []
        client, leaving = self.worker.client, self.leaving
        if client.session.incarnation != self._life:  # what would be dealt now is for the next life
            raise Fenced(self.worker.name, self._life)
        if leaving:
            for lane in self._lanes:
                back += lane.queue
                lane.queue.clear()
            self._mine.difference_update(back)
        slots = self._rate * _AHEAD / limits.SECOND if self._rate else max(_FIRST, self._done)
        ahead = max(_FEWEST, min(MOST, int(slots)))
        self.low = ahead // 2
        more = 0 if leaving or self.over or idle else max(0, ahead - len(self._lane.queue))
        if self._most:
            more = max(0, min(more, self._most - self._taken))
        counted, examples, loss, refused = self._counted, self._examples, self._loss, self.refused
        self._counted, self._examples, self._loss, self.refused = [], 0, 0.0, {}
        newer, self._newer = self._newer, []
        holds = runs(sorted(self._mine))  # now: what is counted a moment later is told with the next report
        sent, received = self._traffic()
        filtered, left = client.session.filtered(), client.session.left()
        spent, spans = self.spent.told()

        def want(request: int) -> m.Message:
            return m.Want(
                request, client.session.incarnation, more, counted=runs(sorted(counted)), back=runs(sorted(back)),
                refused=refused, examples=examples, loss=loss, sent=sent, received=received, leaving=leaving,
                holds=holds, newer=len(newer), spent=spent, spans=spans, filtered=filtered, left=left,
            )  # fmt: skip

        self._take(await client.ask("ask for slots", want, m.Deal))
        for task in newer:
            task.finish()

    def _take(self, deal: m.Deal) -> None:
        self.void.update(deal.void)
        again, new = (
            [slot for slot in spread(dealt, limits.LEDGER_WINDOW) if slot not in self._mine]  # a coordinator that was
            for dealt in (deal.again, deal.slots)  # started again does not know what its former life dealt us
        )
        self._mine.update(again, new)
        self._taken += len(again) + len(new)
        if self.strategy.in_steps:  # a lane goes up: what comes late may be what the others on it wait for
            again += [slot for slot in new if slot < self._highest]
            new = [slot for slot in new if slot >= self._highest]
            self._highest = max(self._highest, *new, 0)
        if again and self.strategy.in_steps:
            self._run(SlotStream(self, sorted(again)))
        else:
            self._lane.queue.extendleft(reversed(again))
        self._lane.queue.extend(new)
        if deal.over:
            self.over = True
            for lane in self._lanes:
                lane.queue.clear()  # all is counted, whoever did it
        self._drop(deal.late)
        self._wake()

    def _drop(self, late: list[tuple[int, int]]) -> None:
        """Others were faster with these."""
        if not late:
            return
        gone = set(spread(late, limits.LEDGER_WINDOW))
        self._mine -= gone
        for lane in self._lanes:
            lane.queue = deque(slot for slot in lane.queue if slot not in gone)

    def _pause(self) -> int:
        """How long to wait before asking again."""
        now = self.worker.now
        if now - self._measured >= _REPORT:
            if self._measured:
                rate = (self._done - self._last) * limits.SECOND / (now - self._measured)
                self._rate = max(rate, self._rate / 2)
            self._measured, self._last = now, self._done
        if not self._lane.queue:
            self._idle = min(2 * self._idle, _LATER)
            return self._idle
        self._idle = _SOON
        return _REPORT if len(self._lane.queue) > self.low else _SOON

    def _wake(self) -> None:
        for lane in self._lanes:
            lane.wake()

    def _fenced(self) -> None:
        for lane in self._lanes:
            lane.close(Fenced(self.worker.name, self._life))

    def _forget(self) -> None:
        """What this life had is dealt to others; rows that were read stay."""
        self.over = False
        self._lane, self._lanes, self._tallies = SlotStream(self), {}, {}
        self._mine, self._highest, self._back, self._newer = set(), 0, [], []
        self._counted, self._examples, self._loss, self.refused = [], 0, 0.0, {}
