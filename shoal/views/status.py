"""The status page of a cluster: members, owners of segments, versions, progress.

``page`` is for people, ``facts`` for programs. A server has the same mark and colour on the whole
page. No line is longer than the terminal is wide. Numbers of the protocol (incarnation, view, term,
generation, fence) are shown on request only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from shoal import limits
from shoal.events import LEFT
from shoal.inspect.status import ClusterStatus, ReplicaStatus, SegmentStatus
from shoal.schedule.stop_rules import ENDLESS
from shoal.security.address import parsed
from shoal.timing import others_than, seconds_of
from shoal.views import format
from shoal.views.board import bar
from shoal.views.live_state import hot_servers
from shoal.views.ring import band, ring, style_of
from shoal.wire.messages import MemberStatus
from shoal.wire.messages.groups import SCHEDULER

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_ROLES = ("server", "worker", "evaluator", SCHEDULER, "client")
REFUSED = (
    "strange key",
    "revoked key",
    "expired key",
    "no key",
    "impostor",
    "not theirs to say",
    "other version",
    "not a message",
    "full",
)
SEGMENTS = 24  # shown one by one; more are summed up, unless all are requested


def facts(status: ClusterStatus) -> dict[str, Any]:
    """The status as plain data."""
    standing = status.standing
    course = standing.course
    return {
        "term": standing.term,
        "view": standing.view,
        "generation": standing.generation,
        "copies": standing.copies,
        "timing": seconds_of(standing.timing),
        "checkpoint": standing.checkpoint or None,
        "members": [
            {
                "name": one.name,
                "role": one.role,
                "incarnation": one.incarnation,
                "view": one.view,
                "silence": round(one.silence / limits.SECOND, 3),
                "suspected": one.suspected,
                "clock": status.clocks().get(one.name),
                "address": one.address,
                "leaving": one.leaving,
                "load": one.load,
                "parts": parts_of(status, one.name),
            }
            for one in standing.members
        ],
        "moves": [msgspec.structs.asdict(one) for one in standing.moves],
        "lost": standing.lost,
        "refused": refused_of(status),
        "silent": status.silent,
        "segments": [msgspec.to_builtins(one) for one in status.segments()],
        "run": None if course is None else msgspec.structs.asdict(course),
    }


def page(
    status: ClusterStatus,
    where: str,
    width: int,
    *,
    show_ring: bool = False,
    everything: bool = False,
    brief: bool = False,
    numbers: bool = False,
) -> RenderableType:
    """The page; ``brief``: without a line per segment; ``numbers``: with the protocol's."""
    from rich.console import Group
    from rich.text import Text

    letters = letters_of(status)
    segments = status.segments()
    parts: list[RenderableType] = [*_head(status, where, width, numbers)]
    if status.standing.course is not None:
        parts.append(_course(status, width))
    parts += [Text(""), _members(status, letters, numbers), *_gone(status)]
    for name in dict.fromkeys(one.table for one in segments):
        mine = [one for one in segments if one.table == name]
        parts += [Text(""), fitted(_table_line(name, mine, status.standing.copies))]
        if show_ring:
            parts.append(ring(mine, letters, width))
        parts += [Text.assemble("  ", line) for line in band(mine, letters, width - 4)]
        if everything or (len(segments) <= SEGMENTS and not brief):
            parts.append(_segments(mine, letters, numbers))
    if not segments:
        parts += [Text(""), Text("no tables yet", "dim")]
    if len(segments) > SEGMENTS and not everything and not brief:
        parts.append(fitted(Text(f"  {len(segments):,} segments: --segments shows them one by one", "dim")))
    parts += [fitted(Text(f"{format.clean(name)} does not answer", "red")) for name in status.silent]
    if refused := refused_of(status):
        said = ", ".join(f"{number:,} by {what}" for what, number in refused.items())
        parts += [Text(""), Text(f"callers and messages that were refused: {said}", "yellow")]
    return Group(*parts)


def refused_of(status: ClusterStatus) -> dict[str, int]:
    """Refused connections of the coordinator by reason."""
    return {what: number for what in REFUSED if (number := status.standing.counts.get(what, 0))}


def parts_of(status: ClusterStatus, server: str) -> int:
    """The segments of a server, as primary or backup."""
    return sum(server in place.servers for table in status.view.tables for place in table.places)


def letters_of(status: ClusterStatus) -> dict[str, str]:
    """A mark (A, B, ...) for every server, past ones included."""
    names = {one.name for one in status.standing.members if one.role == "server"}
    names |= {copy.server for one in status.segments() for copy in one.copies}
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return {name: alphabet[i % len(alphabet)] for i, name in enumerate(sorted(names, key=format.natural))}


def fitted(line: Text) -> Text:
    """The text on one line, shortened if needed."""
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _head(status: ClusterStatus, where: str, width: int, numbers: bool) -> list[Text]:
    """The head of the page, in one or two lines."""
    from rich.text import Text

    standing = status.standing
    parts = ["1 copy of each segment" if standing.copies == 1 else f"{standing.copies} copies of each segment"]
    saved = format.clean(standing.checkpoint).rstrip("/").rpartition("/")[2]
    parts.append(f"checkpoint {saved}" if saved else "no checkpoint yet")
    if standing.term > 1:
        parts.append(f"coordinator started {standing.term:,} times")
    if standing.generation:
        parts.append(
            f"went back to a checkpoint {'once' if standing.generation == 1 else f'{standing.generation:,} times'}"
        )
    if other := others_than(standing.timing):
        parts.append(f"timing {other}")
    if numbers:
        parts += [f"term {standing.term:,}", f"view {standing.view:,}", f"generation {standing.generation:,}"]
    name, said = Text(format.clean(parsed(where).plain), "bold"), Text(" · ".join(parts), "dim")
    if name.cell_len + 2 + said.cell_len <= width:
        return [Text.assemble(name, "  ", said)]
    return [fitted(name), fitted(said)]


def _course(status: ClusterStatus, width: int) -> Text:
    course = status.standing.course
    assert course is not None
    said = f"epoch {format.epochs(course.done / course.per_pass)}"
    if course.limit < ENDLESS:
        said += f" of {format.epochs(course.limit / course.per_pass)}"
    said += f"   {course.steps:,} steps   {format.duration(course.seconds)}"
    if course.over:
        said += f"   {format.clean(course.over)}"
    share = None if course.limit >= ENDLESS else course.done / max(1, course.limit)
    return bar(share, said, min(width, 120) - 1)


def _order(role: str) -> int:
    """Its position; unknown ones come last."""
    return _ROLES.index(role) if role in _ROLES else len(_ROLES)


def _members(status: ClusterStatus, letters: dict[str, str], numbers: bool) -> Table:
    clocks, newest = status.clocks(), status.standing.view
    members = sorted(status.standing.members, key=lambda one: (_order(one.role), format.natural(one.name)))
    hot = hot_servers({one.name: one.load for one in members if one.role == "server"})
    rows: list[dict[str, Text | str]] = []
    for one in members:
        clock = clocks.get(one.name)
        rows.append({
            "": _letter(one.name, letters),
            "member": format.clean(one.name),
            "role": one.role,
            "incarnation": f"{one.incarnation:,}" if numbers else "",
            "heard": _heard(one, newest),
            "view": _styled(f"{one.view:,}", "yellow" if one.view < newest else "") if numbers else "",
            "steps": "" if clock is None else "parked" if clock < 0 else f"{clock:,}",
            "segments": f"{parts_of(status, one.name):,}" if one.role == "server" else "",
            "keys/s": _styled(f"{one.load:,.0f} HOT", "bold red") if one.name in hot else f"{one.load:,.0f}" if one.load else "",
            "at": _styled(_place(one.address), ""),
        })  # fmt: skip
    heads = [head for head in (rows[0] if rows else {}) if head == "" or any(row[head] for row in rows)]
    table = _plain_table(*heads)
    for row in rows:
        table.add_row(*(row[head] for head in heads))
    for head, column in zip(heads, table.columns, strict=True):
        # Where space is short these take two lines: users type names and ports again, so
        # nothing of them is cut.
        column.no_wrap, column.overflow = head not in ("heard", "at"), "fold"
        if column.no_wrap:
            column.min_width = max(len(head), *(len(str(row[head])) for row in rows))
    return table


def _heard(one: MemberStatus, newest: int) -> Text:
    silence = f"{one.silence / limits.SECOND:.1f} s ago"
    more = [", suspected"] * one.suspected + [", leaving"] * one.leaving
    if one.view < newest and not one.suspected:
        more.append(", not told the newest yet")
    return _styled(silence + "".join(more), "red" if one.suspected else "yellow" if more else "")


def _gone(status: ClusterStatus) -> list[RenderableType]:
    """Lost nodes, a line each: reasons are too long for a column."""
    here = {one.name for one in status.standing.members}
    lost = {name: why for name, why in status.standing.lost.items() if name not in here}
    return [fitted(_went(format.clean(name), format.clean(why))) for name, why in lost.items()]


def _went(name: str, why: str) -> Text:
    if not why.startswith(LEFT):
        return _styled(f"lost: {name}: {why}", "red")
    rest = why.removeprefix(LEFT).removeprefix(": ")
    return _styled(f"left: {name}{f': {rest}' if rest else ''}", "dim")


def _place(address: str) -> str:
    """Host and port; empty for local sockets."""
    return format.clean(parsed(address).plain.removeprefix("tcp://")) if address.startswith("tcp://") else ""


def _table_line(name: str, mine: list[SegmentStatus], copies: int) -> Text:
    from rich.text import Text

    versions = [copy.version for one in mine for copy in one.copies[:1] if copy.version is not None]
    whole = sum(sum(copy.role != "filling" for copy in one.copies) >= copies for one in mine)
    said = [format.many(len(mine), "segment")]
    if versions:
        low, high = min(versions), max(versions)
        said.append(f"version {low:,}" if low == high else f"versions {low:,} to {high:,}")
    text = Text.assemble((f"table {format.clean(name)}", "bold"), ("  " + ", ".join(said), ""))
    if whole == len(mine):
        return text.append(f", all with {copies} of {copies} copies" if copies > 1 else "", "green")
    lost = sum(not one.copies for one in mine)
    text.append(f", {whole:,} of {len(mine):,} with all their copies", "yellow")
    return text.append(f", {lost:,} LOST", "bold red") if lost else text


def _segments(mine: list[SegmentStatus], letters: dict[str, str], numbers: bool) -> Table:
    epoch = ["fence"] if numbers else []
    kept = any(len(one.copies) > 1 for one in mine)
    copies = ["copies and how far they are behind"] if kept else []
    table = _plain_table("segment", "keys", *epoch, "primary", "version", *copies)
    for one in mine:
        first = one.copies[0] if one.copies and one.copies[0].role == "primary" else None
        version = "-" if first is None or first.version is None else f"{first.version:,}"
        table.add_row(
            f"{one.number:,}",
            f"{one.start:,} .. {one.stop - 1:,}",
            *([f"{one.epoch:,}"] if numbers else []),
            _holder(first, letters)
            if first is not None
            else _styled(f"nobody (last: {format.clean(one.last)})", "red"),
            version,
            *([_others(one, letters)] if kept else []),
        )
    for column in table.columns:  # numbers are never shortened
        if column.justify == "right":
            column.min_width = max(len(str(cell)) for cell in [column.header, *column.cells])
    return table


def _others(one: SegmentStatus, letters: dict[str, str]) -> Text:
    from rich.text import Text

    text = Text()
    for copy in one.copies:
        if copy.role == "primary":
            continue
        text.append("   " if text else "").append_text(_holder(copy, letters))
        if copy.role == "filling":
            text.append(" (filling)", "yellow")
        elif copy.lag is None:
            text.append(" ?", "yellow")
        else:
            text.append(f" -{copy.lag:,}" if copy.lag else " =", "yellow" if copy.lag else "dim")
    return text


def _holder(copy: ReplicaStatus, letters: dict[str, str]) -> Text:
    return _letter(copy.server, letters).append(f" {format.clean(copy.server)}", "")


def _letter(server: str, letters: dict[str, str]) -> Text:
    return _styled(letters.get(server, ""), f"bold {style_of(server, letters)}")


def _styled(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style)


def _plain_table(*heads: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        right = head in ("incarnation", "view", "steps", "segment", "fence", "version", "segments", "keys/s")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    return table
