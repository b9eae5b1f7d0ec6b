"""The view: who is a member, which tables there are and who holds them. Only the coordinator writes it.

``Roster`` is the truth behind the view: pure bookkeeping, no messages. A name has one live incarnation; incarnations come
from one counter for the whole cluster and are never given twice. Of those who are gone the last ones are
remembered, and no more: names are made up by whoever comes, and all that is known here is in every record of the journal.

Silence: a member that is silent for ``timing.suspect`` is suspected, which costs nothing; for ``timing.dead``, removed. Two rules
keep a coordinator that is cut off from taking living servers out of their sets (``hear`` and ``silent``):

    time in which nobody at all was heard is held against nobody
    a server is removed for silence only if all that it holds is also held by a server that is heard
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from msgspec.structs import replace

from shoal import limits
from shoal.cluster import placement
from shoal.cluster.assignment import Assignment
from shoal.cluster.assignment import Joiner as Joiner
from shoal.cluster.load_stats import LoadStats
from shoal.cluster.placement import segments_of
from shoal.cluster.split import halved
from shoal.errors import Invalid
from shoal.tables import Table, checked
from shoal.wire.messages import Member, Replicas, TablePlaces, View
from shoal.wire.messages.groups import SCHEDULER, GroupLimits

ROLES = ("server", "worker", "client", "evaluator", SCHEDULER)
T = TypeVar("T")
_LIVES = 16  # of one name, that are remembered


@dataclass(slots=True)
class Roster(Assignment):
    """Members and tables, and the number of the view that shows them."""

    term: int = 1
    generation: int = 0
    incarnations: int = 0  # the last one handed out
    tables_made: int = 0
    groups: dict[str, GroupLimits] = field(default_factory=dict)  # that the operator has named
    retired: dict[str, list[str]] = field(default_factory=dict)  # tokens of former lives, by name
    replaced: dict[str, list[str]] = field(default_factory=dict)  # processes whose name another one took, by name
    lost: dict[str, str] = field(default_factory=dict)  # servers that are gone, and nodes that never came: why
    released: dict[str, int] = field(default_factory=dict)  # incarnations that were let go, by name
    loads: LoadStats = field(default_factory=LoadStats)
    heard: int = 0  # when the last word of any member came

    def view(self) -> View:
        if self._view is None:
            members = [person.member for person in self.people.values()]
            tables, groups = list(self.tables.values()), list(self.groups.values())
            self._view = View(self.term, self.number, self.generation, members, tables, groups, self.timing)
        return self._view

    # ------------------------------------------------------------ members

    def may_join(self, name: str, role: str, token: str) -> str:
        """Why this node may not join; empty if it may."""
        if not name or len(name) > limits.NAME_CHARS or not name.isprintable():
            return f"a name has 1 to {limits.NAME_CHARS} printable characters"
        if name == "coordinator":
            return "that name is the coordinator's own: choose another"
        if role not in ROLES:
            return f"role {role[:64]!r} is none of {', '.join(ROLES)}"
        holder = self.people.get(name)
        if (
            holder is not None
            and holder.token != token
            and "server" in (role, holder.member.role)
            and not holder.suspected
        ):
            return f"the name {name!r} is taken by a {holder.member.role} that is alive: choose another"
        if holder is not None and not holder.suspected and self._was_displaced(name, token):
            return (
                f"another process has taken the name {name!r}, and is alive: choose another name, or end one of the two"
            )
        if name not in self.people and len(self.people) >= limits.MEMBERS:
            return f"the cluster is full: {limits.MEMBERS} members"
        return ""

    def is_undecided(self, name: str, token: str) -> bool:
        """Whether a process that lost its name wants it back from one of which nothing but its hello was heard.

        That hello may be the last word of a dead process that came late. It is heard again soon, or suspected.
        """
        holder = self.people.get(name)
        unheard = holder is not None and holder.view == 0 and not holder.suspected
        return unheard and self._was_displaced(name, token)

    def _was_displaced(self, name: str, token: str) -> bool:
        return _process(token) in self.replaced.get(name, ()) and not self.is_over(name, token)

    def knows(self, name: str, token: str) -> Joiner | None:
        """The member that sent this very hello before."""
        person = self.people.get(name)
        return person if person is not None and person.token == token else None

    def is_over(self, name: str, token: str) -> bool:
        """A hello that comes too late: that life has ended."""
        return token in self.retired.get(name, ())

    def join(
        self, now: int, name: str, role: str, token: str, address: str, incarnation: int, group: str = ""
    ) -> Joiner:
        if name in self.people:
            self.displace(name, token)
            self.remove(name, "another process took its name")
        self.lost.pop(name, None)
        self.released.pop(name, None)
        self._hear(now)
        person = self.people[name] = Joiner(Member(name, incarnation, role, address, group=group), token, now)
        self.changed()
        person.since = self.number
        return person

    def displace(self, name: str, token: str) -> None:
        """Another process takes this name over: the one that has it may not take it back while that one lives."""
        before = _process(self.people[name].token)
        if before != _process(token):
            _note(self.replaced, name, [*self.replaced.get(name, ())[1 - _LIVES :], before], limits.FORMER)

    def remove(self, name: str, reason: str) -> None:
        person = self.people.pop(name)
        _note(self.retired, name, [*self.retired.get(name, ())[1 - _LIVES :], person.token], limits.FORMER)
        if person.member.role == "server":
            self.note_lost(name, reason)
            self._without(name)
        self.changed()

    def note_lost(self, name: str, reason: str) -> None:
        """It is gone, or never came: told to whoever asks how things stand."""
        _note(self.lost, name, reason, limits.LOST)

    def release(self, name: str) -> None:
        """It may go: that is said again if it asks again."""
        _note(self.released, name, self.people[name].member.incarnation, limits.FORMER)

    def suspects(self) -> list[str]:
        """Servers of which nothing was heard for a while."""
        return [name for name, one in self.people.items() if one.suspected and one.member.role == "server"]

    def hear(self, now: int, person: Joiner) -> None:
        """This member said something."""
        self._hear(now)
        person.heard = now

    def _hear(self, now: int) -> None:
        # Every member says something once a heartbeat. If none of them did, it is we who were cut off: what comes first after that may be
        # the last word of one that is dead, and those whose words come next must not be taken for dead because of it.
        if self.heard and now - self.heard > 2 * self.timing.heartbeat:
            self.forgive(now - self.heard)
        self.heard = now

    def forgive(self, nanoseconds: int) -> None:
        """So much time is held against nobody: we slept, or heard nobody."""
        self.heard += nanoseconds
        for person in self.people.values():
            person.heard += nanoseconds

    def silent(self, now: int) -> Iterator[str]:
        """Members that must go, and suspicion for those that are late. Whoever is named is removed before the next is."""
        for person in self.people.values():
            person.suspected = now - person.heard >= self.timing.suspect
        for name, person in list(self.people.items()):
            if now - person.heard >= self.timing.dead and not self._is_needed(name):
                yield name

    # ------------------------------------------------------------ tables

    def check_create(self, name: str, spec: Table) -> None:
        """Raises what is wrong with it."""
        checked(spec)
        if not name or len(name) > limits.NAME_CHARS or not name.isprintable():
            raise Invalid(f"a table's name has 1 to {limits.NAME_CHARS} printable characters")
        if (known := self.tables.get(name)) is not None:
            raise Invalid(f"table {name!r} exists already ({known.spec}): drop it first, or take another name")
        if len(self.tables) >= limits.TABLES:
            raise Invalid(f"there are {limits.TABLES} tables already: drop one")
        if not self.servers():
            raise Invalid("no server has joined yet: start one, then create the table")

    def number_table(self) -> int:
        """A number that no table ever had."""
        self.tables_made += 1
        return self.tables_made

    def create(
        self,
        name: str,
        spec: Table,
        starts: Sequence[int] = (),
        origin: str = "",
        number: int | None = None,
        like: str = "",
    ) -> TablePlaces:
        """Place a table's segments on the servers there are, or where those of another one are."""
        self.check_create(name, spec)
        servers = self.staying()
        model = self._like(name, spec, starts, like) if like else None
        starts = list(starts) if model is None else model.starts
        starts = starts or [keys.start for keys in segments_of(spec, len(servers))]
        _check_starts(starts, spec)
        number = self.number_table() if number is None else number
        if model is None:
            holders = placement.place(number, len(starts), servers, self.copies)
            holders = [(*names, *self._until_they_go(len(names))) for names in holders]
        else:
            holders = [tuple(place.servers) for place in model.places]
        places = [Replicas(self.number + 1, list(names), since=self.number + 1) for names in holders]
        placed = self.tables[name] = TablePlaces(number, name, spec, starts, places, origin)
        self.changed()
        return placed

    def _until_they_go(self, copies: int) -> list[str]:
        """Servers that are leaving, as many as a new segment lacks copies.

        Where so few stay, the only one that stays may be dead already, and nobody has noticed. They let go of it as of all that they hold:
        when one that stays was heard since.
        """
        leaving = [name for name in self.servers() if name not in self.staying()]
        return leaving[: max(0, self.copies - copies)]

    def _like(self, name: str, spec: Table, starts: Sequence[int], like: str) -> TablePlaces:
        """The table that this one is to be placed like, if it can be."""
        model = self.tables.get(like)
        if model is None:
            raise Invalid(f"table {name!r} like {like!r}: there is no such table (tables: {', '.join(self.tables)})")
        if starts:
            raise Invalid(f"table {name!r} like {like!r}: it is cut where that one is, leave starts out")
        if (spec.span, spec.hashed) != (model.spec.span, model.spec.hashed):
            raise Invalid(
                f"table {name!r} like {like!r}: they need the same keys, and that one has "
                f"{'hashed ones' if model.spec.hashed else f'those below {model.spec.span}'}"
            )
        if not all(place.servers for place in model.places):
            raise Invalid(f"table {name!r} like {like!r}: parts of that one are lost, and lie nowhere")
        return model

    def roll_back(self, origins: dict[str, tuple[list[int], str]]) -> None:
        """Everybody begins again: tables under new numbers, from where ``origins`` says (or from their initial values).

        Whoever is no server is removed, and comes back as a new incarnation: what they sent before counts nowhere.
        """
        self.generation += 1
        for name in [name for name, person in self.people.items() if person.member.role != "server"]:
            self.remove(name, "the run went back to a checkpoint")
        for name, table in list(self.tables.items()):
            del self.tables[name]
            starts, origin = origins.get(name, (table.starts, ""))
            self.create(name, table.spec, starts, origin)

    def split(self, name: str, segment: int, at: int) -> None:
        """Make two segments of one: the second begins at this key."""
        if name not in self.tables:
            raise Invalid(f"no table {name!r} to split a segment of")
        table = self.tables[name]
        self.tables[name] = halved(table, segment, at, self.number + 1)
        self.loads.was_split(table.number, segment)
        self.changed()

    def may_split(self, table: TablePlaces) -> bool:
        """Every server has the table as it is: none finds it cut otherwise than where its rows come from, or misses a change of hands."""
        since = max((place.since for place in table.places), default=0)
        return all(self.people[name].view >= since for name in self.servers())

    def drop(self, name: str) -> None:
        if name not in self.tables:
            raise Invalid(f"no table {name!r} to drop")
        del self.tables[name]
        self.changed()

    def delay(self, name: str, max_delay: int | None) -> None:
        if name not in self.tables:
            raise Invalid(f"no table {name!r}")
        table = self.tables[name]
        spec = checked(_with_delay(table.spec, max_delay))
        self.tables[name] = replace(table, spec=spec)
        self.changed()


def _note(known: dict[str, T], name: str, what: T, most: int) -> None:
    """As the newest; the oldest go."""
    known.pop(name, None)
    known[name] = what
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


def _with_delay(spec: Table, max_delay: int | None) -> Table:
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return type(spec)(**{**fields, "max_delay": max_delay})
