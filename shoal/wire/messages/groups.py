"""Worker groups that share servers: their names and messages.

Every group has its own namespace. A member of group ``b`` that says ``weights`` means the table
``b/weights``; it names another group's as ``a/weights`` and the cluster's own as ``/weights``. A
member of no group sees every name as it is.
"""

from __future__ import annotations

import re

import msgspec

from shoal import limits
from shoal.wire.messages.base import Count, Message, Numbered

CLUSTER = "cluster"  # how the tables of no group are called where groups are named
SCHEDULER = "scheduler"  # a role, and in each group a name


class GroupLimits(msgspec.Struct, frozen=True, array_like=True):
    """The limits of a group, with the defaults of an unnamed one."""

    name: str
    mb: Count = 0  # of weights, in all its tables; 0: no bound
    tables: Count = limits.GROUP_TABLES
    members: Count = limits.GROUP_MEMBERS
    reads: list[str] = []  # groups whose tables it may pull from


class Allow(Numbered, frozen=True, tag="allow"):
    """Operator to coordinator: "these are the limits of this group"."""

    group: GroupLimits


class Dissolve(Numbered, frozen=True, tag="dissolve"):
    """Client to coordinator: "drop all tables of this group, and dismiss its members"."""

    group: str


class GroupProcessEnded(Message, frozen=True, tag="lost"):
    """Scheduler to coordinator: "I saw this process of my group end"."""

    incarnation: Count
    name: str
    token: str  # of the life that ended
    why: str


def is_group(name: object) -> bool:
    return isinstance(name, str) and name != CLUSTER and re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,31}", name) is not None


def namespace(table: str) -> str:
    """The group of a table or node, by its name."""
    group, found, _ = table.partition("/")
    return group if found else ""


def whole(name: str, group: str) -> str:
    """The cluster's name of a table that a member of this group names."""
    if not group:
        return name
    return name.removeprefix("/") if "/" in name else f"{group}/{name}"


def seen(table: str, group: str) -> str:
    """The name of a table for members of this group."""
    if not group:
        return table
    if namespace(table) == group:
        return table.partition("/")[2]
    return table if namespace(table) else f"/{table}"


def member_name(name: str, group: str) -> str:
    """The cluster's name of a node of this group."""
    return f"{group}/{name}" if group else name


def dealer(group: str) -> str:
    """The node that schedules the workers of this group."""
    return f"{group}/{SCHEDULER}" if group else limits.COORDINATOR


GroupMessage = Allow | Dissolve | GroupProcessEnded
