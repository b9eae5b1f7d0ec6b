"""What happened, in typed records: the one history format that the simulator, tests on real processes and soaks share.

A call is begun once and ends once: ``ok``, ``failed`` (surely not counted) or ``unknown`` (may be counted or not). A pull of
the counting model (see ``simulation.workload``) brings back what it contained, so that every promise becomes arithmetic on
these records. Times are nanoseconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec


class Record(msgspec.Struct, frozen=True, tag=str.lower, forbid_unknown_fields=True):
    """Base of all records."""

    time: int


class Begin(Record, frozen=True):
    """A client made a call."""

    call: int
    client: str
    incarnation: int
    kind: Literal["push", "pull"]
    number: int = -1  # a push: the slot, or the client's own count
    clock: int = -1  # a pull: when its weights will be used
    step: int = 0  # a push: the worker's step that it ends
    enter: bool = False


class End(Record, frozen=True):
    """A call came back. ``seen`` is what a pull contained: per segment, a bit for each slot, or a count for each client."""

    call: int
    outcome: Literal["ok", "failed", "unknown"]
    error: str = ""
    seen: list[list[int]] = []


class Note(Record, frozen=True):
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
