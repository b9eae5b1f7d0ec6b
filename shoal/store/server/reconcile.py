"""Brings the survivors of a replica set level; then one is primary and the others follow it.

The primary is gone, and its last changes may have reached some survivors and not others. The new
primary asks each of them what it has (``Level``), takes what it lacks (``Levels``), and sends each
what that one lacks (``Adopt``). So nothing that any survivor acknowledged is lost, and all agree,
whichever was chosen. Asked again, in another view, each answers the same.

A former primary that lives, and only gave the segments away, is asked as well: it answers once it
has dropped them, so that nobody reads stale rows there. It is not waited for longer than
``timing.shrink``: whatever it believes, it cannot count anything.
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
    follow: Backup  # which holds them here
    level: bool = False  # we have what it has
    adopted: bool = False  # it has what we have, and follows us
    epochs: list[int] = field(default_factory=list)  # of the segments' sets
    began: int = 0  # the view in which it was asked first
    leaves: bool = False  # a former primary that lives and has to drop them
    theirs: list[int] = field(default_factory=list)
    again: int = 0
    since: int = 0  # unanswered since


def _same(other: SurvivorState, before: SurvivorState | None) -> SurvivorState:
    """The state of before if nothing has changed for this survivor, else the new one."""
    if before is None or before.follow is not other.follow or before.incarnation != other.incarnation:
        return other
    return before if (before.segments, before.epochs) == (other.segments, other.epochs) else other


class Reconciler:
    """Brings the replicas of one table level, on one server."""

    def __init__(self, backups: Backups, log: ReplicationLog, opened: Callable[[int], HandlerResult]) -> None:
        """``opened`` is called when all survivors are level: promoted segments may be served."""
        self._backups, self._log, self._open = backups, log, opened
        self._others: dict[Key, SurvivorState] = {}  # to be level with before we open
        # Segments that this server is primary of, and does not serve yet.
        self.promoted: list[int] = []

    @property
    def opening(self) -> bool:
        """Some segments are not served yet."""
        return bool(self.promoted)

    def waits_for(self) -> str:
        late = sorted({key[0] for key, other in self._others.items() if not other.adopted})
        return f"{self._backups.me} is being brought level with {', '.join(late) or 'its copies'}"

    def promote(self, segments: list[int]) -> None:
        """By the newest view this server is primary of these, which it does not serve yet."""
        self.promoted = segments
        self._others = self._survivors()

    def finish(self) -> tuple[list[int], list[tuple[str, SurvivorState]]]:
        """All are level: the promoted segments, and the survivors that follow from now on."""
        promoted, others = self.promoted, [(key[0], other) for key, other in self._others.items() if not other.leaves]
        self.promoted, self._others = [], {}
        return promoted, others

    def _survivors(self) -> dict[Key, SurvivorState]:
        others: dict[Key, SurvivorState] = {}
        for segment in self.promoted:
            follow = self._backups.holder(segment)
            if follow is None:
                raise AssertionError(f"{self._backups.me} is primary of segment {segment}, of which it has nothing")
            place = self._backups.placed.places[segment]
            asked = [(name, follow.primary, self._backups.members.get(name, 0), False) for name in place.servers[1:]]
            if self._gave_away(follow, segment):
                asked.append((follow.primary, "", follow.incarnation, True))
            for name, through, incarnation, leaves in asked:
                key = name, through, follow.incarnation, place.since
                other = others.setdefault(
                    key, SurvivorState(incarnation, [], follow, leaves=leaves, began=self._log.view)
                )
                other.segments.append(segment)
                other.epochs.append(place.epoch)
        # A view that says nothing new of these does not start them again.
        return {key: _same(other, self._others.get(key)) for key, other in others.items()}

    def _gave_away(self, follow: Backup, segment: int) -> bool:
        """Whether the former primary lives and has no part in this segment any more."""
        name = follow.primary
        lives = self._backups.members.get(name, 0) == follow.incarnation
        return lives and name != self._backups.me and name not in self._backups.placed.places[segment].servers

    def advance(self, now: int) -> HandlerResult:
        """Ask survivors what they have, send them what they lack; open when all have adopted us."""
        timing = self._log.timing
        for other in self._others.values():
            if other.leaves and other.since and now - other.since >= timing.shrink:
                other.level = other.adopted = True
        if all(other.adopted for other in self._others.values()):
            return self._open(now)
        outcome = HandlerResult()
        for key, other in self._others.items():
            if now < other.again or other.adopted:
                continue
            other.again = now + timing.level_again
            other.since = other.since or now
            if now - other.since >= timing.shrink:  # the coordinator may know whether it lives
                other.since = now - timing.shrink + timing.notice
                shrink = m.Shrink(self._backups.incarnation, key[0], other.incarnation)
                outcome.effects.append(Send(limits.COORDINATOR, shrink))
            name, table, view = key[0], self._backups.placed.number, self._log.view
            if not other.level:
                seqs = other.follow.seqs(other.segments)
                message = m.Level(
                    table, view, self._backups.incarnation, other.incarnation, other.segments, seqs, key[2]
                )
                outcome.effects.append(Send(name, message))
            elif all(one.level or one.leaves for of, one in self._others.items() if of[3] == key[3]):
                changes, arrays = other.follow.lacks(other.segments, other.theirs)
                adopt = m.Adopt(
                    table, view, self._backups.incarnation, other.incarnation, other.segments, self._log.seq, changes
                )
                outcome.effects.append(Send(name, adopt, arrays))
        return outcome

    def levelled(self, now: int, sender: str, message: m.Levels | m.Adopted, arrays: m.Arrays) -> HandlerResult:
        """A survivor has answered ``Level`` or ``Adopt``."""
        other = next(
            (one for key, one in self._others.items() if key[0] == sender and one.segments == message.segments), None
        )
        if other is None or message.view < other.began or message.incarnation != self._backups.incarnation:
            return HandlerResult()
        outcome = HandlerResult()
        if other.leaves:
            other.level = other.adopted = True
        elif isinstance(message, m.Adopted):
            other.adopted = other.level
        elif not other.level:
            caught_up = other.follow.catch_up(message.changes, arrays)
            if caught_up is None:
                return self._backups.ignored("damaged")  # it will be asked again
            if message.changes:
                self._backups.counts["levelled"] = self._backups.counts.get("levelled", 0) + 1
            outcome += caught_up
            other.level, other.theirs = True, message.seqs
            for one in self._others.values():
                one.again = now
        if outcome.works:
            outcome.works.append(LongComputation(lambda: None, self.advance, None))
            return outcome
        return outcome + self.advance(now)

    def answer_level(self, sender: str, ask: m.Level) -> HandlerResult:
        """Another server is to be primary: tell it what we have and what it lacks."""
        if not self._backups.is_primary(sender, ask.segments, ask.view):
            return self._backups.ignored("not from the primary")
        if all(self._backups.me not in self._backups.placed.places[segment].servers for segment in ask.segments):
            levels = m.Levels(ask.table, ask.view, ask.incarnation, ask.segments, ask.seqs, [])
            return HandlerResult([Send(sender, levels)])  # we have dropped them
        ours = self._backups.by_primary.get((sender, ask.incarnation))
        adopted = set() if ours is None else set(ours.live)  # by this primary, in an earlier view
        left = [segment for segment in ask.segments if segment not in adopted]
        former = self._backups.holder(left[0]) if left else None
        if left and (former is None or any(segment not in former.segments for segment in left)):
            return self._backups.ignored("nothing to level")
        if former is not None and former.incarnation != ask.of:
            # Its numbers are of another log than ours. Without an answer it asks to go on without
            # us; nothing is lost: it could not open before, and both have what was acknowledged
            # earlier.
            return self._backups.ignored("of another log")
        asked = dict(zip(ask.segments, ask.seqs, strict=False))
        seqs, changes, arrays = dict(asked), list[m.ReplicatedChange](), tuple[m.Array, ...]()
        if former is not None:
            seqs.update(zip(left, former.seqs(left), strict=True))
            found, rows = former.lacks(left, [asked[segment] for segment in left])
            changes, arrays = found, tuple(rows)
        levels = m.Levels(ask.table, ask.view, ask.incarnation, ask.segments, [*seqs.values()], changes)
        return HandlerResult([Send(sender, levels, arrays)])

    def adopt(self, sender: str, adopt: m.Adopt, arrays: m.Arrays) -> HandlerResult:
        """A new primary has brought us level: follow it from here on."""
        if not self._backups.is_primary(sender, adopt.segments, adopt.view):
            return self._backups.ignored("not from the primary")
        new = self._backups.following(sender)
        answer = HandlerResult([Send(sender, m.Adopted(adopt.table, adopt.view, adopt.incarnation, adopt.segments))])
        moving = [segment for segment in adopt.segments if segment not in new.live]
        if not moving:
            return answer
        former = self._backups.holder(moving[0])
        if former is None or any(segment not in former.segments for segment in moving):
            return self._backups.ignored("nothing to adopt")
        outcome = former.catch_up(adopt.changes, arrays)
        if outcome is None:
            return self._backups.ignored("damaged")  # it will be resent

        def move(now: int) -> HandlerResult:
            assert former.part is not None
            if former is new:
                new.thaw(moving, adopt.seq)
                return answer
            new.adopt([former.part.image(segment, copy=False) for segment in moving], adopt.seq)
            former.drop(moving)
            self._backups.drop_stale()
            return answer

        if outcome.works:
            outcome.works.append(LongComputation(lambda: None, move, None))
            return outcome
        return outcome + move(0)
