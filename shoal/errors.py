"""The whole tree of errors. Each message gives the fact, then the next move.

    ShoalError
    ├── Invalid             a bad setting, argument or file (also a ValueError)
    │   ├── BadKeys         keys that a table cannot hold
    │   ├── BadValues       values of the wrong shape, or not finite
    │   │   └── BadFilter   a user's filter that failed
    │   ├── BadCheckpoint   a file of a checkpoint that is missing, damaged or not ours
    │   │   └── OtherRun    a checkpoint of another run
    │   └── UnknownTable    no table of that name
    ├── ClusterError        an error of membership
    │   ├── Refused         a node refused, with its reason
    │   ├── Fenced          this node was declared dead and replaced
    │   ├── RankLost        a rank is gone, and the others cannot go on without it
    │   ├── RanksDiffer     ranks have different weights
    │   └── StartFailed     a cluster did not start
    ├── StoreError          a failed push, pull or call
    │   ├── Unanswered      no answer in time (also a TimeoutError)
    │   ├── TimedOut        the caller's own time limit passed (also a TimeoutError)
    │   ├── SegmentsLost    the only server that held these keys is gone
    │   ├── DependencyFailed
    │   └── Closed          the client or cluster was closed
    ├── RunFailed           a failed training run
    ├── NotUploaded         a failed upload
    └── WireError           bytes that are not a message
        └── OtherVersion    a message of another protocol version

The arguments of an error are the facts themselves, so it survives a trip between processes.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of all errors that shoal raises on purpose."""


class Invalid(ShoalError, ValueError):
    """A setting, argument or file is invalid."""


class BadKeys(Invalid):
    """Keys that a table cannot hold."""


class BadValues(Invalid):
    """Values of the wrong shape, or not finite."""


class BadFilter(BadValues):
    """A user's filter failed, or returned invalid values."""


class BadCheckpoint(Invalid):
    """A file of a checkpoint that is missing, damaged or not ours."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(file, reason)
        self.file, self.reason = file, reason

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}: take an earlier checkpoint"


class OtherRun(BadCheckpoint):
    """A valid checkpoint of another run."""

    def __init__(self, file: str, number: int) -> None:
        super().__init__(
            file,
            f"checkpoint {number} is of another run: job.toml was edited, or these are another run's checkpoints",
        )
        self.args, self.number = (file, number), number


class UnknownTable(Invalid):
    """No table of that name."""

    def __init__(self, table: str, known: list[str], dropped: bool = False) -> None:
        super().__init__(table, known, dropped)
        self.table, self.known, self.dropped = table, known, dropped

    def __str__(self) -> str:
        if self.dropped:
            again = "; there is another one of that name now: call again" if self.table in self.known else ""
            return f"table {self.table!r} was dropped while this was under way{again}"
        have = ", ".join(self.known) or "none yet"
        return f"no table {self.table!r} here (tables: {have}): create it first"


class ClusterError(ShoalError):
    """An error of membership."""


class Refused(ClusterError):
    """A node refused, with its reason."""

    def __init__(self, by: str, reason: str) -> None:
        super().__init__(by, reason)
        self.by, self.reason = by, reason

    def __str__(self) -> str:
        return f"{self.by} refused: {self.reason}"


class Fenced(ClusterError):
    """This node was declared dead, and its name may be taken by another."""

    def __init__(self, node: str, incarnation: int) -> None:
        super().__init__(node, incarnation)
        self.node, self.incarnation = node, incarnation

    def __str__(self) -> str:
        return (
            f"{self.node} (incarnation {self.incarnation}) was declared dead, so it is not known whether this task was "
            f"counted: the client has joined again under a new incarnation; read before you repeat"
        )


class RankLost(ClusterError):
    """A rank is gone, and the others cannot go on without it."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(who, why)
        self.who, self.why = who, why

    def __str__(self) -> str:
        return (
            f"{self.who} is gone ({self.why}), and the others cannot go on without it: shoal train --resume goes on from "
            f"what was kept; over MPI with ULFM they would go on (means over the store, too)"
        )


class RanksDiffer(ClusterError):
    """Ranks that must have the same weights have different ones."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one, other)
        self.one, self.other = one, other

    def __str__(self) -> str:
        return (
            f"{self.one} and {self.other} have different weights, though they took the same steps: memory or a network has changed "
            f"a number on its way; shoal train --resume resumes from the last checkpoint"
        )


class StartFailed(ClusterError):
    """A cluster did not start."""


class StoreError(ShoalError):
    """A push, pull or call failed."""


class Unanswered(StoreError, TimeoutError):
    """There was no answer in time."""

    def __init__(self, what: str, node: str, seconds: float) -> None:
        super().__init__(what, node, seconds)
        self.what, self.node, self.seconds = what, node, seconds

    def __str__(self) -> str:
        return f"{self.what}: no answer from {self.node} for {self.seconds:.1f} s: is it running and reachable?"


class TimedOut(StoreError, TimeoutError):
    """The caller's own time limit passed; the task goes on and may still finish."""

    def __init__(self, what: str, seconds: float, waits_for: str) -> None:
        super().__init__(what, seconds, waits_for)
        self.what, self.seconds, self.waits_for = what, seconds, waits_for

    def __str__(self) -> str:
        return f"{self.what} not done after {self.seconds:g} s: it waits for {self.waits_for}; it goes on, ask again"


class SegmentsLost(StoreError):
    """The only server that held these keys is gone."""

    def __init__(self, table: str, server: str) -> None:
        super().__init__(table, server)
        self.table, self.server = table, server

    def __str__(self) -> str:
        return (
            f"a segment of table {self.table!r} was held by {self.server} alone, which is gone: "
            f"drop the table and create it again"
        )


class DependencyFailed(StoreError):
    """A task depends on one that failed."""

    def __init__(self, what: str, cause: str) -> None:
        super().__init__(what, cause)
        self.what, self.cause = what, cause

    def __str__(self) -> str:
        return f"{self.what} was not sent, because a task it was to follow failed: {self.cause}"


class Closed(StoreError):
    """The client or cluster was closed."""


class RunFailed(ShoalError):
    """A training run failed. Its results so far are in ``run``, and in its folder if any."""

    def __init__(self, why: str, folder: str = "") -> None:
        super().__init__(why, folder)
        self.why, self.folder = why, folder
        self.run: object = None

    def __str__(self) -> str:
        return f"{self.why}; what was learned so far is in {self.folder}" if self.folder else self.why


class NotUploaded(ShoalError):
    """A file could not be uploaded."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"not sent to {self.where}: {self.why}: try again, or send it yourself"


class WireError(ShoalError):
    """Bytes that are not a message."""


class Damaged(WireError):
    """Arrays with a wrong checksum: a bit was flipped in transit."""


class OtherVersion(WireError):
    """A message of another protocol version."""

    def __init__(self, theirs: int, ours: int) -> None:
        super().__init__(theirs, ours)
        self.theirs, self.ours = theirs, ours

    def __str__(self) -> str:
        return f"they speak protocol {self.theirs}, this side speaks {self.ours}: install the same shoal on both sides"
