"""The coordinator's journal records of members and tables, and how they are replayed.

Every change is written whole, one record each: the last one is all that is needed. Records of the
dealing lie between them, and are its own matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shoal.cluster.roster import MemberRecord, Roster
from shoal.nodes.scheduler_journal import JournalSnapshot, Line, folded
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
    changes: list[
        tuple[str, int, int]
    ] = []  # of tables, by whom and by which request, and of which table: the last ones
    released: dict[str, int] = {}
    groups: list[GroupLimits] = []
    timing: TimingSettings = DEFAULT


def record_of(roster: Roster, changes: Iterable[tuple[str, int, int]] = ()) -> bytes:
    kept = MembershipRecord(
        roster.term,
        roster.number,
        roster.generation,
        roster.incarnations,
        roster.tables_made,
        [(person.member, person.token) for person in roster.people.values()],
        list(roster.tables.values()),
        roster.retired,
        roster.lost,
        list(changes),
        roster.released,
        list(roster.groups.values()),
        roster.timing,
    )
    return msgspec.msgpack.encode(kept)


def replay(roster: Roster, record: bytes) -> MembershipRecord:
    kept = msgspec.msgpack.decode(record, type=MembershipRecord)
    roster.term, roster.number, roster.generation = kept.term, kept.number, kept.generation
    roster.incarnations, roster.tables_made = kept.incarnations, kept.tables_made
    roster.people = {member.name: MemberRecord(member, token, 0) for member, token in kept.people}
    roster.tables = {placed.name: placed for placed in kept.tables}
    roster.retired, roster.lost, roster.released = kept.retired, kept.lost, kept.released
    roster.groups = {group.name: group for group in kept.groups}
    roster.timing = kept.timing
    return kept


def split(records: Sequence[bytes]) -> tuple[bytes | None, list[bytes]]:
    """The last record of the roster, and all that are none."""
    last: bytes | None = None
    others: list[bytes] = []
    for record in records:
        if _is_roster(record):
            last = record
        else:
            others.append(record)
    return last, others


def needed(records: Sequence[bytes]) -> list[bytes]:
    """The same journal, without what nobody needs any more."""
    last, others = split(records)
    if len(others) > 1:
        lines = [msgspec.msgpack.decode(record, type=Line) for record in others]
        others = [msgspec.msgpack.encode(JournalSnapshot(folded(lines)))]
    return others if last is None else [last, *others]


def afresh(records: Sequence[bytes]) -> list[bytes]:
    """What a new cluster takes over from one that has ended: the counters and the timing."""
    last, _ = split(records)
    if last is None:
        return []
    old = msgspec.msgpack.decode(last, type=MembershipRecord)
    kept = MembershipRecord(old.term, old.number, old.generation, old.incarnations, old.tables_made, timing=old.timing)
    return [msgspec.msgpack.encode(kept)]


def members_and_tables(records: Sequence[bytes]) -> MembershipRecord | None:
    last, _ = split(records)
    return None if last is None else msgspec.msgpack.decode(last, type=MembershipRecord)


def _is_roster(record: bytes) -> bool:
    """By its first element, which is its tag."""
    found = msgspec.msgpack.decode(record, type=list[msgspec.Raw])
    return bool(found) and bytes(found[0]) == msgspec.msgpack.encode(_TAG)
