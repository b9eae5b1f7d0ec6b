"""How servers come and go while everything goes on: what is said about it. Part of the page that ``messages`` is.

A segment changes hands in four stages, and only the coordinator begins or ends one:

    named      the place says who is being ``filling`` it, and ``instead`` of whom
    copied     the owner goes on serving, and sends an image and then every change (``Fill``, ``Append``)
    full       from here on the owner counts nothing that the newcomer has not (``Full``)
    handed     a new view puts the newcomer into the other's place; it opens, and says so (``Opened``)
"""

from __future__ import annotations

import msgspec

from shoal.wire.messages.base import Count, Message

__all__ = [
    "Drain",
    "Move",
    "Opened",
    "Release",
]


class Drain(Message, frozen=True, tag="drain"):
    """A member to coordinator: "let that node go, once others have what it holds or was dealt"."""

    request: int
    name: str


class Release(Message, frozen=True, tag="release"):
    """Coordinator to a node that is leaving: "nobody needs you any more: go"."""

    incarnation: Count


class Opened(Message, frozen=True, tag="opened"):
    """New primary to coordinator: "these segments are served by me, from this view on"."""

    incarnation: Count
    table: Count
    view: Count
    segments: list[int]


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A segment on its way, as the coordinator knows it."""

    table: str
    segment: Count
    source: str
    target: str
    since: Count  # nanoseconds since it was named
    why: str  # count, leaving, load, copies


MoveMessage = Drain | Release | Opened
