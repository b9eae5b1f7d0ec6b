"""Adds and removes servers during a run, and balances load: the coordinator's part.

    a server joins       it gets its share of what there is, a few segments at a time
    a server leaves      all that it holds goes to others; when it holds nothing it is released
    a worker leaves      it is dealt no more slots, and leaves when it has reported those it had
    a server is hot      it trades a hot segment for a cold one; one that is too hot is split

Copies come before balance, and nothing begins while a checkpoint is being written. From one primary
to one server goes a batch at a time. A plan follows from the view (``rebalance_plan``), so a
restarted coordinator plans the same, and a failed move is planned again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal import limits
from shoal.cluster import rebalance_plan
from shoal.cluster.groups import may_send_away
from shoal.cluster.move_settings import MoveSettings
from shoal.cluster.rebalance_plan import WantedMove
from shoal.cluster.roster import NewReplica
from shoal.events import LEFT, Handed, Leaving, Shared, Split
from shoal.nodes.coordinator_state import CoordinatorState
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Tell
from shoal.wire.messages.groups import namespace

_Key = tuple[int, int]  # table's number, segment


@dataclass(slots=True)
class OpeningMove:
    """Segments that were handed over, and are not known to be served yet."""

    table: str
    number: int
    segments: list[int]
    source: str
    target: str
    incarnation: int  # of the target
    why: str
    gain: str
    began: int
    view: int
    announced_at: int = 0  # when that view was sent to all


class Rebalancer:
    """The moves and departures of one cluster."""

    def __init__(self, moves: MoveSettings | None = None) -> None:
        self.moves = moves or MoveSettings()
        self._started: dict[_Key, tuple[int, str, str]] = {}  # when, why, and what it gains
        self._openings: list[OpeningMove] = []
        self._planned_state: tuple[int, ...] = ()  # the state that the last plan was made for
        self._deferred = False  # some of it could not be begun yet
        self._next_plan = 0  # when to plan again even if nothing changed
        self._drain_requests: dict[tuple[str, int], int] = {}  # sender, request -> its view
        self._releasing: dict[str, int] = {}  # incarnations to release with the next view
        self._last_counts: tuple[dict[str, int], dict[str, int]] = {}, {}  # as last reported

    def leave(self, now: int, name: str, why: str, of: CoordinatorState) -> tuple[str, list[Effect]]:
        """Start a node's departure. Returns why it cannot leave; empty if it can, or is leaving."""
        entry = of.roster.members.get(name)
        if name in of.roster.released or (entry is not None and entry.member.leaving):
            return "", []
        if entry is None:
            return f"no member is named {name[:64]!r} (members: {', '.join(of.roster.members)})", []
        role = entry.member.role
        if role not in ("server", "worker"):
            return f"{name} is {'an' if role[:1] in 'aeiou' else 'a'} {role}: only servers and workers can leave", []
        others = [one for one in of.roster.servers() if one != name and not of.roster.members[one].member.leaving]
        if role == "server" and of.roster.tables and not others:
            return f"{name} is the last server that stays, and there are tables: start another one first", []
        of.roster.leave(name)
        of.counts["asked to leave"] += 1
        if of.scheduler is None:
            return "", []
        effects: list[Effect] = [Tell(Leaving(seconds=of.scheduler.seconds, name=name, role=role, why=why))]
        left = len(of.roster.staying())
        if role == "server" and left < of.roster.copies:
            what = f"without {name} every segment has {left} of {of.roster.copies} copies from now on"
            effects += of.scheduler.warn(f"{what}: start another server, or the loss of the last copy loses data")
        return "", effects

    def drain(self, now: int, sender: str, drain: m.Drain, of: CoordinatorState) -> list[Effect]:
        """A request that a node leaves: answered when that is on disk, or refused with a reason."""
        if why := may_send_away(of.roster, sender, drain.name):
            return [Send(sender, m.Refusal(drain.request, "setting", why))]
        why, effects = self.leave(now, drain.name, f"{sender} asked for it", of)
        if why:
            return [*effects, Send(sender, m.Refusal(drain.request, "setting", why))]
        if len(self._drain_requests) < limits.MEMBERS:  # otherwise it is asked again
            self._drain_requests.setdefault((sender, drain.request), of.roster.number)
        return [*effects, *self._answer(of.view.number)]

    def _answer(self, view: int) -> list[Effect]:
        done = [one for one, since in self._drain_requests.items() if since <= view]
        for one in done:
            del self._drain_requests[one]
        return [Send(sender, m.Done(request)) for sender, request in done]

    def full(self, now: int, taken: Sequence[NewReplica], of: CoordinatorState) -> list[Effect]:
        """Segments have a new member by the next view."""
        effects: list[Effect] = []
        groups: dict[tuple[str, str, bool], list[NewReplica]] = {}
        for one in taken:
            groups.setdefault((one.source, one.target, one.opens), []).append(one)
        for (source, target, opens), those in groups.items():
            begun = [self._started.pop((one.table.number, one.segment), (now, "", "")) for one in those]
            if not source:
                continue  # one more copy
            otherwise = "leaving" if self._is_leaving(source, of) else "count"
            why, gain = next(((why, gain) for _, why, gain in begun if why), (otherwise, ""))
            of.counts["segments handed"] += len(those)
            table, segments = those[0].table, [one.segment for one in those]
            life, began = of.roster.members[target].member.incarnation, min(when for when, _, _ in begun)
            moved = (table.name, table.number, segments, source, target, life)
            opening = OpeningMove(*moved, why, gain, began, of.roster.number)
            if opens:
                self._openings.append(opening)
            else:
                effects += self._report(now, opening, of)
        return effects

    def announced(self, now: int, of: CoordinatorState) -> list[Effect]:
        """The view is on disk, and sent to all members."""
        view = of.view
        for one in self._openings:
            if not one.announced_at and one.view <= view.number:
                one.announced_at = now
        members = {member.name for member in view.members}
        gone = [(name, one) for name, one in self._releasing.items() if name not in members]
        for name, _ in gone:
            del self._releasing[name]
        effects: list[Effect] = [*self._answer(view.number), *(Send(name, m.Release(one)) for name, one in gone)]
        run, found = of.scheduler, segment_counts(view)
        if run is None or run.ended or not view.tables or found == self._last_counts:
            return effects
        self._last_counts = found
        return [*effects, Tell(Shared(seconds=run.seconds, serves=found[0], copies=found[1]))]

    def opened(self, now: int, sender: str, opened: m.Opened, of: CoordinatorState) -> list[Effect]:
        """A new primary serves these."""
        effects: list[Effect] = []
        for one in list(self._openings):
            if (one.number, one.target) != (opened.table, sender) or opened.view < one.view:
                continue
            if all(segment in opened.segments for segment in one.segments):
                self._openings.remove(one)
                effects += self._report(now, one, of)
        return effects

    def _report(self, now: int, one: OpeningMove, of: CoordinatorState) -> list[Effect]:
        of.counts["hand-overs"] += 1
        if of.scheduler is None:
            return []
        # If the source was lost on the way, that is why it took so long.
        lost = not of.roster.lost.get(one.source, LEFT).startswith(LEFT)
        handed = Handed(
            seconds=of.scheduler.seconds,
            table=one.table,
            segments=one.segments,
            source=one.source,
            target=one.target,
            why="lost" if lost else one.why,
            gain="" if lost else one.gain,
            took=(now - one.began) / limits.SECOND,
            stall=(now - one.announced_at) / limits.SECOND if one.announced_at else 0.0,
        )
        return [Tell(handed)]

    def tick(self, now: int, of: CoordinatorState) -> list[Effect]:
        """Call it after every event."""
        self._drop_stale(now, of)
        effects = self._release(now, of)
        if (self._state(of) == self._planned_state and now < self._next_plan) or not of.roster.tables:
            return effects
        if not of.roster.assignment.has_copies or of.is_checkpointing:
            return effects
        roster, loads = of.roster, of.roster.loads
        self._next_plan = now + roster.timing.load_every
        leaving = [name for name in roster.servers() if roster.members[name].member.leaving]
        staying = [name for name in roster.servers() if name not in leaving and not roster.members[name].suspected]
        loads.prune(roster.tables)
        balance: str = self.moves.balance  # by load only if a server was hot for a while
        if balance == "load" and not loads.should_relieve(now, staying, roster.tables, roster.timing.load_every):
            balance = "count"
        if balance == "load" and (split := self._split(staying, of)) is not None:
            return [*effects, *split]
        tables, in_flight = list(roster.tables.values()), self._in_flight()
        wanted = rebalance_plan.plan(
            tables, staying, leaving=leaving, loads=loads.rates, in_flight=in_flight, balance=balance
        )
        busy = {(one.source, one.target) for one in self._openings}
        wanted = [one for one in wanted if (one.source, one.target) not in busy]
        begun = roster.assignment.begin(now, wanted)
        if any(one.why == "load" for one in begun):
            loads.note_trade()
        self._record_started(now, begun, of)
        self._deferred = len(begun) < len(wanted)  # a target has not dropped what it had
        if self._deferred:
            self._next_plan = now + roster.timing.heartbeat
        self._planned_state = self._state(of)
        return effects

    def _state(self, of: CoordinatorState) -> tuple[int, ...]:
        """The state that a plan depends on: if it is the same, no new plan is needed."""
        shown = [of.roster.members[name].view for name in of.roster.servers()] if self._deferred else []
        return of.roster.number, len(self._openings), *shown

    def _record_started(self, now: int, begun: Sequence[WantedMove], of: CoordinatorState) -> None:
        """Note moves that were begun; swaps within a set take effect with the next view."""
        of.counts["moves begun"] += len(begun)
        at_once: dict[tuple[str, str, str], OpeningMove] = {}  # one event for those opened together
        for one in begun:
            table = of.roster.tables[one.table]
            place = table.places[one.segment]
            if place.filling:
                self._started[table.number, one.segment] = now, one.why, one.gain
            elif place.since == of.roster.number:  # a swap: another server is primary now
                target = place.servers[0]
                moved = (one.table, one.source, target)
                if (opening := at_once.get(moved)) is None:
                    life = of.roster.members[target].member.incarnation
                    how = (one.source, target, life, one.why, one.gain, now, of.roster.number)
                    opening = at_once[moved] = OpeningMove(one.table, table.number, [], *how)
                opening.segments.append(one.segment)
        self._openings += at_once.values()

    def _split(self, servers: Sequence[str], of: CoordinatorState) -> list[Effect] | None:
        roster = of.roster
        tables = list(roster.tables.values())
        found = rebalance_plan.split(tables, servers, roster.loads.rates, roster.loads.halves, self._in_flight())
        if found is None or not roster.may_split(roster.tables[found.table]):
            return None
        if len(coding.encode(roster.view())) > limits.HEADER_BYTES // 2:
            return None  # no more segments fit in one view
        roster.split(found.table, found.segment, found.at)
        of.counts["segments split"] += 1
        if of.scheduler is None:
            return []
        seconds = of.scheduler.seconds
        return [Tell(Split(seconds=seconds, table=found.table, segment=found.segment, at=found.at, why=found.why))]

    def _in_flight(self) -> list[_Key]:
        return [(one.number, segment) for one in self._openings for segment in one.segments]

    def _drop_stale(self, now: int, of: CoordinatorState) -> None:
        """Drop moves whose target is gone or replaced, or that were not confirmed in time."""
        tables = {table.number: table for table in of.roster.tables.values()}
        for one in list(self._openings):
            entry = of.roster.members.get(one.target)
            gone = entry is None or entry.member.incarnation != one.incarnation or one.number not in tables
            if gone or (one.announced_at and now - one.announced_at >= of.roster.timing.move_opens):
                self._openings.remove(one)
                of.counts["hand-overs unheard"] += 1
        for number, segment in list(self._started):
            table = tables.get(number)
            if table is None or segment >= len(table.places) or not table.places[segment].filling:
                del self._started[number, segment]
                of.counts["moves given up"] += 1

    def _is_leaving(self, name: str, of: CoordinatorState) -> bool:
        entry = of.roster.members.get(name)
        return entry is not None and entry.member.leaving

    def _release(self, now: int, of: CoordinatorState) -> list[Effect]:
        effects: list[Effect] = []
        for name, entry in list(of.roster.members.items()):
            if not entry.member.leaving or entry.member.role != "server" or of.roster.assignment.count_held(name):
                continue
            if any(one.source == name for one in self._openings):
                continue  # the new primary may still ask it something
            self._releasing[name] = entry.member.incarnation
            effects += of.let_go(now, name)
        return effects

    def moves_in_progress(self, now: int, of: CoordinatorState) -> list[m.Move]:
        """All moves that have begun and are not complete."""
        found: list[m.Move] = []
        for table in of.roster.tables.values():
            for segment, place in enumerate(table.places):
                if not place.filling:
                    continue
                otherwise = now, "copies" if not place.instead else "", ""
                since, why, _ = self._started.get((table.number, segment), otherwise)
                why = why or ("leaving" if self._is_leaving(place.instead, of) else "count")
                source = place.instead or place.servers[0]
                found.append(m.Move(table.name, segment, source, place.filling, max(0, now - since), why))
        for one in self._openings:
            how = (one.source, one.target, max(0, now - one.began), one.why)
            found += [m.Move(one.table, segment, *how) for segment in one.segments]
        return found


def segment_counts(view: m.View) -> tuple[dict[str, int], dict[str, int]]:
    """Segments that each server serves, and copies it keeps; not of the tables of groups."""
    places = [place for table in view.tables if not namespace(table.name) for place in table.places]
    first = Counter(place.servers[0] for place in places if place.servers)
    more = Counter(name for place in places for name in place.servers[1:])
    servers = [member.name for member in view.members if member.role == "server"]
    return {name: first[name] for name in servers}, {name: more[name] for name in servers}
