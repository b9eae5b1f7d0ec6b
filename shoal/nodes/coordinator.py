"""The coordinator: it answers hello, hands out incarnations, keeps the view, and notices who is silent.

It is on no push or pull. Every change of the view is in its journal before anybody hears of it: members, tables and
where they are. So a coordinator that is killed and started again has the same members and the same tables, under the next
term; they greet it with their heartbeats, and nobody joins anew. What is asked for while a change is on its way to the
disk is not answered if the answer would give the change away: it is asked again. A change of tables is answered once every
server has the view that shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.membership import Roster
from shoal.errors import Invalid
from shoal.nodes import records
from shoal.nodes.dealing import JOURNAL_TOKEN, Dealing, Line
from shoal.nodes.greeting import why_not
from shoal.nodes.saving import Saving
from shoal.nodes.standing import standing
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Durable, Effect, Ended, Event, Persist, Received, Send, Stored, Wake

Change = m.Create | m.Drop | m.Delay | m.Allow | m.Dissolve
_RETRY = limits.SECOND  # a journal that cannot be written is tried again


@dataclass(slots=True)
class Settling:
    """A change of tables that is not yet known to every server."""

    asker: str
    request: int
    view: int
    table: str  # empty: nothing to undo
    number: int = 0


class Coordinator:
    """One coordinator, without its loop."""

    def __init__(
        self,
        name: str = "coordinator",
        copies: int = 1,
        journal: list[bytes] | None = None,
        dealing: Dealing | None = None,
        saving: Saving | None = None,
    ) -> None:
        self.name, self.dealing, self.saving = name, dealing, saving or Saving()
        self.roster = Roster(copies=copies)
        self.counts: Counter[str] = Counter()
        self.also: Callable[[], Mapping[str, int]] = dict  # what else is counted, by whoever holds this node
        self._welcomes: dict[str, m.Hello] = {}  # members from the next record on: told when it is on disk
        self._settling: list[Settling] = []
        self._answered: dict[tuple[str, int], m.Message] = {}  # changes of tables: a resent one is not done twice
        self._changes: dict[tuple[str, int], int] = {}  # those that are done, and the table's number
        self._again = False  # we are the next life of a coordinator whose run goes on
        self._replay(journal or [])
        self._writing = 0  # token of the record that is on its way to the disk
        self._written = self.view  # the view that is in it
        self._retry = 0  # when a journal that could not be written is tried again
        self._last = 0
        self._token = 0

    def _replay(self, journal: list[bytes]) -> None:
        last, others = records.split(journal)
        if last is not None:
            kept = records.replay(self.roster, last)
            self._changes = {(asker, request): number for asker, request, number in kept.changes}
        self.view = self.roster.view()  # the newest that is on disk, and so may be told
        if last is not None:  # from here on another term; its first view is written before anything else is done
            self.roster.term += 1
            self.roster.changed()
        if self.dealing is not None and others:
            members = (person.member for person in self.roster.people.values())
            workers = [member.incarnation for member in members if member.role == "worker" and not member.group]
            self.dealing.resume([msgspec.msgpack.decode(record, type=Line) for record in others], workers)
            self._again = bool(self.roster.people)

    def handle(self, now: int, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        self._wake_up(now)
        if self._again and self.dealing is not None:
            self._again = False
            effects += self.dealing.started_again(now, self.roster.term)
        match event:
            case Received(sender, message):
                effects += self._received(now, sender, message)
            case Durable(token, error) if token and token == self._writing:
                effects += self._durable(now, error)
            case Durable(token, error) if token == JOURNAL_TOKEN and error and self.dealing is not None:
                effects += self.dealing.warn(f"the journal cannot be written: {error}")
            case Stored():
                effects += self.saving.stored(now, event, self)
                for name in [name for name in self._welcomes if name not in self.roster.people]:
                    del self._welcomes[name]  # everybody had to go, back to a checkpoint: it says hello again
            case Ended(name, reason, token):
                effects += self._ended(now, name, reason, token)
            case _:
                pass
        for name in self.roster.silent(now):
            self.counts["removed"] += 1
            effects += self._remove(now, name, f"silent for {limits.DEAD_AFTER / limits.SECOND:g} s", died=True)
        if self.dealing is not None:
            effects += self.dealing.tick(now)
            self.dealing.set_delay(self.roster)
        effects += self.saving.tick(now, self)
        self.counts["refills"] += self.roster.refill()
        effects += self._write(now)
        effects += self._settle()
        effects.append(Wake(now + limits.HEARTBEAT))
        return effects

    def _wake_up(self, now: int) -> None:
        """It may be us who slept, or were not there: nobody is blamed for what we did not hear meanwhile."""
        if not self._last:
            for person in self.roster.people.values():
                person.heard = now
        elif now - self._last > limits.SUSPECT_AFTER:
            for person in self.roster.people.values():
                person.heard += now - self._last
        self._last = now

    # ------------------------------------------------------------ the journal

    @property
    def _told(self) -> bool:
        """Whether all there is may be told: nothing of it is still on its way to the disk."""
        return self.roster.number == self.view.number

    def _write(self, now: int) -> list[Effect]:
        """One record at a time; what changes meanwhile goes with the next."""
        if self._told or self._writing or now < self._retry:
            return []
        self._token += 1
        self._writing, self._written = self._token, self.roster.view()
        changes = [(asker, request, number) for (asker, request), number in self._changes.items()]
        return [Persist(self._token, records.record_of(self.roster, changes))]

    def _durable(self, now: int, error: str) -> list[Effect]:
        self._writing = 0
        if error:
            return self._cannot_write(now, error)
        self.view = self._written
        return [*self._welcome(now), *(Send(member.name, self.view) for member in self.view.members)]

    def _cannot_write(self, now: int, error: str) -> list[Effect]:
        """Nobody joins, no table is made; what has happened to those who are here is told when it is on disk."""
        self._retry, why = now + _RETRY, f"the journal cannot be written: {error}"
        effects: list[Effect] = [] if self.dealing is None else self.dealing.warn(why)
        for name, hello in self._welcomes.items():
            self.roster.remove(name, why)
            self.roster.retired[name].remove(hello.token)  # it has not lived yet
            self.roster.lost[name] = why
            effects.append(Send(name, m.No(0, "full", why)))
        self._welcomes.clear()
        for one in [one for one in self._settling if one.table and one.view > self.view.number]:
            self._settling.remove(one)
            del self._changes[one.asker, one.request]
            if one.table in self.roster.tables:
                self.roster.drop(one.table)
            effects.append(Send(one.asker, m.No(one.request, "full", why)))
        return effects

    def _welcome(self, now: int) -> list[Effect]:
        """Those who are members by the record that is now on disk."""
        effects: list[Effect] = []
        here = {member.name: member.incarnation for member in self.view.members}
        for name, hello in list(self._welcomes.items()):
            if name in here and here[name] == self.roster.people[name].member.incarnation:
                del self._welcomes[name]
                if self.dealing is not None and not hello.group:
                    effects += self.dealing.joined(now, name, hello.role)
                effects.append(Send(name, m.Welcome(hello.token, here[name], self.view)))
        return effects

    def _received(self, now: int, sender: str, message: m.Message) -> list[Effect]:
        match message:
            case m.Hello():
                return self._hello(now, sender, message)
            case m.Heartbeat():
                return self._heartbeat(now, sender, message)
            case m.Leave(incarnation) if self._is(sender, incarnation):
                return self._remove(now, sender, "it left", died=False)
            case m.Leave():
                pass
            case m.Refresh(request):
                return [Send(sender, self.view), Send(sender, m.Done(request))]
            case m.Look(request):
                return [Send(sender, standing(self, now, request))]
            case m.Create() | m.Drop() | m.Delay() | m.Allow() | m.Dissolve():
                return self._change(sender, message)
            case m.Lost() if groups.ended(self.roster, sender, message):
                return self._remove(now, message.name, message.why, died=True)
            case m.Want() | m.Ready():
                return self._train(now, sender, message)
            case m.Shrink() | m.Full():
                return self._copies(sender, message)
            case m.Snapped(_, incarnation) if self._is(sender, incarnation):
                return self.saving.snapped(now, sender, message)
            case m.Save(request) if sender in self.roster.people:
                return self.saving.save(sender, request)
            case _:
                self.counts["unexpected"] += 1
        return []

    def _train(self, now: int, sender: str, ask: m.Want | m.Ready) -> list[Effect]:
        if not self._is(sender, ask.incarnation):
            return self._fence(sender, ask.incarnation)
        person = self.roster.people[sender]
        person.heard = now
        if self.dealing is None or person.member.group:
            return [Send(sender, m.No(ask.request, "setting", "there is no run here to take part in"))]
        role = "worker" if isinstance(ask, m.Want) else "evaluator"
        if person.member.role != role:
            return [
                Send(
                    sender, m.No(ask.request, "setting", f"only a {role} may ask this, you are a {person.member.role}")
                )
            ]
        if isinstance(ask, m.Want):
            return self.dealing.want(now, sender, ask)
        effects = self.dealing.ready(now, sender, ask)
        return [*effects, *self.saving.heard(effects)]

    # ------------------------------------------------------------ members

    def _is(self, name: str, incarnation: int) -> bool:
        person = self.roster.people.get(name)
        return person is not None and person.member.incarnation == incarnation

    def _fence(self, sender: str, incarnation: int) -> list[Effect]:
        if not self._told:
            return []  # that it was removed is not on disk yet; it asks again
        self.counts["fenced"] += 1
        return [Send(sender, m.Fence(0, incarnation))]

    def _hello(self, now: int, sender: str, hello: m.Hello) -> list[Effect]:
        if sender != hello.name:
            return [Send(sender, m.No(0, "setting", f"your name is {sender!r}, not {hello.name!r}"))]
        if (reason := why_not(self.roster, hello)) != "":
            return [Send(sender, m.No(0, "setting", reason))]
        if (known := self.roster.knows(hello.name, hello.token)) is not None:
            known.heard = now
            if hello.name in self._welcomes:
                return []  # a repeat: the first is still on its way to the disk
            return [Send(sender, m.Welcome(hello.token, known.member.incarnation, self.view))]
        if self.roster.is_over(hello.name, hello.token):
            # A repeat from a former life, or one that was removed before it ever heard that it had joined.
            self.counts["late hello"] += 1
            return [Send(sender, m.Over(hello.token))] if self._told else []
        effects: list[Effect] = []
        if hello.name in self.roster.people:
            self.roster.displace(hello.name, hello.token)
            effects += self._remove(now, hello.name, "another process took its name", died=True)
        self.roster.incarnations += 1
        number = self.roster.incarnations
        self.roster.join(now, hello.name, hello.role, hello.token, hello.address, number, hello.group)
        self._welcomes[hello.name] = hello
        return effects

    def _remove(self, now: int, name: str, why: str, died: bool) -> list[Effect]:
        member = self.roster.people[name].member
        self.roster.remove(name, why)
        if self._welcomes.pop(name, None) is not None:  # nobody has heard of it
            return self._never_came(now, name, why)
        if self.dealing is None or member.group:
            return []
        if self.roster.has_lost():
            self.saving.lost(now, f"{name} is gone ({why}), and with it the only copy of its part of the model")
        return self.dealing.gone(now, member, why, died)

    def _ended(self, now: int, name: str, reason: str, token: str) -> list[Effect]:
        """The launcher saw it; which life of that name it was is told by the token."""
        person = self.roster.people.get(name)
        if person is None:  # before it had joined
            self.roster.lost[name] = reason
            return self._never_came(now, name, reason)
        if token and not person.token.startswith(token):
            return []  # another life has the name by now
        return self._remove(now, name, reason, died=True)

    def _never_came(self, now: int, name: str, reason: str) -> list[Effect]:
        if self.dealing is None or not name.startswith("worker"):
            return []
        return self.dealing.never_came(now, name, reason)

    def _heartbeat(self, now: int, sender: str, beat: m.Heartbeat) -> list[Effect]:
        if not self._is(sender, beat.incarnation):
            return self._fence(sender, beat.incarnation)
        person = self.roster.people[sender]
        person.heard, person.view = now, max(person.view, beat.view)
        effects: list[Effect] = []
        for number, reason in beat.failed.items():
            effects += self._undo(number, reason)
        if beat.view < self.view.number:
            return [*effects, Send(sender, self.view)]
        return [*effects, Send(sender, m.Alive(self.view.term, self.view.number))]

    def _copies(self, sender: str, ask: m.Shrink | m.Full) -> list[Effect]:
        """A primary wants its sets changed: done if both are still who they were; the next view is the answer."""
        if not self._is(sender, ask.incarnation):
            return self._fence(sender, ask.incarnation)
        if isinstance(ask, m.Shrink):
            self.counts["shrunk"] += self.roster.shrink(sender, ask.server, ask.theirs)
        else:
            self.counts["filled"] += self.roster.full(sender, ask)
        return []

    # ------------------------------------------------------------ tables

    def _change(self, sender: str, change: Change) -> list[Effect]:
        asked = (sender, change.request)
        if sender not in self.roster.people:
            return [Send(sender, m.No(change.request, "setting", "only a member may change tables: say hello first"))]
        if asked in self._answered:
            return [Send(sender, self._answered[asked])]
        if any((one.asker, one.request) == asked for one in self._settling):
            return [Send(sender, m.Held(change.request, self._waits_for()))]
        if (number := self._changes.get(asked)) is not None:  # a former life of ours did it
            table = next((one.name for one in self.roster.tables.values() if one.number == number), "")
            self._settling.append(Settling(sender, change.request, self.roster.number, table, number))
            return []
        try:
            groups.check_change(self.roster, sender, change)
            table, number = self._carry_out(sender, change)
        except Invalid as error:
            return self._answer(sender, change.request, m.No(change.request, "table", str(error)))
        self._changes[asked] = number
        while len(self._changes) > limits.TABLES:
            del self._changes[next(iter(self._changes))]
        self._settling.append(Settling(sender, change.request, self.roster.number, table, number))
        return []

    def _carry_out(self, sender: str, change: Change) -> tuple[str, int]:
        """The name and the number of a table that was made: what there would be to undo."""
        match change:
            case m.Create():
                return self._create(change)
            case m.Drop(_, name):
                self.roster.drop(name)
            case m.Delay(_, name, max_delay):
                self.roster.delay(name, max_delay)
            case m.Allow(_, group):
                groups.allow(self.roster, group)
            case m.Dissolve(_, name):
                for one in groups.dissolve(self.roster, name, sender):
                    self._remove(self._last, one, "its group was dissolved", died=False)
        return "", 0

    def _create(self, create: m.Create) -> tuple[str, int]:
        placed = self.roster.create(create.name, create.spec, create.starts, create.origin, like=create.like)
        if len(coding.encode(self.roster.view())) > limits.HEADER_BYTES // 2:
            self.roster.drop(create.name)
            raise Invalid(f"table {create.name!r} is one too many: all tables together have too many segments")
        return placed.name, placed.number

    def _settle(self) -> list[Effect]:
        """Answer the changes that are on disk, and that every server has seen."""
        shown = [self.roster.people[name].view for name in self.roster.servers()]
        seen = min([self.view.number, *shown])
        effects: list[Effect] = []
        for one in [one for one in self._settling if one.view <= seen]:
            self._settling.remove(one)
            effects += [Send(one.asker, self.view)]
            effects += self._answer(one.asker, one.request, m.Done(one.request))
        return effects

    def _undo(self, number: int, reason: str) -> list[Effect]:
        """A server could not set a table up: the table is dropped, and who asked for it is told why."""
        made = any(one.number == number for one in self._settling)
        if not made and self.dealing is not None and any(one.number == number for one in self.roster.tables.values()):
            return self.dealing.fail(f"the run cannot go back to its checkpoint: {reason}")
        for one in [one for one in self._settling if one.number == number]:
            self._settling.remove(one)
            if one.table in self.roster.tables and self.roster.tables[one.table].number == number:
                self.roster.drop(one.table)
            self._answered[one.asker, one.request] = m.No(one.request, "table", reason)
            self._settling.append(Settling(one.asker, one.request, self.roster.number, ""))
        return []

    def _answer(self, to: str, request: int, answer: m.Message) -> list[Effect]:
        answer = self._answered.setdefault((to, request), answer)
        while len(self._answered) > limits.MEMBERS:
            del self._answered[next(iter(self._answered))]
        return [Send(to, answer)]

    def _waits_for(self) -> str:
        view = self._settling[0].view if self._settling else 0
        late = [name for name in self.roster.servers() if self.roster.people[name].view < view]
        return ", ".join(late) or ("the servers" if self._told else "the journal")
