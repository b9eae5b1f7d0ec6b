"""What copies promise: one owner of a segment at a time (I7); all copies alike when everything has come to rest (I8), and none too many (I12).

``OwnershipChecker`` reads off every acknowledgement by which epoch it was given. A server that was deposed may still tell of a push that all
copies had recorded before; what it may never do is acknowledge one that the owner after it does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from shoal import limits
from shoal.simulation.checker import Violation
from shoal.simulation.cluster import SimulatedCluster
from shoal.store.server.segment_state import SegmentState
from shoal.tables import Step
from shoal.wire import messages as m
from shoal.wire.messages.base import tag_of

EMPTY = m.Counts(0)
_ROOM = 8_000  # bytes beyond the bound: of the last push, and of what is neither a push nor says who came or went


class OwnershipChecker:
    """The log of who acknowledged what, by which epoch; and the rare things that happen on the way."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self.violations: list[Violation] = []
        self._pushes: dict[int, m.Push] = {}  # by request
        self._first_view: dict[tuple[int, int], int] = {}  # by which a push was first split
        self._highest: dict[tuple[int, int], tuple[int, str]] = {}  # by table and first key: the epoch, and whose
        watch = self._world.watch
        watch(m.Push, self._push)
        watch(m.Counted, self._counted)
        watch(m.Levels, self._levels)
        watch(m.Adopt, self._levels)
        watch(m.Fill, self._fill)
        watch(m.Append, self._append)
        watch(m.Appended, self._appended)

    def _append(self, sender: str, to: str, append: m.Append) -> None:
        """I12: what waits for a copy is bounded, whatever becomes of the copy."""
        server = self._cluster.servers.get(sender)
        holding = server.tables.get(append.table) if server is not None else None
        link = holding.log.links.get(to) if holding is not None else None
        if holding is None or link is None:
            return
        # Who comes and goes is not put off. It is said once, and once more with every segment that opens.
        comings = [parcel for parcel in link.queue if parcel.change.kind in ("enter", "park")]
        waits = link.waits - sum(parcel.size for parcel in comings)
        if waits > limits.COPIES_HELD + _ROOM:
            self._too_much(f"{waits:,} bytes of changes wait at {sender} for {to}")
        said = Counter((one.change.kind, one.change.incarnation, one.change.spell) for one in comings)
        if said and max(said.values()) > 1 + holding.counts.get("promoted", 0):
            self._too_much(f"{sender} has to tell {to} {max(said.values())} times what one worker did once")

    def _appended(self, sender: str, to: str, appended: m.Appended) -> None:
        server = self._cluster.servers.get(sender)
        holding = server.tables.get(appended.table) if server is not None else None
        for (primary, _), follow in holding.follows.items() if holding is not None else ():
            if follow.waits > limits.COPIES_HELD + 2 * _ROOM:
                self._too_much(f"{follow.waits:,} bytes of changes of {primary} wait at {sender} for their segments")

    def _too_much(self, what: str) -> None:
        if not any(one.rule == "I12 bounded" for one in self.violations):
            self.violations.append(Violation("I12 bounded", what))

    def _push(self, sender: str, to: str, push: m.Push) -> None:
        self._pushes[push.request] = push
        self._first_view.setdefault((push.stream, push.number), push.view)

    def _levels(self, sender: str, to: str, message: m.Levels | m.Adopt) -> None:
        if message.changes:
            self._world.counts[f"rare: {tag_of(type(message))} with changes"] += 1

    def _fill(self, sender: str, to: str, message: m.Fill) -> None:
        if message.books is not None and message.books.ledger:
            self._world.counts["rare: filled with what was counted"] += 1

    def _counted(self, sender: str, to: str, answer: m.Counted) -> None:
        push = self._pushes.get(answer.request)
        server = self._cluster.servers.get(sender)
        if push is None or server is None or sender in self._world.twins or push.table not in server.tables:
            return
        placed = server.tables[push.table].placed
        places = placed.places
        for segment in range(push.first, min(push.last + 1, len(places))):
            place = places[segment]
            if place.servers[:1] != [sender] or place.since > push.view:  # it was asked for what it had then
                continue
            if answer.new:
                self._acknowledged(push, placed.starts[segment], place.epoch, sender)
            elif self._first_view[push.stream, push.number] < place.since:
                self._world.counts["rare: duplicate reached the new primary"] += 1

    def _acknowledged(self, push: m.Push, start: int, epoch: int, server: str) -> None:
        """By its first key a segment is known, whatever its number is by now."""
        highest, owner = self._highest.get((push.table, start), (0, ""))
        if epoch > highest:
            self._highest[push.table, start] = (epoch, server)
        elif owner == server:
            return
        elif epoch == highest:
            what = f"{server} and {owner} have both acknowledged for the segment from key {start} in epoch {epoch}"
            self.violations.append(Violation("I7 one owner", what))
        elif (found := self._cluster.part_from(owner, push.table, start)) is not None:
            part, segment = found
            self._world.counts["rare: told by a deposed server"] += 1
            if push.stream < 0 and -push.stream not in self._cluster.incarnations():
                return  # its client is gone, and with it what is known of its pushes
            if not _has(part, segment, push):
                what = (
                    f"{server} acknowledged push ({push.stream}, {push.number}) for segment {segment} by epoch {epoch}, "
                    f"{owner} had it by epoch {highest} and has not counted it"
                )
                self.violations.append(Violation("I7 one owner", what))


def _has(part: SegmentState, segment: int, push: m.Push) -> bool:
    books, apply = part.books(segment), part.spec.apply
    if isinstance(apply, Step) and push.stream >= 0:
        return books.version > apply.step_of((push.stream, push.number))
    counted = books.ledger.get(push.stream)
    return counted is not None and (push.number < counted.mark or push.number in counted.ahead)


def differences(cluster: SimulatedCluster) -> Iterator[Violation]:
    """I8: every member of a set has the same rows, versions, ledgers and clocks."""
    live = set(cluster.incarnations())
    for table in cluster.tables():
        for segment, place in enumerate(table.places):
            parts: dict[str, SegmentState] = {}
            for name in place.servers:
                part = cluster.part(name, table.number, segment)
                if part is None:
                    yield Violation(
                        "I8 copies agree", f"{name} has nothing of segment {segment}, whose copy it should be"
                    )
                else:
                    parts[name] = part
            if len({part.digest(segment) for part in parts.values()}) > 1 and (told := _told(parts, segment, live)):
                yield Violation("I8 copies agree", f"segment {segment}: {told}")


def settled(cluster: SimulatedCluster) -> bool:
    """Every server has the newest view, and no change is on its way to a copy, or being made: if all goes well, that is soon so."""
    for server in cluster.servers.values():
        logs = [holding.log for holding in server.tables.values()]
        if server.computing or any(log.entries or any(link.queue for link in log.links.values()) for log in logs):
            return False
    return cluster.all_know()


def left_behind(cluster: SimulatedCluster) -> Iterator[Violation]:
    """I12: nobody keeps a segment that is not its own to hold, or changes for somebody who has no part in it."""
    placed = {table.number: table.places for table in cluster.tables()}
    for name, server in cluster.servers.items():
        for number, holding in server.tables.items():
            places = placed.get(number, [])
            if holding.placed.places != places:
                continue  # the last view is still on its way to it
            parts = [holding.own, *(follow.part for follow in holding.follows.values())]
            kept = [segment for part in parts if part is not None for segment in part.segments]
            extra = [segment for segment in kept if name not in places[segment].servers]
            if extra or len(set(kept)) < len(kept):
                what = f"{name} keeps segments {extra or sorted(kept)} of table {number}"
                yield Violation("I12 bounded", f"{what}, which others hold" if extra else f"{what}, some of them twice")
            if holding.log.entries or any(link.queue for link in holding.log.links.values()):
                waits = {link.name: len(link.queue) for link in holding.log.links.values()}
                yield Violation("I12 bounded", f"{name} still has changes of table {number} to send: {waits}")
            for link in holding.log.links:
                if not any(place.servers[:1] == [name] and link in place.servers for place in places):
                    yield Violation("I12 bounded", f"{name} still sends to {link}, which holds nothing of its own")


def _told(parts: dict[str, SegmentState], segment: int, live: set[int]) -> str:
    """What differs between copies, in words. Who is gone may be forgotten here and not yet there."""
    images = {name: part.image(segment) for name, part in parts.items()}
    aspects: dict[str, Any] = {
        "rows": lambda image: image.rows.tobytes(),
        "names": lambda image: None if image.names is None else image.names.tolist(),
        "version": lambda image: image.books.version,
        "ledger": lambda image: {s: n for s, n in image.books.ledger.items() if n != EMPTY and (s >= 0 or -s in live)},
        "clocks": lambda image: {who: one for who, one in image.books.clocks.items() if who in live},
    }
    found = []
    for aspect, of in aspects.items():
        values = {name: of(image) for name, image in images.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            shown = {name: "..." if isinstance(value, bytes) else value for name, value in values.items()}
            found.append(f"{aspect} differ: " + ", ".join(f"{name} has {value}" for name, value in shown.items()))
    return "; ".join(found)
