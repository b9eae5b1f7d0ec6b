"""The status page of a cluster: members, owners of segments, versions, progress.

``page`` is for people, ``facts`` for programs, ``WatchedState`` for who looks on: the page with
speed, moves and news. A server has the same mark and colour on the whole page. Numbers of the
protocol (incarnation, view, term, generation, fence) are shown on request only. Owners of keys are
a band from the first to the last key, or a ring with the primaries outside and the copies inside:

    A A A B B B C C C     the primary of each stretch of keys
    B B B C C C A A A     the first of its copies; lower case: still being filled
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal import limits
from shoal.events import LEFT, Evaluated, RunEvent
from shoal.inspect.drain import held
from shoal.inspect.status import ClusterStatus, SegmentStatus
from shoal.schedule.stop_rules import ENDLESS
from shoal.security.address import parsed
from shoal.timing import others_than, seconds_of
from shoal.views import event_line, format
from shoal.views.board import BLANK, DOTS, bar, first_of, fit, lines_of
from shoal.views.event_line import MoveSummary, together
from shoal.views.lines import EventLines
from shoal.views.live_state import hot_servers
from shoal.wire.messages import Move
from shoal.wire.messages.groups import SCHEDULER

_ROLES = ("server", "worker", "evaluator", SCHEDULER, "client")
REFUSED = (
    *("strange key", "revoked key", "expired key", "no key", "impostor"),
    *("not theirs to say", "other version", "not a message", "full"),
)
SEGMENTS = 24  # shown one by one; more are summed up, unless all are requested


def facts(status: ClusterStatus) -> dict[str, Any]:
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
            msgspec.structs.asdict(one)
            | {"silence": round(one.silence / limits.SECOND, 3), "clock": status.clocks().get(one.name)}
            | {"parts": held(status.view, one.name)}
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
    letters = letters_of(status)
    segments = status.segments()
    parts: list[RenderableType] = [*_head(status, where, width, numbers)]
    if status.standing.course is not None:
        parts.append(_course(status, width))
    parts += [Text(""), _members(status, letters, numbers), *_lost(status)]
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
    return {what: number for what in REFUSED if (number := status.standing.counts.get(what, 0))}


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
    standing = status.standing
    parts = ["1 copy of each segment" if standing.copies == 1 else f"{standing.copies} copies of each segment"]
    saved = format.clean(standing.checkpoint).rstrip("/").rpartition("/")[2]
    parts.append(f"checkpoint {saved}" if saved else "no checkpoint yet")
    if standing.term > 1:
        parts.append(f"coordinator started {standing.term:,} times")
    if standing.generation:
        often = "once" if standing.generation == 1 else f"{standing.generation:,} times"
        parts.append(f"rolled back to a checkpoint {often}")
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


def _members(status: ClusterStatus, letters: dict[str, str], numbers: bool) -> Table:
    clocks, newest = status.clocks(), status.standing.view
    known = sorted(status.standing.members, key=lambda one: format.natural(one.name))
    members = sorted(known, key=lambda one: _ROLES.index(one.role) if one.role in _ROLES else len(_ROLES))
    hot = hot_servers({one.name: one.load for one in members if one.role == "server"})
    rows: list[dict[str, Text | str]] = []
    for one in members:
        clock, load = clocks.get(one.name), f"{one.load:,.0f}" if one.load else ""
        at = parsed(one.address).plain.removeprefix("tcp://") if one.address.startswith("tcp://") else ""
        behind = one.view < newest and not one.suspected
        more = ", suspected" * one.suspected + ", leaving" * one.leaving + ", has an older view" * behind
        style = "red" if one.suspected else "yellow" if more else ""
        rows.append({
            "": _mark(one.name, letters),
            "member": format.clean(one.name),
            "role": one.role,
            "incarnation": f"{one.incarnation:,}" if numbers else "",
            "heard": Text(f"{one.silence / limits.SECOND:.1f} s ago{more}", style),
            "view": Text(f"{one.view:,}", "yellow" if one.view < newest else "") if numbers else "",
            "steps": "" if clock is None else "parked" if clock < 0 else f"{clock:,}",
            "segments": f"{held(status.view, one.name):,}" if one.role == "server" else "",
            "keys/s": Text(f"{load} HOT", "bold red") if one.name in hot else load,
            "at": Text(format.clean(at)),
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


def _lost(status: ClusterStatus) -> list[Text]:
    """Lost nodes, a line each: reasons are too long for a column."""
    here, lines = {one.name for one in status.standing.members}, []
    for name, why in status.standing.lost.items():
        name, why = format.clean(name), format.clean(why)
        if why.startswith(LEFT):
            rest = why.removeprefix(LEFT).removeprefix(": ")
            line = Text(f"left: {name}{f': {rest}' if rest else ''}", "dim")
        else:
            line = Text(f"lost: {name}: {why}", "red")
        lines += [fitted(line)] if name not in here else []
    return lines


def _table_line(name: str, mine: list[SegmentStatus], copies: int) -> Text:
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
    kept = any(len(one.copies) > 1 for one in mine)
    copies = ["copies and how far they are behind"] if kept else []
    table = _plain_table("segment", "keys", *(["fence"] if numbers else []), "primary", "version", *copies)
    for one in mine:
        first = one.copies[0] if one.copies and one.copies[0].role == "primary" else None
        nobody = Text(f"nobody (last: {format.clean(one.last)})", "red")
        table.add_row(
            f"{one.number:,}",
            f"{one.start:,} .. {one.stop - 1:,}",
            *([f"{one.epoch:,}"] if numbers else []),
            nobody if first is None else _mark(first.server, letters, named=True),
            "-" if first is None or first.version is None else f"{first.version:,}",
            *([_copies(one, letters)] if kept else []),
        )
    for column in table.columns:  # numbers are never shortened
        if column.justify == "right":
            column.min_width = max(len(str(cell)) for cell in [column.header, *column.cells])
    return table


def _copies(one: SegmentStatus, letters: dict[str, str]) -> Text:
    parts = []
    for copy in one.copies:
        behind = (" =", "dim") if copy.lag == 0 else (" ?" if copy.lag is None else f" -{copy.lag:,}", "yellow")
        if copy.role == "filling":
            behind = (" (filling)", "yellow")
        if copy.role != "primary":
            parts.append(_mark(copy.server, letters, named=True).append(*behind))
    return Text("   ").join(parts)


def _mark(server: str, letters: dict[str, str], named: bool = False) -> Text:
    mark = Text(letters.get(server, ""), f"bold {style_of(server, letters)}")
    return Text.assemble(mark, f" {format.clean(server)}") if named else mark


def _plain_table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for head in heads:
        right = head in ("incarnation", "view", "steps", "segment", "fence", "version", "segments", "keys/s")
        table.add_column(head, justify="right" if right else "left", no_wrap=True)
    return table


# ---------------------------------------------------------------- owners of keys


COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
ROWS = 13  # of a ring
COLUMNS = 2 * ROWS
TURNS = 720  # points of a circle
BAND = 64  # columns of a band
NOBODY = "×"


def style_of(server: str, letters: dict[str, str]) -> str:
    order = list(letters)
    return COLOURS[order.index(server) % len(COLOURS)] if server in order else "white"


def band(segments: list[SegmentStatus], letters: dict[str, str], width: int) -> list[Text]:
    """A line for the primaries and one per copy; a cell is one segment or several."""
    room = min(width - 10, BAND)
    cells = min(len(segments), max(8, room))
    wide = max(1, room // cells)
    lines = []
    for level in range(max([1, *(len(one.copies) for one in segments)])):
        text = Text("primary  " if level == 0 else "copy     ", "dim")
        for cell in range(cells):
            copies = segments[cell * len(segments) // cells].copies
            if level >= len(copies):
                nobody, style = (NOBODY, "bold red") if level == 0 else ("·", "dim")
                text.append((nobody * max(1, wide - 1)).ljust(wide), style)
                continue
            letter = letters.get(copies[level].server, "?")
            said = letter.lower() if copies[level].role == "filling" else letter
            style = style_of(copies[level].server, letters) + (" reverse" if level == 0 else "")
            text.append(said.center(wide - 1) if wide > 1 else said, style).append(" " if wide > 1 else "", "")
        lines.append(text)
    return lines


def ring(segments: list[SegmentStatus], letters: dict[str, str], width: int) -> Text:
    """A circle of braille; beside it, each server's mark and share."""
    owners: dict[tuple[int, int], Counter[str]] = {}
    dots: Counter[tuple[int, int]] = Counter()
    for level in range(min(3, max([1, *(len(one.copies) for one in segments)]))):
        for turn in range(TURNS):
            copies = segments[turn * len(segments) // TURNS].copies
            # a replica being filled is dotted
            if level >= len(copies) or (copies[level].role == "filling" and turn % 12 < 6):
                continue
            for thick in (0.0, 1.0):
                x, y = _place(turn / TURNS, 2 * ROWS - 5 - 4.5 * level - thick)
                dots[y // 4, x // 2] |= DOTS[x % 2][y % 4]
                owners.setdefault((y // 4, x // 2), Counter())[copies[level].server] += 1
    marks, legend = _ring_marks(segments, letters), _ring_legend(segments, letters)
    text = Text()
    for row in range(ROWS):
        text.append("   ")
        for cell in ((row, column) for column in range(COLUMNS)):
            if cell in marks:
                text.append(*marks[cell])
            elif cell in owners:
                text.append(chr(BLANK + dots[cell]), style_of(owners[cell].most_common(1)[0][0], letters))
            else:
                text.append(" ")
        place = row - (ROWS - len(legend)) // 2
        if 0 <= place < len(legend) and width > COLUMNS + 24:
            text.append("    ").append_text(legend[place])
        text.append("\n" if row < ROWS - 1 else "")
    return text


def _place(turn: float, radius: float) -> tuple[int, int]:
    """The dot at this share of a turn, from the top, clockwise."""
    angle = 2 * math.pi * turn
    return int(COLUMNS + radius * math.sin(angle)), int(2 * ROWS - radius * math.cos(angle))


def _ring_marks(segments: list[SegmentStatus], letters: dict[str, str]) -> dict[tuple[int, int], tuple[str, str]]:
    """A mark outside the circle, in the middle of each long stretch of one owner."""
    marks, at = {}, 0
    for server, group in groupby(segments, key=lambda one: one.copies[0].server if one.copies else ""):
        length = len(list(group))
        middle, at = at + length / 2, at + length
        if length * 32 >= len(segments):
            x, y = _place(middle / len(segments), 2 * ROWS - 2.0)
            style = f"bold {style_of(server, letters)}" if server else "bold red"
            cell = min(ROWS - 1, max(0, y // 4)), min(COLUMNS - 1, max(0, x // 2))
            marks[cell] = (letters.get(server, NOBODY), style)
    return marks


def _ring_legend(segments: list[SegmentStatus], letters: dict[str, str]) -> list[Text]:
    owned = Counter(one.copies[0].server if one.copies else "" for one in segments)
    backed = Counter(copy.server for one in segments for copy in one.copies[1:])
    lines = []
    for server, letter in letters.items():
        share = f"{owned[server]:,} of {len(segments):,}"
        share += f", copies of {backed[server]:,}" if backed[server] else ""
        lines.append(Text.assemble((letter, f"bold {style_of(server, letters)}"), f" {server}  ", (share, "dim")))
    if owned[""]:
        lines.append(Text.assemble((NOBODY, "bold red"), (f" lost  {owned['']:,}", "red")))
    return lines


# ---------------------------------------------------------------- looking on


EVERY = 5.0  # seconds between two summaries
SHOWN = 8  # events on a page
MOVES = 6  # moves on a page
_VERBOSITY = 2  # joins, leaves and checkpoints


class WatchedState:
    """A watched cluster: a fold over its replies. Without a terminal, it makes lines."""

    def __init__(self, where: str, numbers: bool = False) -> None:
        self._where, self._numbers = where, numbers
        self._lines = EventLines(_VERBOSITY)
        self._last: deque[str] = deque(maxlen=SHOWN)
        self._status: ClusterStatus | None = None
        self._loss: float | None = None
        self._rate: float | None = None
        self._looked = 0.0
        self._told = -EVERY

    def take(self, now: float, status: ClusterStatus, events: Sequence[RunEvent]) -> list[str]:
        news = []
        for group in together(events):  # many moves make one line
            if isinstance(group, MoveSummary):
                news.append(f"{event_line.clock(group.until)}  {event_line.news(group)}")
                continue
            news += self._lines.take(group)
            self._loss = group.test_loss if isinstance(group, Evaluated) else self._loss
        course, before = status.standing.course, self._status
        if course is None:  # a store: all requests to the servers, and no events
            self._rate = sum(one.load for one in status.standing.members) or None
            news += [] if before is None else _came_and_went(before, status)
        elif before is not None and before.standing.course is not None and now > self._looked:
            rows = course.examples - before.standing.course.examples
            self._rate = max(0.0, rows / (now - self._looked))
        self._status, self._looked = status, now
        self._last.extend(news)
        if now - self._told >= EVERY:
            self._told = now
            return [*news, self.summary()]
        return news

    def summary(self) -> str:
        assert self._status is not None
        standing, said = self._status.standing, list[str]()
        if (course := standing.course) is not None:
            said.append(f"epoch {format.epochs(course.done / course.per_pass)}")
        for role in ("server", "worker"):
            here = [one for one in standing.members if one.role == role]
            leaving = sum(one.leaving for one in here)
            said.append(format.many(len(here), role) + (f" ({leaving} leaving)" if leaving else ""))
        if self._rate is not None:
            said.append(f"{self._rate:,.0f} rows/s")
        if self._loss is not None:
            said.append(f"test loss {self._loss:.4f}")
        if standing.moves:
            said.append(f"{format.many(len(standing.moves), 'segment')} on the way")
        return ", ".join(said)

    def page(self, width: int, height: int = 0) -> list[Text]:
        """A page of so many lines (0: any), the newest at the bottom; the rest is counted."""
        assert self._status is not None
        top = lines_of(page(self._status, self._where, width, brief=True, numbers=self._numbers), width)
        ways = [Text(f"  {line}", "yellow") for line in _ways(self._status.standing.moves)]
        ways = first_of(ways, max(1, height // 6) if height else MOVES, "ways")
        below = [Text(""), Text(self.summary(), "bold"), *ways]
        news = [Text(line, "dim") for line in list(self._last)]
        if height:
            room = max(1, height - 1 - len(below) - len(top))
            news = news[-max(room, 1 + height // 8) :]
            top = first_of(top, max(1, height - 1 - len(below) - len(news)), "lines")
        lines = [*top, *below, *news]
        return fit(lines, width + 1, height or len(lines) + 1, False)


def _came_and_went(before: ClusterStatus, after: ClusterStatus) -> list[str]:
    """Joins and leaves of a store, which has no events."""
    was, now = ({one.incarnation: one for one in status.standing.members} for status in (before, after))
    news = [f"{format.clean(one.name)} joined" for life, one in now.items() if life not in was]
    for life, one in was.items():
        if life not in now:
            why = format.clean(after.standing.lost.get(one.name, ""))
            news.append(f"{format.clean(one.name)} is gone{f': {why}' if why else ''}")
        elif now[life].leaving and not one.leaving:
            news.append(f"{format.clean(one.name)} is leaving")
    return news


def _ways(moves: Sequence[Move]) -> list[str]:
    ways: dict[tuple[str, str, str, str], list[Move]] = {}
    for one in moves:
        ways.setdefault((one.table, one.source, one.target, one.why), []).append(one)
    found = []
    for (table, source, target, why), those in ways.items():
        parts = f"segment {those[0].segment:,}" if len(those) == 1 else format.many(len(those), "segment")
        since = format.duration(max(one.since for one in those) / limits.SECOND)
        way = f"{format.clean(source)} -> {format.clean(target)}"
        found.append(f"{parts} of {format.clean(table)} on the way: {way} ({event_line.reason(why)}), for {since}")
    return found
