"""Creates, drops and changes tables: each request once, answered when every server knows.

The last changes are in the coordinator's journal, so that a repeated request is done once. A table
that some server could not set up is dropped again, and its creator gets the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.roster import remember
from shoal.errors import Invalid
from shoal.nodes.coordinator_state import CoordinatorState
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send
from shoal.wire.messages.groups import Allow, Dissolve

Change = m.Create | m.Drop | m.Delay | Allow | Dissolve


@dataclass(slots=True)
class TableChange:
    """A change of tables that is not yet known to every server."""

    sender: str
    request: int
    view: int
    table: str  # empty: nothing to undo
    number: int = 0


class TableAdmin:
    def __init__(self) -> None:
        self._pending: list[TableChange] = []
        self._answered: dict[tuple[str, int], m.Message] = {}  # a resent one is not done twice
        self._changes: dict[tuple[str, int], int] = {}  # done requests -> the table's number

    @property
    def done(self) -> list[tuple[str, int, int]]:
        """The last ones: by whom, by which request, and of which table."""
        return [(sender, request, number) for (sender, request), number in self._changes.items()]

    def replay(self, changes: Iterable[tuple[str, int, int]]) -> None:
        self._changes = {(sender, request): number for sender, request, number in changes}

    def cannot_write(self, why: str, of: CoordinatorState) -> list[Effect]:
        """The journal refuses: new tables are not made; those of an earlier process stay."""
        effects: list[Effect] = []
        known = {placed.number for placed in of.view.tables}
        new = [one for one in self._pending if one.table and one.view > of.view.number and one.number not in known]
        for one in new:
            self._pending.remove(one)
            del self._changes[one.sender, one.request]
            if one.table in of.roster.tables:
                of.roster.drop(one.table)
            effects.append(Send(one.sender, m.Refusal(one.request, "full", why)))
        return effects

    def change(self, sender: str, change: Change, of: CoordinatorState) -> list[Effect]:
        key = (sender, change.request)
        if sender not in of.roster.members:
            why = "only a member may change tables: say hello first"
            return [Send(sender, m.Refusal(change.request, "setting", why))]
        if key in self._answered:
            return [Send(sender, self._answered[key])]
        if any((one.sender, one.request) == key for one in self._pending):
            return [Send(sender, m.RequestHeld(change.request, self._waits_for(of)))]
        if (number := self._changes.get(key)) is not None:  # a former life of ours did it
            table = next((one.name for one in of.roster.tables.values() if one.number == number), "")
            self._pending.append(TableChange(sender, change.request, of.roster.number, table, number))
            return []
        try:
            groups.check_change(of.roster, sender, change)
            table, number = self._carry_out(sender, change, of)
        except Invalid as error:
            return self._answer(sender, change.request, m.Refusal(change.request, "table", str(error)))
        remember(self._changes, key, number, limits.TABLES)
        self._pending.append(TableChange(sender, change.request, of.roster.number, table, number))
        return []

    def _carry_out(self, sender: str, change: Change, of: CoordinatorState) -> tuple[str, int]:
        match change:
            case m.Create(_, name, spec, starts, origin, like):
                placed = of.roster.create(name, spec, starts, origin, like)
                if not _fits(of):
                    of.roster.drop(name)
                    raise Invalid(f"table {name!r} is one too many: tables, members and groups do not fit in a view")
                return placed.name, placed.number
            case m.Drop(_, name):
                of.roster.drop(name)
            case m.Delay(_, name, max_delay):
                of.roster.set_max_delay(name, max_delay)
            case Allow(_, group):
                before = dict(of.roster.groups)
                groups.allow(of.roster, group)
                if not _fits(of):
                    of.roster.groups = before
                    raise Invalid(f"group {group.name!r} may read too many others: the groups do not fit in a view")
            case Dissolve(_, name):
                for one in groups.dissolve(of.roster, name, sender):
                    of.expel(one, "its group was dissolved")
        return "", 0

    def settle(self, of: CoordinatorState) -> list[Effect]:
        shown = [of.roster.members[name].view for name in of.roster.servers()]
        seen = min([of.view.number, *shown])
        effects: list[Effect] = []
        for one in [one for one in self._pending if one.view <= seen]:
            self._pending.remove(one)
            effects += [Send(one.sender, of.view)]
            effects += self._answer(one.sender, one.request, m.Done(one.request))
        return effects

    def undo(self, number: int, reason: str, of: CoordinatorState) -> list[Effect]:
        """A server could not set a table up: drop it, and answer with the reason."""
        made = any(one.number == number for one in self._pending)
        if not made and of.scheduler is not None and any(one.number == number for one in of.roster.tables.values()):
            return of.scheduler.fail(f"the run cannot go back to its checkpoint: {reason}")
        for one in [one for one in self._pending if one.number == number]:
            self._pending.remove(one)
            if one.table in of.roster.tables and of.roster.tables[one.table].number == number:
                of.roster.drop(one.table)
            self._answered[one.sender, one.request] = m.Refusal(one.request, "table", reason)
            self._pending.append(TableChange(one.sender, one.request, of.roster.number, ""))
        return []

    def _answer(self, to: str, request: int, answer: m.Message) -> list[Effect]:
        answer = self._answered.get((to, request), answer)
        remember(self._answered, (to, request), answer, limits.MEMBERS)
        return [Send(to, answer)]

    def _waits_for(self, of: CoordinatorState) -> str:
        view = self._pending[0].view if self._pending else 0
        late = [name for name in of.roster.servers() if of.roster.members[name].view < view]
        return ", ".join(late) or ("the servers" if of.is_durable else "the journal")


def _fits(of: CoordinatorState) -> bool:
    """Has the next view room in a message, with some to spare for those who join?"""
    return len(coding.encode(of.roster.view())) <= limits.HEADER_BYTES // 2
