"""How one table's keys are split over its servers, by one view.

Segments are ranges, so one search splits a sorted key list, and each server's share is a few
slices of the caller's arrays. A share that is too large for one message is cut between segments,
never inside one: a segment gets its part of a push whole.
"""

from __future__ import annotations

import weakref

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.errors import BadValues, SegmentsLost
from shoal.keys import KeyRange, Keys
from shoal.limits import FRAME_BYTES
from shoal.wire.messages import EVERYWHERE, Array, TablePlaces

Cuts = npt.NDArray[np.int64]
_NONE: Cuts = np.empty(0, np.int64)


class ServerShare(msgspec.Struct, frozen=True):
    """The rows of one message to one server, for its segments ``first`` to ``last``."""

    server: str
    first: int
    last: int
    slices: list[tuple[int, int]]
    rows: int
    span: tuple[int, int]  # the keys of those segments, from and to

    def take(self, array: Array) -> Array:
        """This share of the caller's array, in key order; no copy if it is one slice."""
        if not self.slices:
            return array[:0]
        if len(self.slices) == 1:
            start, stop = self.slices[0]
            return array[start:stop]
        return np.concatenate([array[start:stop] for start, stop in self.slices])

    def put(self, values: Array, into: Array) -> None:
        at = 0
        for start, stop in self.slices:
            into[start:stop] = values[at : at + stop - start]
            at += stop - start


class LayoutChange(msgspec.Struct, frozen=True):
    same_starts: bool  # the segments have the same numbers
    unchanged: tuple[str, ...]  # servers that have held the same segments throughout
    successors: dict[str, tuple[str, ...]]  # by server: who holds now what it held then


class Layout:
    """One table as a client sees it."""

    def __init__(self, placed: TablePlaces) -> None:
        self.number, self.name, self.spec = placed.number, placed.name, placed.spec
        self.placed = placed
        self.starts: Keys = np.array(placed.starts, np.uint64)
        self._ends: Keys = np.array([*placed.starts[1:], placed.spec.span], np.uint64)
        owners = [place.servers[0] if place.servers else "" for place in placed.places]
        self.servers = list(dict.fromkeys(owner for owner in owners if owner))
        self.since = max((place.since for place in placed.places), default=0)  # of a primary
        self.is_lost = "" in owners
        self._segments_of = {server: np.flatnonzero([owner == server for owner in owners]) for server in self.servers}
        self._owners = owners
        # By earlier layout; weak, so that this keeps none alive.
        self._changes: weakref.WeakKeyDictionary[Layout, LayoutChange] = weakref.WeakKeyDictionary()

    def change_since(self, before: Layout) -> LayoutChange:
        """How this placement differs from an earlier one."""
        found = self._changes.get(before)
        if found is None:
            same = len(before.starts) == len(self.starts) and bool((before.starts == self.starts).all())
            unchanged = [
                server for server in self.servers if same and self._since_of(server) == before._since_of(server)
            ]
            successors = {}
            for server, segments in before._segments_of.items() if same else ():
                successors[server] = tuple(dict.fromkeys(self._owners[segment] for segment in segments.tolist()))
            found = self._changes[before] = LayoutChange(same, tuple(unchanged), successors)
        return found

    def _since_of(self, server: str) -> list[tuple[int, int]]:
        """Its segments, and since when it has been their primary."""
        return [(at, self.placed.places[at].since) for at in self._segments_of.get(server, _NONE).tolist()]

    def shares(self, keys: Keys | KeyRange, row_bytes: int, every_server: bool) -> list[ServerShare]:
        """Every server's share; with ``every_server`` also the empty ones."""
        self.check_not_lost()
        if len(self.servers) == 1 and (rows := len(keys)) * row_bytes <= FRAME_BYTES:
            share = ServerShare(self.servers[0], 0, EVERYWHERE, [(0, rows)] if rows else [], rows, (0, self.spec.span))
            return [share] if rows or every_server else []
        cuts = self._cuts(keys)
        shares: list[ServerShare] = []
        for server, segments in self._segments_of.items():
            begins, ends = cuts[segments], cuts[segments + 1]
            rows = int((ends - begins).sum())
            if rows == 0 and not every_server:
                continue
            if rows * row_bytes <= FRAME_BYTES:
                slices = _merged(begins, ends)
                shares.append(ServerShare(server, 0, EVERYWHERE, slices, rows, (0, self.spec.span)))
            else:
                shares += self._cut_up(server, segments, begins, ends, FRAME_BYTES // row_bytes)
        return shares

    def rows_of(self, share: ServerShare, keys: Keys | KeyRange) -> list[tuple[int, int]]:
        """The slices of these keys that belong to a share's segments."""
        cuts, segments = self._cuts(keys), self._segments_of[share.server]
        segments = segments[(segments >= share.first) & (segments < share.last)]
        return _merged(cuts[segments], cuts[segments + 1])

    def check_not_lost(self) -> None:
        if self.is_lost:
            raise SegmentsLost(self.name, self.placed.places[self._owners.index("")].last or "a server")

    def whole(self) -> list[ServerShare]:
        """One share for every server, without rows: for requests about a range of live keys."""
        return [ServerShare(server, 0, EVERYWHERE, [], 0, (0, self.spec.span)) for server in self.servers]

    def servers_holding(self, keys: KeyRange) -> list[str]:
        """The servers that hold keys of a range, in key order."""
        inside = (self.starts < np.uint64(keys.stop)) & (self._ends > np.uint64(keys.start))
        return [server for server in self.servers if inside[self._segments_of[server]].any()]

    def _cuts(self, keys: Keys | KeyRange) -> Cuts:
        """Where each segment's rows begin, and where the last one's end."""
        if isinstance(keys, KeyRange):
            clipped = np.clip(self.starts, np.uint64(keys.start), np.uint64(keys.stop)) - np.uint64(keys.start)
            return np.append(clipped.astype(np.int64), len(keys))
        return np.append(np.searchsorted(keys, self.starts), len(keys))

    def _cut_up(self, server: str, segments: Cuts, begins: Cuts, ends: Cuts, most: int) -> list[ServerShare]:
        """A share that is too large for one message, as several runs of this server's segments."""
        shares: list[ServerShare] = []
        at = 0
        while at < len(segments):
            upto = at + 1
            while upto < len(segments) and int((ends[at : upto + 1] - begins[at : upto + 1]).sum()) <= most:
                upto += 1
            rows = int((ends[at:upto] - begins[at:upto]).sum())
            if rows > most:
                raise BadValues(
                    f"{rows:,} rows for one segment of {self.name!r} are more than one message holds ({most:,}): "
                    f"push or pull fewer keys at a time"
                )
            first = 0 if at == 0 else int(segments[at])
            last = EVERYWHERE if upto == len(segments) else int(segments[upto])
            span = (int(self.starts[segments[at]]), int(self._ends[segments[upto - 1]]))
            shares.append(ServerShare(server, first, last, _merged(begins[at:upto], ends[at:upto]), rows, span))
            at = upto
        return shares


def _merged(begins: Cuts, ends: Cuts) -> list[tuple[int, int]]:
    some = ends > begins
    begins, ends = begins[some], ends[some]
    if not len(begins):
        return []
    new = np.append(True, begins[1:] != ends[:-1])
    old = np.append(new[1:], True)
    return list(zip(begins[new].tolist(), ends[old].tolist(), strict=True))
