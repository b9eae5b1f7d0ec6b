"""Members, tables and their replicas: what the view shows. Only the coordinator writes it.

Pure bookkeeping, no messages. A name has one live incarnation; incarnations come from one counter
and are never given twice. Of nodes that are gone only the last ones are remembered.

A member that is silent for ``timing.suspect`` is suspected, which costs nothing; for
``timing.dead``, removed. Two rules keep a coordinator that is cut off from removing live servers:

    time in which no member at all was heard counts against none
    a server is removed for silence only if all that it holds is also held by a server that is heard
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from shoal import limits
from shoal.cluster import placement
from shoal.cluster.placement import backup_for, halved, segments_of
from shoal.cluster.rebalance_plan import LoadStats, WantedMove, atomic_groups
from shoal.errors import Invalid
from shoal.tables import Table, checked
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.messages import BackfillComplete, Member, Replicas, TablePlaces, View
from shoal.wire.messages.groups import SCHEDULER, GroupLimits

ROLES = ("server", "worker", "client", "evaluator", SCHEDULER)
K = TypeVar("K")
V = TypeVar("V")
_LIVES = 16  # of one name, that are remembered


@dataclass(slots=True)
class MemberRecord:
    member: Member
    token: str
    last_seen: int  # when
    view: int = 0  # the newest view it said it has
    since: int = 0  # the view in which it came
    suspected: bool = False


@dataclass(frozen=True, slots=True)
class NewReplica:
    """A segment whose set has a new member."""

    table: TablePlaces  # before
    segment: int
    source: str  # whose place it was; empty: it is one more
    target: str
    opens: bool  # it is primary now, and serves once it is level with the others


@dataclass(slots=True)
class Roster:
    """Members and tables, and the number of the view that shows them."""

    number: int = 0
    copies: int = 1
    timing: TimingSettings = DEFAULT
    members: dict[str, MemberRecord] = field(default_factory=dict)  # by name
    tables: dict[str, TablePlaces] = field(default_factory=dict)  # by name
    term: int = 1
    generation: int = 0
    incarnations: int = 0  # the last one handed out
    tables_made: int = 0
    groups: dict[str, GroupLimits] = field(default_factory=dict)  # that the operator has named
    retired: dict[str, list[str]] = field(default_factory=dict)  # tokens of former lives, by name
    replaced: dict[str, list[str]] = field(default_factory=dict)  # processes that lost their name
    lost: dict[str, str] = field(default_factory=dict)  # nodes that are gone or never came: why
    released: dict[str, int] = field(default_factory=dict)  # incarnations that were let go, by name
    loads: LoadStats = field(default_factory=LoadStats)
    last_seen: int = 0  # when the last message of any member came
    assignment: Assignment = field(init=False, repr=False, compare=False)
    _view: View | None = None

    def __post_init__(self) -> None:
        self.assignment = Assignment(self)

    def changed(self) -> None:
        self.number += 1
        self._view = None

    def servers(self) -> list[str]:
        return [name for name, entry in self.members.items() if entry.member.role == "server"]

    def staying(self) -> list[str]:
        """Servers that may be given something; all, if all of them are leaving."""
        servers = self.servers()
        return [name for name in servers if not self.members[name].member.leaving] or servers

    def view(self) -> View:
        if self._view is None:
            members = [entry.member for entry in self.members.values()]
            tables, groups = list(self.tables.values()), list(self.groups.values())
            self._view = View(self.term, self.number, self.generation, members, tables, groups, self.timing)
        return self._view

    def may_join(self, name: str, role: str, token: str) -> str:
        if not name or len(name) > limits.NAME_CHARS or not name.isprintable():
            return f"a name has 1 to {limits.NAME_CHARS} printable characters"
        if name == "coordinator":
            return "that name is the coordinator's own: choose another"
        if role not in ROLES:
            return f"role {role[:64]!r} is none of {', '.join(ROLES)}"
        holder = self.members.get(name)
        if holder is not None and not holder.suspected:
            if holder.token != token and "server" in (role, holder.member.role):
                return f"the name {name!r} is taken by a {holder.member.role} that is alive: choose another"
            if self._was_displaced(name, token):
                return (
                    f"another process has taken the name {name!r}, and is alive: choose another, or end one of the two"
                )
        if name not in self.members and len(self.members) >= limits.MEMBERS:
            return f"the cluster is full: {limits.MEMBERS} members"
        return ""

    def is_undecided(self, name: str, token: str) -> bool:
        """Whether a process wants its name back from one that has only said hello.

        That hello may be a late one of a dead process: it is heard again soon, or suspected.
        """
        holder = self.members.get(name)
        unheard = holder is not None and holder.view == 0 and not holder.suspected
        return unheard and self._was_displaced(name, token)

    def _was_displaced(self, name: str, token: str) -> bool:
        return _process(token) in self.replaced.get(name, ()) and not self.is_over(name, token)

    def knows(self, name: str, token: str) -> MemberRecord | None:
        entry = self.members.get(name)
        return entry if entry is not None and entry.token == token else None

    def is_over(self, name: str, token: str) -> bool:
        """A hello that comes too late: that life has ended."""
        return token in self.retired.get(name, ())

    def join(
        self, now: int, name: str, role: str, token: str, address: str, incarnation: int, group: str = ""
    ) -> MemberRecord:
        if name in self.members:
            self.displace(name, token)
            self.remove(name, "another process took its name")
        self.lost.pop(name, None)
        self.released.pop(name, None)
        self._note_message(now)
        entry = self.members[name] = MemberRecord(Member(name, incarnation, role, address, group=group), token, now)
        self.changed()
        entry.since = self.number
        return entry

    def displace(self, name: str, token: str) -> None:
        """Another process takes this name: the old one may not take it back meanwhile."""
        before = _process(self.members[name].token)
        if before != _process(token):
            remember(self.replaced, name, [*self.replaced.get(name, ())[1 - _LIVES :], before], limits.FORMER)

    def remove(self, name: str, reason: str) -> None:
        entry = self.members.pop(name)
        remember(self.retired, name, [*self.retired.get(name, ())[1 - _LIVES :], entry.token], limits.FORMER)
        if entry.member.role == "server":
            self.note_lost(name, reason)
            self.assignment.without(name)
        self.changed()

    def leave(self, name: str) -> None:
        """A node is to leave: it is given nothing more, and others are filled in its place."""
        entry = self.members[name]
        entry.member = replace(entry.member, leaving=True)
        self.assignment.replace_places(lambda at: replace(at, filling="") if at.filling == name else at)
        self.changed()

    def note_lost(self, name: str, reason: str) -> None:
        remember(self.lost, name, reason, limits.LOST)

    def release(self, name: str) -> None:
        """Note that it was released, in case it asks again."""
        remember(self.released, name, self.members[name].member.incarnation, limits.FORMER)

    def suspects(self) -> list[str]:
        return [name for name, one in self.members.items() if one.suspected and one.member.role == "server"]

    def mark_alive(self, now: int, entry: MemberRecord) -> None:
        self._note_message(now)
        entry.last_seen = now

    def _note_message(self, now: int) -> None:
        # Every member sends heartbeats. If none came, this node was cut off: the next message may
        # be the last one of a dead member, and the others must not be removed because of it.
        if self.last_seen and now - self.last_seen > 2 * self.timing.heartbeat:
            self.forgive(now - self.last_seen)
        self.last_seen = now

    def forgive(self, nanoseconds: int) -> None:
        """Ignore this much silence of all members: this process slept, or was cut off."""
        self.last_seen += nanoseconds
        for entry in self.members.values():
            entry.last_seen += nanoseconds

    def find_dead(self, now: int) -> Iterator[str]:
        """Members that must go; each is removed before the next. Late ones are suspected."""
        for entry in self.members.values():
            entry.suspected = now - entry.last_seen >= self.timing.suspect
        for name, entry in list(self.members.items()):
            if now - entry.last_seen >= self.timing.dead and not self.assignment.is_needed(name):
                yield name

    def create(
        self, name: str, spec: Table, starts: Sequence[int] = (), origin: str = "", like: str = ""
    ) -> TablePlaces:
        """Place a table's segments on the servers there are, or where those of another one are."""
        checked(spec)
        if not name or len(name) > limits.NAME_CHARS or not name.isprintable():
            raise Invalid(f"a table's name has 1 to {limits.NAME_CHARS} printable characters")
        if (known := self.tables.get(name)) is not None:
            raise Invalid(f"table {name!r} exists already ({known.spec}): drop it first, or take another name")
        if len(self.tables) >= limits.TABLES:
            raise Invalid(f"there are {limits.TABLES} tables already: drop one")
        if not self.servers():
            raise Invalid("no server has joined yet: start one, then create the table")
        servers = self.staying()
        model = self._model_table(name, spec, starts, like) if like else None
        starts = list(starts) if model is None else model.starts
        starts = starts or [keys.start for keys in segments_of(spec, len(servers))]
        _check_starts(starts, spec)
        self.tables_made += 1  # a number that no table ever had
        number = self.tables_made
        if model is None:
            holders = placement.place(number, len(starts), servers, self.copies)
            holders = [(*names, *self._leaving_copies(len(names))) for names in holders]
        else:
            holders = [tuple(place.servers) for place in model.places]
        places = [Replicas(self.number + 1, list(names), since=self.number + 1) for names in holders]
        placed = self.tables[name] = TablePlaces(number, name, spec, starts, places, origin)
        self.changed()
        return placed

    def _leaving_copies(self, copies: int) -> list[str]:
        """Leaving servers, as many as a new segment lacks copies: those that stay may be dead."""
        leaving = [name for name in self.servers() if name not in self.staying()]
        return leaving[: max(0, self.copies - copies)]

    def _model_table(self, name: str, spec: Table, starts: Sequence[int], like: str) -> TablePlaces:
        model = self.tables.get(like)
        if model is None:
            raise Invalid(f"table {name!r} like {like!r}: there is no such table (tables: {', '.join(self.tables)})")
        if starts:
            raise Invalid(f"table {name!r} like {like!r}: it has the segments of that table, leave starts out")
        if (spec.span, spec.hashed) != (model.spec.span, model.spec.hashed):
            keys = "hashed ones" if model.spec.hashed else f"those below {model.spec.span}"
            raise Invalid(f"table {name!r} like {like!r}: they need the same keys, and that one has {keys}")
        if not all(place.servers for place in model.places):
            raise Invalid(f"table {name!r} like {like!r}: segments of that table are lost")
        return model

    def roll_back(self, origins: dict[str, tuple[list[int], str]]) -> None:
        """Begin again: tables under new numbers, from ``origins`` or their initial values.

        All but servers are removed: what they sent before counts nowhere.
        """
        self.generation += 1
        for name in [name for name, entry in self.members.items() if entry.member.role != "server"]:
            self.remove(name, "the run rolled back to a checkpoint")
        for name, table in list(self.tables.items()):
            del self.tables[name]
            starts, origin = origins.get(name, (table.starts, ""))
            self.create(name, table.spec, starts, origin)

    def split(self, name: str, segment: int, at: int) -> None:
        if name not in self.tables:
            raise Invalid(f"no table {name!r} to split a segment of")
        table = self.tables[name]
        self.tables[name] = halved(table, segment, at, self.number + 1)
        self.loads.note_split(table.number, segment)
        self.changed()

    def may_split(self, table: TablePlaces) -> bool:
        """Every server has the table as it is, and knows who held it before."""
        since = max((place.since for place in table.places), default=0)
        return all(self.members[name].view >= since for name in self.servers())

    def drop(self, name: str) -> None:
        if name not in self.tables:
            raise Invalid(f"no table {name!r} to drop")
        del self.tables[name]
        self.changed()

    def set_max_delay(self, name: str, max_delay: int | None) -> None:
        if name not in self.tables:
            raise Invalid(f"no table {name!r}")
        table = self.tables[name]
        spec = checked(replace(table.spec, max_delay=max_delay))
        self.tables[name] = replace(table, spec=spec)
        self.changed()


@dataclass(slots=True)
class Assignment:
    """Which servers hold each segment of a roster's tables, and how that changes.

    A server is filled with a segment while the set serves on (``Replicas.filling``). When its
    primary says that it has everything (``BackfillComplete``), it joins the set or replaces a
    member of it (``Replicas.instead``): so a segment moves. Two members of a set may also swap:
    nothing is copied. Every change of a set has a new epoch, and messages of an older one count for
    nothing. A server is filled only after it has confirmed a view without the segment, and so
    dropped it.
    """

    roster: Roster
    unreachable: dict[tuple[str, str], int] = field(default_factory=dict)  # pairs -> until when
    _smallest: tuple[int, int] = (-1, 0)  # view, servers of the smallest set in it

    def shrink(self, primary: str, server: str, theirs: int, now: int = 0) -> bool:
        """A primary goes on without a server that it cannot reach. False if that is stale."""
        entry = self.roster.members.get(server)
        if entry is not None and entry.member.incarnation != theirs:
            return False

        def without(place: Replicas) -> Replicas:
            if place.servers[:1] != [primary]:
                return place
            if server in place.servers[1:]:
                return replace(place, servers=[one for one in place.servers if one != server])
            if place.filling == server:
                self.unreachable[primary, server] = now + self.roster.timing.move_again
                return replace(place, filling="")
            return place

        return self._new_view_if(self.replace_places(without))

    def filled(self, primary: str, full: BackfillComplete) -> list[NewReplica]:
        """A server has been filled with these segments: add it to their sets, unless stale."""
        entry = self.roster.members.get(full.server)
        table = next((one for one in self.roster.tables.values() if one.number == full.table), None)
        if entry is None or entry.member.incarnation != full.theirs or table is None:
            return []
        epochs = dict(zip(full.segments, full.epochs, strict=False))
        places, taken = list(table.places), list[NewReplica]()
        for segment, place in enumerate(places):
            if epochs.get(segment) == place.epoch and place.filling == full.server and place.servers[:1] == [primary]:
                opens = place.instead == primary
                servers = [full.server if one == place.instead else one for one in place.servers]
                servers = servers if place.instead else [*servers, full.server]
                places[segment] = self._with(place, servers)
                taken.append(NewReplica(table, segment, place.instead, full.server, opens))
        self._new_view_if(self._put(table, places))
        return taken

    def refill(self, now: int = 0) -> bool:
        """Name a server to be filled for every segment that has too few replicas."""
        if self.has_copies:
            return False
        servers = [name for name in self.roster.staying() if not self.roster.members[name].suspected]
        most = min(self.roster.copies, len(self.roster.staying()))
        changed = False
        for table in list(self.roster.tables.values()):
            loads = dict.fromkeys(servers, 0)
            for place in table.places:
                for name in (*place.servers[1:], place.filling):
                    if name in loads:
                        loads[name] += 1
            places = list(table.places)
            for segment, place in enumerate(places):
                if place.filling or not place.servers or len(place.servers) >= most:
                    continue
                ready = [name for name in servers if self._may_fill(now, name, place)]
                if ready:
                    name = backup_for(table.number, segment, ready, place.servers, loads)
                    loads[name] += 1
                    places[segment] = replace(place, filling=name)
            changed |= self._put(table, places)
        return self._new_view_if(changed)

    def _may_fill(self, now: int, name: str, place: Replicas) -> bool:
        """Whether this server can be filled: it dropped what it had, and can be reached."""
        entry = self.roster.members[name]
        if name in place.servers or entry.view < max(place.epoch, entry.since):
            return False
        return now >= self.unreachable.get((place.servers[0], name), 0)

    def begin(self, now: int, wanted: Sequence[WantedMove]) -> list[WantedMove]:
        """Begin these moves; those that were begun. Others wait, or are stale."""
        begun: list[WantedMove] = []
        for those in atomic_groups(wanted):
            before = dict(self.roster.tables)
            if all(self._begin(now, one) for one in those):
                begun += those
            else:
                self.roster.tables.update(before)  # half a trade would have to be undone
        self._new_view_if(bool(begun))
        return begun

    def _begin(self, now: int, one: WantedMove) -> bool:
        table = self.roster.tables[one.table]
        place = table.places[one.segment]
        if (
            place.filling
            or one.source not in place.servers
            or any(self._shown(name) < place.epoch for name in place.servers)  # it lacks that set
        ):
            return False
        if not one.target:
            left = [name for name in place.servers if name != one.source and self._shown(name) >= self.roster.number]
            if all(self.roster.members[name].suspected for name in left):
                return False  # those left may be dead, which is not known yet
            return self._put_one(table, one.segment, self._without(place, one.source))
        entry = self.roster.members.get(one.target)
        if entry is None or entry.member.leaving or entry.suspected:
            return False
        if one.target in place.servers:
            other = {one.source: one.target, one.target: one.source}
            return self._put_one(
                table, one.segment, self._with(place, [other.get(name, name) for name in place.servers])
            )
        if not self._may_fill(now, one.target, place):
            return False
        return self._put_one(table, one.segment, replace(place, filling=one.target, instead=one.source))

    def _shown(self, name: str) -> int:
        entry = self.roster.members.get(name)
        return -1 if entry is None else entry.view

    def count_held(self, name: str) -> int:
        places = (place for table in self.roster.tables.values() for place in table.places)
        return sum(name in place.servers or place.filling == name for place in places)

    def _new_view_if(self, changed: bool) -> bool:
        if changed:
            self.roster.changed()
        return changed

    def has_lost(self) -> bool:
        return self._smallest_set() == 0

    @property
    def has_copies(self) -> bool:
        return self._smallest_set() >= min(self.roster.copies, len(self.roster.staying()))

    def _smallest_set(self) -> int:
        if self._smallest[0] != self.roster.number:
            sets = (len(place.servers) for table in self.roster.tables.values() for place in table.places)
            self._smallest = (self.roster.number, min(sets, default=limits.MEMBERS))
        return self._smallest[1]

    def is_needed(self, name: str) -> bool:
        """Whether every other holder of some segment that it holds is suspected, too."""
        places = (place for table in self.roster.tables.values() for place in table.places if name in place.servers)
        return any(all(one == name or self.roster.members[one].suspected for one in place.servers) for place in places)

    def without(self, server: str) -> None:
        """A server is gone: the survivors of its sets go on, the first of them as primary."""

        def without(place: Replicas) -> Replicas:
            if server in place.servers:
                return self._without(place, server)
            return replace(place, filling="", instead="") if place.filling == server else place

        self.replace_places(without)

    def _without(self, place: Replicas, server: str) -> Replicas:
        left = [one for one in place.servers if one != server]
        return self._with(place, left, "" if left else server)

    def _with(self, place: Replicas, servers: list[str], last: str = "") -> Replicas:
        """The set with these members from the next view on; the first one is primary."""
        number = self.roster.number + 1
        return Replicas(number, servers, last, since=place.since if servers[:1] == place.servers[:1] else number)

    def replace_places(self, change: Callable[[Replicas], Replicas]) -> bool:
        """Change places: a set that changes gets a new epoch, and filling begins again."""
        changed = False
        for table in list(self.roster.tables.values()):
            places = []
            for place in table.places:
                new = change(place)
                if new is not place:
                    new = replace(new, epoch=self.roster.number + 1, filling="", instead="")
                places.append(new)
            changed |= self._put(table, places)
        return changed

    def _put_one(self, table: TablePlaces, segment: int, place: Replicas) -> bool:
        places = list(table.places)
        places[segment] = place
        return self._put(table, places)

    def _put(self, table: TablePlaces, places: list[Replicas]) -> bool:
        if places == table.places:
            return False
        self.roster.tables[table.name] = replace(table, places=places)
        return True


def remember(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Store as the newest entry; drop the oldest above ``most``."""
    known.pop(key, None)
    known[key] = value
    while len(known) > most:
        del known[next(iter(known))]


def _process(token: str) -> str:
    """A token is a process and which of its lives it is."""
    return token.rpartition(".")[0] or token


def _check_starts(starts: Sequence[int], spec: Table) -> None:
    if not 1 <= len(starts) <= limits.SEGMENTS_PER_TABLE or starts[0] != 0 or starts[-1] >= spec.span:
        raise Invalid(f"{len(starts)} segments: they begin at 0, and all of them lie below {spec.span}")
    if any(one >= other for one, other in pairwise(starts)):
        raise Invalid("the starts of segments are sorted, each once")
