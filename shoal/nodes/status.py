"""How it stands, in one answer: for the launcher, for ``shoal status``, for whoever watches a run from outside."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shoal.nodes.scheduling import Scheduler
from shoal.wire import messages as m
from shoal.wire.messages.groups import namespace

if TYPE_CHECKING:
    from shoal.nodes.coordinator import Coordinator

_VOIDS = 100  # that are told: one answer has an end


def standing(coordinator: Coordinator, now: int, request: int, to: str) -> m.StatusReply:
    """``to`` a group's member: where the cluster's own checkpoints lie is not for it."""
    roster, view, dealing = coordinator.roster, coordinator.view, coordinator.dealing
    known = {member.incarnation for member in view.members}  # who joins just now is told when that is on disk
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
        None if dealing is None else course(dealing),
        "" if namespace(to) else coordinator.saving.newest,
        counts,
        coordinator.elastic.standing(now, coordinator),
        roster.timing,
    )


def course(dealing: Scheduler) -> m.RunProgress:
    work = dealing.workload
    return m.RunProgress(
        work.done,
        work.limit,
        work.per_pass,
        work.steps,
        work.step is not None,
        dealing.examples,
        dealing.seconds,
        dealing.computing_seconds,
        *dealing.traffic.totals(),
        dealing.over,
        dealing.failed,
        dealing.ended,
        dict(islice(work.voids.items(), _VOIDS)),
        dict(dealing.counts),
        dealing.traffic.through(),
        dealing.traffic.remainder(),
    )
