"""A worker that trains: it asks for slots, runs a strategy over them, reports what counts.

A strategy sees one ``SlotStream``: a queue of slots, and what can be done with them. Where slots
come in steps, slots that come again get a stream of their own for each deal: other workers wait for
them, and this worker's other streams may wait for a later step.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from shoal import limits
from shoal.data.slots import Slot, SlotOrder, SlotRows
from shoal.emulation import Slowdown
from shoal.errors import Fenced, Invalid, ShoalError
from shoal.models.learner import Learner
from shoal.nodes.time_accounting import COMMUNICATE, IDLE, TimeAccounting
from shoal.nodes.worker import Worker, is_rolling_back
from shoal.schedule.intervals import runs, spread
from shoal.schedule.slot_queue import MOST
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.tables import TABLE, TALLY, Given
from shoal.wire import messages as m

_AHEAD = 500 * limits.MILLISECOND  # of work is asked for ahead
_REPORT = 200 * limits.MILLISECOND  # at least so often
_SOON = 2 * limits.MILLISECOND  # when there is nothing to do: at first, then twice that,
_LATER = 10 * limits.MILLISECOND  # up to this
_FEWEST = 4  # slots asked for
_FIRST = 16  # slots asked for at first, while it is not known how long one takes


class BatchSource(Protocol):
    """Reads the rows of slots."""

    def local(self, slot: Slot) -> SlotRows: ...
    def make_ready(self, queue: Iterable[int]) -> None: ...  # these slots come next


class SlotAlgorithm(Protocol):
    """What a trainer needs of a ``ServerStrategy``."""

    @property
    def in_steps(self) -> bool: ...
    async def run(self, stream: SlotStream) -> None: ...


class SlotStream:
    """A queue of slots for one run of a strategy, and what the strategy can do with them.

    A stream that is given slots ends with them. It belongs to one incarnation of its worker: a
    closed stream raises its error, so that nothing is pushed in the name of the next incarnation.
    """

    def __init__(self, trainer: Trainer, slots: Sequence[int] = ()) -> None:
        self._trainer = trainer
        self.queue: deque[int] = deque(slots)
        self._ends = bool(slots)
        self._waits: Task | None = None
        self._newer_reported: Task | None = None
        self.closed: Exception | None = None

    @property
    def over(self) -> bool:
        """No more slots will come."""
        return (self._ends or self._trainer.over) and not self.queue

    def next(self) -> Slot | None:
        """The next slot, if one is here."""
        if self.closed is not None:
            raise self.closed
        if not self.queue:
            return None
        trainer, slot = self._trainer, self.queue.popleft()
        if len(self.queue) == trainer.low:
            trainer.ask_now()
        trainer.batches.make_ready(self.queue)
        return divmod(slot, trainer.slots.per_pass)

    def put_back(self, slot: Slot | None) -> None:
        """Put a slot that was taken too early back to the front of the queue."""
        if slot is not None:
            self.queue.appendleft(self._number(slot))

    def more(self) -> Task:
        """Done when there may be another slot, or when it is over."""
        self._waits = Task("another slot")
        if self.queue or self._trainer.over or self.closed is not None:
            self._waits.finish(error=self.closed)
        return self._waits

    def is_void(self, slot: Slot) -> bool:
        """No worker can compute it: push it empty."""
        return self._number(slot) in self._trainer.void

    def give_back(self, slot: Slot) -> bool:
        """Give a slot back, some of whose weights are newer than its step.

        The worker that pushed it sees to it, with the weights of its step. False if it was given
        back before: then that worker is dead.
        """
        trainer, number = self._trainer, self._number(slot)
        if number in trainer._returned:
            return False
        trainer._returned.add(number)
        trainer._assigned.discard(number)
        trainer._to_return.append(number)
        trainer.ask_now()
        return True

    def report_newer(self) -> Task:
        """Done when the scheduler knows that a slot with newer weights will be pushed."""
        self._newer_reported = Task("say that some weights are newer")
        if self.closed is not None:
            self._newer_reported.finish(error=self.closed)
        else:
            self._trainer._newer.append(self._newer_reported)
            self._trainer.ask_now()
        return self._newer_reported

    def refuse(self, slot: Slot, why: str) -> None:
        """Its gradient cannot be pushed."""
        self._trainer._assigned.discard(self._number(slot))
        self._trainer.refused[self._number(slot)] = why

    @property
    def client(self) -> Client:
        if self.closed is not None:
            raise self.closed
        return self._trainer.worker.client

    def local(self, slot: Slot) -> SlotRows:
        """Its rows, with columns numbered by their own key list."""
        return self._trainer.batches.local(slot)

    def waited(self, task: Task) -> None:
        """This task was awaited: account for the time since the last call or computation."""
        self._trainer.times.waited(task.held, IDLE if task is self._waits else COMMUNICATE)

    def gradient(self, local: SlotRows, weights: Any, mean: bool) -> Task:
        """The summed loss and the gradient."""
        function = partial(self._trainer.learner.gradient, local, weights, mean)
        return self.compute(function, local.nonzeros // 2, len(local))

    def early(self, local: SlotRows, weights: Any, mean: bool) -> Task | None:
        """The same, while another gradient is computed; None where that would delay other work."""
        off_the_loop = local.nonzeros // 2 > limits.INLINE_ELEMENTS
        if self.closed is not None or self._trainer.pace is not None or not off_the_loop:
            return None
        return self.gradient(local, weights, mean)

    def compute(self, function: Callable[[], Any], cost: int, rows: int) -> Task:
        """Any other long computation: ``cost`` elements, for so many rows."""
        trainer = self._trainer
        trainer.times.computing()
        if (pace := trainer.pace) is not None:

            def delayed() -> Any:  # off the loop, which stays awake; ``close`` does not wait for it
                began = trainer.worker.clock()
                result = function()
                trainer.closed.wait(pace.extra(rows, (trainer.worker.clock() - began) / limits.SECOND))
                return result

            task = trainer.worker.compute(delayed, limits.INLINE_ELEMENTS + 1)
        else:
            task = trainer.worker.compute(function, cost)
        task.then(lambda _: trainer.times.computed())
        return task

    def push(self, slot: Slot, local: SlotRows | None, loss: float, task: Task) -> None:
        """This push is in flight: report the slot when it is counted."""
        pushed = partial(self._pushed, self._number(slot), 0 if local is None else len(local), loss)
        tally = self._tally(slot)
        if tally is None:
            task.then(pushed)
        else:
            tally.then(lambda _: task.then(pushed) if tally.error is None else None)

    def _pushed(self, slot: int, rows: int, loss: float, task: Task) -> None:
        trainer = self._trainer
        trainer._assigned.discard(slot)
        if task.error is not None:
            # The strategy may wait in a pull for this very push: the trainer ends this incarnation.
            self.close(task.error)
        else:
            trainer._counted.append(slot)
            trainer._examples += rows
            trainer._loss += loss
            trainer._done += 1

    def _tally(self, slot: Slot) -> Task | None:
        """Add 1 to the slot's own key, where there is a tally; done when that is counted."""
        if TALLY not in self.client.session.layouts:
            return None
        task = self.client.push(TALLY, [self._number(slot)], [1.0], slot=slot, step=0)
        self._trainer.tallies[task] = None
        task.then(self._tallied)
        return task

    def _tallied(self, task: Task) -> None:
        self._trainer.tallies.pop(task, None)
        if task.error is not None:
            self.close(task.error)  # as for any push that fails for good: this incarnation ends

    def _number(self, slot: Slot) -> int:
        return slot[0] * self._trainer.slots.per_pass + slot[1]

    def wake(self) -> None:
        if self._waits is not None:
            self._waits.finish()

    def close(self, error: Exception) -> None:
        """This incarnation is over: a strategy that still runs here meets the error."""
        self.closed = error
        self.queue.clear()
        for task in (self._waits, self._newer_reported):
            if task is not None:
                task.finish(error=error)


class Trainer:
    """One worker's part in a run."""

    def __init__(
        self,
        worker: Worker,
        strategy: SlotAlgorithm,
        learner: Learner,
        batches: BatchSource,
        slots: SlotOrder,
        traffic: Callable[[], tuple[int, int]],
        pace: Slowdown | None = None,
        spans: int = 0,
        most: int = 0,
    ) -> None:
        """``pace`` delays computation; ``spans`` are reported a second; ``most``: of slots."""
        self.worker, self.strategy, self.learner, self.batches = worker, strategy, learner, batches
        self.slots, self.pace = slots, pace
        self.over = False
        self.leaving = False
        self.void: set[int] = set()
        self.refused: dict[int, str] = {}
        self.low = 0  # slots in the queue at which more are asked for
        self.tallies: dict[Task, None] = {}  # in flight
        self.times = TimeAccounting(worker.clock, spans)
        self._life = 0  # the incarnation that the slots here were dealt to
        self._generation = 0  # when it began
        worker.on_fenced, worker.on_leaving = self._fenced, self.leave
        worker.client.dispatcher.patient = True  # a silent node may return; else the view says so
        self._traffic = traffic
        self.closed = threading.Event()  # ends the delays of emulated computation
        self._stream = SlotStream(self)
        self._streams: dict[SlotStream, Task] = {}  # the first, and those of slots that came again
        self._assigned: set[int] = set()  # slots dealt to us, not pushed or refused yet
        self._highest = 0  # of those on the first stream
        self._counted: list[int] = []
        self._to_return, self._returned = list[int](), set[int]()  # slots to give back; given back
        self._newer: list[Task] = []  # slots with newer weights: reported before they are pushed
        self._examples, self._loss = 0, 0.0
        self._rate = 0.0  # slots a second
        self._idle = _SOON
        self._pause_task: Task | None = None
        self._done = self._measured = self._last = 0
        self._leaves_since = 0
        self._max_slots, self._slots_taken = most, 0  # 0: no bound; slots it has had

    def start(self) -> Task:
        """The task is done when this worker has nothing more to do."""
        return self.worker.start(self._work())

    def leave(self) -> None:
        """Finish what is begun, give the rest back, and leave. From any thread."""
        self.leaving = True

    def ask_now(self) -> None:
        """Few slots are left: do not wait for the next report."""
        if self._pause_task is not None:
            self._pause_task.finish()

    async def _work(self) -> None:
        """One incarnation after another, until nothing is left: a fenced one joins again."""
        await self.worker.joined
        while True:
            try:
                await self._live()
                return
            except Fenced:
                self._forget()
            except ShoalError:
                self._fenced()  # all other streams end with it
                try:
                    if not await is_rolling_back(self.worker, self._generation):
                        raise
                    while not self.over:  # until the rollback fences us, ask for nothing
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
        session = self.worker.client.session
        self._life, self._generation = session.incarnation, session.view.generation
        self.times.skip()
        self._run(self._stream)
        while self._streams:
            await self._report()
            if self._max_slots and self._slots_taken >= self._max_slots and not any(one.queue for one in self._streams):
                self.leaving = True  # it may be waiting for slots of other workers
            if self._is_stuck_leaving():
                break
            for stream, task in list(self._streams.items()):
                if task.done:
                    await task  # a failed one ends this incarnation: others may wait for it
                    del self._streams[stream]
                elif stream.closed is not None:
                    raise stream.closed  # a push failed: the stream may wait for that push
            self._pause_task = self.worker.sleep(self._pause())
            await self._pause_task
        for task in list(self.tallies):
            await task
        if self.leaving and not self.strategy.in_steps:
            await self.worker.client.flush(TABLE)
        await self._report()

    def _is_stuck_leaving(self) -> bool:
        """Whether it wants to leave, and its last slots are in a step that no worker completes.

        Perhaps all others want to leave, too. So it leaves: the worker that is dealt these slots
        again pushes them under the same numbers, and servers count them once.
        """
        if not self.leaving or not self.strategy.in_steps:
            return False
        self._leaves_since = self._leaves_since or self.worker.now
        return self.worker.now - self._leaves_since > self.worker.member.timing.drain

    def _check_module(self) -> None:
        """Refuse a module that differs from the run's: it would learn nothing, or nonsense."""
        initial, start = self.worker.client.session.layout(TABLE).spec.initial, self.learner.start()
        if isinstance(initial, Given) and start is not None and start[1] != initial.about:
            what = (
                f"the module of {self.worker.name} is not the run's: it has {start[1]}, the run's has {initial.about}"
            )
            raise Invalid(f"{what}: build it on every node by the same code, from the same files, without randomness")

    def _run(self, stream: SlotStream) -> None:
        self._streams[stream] = self.worker.start(self.strategy.run(stream))

    def _fenced(self) -> None:
        for stream in self._streams:
            stream.close(Fenced(self.worker.name, self._life))

    def _forget(self) -> None:
        """The slots of this incarnation are dealt to others; rows that were read stay."""
        self.over = False
        self._stream, self._streams, self.tallies = SlotStream(self), {}, {}
        self._assigned, self._highest, self._to_return, self._newer = set(), 0, [], []
        self._counted, self._examples, self._loss, self.refused = [], 0, 0.0, {}

    async def _report(self, idle: bool = False) -> None:
        """Report what is counted and ask for more slots; ``idle``: ask for none."""
        back, self._to_return = self._to_return, []
        client, leaving = self.worker.client, self.leaving
        if client.session.incarnation != self._life:  # a deal would be for the next incarnation
            raise Fenced(self.worker.name, self._life)
        if leaving:
            for stream in self._streams:
                back += stream.queue
                stream.queue.clear()
            self._assigned.difference_update(back)
        more = 0 if idle else self._slots_to_request()
        counted, examples, loss, refused = self._counted, self._examples, self._loss, self.refused
        self._counted, self._examples, self._loss, self.refused = [], 0, 0.0, {}
        newer, self._newer = self._newer, []
        holds = runs(sorted(self._assigned))  # one that is counted later is in the next report
        sent, received = self._traffic()
        filtered, left = client.session.filter_bytes(), client.session.remainder_norms()
        spent, spans = self.times.take()

        def want(request: int) -> m.Message:
            return m.Want(
                request, client.session.incarnation, more, counted=runs(sorted(counted)), back=runs(sorted(back)),
                refused=refused, examples=examples, loss=loss, sent=sent, received=received, leaving=leaving,
                holds=holds, newer=len(newer), spent=spent, spans=spans, filtered=filtered, left=left,
            )  # fmt: skip

        self._take(await client.ask("ask for slots", want, m.Deal))
        for task in newer:
            task.finish()

    def _slots_to_request(self) -> int:
        slots = self._rate * _AHEAD / limits.SECOND if self._rate else max(_FIRST, self._done)
        ahead = max(_FEWEST, min(MOST, int(slots)))
        self.low = ahead // 2
        more = 0 if self.leaving or self.over else max(0, ahead - len(self._stream.queue))
        return max(0, min(more, self._max_slots - self._slots_taken)) if self._max_slots else more

    def _take(self, deal: m.Deal) -> None:
        self.void.update(deal.void)
        # A restarted coordinator does not know what it dealt us before.
        again = [slot for slot in spread(deal.again, limits.LEDGER_WINDOW) if slot not in self._assigned]
        new = [slot for slot in spread(deal.slots, limits.LEDGER_WINDOW) if slot not in self._assigned]
        self._assigned.update(again, new)
        self._slots_taken += len(again) + len(new)
        if self.strategy.in_steps:  # a stream's slots ascend: others on it may wait for a lower one
            again += [slot for slot in new if slot < self._highest]
            new = [slot for slot in new if slot >= self._highest]
            self._highest = max(self._highest, *new, 0)
        if again and self.strategy.in_steps:
            self._run(SlotStream(self, sorted(again)))
        else:
            self._stream.queue.extendleft(reversed(again))
        self._stream.queue.extend(new)
        if deal.over:
            self.over = True
            for stream in self._streams:
                stream.queue.clear()  # all is counted, by whichever worker
        gone = set(spread(deal.late, limits.LEDGER_WINDOW))
        self._assigned -= gone
        for stream in self._streams:
            if gone:
                stream.queue = deque(slot for slot in stream.queue if slot not in gone)
            stream.wake()

    def _pause(self) -> int:
        now = self.worker.now
        if now - self._measured >= _REPORT:
            if self._measured:
                rate = (self._done - self._last) * limits.SECOND / (now - self._measured)
                self._rate = max(rate, self._rate / 2)
            self._measured, self._last = now, self._done
        if not self._stream.queue:
            self._idle = min(2 * self._idle, _LATER)
            return self._idle
        self._idle = _SOON
        return _REPORT if len(self._stream.queue) > self.low else _SOON
