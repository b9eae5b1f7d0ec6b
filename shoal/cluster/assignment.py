"""Who holds which segment, and how that changes: copies that are lacking, segments that change hands, servers that go.

A server is brought up to hold a segment while the set serves on (``Replicas.filling``). When it has everything, its primary
says so (``full``), and it becomes one more of the set, or takes the place of another (``Replicas.instead``): so a segment
moves, whether it is the primary's place or a backup's. Two members of one set may also change places: nothing is copied. Every change of a set is of a new epoch, and ends whatever was being
filled: what is said of an older epoch counts for nothing. Only one that has shown the view by which it is no member of
a set is named to be filled for it: so it has let go of what it had.

Pure bookkeeping, like the roster that it is a part of: nothing is sent from here, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from shoal.cluster.balance_plan import WantedMove
from shoal.cluster.placement import backup_for
from shoal.cluster.rebalance import together
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire.messages import Full, Member, Replicas, TablePlaces, View


@dataclass(slots=True)
class Joiner:
    """One member, as the coordinator knows it."""

    member: Member
    token: str
    heard: int  # when
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
class Assignment:
    """Members and tables, as far as it takes to say who holds what."""

    number: int = 0
    copies: int = 1
    timing: TimingSettings = DEFAULT
    people: dict[str, Joiner] = field(default_factory=dict)  # by name
    tables: dict[str, TablePlaces] = field(default_factory=dict)  # by name
    apart: dict[tuple[str, str], int] = field(default_factory=dict)  # a primary that could not reach one: until when
    _view: View | None = None
    _short: tuple[int, bool, bool] | None = None  # of that view: is a segment lost, have all their copies

    def changed(self) -> None:
        self.number += 1
        self._view = None

    def servers(self) -> list[str]:
        return [name for name, person in self.people.items() if person.member.role == "server"]

    def staying(self) -> list[str]:
        """Servers that may be given something; all, if all of them are leaving."""
        servers = self.servers()
        return [name for name in servers if not self.people[name].member.leaving] or servers

    # ------------------------------------------------------------ copies

    def shrink(self, primary: str, server: str, theirs: int, now: int = 0) -> bool:
        """A primary cannot reach a backup, or one that it fills: it may go on without it. False if that is not how things are."""
        person = self.people.get(server)
        if person is not None and person.member.incarnation != theirs:
            return False

        def without(place: Replicas) -> Replicas:
            if place.servers[:1] != [primary]:
                return place
            if server in place.servers[1:]:
                return replace(place, servers=[one for one in place.servers if one != server])
            if place.filling == server:
                self.apart[primary, server] = now + self.timing.move_again
                return replace(place, filling="")
            return place

        return self._if(self._replace(without))

    def full(self, primary: str, full: Full) -> list[NewReplica]:
        """A server has been filled with these segments: it is a member of their sets. None of them if that came too late."""
        person = self.people.get(full.server)
        table = next((one for one in self.tables.values() if one.number == full.table), None)
        if person is None or person.member.incarnation != full.theirs or table is None:
            return []
        epochs = dict(zip(full.segments, full.epochs, strict=False))
        places, taken = list(table.places), list[NewReplica]()
        for segment, place in enumerate(places):
            if epochs.get(segment) == place.epoch and place.filling == full.server and place.servers[:1] == [primary]:
                opens = place.instead == primary
                servers = [full.server if one == place.instead else one for one in place.servers]
                servers = servers if place.instead else [*servers, full.server]
                since = self.number + 1 if opens else place.since
                places[segment] = Replicas(self.number + 1, servers, since=since)
                taken.append(NewReplica(table, segment, place.instead, full.server, opens))
        self._if(self._put(table, places))
        return taken

    def refill(self, now: int = 0) -> bool:
        """Name a server to be filled for every segment that has too few copies. True if any was named."""
        if self._shortage()[1]:
            return False
        servers = [name for name in self.staying() if not self.people[name].suspected]
        most = min(self.copies, len(self.staying()))
        changed = False
        for table in list(self.tables.values()):
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
        return self._if(changed)

    def _may_fill(self, now: int, name: str, place: Replicas) -> bool:
        """Whether this server can be brought up to hold that: it has let go of what it had, and can be reached."""
        person = self.people[name]
        if name in place.servers or person.view < max(place.epoch, person.since):
            return False
        return now >= self.apart.get((place.servers[0], name), 0)

    # ------------------------------------------------------------ changing hands

    @property
    def has_copies(self) -> bool:
        """Every segment has as many as it should."""
        return self._shortage()[1]

    def begin(self, now: int, wanted: Sequence[WantedMove]) -> list[WantedMove]:
        """Begin these moves. Those that were begun: the others have to wait, or are not how things are any more."""
        begun: list[WantedMove] = []
        for those in together(wanted):
            before = dict(self.tables)
            if all(self._begin(now, one) for one in those):
                begun += those
            else:
                self.tables.update(before)  # half a trade would have to be undone
        self._if(bool(begun))
        return begun

    def _begin(self, now: int, one: WantedMove) -> bool:
        table = self.tables[one.table]
        place = table.places[one.segment]
        if (
            place.filling
            or one.source not in place.servers
            or not all(self._knows(name, place) for name in place.servers)
        ):
            return False
        if not one.target:
            if not any(self._is_here(name) for name in place.servers if name != one.source):
                return False  # who is left may be dead, and nobody has noticed yet
            return self._put_one(table, one.segment, self._left(place, one.source))
        person = self.people.get(one.target)
        if person is None or person.member.leaving or person.suspected:
            return False
        if one.target in place.servers:
            return self._put_one(table, one.segment, self._swapped(place, one.source, one.target))
        if not self._may_fill(now, one.target, place):
            return False
        return self._put_one(table, one.segment, replace(place, filling=one.target, instead=one.source))

    def _knows(self, name: str, place: Replicas) -> bool:
        """Whether this server has shown the view by which that set is as it is: else it would miss who had the segment before."""
        person = self.people.get(name)
        return person is not None and person.view >= place.epoch

    def _is_here(self, name: str) -> bool:
        """Whether this server has shown the newest view: it lived when whatever is to be done now was known already."""
        person = self.people.get(name)
        return person is not None and not person.suspected and person.view >= self.number

    def leave(self, name: str) -> None:
        """A node is to go: it is given nothing more, and what it was being filled with goes to others."""
        person = self.people[name]
        person.member = replace(person.member, leaving=True)
        self._replace(lambda place: replace(place, filling="") if place.filling == name else place)
        self.changed()

    def holds(self, name: str) -> int:
        """The parts that a server has, or is being given."""
        places = (place for table in self.tables.values() for place in table.places)
        return sum(name in place.servers or place.filling == name for place in places)

    # ------------------------------------------------------------ how it is done

    def _if(self, changed: bool) -> bool:
        if changed:
            self.changed()
        return changed

    def has_lost(self) -> bool:
        """Whether some segment is held by nobody."""
        return self._shortage()[0]

    def _shortage(self) -> tuple[bool, bool]:
        """Both, looked at once for each view."""
        if self._short is None or self._short[0] != self.number:
            most = min(self.copies, len(self.staying()))
            sets = [len(place.servers) for table in self.tables.values() for place in table.places]
            self._short = (self.number, 0 in sets, all(size >= most for size in sets))
        return self._short[1:]

    def _is_needed(self, name: str) -> bool:
        """Whether this server holds a segment that no other one holds of which anything was heard lately.

        Nobody could take its place: another one that is silent, too, is no better, and may be the one that is dead.
        """
        places = (place for table in self.tables.values() for place in table.places if name in place.servers)
        return any(all(one == name or self.people[one].suspected for one in place.servers) for place in places)

    def _without(self, server: str) -> None:
        """A server is gone: the survivors of its sets go on, the first of them as primary."""

        def without(place: Replicas) -> Replicas:
            if server in place.servers:
                return self._left(place, server)
            return replace(place, filling="", instead="") if place.filling == server else place

        self._replace(without)

    def _left(self, place: Replicas, server: str) -> Replicas:
        """Its set without this one: the next is primary, if that was it."""
        left = [one for one in place.servers if one != server]
        since = place.since if left[:1] == place.servers[:1] else self.number + 1
        return Replicas(self.number + 1, left, "" if left else server, since=since)

    def _swapped(self, place: Replicas, source: str, target: str) -> Replicas:
        other = {source: target, target: source}
        servers = [other.get(one, one) for one in place.servers]
        since = place.since if servers[0] == place.servers[0] else self.number + 1
        return Replicas(self.number + 1, servers, since=since)

    def _replace(self, change: Callable[[Replicas], Replicas]) -> bool:
        """Change places; the set of a segment that changes is of a new epoch, and whoever was being filled begins anew."""
        changed = False
        for table in list(self.tables.values()):
            places = []
            for place in table.places:
                new = change(place)
                if new is not place:
                    new = replace(new, epoch=self.number + 1, filling="", instead="")
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
        self.tables[table.name] = replace(table, places=places)
        return True
