"""A table was cut more finely: what was one segment is several now, side by side, and later ones have other numbers.

Both halves begin with the books of the whole (version, ledger, clocks): what was counted in it is counted in each. So nothing is lost
or counted twice by whoever sends again. Rows stay where they lie. ``Into`` says, by a segment's number before, which
ones it is now; a server that has missed a view may find several cuts at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec.structs import replace

from shoal.wire import messages as m

Into = Sequence[range]


def into(before: Sequence[int], after: Sequence[int]) -> Into:
    """From the starts of a table's segments before and after: every start of before is one still."""
    at = [bisect_left(after, start) for start in before]
    return [range(low, high) for low, high in pairwise([*at, len(after)])]


def those(segments: Iterable[int], to: Into) -> list[int]:
    """What these are now."""
    return [new for segment in segments for new in to[segment]]


def renamed(change: m.ReplicatedChange, to: Into) -> m.ReplicatedChange:
    """The same change, of the same keys."""
    return replace(change, only=those(change.only, to)) if change.only else change
