"""Broken variants of the store's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal import limits
from shoal.cluster.roster import Assignment, Roster
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.store.server.aggregate import OpenStep, SlotPiece
from shoal.store.server.backup import Backup
from shoal.store.server.clock import Clocks
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.ledger import Mask, PushStream
from shoal.store.server.outcome import HandlerResult, PendingRequest
from shoal.store.server.primary import Primary
from shoal.store.server.replicate import LogEntry, ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.server.table_server import FromServer, TableServer
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Send
from tests.support.mutants.patches import Mutants

MUTANTS = Mutants()
mutant = MUTANTS.replacing


@mutant(PushStream, "fresh")
def no_ledger(_: Any) -> Any:
    """Counted pushes are not remembered."""
    return lambda self, number, among: among


@MUTANTS.add
def pending_not_checked() -> Any:
    """A resent slot is held twice."""

    def push_slot(
        self: Primary, now: int, request: PendingRequest, slot: tuple[int, int], given: KeyValues | None
    ) -> HandlerResult:
        opened = self._open_steps.get(slot[0])
        if opened is not None and opened.arrived[:, slot[1]].any():
            opened.arrived[:, slot[1]] = False
        return real(self, now, request, slot, given)

    real = Primary._push_slot
    return mock.patch.multiple(Primary, _push_slot=push_slot)


@mutant(Primary, "push")
def ledger_expired_by_time(real: Any) -> Any:
    """Old entries of the ledger are forgotten."""

    def push(self: Primary, now: int, sender: str, push: Any, arrays: Any) -> Any:
        last = getattr(self.ledger, "last", {}) if hasattr(self.ledger, "last") else {}
        self.ledger.last = last  # type: ignore[attr-defined]
        if now - last.get(push.stream, now) > limits.SECOND // 2:
            self.ledger.drop(push.stream)
        last[push.stream] = now
        return real(self, now, sender, push, arrays)

    return push


@mutant(Roster, "join")
def incarnation_not_bumped(real: Any) -> Any:
    """A restarted node is taken for its earlier incarnation."""

    def join(self: Roster, now: int, name: str, role: str, token: str, address: str, number: int, group: str) -> Any:
        known = _lives.setdefault(id(self), {})
        return real(self, now, name, role, token, address, known.setdefault(name, number), group)

    _lives: dict[int, dict[str, int]] = {}
    return join


@mutant(coding, "check_arrays")
def array_checksum_not_checked(_: Any) -> Any:
    """A flipped bit inside an array is accepted."""
    return lambda header, frames: None


@mutant(ReplicationLog, "is_full")
def log_without_a_bound(_: Any) -> Any:
    """Pushes are accepted without a bound on waiting changes."""
    return False


@mutant(Clocks, "may_pull")
def delay_off_by_one(real: Any) -> Any:
    """Workers run one step further ahead than they may."""
    return lambda self, clock, segments: real(self, clock - 1, segments)


@mutant(Clocks, "tick")
def clock_by_count(_: Any) -> Any:
    """A clock counts any steps, instead of the complete prefix."""

    def tick(self: Clocks, incarnation: int, step: int, segments: Mask, everywhere: bool = False) -> None:
        if incarnation in self._workers and step > 0:
            stream = self._clock(incarnation)
            if stream.fresh(step - 1, segments) is not None:
                stream.raise_to(stream.mark + segments)
                self._slowest = None

    return tick


@mutant(Primary, "_push_repeated")
def duplicate_does_not_tick(real: Any) -> Any:
    """A slot that another worker's push had counted leaves this worker's clock behind."""

    def push_repeated(self: Primary, now: int, request: PendingRequest) -> Any:
        with mock.patch.object(Clocks, "tick", lambda *_: None):
            return real(self, now, request)

    return push_repeated


@mutant(OpenStep, "complete")
def step_closed_without_a_slot(_: Any) -> Any:
    """A step is taken when all slots but one are here."""
    return lambda self: (~self.arrived).sum(axis=1) <= (self.arrived.shape[1] > 1)


@MUTANTS.add
def slots_added_in_arrival_order() -> Any:
    """A step's slots are added in order of arrival."""
    real_add, real_total = OpenStep.add, OpenStep.total
    arrivals: dict[int, list[int]] = {}

    def add(self: OpenStep, slot: int, piece: SlotPiece) -> None:
        arrivals.setdefault(id(self), []).append(slot)
        real_add(self, slot, piece)

    def total(self: OpenStep, mean: bool, listed: Callable[[KeyRange], Keys]) -> KeyValues | None:
        order = list(dict.fromkeys(arrivals.pop(id(self), [])))
        self.slots = [self.slots[slot] for slot in order]
        return real_total(self, mean, listed)

    return mock.patch.multiple(OpenStep, add=add, total=total)


@mutant(Clocks, "park")
def parked_worker_waited_for(_: Any) -> Any:
    """Others wait for an idle worker."""
    return lambda self, incarnation, spell: None


# ---------------------------------------------------------------- copies


@mutant(SegmentState, "record")
def ledger_not_replicated(real: Any) -> Any:
    """A copy has the rows and the clocks, but no ledger."""

    def record(
        self: SegmentState, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, *more: Any
    ) -> None:
        if change.kind == "push" and type(self) is SegmentState:
            self._tick(change, segments, everywhere)
            self._raise_version(segments, everywhere)
        else:
            real(self, change, segments, everywhere, *more)

    return record


@mutant(ReplicationLog, "committed")
def ack_before_replicate(_: Any) -> Any:
    """A push is acknowledged before the copies have it."""
    return property(lambda self: self.seq)


@MUTANTS.add
def apply_before_replicate() -> Any:
    """A change is made at once and can be read; only the answer waits for the copies."""
    made: set[tuple[int, int]] = set()
    real_replicate, real_apply, real_record = Primary._replicate, Primary._apply, Primary.record

    def replicate(
        self: Primary,
        now: int,
        change: m.ReplicatedChange,
        given: KeyValues | None,
        request: PendingRequest | None,
        segments: Mask,
        *more: Any,
    ) -> HandlerResult:
        if self.log.links or self.log.entries:
            self.write(change, given, segments)
            real_record(self, change, segments, segments is self.check.all_mask)
            made.add((id(self.log), self.log.seq + 1))
        return real_replicate(self, now, change, given, request, segments, *more)

    def apply(self: Primary, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        if (id(self.log), seq) in made:
            entry.rows = None
        return real_apply(self, now, entry, seq)

    def record(self: Primary, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, *more: Any) -> None:
        if (id(self.log), change.seq) in made:
            made.discard((id(self.log), change.seq))
        else:
            real_record(self, change, segments, everywhere, *more)

    return mock.patch.multiple(Primary, _replicate=replicate, _apply=apply, record=record)


@mutant(TableServer, "handle")
def no_epoch_check_on_backup(real: Any) -> Any:
    """Any server that claims to be the primary gets an acknowledgement."""

    def handle(self: TableServer, now: int, sender: str, message: FromServer, arrays: Any) -> Any:
        if isinstance(message, m.Append) and message.changes:
            mine = self.backups.members.get(sender, 0) == message.incarnation
            if not mine or not self.backups.is_primary(sender, message.covers, message.view):
                seq = message.changes[-1].seq
                return HandlerResult([Send(sender, m.Appended(self.placed.number, message.incarnation, seq))])
        return real(self, now, sender, message, arrays)

    return handle


@mutant(Backup, "catch_up")
def promote_any_member(_: Any) -> Any:
    """A new primary opens with what it has, and the others keep what they have."""
    return lambda self, changes, arrays: HandlerResult()


@mutant(Assignment, "without")
def promote_a_filling_server(real: Any) -> Any:
    """A server that is being filled is taken for one that has everything."""

    def without(self: Assignment, server: str) -> None:
        for table in list(self.roster.tables.values()):
            places = [
                replace(place, servers=[place.servers[0], place.filling, *place.servers[1:]], filling="")
                if place.filling not in ("", server) and place.servers[:1] == [server]
                else place
                for place in table.places
            ]
            self._put(table, places)
        real(self, server)

    return without


# ---------------------------------------------------------------- stragglers


@mutant(Primary, "_push_slot")
def second_copy_added_too(real: Any) -> Any:
    """A slot that two workers computed is added for each of them."""

    def push_slot(
        self: Primary, now: int, request: PendingRequest, slot: tuple[int, int], given: KeyValues | None
    ) -> Any:
        firsts = self.__dict__.setdefault("firsts", {})
        opened, who = self._open_steps.get(slot[0]), request.message.incarnation
        if firsts.setdefault(slot, who) != who and opened is not None and opened.arrived[:, slot[1]].any():
            opened.arrived[:, slot[1]] = False
        return real(self, now, request, slot, given)

    return push_slot


@mutant(Primary, "set_delay")
def delay_never_shrinks(real: Any) -> Any:
    """A server takes a longer delay and keeps it when a shorter one is set."""

    def set_delay(self: Primary, spec: Any) -> Any:
        before = self.clocks.max_delay
        outcome = real(self, spec)
        if before is None or (self.clocks.max_delay is not None and self.clocks.max_delay < before):
            self.clocks.max_delay = before
        return outcome

    return set_delay


# ---------------------------------------------------------------- key lists


@MUTANTS.add
def list_found_by_its_number_alone() -> Any:
    """A list number means the last list sent under it, by any client."""
    real = KeyLists._find_or_store

    def found(self: KeyLists, who: int, number: int, known: bool, count: int, crc: int, sent: list[m.Array]) -> Any:
        listed = self._lists.get((0, number))
        return real(self, 0, number, known, count, crc if listed is None else listed.crc, sent)

    return mock.patch.multiple(KeyLists, _find_or_store=found, drop_departed=lambda self, incarnations: None)
