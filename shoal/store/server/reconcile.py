"""How the survivors of a set come level: after that, one of them is primary and the others follow it.

The primary is gone, and its changes may have come to one of them and not to another. Who is to be primary asks each of the
others what it has (``Level``), takes what it lacks itself (``Levels``), and sends each of them what that one lacks (``Adopt``).
So nothing that any of them acknowledged is lost, and all agree, whoever was chosen. Asked again, in another view, everybody
answers the same.

Where the former primary lives, and only gave them away, it is asked as well: it answers when it has let go of them, so that nobody reads there what
was overtaken here. One that does not answer is not waited for longer than ``timing.shrink``: it may count nothing, whatever it believes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from shoal import limits
from shoal.keys import KeyRange
from shoal.store.server.backup import Backup
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.replicate import ReplicationLog
from shoal.store.table.slab import DenseRows
from shoal.store.table.table import Ground, ground_of
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.effects import Send

# Another survivor, the former primary through which both have it, and the view since which we are to be primary.
Key = tuple[str, str, int, int]


@dataclass(slots=True)
class SurvivorState:
    """Another survivor that holds segments which we are to be primary of."""

    incarnation: int
    segments: list[int]
    follow: Backup  # through which we have them
    level: bool = False  # we have what it has
    adopted: bool = False  # it has what we have, and follows us
    epochs: list[int] = field(default_factory=list)  # of the segments' sets
    began: int = 0  # the view in which it was asked first
    leaves: bool = False  # it is no survivor: it was primary, lives, and has to let go of them
    theirs: list[int] = field(default_factory=list)
    again: int = 0
    since: int = 0  # it has not answered since


def _same(other: SurvivorState, before: SurvivorState | None) -> SurvivorState:
    """The one of before, as far as it has come, if nothing has changed for it; else the new one."""
    if before is None or before.follow is not other.follow or before.incarnation != other.incarnation:
        return other
    return before if (before.segments, before.epochs) == (other.segments, other.epochs) else other


class Levelling:
    """One server's part in it, for one table: ``Holding`` is what it has."""

    def __init__(
        self, me: str, incarnation: int, placed: m.TablePlaces, inline: int, timing: TimingSettings = DEFAULT
    ) -> None:
        self.me, self.incarnation, self.placed, self.inline = me, incarnation, placed, inline
        self.log = ReplicationLog(placed.number, incarnation, timing)
        self.follows: dict[tuple[str, int], Backup] = {}
        self.counts: dict[str, int] = {}
        self._members: dict[str, int] = {}  # servers by name: incarnation
        self._others: dict[Key, SurvivorState] = {}  # to be level with before we open
        self._first_ground: DenseRows | None = None
        self._promoted: list[int] = []  # segments that are ours now, and not open yet

    def _new_ground(self, segments: Sequence[int] = ()) -> Ground:
        """Where rows will lie, those of these segments as they are born: all that we have of a table lies side by side."""
        ranges = [self.range(segment) for segment in segments]
        ground = ground_of(self.placed.spec, ranges, self._first_ground)
        if isinstance(
            ground, DenseRows
        ):  # rows of a sparse table lie beside nobody's: nothing keeps them when they are over
            self._first_ground = self._first_ground or ground
        return ground

    @property
    def opening(self) -> bool:
        """Some of its segments are not open yet."""
        return bool(self._promoted)

    def waits_for(self) -> str:
        late = sorted({key[0] for key, other in self._others.items() if not other.adopted})
        return f"{self.me} is being brought level with {', '.join(late) or 'its copies'}"

    def range(self, segment: int) -> KeyRange:
        starts = self.placed.starts
        return KeyRange(starts[segment], starts[segment + 1] if segment + 1 < len(starts) else self.placed.spec.span)

    def _following(self, primary: str) -> Backup:
        key = primary, self._members.get(primary, 0)
        follow = self.follows.get(key)
        if follow is None:
            follow = self.follows[key] = Backup(
                self.placed.number, self.placed.spec, *key, self.range, self.inline, self._new_ground
            )
            follow.awaited = self._awaited(primary)
        return follow

    def _awaited(self, primary: str) -> set[int]:
        """The segments that this primary is filling us with."""
        places = enumerate(self.placed.places)
        return {segment for segment, one in places if one.filling == self.me and one.servers[:1] == [primary]}

    # ------------------------------------------------------------ who is to be primary

    def _open(self, now: int) -> HandlerResult:
        raise AssertionError  # ``Holding`` does

    def _drop_follows(self, returned: Collection[int] = ()) -> None:
        raise AssertionError

    def _survivors(self) -> dict[Key, SurvivorState]:
        others: dict[Key, SurvivorState] = {}
        for segment in self._promoted:
            follow = self._holder(segment)
            if follow is None:
                raise AssertionError(f"{self.me} is primary of segment {segment}, of which it has nothing")
            place = self.placed.places[segment]
            asked = [(name, follow.primary, self._members.get(name, 0), False) for name in place.servers[1:]]
            if self._gave_away(follow, segment):
                asked.append((follow.primary, "", follow.incarnation, True))
            for name, through, incarnation, leaves in asked:
                key = name, through, follow.incarnation, place.since
                other = others.setdefault(
                    key, SurvivorState(incarnation, [], follow, leaves=leaves, began=self.log.view)
                )
                other.segments.append(segment)
                other.epochs.append(place.epoch)
        # Another view may say nothing new of these: what was asked is not asked again, however many views there are.
        return {key: _same(other, self._others.get(key)) for key, other in others.items()}

    def _gave_away(self, follow: Backup, segment: int) -> bool:
        """Whether the former primary lives, and has no part in this segment any more."""
        name = follow.primary
        lives = self._members.get(name, 0) == follow.incarnation
        return lives and name != self.me and name not in self.placed.places[segment].servers

    def _holder(self, segment: int) -> Backup | None:
        return next((follow for follow in self.follows.values() if segment in follow.segments), None)

    def _level(self, now: int) -> HandlerResult:
        timing = self.log.timing
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
            if now - other.since >= timing.shrink:  # the coordinator may know better than we whether it is there
                other.since = now - timing.shrink + timing.notice
                shrink = m.Shrink(self.incarnation, key[0], other.incarnation)
                outcome.effects.append(Send(limits.COORDINATOR, shrink))
            name, table, view = key[0], self.placed.number, self.log.view
            if not other.level:
                seqs = other.follow.seqs(other.segments)
                message = m.Level(table, view, self.incarnation, other.incarnation, other.segments, seqs, key[2])
                outcome.effects.append(Send(name, message))
            elif all(one.level or one.leaves for of, one in self._others.items() if of[3] == key[3]):
                changes, arrays = other.follow.lacks(other.segments, other.theirs)
                adopt = m.Adopt(table, view, self.incarnation, other.incarnation, other.segments, self.log.seq, changes)
                outcome.effects.append(Send(name, adopt, arrays))
        return outcome

    def _levelled(self, now: int, sender: str, message: m.Levels | m.Adopted, arrays: m.Arrays) -> HandlerResult:
        other = next(
            (one for key, one in self._others.items() if key[0] == sender and one.segments == message.segments),
            None,
        )
        if other is None or message.view < other.began or message.incarnation != self.incarnation:
            return HandlerResult()
        outcome = HandlerResult()
        if other.leaves:
            other.level = other.adopted = True
        elif isinstance(message, m.Adopted):
            other.adopted = other.level
        elif not other.level:
            caught_up = other.follow.catch_up(message.changes, arrays)
            if caught_up is None:
                return self._ignored("damaged")  # it is asked again
            if message.changes:
                self.counts["levelled"] = self.counts.get("levelled", 0) + 1
            outcome += caught_up
            other.level, other.theirs = True, message.seqs
            for one in self._others.values():
                one.again = now
        if outcome.works:
            outcome.works.append(LongComputation(lambda: None, self._level, None))
            return outcome
        return outcome + self._level(now)

    # ------------------------------------------------------------ who is to follow

    def _is_primary(self, sender: str, segments: Iterable[int], view: int) -> bool:
        """Does our own view name this server as primary of all of these segments?"""
        places = self.placed.places
        return all(
            segment < len(places) and places[segment].servers[:1] == [sender] and view >= places[segment].since
            for segment in segments
        )

    def _answer_level(self, sender: str, ask: m.Level) -> HandlerResult:
        if not self._is_primary(sender, ask.segments, ask.view):
            return self._ignored("not from the primary")
        if all(self.me not in self.placed.places[segment].servers for segment in ask.segments):
            levels = m.Levels(ask.table, ask.view, ask.incarnation, ask.segments, ask.seqs, [])
            return HandlerResult([Send(sender, levels)])  # we have let go of them
        ours = self.follows.get((sender, ask.incarnation))
        adopted = set() if ours is None else set(ours.live)  # by this very primary, in an earlier view
        left = [segment for segment in ask.segments if segment not in adopted]
        former = self._holder(left[0]) if left else None
        if left and (former is None or any(segment not in former.segments for segment in left)):
            return self._ignored("nothing to level")
        if former is not None and former.incarnation != ask.of:
            # It has it from another log than we: numbers of one say nothing about the other. Without an answer it asks to go on
            # without us. Nothing is lost by that: it could not open before, and what was acknowledged earlier both have.
            return self._ignored("of another log")
        asked = dict(zip(ask.segments, ask.seqs, strict=False))
        seqs, changes, arrays = dict(asked), list[m.ReplicatedChange](), tuple[m.Array, ...]()
        if former is not None:
            seqs.update(zip(left, former.seqs(left), strict=True))
            found, rows = former.lacks(left, [asked[segment] for segment in left])
            changes, arrays = found, tuple(rows)
        levels = m.Levels(ask.table, ask.view, ask.incarnation, ask.segments, [*seqs.values()], changes)
        return HandlerResult([Send(sender, levels, arrays)])

    def _adopt(self, sender: str, adopt: m.Adopt, arrays: m.Arrays) -> HandlerResult:
        """A new primary has brought us level: follow it from here on."""
        if not self._is_primary(sender, adopt.segments, adopt.view):
            return self._ignored("not from the primary")
        new = self._following(sender)
        answer = HandlerResult([Send(sender, m.Adopted(adopt.table, adopt.view, adopt.incarnation, adopt.segments))])
        moving = [segment for segment in adopt.segments if segment not in new.live]
        if not moving:
            return answer
        former = self._holder(moving[0])
        if former is None or any(segment not in former.segments for segment in moving):
            return self._ignored("nothing to adopt")
        outcome = former.catch_up(adopt.changes, arrays)
        if outcome is None:
            return self._ignored("damaged")  # it comes again

        def move(now: int) -> HandlerResult:
            assert former.part is not None
            if former is new:
                new.thaw(moving, adopt.seq)
                return answer
            new.adopt([former.part.image(segment, copy=False) for segment in moving], adopt.seq)
            former.drop(moving)
            self._drop_follows()
            return answer

        if outcome.works:
            outcome.works.append(LongComputation(lambda: None, move, None))
            return outcome
        return outcome + move(0)

    def _ignored(self, why: str) -> HandlerResult:
        self.counts[why] = self.counts.get(why, 0) + 1
        return HandlerResult()
