"""What happened, in typed records. Two books are kept.

*History*: the one format that the simulator, tests on real processes and soaks share, for the checker.

A call is begun once and ends once: ``ok``, ``failed`` (surely not counted) or ``unknown`` (may be counted or not). A pull of
the counting model (see ``simulation.workload``) brings back what it contained, so that every promise becomes arithmetic on
these records. Times are nanoseconds of one clock.

*Run*: what a training run writes line by line to ``events.jsonl``, for everything that looks at it, live or later.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records. The tag of each is a string of its own: renaming a class changes no file."""

    time: int


class Begin(Record, frozen=True, tag="begin"):
    """A client made a call."""

    call: int
    client: str
    incarnation: int
    kind: Literal["push", "pull"]
    number: int = -1  # a push: the slot, or the client's own count
    clock: int = -1  # a pull: when its weights will be used
    step: int = 0  # a push: the worker's step that it ends
    enter: bool = False


class End(Record, frozen=True, tag="end"):
    """A call came back. ``seen`` is what a pull contained: per segment, a bit for each slot, or a count for each client."""

    call: int
    outcome: Literal["ok", "failed", "unknown"]
    error: str = ""
    seen: list[list[int]] = []


class Note(Record, frozen=True, tag="note"):
    """Something that changes what may be expected."""

    what: Literal["entered", "parking", "crashed", "removed", "delay asked", "delay set", "dealt", "healed"]
    client: str = ""
    incarnation: int = 0
    value: int | None = None


Event = Begin | End | Note

_decoder = msgspec.json.Decoder(Event)


def write(path: Path, records: Iterable[Event]) -> None:
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read(path: Path) -> list[Event]:
    return [_decoder.decode(line) for line in path.read_bytes().splitlines()]


# ---------------------------------------------------------------- a run


class Happening(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of what a run writes. The tag of each is a string of its own: renaming a class changes no file."""

    seconds: float  # since training began


class Started(Happening, frozen=True, kw_only=True, tag="started"):
    """Everything is set up, and training begins."""

    data: str
    model: str
    strategy: str
    workers: int
    servers: int
    seed: int
    cores: int  # of this host; 0: they are on hosts of their own
    rows: int  # to train on
    test_rows: int
    features: int
    batch: int  # rows in a slot
    slots: int  # in a pass
    emulated: str = ""  # what of the computing is not real, in words


class Progress(Happening, frozen=True, kw_only=True, tag="progress"):
    """How far training is: now and then, as the workers report it."""

    passes: float  # over the data
    steps: int
    examples: int
    train_loss: float | None  # mean over the rows computed since the last such record, each before its own update
    workers: int  # at work
    spent: dict[str, float] = {}  # seconds that they computed, communicated, waited, since the last such record


class Evaluated(Happening, frozen=True, kw_only=True, tag="evaluated"):
    """The evaluator has judged the model."""

    number: int  # 0 is the model before training
    passes: float
    steps: int
    examples: int
    train_loss: float | None  # as in Progress, since the last evaluation
    test_loss: float
    metrics: dict[str, float | None]  # accuracy, auc, ...; None: not defined for these rows
    workers: int  # at work when the weights were read (S4-24)
    best: bool  # the lowest test loss so far
    read: float | None = None  # seconds when the weights were read: the model was as good then
    each: dict[str, dict[str, float]] = {}  # of every worker since the last of these: "slots", and seconds by kind
    spread: dict[
        str, float
    ] = {}  # where everybody has a model: "best" and "worst" loss, "distance" of all from their mean, "rounds", "pieces" of the graph
    by: str = ""  # who judged it, where that is chosen


class Joined(Happening, frozen=True, kw_only=True, tag="joined"):
    """A node takes part from now on."""

    name: str
    role: str
    group: str = ""


LEFT = "it left"  # how the reason of one begins that went in order


class Gone(Happening, frozen=True, kw_only=True, tag="gone"):
    """A node left, or was lost; ``slots`` of its work are dealt again."""

    name: str
    role: str
    why: str
    slots: int = 0
    left: float = 0.0  # the size of what filters had left for later, and is lost


class Leaving(Happening, frozen=True, kw_only=True, tag="leaving"):
    """A node was asked to go, or asked for it: others take over what it has."""

    name: str
    role: str
    why: str


class Handed(Happening, frozen=True, kw_only=True, tag="handed"):
    """Segments of a table changed hands while everything went on."""

    table: str
    segments: list[int]
    source: str
    target: str
    why: str  # count, leaving, load; lost: its server was, before the other one had taken over
    took: float  # seconds since the move was begun
    stall: float  # of these, seconds from the view that hands them over until they were served again
    gain: str = ""  # what is better for it: who had how much before


class Shared(Happening, frozen=True, kw_only=True, tag="shared"):
    """How the segments of all tables are shared out among the servers, from now on."""

    serves: dict[str, int]  # by server; who has none is there, too
    copies: dict[str, int]  # those that others serve, kept in case these are lost


class Split(Happening, frozen=True, kw_only=True, tag="split"):
    """A segment that was asked for more than its share is two now."""

    table: str
    segment: int  # its number before
    at: int  # the key that the second half begins with
    why: str


class Voided(Happening, frozen=True, kw_only=True, tag="voided"):
    """A slot cannot be computed: it counts as empty."""

    slot: tuple[int, int]
    why: str


class Warned(Happening, frozen=True, kw_only=True, tag="warned"):
    """Something is not as it should be, and training goes on."""

    what: str


class Resumed(Happening, frozen=True, kw_only=True, tag="resumed"):
    """The run was started again, and goes on from a checkpoint."""

    checkpoint: int | None  # its number; None: there was none, and it begins anew
    steps: int  # in that checkpoint
    slots: list[tuple[int, int]] = []  # what was counted after it and is done again: from the first up to the second


class RolledBack(Happening, frozen=True, kw_only=True, tag="rolledback"):
    """A part of the model was lost with all its copies: everybody goes back to a checkpoint."""

    checkpoint: int | None  # its number; None: back to the beginning
    steps_before: int
    steps_after: int
    slots: list[tuple[int, int]]  # what was counted and is done again: from the first up to, not including, the second
    why: str


class Saved(Happening, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint is on disk: from here the run can be taken up again."""

    number: int
    steps: int
    bytes: int
    took: float  # seconds from its beginning, while training went on


class Spans(Happening, frozen=True, kw_only=True, tag="spans"):
    """What one node did when, some of it (see ``nodes.spent``)."""

    name: str
    spans: list[tuple[str, float, float]]  # what, since when, for how many seconds


class Delayed(Happening, frozen=True, kw_only=True, tag="delayed"):
    """How many steps workers may be apart was changed while running (``max_delay = "auto"``)."""

    max_delay: int
    waiting: float  # share of their time that workers waited before


class Linked(Happening, frozen=True, kw_only=True, tag="linked"):
    """Who hears whom, in a run without a server."""

    topology: str
    nodes: list[str]
    links: list[tuple[int, int]]  # from the first to the second, by their places in nodes; both ways: each pair once
    directed: bool
    gap: float  # 1 - |second eigenvalue| of the mixing matrix
    rounds: float | None  # until the distance is a hundredth of what it was, if nobody learned; None: never
    parts: list[list[int]]  # strongly connected ones
    why: str = ""  # somebody is gone
    pairs: bool = False  # they meet two at a time, so that no rounds are counted
    rows: str = ""  # who learns from which, where that is not left to chance


class Elected(Happening, frozen=True, kw_only=True, tag="elected"):
    """Who judges the model and deals the slots from now on, in a run of peers."""

    name: str
    why: str = ""  # the one before is gone, and how


class Stopped(Happening, frozen=True, kw_only=True, tag="stopped"):
    """Training has ended, and this is why."""

    why: str


RunEvent = (
    Started
    | Progress
    | Evaluated
    | Joined
    | Gone
    | Leaving
    | Handed
    | Shared
    | Split
    | Voided
    | Warned
    | Saved
    | Resumed
    | RolledBack
    | Spans
    | Delayed
    | Linked
    | Elected
    | Stopped
)

_run_decoder = msgspec.json.Decoder(RunEvent)


def counted(number: float, what: str) -> str:
    """1 worker, 2 workers: for whoever tells it in words."""
    return f"{number:,g} {what}{'' if number == 1 else 's'}"


def read_run(path: Path) -> list[RunEvent]:
    """The events of a run; a last line that was cut short by a crash is left out."""
    lines = path.read_bytes().split(b"\n")
    return [_run_event(line) for line in lines[:-1] if line]


def read_legible(path: Path) -> tuple[list[RunEvent], int]:
    """The events of a run that can be read, and how many lines cannot."""
    events, damaged = list[RunEvent](), 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            events += [_run_event(line)] if line else []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
    return events, damaged


def _run_event(line: bytes) -> RunEvent:
    event: RunEvent
    try:
        event = _run_decoder.decode(line)
    except msgspec.ValidationError:
        told = msgspec.json.decode(line)
        if not isinstance(told, dict) or told.get("test_loss", 0) is not None:
            raise
        # JSON has no infinity: a loss that ran away was written as null.
        event = msgspec.convert({**told, "test_loss": float("nan")}, RunEvent)
    return event
