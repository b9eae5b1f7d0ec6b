"""Broken variants of how segments change hands, and of how a server leaves. Each must be caught by a few seeds of ``--of moves``.

As in ``mutants``: each replaces a method of a real class for as long as its ``with`` block lasts. One that is not there is an error
(``mock.patch.object``), so that no mutant turns into the real thing unnoticed when a method gets another name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace as replace_fields
from typing import Any
from unittest import mock

from msgspec.structs import replace

from shoal.cluster.assignment import Assignment
from shoal.cluster.roster import Roster
from shoal.keys import KeyRange
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableServer
from shoal.nodes.server import Server
from shoal.store.client import dispatch
from shoal.store.client.inflight import Inflight
from shoal.store.client.operation import Operation
from shoal.store.client.split import Layout
from shoal.store.server.backfill import Backfill
from shoal.store.server.backup import Backup
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.replicate import BackupLink, LogBatch, ReplicationLog
from shoal.store.server.table_server import HeldSince, TableServer, ours
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Event, Persist, Send

MUTANTS: dict[str, Callable[[], Any]] = {}


def mutant(function: Callable[[], Any]) -> Callable[[], Any]:
    MUTANTS[function.__name__.replace("_", " ")] = function
    return function


@contextlib.contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def _filled_without(**facts: Any) -> Any:
    """What comes with an image lacks some of its books."""
    real = Backup.fill

    def fill(self: Backup, sender: str, message: m.Fill, arrays: m.Arrays) -> HandlerResult:
        if message.books is not None:
            message = replace(message, books=replace(message.books, **facts))
        return real(self, sender, message, arrays)

    return mock.patch.object(Backup, "fill", fill)


@mutant
def ledger_not_moved() -> Any:
    """The new owner has the rows and the clocks, but does not know what was counted."""
    return _filled_without(ledger={})


@mutant
def clocks_not_moved() -> Any:
    """The new owner does not know who is how far, and waits for nobody."""
    return _filled_without(clocks={})


@mutant
def version_not_moved() -> Any:
    """The new owner takes the segment for one at its first step."""
    return _filled_without(version=0)


@mutant
def changes_during_the_copy_not_sent() -> Any:
    """Who is being filled gets the image, and nothing of what is done meanwhile."""
    real = BackupLink.take

    def take(self: BackupLink, now: int, parcel: LogBatch) -> None:
        if self.required:
            real(self, now, parcel)
        else:
            self.base = self.acked = self.sent = parcel.change.seq

    return mock.patch.object(BackupLink, "take", take)


@mutant
def changes_during_the_copy_not_made() -> Any:
    """What was done to a segment while its image was on the way is forgotten when the image is whole."""
    real = Backup.merge

    def merge(self: Backup) -> HandlerResult:
        self._waiting = []
        return real(self)

    return mock.patch.object(Backup, "merge", merge)


@mutant
def full_before_it_is_required() -> Any:
    """The coordinator hears that it is full, and the old owner goes on counting without it."""
    real = Backfill._tell

    def tell(self: Backfill, now: int, coordinator: str) -> list[Effect]:
        effects = real(self, now, coordinator)
        self.promised = {}
        self.link.required = False
        return effects

    return mock.patch.object(Backfill, "_tell", tell)


@mutant
def view_takes_the_waiting_back() -> Any:
    """A view between "full" and "told" makes the old owner count alone again, until it hears that it is deposed."""
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


@mutant
def demoted_with_less_than_it_has() -> Any:
    """A deposed owner says of a segment that came back to it that it has no more than what its log has carried out."""
    return mock.patch.object(ReplicationLog, "reached", lambda self, segment: self.applied)


@mutant
def cut_off_and_blames_the_others() -> Any:
    """Of servers that are all silent, all but one are removed; and it counts against them that nobody was heard at all."""

    def hear(self: Roster, now: int) -> None:
        self.heard = now

    def is_needed(self: Assignment, name: str) -> bool:
        return any(place.servers == [name] for table in self.tables.values() for place in table.places)

    return _all(mock.patch.object(Roster, "_hear", hear), mock.patch.object(Assignment, "_is_needed", is_needed))


@mutant
def new_table_on_the_last_that_stays() -> Any:
    """A new table has one copy where all but one of the servers are leaving, though that one may be dead."""
    return mock.patch.object(Roster, "_until_they_go", lambda self, copies: [])


@mutant
def old_owner_goes_on() -> Any:
    """A server whose segments another one got keeps them, and counts for whoever still asks it."""
    real = Server._take_view

    def take_view(self: Server, now: int) -> list[Effect]:
        view = self.member.view
        tables = [replace(table, places=_as_before(self, table)) for table in view.tables]
        self.member.view = replace(view, tables=tables)
        return real(self, now)

    return mock.patch.object(Server, "_take_view", take_view)


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


@mutant
def view_told_before_it_is_on_disk() -> Any:
    """A coordinator that is killed then has told of an owner that the next one knows nothing of."""
    real = Coordinator._write

    def write(self: Coordinator, now: int) -> list[Effect]:
        effects = real(self, now)
        if any(isinstance(effect, Persist) for effect in effects):
            self.view = self._written
            effects += [Send(member.name, self.view) for member in self.view.members]
        return effects

    return mock.patch.object(Coordinator, "_write", write)


@mutant
def queued_changes_dropped() -> Any:
    """What waits in a queue for segments of which some were handed over is not sent for the others either."""

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

    return mock.patch.object(ReplicationLog, "narrow", narrow)


@mutant
def queued_changes_sent_as_they_were() -> Any:
    """What waits in a queue names segments that were handed over: it is refused, with all that is behind it."""

    def narrow(
        self: ReplicationLog, now: int, link: BackupLink, left: Iterable[int], ranges: Callable[[int], KeyRange]
    ) -> None:
        covers = set(left)
        link.covers = tuple(segment for segment in link.covers if segment in covers)

    return mock.patch.object(ReplicationLog, "narrow", narrow)


@mutant
def released_too_early() -> Any:
    """A server that is to go may go at once."""
    return mock.patch.object(Assignment, "holds", lambda self, name: 0)


@mutant
def copies_not_dropped() -> Any:
    """Who gave a segment away keeps its copy of it."""
    return mock.patch.object(Backup, "drop", lambda self, segments: None)


@mutant
def segments_not_dropped() -> Any:
    """An owner that gave a segment away keeps its rows."""
    real = TableServer._rebuild

    def rebuild(self: TableServer, now: int, kept: Any, images: Any) -> HandlerResult:
        return real(self, now, kept if self.own is None else self.own.segments, images)

    return mock.patch.object(TableServer, "_rebuild", rebuild)


@mutant
def move_does_not_change_the_epoch() -> Any:
    """What was said of a segment's set before it changed hands passes for news."""
    real = Assignment.full

    def full(self: Assignment, primary: str, told: m.Full) -> Any:
        before = {table.name: table.places for table in self.tables.values()}
        taken = real(self, primary, told)
        for name, table in list(self.tables.items()):
            pairs = zip(before[name], table.places, strict=True)
            places = [replace(new, epoch=old.epoch, since=old.since) if new != old else new for old, new in pairs]
            self.tables[name] = replace(table, places=places)
        return taken

    return mock.patch.object(Assignment, "full", full)


@mutant
def former_share_answered() -> Any:
    """A server takes what is for all that its sender saw it hold for what is for all that it holds now."""

    def always(me: str, placed: m.TablePlaces, before: HeldSince | None) -> HeldSince:
        return replace_fields(ours(me, placed, before), since=0)

    return mock.patch("shoal.nodes.server.ours", always)


@mutant
def heirs_not_asked() -> Any:
    """Who is refused asks the same server again for what it still has, and nobody for the rest."""
    real = dispatch.asked_anew

    def asked(op: Operation, layout: Layout, flight: Inflight) -> list[str] | None:
        refused = list(op.refused)
        found = real(op, layout, flight)
        return found if found is None else [server for server in found if server in refused]

    return mock.patch.object(dispatch, "asked_anew", asked)


@mutant
def leave_said_only_once() -> Any:
    """A server that wants to go says so once: if that is lost, it stays for ever."""
    real = DrainableServer.handle

    def handle(self: DrainableServer, now: int, event: Event) -> list[Effect]:
        if self._said:
            self._said = now
        return real(self, now, event)

    return mock.patch.object(DrainableServer, "handle", handle)


@mutant
def gone_before_it_is_let_go() -> Any:
    """A server that wants to go ends as soon as the coordinator has heard of it."""
    real = DrainableServer._listen

    def listen(self: DrainableServer, message: m.Message) -> None:
        real(self, message)
        if self.leaving and not self.end and isinstance(message, m.View):
            self._ends("released", "it was heard")

    return mock.patch.object(DrainableServer, "_listen", listen)


@mutant
def let_go_by_a_word_to_its_former_life() -> Any:
    """A server believes a release that was meant for the process that had its name before."""
    real = DrainableServer._listen

    def listen(self: DrainableServer, message: m.Message) -> None:
        if isinstance(message, m.Release):
            message = m.Release(self.member.incarnation)
        real(self, message)

    return mock.patch.object(DrainableServer, "_listen", listen)
