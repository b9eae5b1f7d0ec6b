"""How long nodes wait for each other: when one is suspected, held for dead, asked again, given up.

Two forms of the same thing. ``Timing`` is what an operator sets, in a job or where a cluster is started: seconds, and ``scale``, which
multiplies every default. ``TimingSettings`` is what nodes go by: nanoseconds, all of them set, checked against each other. The coordinator
has them and tells them with every view, so all members of a cluster use the same, and a node that joins from another host needs no
option. Until a node has a view it goes by the defaults.

No rule about what is counted rests on any of these: a wrong value costs time or a node that was alive, never a push.
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

    # Who is alive.
    heartbeat: Nanoseconds = 500 * MILLISECOND  # nodes say so often that they are
    suspect: Nanoseconds = 2 * SECOND  # of silence: told, and nothing new is given to that node
    dead: Nanoseconds = 5 * SECOND  # of silence: the node is removed
    patience: Nanoseconds = 60 * SECOND  # without the coordinator: a node of another host ends
    gone: Nanoseconds = 30 * SECOND  # without the coordinator: the run of a group fails

    # How a client waits.
    resend_first: Nanoseconds = 500 * MILLISECOND  # until a request is sent again; then twice as long,
    resend_most: Nanoseconds = 4 * SECOND  # up to this
    silence: Nanoseconds = 10 * SECOND  # no answer of any kind for this long is an error
    notice: Nanoseconds = 1 * SECOND  # how often whoever waits is told for whom

    # How copies are kept.
    copy_resend: Nanoseconds = 200 * MILLISECOND  # until a change is sent to a backup again
    level_again: Nanoseconds = 50 * MILLISECOND  # until survivors are asked again what they have
    shrink: Nanoseconds = 4 * SECOND  # without a word from a backup, the primary asks to go on without it

    # How segments change hands.
    load_every: Nanoseconds = 2 * SECOND  # how often a server tells how much is asked of its segments
    move_again: Nanoseconds = 10 * SECOND  # until a server that could not be reached is filled again
    move_opens: Nanoseconds = 10 * SECOND  # a segment that changed hands is waited for so long
    leave_still: Nanoseconds = 60 * SECOND  # nobody takes over from a server that leaves: it goes

    # How a checkpoint is made.
    snap_again: Nanoseconds = 2 * SECOND  # until a server is asked again for its part
    snap_within: Nanoseconds = 60 * SECOND  # when nothing was written for so long a checkpoint is given up,
    save_retry: Nanoseconds = 1 * SECOND  # and tried again this much later,
    save_retry_most: Nanoseconds = 300 * SECOND  # doubling up to this

    # Peers without a server.
    join_within: Nanoseconds = 60 * SECOND  # for a peer to be met, or to be given the model
    called: Nanoseconds = 600 * SECOND  # a silent one is called so long: it may have been cut off
    drain: Nanoseconds = 5 * SECOND  # whoever goes waits so long for the others to have heard all

    # Code of users' on servers.
    question: Nanoseconds = 60 * SECOND  # a question of their own that takes longer is ended

    # A disk that is full.
    journal: Nanoseconds = 30 * SECOND  # a run waits so long for its journal, then it goes on without

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not LEAST <= getattr(self, name) <= MOST:
                raise Invalid(
                    f"{_told(self, name)}: needs {_seconds(LEAST):g} to {_seconds(MOST):g} seconds; timing.scale changes all"
                )
        for less, more, why in _BELOW:
            if not getattr(self, less) < getattr(self, more):
                raise Invalid(
                    f"{_told(self, more)}: needs more than {_told(self, less)}, or {why}: raise timing.{more}, or lower timing.{less}"
                )
        if self.resend_first > self.resend_most:
            raise Invalid(
                f"{_told(self, 'resend_most')}: needs at least {_told(self, 'resend_first')}, from which the wait doubles up to it: "
                f"raise timing.resend_most, or lower timing.resend_first"
            )
        if self.save_retry > self.save_retry_most:
            raise Invalid(
                f"{_told(self, 'save_retry_most')}: needs at least {_told(self, 'save_retry')}, from which the wait doubles up to it: "
                f"raise timing.save_retry_most, or lower timing.save_retry"
            )
        if not 3 * self.notice < self.silence:
            raise Invalid(
                f"{_told(self, 'silence')}: needs more than three times {_told(self, 'notice')}, or whoever waits gives up on one that is "
                f"only late with a notice: raise timing.silence, or lower timing.notice"
            )
        if not 3 * self.copy_resend < self.shrink:
            raise Invalid(
                f"{_told(self, 'shrink')}: needs more than three times {_told(self, 'copy_resend')}, or a backup is given up before it was "
                f"asked again: raise timing.shrink, or lower timing.copy_resend"
            )


# What must be below what, or what goes wrong.
_BELOW = (
    ("heartbeat", "suspect", "every node is suspected between two heartbeats"),
    ("suspect", "dead", "nodes are removed before they are suspected"),
    ("shrink", "dead", "a server that is cut off from its backups is removed before it can go on without them"),
    ("level_again", "shrink", "a survivor is given up before it was asked again"),
    ("notice", "shrink", "what a primary asks of the coordinator is said again after the next of its kind"),
    ("resend_most", "silence", "a request is given up before it was sent again"),
    ("dead", "silence", "requests to a dead server are given up before another has taken its place"),
    ("dead", "patience", "nodes of other hosts end before the coordinator has missed them"),
    ("dead", "gone", "the run of a group fails before the coordinator has missed it"),
    ("dead", "leave_still", "a server that leaves goes before those that are dead were replaced by others who can take over"),
    ("snap_again", "snap_within", "a checkpoint is given up before a server was asked again"),
    ("dead", "join_within", "peers that start late are held for dead"),
    ("dead", "called", "a peer that was cut off is never called"),
)  # fmt: skip


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an operator sets, in seconds. A value that is not set is its default, times ``scale``."""

    scale: float = 1.0  # of all that are not set: 4 for hosts that are far apart
    heartbeat: float | None = None  # nodes say that they are alive so often
    suspect: float | None = None
    dead: float | None = None
    patience: float | None = None
    gone: float | None = None
    resend_first: float | None = None
    resend_most: float | None = None
    silence: float | None = None  # if it is not set, at least twice ``dead``
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
            raise Invalid(
                f"timing.scale={self.scale:g}: needs {low:g} to {high:g}; 1 leaves all as it is, 4 suits a WAN"
            )
        self.intervals()

    def intervals(self) -> TimingSettings:
        """What nodes go by."""
        found: dict[str, int] = {}
        for name in TimingSettings.__struct_fields__:
            given = getattr(self, name)
            if given is None:
                found[name] = min(max(LEAST, round(getattr(DEFAULT, name) * self.scale)), MOST)
            elif math.isfinite(given * SECOND):
                found[name] = round(given * SECOND)
            else:
                raise Invalid(f"timing.{name}={given}: needs a number of seconds, up to {_seconds(MOST):g}")
        if self.silence is None:  # whoever is held for dead later is waited for longer
            found["silence"] = min(max(found["silence"], 2 * found["dead"]), MOST)
        return TimingSettings(**found)


def seconds_of(intervals: TimingSettings) -> dict[str, float]:
    """The same in seconds, by name."""
    return {name: getattr(intervals, name) / SECOND for name in TimingSettings.__struct_fields__}


def others_than(intervals: TimingSettings) -> str:
    """In a few words how these differ from the defaults; empty if they do not."""
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
    """What a caller says: one made before, or some of its values by name."""
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
