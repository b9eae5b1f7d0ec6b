"""Timeouts: when nodes are suspected or declared dead, and requests resent or given up.

There are two forms. An operator sets ``Timing``, in a job or when a cluster starts: in seconds,
with ``scale`` as a factor of every default. Nodes use ``TimingSettings``: in nanoseconds,
complete, checked against each other. The coordinator sends them with every view, so all members
use the same, and a node that joins from another host needs no option. Before its first view a node
uses the defaults.

Correctness does not depend on them: a wrong value costs time or a live node, never a push.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated

import msgspec

from shoal.errors import Invalid
from shoal.limits import MILLISECOND, SECOND

LEAST, MOST = MILLISECOND, 86_400 * SECOND  # of each
SCALES = (0.05, 100.0)

Nanoseconds = Annotated[int, msgspec.Meta(ge=LEAST, le=MOST)]


class TimingSettings(msgspec.Struct, frozen=True, array_like=True):
    """The intervals of one cluster, in nanoseconds."""

    # Membership.
    heartbeat: Nanoseconds = 500 * MILLISECOND  # between two heartbeats of a node
    suspect: Nanoseconds = 2 * SECOND  # of silence: it is reported, and the node gets no new work
    dead: Nanoseconds = 5 * SECOND  # of silence: the node is removed
    patience: Nanoseconds = 60 * SECOND  # without the coordinator: a node on another host exits
    gone: Nanoseconds = 30 * SECOND  # without the coordinator: the run of a group fails

    # Clients.
    resend_first: Nanoseconds = 500 * MILLISECOND  # until a request is resent; then doubled,
    resend_most: Nanoseconds = 4 * SECOND  # up to this
    silence: Nanoseconds = 10 * SECOND  # without any answer: the call fails
    notice: Nanoseconds = 1 * SECOND  # between two notices to a waiting client about the cause

    # Replication.
    copy_resend: Nanoseconds = 200 * MILLISECOND  # until a change is resent to a backup
    level_again: Nanoseconds = 50 * MILLISECOND  # until survivors are asked again for their state
    shrink: Nanoseconds = 4 * SECOND  # of silence: the primary asks to drop the backup

    # Moves of segments.
    load_every: Nanoseconds = 2 * SECOND  # between two reports of a server's load
    move_again: Nanoseconds = 10 * SECOND  # until an unreachable server is filled again
    move_opens: Nanoseconds = 10 * SECOND  # the longest wait for a segment after its move
    leave_still: Nanoseconds = 60 * SECOND  # without a successor: a leaving server exits

    # Checkpoints.
    snap_again: Nanoseconds = 2 * SECOND  # until a server is asked again for its segments
    snap_within: Nanoseconds = 60 * SECOND  # without a write: the checkpoint is given up,
    save_retry: Nanoseconds = 1 * SECOND  # and retried after this time,
    save_retry_most: Nanoseconds = 300 * SECOND  # doubling up to this

    # Peers without servers.
    join_within: Nanoseconds = 60 * SECOND  # for a peer to be met, or to get the model
    called: Nanoseconds = 600 * SECOND  # how long a silent peer is called: it may be cut off
    drain: Nanoseconds = 5 * SECOND  # how long a leaving peer waits for acknowledgements

    # Users' code on servers.
    question: Nanoseconds = 60 * SECOND  # the time limit of a user's query

    # Full disks.
    journal: Nanoseconds = 30 * SECOND  # how long a run waits for its journal, then goes on without

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not LEAST <= getattr(self, name) <= MOST:
                raise Invalid(
                    f"{_told(self, name)}: needs {_seconds(LEAST):g} to {_seconds(MOST):g} seconds; timing.scale changes all"
                )
        for factor, less, more, why in _BELOW:
            low, high = getattr(self, less), getattr(self, more)
            if high < low or (factor and high <= factor * low):
                raise Invalid(
                    f"{_told(self, more)}: needs {_FACTORS[factor]} {_told(self, less)}, {why}: raise timing.{more}, or lower timing.{less}"
                )


_FACTORS = {0: "at least", 1: "more than", 3: "more than three times"}
# Pairs in order, and what goes wrong otherwise.
_BELOW = (
    (1, "heartbeat", "suspect", "or every node is suspected between two heartbeats"),
    (1, "suspect", "dead", "or nodes are removed before they are suspected"),
    (1, "shrink", "dead", "or a server that is cut off from its backups is removed before it can go on without them"),
    (1, "level_again", "shrink", "or a survivor is given up before it was asked again"),
    (1, "notice", "shrink", "or what a primary asks of the coordinator is said again after the next of its kind"),
    (1, "resend_most", "silence", "or a request is given up before it was sent again"),
    (1, "dead", "silence", "or requests to a dead server are given up before another has taken its place"),
    (1, "dead", "patience", "or nodes of other hosts end before the coordinator has missed them"),
    (1, "dead", "gone", "or the run of a group fails before the coordinator has missed it"),
    (1, "dead", "leave_still", "or a server that leaves goes before those that are dead were replaced by others who can take over"),
    (1, "snap_again", "snap_within", "or a checkpoint is given up before a server was asked again"),
    (1, "dead", "join_within", "or peers that start late are held for dead"),
    (1, "dead", "called", "or a peer that was cut off is never called"),
    (0, "resend_first", "resend_most", "from which the wait doubles up to it"),
    (0, "save_retry", "save_retry_most", "from which the wait doubles up to it"),
    (3, "notice", "silence", "or whoever waits gives up on one that is only late with a notice"),
    (3, "copy_resend", "shrink", "or a backup is given up before it was asked again"),
)  # fmt: skip


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's settings, in seconds. Unset ones are the default times ``scale``."""

    scale: float = 1.0  # of all unset ones: 4 for hosts that are far apart
    heartbeat: float | None = None  # between two heartbeats of a node
    suspect: float | None = None
    dead: float | None = None
    patience: float | None = None
    gone: float | None = None
    resend_first: float | None = None
    resend_most: float | None = None
    silence: float | None = None  # if unset, at least twice ``dead``
    notice: float | None = None
    copy_resend: float | None = None
    level_again: float | None = None
    shrink: float | None = None
    load_every: float | None = None
    move_again: float | None = None
    move_opens: float | None = None
    leave_still: float | None = None
    snap_again: float | None = None
    snap_within: float | None = None
    save_retry: float | None = None
    save_retry_most: float | None = None
    join_within: float | None = None
    called: float | None = None
    drain: float | None = None
    question: float | None = None
    journal: float | None = None

    def __post_init__(self) -> None:
        low, high = SCALES
        if not low <= self.scale <= high:
            raise Invalid(f"timing.scale={self.scale:g}: needs {low:g} to {high:g}; 1 changes nothing, 4 suits a WAN")
        self.intervals()

    def intervals(self) -> TimingSettings:
        """The complete settings of the nodes."""
        found: dict[str, int] = {}
        for name in TimingSettings.__struct_fields__:
            given = getattr(self, name)
            if given is None:
                found[name] = min(max(LEAST, round(getattr(DEFAULT, name) * self.scale)), MOST)
            elif math.isfinite(given * SECOND):
                found[name] = round(given * SECOND)
            else:
                raise Invalid(f"timing.{name}={given}: needs a number of seconds, up to {_seconds(MOST):g}")
        if self.silence is None:  # a larger ``dead`` needs a longer wait
            found["silence"] = min(max(found["silence"], 2 * found["dead"]), MOST)
        return TimingSettings(**found)


def seconds_of(intervals: TimingSettings) -> dict[str, float]:
    return {name: getattr(intervals, name) / SECOND for name in TimingSettings.__struct_fields__}


def others_than(intervals: TimingSettings) -> str:
    """The differences from the defaults, in a few words; empty if there are none."""
    if intervals == DEFAULT:
        return ""
    if intervals == (scaled := Timing(scale=intervals.dead / DEFAULT.dead)).intervals():
        return f"x {scaled.scale:g} (dead after {intervals.dead / SECOND:g} s)"
    now, usual = seconds_of(intervals), seconds_of(DEFAULT)
    named = [f"{name} {value:g} s" for name, value in now.items() if value != usual[name]]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


def _told(of: TimingSettings, name: str) -> str:
    return f"timing.{name}={_seconds(getattr(of, name)):g}"


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / SECOND


DEFAULT = TimingSettings()


def timing_from(given: Timing | Mapping[str, float]) -> Timing:
    """A Timing from a caller's argument: a Timing, or some values by name."""
    if isinstance(given, Timing):
        return given
    if not isinstance(given, Mapping):
        raise Invalid(f"timing={given!r}: needs seconds by name, such as {{'dead': 20}}, or {{'scale': 4}} for all")
    for name, value in given.items():
        if name not in Timing.__struct_fields__:
            near = get_close_matches(str(name), Timing.__struct_fields__, n=1)
            hint = f": did you mean {near[0]!r}?" if near else f" (there are {', '.join(Timing.__struct_fields__)})"
            raise Invalid(f"timing has no {name!r}{hint}")
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise Invalid(f"timing.{name}={value!r}: needs a number of seconds")
    return Timing(**given)
