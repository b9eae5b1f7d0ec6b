"""Broken variants of the protocol. Each must be caught within the seeds of a normal test run, or the checker is blind.

A mutant replaces one method of a real class, for as long as its ``with`` block lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal import limits
from shoal.cluster.roster import Roster
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.store.server.aggregate import OpenStep, SlotPiece
from shoal.store.server.backup import Backup
from shoal.store.server.clock import Clocks
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.ledger import Mask, PushStream
from shoal.store.server.outcome import HandlerResult, Requester
from shoal.store.server.primary import Segments
from shoal.store.server.replicate import LogEntry, ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.server.table_server import FromServer, TableServer
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Send

MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(function: Callable[[], Any]) -> Callable[[], Any]:
    MUTANTS[function.__name__.replace("_", " ")] = function
    return function


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run with this mutant in place of the real thing; an empty name changes nothing."""
    if not name:
        yield
        return
    with MUTANTS[name]():
        yield


@mutant
def no_ledger() -> Any:
    """Nobody remembers what was counted."""
    return mock.patch.object(PushStream, "fresh", lambda self, number, among: among)


@mutant
def pending_not_checked() -> Any:
    """A slot that is held already is held once more when it is sent again."""

    def push_slot(
        self: Segments, now: int, asker: Requester, slot: tuple[int, int], given: KeyValues | None
    ) -> HandlerResult:
        opened = self._open.get(slot[0])
        if opened is not None and opened.have[:, slot[1]].any():
            opened.have[:, slot[1]] = False
        return real(self, now, asker, slot, given)

    real = Segments._push_slot
    return mock.patch.multiple(Segments, _push_slot=push_slot)


@mutant
def ledger_expired_by_time() -> Any:
    """What was counted a while ago is forgotten."""
    real = Segments.push

    def push(self: Segments, now: int, sender: str, push: Any, arrays: Any) -> HandlerResult:
        last = getattr(self.ledger, "last", {}) if hasattr(self.ledger, "last") else {}
        self.ledger.last = last  # type: ignore[attr-defined]
        if now - last.get(push.stream, now) > limits.SECOND // 2:
            self.ledger.drop(push.stream)
        last[push.stream] = now
        return real(self, now, sender, push, arrays)

    return mock.patch.object(Segments, "push", push)


@mutant
def incarnation_not_bumped() -> Any:
    """A node that comes back under its name is taken for the one that was there before."""
    real = Roster.join

    def join(self: Roster, now: int, name: str, role: str, token: str, address: str, number: int, group: str) -> Any:
        known = _lives.setdefault(id(self), {})
        return real(self, now, name, role, token, address, known.setdefault(name, number), group)

    _lives: dict[int, dict[str, int]] = {}
    return mock.patch.object(Roster, "join", join)


@mutant
def array_checksum_not_checked() -> Any:
    """A bit that was flipped inside an array is believed."""
    return mock.patch.object(coding, "check_arrays", lambda header, frames: None)


@mutant
def log_without_a_bound() -> Any:
    """Pushes are taken however much waits for a copy already."""
    return mock.patch.object(ReplicationLog, "is_full", False)


@mutant
def delay_off_by_one() -> Any:
    """Workers run one step further ahead than they may."""
    real = Clocks.may_pull
    return mock.patch.object(Clocks, "may_pull", lambda self, clock, segments: real(self, clock - 1, segments))


@mutant
def clock_by_count() -> Any:
    """A clock counts steps, whichever they are, instead of marking up to where all are there."""

    def tick(self: Clocks, incarnation: int, step: int, segments: Mask, everywhere: bool = False) -> None:
        if incarnation in self._workers and step > 0:
            stream = self._clock(incarnation)
            if stream.fresh(step - 1, segments) is not None:
                stream.raise_to(stream.mark + segments)
                self._slowest = None

    return mock.patch.object(Clocks, "tick", tick)


@mutant
def duplicate_does_not_tick() -> Any:
    """A slot that another worker's push had counted leaves this worker's clock behind."""
    real = Segments._counted_before

    def counted_before(self: Segments, now: int, asker: Requester) -> HandlerResult:
        with mock.patch.object(Clocks, "tick", lambda *_: None):
            return real(self, now, asker)

    return mock.patch.object(Segments, "_counted_before", counted_before)


@mutant
def step_closed_without_a_slot() -> Any:
    """A step is taken when all slots but one are here."""
    return mock.patch.object(OpenStep, "complete", lambda self: (~self.have).sum(axis=1) <= (self.have.shape[1] > 1))


@mutant
def slots_added_in_arrival_order() -> Any:
    """A step's slots are added as they came."""
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


@mutant
def parked_worker_waited_for() -> Any:
    """A worker that has nothing to do holds the others up."""
    return mock.patch.object(Clocks, "park", lambda self, incarnation, spell: None)


# ---------------------------------------------------------------- copies


@mutant
def ledger_not_replicated() -> Any:
    """A copy has the rows and the clocks, but does not know what was counted."""
    real = SegmentState.note

    def note(
        self: SegmentState, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, *more: Any
    ) -> None:
        if change.kind == "push" and type(self) is SegmentState:
            self._tick(change, segments, everywhere)
            self._raise(segments, everywhere)
        else:
            real(self, change, segments, everywhere, *more)

    return mock.patch.object(SegmentState, "note", note)


@mutant
def ack_before_replicate() -> Any:
    """Nobody waits for the copies."""
    return mock.patch.object(ReplicationLog, "committed", property(lambda self: self.seq))


@mutant
def apply_before_replicate() -> Any:
    """A change is made at once and can be read; only the answer waits for the copies."""
    made: set[tuple[int, int]] = set()
    real_make, real_write, real_note = Segments._make, Segments._write, Segments.note

    def make(
        self: Segments,
        now: int,
        change: m.ReplicatedChange,
        given: KeyValues | None,
        asker: Requester | None,
        segments: Mask,
        *more: Any,
    ) -> HandlerResult:
        if self.log.links or self.log.entries:
            self.write(change, given, segments)
            real_note(self, change, segments, segments is self.extent.whole)
            made.add((id(self.log), self.log.seq + 1))
        return real_make(self, now, change, given, asker, segments, *more)

    def write(self: Segments, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        if (id(self.log), seq) in made:
            entry.given = None
        return real_write(self, now, entry, seq)

    def note(self: Segments, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, *more: Any) -> None:
        if (id(self.log), change.seq) in made:
            made.discard((id(self.log), change.seq))
        else:
            real_note(self, change, segments, everywhere, *more)

    return mock.patch.multiple(Segments, _make=make, _write=write, note=note)


@mutant
def no_epoch_check_on_backup() -> Any:
    """Whoever says that it is the primary gets its acknowledgement."""
    real = TableServer.heard

    def heard(self: TableServer, now: int, sender: str, message: FromServer, arrays: Any) -> HandlerResult:
        if isinstance(message, m.Append) and message.changes:
            mine = self._members.get(sender, 0) == message.incarnation
            if not mine or not self._is_primary(sender, message.covers, message.view):
                seq = message.changes[-1].seq
                return HandlerResult([Send(sender, m.Appended(self.placed.number, message.incarnation, seq))])
        return real(self, now, sender, message, arrays)

    return mock.patch.object(TableServer, "heard", heard)


@mutant
def promote_any_member() -> Any:
    """A new primary opens with what it has, and the others keep what they have."""
    return mock.patch.object(Backup, "catch_up", lambda self, changes, arrays: HandlerResult())


@mutant
def promote_a_filling_server() -> Any:
    """A server that is being filled is taken for one that has everything."""
    real = Roster._without

    def without(self: Roster, server: str) -> None:
        for table in list(self.tables.values()):
            places = [
                replace(place, servers=[place.servers[0], place.filling, *place.servers[1:]], filling="")
                if place.filling not in ("", server) and place.servers[:1] == [server]
                else place
                for place in table.places
            ]
            self._put(table, places)
        real(self, server)

    return mock.patch.object(Roster, "_without", without)


# ---------------------------------------------------------------- stragglers, and what is done about them


@mutant
def second_copy_added_too() -> Any:
    """A slot that two workers computed is added for each of them."""
    real = Segments._push_slot

    def push_slot(
        self: Segments, now: int, asker: Requester, slot: tuple[int, int], given: KeyValues | None
    ) -> HandlerResult:
        firsts = self.__dict__.setdefault("firsts", {})
        opened, who = self._open.get(slot[0]), asker.ask.incarnation
        if firsts.setdefault(slot, who) != who and opened is not None and opened.have[:, slot[1]].any():
            opened.have[:, slot[1]] = False
        return real(self, now, asker, slot, given)

    return mock.patch.object(Segments, "_push_slot", push_slot)


@mutant
def delay_never_shrinks() -> Any:
    """A server takes a longer delay and keeps it when a shorter one is set."""
    real = Segments.set_delay

    def set_delay(self: Segments, spec: Any) -> HandlerResult:
        before = self.clocks.max_delay
        outcome = real(self, spec)
        if before is None or (self.clocks.max_delay is not None and self.clocks.max_delay < before):
            self.clocks.max_delay = before
        return outcome

    return mock.patch.object(Segments, "set_delay", set_delay)


# ---------------------------------------------------------------- lists of keys that are known by a number


@mutant
def list_found_by_its_number_alone() -> Any:
    """Whoever says a number is taken to mean the last list that came under it, anybody's."""
    real = KeyLists._list

    def found(self: KeyLists, who: int, number: int, known: bool, count: int, crc: int, sent: list[m.Array]) -> Any:
        listed = self._lists.get((0, number))
        return real(self, 0, number, known, count, crc if listed is None else listed.crc, sent)

    return mock.patch.multiple(KeyLists, _list=found, live=lambda self, incarnations: None)
