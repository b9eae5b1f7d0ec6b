"""What is said between hosts: what a run is about, who cannot take part, what happened lately. Part of the page that ``messages`` is.

Whoever comes from another host knows one address. What it must know besides it asks for there, and gets plain data: settings as
text, names of files and of modules. Nothing of it is code, and nothing is run because a message names it: the newcomer's own
operator says which modules may be imported.
"""

from __future__ import annotations

from shoal.events import RunEvent
from shoal.wire.messages.base import Count, Message

__all__ = [
    "Describe",
    "Described",
    "Dismissed",
    "Fed",
    "Feed",
    "Unfit",
]


class Describe(Message, frozen=True, tag="describe"):
    """Anyone to coordinator: "what is going on here? I might take part"."""

    request: int


class Described(Message, frozen=True, tag="described"):
    """Coordinator to whoever asked: "this": without a job it is a store, and nothing is trained."""

    request: int
    job: str = ""  # as TOML
    data: str = ""  # the set's name
    rows: Count = 0  # to train on
    test_rows: Count = 0
    features: Count = 0
    fingerprint: str = ""  # of the rows to train on
    modules: list[str] = []  # that servers and workers need: each host's operator names them, too
    ended: bool = False  # nobody is needed any more
    group: str = ""  # it is the scheduler of this group who answers,
    manager: str = ""  # and its members join here


class Unfit(Message, frozen=True, tag="unfit"):
    """Anyone to coordinator: "I was asked to take part, and cannot: tell whoever looks at the run"."""

    name: str
    why: str


class Feed(Message, frozen=True, tag="feed"):
    """Anyone to coordinator: "what has happened since I asked last?"."""

    request: int
    after: Count  # the number that the last answer gave; 0: what is still known


class Fed(Message, frozen=True, tag="fed"):
    """Coordinator to whoever asked: "this"."""

    request: int
    number: Count  # of the last of these
    events: list[RunEvent] = []


class Dismissed(Message, frozen=True, tag="dismissed"):
    """Coordinator to all members: "it is over: nobody comes back to you"."""

    why: str


HostMessage = Describe | Described | Unfit | Feed | Fed | Dismissed
