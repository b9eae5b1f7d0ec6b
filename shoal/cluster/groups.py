"""What worker groups may do on shared servers, and how much (Li et al., OSDI 2014).

A member of a group makes, drops and pushes to tables of its own namespace only, and pulls from
these and from those that the operator lets its group read. A member of no group is the cluster's
own, or the operator's, and may do all. Limits are checked when a table is asked for or a member
joins; bytes are those that a table's weights may come to have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal import limits
from shoal.errors import Invalid
from shoal.tables import Given, Table
from shoal.wire import messages as m
from shoal.wire.messages.groups import (
    CLUSTER,
    SCHEDULER,
    Allow,
    Dissolve,
    GroupLimits,
    GroupProcessEnded,
    dealer,
    is_group,
    namespace,
    seen,
)

if TYPE_CHECKING:
    from shoal.cluster.roster import Roster

WEIGHTS = ".f32"  # how the name of a file ends that servers read for a group
# and that of a folder that they write to and read from for one
PLACE = re.compile(r"\A(?:/[^\0\n]{0,4000})?/checkpoints/[0-9]{8}\Z")
_ROLES = ("worker", "client", "evaluator", SCHEDULER)  # that a group's members have


def allowed(groups: Mapping[str, GroupLimits], name: str) -> GroupLimits:
    return groups.get(name) or GroupLimits(name)


def refuses(roster: Roster, hello: m.Hello) -> str:
    """Why this node may not join as a member of its group; empty if it may."""
    group = hello.group
    if not group:
        if hello.role == SCHEDULER:
            return "a scheduler deals to a group: name the group"
        named = f"{hello.name!r} is the name of a member of a group: say so, or choose another"
        return named if "/" in hello.name else ""
    if not is_group(group):
        return f"group {group[:64]!r}: needs 1 to 32 letters, digits, dots and dashes, and not {CLUSTER!r}"
    if namespace(hello.name) != group:
        return f"members of group {group!r} are named {group}/..., and this one is {hello.name!r}"
    if hello.role not in _ROLES:
        return f"a {hello.role} belongs to no group: leave the group out"
    if (hello.role == SCHEDULER) != (hello.name == dealer(group)):
        return f"{dealer(group)} is the scheduler of group {group!r}, and no other node is"
    people = [
        one.member for one in roster.members.values() if one.member.group == group and one.member.name != hello.name
    ]
    most = allowed(roster.groups, group).members
    if len(people) >= most:
        return f"group {group!r} has {len(people)} members, and may have {most}: end one, or ask the operator for more"
    return ""


def ended(roster: Roster, sender: str, lost: GroupProcessEnded) -> bool:
    """Whether a scheduler reports the current process of a member of its own group."""
    scheduler, member = roster.members.get(sender), roster.members.get(lost.name)
    return (
        scheduler is not None
        and member is not None
        and scheduler.member.role == SCHEDULER
        and scheduler.member.incarnation == lost.incarnation
        and scheduler.member.group == member.member.group
        and bool(lost.token)
        and member.token.startswith(lost.token)
    )


def check_change(roster: Roster, sender: str, change: m.Message) -> None:
    """Raises Invalid if this member may not make this change."""
    group = roster.members[sender].member.group
    match change:
        case m.Create(_, name, spec, _, origin, like):
            _check_own(group, sender, name)
            if like:
                _check_own(group, sender, like)
            if group:
                # Servers read these with their own rights: not whatever a guest would like to see.
                if isinstance(spec.initial, Given) and not spec.initial.path.endswith(WEIGHTS):
                    raise Invalid(f"{sender} is in group {group!r}: the file of its weights must be named ...{WEIGHTS}")
                if origin and PLACE.search(origin) is None:
                    what = f"{sender} is in group {group!r}: its table must come from the folder of a checkpoint"
                    raise Invalid(f"{what}, .../checkpoints/00000001")
                _check_room(roster, group, name, spec)
        case m.Drop(_, name) | m.Delay(_, name):
            _check_own(group, sender, name)
        case Allow(_, asked):
            _check_allow(roster, group, sender, asked)
        case Dissolve(_, name):
            if not is_group(name):
                raise Invalid(f"there is no group {name[:64]!r}; tables of no group are dropped one by one")
            if group and group != name:
                raise Invalid(f"{sender} is in group {group!r}: only the operator dissolves another one")
            if not group and dealer(name) in roster.members:
                raise Invalid(f"group {name!r} has a run ({dealer(name)} is here): end it first")


def allow(roster: Roster, group: GroupLimits) -> None:
    roster.groups[group.name] = group
    roster.changed()


def may_send_away(roster: Roster, sender: str, name: str) -> str:
    """Why the sender may not remove that node; empty if it may."""
    entry = roster.members.get(sender)
    if entry is None:
        return "only a member may drain a node: join first"
    group = entry.member.group
    if group and namespace(name) != group:
        return f"{sender} is in group {group!r}, and {name[:64]!r} is not: only the operator can drain it"
    return ""


def dissolve(roster: Roster, group: str, sender: str) -> list[str]:
    """Drop a group's tables; its other members, who have to leave. Invalid if it is unknown."""
    members = [name for name, one in roster.members.items() if one.member.group == group]
    known = {namespace(name) for name in roster.tables} | {*roster.groups}
    if not members and group not in known:
        there = ", ".join(sorted(one for one in known if one)) or "none"
        raise Invalid(f"no group {group!r} to dissolve (groups: {there})")
    for name in [name for name in roster.tables if namespace(name) == group]:
        roster.drop(name)
    return [name for name in members if name != sender]


def _check_own(group: str, sender: str, table: str) -> None:
    if group and namespace(table) != group:
        raise Invalid(f"{sender} is in group {group!r}, and table {table!r} is not: its own are named {group}/...")


def _check_room(roster: Roster, group: str, name: str, spec: Table) -> None:
    quota = allowed(roster.groups, group)
    held = [table for table in roster.tables.values() if namespace(table.name) == group]
    if len(held) >= quota.tables:
        raise Invalid(f"group {group!r} has {len(held)} tables, and may have {quota.tables}: drop one, or ask for more")
    if not quota.mb:
        return
    if (size := weights_of([spec])) is None:
        what = f"table {name!r} has no bound on its keys, and group {group!r} may have {quota.mb:,} MB of weights"
        raise Invalid(f"{what}: give their number, shoal.Sparse(keys=...)")
    used = weights_of(table.spec for table in held) or 0
    if used + size > quota.mb * limits.MB:
        raise Invalid(
            f"table {name!r} would have {_mb(size)} MB of weights, and group {group!r} has {_mb(used)} of "
            f"{quota.mb:,} MB: drop a table, make this one smaller, or ask the operator for more"
        )


def _check_allow(roster: Roster, group: str, sender: str, asked: GroupLimits) -> None:
    if group:
        raise Invalid(f"{sender} is in group {group!r}: only the operator sets the limits of groups")
    if not is_group(asked.name):
        raise Invalid(f"group {asked.name[:64]!r}: needs 1 to 32 letters, digits, dots and dashes, and not {CLUSTER!r}")
    if strange := [one for one in asked.reads if one != CLUSTER and not is_group(one)]:
        raise Invalid(f"reads={strange[0][:64]!r}: needs names of groups, or {CLUSTER!r} for the tables of none")
    if len(asked.reads) > limits.GROUPS or len(set(asked.reads)) < len(asked.reads):
        raise Invalid(f"reads={len(asked.reads):,} groups: {limits.GROUPS} at most, each once")
    if asked.name not in roster.groups and len(roster.groups) >= limits.GROUPS:
        raise Invalid(f"{limits.GROUPS} groups have been named already")


def weights_of(specs: Iterable[Table]) -> int | None:
    """Bytes of all weights that these may come to have, once; None: there is no end to them."""
    sizes = [None if spec.hashed or spec.span >= limits.KEY_LIMIT else 4 * spec.span * spec.width for spec in specs]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _mb(size: int) -> str:
    return f"{size / limits.MB:,.1f}"


def refused(name: str, group: str, groups: Mapping[str, GroupLimits], table: str, push: bool) -> str:
    """Why a request of this group's node is refused; empty if it is allowed."""
    owner = namespace(table)
    if not group or owner == group:
        return ""
    if push:
        return f"{name} is in group {group!r} and may not push to table {table!r}: push to its own, {group}/..."
    if (owner or CLUSTER) in allowed(groups, group).reads:
        return ""
    return (
        f"{name} is in group {group!r} and may not read table {table!r}: the operator may let it "
        f"(shoal groups ADDRESS --allow {group} --reads {owner or CLUSTER})"
    )


def group_view(view: m.View, group: str) -> m.View:
    """The view with only this group's tables, under the names that its members use."""
    tables = [table for table in view.tables if namespace(table.name) == group]
    return replace(view, tables=[replace(table, name=seen(table.name, group)) for table in tables])
