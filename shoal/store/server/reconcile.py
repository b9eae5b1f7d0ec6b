"""Brings the survivors of a replica set level; then one is primary and the others follow it.

The primary is gone, and its last changes may have reached some survivors and not others. The new
primary asks each of them what it has (``Level``), takes what it lacks (``Levels``), and sends each
what that one lacks (``Adopt``). So nothing that any survivor acknowledged is lost, and all agree,
whichever was chosen. Asked again, in another view, each answers the same.

A former primary that lives, and only gave the segments away, is asked as well: it answers once it
has dropped them, so that no client reads stale rows there. It is not waited for longer than
``timing.shrink``: without acknowledgements it cannot count anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal import limits
from shoal.store.server.backup import Backup, Backups
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.replicate import ReplicationLog
from shoal.wire import messages as m
from shoal.wire.effects import Send

# Survivor, former primary, its incarnation, and the view since which this server is primary.
Key = tuple[str, str, int, int]


@dataclass(slots=True)
class SurvivorState:
    """Another survivor that holds segments which this server is to be primary of."""

    incarnation: int
    segments: list[int]
    backup: Backup  # holds them here
    level: bool = False  # we have what it has
    adopted: bool = False  # it has what we have, and follows us
    epochs: list[int] = field(default_factory=list)  # of the segments' sets
    first_view: int = 0  # the view in which it was asked first
    leaves: bool = False  # a former primary that lives and has to drop them
    their_seqs: list[int] = field(default_factory=list)
    retry_at: int = 0
    unanswered_since: int = 0


def _keep_if_unchanged(other: SurvivorState, before: SurvivorState | None) -> SurvivorState:
    """The earlier state if nothing has changed for this survivor, else the new one."""
    if before is None or before.backup is not other.backup or before.incarnation != other.incarnation:
        return other
    return before if (before.segments, before.epochs) == (other.segments, other.epochs) else other


class Reconciler:
    """Brings the replicas of one table level, on one server."""

    def __init__(self, backups: Backups, log: ReplicationLog, opened: Callable[[int], HandlerResult]) -> None:
        """``opened`` is called when all survivors are level: promoted segments may be served."""
        self._backups, self._log, self._serve = backups, log, opened
        self._survivors: dict[Key, SurvivorState] = {}  # we open when level with all
        # Segments that this server is primary of, and does not serve yet.
        self.promoted: list[int] = []

    @property
    def opening(self) -> bool:
        """Some segments are not served yet."""
        return bool(self.promoted)

    def waits_for(self) -> str:
        late = sorted({key[0] for key, other in self._survivors.items() if not other.adopted})
        return f"{self._backups.me} is being brought level with {', '.join(late) or 'its copies'}"

    def promote(self, segments: list[int]) -> None:
        """By the newest view this server is primary of these, which it does not serve yet."""
        self.promoted = segments
        self._survivors = self._find_survivors()

    def finish(self) -> tuple[list[int], list[tuple[str, SurvivorState]]]:
        """All are level: the promoted segments, and the survivors that follow from now on."""
        others = [(key[0], other) for key, other in self._survivors.items() if not other.leaves]
        promoted, self.promoted, self._survivors = self.promoted, [], {}
        return promoted, others

    def _find_survivors(self) -> dict[Key, SurvivorState]:
        others: dict[Key, SurvivorState] = {}
        for segment in self.promoted:
            backup = self._backups.backup_with(segment)
            if backup is None:
                raise AssertionError(f"{self._backups.me} is primary of segment {segment}, of which it has nothing")
            place = self._backups.placed.places[segment]
            members = self._backups.members
            candidates = [(name, backup.primary, members.get(name, 0), False) for name in place.servers[1:]]
            if self._has_given_away(backup, segment):
                candidates.append((backup.primary, "", backup.incarnation, True))
            for name, through, incarnation, leaves in candidates:
                key = name, through, backup.incarnation, place.since
                new = SurvivorState(incarnation, [], backup, leaves=leaves, first_view=self._log.view)
                other = others.setdefault(key, new)
                other.segments.append(segment)
                other.epochs.append(place.epoch)
        # A view that changes nothing for a survivor does not restart it.
        return {key: _keep_if_unchanged(other, self._survivors.get(key)) for key, other in others.items()}

    def _has_given_away(self, backup: Backup, segment: int) -> bool:
        """Whether the former primary lives and is no longer in this replica set."""
        name = backup.primary
        lives = self._backups.members.get(name, 0) == backup.incarnation
        return lives and name != self._backups.me and name not in self._backups.placed.places[segment].servers

    def advance(self, now: int) -> HandlerResult:
        """Ask survivors what they have, send them what they lack; open when all have adopted us."""
        timing = self._log.timing
        for other in self._survivors.values():
            if other.leaves and other.unanswered_since and now - other.unanswered_since >= timing.shrink:
                other.level = other.adopted = True
        if all(other.adopted for other in self._survivors.values()):
            return self._serve(now)
        outcome = HandlerResult()
        me, table, view = self._backups.incarnation, self._backups.placed.number, self._log.view
        for key, other in self._survivors.items():
            if now < other.retry_at or other.adopted:
                continue
            other.retry_at = now + timing.level_again
            other.unanswered_since = other.unanswered_since or now
            if now - other.unanswered_since >= timing.shrink:  # the coordinator decides
                other.unanswered_since = now - timing.shrink + timing.notice
                outcome.effects.append(Send(limits.COORDINATOR, m.Shrink(me, key[0], other.incarnation)))
            if not other.level:
                seqs = other.backup.seqs(other.segments)
                level = m.Level(table, view, me, other.incarnation, other.segments, seqs, key[2])
                outcome.effects.append(Send(key[0], level))
            elif all(one.level or one.leaves for of, one in self._survivors.items() if of[3] == key[3]):
                changes, arrays = other.backup.changes_after(other.segments, other.their_seqs)
                adopt = m.Adopt(table, view, me, other.incarnation, other.segments, self._log.seq, changes)
                outcome.effects.append(Send(key[0], adopt, arrays))
        return outcome

    def handle_answer(self, now: int, sender: str, message: m.Levels | m.Adopted, arrays: m.Arrays) -> HandlerResult:
        """A survivor has answered ``Level`` or ``Adopt``."""
        other = next(
            (one for key, one in self._survivors.items() if key[0] == sender and one.segments == message.segments), None
        )
        if other is None or message.view < other.first_view or message.incarnation != self._backups.incarnation:
            return HandlerResult()
        outcome = HandlerResult()
        if other.leaves:
            other.level = other.adopted = True
        elif isinstance(message, m.Adopted):
            other.adopted = other.level
        elif not other.level:
            caught_up = other.backup.catch_up(message.changes, arrays)
            if caught_up is None:
                return self._backups.count_ignored("damaged")  # it will be asked again
            if message.changes:
                self._backups.counts["levelled"] = self._backups.counts.get("levelled", 0) + 1
            outcome += caught_up
            other.level, other.their_seqs = True, message.seqs
            for one in self._survivors.values():
                one.retry_at = now
        if outcome.computations:
            outcome.computations.append(LongComputation(lambda: None, self.advance, None))
            return outcome
        return outcome + self.advance(now)

    def answer_level(self, sender: str, level: m.Level) -> HandlerResult:
        """Another server is to be primary: tell it what we have and what it lacks."""
        if not self._backups.is_primary(sender, level.segments, level.view):
            return self._backups.count_ignored("not from the primary")
        if all(self._backups.me not in self._backups.placed.places[segment].servers for segment in level.segments):
            levels = m.Levels(level.table, level.view, level.incarnation, level.segments, level.seqs, [])
            return HandlerResult([Send(sender, levels)])  # we have dropped them
        ours = self._backups.by_primary.get((sender, level.incarnation))
        adopted = set() if ours is None else set(ours.following)  # in an earlier view
        left = [segment for segment in level.segments if segment not in adopted]
        former = self._backups.backup_with(left[0]) if left else None
        if left and (former is None or any(segment not in former.segments for segment in left)):
            return self._backups.count_ignored("nothing to level")
        if former is not None and former.incarnation != level.of:
            # Its numbers are of another log than ours. Without an answer it asks to drop us.
            # Nothing is lost: it was not open, and both have what was acknowledged earlier.
            return self._backups.count_ignored("of another log")
        asked = dict(zip(level.segments, level.seqs, strict=False))
        seqs, changes, arrays = dict(asked), list[m.ReplicatedChange](), tuple[m.Array, ...]()
        if former is not None:
            seqs.update(zip(left, former.seqs(left), strict=True))
            found, rows = former.changes_after(left, [asked[segment] for segment in left])
            changes, arrays = found, tuple(rows)
        levels = m.Levels(level.table, level.view, level.incarnation, level.segments, [*seqs.values()], changes)
        return HandlerResult([Send(sender, levels, arrays)])

    def adopt(self, sender: str, adopt: m.Adopt, arrays: m.Arrays) -> HandlerResult:
        """A new primary has brought us level: follow it from here on."""
        if not self._backups.is_primary(sender, adopt.segments, adopt.view):
            return self._backups.count_ignored("not from the primary")
        new = self._backups.backup_for(sender)
        answer = HandlerResult([Send(sender, m.Adopted(adopt.table, adopt.view, adopt.incarnation, adopt.segments))])
        moving = [segment for segment in adopt.segments if segment not in new.following]
        if not moving:
            return answer
        former = self._backups.backup_with(moving[0])
        if former is None or any(segment not in former.segments for segment in moving):
            return self._backups.count_ignored("nothing to adopt")
        outcome = former.catch_up(adopt.changes, arrays)
        if outcome is None:
            return self._backups.count_ignored("damaged")  # it will be resent

        def move(now: int) -> HandlerResult:
            assert former.state is not None
            if former is new:
                new.thaw(moving, adopt.seq)
                return answer
            new.adopt([former.state.image(segment, copy=False) for segment in moving], adopt.seq)
            former.drop(moving)
            self._backups.drop_stale()
            return answer

        if outcome.computations:
            outcome.computations.append(LongComputation(lambda: None, move, None))
            return outcome
        return outcome + move(0)
