"""Messages about servers that join and leave, and about segments that move.

A segment moves in four stages, and only the coordinator begins or ends one:

    named      the placement says which server is ``filling``, and ``instead`` of which
    copied     the owner keeps serving; sends an image, then every change (``Fill``, ``Append``)
    full       from here on the owner counts nothing that the newcomer lacks (``Full``)
    handed     a new view replaces the owner; the newcomer serves, and says so (``Opened``)
"""

from __future__ import annotations

import msgspec

from shoal.wire.messages.base import Count, Message

__all__ = ["Drain", "Move", "Opened", "Release"]


class Drain(Message, frozen=True, tag="drain"):
    """Any member to coordinator: "let that node leave, once others have what it holds"."""

    request: int
    name: str


class Release(Message, frozen=True, tag="release"):
    """Coordinator to a node that is leaving: "nobody needs you any more"."""

    incarnation: Count


class Opened(Message, frozen=True, tag="opened"):
    """New primary to coordinator: "these segments are served by me, from this view on"."""

    incarnation: Count
    table: Count
    view: Count
    segments: list[int]


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A segment that is moving, as the coordinator knows it."""

    table: str
    segment: Count
    source: str
    target: str
    since: Count  # nanoseconds since it was named
    why: str  # count, leaving, load, copies


MoveMessage = Drain | Release | Opened
