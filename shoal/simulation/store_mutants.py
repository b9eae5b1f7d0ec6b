"""Broken variants of the store's protocol, and of how segments move and servers leave."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replace_fields
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal import limits
from shoal.cluster.roster import Assignment, Roster
from shoal.keys import KeyRange, Keys, KeyValues
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.server import Server
from shoal.simulation.scenarios import Mutants
from shoal.store.client import dispatch
from shoal.store.client.inflight import Inflight
from shoal.store.client.operation import Operation
from shoal.store.client.split import Layout
from shoal.store.server.aggregate import OpenStep, SlotPiece
from shoal.store.server.backfill import Backfill
from shoal.store.server.backup import Backup
from shoal.store.server.clock import Clocks
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.ledger import Mask, PushStream
from shoal.store.server.outcome import HandlerResult, Requester
from shoal.store.server.primary import Primary
from shoal.store.server.replicate import BackupLink, LogBatch, LogEntry, ReplicationLog
from shoal.store.server.segment_state import SegmentState
from shoal.store.server.table_server import FromServer, HeldSince, TableServer, ours
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Event, Persist, Send

STORE_MUTANTS, MOVE_MUTANTS = Mutants(), Mutants()
mutant, moved = STORE_MUTANTS.replacing, MOVE_MUTANTS.replacing


@mutant(PushStream, "fresh")
def no_ledger(_: Any) -> Any:
    """Counted pushes are not remembered."""
    return lambda self, number, among: among


@STORE_MUTANTS.add
def pending_not_checked() -> Any:
    """A resent slot is held twice."""

    def push_slot(
        self: Primary, now: int, asker: Requester, slot: tuple[int, int], given: KeyValues | None
    ) -> HandlerResult:
        opened = self._open.get(slot[0])
        if opened is not None and opened.have[:, slot[1]].any():
            opened.have[:, slot[1]] = False
        return real(self, now, asker, slot, given)

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


@mutant(Primary, "_counted_before")
def duplicate_does_not_tick(real: Any) -> Any:
    """A slot that another worker's push had counted leaves this worker's clock behind."""

    def counted_before(self: Primary, now: int, asker: Requester) -> Any:
        with mock.patch.object(Clocks, "tick", lambda *_: None):
            return real(self, now, asker)

    return counted_before


@mutant(OpenStep, "complete")
def step_closed_without_a_slot(_: Any) -> Any:
    """A step is taken when all slots but one are here."""
    return lambda self: (~self.have).sum(axis=1) <= (self.have.shape[1] > 1)


@STORE_MUTANTS.add
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


@mutant(SegmentState, "note")
def ledger_not_replicated(real: Any) -> Any:
    """A copy has the rows and the clocks, but no ledger."""

    def note(
        self: SegmentState, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, *more: Any
    ) -> None:
        if change.kind == "push" and type(self) is SegmentState:
            self._tick(change, segments, everywhere)
            self._raise(segments, everywhere)
        else:
            real(self, change, segments, everywhere, *more)

    return note


@mutant(ReplicationLog, "committed")
def ack_before_replicate(_: Any) -> Any:
    """A push is acknowledged before the copies have it."""
    return property(lambda self: self.seq)


@STORE_MUTANTS.add
def apply_before_replicate() -> Any:
    """A change is made at once and can be read; only the answer waits for the copies."""
    made: set[tuple[int, int]] = set()
    real_make, real_write, real_note = Primary._make, Primary._write, Primary.note

    def make(
        self: Primary,
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

    def write(self: Primary, now: int, entry: LogEntry, seq: int) -> HandlerResult:
        if (id(self.log), seq) in made:
            entry.given = None
        return real_write(self, now, entry, seq)

    def note(self: Primary, change: m.ReplicatedChange, segments: Mask, everywhere: bool = False, *more: Any) -> None:
        if (id(self.log), change.seq) in made:
            made.discard((id(self.log), change.seq))
        else:
            real_note(self, change, segments, everywhere, *more)

    return mock.patch.multiple(Primary, _make=make, _write=write, note=note)


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

    def push_slot(self: Primary, now: int, asker: Requester, slot: tuple[int, int], given: KeyValues | None) -> Any:
        firsts = self.__dict__.setdefault("firsts", {})
        opened, who = self._open.get(slot[0]), asker.ask.incarnation
        if firsts.setdefault(slot, who) != who and opened is not None and opened.have[:, slot[1]].any():
            opened.have[:, slot[1]] = False
        return real(self, now, asker, slot, given)

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


@STORE_MUTANTS.add
def list_found_by_its_number_alone() -> Any:
    """A list number means the last list sent under it, by any client."""
    real = KeyLists._list

    def found(self: KeyLists, who: int, number: int, known: bool, count: int, crc: int, sent: list[m.Array]) -> Any:
        listed = self._lists.get((0, number))
        return real(self, 0, number, known, count, crc if listed is None else listed.crc, sent)

    return mock.patch.multiple(KeyLists, _list=found, live=lambda self, incarnations: None)


# ---------------------------------------------------------------- moves, and servers that leave


@contextlib.contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _filled_without(**facts: Any) -> Any:
    """An image lacks some of its metadata."""
    real = Backup.fill

    def fill(self: Backup, sender: str, message: m.Fill, arrays: m.Arrays) -> HandlerResult:
        if message.books is not None:
            message = replace(message, books=replace(message.books, **facts))
        return real(self, sender, message, arrays)

    return mock.patch.object(Backup, "fill", fill)


@MOVE_MUTANTS.add
def ledger_not_moved() -> Any:
    """The new owner has the rows and the clocks, but no ledger."""
    return _filled_without(ledger={})


@MOVE_MUTANTS.add
def clocks_not_moved() -> Any:
    """The new owner has no clocks, and never waits."""
    return _filled_without(clocks={})


@MOVE_MUTANTS.add
def version_not_moved() -> Any:
    """The new owner takes the segment for one at its first step."""
    return _filled_without(version=0)


@moved(BackupLink, "take")
def changes_during_the_copy_not_sent(real: Any) -> Any:
    """A new replica gets the image, but no later changes."""

    def take(self: BackupLink, now: int, parcel: LogBatch) -> None:
        if self.required:
            real(self, now, parcel)
        else:
            self.base = self.acked = self.sent = parcel.change.seq

    return take


@moved(Backup, "merge")
def changes_during_the_copy_not_made(real: Any) -> Any:
    """Changes made while an image was in flight are forgotten once it is complete."""

    def merge(self: Backup) -> Any:
        self._waiting = []
        return real(self)

    return merge


@moved(Backfill, "_tell")
def full_before_it_is_required(real: Any) -> Any:
    """The coordinator hears that it is full, and the old owner goes on counting without it."""

    def tell(self: Backfill, now: int, coordinator: str) -> Any:
        effects = real(self, now, coordinator)
        self.promised = {}
        self.link.required = False
        return effects

    return tell


@MOVE_MUTANTS.add
def view_takes_the_waiting_back() -> Any:
    """A view between "full" and "handed" lets the old owner count alone until it is deposed."""
    real_filled, real_tell = Backfill.filled, Backfill._tell

    def filled(self: Backfill, now: int, message: m.Filled) -> None:
        real_filled(self, now, message)
        self.link.required = self.link.required or self.is_full

    def require(self: Backfill) -> None:
        self.link.required = self.link.required or bool(self.promised)

    def tell(self: Backfill, now: int, coordinator: str) -> list[Effect]:
        before = self.link.required
        effects = real_tell(self, now, coordinator)
        self.link.required = before
        return effects

    return _all(
        mock.patch.object(Backfill, "filled", filled),
        mock.patch.object(Backfill, "require", require),
        mock.patch.object(Backfill, "_tell", tell),
    )


@moved(ReplicationLog, "reached")
def demoted_with_less_than_it_has(_: Any) -> Any:
    """A deposed owner that gets a segment back reports only what its log has applied."""
    return lambda self, segment: self.applied


@MOVE_MUTANTS.add
def cut_off_and_blames_the_others() -> Any:
    """All silent servers but one are removed, even if the coordinator hears none."""

    def hear(self: Roster, now: int) -> None:
        self.heard = now

    def is_needed(self: Assignment, name: str) -> bool:
        return any(place.servers == [name] for table in self.roster.tables.values() for place in table.places)

    return _all(mock.patch.object(Roster, "_hear", hear), mock.patch.object(Assignment, "is_needed", is_needed))


@moved(Roster, "_until_they_go")
def new_table_on_the_last_that_stays(_: Any) -> Any:
    """A new table gets one copy where all servers but one leave; that one may be dead."""
    return lambda self, copies: []


@moved(Server, "_take_view")
def old_owner_goes_on(real: Any) -> Any:
    """A server keeps segments that another one got, and counts for clients that still ask it."""

    def take_view(self: Server, now: int) -> Any:
        view = self.member.view
        tables = [replace(table, places=_as_before(self, table)) for table in view.tables]
        self.member.view = replace(view, tables=tables)
        return real(self, now)

    return take_view


def _as_before(server: Server, table: m.TablePlaces) -> list[m.Replicas]:
    holding = server.tables.get(table.number)
    if holding is None:
        return table.places
    before = holding.placed.places
    return [
        m.Replicas(old.epoch, [server.name], since=old.since)
        if old.servers[:1] == [server.name] and new.servers and server.name not in new.servers
        else new
        for old, new in zip(before, table.places, strict=True)
    ]


@moved(Coordinator, "_write")
def view_told_before_it_is_on_disk(real: Any) -> Any:
    """A coordinator that is killed has announced an owner that its successor does not know."""

    def write(self: Coordinator, now: int) -> Any:
        effects = real(self, now)
        if any(isinstance(effect, Persist) for effect in effects):
            self.view = self._written
            effects += [Send(member.name, self.view) for member in self.view.members]
        return effects

    return write


@moved(ReplicationLog, "narrow")
def queued_changes_dropped(_: Any) -> Any:
    """Queued changes are dropped for all their segments when some of these were handed over."""

    def narrow(
        self: ReplicationLog, now: int, link: BackupLink, left: Iterable[int], ranges: Callable[[int], KeyRange]
    ) -> None:
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)
        for parcel in link.queue:
            if not covers.issuperset(parcel.covers):
                parcel.given, parcel.covers = None, ()
        link.sent, link.again = link.acked, now
        link.flying.clear()

    return narrow


@moved(ReplicationLog, "narrow")
def queued_changes_sent_as_they_were(_: Any) -> Any:
    """Queued changes name segments that were handed over, and are refused with all that follow."""

    def narrow(
        self: ReplicationLog, now: int, link: BackupLink, left: Iterable[int], ranges: Callable[[int], KeyRange]
    ) -> None:
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)

    return narrow


@moved(Assignment, "holds")
def released_too_early(_: Any) -> Any:
    """A leaving server is released at once."""
    return lambda self, name: 0


@moved(Backup, "drop")
def copies_not_dropped(_: Any) -> Any:
    """The old holder of a segment keeps its copy."""
    return lambda self, segments: None


@moved(TableServer, "_rebuild")
def segments_not_dropped(real: Any) -> Any:
    """An owner that gave a segment away keeps its rows."""

    def rebuild(self: TableServer, now: int, kept: Any, images: Any) -> Any:
        return real(self, now, kept if self.primary is None else self.primary.segments, images)

    return rebuild


@moved(Assignment, "full")
def move_does_not_change_the_epoch(real: Any) -> Any:
    """Old messages about a segment's set are accepted after a move."""

    def full(self: Assignment, primary: str, told: m.Full) -> Any:
        before = {table.name: table.places for table in self.roster.tables.values()}
        taken = real(self, primary, told)
        for name, table in list(self.roster.tables.items()):
            pairs = zip(before[name], table.places, strict=True)
            places = [replace(new, epoch=old.epoch, since=old.since) if new != old else new for old, new in pairs]
            self.roster.tables[name] = replace(table, places=places)
        return taken

    return full


@MOVE_MUTANTS.add
def former_share_answered() -> Any:
    """A server applies a request for its former share to all that it holds now."""

    def always(me: str, placed: m.TablePlaces, before: HeldSince | None) -> HeldSince:
        return replace_fields(ours(me, placed, before), since=0)

    return mock.patch("shoal.nodes.server.ours", always)


@MOVE_MUTANTS.add
def heirs_not_asked() -> Any:
    """A refused client asks the same server again, and never the new owners."""
    real = dispatch.servers_to_ask

    def asked(op: Operation, layout: Layout, flight: Inflight) -> list[str] | None:
        refused = list(op.refused)
        found = real(op, layout, flight)
        return found if found is None else [server for server in found if server in refused]

    return mock.patch.object(dispatch, "servers_to_ask", asked)


@moved(DrainableNode, "handle")
def leave_said_only_once(real: Any) -> Any:
    """A server that wants to go says so once: if that is lost, it stays for ever."""

    def handle(self: DrainableNode, now: int, event: Event) -> Any:
        if self._said:
            self._said = now
        return real(self, now, event)

    return handle


@moved(DrainableNode, "_listen")
def gone_before_it_is_let_go(real: Any) -> Any:
    """A server that wants to go ends as soon as the coordinator has heard of it."""

    def listen(self: DrainableNode, message: m.Message) -> None:
        real(self, message)
        if self.leaving and not self.end and isinstance(message, m.View):
            self._ends("released", "it was heard")

    return listen


@moved(DrainableNode, "_listen")
def let_go_by_a_word_to_its_former_life(real: Any) -> Any:
    """A server believes a release that was meant for the process that had its name before."""

    def listen(self: DrainableNode, message: m.Message) -> None:
        if isinstance(message, m.Release):
            message = m.Release(self.member.incarnation)
        real(self, message)

    return listen
