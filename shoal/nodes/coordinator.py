"""The coordinator: it answers hello, hands out incarnations, keeps the view, and notices who is silent.

It is on no push or pull. Every incarnation is journalled before it is handed out, so that none is ever given twice, also
not after a restart. A change of tables is answered once every server has the view that shows it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec

from shoal import limits
from shoal.cluster.membership import Roster
from shoal.errors import Invalid
from shoal.nodes.dealing import JOURNAL_TOKEN, Dealing, Marked
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.address import check_address
from shoal.wire.effects import Durable, Effect, Ended, Event, Persist, Received, Send, Wake


class Journalled(msgspec.Struct, frozen=True, array_like=True, tag="counters"):
    """One line of the journal: the counters that must never go back."""

    term: int
    incarnations: int
    tables_made: int


@dataclass(slots=True)
class Joining:
    """A hello whose incarnation is on its way to the disk."""

    hello: m.Hello
    incarnation: int


@dataclass(slots=True)
class Creating:
    """A table whose number is on its way to the disk."""

    sender: str
    create: m.Create
    number: int


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
    ) -> None:
        self.name, self.dealing = name, dealing
        self.roster = Roster(copies=copies)
        self.counts: Counter[str] = Counter()
        self._replay(journal or [])
        self._joining: dict[int, Joining] = {}  # by token of the Persist
        self._creating: dict[int, Creating] = {}
        self._settling: list[Settling] = []
        self._answered: dict[tuple[str, int], m.Message] = {}  # changes of tables: a resent one is not done twice
        self._last = 0
        self._token = 0

    def _replay(self, journal: list[bytes]) -> None:
        lines: list[Marked] = []
        for record in journal:
            line = msgspec.msgpack.decode(record, type=Journalled | Marked)
            if isinstance(line, Marked):
                lines.append(line)
            else:
                self.roster.term = line.term + 1
                self.roster.incarnations, self.roster.tables_made = line.incarnations, line.tables_made
        if self.dealing is not None and lines:
            self.dealing.resume(lines)

    def handle(self, now: int, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        if self._last and now - self._last > limits.SUSPECT_AFTER:
            self._forgive(now - self._last)
        self._last = now
        before = self.roster.number
        match event:
            case Received(sender, message):
                effects += self._received(now, sender, message)
            case Durable(token, error) if token in self._joining:
                effects += self._durable(now, self._joining.pop(token), error)
            case Durable(token, error) if token in self._creating:
                effects += self._reserved(self._creating.pop(token), error)
            case Durable(token, error) if token == JOURNAL_TOKEN and error and self.dealing is not None:
                effects += self.dealing.warn(f"the journal cannot be written: {error}")
            case Ended(name, reason) if name in self.roster.people:
                effects += self._remove(now, name, reason, died=True)
            case Ended(name, reason):  # before it had joined
                self.roster.lost[name] = reason
                if self.dealing is not None and name.startswith("worker"):
                    effects += self.dealing.never_came(now, name, reason)
            case _:
                pass
        for name in self.roster.silent(now):
            self.counts["removed"] += 1
            effects += self._remove(now, name, f"silent for {limits.DEAD_AFTER / limits.SECOND:g} s", died=True)
        if self.dealing is not None:
            effects += self.dealing.tick(now)
        self.counts["refills"] += self.roster.refill()
        if self.roster.number != before:
            effects += self._announce()
        effects += self._settle()
        effects.append(Wake(now + limits.HEARTBEAT))
        return effects

    def _forgive(self, gap: int) -> None:
        """It was us who slept: nobody is blamed for what we did not hear meanwhile."""
        for person in self.roster.people.values():
            person.heard += gap

    def _received(self, now: int, sender: str, message: m.Message) -> list[Effect]:
        match message:
            case m.Hello():
                return self._hello(now, sender, message)
            case m.Heartbeat():
                return self._heartbeat(now, sender, message)
            case m.Leave(incarnation):
                person = self.roster.people.get(sender)
                if person is not None and person.member.incarnation == incarnation:
                    return self._remove(now, sender, "it left", died=False)
            case m.Refresh(request):
                return [Send(sender, self.roster.view()), Send(sender, m.Done(request))]
            case m.Create() | m.Drop() | m.Delay():
                return self._change(sender, message)
            case m.Want() | m.Ready():
                return self._train(now, sender, message)
            case m.Shrink() | m.Full():
                return self._copies(sender, message)
            case _:
                self.counts["unexpected"] += 1
        return []

    def _copies(self, sender: str, message: m.Shrink | m.Full) -> list[Effect]:
        """A primary says that a backup is out of reach, or that a new one has everything."""
        person = self.roster.people.get(sender)
        if person is None or person.member.incarnation != message.incarnation or person.member.role != "server":
            self.counts["fenced"] += 1
            return [Send(sender, m.Fence(0, message.incarnation))]
        if isinstance(message, m.Shrink):
            self.counts["shrunk"] += self.roster.shrink(sender, message.server, message.theirs)
        else:
            self.counts["filled"] += self.roster.full(sender, message)
        return []

    def _train(self, now: int, sender: str, ask: m.Want | m.Ready) -> list[Effect]:
        person = self.roster.people.get(sender)
        if person is None or person.member.incarnation != ask.incarnation:
            self.counts["fenced"] += 1
            return [Send(sender, m.Fence(0, ask.incarnation))]
        person.heard = now
        if self.dealing is None:
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
        return self.dealing.ready(now, sender, ask)

    # ------------------------------------------------------------ members

    def _hello(self, now: int, sender: str, hello: m.Hello) -> list[Effect]:
        if sender != hello.name:
            return [Send(sender, m.No(0, "setting", f"your name is {sender!r}, not {hello.name!r}"))]
        if (reason := self.roster.may_join(hello.name, hello.role, hello.token) or _unreachable(hello)) != "":
            return [Send(sender, m.No(0, "setting", reason))]
        if (known := self.roster.knows(hello.name, hello.token)) is not None:
            known.heard = now
            return [Send(sender, m.Welcome(hello.token, known.member.incarnation, self.roster.view()))]
        if self.roster.is_over(hello.name, hello.token):
            # A repeat from a former life, or one that was removed before it ever heard that it had joined.
            self.counts["late hello"] += 1
            return [Send(sender, m.Over(hello.token))]
        if any(one.hello == hello for one in self._joining.values()):
            return []  # a repeat: the first is still on its way to the disk
        self.roster.incarnations += 1
        self._token += 1
        self._joining[self._token] = Joining(hello, self.roster.incarnations)
        return [Persist(self._token, self._journal_line())]

    def _durable(self, now: int, joining: Joining, error: str) -> list[Effect]:
        hello = joining.hello
        if error:
            self.roster.lost[hello.name] = f"the journal cannot be written: {error}"
            return [Send(hello.name, m.No(0, "full", f"the journal cannot be written: {error}"))]
        effects: list[Effect] = []
        if hello.name in self.roster.people:
            effects += self._remove(now, hello.name, "another process took its name", died=True)
        self.roster.join(now, hello.name, hello.role, hello.token, hello.address, joining.incarnation)
        if self.dealing is not None:
            effects += self.dealing.joined(now, hello.name, hello.role)
        return [*effects, Send(hello.name, m.Welcome(hello.token, joining.incarnation, self.roster.view()))]

    def _remove(self, now: int, name: str, why: str, died: bool) -> list[Effect]:
        member = self.roster.people[name].member
        self.roster.remove(name, why)
        if self.dealing is None:
            return []
        if member.role == "server" and not self.roster.has_lost():
            return self.dealing.server_gone(now, member, why)
        return self.dealing.gone(now, member, why, died)

    def _heartbeat(self, now: int, sender: str, beat: m.Heartbeat) -> list[Effect]:
        person = self.roster.people.get(sender)
        if person is None or person.member.incarnation != beat.incarnation:
            self.counts["fenced"] += 1
            return [Send(sender, m.Fence(0, beat.incarnation))]
        person.heard, person.view = now, max(person.view, beat.view)
        for number, reason in beat.failed.items():
            self._undo(number, reason)
        if beat.view < self.roster.number:
            return [Send(sender, self.roster.view())]
        return [Send(sender, m.Alive(self.roster.term, self.roster.number))]

    def _announce(self) -> list[Effect]:
        view = self.roster.view()
        return [Send(name, view) for name in self.roster.people]

    def _journal_line(self) -> bytes:
        roster = self.roster
        return msgspec.msgpack.encode(Journalled(roster.term, roster.incarnations, roster.tables_made))

    # ------------------------------------------------------------ tables

    def _change(self, sender: str, change: m.Create | m.Drop | m.Delay) -> list[Effect]:
        asked = (sender, change.request)
        if sender not in self.roster.people:
            return [Send(sender, m.No(change.request, "setting", "only a member may change tables: say hello first"))]
        if asked in self._answered:
            return [Send(sender, self._answered[asked])]
        if any((one.asker, one.request) == asked for one in self._settling):
            return [Send(sender, m.Held(change.request, self._waits_for()))]
        if asked in [(one.sender, one.create.request) for one in self._creating.values()]:
            return []  # a repeat: the first is still on its way to the disk
        try:
            if isinstance(change, m.Create):
                return self._reserve(sender, change)
            self._carry_out(change)
        except Invalid as error:
            return self._answer(sender, change.request, m.No(change.request, "table", str(error)))
        self._settling.append(Settling(sender, change.request, self.roster.number, ""))
        return []

    def _reserve(self, sender: str, create: m.Create) -> list[Effect]:
        """A table's number, like an incarnation, is on disk before anybody hears of it."""
        self.roster.check_create(create.name, create.spec)
        self._token += 1
        self._creating[self._token] = Creating(sender, create, self.roster.number_table())
        return [Persist(self._token, self._journal_line())]

    def _reserved(self, creating: Creating, error: str) -> list[Effect]:
        sender, create = creating.sender, creating.create
        if error:
            return [Send(sender, m.No(create.request, "full", f"the journal cannot be written: {error}"))]
        try:
            self.roster.create(create.name, create.spec, creating.number)
            if len(coding.encode(self.roster.view())) > limits.HEADER_BYTES // 2:
                self.roster.drop(create.name)
                raise Invalid(f"table {create.name!r} is one too many: all tables together have too many segments")
        except Invalid as wrong:  # somebody else took the name meanwhile
            return self._answer(sender, create.request, m.No(create.request, "table", str(wrong)))
        self._settling.append(Settling(sender, create.request, self.roster.number, create.name, creating.number))
        return []

    def _carry_out(self, change: m.Drop | m.Delay) -> None:
        match change:
            case m.Drop(_, name):
                self.roster.drop(name)
            case m.Delay(_, name, max_delay):
                self.roster.delay(name, max_delay)

    def _settle(self) -> list[Effect]:
        """Answer the changes that every server has seen."""
        seen = min((self.roster.people[name].view for name in self.roster.servers()), default=self.roster.number)
        effects: list[Effect] = []
        for one in [one for one in self._settling if one.view <= seen]:
            self._settling.remove(one)
            effects += [Send(one.asker, self.roster.view())]
            effects += self._answer(one.asker, one.request, m.Done(one.request))
        return effects

    def _undo(self, number: int, reason: str) -> None:
        """A server could not set a table up: the table is dropped, and who asked for it is told why."""
        for one in [one for one in self._settling if one.number == number]:
            self._settling.remove(one)
            if one.table in self.roster.tables and self.roster.tables[one.table].number == number:
                self.roster.drop(one.table)
            self._answered[one.asker, one.request] = m.No(one.request, "table", reason)
            self._settling.append(Settling(one.asker, one.request, self.roster.number, ""))

    def _answer(self, to: str, request: int, answer: m.Message) -> list[Effect]:
        answer = self._answered.setdefault((to, request), answer)
        while len(self._answered) > limits.MEMBERS:
            del self._answered[next(iter(self._answered))]
        return [Send(to, answer)]

    def _waits_for(self) -> str:
        view = self._settling[0].view if self._settling else 0
        late = [name for name in self.roster.servers() if self.roster.people[name].view < view]
        return ", ".join(late) or "the servers"


def _unreachable(hello: m.Hello) -> str:
    """Why others could not call this node; empty if they can, or need not."""
    if hello.role != "server" and not hello.address:
        return ""
    try:
        check_address(hello.address)
    except Invalid as error:
        return str(error)
    return ""
