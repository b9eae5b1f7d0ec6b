"""The coordinator's journal records of members and tables, and how they are replayed.

Every change is written whole, one record each: the last one is all that is needed. The
scheduler's records lie between them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.cluster.roster import MemberRecord, Roster
from shoal.nodes.scheduler_journal import JournalSnapshot, Line, replayed
from shoal.timing import DEFAULT, TimingSettings
from shoal.wire import messages as m
from shoal.wire.messages.groups import GroupLimits

_TAG = "roster"


class MembershipRecord(msgspec.Struct, frozen=True, array_like=True, tag=_TAG):
    """Members and tables as announced once this is on disk, and counters that never go back."""

    term: int
    number: int
    generation: int
    incarnations: int
    tables_made: int
    people: list[tuple[m.Member, str]] = []  # and their tokens
    tables: list[m.TablePlaces] = []
    retired: dict[str, list[str]] = {}
    lost: dict[str, str] = {}
    changes: list[tuple[str, int, int]] = []  # the last of tables: by whom, by which request, which
    released: dict[str, int] = {}
    groups: list[GroupLimits] = []
    timing: TimingSettings = DEFAULT


# What the roster and its record call by the same name.
_SAME = ("term", "number", "generation", "incarnations", "tables_made", "retired", "lost", "released", "timing")


def record_of(roster: Roster, changes: Iterable[tuple[str, int, int]] = ()) -> bytes:
    record = MembershipRecord(
        people=[(entry.member, entry.token) for entry in roster.members.values()],
        tables=list(roster.tables.values()),
        changes=list(changes),
        groups=list(roster.groups.values()),
        **{name: getattr(roster, name) for name in _SAME},
    )
    return msgspec.msgpack.encode(record)


def replay(roster: Roster, record: MembershipRecord) -> None:
    for name in _SAME:
        setattr(roster, name, getattr(record, name))
    roster.members = {member.name: MemberRecord(member, token, 0) for member, token in record.people}
    roster.tables = {placed.name: placed for placed in record.tables}
    roster.groups = {group.name: group for group in record.groups}


def split(records: Iterable[bytes]) -> tuple[MembershipRecord | None, list[Line]]:
    """Members and tables as they were last, and the scheduler's lines."""
    last: bytes | None = None
    lines: list[Line] = []
    for record in records:
        first = msgspec.msgpack.decode(record, type=list[msgspec.Raw])[0]  # its tag
        if bytes(first) == msgspec.msgpack.encode(_TAG):
            last = record
        else:
            lines.append(msgspec.msgpack.decode(record, type=Line))
    return None if last is None else msgspec.msgpack.decode(last, type=MembershipRecord), lines


def needed(records: Iterable[bytes]) -> list[bytes]:
    """The same journal, without records that are superseded."""
    last, lines = split(records)
    if len(lines) > 1:
        lines = [JournalSnapshot(replayed(lines))]
    return [msgspec.msgpack.encode(one) for one in (last, *lines) if one is not None]


def afresh(records: Iterable[bytes]) -> list[bytes]:
    """The records that a new cluster takes over from an ended one: counters and timing."""
    old, _ = split(records)
    if old is None:
        return []
    record = MembershipRecord(
        old.term, old.number, old.generation, old.incarnations, old.tables_made, timing=old.timing
    )
    return [msgspec.msgpack.encode(record)]
