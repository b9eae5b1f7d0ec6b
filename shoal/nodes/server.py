"""A server: it holds segments, checks who is talking, and answers.

Every request is checked in the same order before a table sees it: is the sender's incarnation in the view, is the
generation the current one, is the table known and are the segments held here. One computation at a time may be out; what
comes meanwhile waits its turn, so that a table is touched by one thread only.
"""

from __future__ import annotations

from collections import Counter, deque

from shoal import limits
from shoal.cluster.member import Membership
from shoal.keys import KeyRange
from shoal.store.outcome import Outcome, Work
from shoal.store.segment import Segments
from shoal.wire import messages as m
from shoal.wire.effects import Compute, Computed, Effect, Event, Received, Send, Wake

Request = m.Push | m.Pull | m.Park | m.Ask


class Server:
    """One server, without its loop."""

    def __init__(self, name: str, token: str, address: str = "", inline: int = limits.INLINE_ELEMENTS) -> None:
        self.name = name
        self.member = Membership(name, "server", token, address)
        self.tables: dict[int, Segments] = {}
        self.counts: Counter[str] = Counter()
        self._inline = inline
        self._members: dict[int, m.Member] = {}
        self._backlog: deque[Received] = deque()
        self._works: deque[Work] = deque()  # the first one is being computed
        self._token = 0
        self._view_waits = False
        self._next_notice = 0

    def handle(self, now: int, event: Event) -> list[Effect]:
        match event:
            case Received(_, m.Push() | m.Pull() | m.Park() | m.Ask()):
                effects = self._queue(now, event)
            case Received(sender, message) if sender == self.member.coordinator:
                effects = self._greeting(now, message)
            case Computed(token, _, error) if token == self._token and self._works:
                effects = self._computed(now, self._works.popleft(), error)
            case Received():
                self.counts["not from the coordinator"] += 1
                effects = []
            case _:
                effects = []
        effects += self.member.tick(now)
        if now >= self._next_notice:
            self._next_notice = now + limits.NOTICE // 4
            for segments in self.tables.values():
                effects += segments.notices(now)
        effects.append(Wake(min(self.member.next, self._next_notice)))
        return effects

    # ------------------------------------------------------------ views

    def _greeting(self, now: int, message: m.Message) -> list[Effect]:
        change, effects = self.member.handle(now, message)
        if change.fenced:  # others may hold our segments by now: what we have is worth nothing
            self.tables.clear()
            self._members.clear()
            self._backlog.clear()
            self._works.clear()
            self._view_waits = False
            self._token += 1  # what is still being computed comes back to nobody
        if change.view:
            effects += self._take_view(now)
        return effects

    def _take_view(self, now: int) -> list[Effect]:
        """Put the newest view into effect: make room for new tables off the loop, since that may take long."""
        if self._works:  # a table is in use: the view waits until it is free
            self._view_waits = True
            return []
        view = self.member.view
        wanted = {table.number: table for table in view.tables}
        for number in [number for number in self.tables if number not in wanted]:
            del self.tables[number]
        self.member.failed = {n: why for n, why in self.member.failed.items() if n in wanted}
        new = [t for n, t in wanted.items() if n not in self.tables and n not in self.member.failed]
        made: dict[int, Segments] = {}
        work = Work(lambda: self._set_up(new, made), lambda now: self._in_effect(view, made), None)
        return self._carry_on(Outcome(works=[work]) if new else self._in_effect(view, made))

    def _in_effect(self, view: m.View, made: dict[int, Segments]) -> Outcome:
        outcome = Outcome()
        self.tables.update(made)
        self._members = {member.incarnation: member for member in view.members}
        workers = {i: one.name for i, one in self._members.items() if one.role == "worker"}
        everyone = {i: one.name for i, one in self._members.items()}
        for table in view.tables:
            segments = self.tables.get(table.number)
            if segments is not None:
                if segments.spec != table.spec:
                    outcome += segments.set_delay(table.spec)
                outcome += segments.live(workers, everyone)
        outcome.effects += self.member.show(view.number)
        return outcome

    def _set_up(self, new: list[m.Placed], made: dict[int, Segments]) -> None:
        """Make room for the segments that are ours; what cannot be is kept with its reason."""
        for table in new:
            ends = [*table.starts[1:], table.spec.span]
            held = [
                (i, KeyRange(start, stop))
                for i, (start, stop, place) in enumerate(zip(table.starts, ends, table.places, strict=True))
                if place.servers and place.servers[0] == self.name
            ]
            try:
                if held:
                    made[table.number] = Segments(table.number, table.spec, held, self._inline)
            except MemoryError:
                self.member.failed[table.number] = f"{self.name} has no memory for its part of table {table.name!r}"
            except (
                Exception
            ) as error:  # an update it does not know, settings that cannot be: no reason to give up the rest
                self.member.failed[table.number] = f"{self.name}: {error}"

    # ------------------------------------------------------------ requests

    def _queue(self, now: int, event: Received) -> list[Effect]:
        if not self._works:
            return self._request(now, event)
        if len(self._backlog) < limits.BACKLOG:
            self._backlog.append(event)
            return []
        assert isinstance(event.message, Request)
        self.counts["backlog full"] += 1
        return [Send(event.sender, m.Busy(event.message.request, limits.BUSY_RETRY))]

    def _request(self, now: int, event: Received) -> list[Effect]:
        request = event.message
        assert isinstance(request, Request)
        if (stopped := self._not_for_us(event.sender, request)) is not None:
            return [Send(event.sender, stopped)]
        if isinstance(request, m.Park):
            outcome = Outcome([Send(event.sender, m.Done(request.request))])
            for segments in self.tables.values():
                outcome += segments.park(request.incarnation, request.spell)
            return self._carry_on(outcome)
        segments = self.tables[request.table]
        match request:
            case m.Push():
                return self._carry_on(segments.push(now, event.sender, request, event.arrays))
            case m.Pull():
                return self._carry_on(segments.pull(now, event.sender, request, event.arrays))
            case m.Ask():
                return [Send(event.sender, m.Told(request.request, *segments.facts()))]

    def _not_for_us(self, sender: str, request: Request) -> m.Message | None:
        """Why this request goes no further, in the words of an answer."""
        view = self.member.view
        if not self.member.joined or request.view > self.member.shown:
            self.counts["view behind"] += 1
            return m.Busy(request.request, limits.BUSY_RETRY)
        if not isinstance(request, m.Ask):
            known = self._members.get(request.incarnation)
            if known is None or known.name != sender:
                self.counts["fenced"] += 1
                return m.Fence(request.request, request.incarnation)
        if isinstance(request, m.Push | m.Pull):
            if request.generation != view.generation:
                return m.Rollback(request.request, view.generation)
            if isinstance(request, m.Pull) and request.enter and known is not None and known.role != "worker":
                return m.No(request.request, "setting", f"{sender} is a {known.role}: only a worker has a clock")
        if not isinstance(request, m.Park) and request.table not in self.tables:
            self.counts["moved"] += 1
            return m.Moved(request.request, view.number)
        return None

    def _carry_on(self, outcome: Outcome) -> list[Effect]:
        idle = not self._works
        self._works.extend(outcome.works)
        return outcome.effects + (self._compute() if idle else [])

    def _compute(self) -> list[Effect]:
        if not self._works:
            return []
        self._token += 1
        return [Compute(self._token, self._works[0].function)]

    def _computed(self, now: int, work: Work, error: BaseException | None) -> list[Effect]:
        """One computation is back: go on with what it was for, then with what waited for it."""
        if error is None:
            outcome = work.then(now)
        elif isinstance(error, MemoryError) and work.full is not None:
            outcome = work.full()
        else:
            raise error
        self._works.extendleft(reversed(outcome.works))  # what follows from it comes before what came later
        effects = outcome.effects + self._compute()
        if not self._works and self._view_waits:
            self._view_waits = False
            effects += self._take_view(now)
        while self._backlog and not self._works:
            effects += self._request(now, self._backlog.popleft())
        return effects
