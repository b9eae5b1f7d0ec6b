"""Broken variants of how segments move and servers leave."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replace_fields
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal.cluster.roster import Assignment, Roster
from shoal.keys import KeyRange
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.server import Server
from shoal.store.client import dispatch
from shoal.store.client.inflight import Inflight
from shoal.store.client.operation import Operation
from shoal.store.client.split import Layout
from shoal.store.server.backfill import Backfill
from shoal.store.server.backup import Backup
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.replicate import BackupLink, QueuedChange, ReplicationLog
from shoal.store.server.table_server import ServedSegments, TableServer, served_segments
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Event, Persist, Send
from tests.support.mutants.patches import Mutants

MUTANTS = Mutants()
mutant = MUTANTS.replacing


@contextlib.contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _filled_without(**facts: Any) -> Any:
    """An image lacks some of its metadata."""
    real = Backup.fill

    def fill(self: Backup, sender: str, message: m.BackfillPiece, arrays: m.Arrays) -> HandlerResult:
        if message.books is not None:
            message = replace(message, books=replace(message.books, **facts))
        return real(self, sender, message, arrays)

    return mock.patch.object(Backup, "fill", fill)


@MUTANTS.add
def ledger_not_moved() -> Any:
    """The new owner has the rows and the clocks, but no ledger."""
    return _filled_without(ledger={})


@MUTANTS.add
def clocks_not_moved() -> Any:
    """The new owner has no clocks, and never waits."""
    return _filled_without(clocks={})


@MUTANTS.add
def version_not_moved() -> Any:
    """The new owner takes the segment for one at version 0."""
    return _filled_without(version=0)


@mutant(BackupLink, "enqueue")
def changes_during_the_copy_not_sent(real: Any) -> Any:
    """A new replica gets the image, but no later changes."""

    def enqueue(self: BackupLink, now: int, queued: QueuedChange) -> None:
        if self.required:
            real(self, now, queued)
        else:
            self.base = self.acked = self.last_sent = queued.change.seq

    return enqueue


@mutant(Backup, "install")
def changes_during_the_copy_not_made(real: Any) -> Any:
    """Changes made while an image was in flight are forgotten once it is complete."""

    def install(self: Backup) -> Any:
        self._waiting = []
        return real(self)

    return install


@mutant(Backfill, "_report_full")
def full_before_it_is_required(real: Any) -> Any:
    """The coordinator learns that the replica is full, but the old owner counts without it."""

    def tell(self: Backfill, now: int, coordinator: str) -> Any:
        effects = real(self, now, coordinator)
        self.reported = {}
        self.link.required = False
        return effects

    return tell


@MUTANTS.add
def view_takes_the_waiting_back() -> Any:
    """A view between "full" and "handed" lets the old owner count alone until it is deposed."""
    real_filled, real_tell = Backfill.handle_filled, Backfill._report_full

    def filled(self: Backfill, now: int, message: m.BackfillReceived) -> None:
        real_filled(self, now, message)
        self.link.required = self.link.required or self.is_complete

    def require(self: Backfill) -> None:
        self.link.required = self.link.required or bool(self.reported)

    def tell(self: Backfill, now: int, coordinator: str) -> list[Effect]:
        before = self.link.required
        effects = real_tell(self, now, coordinator)
        self.link.required = before
        return effects

    return _all(
        mock.patch.object(Backfill, "handle_filled", filled),
        mock.patch.object(Backfill, "require", require),
        mock.patch.object(Backfill, "_report_full", tell),
    )


@mutant(ReplicationLog, "last_change_of")
def demoted_with_less_than_it_has(_: Any) -> Any:
    """A deposed owner that gets a segment back reports only what its log has applied."""
    return lambda self, segment: self.applied


@MUTANTS.add
def cut_off_and_blames_the_others() -> Any:
    """All silent servers but one are removed, even if the coordinator gets no messages at all."""

    def hear(self: Roster, now: int) -> None:
        self.last_seen = now

    def is_needed(self: Assignment, name: str) -> bool:
        return any(place.servers == [name] for table in self.roster.tables.values() for place in table.places)

    return _all(mock.patch.object(Roster, "_note_message", hear), mock.patch.object(Assignment, "is_needed", is_needed))


@mutant(Roster, "_leaving_copies")
def new_table_on_the_last_that_stays(_: Any) -> Any:
    """A new table gets one copy where all servers but one leave; that one may be dead."""
    return lambda self, copies: []


@mutant(Server, "_take_view")
def old_owner_goes_on(real: Any) -> Any:
    """A server keeps segments that another one got, and counts pushes that still come."""

    def take_view(self: Server, now: int) -> Any:
        view = self.member.view
        tables = [replace(table, places=_as_before(self, table)) for table in view.tables]
        self.member.view = replace(view, tables=tables)
        return real(self, now)

    return take_view


def _as_before(server: Server, table: m.TablePlaces) -> list[m.Replicas]:
    table_server = server.tables.get(table.number)
    if table_server is None:
        return table.places
    before = table_server.placed.places
    return [
        m.Replicas(old.epoch, [server.name], since=old.since)
        if old.servers[:1] == [server.name] and new.servers and server.name not in new.servers
        else new
        for old, new in zip(before, table.places, strict=True)
    ]


@mutant(Coordinator, "_write")
def view_told_before_it_is_on_disk(real: Any) -> Any:
    """The coordinator announces a view before it is on disk: its successor may not know it."""

    def write(self: Coordinator, now: int) -> Any:
        effects = real(self, now)
        if any(isinstance(effect, Persist) for effect in effects):
            self.view = self._written
            effects += [Send(member.name, self.view) for member in self.view.members]
        return effects

    return write


@mutant(ReplicationLog, "narrow")
def queued_changes_dropped(_: Any) -> Any:
    """Queued changes are dropped for all their segments when some of these were handed over."""

    def narrow(
        self: ReplicationLog, now: int, link: BackupLink, left: Iterable[int], ranges: Callable[[int], KeyRange]
    ) -> None:
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)
        for queued in link.queue:
            if not covers.issuperset(queued.covers):
                queued.rows, queued.covers = None, ()
        link.last_sent, link.resend_at = link.acked, now
        link.in_flight.clear()

    return narrow


@mutant(ReplicationLog, "narrow")
def queued_changes_sent_as_they_were(_: Any) -> Any:
    """Queued changes name segments that were handed over, and are refused with all that follow."""

    def narrow(
        self: ReplicationLog, now: int, link: BackupLink, left: Iterable[int], ranges: Callable[[int], KeyRange]
    ) -> None:
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)

    return narrow


@mutant(Assignment, "count_held")
def released_too_early(_: Any) -> Any:
    """A leaving server is released at once."""
    return lambda self, name: 0


@mutant(Backup, "drop")
def copies_not_dropped(_: Any) -> Any:
    """The old holder of a segment keeps its copy."""
    return lambda self, segments: None


@mutant(TableServer, "_rebuild")
def segments_not_dropped(real: Any) -> Any:
    """An owner that gave a segment away keeps its rows."""

    def rebuild(self: TableServer, now: int, kept: Any, images: Any) -> Any:
        return real(self, now, kept if self.primary is None else self.primary.segments, images)

    return rebuild


@mutant(Assignment, "filled")
def move_does_not_change_the_epoch(real: Any) -> Any:
    """Old messages about a segment's set are accepted after a move."""

    def full(self: Assignment, primary: str, told: m.BackfillComplete) -> Any:
        before = {table.name: table.places for table in self.roster.tables.values()}
        taken = real(self, primary, told)
        for name, table in list(self.roster.tables.items()):
            pairs = zip(before[name], table.places, strict=True)
            places = [replace(new, epoch=old.epoch, since=old.since) if new != old else new for old, new in pairs]
            self.roster.tables[name] = replace(table, places=places)
        return taken

    return full


@MUTANTS.add
def former_share_answered() -> Any:
    """A server applies a request for its former share to all that it holds now."""

    def always(me: str, placed: m.TablePlaces, before: ServedSegments | None) -> ServedSegments:
        return replace_fields(served_segments(me, placed, before), since=0)

    return mock.patch("shoal.nodes.server.served_segments", always)


@MUTANTS.add
def heirs_not_asked() -> Any:
    """A refused client asks the same server again, and never the new owners."""
    real = dispatch.servers_to_ask

    def asked(op: Operation, layout: Layout, flight: Inflight) -> list[str] | None:
        refused = list(op.refused)
        found = real(op, layout, flight)
        return found if found is None else [server for server in found if server in refused]

    return mock.patch.object(dispatch, "servers_to_ask", asked)


@mutant(DrainableNode, "handle")
def leave_said_only_once(real: Any) -> Any:
    """A server asks to leave only once: if that message is lost, it stays for ever."""

    def handle(self: DrainableNode, now: int, event: Event) -> Any:
        if self._requested_at:
            self._requested_at = now
        return real(self, now, event)

    return handle


@mutant(DrainableNode, "_listen")
def gone_before_it_is_let_go(real: Any) -> Any:
    """A server ends as soon as the coordinator knows that it is leaving."""

    def listen(self: DrainableNode, message: m.Message) -> None:
        real(self, message)
        if self.leaving and not self.end and isinstance(message, m.View):
            self._finish("released", "it was heard")

    return listen


@mutant(DrainableNode, "_listen")
def let_go_by_a_word_to_its_former_life(real: Any) -> Any:
    """A server accepts a release that was meant for the earlier process with its name."""

    def listen(self: DrainableNode, message: m.Message) -> None:
        if isinstance(message, m.Release):
            message = m.Release(self.member.incarnation)
        real(self, message)

    return listen
