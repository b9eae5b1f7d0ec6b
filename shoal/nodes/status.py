"""What the coordinator tells outsiders: its status, what the run is about, recent events."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shoal import limits
from shoal.events import Evaluated, Progress, RunEvent, Shared, Spans
from shoal.nodes.scheduler import Scheduler
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send, Tell
from shoal.wire.messages.groups import namespace

if TYPE_CHECKING:
    from shoal.nodes.coordinator import Coordinator
    from shoal.nodes.scheduler import Scheduler


def standing(coordinator: Coordinator, now: int, request: int, to: str) -> m.StatusReply:
    """``to`` a group's member: where the cluster's own checkpoints lie is not for it."""
    roster, view, scheduler = coordinator.roster, coordinator.view, coordinator.scheduler
    known = {member.incarnation for member in view.members}  # not those that are still joining
    loads = roster.loads.by_server(roster.tables)
    members = [
        m.MemberStatus(
            name,
            one.member.role,
            one.member.incarnation,
            one.view,
            max(0, now - (one.heard or now)),
            one.suspected,
            one.member.leaving,
            one.member.group,
            loads.get(name, 0.0),
            one.member.address,
        )
        for name, one in roster.people.items()
        if one.member.incarnation in known
    ]
    counts = {**coordinator.counts, **coordinator.also()}
    return m.StatusReply(
        request,
        view.term,
        view.number,
        view.generation,
        roster.copies,
        members,
        dict(roster.lost),
        None if scheduler is None else scheduler.progress(),
        "" if namespace(to) else coordinator.saving.points.newest,
        counts,
        coordinator.elastic.standing(now, coordinator),
        roster.timing,
    )


Asked = m.Describe | m.Feed | m.Unfit


class PublicInfo:
    """Answers those who are no members: what the run is about, and its recent events.

    A node that cannot take part may say why: a warning, a bounded number of times.
    """

    def __init__(self, about: m.Described | None = None) -> None:
        self.about = about or m.Described(0)
        self._events: deque[RunEvent] = deque(maxlen=limits.FEED)
        self._number = 0  # of the last event
        self._unfit = 0

    def take(self, sender: str, asked: Asked, scheduler: Scheduler | None) -> list[Effect]:
        match asked:
            case m.Describe(request):
                ended = scheduler is not None and scheduler.ended
                return [Send(sender, msgspec.structs.replace(self.about, request=request, ended=ended))]
            case m.Feed(request, after):
                return [Send(sender, m.Fed(request, self._number, self._since(after)))]
            case m.Unfit(name, why):
                return self._cannot(name, why, scheduler)

    def heard(self, effects: Iterable[Effect]) -> None:
        """Remember events for a feed, but not those that come all the time."""
        for effect in effects:
            if isinstance(effect, Tell) and not isinstance(effect.event, Progress | Shared | Spans):
                self._number += 1
                self._events.append(_short(effect.event))

    def _since(self, after: int) -> list[RunEvent]:
        new = max(0, self._number - after) if after <= self._number else self._number
        return list(self._events)[-new:] if new else []

    def _cannot(self, name: str, why: str, scheduler: Scheduler | None) -> list[Effect]:
        self._unfit += 1
        if scheduler is None or self._unfit > limits.UNFIT:
            return []
        return scheduler.warn(f"{name[: limits.NAME_CHARS]} cannot take part: {why[: limits.UNFIT_CHARS]}")


def _short(event: RunEvent) -> RunEvent:
    """An evaluation has a line for each worker: who looks on needs none of them."""
    return msgspec.structs.replace(event, each={}) if isinstance(event, Evaluated) else event
