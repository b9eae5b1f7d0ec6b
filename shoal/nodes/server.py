"""A server: it holds segments, checks who is talking, and answers.

Every request is checked in the same order before a table sees it: is the sender's incarnation in
the view, is the generation the current one, is the table known and are the segments held here. One
computation at a time may be out; what comes meanwhile waits its turn (``Backlog``), so that a table
is touched by one thread only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.membership_client import MembershipClient
from shoal.errors import Refused, ShoalError
from shoal.files import Disk
from shoal.nodes.server_checkpoint import ServerCheckpoints
from shoal.store.server.backfill import RateLimit
from shoal.store.server.key_lists import KeyLists
from shoal.store.server.load import load_report
from shoal.store.server.outcome import HandlerResult, LongComputation
from shoal.store.server.query_runner import PendingCalls
from shoal.store.server.table_server import FromServer, ServedSegments, TableServer, served_segments
from shoal.timing import TimingSettings
from shoal.user_code import ends_us, said, told
from shoal.wire import messages as m
from shoal.wire.effects import Compute, Computed, Effect, Event, Received, Send, Stored, Wake
from shoal.wire.messages.groups import GroupLimits, namespace

Request = m.Push | m.Pull | m.Call | m.Park | m.TableStatusRequest
_OPENING = 5 * limits.MILLISECOND  # a promoted server is level with the others in a few of these


class Server:
    """One server, without its loop."""

    def __init__(
        self, name: str, token: str, address: str = "", inline: int = limits.INLINE_ELEMENTS, disk: Disk | None = None
    ) -> None:
        self.name = name
        self.member = MembershipClient(name, "server", token, address)
        self.member.reaches = {"server"}
        self._checkpoints = ServerCheckpoints(disk or Disk(), self.member)
        self.calls = PendingCalls()
        self.counts: Counter[str] = Counter()
        self.process_counts: Callable[[], Mapping[str, int]] = dict  # for the status
        self._inline = inline
        self._limiter = RateLimit()  # for segment copies of all tables
        self._groups: dict[str, GroupLimits] = {}
        self._token = 0
        self._next_notice = 0
        self._loads_sent_at = 0
        self._next_clear = 0
        self._replicated = False  # some segment has more than one replica
        self._reset()

    def _reset(self) -> None:
        """Begin a new incarnation: others may hold the segments of the earlier one by now."""
        self.tables: dict[int, TableServer] = {}
        self.key_lists = KeyLists()
        self._members: dict[int, m.Member] = {}
        self._backlog, self._early_requests = Backlog(), EarlyRequests()
        self._computations: deque[LongComputation] = deque()  # the first one is being computed
        self._view_pending = False
        self._early_messages: list[Received] = []  # of servers whose view is newer than ours
        self._served: dict[int, ServedSegments] = {}  # by table
        self._checkpoints.forget()
        self.calls.clear()
        self._token += 1  # results of earlier computations are ignored

    @property
    def computing(self) -> bool:
        """Whether something is being computed, while all else waits."""
        return bool(self._computations)

    def handle(self, now: int, event: Event) -> list[Effect]:
        match event:
            case Received(_, m.Push() | m.Pull() | m.Call() | m.Park() | m.TableStatusRequest()):
                effects = self._queue(now, event)
            case Received(_, message) if isinstance(message, FromServer):
                effects = self._queue(now, event)
            case Received(sender, m.Snap() as snap) if self._checkpoints.allows(
                sender, snap, self.tables.get(snap.table)
            ):
                effects = self._queue(now, event)
            case Stored():
                effects = self._checkpoints.stored(event)
            case Received(sender, message) if sender == self.member.coordinator:
                effects = self._from_coordinator(now, message)
            case Computed(token, _, error) if token == self._token and self._computations:
                effects = self._computed(now, self._computations.popleft(), error)
            case Received():
                self.counts["not from the coordinator"] += 1
                effects = []
            case _:
                effects = []
        effects += self.calls.collect().effects
        self._requeue_early()
        while self._backlog and not self._computations:
            effects += self._request(now, self._backlog.next())
            self._requeue_early()
        if self._checkpoints.deferred and not self._computations:
            effects += self._run(HandlerResult(computations=[self._checkpoints.deferred.popleft()]))
        effects += self.member.tick(now)
        if now >= self._next_notice:
            timing = self.member.timing
            self._next_notice = now + (timing.level_again if self._replicated else timing.notice // 4)
            for table in self.tables.values():
                effects += table.tick(now, bool(self._computations))
            effects += self.calls.notices(now, timing)
            effects += self._refuse_expired(now)
            self._report_loads(now)
        if now >= self._next_clear and not self._computations:
            more = any(table.compact_some() for table in self.tables.values())
            self._next_clear = now + limits.CLEAR_EVERY if more else self._next_notice
        wake = min(self.member.next, self._next_notice)
        effects.append(Wake(wake if self._computations else min(wake, self._next_clear)))
        return effects

    def _report_loads(self, now: int) -> None:
        if now - self._loads_sent_at < self.member.timing.load_every:
            return
        since, self._loads_sent_at = self._loads_sent_at, now
        if since:
            loads = {number: one.primary.segment_load for number, one in self.tables.items() if one.primary is not None}
            self.member.loads, self.member.halves = load_report(loads, (now - since) / limits.SECOND)

    def _from_coordinator(self, now: int, message: m.Message) -> list[Effect]:
        change, effects = self.member.handle(now, message)
        self._limiter.rate = self.member.move_rate
        if change.permanent:
            raise Refused(self.member.coordinator, change.refused)
        if change.fenced:
            self._reset()
        if change.view:
            effects += self._take_view(now)
        return effects

    def _take_view(self, now: int) -> list[Effect]:
        if self._computations:  # a table is in use: the view waits until it is free
            self._view_pending = True
            return []
        view = self.member.view
        wanted = {table.number: table for table in view.tables}
        for number in [number for number in self.tables if number not in wanted]:
            del self.tables[number]
        self.member.failed = {n: why for n, why in self.member.failed.items() if n in wanted}
        new = [t for n, t in wanted.items() if n not in self.tables and n not in self.member.failed]
        made: dict[int, TableServer] = {}
        if not new:
            return self._run(self._apply_view(now, view, made))
        done = partial(self._apply_view, view=view, made=made)
        return self._run(
            HandlerResult(computations=[LongComputation(partial(self._set_up, view, new, made), done, None)])
        )

    def _apply_view(self, now: int, view: m.View, made: dict[int, TableServer]) -> HandlerResult:
        outcome = HandlerResult()
        self.tables.update(made)
        self._members = {member.incarnation: member for member in view.members}
        self._groups = {group.name: group for group in view.groups}
        workers = {i: one.name for i, one in self._members.items() if one.role == "worker"}
        everyone = {i: one.name for i, one in self._members.items()}
        self.key_lists.drop_departed(everyone)
        self._checkpoints.prune(view)
        servers = _servers(view)
        self._replicated = any(len(place.servers) > 1 or place.filling for one in view.tables for place in one.places)
        self._served = {
            one.number: served_segments(self.name, one, self._served.get(one.number)) for one in view.tables
        }
        self.member.active_view = view.number
        for placed in view.tables:
            table = self.tables.get(placed.number)
            if table is not None:
                outcome += table.apply_placement(now, placed, servers, view.number, view.timing)
                outcome += table.set_members(workers, everyone)
        outcome.effects += self.member.confirm_view(view.number)
        early, self._early_messages = self._early_messages, []
        self._backlog.put_back(early)
        return outcome

    def _set_up(self, view: m.View, new: list[m.TablePlaces], made: dict[int, TableServer]) -> None:
        """Set up the segments that are ours; failures are recorded with their reason."""
        servers, incarnation = _servers(view), self.member.incarnation
        for placed in new:
            try:
                table = TableServer(self.name, incarnation, placed, self._inline, self._limiter, view.timing)
                table.set_up(servers, self._checkpoints.loader(placed))
                made[placed.number] = table
            except MemoryError:
                self.member.failed[placed.number] = f"{self.name} has no memory for its part of table {placed.name!r}"
            except BaseException as error:  # an unknown update, bad settings, a filter that fails
                if ends_us(error):
                    raise
                what = said(error) if isinstance(error, ShoalError) else told(error)
                self.member.failed[placed.number] = f"{self.name}: {what}"  # other tables go on

    def _queue(self, now: int, event: Received) -> list[Effect]:
        if not self._computations:
            return self._request(now, event)
        if isinstance(event.message, m.Call) and (self.calls.has(event) or event in self._backlog):
            return [self.calls.notice(event.sender, event.message)]  # nothing long is done twice
        if self._backlog.add(event):
            return []
        self.counts["backlog full"] += 1
        if isinstance(event.message, Request):
            return [Send(event.sender, m.Busy(event.message.request, limits.BUSY_RETRY))]
        return []  # a server sends it again

    def _request(self, now: int, event: Received) -> list[Effect]:
        request = event.message
        if isinstance(request, FromServer):
            if getattr(request, "view", 0) > self.member.active_view:
                if len(self._early_messages) < limits.COPIES_EARLY:
                    self._early_messages.append(event)  # its view comes; else it is sent again
                return []
            table = self.tables.get(request.table)
            if table is None:
                return []
            return self._run(table.handle(now, event.sender, request, event.arrays))
        if isinstance(request, m.Snap):
            return self._run(self._checkpoints.snap(now, event.sender, request, self.tables.get(request.table)))
        assert isinstance(request, Request)
        if (rejection := self._rejection(event.sender, request)) is not None:
            may_wait = isinstance(rejection, m.Busy) and self.member.joined
            waits = may_wait and self._early_requests.add(now, event, self._readiness())
            return [] if waits else [Send(event.sender, rejection)]
        if isinstance(request, m.Park):
            return self._run(self._park(now, event.sender, request))
        table = self.tables[request.table]
        if isinstance(request, m.TableStatusRequest):
            status = table.status(request)
            status.facts.update(self.process_counts(), **self.key_lists.facts())
            return [Send(event.sender, status)]
        assert table.primary is not None
        if isinstance(request, m.Call):
            within = self.member.timing.question
            return self._run(self.calls.call(now, event.sender, request, table.primary, self._inline, within))
        table.primary.key_lists = self.key_lists
        if isinstance(request, m.Push):
            return self._run(table.primary.push(now, event.sender, request, event.arrays))
        return self._run(table.primary.pull(now, event.sender, request, event.arrays))

    def _readiness(self) -> object:
        """The state that decides whether a request is too early."""
        return self.member.active_view, [number for number, table in self.tables.items() if table.opening]

    def _requeue_early(self) -> None:
        """Queue early requests that may be served now, before later ones."""
        if self._early_requests:
            self._backlog.put_back(self._early_requests.changed(self._readiness()))

    def _refuse_expired(self, now: int) -> list[Effect]:
        """Refuse early requests that have waited too long; the sender learns why."""
        effects: list[Effect] = []
        for event in self._early_requests.expired(now, self.member.timing):
            assert isinstance(event.message, Request)
            if (rejection := self._rejection(event.sender, event.message)) is None:
                self._backlog.put_back([event])
            else:
                effects.append(Send(event.sender, rejection))
        return effects

    def _park(self, now: int, sender: str, park: m.Park) -> HandlerResult:
        """No worker waits for this one any more; answered when all replicas know it."""
        primaries = [table.primary for table in self.tables.values() if table.primary is not None]
        left = [len(primaries)]

        def parked(now: int) -> HandlerResult:
            left[0] -= 1
            return HandlerResult() if left[0] else HandlerResult([Send(sender, m.Done(park.request))])

        outcome = HandlerResult() if primaries else HandlerResult([Send(sender, m.Done(park.request))])
        for primary in primaries:
            outcome += primary.park(now, park.incarnation, park.spell, parked)
        return outcome

    def _rejection(self, sender: str, request: Request) -> m.Message | None:
        """The answer that rejects this request; None if a table may have it."""
        view = self.member.view
        if not self.member.joined or request.view > self.member.active_view:
            self.counts["view behind"] += 1
            return m.Busy(request.request, limits.BUSY_RETRY)
        if not isinstance(request, m.TableStatusRequest | m.Call):  # an observer is no member
            known = self._members.get(request.incarnation)
            if known is None or known.name != sender:
                self.counts["fenced"] += 1
                return m.Fence(request.request, request.incarnation)
        if isinstance(request, m.Push | m.Pull | m.Call):
            if request.generation != view.generation:
                return m.Rollback(request.request, view.generation)
            if isinstance(request, m.Pull) and request.enter and known is not None and known.role != "worker":
                return m.Refusal(request.request, "setting", f"{sender} is a {known.role}: only a worker has a clock")
        if isinstance(request, m.Park):
            opening = next((one for one in self.tables.values() if one.opening), None)
            return None if opening is None else m.Busy(request.request, _OPENING, opening.reconciler.waits_for())
        table = self.tables.get(request.table)
        if table is None:
            self.counts["moved"] += 1
            return m.SegmentsMoved(request.request, view.number)
        if isinstance(request, m.TableStatusRequest):
            return None
        # A visitor is no member: all that is known of it is its name, which a key that is confined
        # to a group vouches for.
        group = namespace(sender) if isinstance(request, m.Call) or known is None else known.group
        if why := groups.refused(sender, group, self._groups, table.placed.name, isinstance(request, m.Push)):
            self.counts["another group's"] += 1
            return m.Refusal(request.request, "setting", why)
        if request.view < self._served[request.table].since or (table.primary is None and not table.opening):
            self.counts["moved"] += 1
            return m.SegmentsMoved(request.request, self.member.active_view)
        if table.opening:
            self.counts["opening"] += 1
            return m.Busy(request.request, _OPENING, table.reconciler.waits_for())
        return None

    def _run(self, outcome: HandlerResult) -> list[Effect]:
        idle = not self._computations
        self._computations.extend(outcome.computations)
        return outcome.effects + (self._compute() if idle else [])

    def _compute(self) -> list[Effect]:
        if not self._computations:
            return []
        self._token += 1
        return [Compute(self._token, self._computations[0].function)]

    def _computed(self, now: int, work: LongComputation, error: BaseException | None) -> list[Effect]:
        """A computation is done: run its continuation, then what waited for it."""
        if error is None:
            outcome = work.then(now)
        elif isinstance(error, MemoryError) and work.on_memory_error is not None:
            outcome = work.on_memory_error()
        else:
            raise error
        self._computations.extendleft(reversed(outcome.computations))  # before later requests
        effects = outcome.effects + self._compute()
        if not self._computations and self._view_pending:
            self._view_pending = False
            effects += self._take_view(now)
        return effects


def _servers(view: m.View) -> dict[str, int]:
    return {member.name: member.incarnation for member in view.members if member.role == "server"}


Levelling = m.Level | m.Levels | m.Adopt | m.Adopted


class Backlog:
    """Requests that wait while a server computes: first come, first served, but levelling first.

    No server serves a moving segment until its new primary is level with the others. Behind
    waiting pushes those few messages would take long. At most ``limits.BACKLOG`` of a kind wait.
    """

    def __init__(self) -> None:
        self._first: deque[Received] = deque()
        self._others: deque[Received] = deque()

    def __len__(self) -> int:
        return len(self._first) + len(self._others)

    def __contains__(self, event: Received) -> bool:
        return event in self._queue_of(event)

    def add(self, event: Received) -> bool:
        line = self._queue_of(event)
        if len(line) >= limits.BACKLOG:
            return False
        line.append(event)
        return True

    def put_back(self, events: Iterable[Received]) -> None:
        """Put requests that were taken too early before all others of their kind."""
        for event in reversed(list(events)):
            self._queue_of(event).appendleft(event)

    def next(self) -> Received:
        return (self._first or self._others).popleft()

    def _queue_of(self, event: Received) -> deque[Received]:
        return self._first if isinstance(event.message, Levelling) else self._others


_Key = tuple[str, int]


def max_wait(timing: TimingSettings) -> int:
    """How long a request waits here: it is answered before it comes again."""
    return timing.resend_first * 3 // 5


class EarlyRequests:
    """Requests of a view that this server lacks, or for segments that it is about to open.

    Both take milliseconds and concern all clients of a table, so these requests wait here, once
    and for a short time, instead of being sent again. Then their sender hears why it has to wait.
    """

    def __init__(self) -> None:
        self._waiting: dict[_Key, tuple[int, Received]] = {}  # since when
        self._state: object = None  # of the server when these were last checked

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, now: int, event: Received, state: object) -> bool:
        """Let a request wait, since in this ``state`` it is too early. False if it cannot."""
        key = event.sender, getattr(event.message, "request", 0)
        if self._waiting.pop(key, None) is not None or len(self._waiting) >= limits.BACKLOG:
            return False
        self._waiting[key] = now, event
        self._state = state
        return True

    def changed(self, state: object) -> list[Received]:
        return self._pop(list(self._waiting)) if state != self._state else []

    def expired(self, now: int, timing: TimingSettings) -> list[Received]:
        return self._pop([key for key, (since, _) in self._waiting.items() if now - since >= max_wait(timing)])

    def _pop(self, keys: list[_Key]) -> list[Received]:
        return [self._waiting.pop(key)[1] for key in keys]
