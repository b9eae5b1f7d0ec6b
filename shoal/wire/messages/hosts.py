"""Messages with nodes of other hosts: the description of a run, and its events.

A node of another host knows one address and asks there for the rest. The answer is plain data, no
code, and nothing is imported because a message names it: the host's operator says what may be.
"""

from __future__ import annotations

from shoal.events import RunEvent
from shoal.wire.messages.base import Count, Message, Numbered


class Describe(Numbered, frozen=True, tag="describe"):
    """Anyone to coordinator: "what is this run? I might join"."""


class Described(Numbered, frozen=True, tag="described"):
    """Coordinator to the asker: "this run"; without a job it is a store."""

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
    """Anyone to coordinator: "I cannot join, and this is why: show it in the run"."""

    name: str
    why: str


class Feed(Numbered, frozen=True, tag="feed"):
    """Anyone to coordinator: "which events are new since this one?"."""

    after: Count  # the number that the last answer gave; 0: what is still known


class Fed(Numbered, frozen=True, tag="fed"):
    """Coordinator to the asker: "these events"."""

    number: Count  # of the last of these
    events: list[RunEvent] = []


class Dismissed(Message, frozen=True, tag="dismissed"):
    """Coordinator to all members: "it is over: do not wait for a restart"."""

    why: str


HostMessage = Describe | Described | Unfit | Feed | Fed | Dismissed
