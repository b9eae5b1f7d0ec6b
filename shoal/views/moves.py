"""Parts that changed hands, many moves in one line: what belongs together is one happening, told with who gave how many to whom.

A function of the events: moves of one reason belong together as long as each follows the one before within a few seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shoal.events import Handed
from shoal.views import format

GAP = 3.0  # seconds between two moves of one line
WAYS = 4  # from whom to whom, before it is said how many more there are

Event = TypeVar("Event")


@dataclass(slots=True)
class MoveSummary:
    """Moves of one table, for one reason, one soon after the other."""

    handed: list[Handed] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.handed[0].seconds

    @property
    def until(self) -> float:
        return self.handed[-1].seconds

    def takes(self, event: Handed) -> bool:
        last = self.handed[-1]
        return (event.table, event.why) == (last.table, last.why) and event.seconds - last.seconds <= GAP


def together(events: Iterable[Event]) -> list[Event | MoveSummary]:
    """The same in the same order, each happening where its first move was."""
    found: list[Event | MoveSummary] = []
    open_ones: dict[tuple[str, str], MoveSummary] = {}
    for event in events:
        if not isinstance(event, Handed):
            found.append(event)
            continue
        key = event.table, event.why
        if (one := open_ones.get(key)) is None or not one.takes(event):
            one = open_ones[key] = MoveSummary()
            found.append(one)
        one.handed.append(event)
    return found


def said(moved: MoveSummary) -> str:
    """As a sentence."""
    if len(moved.handed) == 1:
        return format.news(moved.handed[0])
    first = moved.handed[0]
    parts = format.many(sum(len(event.segments) for event in moved.handed), "part")
    stall = max(event.stall for event in moved.handed)
    what = f"{parts} of {format.clean(first.table)} moved ({format.reason(first.why)})"  # the end of it may be cut
    gain = next((f"; at first {format.clean(event.gain)}" for event in moved.handed if event.gain), "")
    return f"{what}: {ways(moved.handed)}; {format.paused(stall)} at most{gain}"


def ways(handed: Sequence[Handed]) -> str:
    """Who gave how many to whom, the most first."""
    counts: Counter[tuple[str, str]] = Counter()
    for event in handed:
        counts[event.source, event.target] += len(event.segments)
    if len(counts) == 1:
        ((source, target),) = counts
        return f"from {format.clean(source)} to {format.clean(target)}"
    told = [f"{many:,} from {format.clean(a)} to {format.clean(b)}" for (a, b), many in counts.most_common(WAYS)]
    more = f" and {len(counts) - WAYS:,} more ways" if len(counts) > WAYS else ""
    return ", ".join(told) + more
