"""The scheduler of a worker group, as a process of its own (Li et al., OSDI 2014).

The coordinator manages servers, members and tables; a scheduler deals its group's slots, and has
its model evaluated and saved. It learns of members by the views, and only reports ended processes
of its group. It may be killed and restarted with its journal. When the servers end or lose a
segment, its run ends with a reason, and can be resumed from its own checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.membership_client import MembershipClient
from shoal.events import LEFT
from shoal.nodes.checkpointing import CheckpointWriter
from shoal.nodes.membership_journal import split
from shoal.nodes.scheduler import Scheduler
from shoal.nodes.scheduler_journal import JOURNAL_TOKEN
from shoal.tables import TABLE
from shoal.wire import messages as m
from shoal.wire.effects import Durable, Effect, Event, ProcessEnd, Received, Send, Stored, Wake
from shoal.wire.messages.groups import SCHEDULER, GroupProcessEnded, dealer, whole


class SchedulerNode:
    """The scheduler of one group, without its loop."""

    def __init__(
        self,
        group: str,
        token: str,
        address: str,
        scheduler: Scheduler,
        writer: CheckpointWriter | None = None,
        journal: list[bytes] | None = None,
    ) -> None:
        self.group, self.name = group, dealer(group)
        self.scheduler, self.writer = scheduler, writer or CheckpointWriter()
        self.writer.group = group
        self.member = MembershipClient(self.name, SCHEDULER, token, address)
        self.member.group, self.member.reaches = group, {"server"}
        self.counts: Counter[str] = Counter()
        self.process_counts: Callable[[], Mapping[str, int]] = dict  # for the status
        self.manager = ""  # where the coordinator is reached
        self._members: dict[int, m.Member] = {}  # of our group, and the servers
        self._ever_joined: set[str] = set()  # names of those that were ever here
        self._leaving: set[int] = set()  # workers that leave, or know that the run is over
        self._ended_processes: dict[str, GroupProcessEnded] = {}  # still members
        self._reported_at: dict[str, int] = {}  # when the coordinator was last told of each
        self._generation: int | None = None
        self._requests = 0
        self._delay_at = 0  # when the bound on delay may be asked for again
        self._journal = split(journal or [])[1]

    @property
    def _group_view(self) -> m.View:
        return groups.group_view(self.member.view, self.group)

    def handle(self, now: int, event: Event) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(self.member.coordinator, m.Dismissed(why)):
                effects += self.scheduler.fail(f"the cluster has ended ({why}): start its servers, and resume this run")
            case Received(self.member.coordinator, message):
                effects += self._from_coordinator(now, message)
            case Received(sender, message):
                effects += self._request(now, sender, message)
            case ProcessEnd(name, reason, token):
                effects += self._ended(now, name, reason, token)
            case Stored():
                effects += self.writer.stored(now, event)
            case Durable(token, error) if token == JOURNAL_TOKEN:
                effects += self.scheduler.journal.durable(now, error)
        effects += self.member.tick(now)
        if self.member.view.number:
            effects += self._tick(now)
        effects += self.writer.evaluated(effects)
        effects.append(Wake(min(self.member.next, now + self.member.timing.heartbeat)))
        return effects

    def _tick(self, now: int) -> list[Effect]:
        effects = [*self.scheduler.tick(now), *self._set_delay(now)]
        timing = self.member.timing
        if now - self.member.last_seen > timing.gone:  # one that was killed is back sooner
            why = f"the cluster's coordinator did not answer for {timing.gone / limits.SECOND:g} s"
            effects += self.scheduler.fail(f"{why}: see that it runs, and resume this run")
        for name, lost in self._ended_processes.items():
            if now - self._reported_at.get(name, 0) >= timing.resend_first:
                self._reported_at[name] = now
                effects.append(Send(self.member.coordinator, lost))
        return [*effects, *self.writer.tick(now, self.member.view.number, lambda: self._group_view, self.scheduler)]

    def _set_delay(self, now: int) -> list[Effect]:
        auto, name = self.scheduler.auto, whole(TABLE, self.group)
        spec = next((one.spec for one in self.member.view.tables if one.name == name), None)
        if auto is None or spec is None or spec.max_delay == auto.delay or now < self._delay_at:
            return []
        self._delay_at = now + self.member.timing.notice
        self._requests += 1
        request = self.member.incarnation << 32 | self._requests
        return [Send(self.member.coordinator, m.Delay(request, name, auto.delay))]

    def _from_coordinator(self, now: int, message: m.Message) -> list[Effect]:
        change, effects = self.member.handle(now, message)
        if change.refused and not change.transient:
            effects += self.scheduler.fail(f"group {self.group!r} cannot take part: {change.refused}")
        if change.view:
            self.member.active_view = self.member.view.number
            self.scheduler.timing = self.writer.timing = self.member.timing
            effects += self._take_view(now, self.member.view)
        return effects

    def _take_view(self, now: int, view: m.View) -> list[Effect]:
        ours = [one for one in view.members if one.group == self.group or one.role == "server"]
        here = {one.incarnation: one for one in ours if one.name != self.name}
        effects: list[Effect] = []
        if self._journal:  # an earlier process dealt before: who is here now was here then
            workers = [number for number, one in here.items() if one.role == "worker"]
            self.scheduler.resume(self._journal, workers)
            if workers:
                effects += self.scheduler.started_again(now, view.term)
                self._members = here
            self._journal = []
        for number in [number for number in self._members if number not in here]:
            member = self._members[number]
            ended = self._ended_processes.pop(member.name, None)
            lost = "" if ended is None else ended.why
            died = bool(lost) or not (number in self._leaving or (member.role == "server" and member.leaving))
            effects += self.scheduler.gone(now, member, lost or ("it is no member any more" if died else LEFT), died)
            self._leaving.discard(number)
        for number, member in here.items():
            if number not in self._members:
                effects += self.scheduler.joined(now, member.name, member.role)
        self._members = here
        self._ever_joined.update(one.name for one in here.values())
        return [*effects, *self._check_tables(view)]

    def _check_tables(self, view: m.View) -> list[Effect]:
        """What the servers have lost does not come back by itself."""
        if self._generation is None:
            self._generation = view.generation
        lost = next((p.last for t in self._group_view.tables for p in t.places if not p.servers), None)
        if view.generation == self._generation and lost is None:
            return []
        why = f"{lost} is gone" if lost is not None else "the cluster rolled back to a checkpoint of its own run"
        return self.scheduler.fail(f"{why}, and with it segments of group {self.group!r}: resume this run")

    def _ended(self, now: int, name: str, reason: str, token: str) -> list[Effect]:
        """The launcher saw a process end. Only the coordinator knows whether it is a member."""
        if name not in self._ever_joined:
            return self.scheduler.never_came(now, name, reason) if "/worker" in name else []
        if any(one.name == name for one in self._members.values()):
            self._ended_processes[name] = GroupProcessEnded(self.member.incarnation, name, token, reason)
            self._reported_at.pop(name, None)
        return []

    def _request(self, now: int, sender: str, message: m.Message) -> list[Effect]:
        match message:
            case m.Want() | m.EvaluationReady():
                return self._train(now, sender, message)
            case m.Hello():
                why = f"this is the scheduler of group {self.group!r}, not the coordinator: join at {self.manager or 'its address'}"
                return [Send(sender, m.Refusal(0, "setting", why))]
            case m.StatusRequest(request):
                return [Send(sender, self._status(now, request))]
            case m.Refresh(request):  # an observer of this run sees what its members see
                return [Send(sender, self._group_view), Send(sender, m.Done(request))]
            case m.Describe(request):  # no worker joins from elsewhere; a reader finds the way
                return [Send(sender, m.Described(request, group=self.group, manager=self.manager))]
            case m.Feed(request):  # what happens is in the events of its own run
                return [Send(sender, m.Fed(request, 0))]
            case m.Save(request) if any(one.name == sender for one in self._members.values()):
                return self.writer.save(sender, request)
            case m.Snapped():
                return self.writer.snapped(now, sender, message)
        self.counts["unexpected"] += 1
        return []

    def _train(self, now: int, sender: str, ask: m.Want | m.EvaluationReady) -> list[Effect]:
        member = self._members.get(ask.incarnation)
        if member is None or member.name != sender:
            self.counts["not here"] += 1
            return []  # it is not in our view yet, and asks again; or it is fenced
        effects = self.scheduler.take(now, member, ask)
        if isinstance(ask, m.Want) and (ask.leaving or self.scheduler.is_done):
            self._leaving.add(ask.incarnation)  # the answer says it is over, and may be held
        return effects

    def _status(self, now: int, request: int) -> m.StatusReply:
        view = self.member.view
        silence = max(0, now - self.member.last_seen)  # of the coordinator: it says who is here
        copies = max((len(place.servers) for one in self._group_view.tables for place in one.places), default=1)
        members = [
            m.MemberStatus(one.name, one.role, one.incarnation, view.number, silence, False, group=one.group)
            for one in self._members.values()
        ]
        shown = (view.term, view.number, view.generation, max(1, copies), members)
        course, counts = self.scheduler.progress(), {**self.counts, **self.process_counts()}
        return m.StatusReply(request, *shown, {}, course, self.writer.newest, counts, timing=self.member.timing)
