"""The segments of one table that one server is primary of, from push to pull.

Each segment has a version, a ledger and the workers' clocks, kept as small arrays with one entry
per segment: one message is one lookup in each, however many segments it covers. A push is
counted once in every segment it covers, or not at all there. A pull is answered when the table's
rule allows it; until then the client gets a notice, once a second, of what it waits for.

    apply = each    counted on arrival; pulls wait for the slowest worker's clock
    apply = step    held until all slots of the step are here; pulls wait for the segment's version

One step at a time is on its way to the backups. A snapshot at a step is taken when every segment
has reached it, before any goes on.

A sparse table admits a key after enough pushes, and evicts rows that are zero again. The primary
decides both. Admission comes before a change, so backups never see the rest. Eviction is a change
of its log, kind ``evict``, which says when and not which: replicas have the same zeros. A sweep is
due when rows have doubled since the last one, or four times as many keys were pushed as there are
rows.

Nothing here knows who is a member: ``nodes.server`` has checked that. Long computations are handed
out (``LongComputation``), and everything else waits until they are back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal import limits
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, KeyValues
from shoal.limits import EVICT_ROWS
from shoal.store.server.aggregate import OpenStep, SlotPiece
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.ledger import Mask, Numbers
from shoal.store.server.load import SegmentLoad
from shoal.store.server.outcome import Continuation, HandlerResult, LongComputation, PendingRequest
from shoal.store.server.replicate import LogEntry, ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.admission import Admission
from shoal.store.table.slab import SparseRows
from shoal.store.table.table import RowStorage
from shoal.tables import Each, Sparse, Step, Wire
from shoal.tables import Table as Spec
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send
from shoal.wire.messages.base import Events

AdmittedCallback = Callable[[int, KeyValues | None], HandlerResult]
_PulledRows = tuple[list[m.Array], int, Wire, int]  # arrays, rest from, form, rows


class Primary(SegmentState):
    """The segments of one table that one server is primary of."""

    def __init__(
        self,
        number: int,
        spec: Spec,
        segments: Sequence[tuple[int, KeyRange]],
        inline: int,
        log: ReplicationLog | None = None,
        storage: RowStorage | None = None,
    ) -> None:
        super().__init__(number, spec, segments, storage)
        self.inline, self.log = inline, log or ReplicationLog(number, 0)
        self.staleness: Numbers = np.zeros(limits.STALENESS_BUCKETS, np.int64)
        self.counts: Counter[str] = Counter()
        self.key_lists = KeyLists(0)  # the server sets its own
        self.segment_load = SegmentLoad(spec, segments)
        self._open_steps: dict[int, OpenStep] = {}  # by step
        # Slots of steps that are not complete: step, slot, request.
        self._held_pushes: dict[tuple[str, int], tuple[int, int, PendingRequest]] = {}
        self._waiting_pulls: dict[tuple[str, int], PendingRequest] = {}  # for clocks or versions
        self._replicating: dict[tuple[str, int], PendingRequest] = {}  # until on all backups
        self._writing = False  # a change is being written off the loop
        # Workers, all members: by the last view.
        self.members: tuple[dict[int, str], dict[int, str]] | None = None
        self._snapshot: tuple[int, Continuation] | None = None  # wanted at this version
        # A step is being replicated: the next one waits.
        self._closing = any(entry.change.kind == "step" for entry in self.log.entries)
        rows = self.table.storage
        counts = isinstance(spec, Sparse) and spec.admit > 1 and isinstance(rows, SparseRows)
        self._admission = Admission(rows, spec.admit, spec.span) if counts else None  # type: ignore[arg-type, union-attr]
        self._sweeps_by_rows = isinstance(spec, Sparse) and spec.evict and isinstance(spec.apply, Each)
        self._rows_after_sweep: int | None = None
        self._pushed_since_sweep = 0  # keys

    def take_over(self, before: Primary, same: Mapping[int, int]) -> None:
        """Take over from ``before``; ``same`` segments: number now -> number then."""
        self.staleness, self.counts = before.staleness, before.counts
        self.segment_load.take_over(before.segment_load, same)
        self._admission, self._pushed_since_sweep = before._admission, before._pushed_since_sweep
        if self._admission is not None:
            self._admission.keep_held()

    # ------------------------------------------------------------ the view

    def set_members(self, workers: dict[int, str], clients: dict[int, str]) -> HandlerResult:
        """Take the members of a new view: nothing waits for the departed."""
        self.members = workers, clients
        departed = self.drop_departed(workers, clients)
        for pending in (self._waiting_pulls, self._replicating):
            for key in [key for key, request in pending.items() if request.message.incarnation not in clients]:
                del pending[key]
        held = {key: request for key, (_, _, request) in self._held_pushes.items()}
        for key in [key for key, request in held.items() if request.message.incarnation not in clients]:
            del self._held_pushes[key]  # its slot stays: it may still be counted
        return self._answer_waiting() if departed else HandlerResult()

    def set_delay(self, spec: Spec) -> HandlerResult:
        """Change the table's ``max_delay``."""
        self.spec = spec
        self.clocks.max_delay = spec.max_delay
        return self._answer_waiting()

    def refuse_waiting(self, view: int) -> list[Effect]:
        """The segments change: all waiting clients must ask again, by this view."""
        held = {key: request for key, (_, _, request) in self._held_pushes.items()}
        requests = {**self._waiting_pulls, **self._replicating, **held}
        return [Send(request.client, m.SegmentsMoved(request.message.request, view)) for request in requests.values()]

    # ------------------------------------------------------------ push

    def push(self, now: int, sender: str, push: m.Push, sent: m.Arrays) -> HandlerResult:
        """Count a push once in every segment that it covers; or hold the slot of a step."""
        try:
            covered = self.check.covered(push.first, push.last)
            if (arrays := self.key_lists.resolve(push, self.check.unfiltered(push, sent), self.table)) is None:
                return HandlerResult([Send(sender, m.Forgot(push.request))])
            pushed = self.check.key_values(push, arrays, covered)
            keys = np.empty(0, np.uint64) if pushed is None else pushed.keys
            keys = self.check.keys_ahead(push, arrays, covered) if push.ahead >= 0 else keys
            slot = self.check.slot(push)
        except Invalid as error:
            return self._refuse(sender, push.request, error)
        self.counts["bytes in"] += sum(array.nbytes for array in sent)
        if pushed is not None:
            self.segment_load.count(pushed.keys)
        if push.pull:
            self.segment_load.count(keys)
        request = PendingRequest(sender, push, keys, now, covered)
        if self._replicating and request.id in self._replicating:
            return self._notify_replicating(now, request)
        if slot is not None:
            return self._push_slot(now, request, slot, pushed)
        if self.log.is_full:
            self.counts["copies behind"] += 1
            return self._busy(request, self.log.waits_for())
        return self._push_each(now, request, pushed)

    def _push_each(self, now: int, request: PendingRequest, pushed: KeyValues | None) -> HandlerResult:
        """Count a push now, in the segments that have not counted it."""
        push = request.message
        assert isinstance(push, m.Push)
        stream = self.ledger.stream(push.stream)
        floor = push.floor if push.stream < 0 else 0
        if not stream.fits(push.number, floor) or not self.clocks.fits(push.incarnation, push.step):
            reason = f"more than {limits.LEDGER_WINDOW:,} ahead of the first missing"
            error = Invalid(f"number {push.number}, step {push.step}: {reason}")
            return self._refuse(request.client, push.request, error)
        fresh = stream.fresh(push.number, request.covered)
        if fresh is not None and (waits := self.log.pending(push.stream, push.number)) is not None:
            fresh = fresh & ~waits if (fresh & ~waits).any() else None
        if fresh is None:
            return self._push_repeated(now, request)
        request.partial = fresh is not request.covered and not (fresh == request.covered).all()
        counts = self._damp(self.check.restrict(pushed, fresh, request.covered), push.read, fresh)

        def make(now: int, counts: KeyValues | None) -> HandlerResult:
            outcome = self._replicate(now, self._push_change(push, "push", fresh), counts, request, fresh)
            if request.partial:
                tick = self._push_change(push, "tick", request.covered)
                outcome += self._replicate(now, tick, None, None, request.covered)
            return outcome

        return self._when_admitted(now, counts, make)

    def _push_repeated(self, now: int, request: PendingRequest) -> HandlerResult:
        """The push was counted already, perhaps for another worker; the clock ticks anyway."""
        push = request.message
        assert isinstance(push, m.Push)
        self.counts["repeated"] += 1
        return self._replicate(now, self._push_change(push, "tick", request.covered), None, request, request.covered)

    def _push_change(self, push: m.Push, kind: str, segments: Mask) -> m.ReplicatedChange:
        return m.ReplicatedChange(
            0,
            kind,
            only=[] if segments is self.check.all_mask else self.check.numbers_in(segments),
            stream=push.stream,
            number=push.number,
            floor=push.floor,
            incarnation=push.incarnation,
            step=push.step,
            spell=push.spell,
            entered=push.entered,
        )

    def _answer_push(self, now: int, request: PendingRequest, new: bool) -> HandlerResult:
        push = request.message
        assert isinstance(push, m.Push)
        request.new = new
        if push.pull:
            return self._answer_or_wait(now, request)
        return HandlerResult([Send(request.client, m.Counted(push.request, new, new and request.partial))])

    def _refuse(self, sender: str, request: int, error: Invalid) -> HandlerResult:
        self.counts["refused"] += 1
        kind = "keys" if isinstance(error, BadKeys) else "values" if isinstance(error, BadValues) else "setting"
        return HandlerResult([Send(sender, m.Refusal(request, kind, str(error)))])

    def _busy(self, request: PendingRequest, why: str) -> HandlerResult:
        self.counts["busy"] += 1
        return HandlerResult([Send(request.client, m.Busy(request.message.request, limits.BUSY_RETRY, why))])

    def _refuse_no_memory(self, request: PendingRequest, rows: KeyValues) -> HandlerResult:
        reason = f"no memory for {len(rows)} more rows: add servers, or push fewer new keys"
        return HandlerResult([Send(request.client, m.Refusal(request.message.request, "full", reason))])

    # ------------------------------------------------------------ slots of a step

    def _push_slot(
        self, now: int, request: PendingRequest, slot: tuple[int, int], pushed: KeyValues | None
    ) -> HandlerResult:
        """Hold a slot of a step, and close the step if it was the last."""
        step, place = slot
        push = request.message
        assert isinstance(push, m.Push) and isinstance(self.spec.apply, Step)
        if (self.version[request.covered] > step).all():
            self.counts["repeated"] += 1
            return self._answer_push(now, request, new=False)
        oldest = int(self.version.min())
        if step - oldest >= limits.STEPS_AHEAD or (step > oldest and self._held_bytes() > limits.HELD_BYTES):
            return self._busy(request, f"step {step} is too far ahead of {self._missing_slots(oldest, '')}")
        opened = self._open_steps.get(step)
        if opened is None:
            opened = self._open_steps[step] = OpenStep.of(step, self.spec.apply.slots_in(step), len(self.check))
        fresh = request.covered & (self.version <= step) & ~opened.arrived[:, place]
        if fresh.any():
            opened.add(place, SlotPiece(fresh, self.check.restrict(pushed, fresh, request.covered), push.void))
            if push.read:
                self._record_staleness(step, push.read, fresh)
            if push.void:
                self.counts["void"] += 1
        else:
            self.counts["held again"] += 1
            request.new = self._is_from_same_worker(request, step, place)
        self._held_pushes[request.id] = (step, place, request)
        outcome = self._close_steps(now)
        if request.id in self._held_pushes:
            outcome.effects.append(self._notify_held(now, step, request))
        return outcome

    def _is_from_same_worker(self, request: PendingRequest, step: int, place: int) -> bool:
        """Whether the held slot came from the same worker, perhaps by another view."""
        same_slot = (one for at, where, one in self._held_pushes.values() if (at, where) == (step, place))
        return any(one.new and one.message.incarnation == request.message.incarnation for one in same_slot)

    def _close_steps(self, now: int) -> HandlerResult:
        """Replicate the next step if all its slots are here; one at a time."""
        apply = self.spec.apply
        assert isinstance(apply, Step)
        step = int(self.version.min())
        opened = self._open_steps.get(step)
        if opened is None or self._closing:
            return HandlerResult()
        if self._snapshot is not None and step >= self._snapshot[0]:
            outcome = self._take_snapshot(now)
            outcome.computations.append(LongComputation(lambda: None, self._close_steps, None))
            return outcome
        ready = opened.complete() & (self.version == step)
        if not ready.any():
            return HandlerResult()
        total = opened.total(apply.combine == "mean", self.table.keys_held)
        if total is not None and not ready.all():
            total = self.check.restrict(total, ready, self.check.all_mask)
        ready = self.check.all_mask if ready.all() else ready
        self._closing = True
        change = m.ReplicatedChange(0, "step", only=self.check.numbers_in(ready))
        return self._when_admitted(now, total, lambda now, total: self._replicate(now, change, total, None, ready))

    def _finish_step(self, now: int, entry: LogEntry) -> HandlerResult:
        """A step is applied: answer its pushes, and continue with the next."""
        self._closing = False
        if not entry.segments.any():  # all have another primary by now
            return self._close_steps(now)
        self.counts["steps"] += 1
        step = int(self.version[entry.segments].max()) - 1
        if (self.version > step).all():
            self._open_steps.pop(step, None)
        outcome = HandlerResult()
        for request in self._pop_counted(step):
            outcome += self._answer_push(now, request, new=request.new)
        outcome += self._answer_waiting()
        if self._snapshot is not None and int(self.version.min()) >= self._snapshot[0]:
            outcome += self._take_snapshot(now)
        if not outcome.computations:
            return outcome + self._close_steps(now)
        # Long pulls read this version: the next step must not be taken before they have.
        outcome.computations.append(LongComputation(lambda: None, self._close_steps, None))
        return outcome

    def _pop_counted(self, step: int) -> list[PendingRequest]:
        """Take out the pushes whose slot of this step is counted in all segments they named."""
        of_step = {key: one for key, (of, _, one) in self._held_pushes.items() if of == step}
        counted = [key for key, one in of_step.items() if (self.version[one.covered] > step).all()]
        return [self._held_pushes.pop(key)[2] for key in counted]

    def _held_bytes(self) -> int:
        return sum(opened.size for opened in self._open_steps.values())

    # ------------------------------------------------------------ changes
    # _replicate appends a change to the log; once all backups have it, apply_replicated takes it
    # out, _apply writes its rows (off the loop if that is long), and _finish_change answers.

    def _replicate(
        self,
        now: int,
        change: m.ReplicatedChange,
        rows: KeyValues | None,
        request: PendingRequest | None,
        segments: Mask,
        on_applied: Continuation | None = None,
    ) -> HandlerResult:
        """Replicate a change, then apply it; at once if there is nothing to wait for."""
        entry = LogEntry(change, rows, segments, request, on_applied)
        log = self.log
        if not log.links and not log.entries and not self._writing:
            log.seq += 1
            entry.change = change
            return self._apply(now, entry, log.seq)
        if request is not None:
            self._replicating[request.id] = request
        outcome = HandlerResult(list(log.append(now, entry, self.check.ranges, self.check.numbers)))
        return outcome + self.apply_replicated(now)

    def repeat(self, now: int, change: m.ReplicatedChange) -> HandlerResult:
        """Replicate a change that may be known; where it is, it changes nothing."""
        return self._replicate(now, change, None, None, self.check.all_mask)

    def apply_replicated(self, now: int, at_once: bool = False) -> HandlerResult:
        """Apply, in order, the changes that all replicas have; one at a time."""
        inline = self.inline
        if at_once:
            self.inline = 1 << 62
        outcome = HandlerResult()
        while not self._writing and (entry := self.log.pop_ready()) is not None:
            outcome += self._apply(now, entry, entry.change.seq)
            if outcome.computations:
                # A long pull reads first: the next change follows when it is done.
                if not self._writing:
                    outcome += self._continue_log()
                break
        self.inline = inline
        return outcome

    def _apply(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        """Apply the rows of a change: here if it is short, else off the loop."""
        change, rows, request, alone = entry.change, entry.rows, entry.request, not entry.change.seq
        work = self.work(change, rows, entry.segments)
        if not work:
            return self._finish_change(now, entry, seq)
        if work > self.inline:
            self._writing = True
            computation = LongComputation(
                lambda: self.write(change, rows, entry.segments),
                lambda now: self._applied_off_loop(now, entry, seq),
                (lambda: self._no_memory_off_loop(request, rows))
                if alone and request is not None and rows is not None
                else None,
            )
            return HandlerResult(computations=[computation])
        try:
            self.write(change, rows, entry.segments)
        except MemoryError:
            # The replicas have it: this server cannot continue without it.
            if not alone or request is None or rows is None:
                raise
            return self._refuse_no_memory(request, rows)
        return self._finish_change(now, entry, seq)

    def _applied_off_loop(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        """A long write is done: finish its change, then continue with the log."""
        self._writing = False
        outcome = self._finish_change(now, entry, seq)
        return outcome + self._continue_log() if self.log.entries else outcome

    def _no_memory_off_loop(self, request: PendingRequest, rows: KeyValues) -> HandlerResult:
        self._writing = False
        outcome = self._refuse_no_memory(request, rows)
        return outcome + self._continue_log() if self.log.entries else outcome

    def _continue_log(self) -> HandlerResult:
        """Apply more of the log after all computations queued so far."""
        return HandlerResult(computations=[LongComputation(lambda: None, self.apply_replicated, None)])

    def _finish_change(self, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        """The rows of a change are written: update the books, and answer the request."""
        change, segments, request = entry.change, entry.segments, entry.request
        everywhere = segments is self.check.all_mask
        if change.kind == "push":
            if change.step > 0 and self.clocks.is_ahead(change.incarnation, change.step):
                self.counts["out of order"] += 1
            if request is not None and isinstance(request.message, m.Push) and request.message.read:
                known = self.version if everywhere else self.version[segments]
                self._record_staleness(known, request.message.read, segments)
            self.counts["counted"] += 1
        self.record(change, segments, everywhere, entry.rows)
        self._count_evicted()
        if change.incarnation and self.members is not None and change.incarnation not in self.members[1]:
            # The worker left during replication: nothing may wait for it.
            self.drop_departed(*self.members)
        if change.seq:
            self.log.mark_applied(entry)
        else:
            self.log.applied = seq
        outcome = HandlerResult()
        if request is not None:
            if change.seq:
                self._replicating.pop(request.id, None)
            if isinstance(request.message, m.Push):
                outcome += self._answer_push(now, request, new=change.kind == "push")
            else:
                outcome += self._answer_or_wait(now, request)
        if entry.on_applied is not None:
            outcome += entry.on_applied(now)
        if change.kind == "step":
            return outcome + self._finish_step(now, entry)
        if change.kind == "push" and self._is_sweep_due(entry.rows):
            outcome += self._replicate(now, m.ReplicatedChange(0, "evict"), None, None, self.check.all_mask)
        return outcome + self._answer_waiting()

    # ------------------------------------------------------------ pull

    def pull(self, now: int, sender: str, pull: m.Pull, sent: m.Arrays) -> HandlerResult:
        """Answer a pull once the rule allows it; an enter or a raised clock is replicated first."""
        try:
            if pull.enter and isinstance(self.spec.apply, Step):
                raise Invalid("a table that is updated in steps has no clocks to enter")
            covered = self.check.covered(pull.first, pull.last)
            if (arrays := self.key_lists.resolve(pull, self.check.unfiltered(pull, sent), self.table)) is None:
                return HandlerResult([Send(sender, m.Forgot(pull.request))])
            keys = self.check.keys(pull, arrays[0] if arrays else None, covered)
        except Invalid as error:
            return self._refuse(sender, pull.request, error)
        self.segment_load.count(keys)
        request = PendingRequest(sender, pull, keys, now, covered)
        if self._replicating and request.id in self._replicating:
            return self._notify_replicating(now, request)
        who, spell, at = pull.incarnation, pull.spell, pull.entered
        if pull.enter and not self.clocks.has_entered(who, spell):
            if (entry := self.log.find_pending("enter", who, spell)) is not None:
                # The enter is being replicated: it answers the worker's latest request.
                if entry.request is not None:
                    self._replicating.pop(entry.request.id, None)
                entry.request = self._replicating[request.id] = request
                return HandlerResult()
            self.counts["returned from parking"] += self.clocks.is_parked(who, spell)
            level = self.clocks.entry_clock(who, at)
            change = m.ReplicatedChange(0, "enter", incarnation=who, spell=spell, entered=level, name=sender)
            return self._replicate(now, change, None, request, self.check.all_mask)
        if self.clocks.would_raise(who, spell, at):
            change = m.ReplicatedChange(0, "tick", incarnation=who, spell=spell, entered=at)
            return self._replicate(now, change, None, request, self.check.all_mask)
        return self._answer_or_wait(now, request)

    def _answer_or_wait(self, now: int, request: PendingRequest) -> HandlerResult:
        """Send the rows that a pull, or a counted push, asks for; or hold it until it may read."""
        if self._may_pull(request):
            return self._answer_pull(request)
        self.counts["waited"] += request.id not in self._waiting_pulls
        self._waiting_pulls[request.id] = request
        request.notified_at = now
        return HandlerResult([Send(request.client, m.RequestHeld(request.message.request, self._waits_for(request)))])

    def _may_pull(self, request: PendingRequest) -> bool:
        message = request.message
        if message.clock < 0 or (isinstance(message, m.Pull) and message.enter):
            return True
        if isinstance(self.spec.apply, Step):
            delay = self.spec.max_delay
            return delay is None or bool((self.version[request.covered] >= message.clock - delay).all())
        return self.clocks.may_pull(message.clock, request.covered)

    def _answer_pull(self, request: PendingRequest) -> HandlerResult:
        """Answer a pull: now if it is short, else off the loop, before the rows change."""
        if self.check.work(request.keys) <= self.inline:
            return HandlerResult([self._reply(request, *self._read_rows(request))])
        pulled: list[_PulledRows] = []
        no_memory = m.Refusal(request.message.request, "full", "no memory for so many rows")
        computation = LongComputation(
            lambda: pulled.append(self._read_rows(request)),
            lambda now: HandlerResult([self._reply(request, *pulled[0])]),
            lambda: HandlerResult([Send(request.client, no_memory)]),
        )
        return HandlerResult(computations=[computation])

    def _read_rows(self, request: PendingRequest) -> _PulledRows:
        """Read the rows of a pull, through the table's filters if the client accepts them."""
        arrays, resume, form = self.check.read(request.keys, request.message.form)
        count = len(arrays[-1]) // self.spec.width
        if request.message.filtered and self.check.chain is not None:
            arrays = self.check.chain.answer(arrays, self.spec.width)
        return arrays, resume, form, count

    def _reply(self, request: PendingRequest, arrays: list[m.Array], resume: int, form: Wire, count: int) -> Effect:
        message = request.message
        entered = m.NO_CLOCK
        if isinstance(message, m.Pull) and message.enter:
            entered = self.clocks.entered(message.incarnation)
        versions: list[int] = self.version.tolist()
        if versions.count(versions[0]) == len(versions):
            del versions[1:]
        clocks = self._clocks(request) if isinstance(message, m.Pull) and message.clocks else []
        self.counts["bytes out"] += sum(array.nbytes for array in arrays)
        if form != message.form:
            self.counts["not shortened"] += 1
        values = m.Values(
            message.request,
            count,
            versions,
            entered,
            resume,
            clocks,
            form,
            message.filtered and self.check.chain is not None,
            request.new,
            request.new and request.partial,
        )
        return Send(request.client, values, arrays)

    def _clocks(self, request: PendingRequest) -> Events:
        """The vector clocks of the keys of a pull: of a list, those of its segments."""
        covered = [keys for keys, on in zip(self.check.ranges, request.covered, strict=True) if on]
        if isinstance(request.keys, KeyRange):
            low, high = request.keys.start, request.keys.stop
            covered = [
                KeyRange(max(k.start, low), min(k.stop, high)) for k in covered if k.start < high and k.stop > low
            ]
        return [found for keys in covered for found in self.encoded_clocks(keys)]

    def _answer_waiting(self) -> HandlerResult:
        """Answer the pulls that may be answered now."""
        outcome = HandlerResult()
        for key in [key for key, request in self._waiting_pulls.items() if self._may_pull(request)]:
            outcome += self._answer_pull(self._waiting_pulls.pop(key))
        return outcome

    # ------------------------------------------------------------ workers that park

    def park(self, now: int, incarnation: int, spell: int, then: Continuation) -> HandlerResult:
        """End this spell of a worker; ``then`` answers once all replicas know."""
        # First: clocks that came with a segment may know of it before all replicas do.
        if (entry := self.log.find_pending("park", incarnation, spell)) is not None:
            # It is being replicated already: answer the latest request.
            entry.on_applied = then
            return HandlerResult()
        never_came = not self.clocks.knows(incarnation) and not self.log.has_enter_of(incarnation)
        if never_came or self.clocks.has_parked(incarnation, spell):
            return then(now)
        change = m.ReplicatedChange(0, "park", incarnation=incarnation, spell=spell)
        return self._replicate(now, change, None, None, self.check.all_mask, then)

    # ------------------------------------------------------------ which rows there are

    def _when_admitted(self, now: int, pushed: KeyValues | None, then: AdmittedCallback) -> HandlerResult:
        """Call ``then`` with the rows of a push that are admitted."""
        if self._admission is None or pushed is None:
            return then(now, pushed)
        if self.check.work(pushed.keys) <= self.inline:
            return then(now, self._admit(pushed))
        admitted: list[KeyValues | None] = []
        admit = LongComputation(lambda: admitted.append(self._admit(pushed)), lambda now: then(now, admitted[0]), None)
        return HandlerResult(computations=[admit])

    def _admit(self, pushed: KeyValues) -> KeyValues | None:
        assert self._admission is not None
        admitted = self._admission.admit(pushed)
        self.counts["not admitted"] += len(pushed) - (0 if admitted is None else len(admitted))
        return admitted

    def _is_sweep_due(self, pushed: KeyValues | None) -> bool:
        """Whether it is time to evict rows, after this push."""
        if not self._sweeps_by_rows or pushed is None:
            return False
        rows = self.table.rows
        if self._rows_after_sweep is None:  # the first rows may be just swept
            self._rows_after_sweep = max(0, rows - len(pushed))
        self._pushed_since_sweep += len(pushed)
        if rows < EVICT_ROWS or (rows < 2 * self._rows_after_sweep and self._pushed_since_sweep < 4 * rows):
            return False
        self._rows_after_sweep, self._pushed_since_sweep = rows, 0
        return True

    def _count_evicted(self) -> None:
        """Count the rows that a change has evicted."""
        if self.evicted:
            self.counts["evicted"] += self.evicted
            self.evicted, self._rows_after_sweep = 0, self.table.rows

    # ------------------------------------------------------------ staleness

    def _record_staleness(self, version: Numbers | int, read: list[int], fresh: Mask) -> None:
        age = self._age(version, read, fresh)
        if age >= 0:
            self.staleness[min(age, len(self.staleness) - 1)] += 1

    def _age(self, version: Numbers | int, read: list[int], fresh: Mask) -> int:
        """How many updates came between the read and now; -1: unknown."""
        if len(read) == 1 and fresh is self.check.all_mask:
            return max(0, int(version) - read[0] if isinstance(version, int) else int(version.max()) - read[0])
        known = np.asarray(read, np.int64)
        if len(known) not in (1, len(fresh)):
            return -1  # read by another placement
        return max(0, int((np.asarray(version) - (known if len(known) == 1 else known[fresh])).max()))

    def _damp(self, pushed: KeyValues | None, read: list[int], fresh: Mask) -> KeyValues | None:
        """Scale a stale gradient down, if the table says so."""
        above = self.spec.apply.damp_above if isinstance(self.spec.apply, Each) else None
        if above is None or pushed is None or not read:
            return pushed
        version = self.version if fresh is self.check.all_mask else self.version[fresh]
        if (age := self._age(version, read, fresh)) <= above:
            return pushed
        self.counts["damped"] += 1
        return KeyValues(pushed.keys, pushed.values * np.float32(above / age))

    # ------------------------------------------------------------ snapshots

    def when_at_version(self, now: int, clock: int, then: Continuation) -> HandlerResult | None:
        """Call ``then`` when every segment is at version ``clock``. None: that is past."""
        if clock >= 0:
            if int(self.version.max()) > clock:
                return None
            if int(self.version.min()) < clock:
                self._snapshot = (clock, then)
                return HandlerResult()
        return then(now)

    def _take_snapshot(self, now: int) -> HandlerResult:
        assert self._snapshot is not None
        (_, then), self._snapshot = self._snapshot, None
        return then(now)

    # ------------------------------------------------------------ notices and facts

    def notices(self, now: int) -> list[Effect]:
        """Notices to waiting clients, now and then, of what they wait for."""
        effects: list[Effect] = []
        for request in self._waiting_pulls.values():
            if now - request.notified_at >= self.log.timing.notice:
                request.notified_at = now
                effects.append(Send(request.client, m.RequestHeld(request.message.request, self._waits_for(request))))
        for request in self._replicating.values():
            if now - request.notified_at >= self.log.timing.notice:
                effects += self._notify_replicating(now, request).effects
        for step, _, request in self._held_pushes.values():
            if now - request.notified_at >= self.log.timing.notice:
                effects.append(self._notify_held(now, step, request))
        return effects

    def facts(self) -> tuple[dict[str, int], list[int]]:
        facts = {
            "rows": self.table.rows,
            "bytes": self.table.memory,
            "layout": self.table.layout,
            "segments": len(self.check),
            "version": int(self.version.min()),
            "waiting": len(self._waiting_pulls),
            "held": len(self._held_pushes) + len(self._replicating),
            **self.counts,
        }
        if self.check.chain is not None and self.check.chain.failed:
            facts["filters failed"] = self.check.chain.failed
        return facts, np.trim_zeros(self.staleness, "b").tolist()

    def _waits_for(self, request: PendingRequest) -> str:
        message = request.message
        if isinstance(self.spec.apply, Step):
            wanted = message.clock - (self.spec.max_delay or 0)
            return self._missing_slots(int(self.version[request.covered].min()), f"version {wanted}: ")
        return ", ".join(self.clocks.laggards(message.clock)) or "its turn"

    def _notify_replicating(self, now: int, request: PendingRequest) -> HandlerResult:
        request.notified_at = now
        return HandlerResult([Send(request.client, m.RequestHeld(request.message.request, self.log.waits_for()))])

    def _notify_held(self, now: int, step: int, request: PendingRequest) -> Effect:
        request.notified_at = now
        oldest = int(self.version.min())
        return Send(request.client, m.RequestHeld(request.message.request, self._missing_slots(min(step, oldest), "")))

    def _missing_slots(self, step: int, lead: str) -> str:
        opened = self._open_steps.get(step)
        if opened is None:
            return f"{lead}step {step}, of which no slot is here"
        assert isinstance(self.spec.apply, Step)
        start = self.spec.apply.first_slot(step)
        missing = [start + place for place in opened.missing()]
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        return f"{lead}slots {names} of step {step}" if missing else f"{lead}step {step}"
