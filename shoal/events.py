"""Typed event records, of two kinds: histories for the checker, and events of training runs.

*History*: the format that the simulator, tests on real processes and soaks write for the checker.

A call begins once and ends once: ``ok``, ``failed`` (surely not counted) or ``unknown`` (perhaps
counted). A pull of the counting model (see ``simulation.workload``) returns what it contained, so
that every promise becomes arithmetic on these records. Times are nanoseconds of one clock.

*Run*: the lines of ``events.jsonl``, which a training run writes for live views and reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all records. Each has a fixed tag: renaming a class changes no file."""

    time: int


class Begin(Record, frozen=True, tag="begin"):
    """A client made a call."""

    call: int
    client: str
    incarnation: int
    kind: Literal["push", "pull"]
    number: int = -1  # a push: the slot, or the client's own count
    clock: int = -1  # a pull: when its weights will be used
    step: int = 0  # a push: the worker's step that it completes
    enter: bool = False


class End(Record, frozen=True, tag="end"):
    """A call ended. ``seen``: per segment, a bit per slot or a count per client in the pull."""

    call: int
    outcome: Literal["ok", "failed", "unknown"]
    error: str = ""
    seen: list[list[int]] = []


class Note(Record, frozen=True, tag="note"):
    """An event that changes what the checker expects."""

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
    """Base of a run's events. Each has a fixed tag: renaming a class changes no file."""

    seconds: float  # since training began


class Started(Happening, frozen=True, kw_only=True, tag="started"):
    """Training begins."""

    data: str
    model: str
    strategy: str
    workers: int
    servers: int
    seed: int
    cores: int  # of this host; 0: nodes run on other hosts
    rows: int  # training rows
    test_rows: int
    features: int
    batch: int  # rows in a slot
    slots: int  # in an epoch
    emulated: str = ""  # which computation is emulated, in words


class Progress(Happening, frozen=True, kw_only=True, tag="progress"):
    """The progress of training, by the reports of the workers."""

    passes: float  # epochs
    steps: int
    examples: int
    train_loss: float | None  # mean since the last record, each row before its update
    workers: int  # active
    spent: dict[str, float] = {}  # seconds of computing, communicating, waiting, since the last


class Evaluated(Happening, frozen=True, kw_only=True, tag="evaluated"):
    """The evaluator has evaluated the model."""

    number: int  # 0 is the model before training
    passes: float
    steps: int
    examples: int
    train_loss: float | None  # as in Progress, since the last evaluation
    test_loss: float
    metrics: dict[str, float | None]  # accuracy, auc, ...; None: not defined for these rows
    workers: int  # active when the weights were read
    best: bool  # the lowest test loss so far
    read: float | None = None  # seconds when the weights were read
    each: dict[str, dict[str, float]] = {}  # by worker, since the last: "slots", seconds by kind
    spread: dict[str, float] = {}  # of peers: best, worst loss; distance to mean; rounds; pieces
    by: str = ""  # the evaluating peer, where one is elected


class Joined(Happening, frozen=True, kw_only=True, tag="joined"):
    """A node has joined."""

    name: str
    role: str
    group: str = ""


LEFT = "it left"  # first words of the reason of an orderly exit


class Gone(Happening, frozen=True, kw_only=True, tag="gone"):
    """A node left, or was lost; ``slots`` of its work are reassigned."""

    name: str
    role: str
    why: str
    slots: int = 0
    left: float = 0.0  # norm of what its filters held back, and is lost


class Leaving(Happening, frozen=True, kw_only=True, tag="leaving"):
    """A node is leaving: others take over its segments or slots."""

    name: str
    role: str
    why: str


class Handed(Happening, frozen=True, kw_only=True, tag="handed"):
    """Segments of a table moved to another server during training."""

    table: str
    segments: list[int]
    source: str
    target: str
    why: str  # count, leaving or load; lost: the old server died during the move
    took: float  # seconds since the move began
    stall: float  # seconds of these in which the segments were not served
    gain: str = ""  # the improvement: the shares before


class Shared(Happening, frozen=True, kw_only=True, tag="shared"):
    """The new placement: how many segments each server has."""

    serves: dict[str, int]  # primary segments by server, zeros included
    copies: dict[str, int]  # backup segments by server


class Split(Happening, frozen=True, kw_only=True, tag="split"):
    """A segment with more than its share of the load was split in two."""

    table: str
    segment: int  # its number before the split
    at: int  # the first key of the second half
    why: str


class Voided(Happening, frozen=True, kw_only=True, tag="voided"):
    """A slot cannot be computed and counts as empty."""

    slot: tuple[int, int]
    why: str


class Warned(Happening, frozen=True, kw_only=True, tag="warned"):
    """A problem that does not stop training."""

    what: str


class Resumed(Happening, frozen=True, kw_only=True, tag="resumed"):
    """The run was restarted from a checkpoint."""

    checkpoint: int | None  # its number; None: there was none, and the run starts over
    steps: int  # in that checkpoint
    slots: list[tuple[int, int]] = []  # counted and computed again: [first, second)


class RolledBack(Happening, frozen=True, kw_only=True, tag="rolledback"):
    """Segments were lost with all copies: training rolls back to a checkpoint."""

    checkpoint: int | None  # its number; None: back to the beginning
    steps_before: int
    steps_after: int
    slots: list[tuple[int, int]]  # counted and computed again: [first, second)
    why: str


class Saved(Happening, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint is on disk: the run can be resumed from it."""

    number: int
    steps: int
    bytes: int
    took: float  # seconds, while training went on


class Spans(Happening, frozen=True, kw_only=True, tag="spans"):
    """A sample of the time spans of one node (see ``nodes.time_accounting``)."""

    name: str
    spans: list[tuple[str, float, float]]  # kind, start, seconds


class Delayed(Happening, frozen=True, kw_only=True, tag="delayed"):
    """The bound on delay was changed during training (``max_delay = "auto"``)."""

    max_delay: int
    waiting: float  # share of time that workers waited before


class Linked(Happening, frozen=True, kw_only=True, tag="linked"):
    """The links between peers, in a run without servers."""

    topology: str
    nodes: list[str]
    links: list[tuple[int, int]]  # from, to, as indices of nodes; undirected: each pair once
    directed: bool
    gap: float  # 1 - |second eigenvalue| of the mixing matrix
    rounds: float | None  # until the distance is 1/100 without learning; None: never
    parts: list[list[int]]  # strongly connected components
    why: str = ""  # the peer that is gone
    pairs: bool = False  # peers average in pairs: no rounds
    rows: str = ""  # which peer has which rows, if not random


class Elected(Happening, frozen=True, kw_only=True, tag="elected"):
    """The peer that evaluates the model and deals the slots from now on."""

    name: str
    why: str = ""  # how the one before was lost


class Stopped(Happening, frozen=True, kw_only=True, tag="stopped"):
    """Training has ended."""

    why: str


CourseEvent = Started | Progress | Evaluated | Voided | Warned | Spans | Delayed | Stopped
MembershipEvent = Joined | Gone | Leaving | Handed | Shared | Split | Linked | Elected
RunEvent = CourseEvent | MembershipEvent | Saved | Resumed | RolledBack

_run_decoder = msgspec.json.Decoder(RunEvent)


def counted(number: float, what: str) -> str:
    """A number with its noun: 1 worker, 1,000,000 workers."""
    figure = f"{number:,.0f}" if float(number).is_integer() else f"{number:,.15g}"
    return f"{figure} {what}{'' if number == 1 else 's'}"


def read_run(path: Path) -> list[RunEvent]:
    """The events of a run, without a last line that a crash cut short."""
    lines = path.read_bytes().split(b"\n")
    return [_run_event(line) for line in lines[:-1] if line]


def read_legible(path: Path) -> tuple[list[RunEvent], int]:
    """The readable events of a run, and the number of damaged lines."""
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
        # JSON has no infinity: a diverged loss is written as null.
        event = msgspec.convert({**told, "test_loss": float("nan")}, RunEvent)
    return event
