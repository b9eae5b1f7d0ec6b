"""One server's part of one table: what it is primary of and what it backs up.

The view says which server is primary of a segment, which back it up, and which is being filled.
``apply_placement`` puts a new one into effect:

    was a backup, is primary now     level with the other survivors, then served
    is primary, has a new backup     fills it, then tells the coordinator
    was primary, another one is      stops serving; callers ask the new primary
    was primary, backs up now        kept as it is until the new primary brings it level
    backs up for another primary     kept as it is until that one says from where to follow it
    has no part in it any more       dropped
    holds a segment that was split   renumbered, with the same books in both halves

Only what comes from the primary that this server's own view names is recorded. So a deposed
primary that does not know it gets no acknowledgement, and counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shoal import limits
from shoal.keys import KeyRange
from shoal.store.server.backfill import Backfill, RateLimit
from shoal.store.server.backup import Backups
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.primary import Primary
from shoal.store.server.reconcile import Reconciler
from shoal.store.server.replicate import ReplicationLog, split_map
from shoal.store.server.segment_state import SegmentState
from shoal.store.table.table import SegmentImage
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send
from shoal.wire.messages import TablePlaces


@dataclass(frozen=True, slots=True)
class ServedSegments:
    """The segments that one server is primary of in one table, and since which views.

    A request is for all that a server held by the view of its sender. It is valid as long as the
    server holds the same: a request older than ``since`` is refused.
    """

    starts: list[int]  # of all segments: they define the numbers
    segments: dict[int, int] = field(default_factory=dict)  # segment: since which view
    since: int = 0  # the view in which any of this last changed


def served_segments(me: str, placed: TablePlaces, before: ServedSegments | None) -> ServedSegments:
    """What ``me`` is primary of by this placement; ``before`` may be some views older, or None."""
    places = placed.places
    segments = {segment: place.since for segment, place in enumerate(places) if place.servers[:1] == [me]}
    if before is None or before.starts != placed.starts:
        changed, since = list(range(len(places))), 0
    else:
        changed = [n for n in range(len(places)) if segments.get(n) != before.segments.get(n)]
        since = before.since
    return ServedSegments(placed.starts, segments, max((places[segment].since for segment in changed), default=since))


Loader = Callable[[m.TablePlaces, Sequence[int]], list[SegmentImage]]
FromServer = m.Append | m.Appended | m.BackfillPiece | m.BackfillReceived | m.Level | m.Levels | m.Adopt | m.Adopted


class TableServer:
    """What one server has of one table."""

    def __init__(
        self,
        me: str,
        incarnation: int,
        placed: m.TablePlaces,
        inline: int,
        rate_limit: RateLimit | None = None,
        timing: TimingSettings = DEFAULT,
    ) -> None:
        self.me, self.incarnation, self.inline = me, incarnation, inline
        self.log = ReplicationLog(placed.number, incarnation, timing)
        self.backups = Backups(me, incarnation, placed, inline)
        self.counts = self.backups.counts
        self.reconciler = Reconciler(self.backups, self.log, self._serve_promoted)
        self._rate_limit = rate_limit or RateLimit()
        self.primary: Primary | None = None
        # Workers and all members, by the last view.
        self._members: tuple[dict[int, str], dict[int, str]] | None = None
        self._backfills: dict[str, Backfill] = {}
        self._linked = False  # links were set up once

    @property
    def placed(self) -> m.TablePlaces:
        return self.backups.placed

    @property
    def opening(self) -> bool:
        """Some of its segments are not served yet."""
        return self.reconciler.opening

    # ------------------------------------------------------------ the beginning

    def set_up(self, members: dict[str, int], load: Loader | None) -> None:
        """A new table, or one from a checkpoint: every server makes its segments by itself."""
        self.backups.members = members
        by_primary: dict[str, list[int]] = {}
        number, spec = self.placed.number, self.placed.spec
        for segment, place in enumerate(self.placed.places):
            if self.me in place.servers:
                by_primary.setdefault(place.servers[0], []).append(segment)
        for primary, segments in by_primary.items():
            storage = self.backups.new_storage(segments)
            if primary == self.me:
                self.primary = Primary(number, spec, self._with_ranges(segments), self.inline, self.log, storage)
                if load is not None:
                    self.primary.load(load(self.placed, segments))
            else:
                backup = self.backups.backup_for(primary)
                state = SegmentState(number, spec, self._with_ranges(segments), storage)
                if load is not None:
                    state.load(load(self.placed, segments))
                backup.begin(state)
        for name in members:
            segments = self._my_segments(lambda place, name=name: name in place.servers[1:])  # type: ignore[misc]
            if segments:
                self.log.add_link(0, name, members[name], segments, required=True)

    def _with_ranges(self, segments: Iterable[int]) -> list[tuple[int, KeyRange]]:
        return [(segment, self.backups.range(segment)) for segment in segments]

    def _my_segments(self, which: Callable[[m.Replicas], bool]) -> list[int]:
        """The segments that this server is primary of and that satisfy ``which``."""
        places = enumerate(self.placed.places)
        return [segment for segment, place in places if place.servers[:1] == [self.me] and which(place)]

    # ------------------------------------------------------------ a new view

    def apply_placement(
        self, now: int, placed: m.TablePlaces, members: dict[str, int], view: int, timing: TimingSettings = DEFAULT
    ) -> HandlerResult:
        """Put this placement into effect."""
        old, outcome = self.placed, HandlerResult()
        self.log.view, self.log.timing = view, timing
        if old.starts != placed.starts:
            outcome += self._apply_split(now, placed)
        self.backups.placed, self.backups.members = placed, members
        if old.places != placed.places or not self._linked or self.opening:
            outcome += self._apply_places(now, old)
        # Last: it answers pulls from the segments held now.
        if old.spec != placed.spec and self.primary is not None:
            outcome += self.primary.set_delay(placed.spec)
        return outcome

    def _apply_places(self, now: int, old: m.TablePlaces) -> HandlerResult:
        """Hold the segments that are ours by the newest placement."""
        placed, outcome = self.placed, HandlerResult()
        self.backups.install_ours()
        self.backups.drop_stale(_returned(old, placed))
        here = set() if self.primary is None else set(self.primary.segments)
        mine = self._my_segments(lambda place: True)
        self.reconciler.promote([segment for segment in mine if segment not in here])
        if lost := [segment for segment in sorted(here) if segment not in mine]:
            outcome += self._demote(now, [segment for segment in lost if self.me in placed.places[segment].servers])
            outcome += self._rebuild(now, [segment for segment in mine if segment in here], [])
        if self.opening:
            outcome += self.reconciler.advance(now)
        return outcome + self._relink(now)

    def _demote(self, now: int, segments: Sequence[int]) -> HandlerResult:
        """Another replica is primary of these: back them up from now on, as they are."""
        if not segments or self.primary is None:
            return HandlerResult()
        outcome = self.primary.apply_replicated(now, at_once=True)
        backup = self.backups.backup_for(self.me)
        reached = {segment: self.log.last_change_of(segment) for segment in segments}
        for seq in sorted(set(reached.values())):
            backup.adopt([self.primary.image(one, copy=False) for one, up_to in reached.items() if up_to == seq], seq)
        backup.received_seq = self.log.applied
        backup.freeze(segments)
        return outcome

    def _apply_split(self, now: int, placed: m.TablePlaces) -> HandlerResult:
        """Some segments were split: renumber everything, before anything else."""
        split = split_map(self.placed.starts, placed.starts)
        self.backups.renumber(split, placed)
        self._backfills, self.log.backfills = {}, []
        old = self.primary
        self.log.renumber(now, split, [] if old is None else old.segments)
        if old is None:
            return HandlerResult()
        books = {new: old.books(segment) for segment in old.segments for new in split[segment]}
        same = {split[segment][0]: segment for segment in old.segments if len(split[segment]) == 1}
        return HandlerResult(old.refuse_waiting(self.log.view)) + self._replace_primary(now, old, books, [], same)

    def _relink(self, now: int) -> HandlerResult:
        """Set up the links to backups and to servers being filled, by the view in effect."""
        for name, link in list(self.log.links.items()):
            segments = self._my_segments(lambda place, name=name: name in place.servers[1:] or place.filling == name)  # type: ignore[misc]
            if not segments or self.backups.members.get(name, 0) != link.incarnation:
                del self.log.links[name]
            else:
                self.log.narrow(now, link, segments, self.backups.range)
        self._backfills, self._linked = self._current_backfills(now), True
        self.log.backfills = list(self._backfills.values())
        for name, link in self.log.links.items():
            link.required = bool(self._my_segments(lambda place, name=name: name in place.servers[1:]))  # type: ignore[misc]
            if (backfill := self._backfills.get(name)) is not None:
                backfill.require()  # it may be a member already by a newer view
        return self._advance(now)

    def _current_backfills(self, now: int) -> dict[str, Backfill]:
        """The servers that are being filled with segments that are served here."""
        here = set() if self.primary is None else set(self.primary.segments)
        places, backfills = self.placed.places, dict[str, Backfill]()
        for name, incarnation in self.backups.members.items():
            named = self._my_segments(lambda place, name=name: place.filling == name)  # type: ignore[misc]
            epochs = {segment: places[segment].epoch for segment in named if segment in here}
            if not epochs:
                continue
            known = self._backfills.get(name)
            if known is None or known.link is not self.log.links.get(name):
                link = self.log.add_link(now, name, incarnation, (), required=False)
                known = Backfill(self.log, link, self._rate_limit)
            known.set_segments(epochs, [segment for segment in epochs if places[segment].instead])
            backfills[name] = known
        return backfills

    def _advance(self, now: int) -> HandlerResult:
        """Links or acknowledgements have changed: apply and fill what is possible now."""
        if self.primary is None:
            return HandlerResult()
        outcome = self.primary.apply_replicated(now)
        if not outcome.computations:
            for backfill in self._backfills.values():
                outcome.effects += backfill.advance(now, self.primary, limits.COORDINATOR)
        return outcome

    # ------------------------------------------------------------ open

    def _serve_promoted(self, now: int) -> HandlerResult:
        """All survivors are level: serve the promoted segments from here on."""
        promoted, others = self.reconciler.finish()
        images = [
            backup.state.image(segment, copy=False)
            for segment in promoted
            if (backup := self.backups.backup_with(segment)) is not None and backup.state is not None
        ]
        kept = [] if self.primary is None else self.primary.segments
        waiting = self.log.pending_spells()
        outcome = self._rebuild(now, kept, images)
        self.log.mark_opened(promoted)
        for backup in list(self.backups.by_primary.values()):
            backup.drop([segment for segment in promoted if segment in backup.segments])
        self.counts["promoted"] = self.counts.get("promoted", 0) + len(promoted)
        opened = m.Opened(self.incarnation, self.placed.number, self.log.view, promoted)
        outcome.effects.append(Send(limits.COORDINATOR, opened))
        for name, other in others:
            self.log.add_link(now, name, other.incarnation, other.segments, required=True)
        self.backups.drop_stale()
        outcome += self._relink(now)
        if self.primary is not None:
            # Enters and parks known to some segments are now known to all. Repeat them, and those
            # that wait in the log: a backup learns of workers only through segments it holds.
            changes = (*self.primary.clocks.as_changes(), *waiting)
            known = {(one.kind, one.incarnation, one.spell): one for one in changes}
            for change in known.values():
                outcome += self.primary.repeat(now, change)
        return outcome

    def _rebuild(self, now: int, kept: Sequence[int], images: Sequence[SegmentImage]) -> HandlerResult:
        """Serve another set of segments: callers must ask again by the new view."""
        old = self.primary
        refusals = HandlerResult([] if old is None else old.refuse_waiting(self.log.view))
        books = {} if old is None else {segment: old.books(segment) for segment in kept}
        books |= {image.segment: image.books for image in images}
        if not books:
            if old is not None:
                old.storage.set_segments(())
            self.primary = None
            self.log.clear()
            return refusals
        segments = sorted(books)
        if old is not None:
            at = {segment: i for i, segment in enumerate(segments)}
            self.log.remap_segments([at.get(segment, -1) for segment in old.segments], len(segments), old.check.ranges)
        return refusals + self._replace_primary(now, old, books, images, {segment: segment for segment in kept})

    def _replace_primary(
        self,
        now: int,
        old: Primary | None,
        books: dict[int, m.SegmentBooks],
        images: Sequence[SegmentImage],
        same: dict[int, int],
    ) -> HandlerResult:
        """Replace the primary, on the same rows; ``same`` segments: number now -> number then."""
        segments = sorted(books)
        storage = self.backups.new_storage() if old is None else old.storage
        new = Primary(self.placed.number, self.placed.spec, self._with_ranges(segments), self.inline, self.log, storage)
        new.load_rows(images)
        new.load_books([books[segment] for segment in segments])
        if (present := self._members) is not None:  # some may have left since
            new.members = present
            new.drop_departed(*present)
        if old is not None:
            new.take_over(old, same)
        self.primary = new
        # Nothing may be half applied when the next view comes.
        return new.apply_replicated(now, at_once=True)

    # ------------------------------------------------------------ messages of other servers

    def handle(self, now: int, sender: str, message: FromServer, arrays: m.Arrays) -> HandlerResult:
        """Take a message of another server of the replica set."""
        match message:
            case m.Appended():
                link = self.log.links.get(sender)
                if link is None or message.incarnation != self.incarnation or message.seq > self.log.seq:
                    return HandlerResult()
                if not link.acknowledge(now, message.seq):
                    return HandlerResult()
                return HandlerResult(self.log.send(now, link)) + self._advance(now)
            case m.BackfillReceived():
                backfill = self._backfills.get(sender)
                if backfill is None or message.incarnation != self.incarnation or self.primary is None:
                    return HandlerResult()
                backfill.handle_filled(now, message)
                return self._advance(now)
            case m.Levels() | m.Adopted():
                return self.reconciler.handle_answer(now, sender, message, arrays)
        if message.to != self.incarnation or self.backups.members.get(sender, 0) != message.incarnation:
            return self.backups.count_ignored("another life")
        match message:
            case m.Append():
                if not self.backups.is_primary(sender, message.covers, message.view):
                    return self.backups.count_ignored("not from the primary")
                backup = self.backups.backup_for(sender)
                places = self.placed.places
                if any(
                    self.me in places[segment].servers and (segment not in backup.known or backup.is_frozen(segment))
                    for segment in message.covers
                ):
                    # We have it from a former primary and were never brought level. Without an
                    # answer the sender asks to drop us, and we are filled again.
                    return self.backups.count_ignored("not level with the primary")
                return backup.append(sender, message, arrays)
            case m.BackfillPiece():
                place = self.placed.places[message.segment] if message.segment < len(self.placed.places) else None
                if place is None or place.filling != self.me or place.epoch != message.epoch:
                    return self.backups.count_ignored("not from the primary")
                if place.servers[:1] != [sender]:
                    return self.backups.count_ignored("not from the primary")
                return self.backups.backup_for(sender).fill(sender, message, arrays)
            case m.Level():
                return self.reconciler.answer_level(sender, message)
            case m.Adopt():
                return self.reconciler.adopt(sender, message, arrays)
        return HandlerResult()

    # ------------------------------------------------------------ time, members, status

    def tick(self, now: int, busy: bool) -> list[Effect]:
        """Resend, or ask to drop a silent backup; ``busy``: a computation has the rows."""
        effects, silent = self.log.tick(now)
        for link in silent:
            effects.append(Send(limits.COORDINATOR, m.Shrink(self.incarnation, link.name, link.incarnation)))
        for name, backfill in self._backfills.items():
            if backfill.is_stuck(now):
                effects.append(Send(limits.COORDINATOR, m.Shrink(self.incarnation, name, backfill.link.incarnation)))
        if self.primary is not None:
            effects += self.primary.notices(now)
        if self.opening and not busy:
            effects += self.reconciler.advance(now).effects
        elif self.primary is not None and not busy:
            for backfill in self._backfills.values():
                effects += backfill.advance(now, self.primary, limits.COORDINATOR)
        return effects

    def compact_some(self) -> bool:
        """Free some of the memory of dropped rows; False if nothing is left to free."""
        followed = any(backup.compact_some() for backup in self.backups.by_primary.values())
        return followed or (self.primary is not None and self.primary.storage.compact_some())

    def set_members(self, workers: dict[int, str], clients: dict[int, str]) -> HandlerResult:
        self._members = workers, clients
        for backup in self.backups.by_primary.values():
            if backup.state is not None:
                backup.state.drop_departed(workers, clients)
        return HandlerResult() if self.primary is None else self.primary.set_members(workers, clients)

    def status(self, ask: m.TableStatusRequest) -> m.TableStatusReply:
        own = self.primary
        copies_held = [backup.state for backup in self.backups.by_primary.values() if backup.state is not None]
        facts, staleness = ({"rows": 0, "segments": 0}, []) if own is None else own.facts()
        copies = {number: int(v) for part in copies_held for number, v in zip(part.segments, part.version, strict=True)}
        facts |= self.counts | {"copies": len(copies), "copied rows": sum(part.table.rows for part in copies_held)}
        digests = {}
        if ask.digests:
            held = [*copies_held, *([] if own is None else [own])]
            digests = {number: part.digest(number) for part in held for number in part.segments}
        return m.TableStatusReply(
            ask.request,
            facts,
            staleness,
            {} if own is None else dict(zip(own.segments, own.version.tolist(), strict=True)),
            copies,
            {name: self.log.seq - link.acked for name, link in self.log.links.items()},
            {} if own is None else own.clocks.status(),
            digests,
        )


def _returned(old: m.TablePlaces, new: m.TablePlaces) -> set[int]:
    """Segments that have the same primary as before, but had another in a view we missed."""
    if old.starts != new.starts:
        # A split gives all segments a new view: what is newer than that has moved since.
        to = split_map(old.starts, new.starts)
        pieces = [(was, n) for i, was in enumerate(old.places) for n in to[i] if new.places[n].since > new.cut]
        return {n for was, n in pieces if was.servers[:1] == new.places[n].servers[:1]}
    pairs = enumerate(zip(old.places, new.places, strict=True))
    return {i for i, (was, now) in pairs if was.servers[:1] == now.servers[:1] and was.since != now.since}
