"""The coordinator: answers hello, hands out incarnations, keeps the view, notices silence.

It is on no push or pull. Every change of the view (members, tables and their placement) is in its
journal before others hear of it. So a coordinator that is killed and restarted has the same members
and tables, under the next term; they send it their heartbeats, and none has to join again. While a
change is on its way to the disk, requests whose answer would reveal it get none: they are repeated.
A change of tables is answered once every server has the view that shows it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.move_settings import MoveSettings
from shoal.cluster.roster import Roster
from shoal.errors import Invalid
from shoal.events import LEFT, Evaluated, Progress, RunEvent, Shared, Spans
from shoal.nodes import membership_journal
from shoal.nodes.checkpointing import CheckpointManager
from shoal.nodes.rebalancer import Rebalancer
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_journal import JOURNAL_TOKEN
from shoal.nodes.table_admin import TableAdmin
from shoal.security.address import check_address
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Dismiss, Durable, Effect, Event, Persist, ProcessEnd, Received, Send, Stored, Tell, Wake
from shoal.wire.messages.groups import Allow, Dissolve, GroupProcessEnded, dealer, namespace

_RETRY = limits.SECOND  # a journal that cannot be written is tried again
_WHY = 200  # characters of a reason that others give


class Coordinator:
    """One coordinator, without its loop."""

    def __init__(
        self,
        name: str = "coordinator",
        copies: int = 1,
        journal: list[bytes] | None = None,
        scheduler: Scheduler | None = None,
        checkpoints: CheckpointManager | None = None,
        moves: MoveSettings | None = None,
        timing: TimingSettings | None = None,
    ) -> None:
        """``timing`` is what all members go by; None: as the journal has it."""
        self.name, self.scheduler, self.checkpoints = name, scheduler, checkpoints or CheckpointManager()
        self.roster, self.public_info = Roster(copies=copies, timing=timing or DEFAULT), PublicInfo()
        self.counts: Counter[str] = Counter()
        self.process_counts: Callable[[], Mapping[str, int]] = dict  # for the status
        self.check_address: Callable[[str], None] = check_address  # with keys, any address will do
        self._welcomes: dict[str, m.Hello] = {}  # members once the next record is on disk
        self.table_admin = TableAdmin()
        self.rebalancer = Rebalancer(moves)
        self._restarted = False  # this process continues the run of an earlier one
        self._replay(journal or [], timing)
        self._writing = 0  # token of the record that is on its way to the disk
        self._written = self.view  # the view that is in it
        self._retry = 0  # when a journal that could not be written is tried again
        self._last = 0
        self._token = 0

    @property
    def timing(self) -> TimingSettings:
        """The timing that all members use."""
        return self.roster.timing

    def _replay(self, journal: list[bytes], timing: TimingSettings | None) -> None:
        last, lines = membership_journal.split(journal)
        if last is not None:
            membership_journal.replay(self.roster, last)
            self.table_admin.replay(last.changes)
        self.view = self.roster.view()  # the newest that is on disk: the one others may see
        if last is not None:  # another term; its first view is written before all else
            self.roster.term += 1
            self.roster.timing = timing or self.roster.timing
            self.roster.changed()
        self.checkpoints.writer.timing = self.timing
        if self.scheduler is not None:
            self.scheduler.timing = self.timing
        if self.scheduler is not None and lines:
            members = (entry.member for entry in self.roster.members.values())
            workers = [member.incarnation for member in members if member.role == "worker" and not member.group]
            self.scheduler.resume(lines, workers)
            self._restarted = bool(self.roster.members)

    def handle(self, now: int, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        self._wake_up(now)
        if self._restarted and self.scheduler is not None:
            self._restarted = False
            effects += self.scheduler.started_again(now, self.roster.term)
        match event:
            case Received(sender, message):
                effects += self._received(now, sender, message)
            case Durable(token, error) if token and token == self._writing:
                effects += self._durable(now, error)
            case Durable(token, error) if token == JOURNAL_TOKEN and self.scheduler is not None:
                effects += self.scheduler.journal.durable(now, error)
            case Stored():
                effects += self.checkpoints.stored(now, event, self)
                for name in [name for name in self._welcomes if name not in self.roster.members]:
                    del self._welcomes[name]  # removed by a rollback: it joins again
            case ProcessEnd(name, reason, token):
                effects += self._ended(now, name, reason, token)
            case Dismiss(why):
                effects += [Send(member.name, m.Dismissed(why)) for member in self.view.members]
        for name in self.roster.find_dead(now):
            self.counts["removed"] += 1
            effects += self._remove(now, name, f"silent for {self.timing.dead / limits.SECOND:g} s", died=True)
        if self.scheduler is not None:
            self.scheduler.silent_servers = self.roster.suspects()
            effects += self.scheduler.tick(now)
            self.scheduler.set_delay(self.roster)
        self.counts["refills"] += self.roster.assignment.refill(now)
        effects += self.rebalancer.tick(now, self)
        effects += self.checkpoints.tick(now, self)
        effects += self.checkpoints.writer.evaluated(effects)
        effects += self._write(now)
        effects += self.table_admin.settle(self)
        effects.append(Wake(now + self.timing.heartbeat))
        self.public_info.record(effects)
        return effects

    def _wake_up(self, now: int) -> None:
        """Forgive silence of the time in which this process slept or was not there."""
        if not self._last:
            for entry in self.roster.members.values():
                self.roster.mark_alive(now, entry)
        elif now - self._last > self.timing.suspect:
            self.roster.forgive(now - self._last)
        self._last = now

    @property
    def is_durable(self) -> bool:
        """Whether the current view is in the journal, so that others may learn of it."""
        return self.roster.number == self.view.number

    @property
    def is_checkpointing(self) -> bool:
        return self.checkpoints.writer.in_progress

    def _write(self, now: int) -> list[Effect]:
        """One record at a time; what changes meanwhile goes with the next."""
        if self.is_durable or self._writing or now < self._retry:
            return []
        if self.scheduler is not None and self.scheduler.journal.is_behind(now):
            return []  # else the tables would be newer than the state that its journal restores
        self._token += 1
        self._writing, self._written = self._token, self.roster.view()
        return [Persist(self._token, membership_journal.record_of(self.roster, self.table_admin.done))]

    def _durable(self, now: int, error: str) -> list[Effect]:
        self._writing = 0
        if error:
            return self._cannot_write(now, error)
        self.view = self._written
        views = [Send(member.name, self.view) for member in self.view.members]
        return [*self._welcome(now), *views, *self.rebalancer.announced(now, self)]

    def _cannot_write(self, now: int, error: str) -> list[Effect]:
        """Refuse those who wait to join and new tables; all else waits for the disk."""
        self._retry, why = now + _RETRY, f"the journal cannot be written: {error}"
        effects: list[Effect] = [] if self.scheduler is None else self.scheduler.warn(why)
        for name, hello in self._welcomes.items():
            self.roster.remove(name, why)
            self.roster.retired[name].remove(hello.token)  # it has not lived yet
            self.roster.note_lost(name, why)
            effects.append(Send(name, m.Refusal(0, "full", why)))
        self._welcomes.clear()
        return [*effects, *self.table_admin.cannot_write(why, self)]

    def _welcome(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        here = {member.name: member.incarnation for member in self.view.members}
        for name, hello in list(self._welcomes.items()):
            if name in here and here[name] == self.roster.members[name].member.incarnation:
                del self._welcomes[name]
                if self.scheduler is not None and not hello.group:
                    effects += self.scheduler.joined(now, name, hello.role)
                effects.append(Send(name, m.Welcome(hello.token, here[name], self.view, self.rebalancer.moves.rate)))
        return effects

    def _received(self, now: int, sender: str, message: m.Message) -> list[Effect]:
        match message:
            case m.Hello():
                return self._hello(now, sender, message)
            case m.Heartbeat():
                return self._heartbeat(now, sender, message)
            case m.Leave():
                return self._leave(now, sender, message)
            case m.Drain():
                return self.rebalancer.drain(now, sender, message, self)
            case m.Opened(incarnation) if self._is(sender, incarnation):
                return self.rebalancer.opened(now, sender, message, self)
            case m.Refresh(request):
                return [Send(sender, self.view), Send(sender, m.Done(request))]
            case m.StatusRequest(request):
                return [Send(sender, self._status(now, request, sender))]
            case m.Describe() | m.Feed() | m.Unfit():
                return self.public_info.answer(sender, message, self.scheduler)
            case m.Create() | m.Drop() | m.Delay() | Allow() | Dissolve():
                return self.table_admin.change(sender, message, self)
            case GroupProcessEnded() if groups.ended(self.roster, sender, message):
                return self._remove(now, message.name, message.why, died=True)
            case m.Refusal(0, "key", why) if sender in self.roster.members:  # by our own transport
                return self._remove(now, sender, why[:_WHY], died=True)
            case m.Want() | m.EvaluationReady():
                return self._train(now, sender, message)
            case m.Shrink() | m.BackfillComplete():
                return self._copies(now, sender, message)
            case m.Snapped(_, incarnation) if self._is(sender, incarnation):
                return self.checkpoints.writer.snapped(now, sender, message)
            case m.Save(request) if sender in self.roster.members:
                if group := self.roster.members[sender].member.group:
                    why = f"{sender} is in group {group!r}: ask {dealer(group)} for its checkpoints"
                    return [Send(sender, m.Refusal(request, "setting", why))]
                return self.checkpoints.writer.save(sender, request)
            case _:
                self.counts["unexpected"] += 1
        return []

    def _train(self, now: int, sender: str, ask: m.Want | m.EvaluationReady) -> list[Effect]:
        if not self._is(sender, ask.incarnation):
            return self._fence(sender, ask.incarnation)
        entry = self.roster.members[sender]
        self.roster.mark_alive(now, entry)
        if entry.member.leaving and isinstance(ask, m.Want):
            ask = msgspec.structs.replace(ask, more=0)  # it finishes or gives back what it has
        if self.scheduler is None or entry.member.group:
            return [Send(sender, m.Refusal(ask.request, "setting", "there is no run here to take part in"))]
        return self.scheduler.take(now, entry.member, ask)

    def _is(self, name: str, incarnation: int) -> bool:
        entry = self.roster.members.get(name)
        return entry is not None and entry.member.incarnation == incarnation

    def _fence(self, sender: str, incarnation: int) -> list[Effect]:
        if not self.is_durable:
            return []  # that it was removed is not on disk yet; it asks again
        if self.roster.released.get(sender) == incarnation:
            return [Send(sender, m.Release(incarnation))]
        self.counts["fenced"] += 1
        return [Send(sender, m.Fence(0, incarnation))]

    def _hello(self, now: int, sender: str, hello: m.Hello) -> list[Effect]:
        if sender != hello.name:
            return [Send(sender, m.Refusal(0, "setting", f"your name is {sender!r}, not {hello.name[:64]!r}"))]
        if self.roster.is_undecided(hello.name, hello.token):
            return []  # it asks again
        if (reason := why_not(self.roster, hello, self.check_address)) != "":
            return [Send(sender, m.Refusal(0, "setting", reason))]
        if (known := self.roster.knows(hello.name, hello.token)) is not None:
            self.roster.mark_alive(now, known)
            if hello.name in self._welcomes:
                return []  # a repeat: the first is still on its way to the disk
            rate = self.rebalancer.moves.rate
            return [Send(sender, m.Welcome(hello.token, known.member.incarnation, self.view, rate))]
        if self.roster.is_over(hello.name, hello.token):
            # A repeat from a former life, or of a node that was removed before it was welcomed.
            self.counts["late hello"] += 1
            return [Send(sender, m.IncarnationOver(hello.token))] if self.is_durable else []
        effects: list[Effect] = []
        if hello.name in self.roster.members:
            self.roster.displace(hello.name, hello.token)
            effects += self._remove(now, hello.name, "another process took its name", died=True)
        self.roster.incarnations += 1
        number = self.roster.incarnations
        self.roster.join(now, hello.name, hello.role, hello.token, hello.address, number, hello.group)
        self._welcomes[hello.name] = hello
        return effects

    def _remove(self, now: int, name: str, why: str, died: bool) -> list[Effect]:
        member = self.roster.members[name].member
        self.roster.remove(name, why)
        if self._welcomes.pop(name, None) is not None:  # no other node knows of it
            return self._never_came(now, name, why)
        if self.scheduler is None or member.group:
            return []
        if self.roster.assignment.has_lost():
            self.checkpoints.lost(now, f"{name} is gone ({why}), and with it the only copy of its segments")
        return self.scheduler.gone(now, member, why, died)

    def _ended(self, now: int, name: str, reason: str, token: str) -> list[Effect]:
        """The launcher saw a process end; the token says which process of that name."""
        entry = self.roster.members.get(name)
        if entry is None:  # before it had joined
            self.roster.note_lost(name, reason)
            return self._never_came(now, name, reason)
        if token and not entry.token.startswith(token):
            return []  # another life has the name by now
        return self._remove(now, name, reason, died=True)

    def _leave(self, now: int, sender: str, leave: m.Leave) -> list[Effect]:
        if not self._is(sender, leave.incarnation):
            return self._fence(sender, leave.incarnation) if leave.patiently else []
        if not leave.patiently:
            return self._remove(now, sender, LEFT, died=False)
        self.roster.mark_alive(now, self.roster.members[sender])
        why, effects = self.rebalancer.leave(now, sender, "it asked to go", self)
        return [*effects, Send(sender, m.Refusal(0, "setting", why))] if why else effects

    def let_go(self, now: int, name: str) -> list[Effect]:
        """Remove a leaving member: no node needs it any more."""
        self.roster.release(name)
        return self._remove(now, name, f"{LEFT}: others have what it had", died=False)

    def expel(self, name: str, why: str) -> list[Effect]:
        """Remove a member; if its process goes on, it joins again as a new one."""
        return self._remove(self._last, name, why, died=False)

    def _never_came(self, now: int, name: str, reason: str) -> list[Effect]:
        if self.scheduler is None or not name.startswith("worker"):
            return []
        return self.scheduler.never_came(now, name, reason)

    def _heartbeat(self, now: int, sender: str, beat: m.Heartbeat) -> list[Effect]:
        if not self._is(sender, beat.incarnation):
            return self._fence(sender, beat.incarnation)
        entry = self.roster.members[sender]
        self.roster.mark_alive(now, entry)
        entry.view = max(entry.view, beat.view)
        self.roster.loads.record(sender, beat, self.roster.tables)
        effects: list[Effect] = []
        for number, reason in beat.failed.items() if entry.member.role == "server" else ():
            effects += self.table_admin.undo(number, reason, self)
        if beat.view < self.view.number:
            return [*effects, Send(sender, self.view)]
        return [*effects, Send(sender, m.Alive(self.view.term, self.view.number))]

    def _copies(self, now: int, sender: str, ask: m.Shrink | m.BackfillComplete) -> list[Effect]:
        if not self._is(sender, ask.incarnation):
            return self._fence(sender, ask.incarnation)
        if isinstance(ask, m.Shrink):
            self.counts["shrunk"] += self.roster.assignment.shrink(sender, ask.server, ask.theirs, now)
            return []
        taken = self.roster.assignment.filled(sender, ask)
        self.counts["filled"] += bool(taken)
        return self.rebalancer.full(now, taken, self)

    def _status(self, now: int, request: int, to: str) -> m.StatusReply:
        """``to`` a group's member: where the cluster's own checkpoints lie is not for it."""
        roster, view, scheduler = self.roster, self.view, self.scheduler
        known = {member.incarnation for member in view.members}  # not those that are still joining
        loads = roster.loads.by_server(roster.tables)
        members: list[m.MemberStatus] = []
        for name, one in roster.members.items():
            if (member := one.member).incarnation in known:
                silence = max(0, now - (one.last_seen or now))
                health = (one.view, silence, one.suspected, member.leaving)
                facts = (member.role, member.incarnation, *health, member.group, loads.get(name, 0.0), member.address)
                members.append(m.MemberStatus(name, *facts))
        shown = (view.term, view.number, view.generation, roster.copies, members, dict(roster.lost))
        course = None if scheduler is None else scheduler.progress()
        newest = "" if namespace(to) else self.checkpoints.writer.newest
        counts, moves = {**self.counts, **self.process_counts()}, self.rebalancer.moves_in_progress(now, self)
        return m.StatusReply(request, *shown, course, newest, counts, moves, roster.timing)


_CALLED = ("server", "scheduler")  # others connect to these, so their address is needed


def why_not(roster: Roster, hello: m.Hello, check_address: Callable[[str], None]) -> str:
    """Why this node may not join; empty if it may."""
    if len(hello.token) > limits.NAME_CHARS or len(hello.group) > limits.NAME_CHARS:  # journalled
        return f"a token or the name of a group has {limits.NAME_CHARS} characters at most"
    if why := roster.may_join(hello.name, hello.role, hello.token) or groups.refuses(roster, hello):
        return why
    if hello.role in _CALLED or hello.address:
        try:
            check_address(hello.address)
        except Invalid as error:
            return str(error)
    # A view that does not fit in a message would stop all updates to all members.
    if hello.name in roster.members or len(coding.encode(roster.view())) <= limits.VIEW_BYTES:
        return ""
    return "the cluster is full: its members, tables and groups fill a whole message"


PublicRequest = m.Describe | m.Feed | m.Unfit


class PublicInfo:
    """Answers nodes that are not members: what the run is about, and its recent events.

    A node that cannot take part may say why: a warning, a bounded number of times.
    """

    def __init__(self, about: m.Described | None = None) -> None:
        self.about = about or m.Described(0)
        self._events: deque[RunEvent] = deque(maxlen=limits.FEED)
        self._number = 0  # of the last event
        self._unfit = 0

    def answer(self, sender: str, message: PublicRequest, scheduler: Scheduler | None) -> list[Effect]:
        match message:
            case m.Describe(request):
                ended = scheduler is not None and scheduler.ended
                return [Send(sender, msgspec.structs.replace(self.about, request=request, ended=ended))]
            case m.Feed(request, after):
                return [Send(sender, m.Fed(request, self._number, self._since(after)))]
            case m.Unfit(name, why):
                self._unfit += 1
                if scheduler is None or self._unfit > limits.UNFIT:
                    return []
                return scheduler.warn(f"{name[: limits.NAME_CHARS]} cannot take part: {why[: limits.UNFIT_CHARS]}")

    def record(self, effects: Iterable[Effect]) -> None:
        """Remember events for a feed, but not those that come all the time."""
        for effect in effects:
            if isinstance(effect, Tell) and not isinstance(effect.event, Progress | Shared | Spans):
                self._number += 1
                event = effect.event
                if isinstance(event, Evaluated):  # an observer needs no line for each worker
                    event = msgspec.structs.replace(event, each={})
                self._events.append(event)

    def _since(self, after: int) -> list[RunEvent]:
        new = max(0, self._number - after) if after <= self._number else self._number
        return list(self._events)[-new:] if new else []
