"""The load of each segment, as its owner reported it last.

What is known of a segment stays when it changes hands, until its new owner has watched it for a
while: so nothing is moved twice for what was true before. Loads decide who holds what and nothing
else, and are in no journal: after a restart they are reported again.

The reports of servers differ in age by seconds, and are noisy. So a hot server is relieved only if
it was the hottest for some reports, all of them after the last move: by then the new owners have
reported, too. After every trade that takes twice as long (up to ``LOAD_PATIENCE``), until the set
of servers changes: trades by chance end soon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from shoal import limits
from shoal.cluster.rebalance import hottest
from shoal.timing import DEFAULT
from shoal.wire.messages import Heartbeat, TablePlaces


@dataclass(slots=True)
class LoadStats:
    """Rows a second, by table's number and segment."""

    rates: dict[int, dict[int, float]] = field(default_factory=dict)
    halves: dict[int, dict[int, int]] = field(default_factory=dict)  # keys that halve a load
    _hot: str | None = None
    _since: int = 0  # when it became the hottest, or who has what changed
    _known: tuple[object, ...] = ()  # who is here, and who has what
    _patience: int = 0  # tellings; 0: the least

    def heard(self, server: str, beat: Heartbeat, tables: Mapping[str, TablePlaces]) -> None:
        """What a server told of its own segments; by a view that knew them by these numbers."""
        if not beat.loads:
            return
        for table in tables.values():
            told, halves = beat.loads.get(table.number, {}), beat.halves.get(table.number, {})
            rates, cuts = self.rates.setdefault(table.number, {}), self.halves.setdefault(table.number, {})
            for segment, rate in told.items():
                place = table.places[segment] if 0 <= segment < len(table.places) else None
                if place is None or place.servers[:1] != [server] or place.since > beat.view:
                    continue  # it was another's, or another segment, when that was measured
                if 0 <= rate < inf:
                    rates[segment] = rate
                    cuts.pop(segment, None)
                    if segment in halves:
                        cuts[segment] = halves[segment]

    def is_time(
        self, now: int, servers: Sequence[str], tables: Mapping[str, TablePlaces], every: int = DEFAULT.load_every
    ) -> bool:
        """Whether a server has been hot for so long that it is no chance."""
        asked = self.by_server(tables)
        hot = hottest({name: asked.get(name, 0.0) for name in servers})
        here = sorted(servers)
        owners = [(table.number, [place.servers[:1] for place in table.places]) for table in tables.values()]
        if self._known[:1] != (here,):
            self._patience = 0
        if self._known != (here, owners) or hot != self._hot:
            self._known, self._hot, self._since = (here, owners), hot, now
        return hot is not None and now - self._since >= max(self._patience, limits.LOAD_STEADY) * every

    def traded(self) -> None:
        """Something was done about it: if that was not enough, or too much, be slower next time."""
        self._patience = min(limits.LOAD_PATIENCE, 2 * max(self._patience, limits.LOAD_STEADY))

    def keep(self, tables: Mapping[str, TablePlaces]) -> None:
        numbers = {table.number for table in tables.values()}
        for known in (self.rates, self.halves):
            for number in [number for number in known if number not in numbers]:
                del known[number]

    def was_split(self, table: int, segment: int) -> None:
        """A segment was split: later ones are renumbered, and each half gets half its load."""
        rates = self.rates.get(table, {})
        self.rates[table] = {number + (number > segment): rate for number, rate in rates.items()}
        if segment in rates:
            self.rates[table][segment] = self.rates[table][segment + 1] = rates[segment] / 2
        self.halves.pop(table, None)

    def by_server(self, tables: Mapping[str, TablePlaces]) -> dict[str, float]:
        """All that is asked of those who own anything."""
        found: dict[str, float] = {}
        for table in tables.values():
            rates = self.rates.get(table.number, {})
            for segment, place in enumerate(table.places):
                for owner in place.servers[:1]:
                    found[owner] = found.get(owner, 0.0) + rates.get(segment, 0.0)
        return found
