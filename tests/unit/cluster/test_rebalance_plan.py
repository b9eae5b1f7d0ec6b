"""Segments settle under noisy loads that servers report at different times.

The loads are smoothed as in ``store.load``, and the real rules move segments, minute after minute.
The cluster is a list of owners and a seeded random number; a move is done at once. The tests count
how much moves, and when.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shoal.cluster.rebalance_plan import LoadStats, WantedMove, plan
from shoal.limits import LOAD_ABOVE, LOAD_KEPT, LOAD_LEAST, SECOND
from shoal.tables import Dense
from shoal.timing import DEFAULT
from shoal.wire.messages import Heartbeat, Replicas, TablePlaces

PARTS = 16
MINUTE = 60 * SECOND


class Town:
    """Servers that report loads, and a coordinator that moves segments."""

    def __init__(self, servers: int, rates: Sequence[float], noise: float, seed: int) -> None:
        self.names = [f"server-{i}" for i in range(servers)]
        self.rates, self.noise, self.random = rates, noise, random.Random(seed)
        starts = [10 * i for i in range(len(rates))]
        places = [Replicas(1, [self.names[i % servers]], since=1) for i in range(len(rates))]
        self.table = TablePlaces(1, "w", Dense(rows=10 * len(rates)), starts, places)
        self.loads, self.view, self.now = LoadStats(), 1, 0
        self.known: dict[str, dict[int, float]] = {name: {} for name in self.names}
        self.fresh: dict[int, int] = {}  # reports until the new owner has measured a whole interval
        self.moved: list[tuple[int, WantedMove]] = []

    def join(self, name: str) -> None:
        self.names.append(name)
        self.known[name] = {}

    def live(self, length: int) -> None:
        for now in range(self.now, self.now + length, SECOND // 2):
            self.now = now
            for at, name in enumerate(self.names):
                if self.now % DEFAULT.load_every == at * SECOND // 2 % DEFAULT.load_every:
                    self._tell(name)
            self._look()
        self.now += SECOND // 2

    def _tell(self, name: str) -> None:
        """Reports noisy loads.

        The whole cluster is faster or slower from time to time, and a server does not get its
        share of the requests all the time.
        """
        known, luck = self.known[name], self.random.lognormvariate(0, self.noise)
        for segment, place in enumerate(self.table.places):
            if place.servers != [name]:
                known.pop(segment, None)
            elif self.fresh.get(segment, 0):
                self.fresh[segment] -= 1
            else:
                rate = self.rates[segment] * luck * self.random.lognormvariate(0, self.noise)
                known[segment] = LOAD_KEPT * known[segment] + (1 - LOAD_KEPT) * rate if segment in known else rate
        self.loads.record(name, Heartbeat(1, self.view, {}, {1: dict(known)}), {"w": self.table})

    def _look(self) -> None:
        rule = "load" if self.loads.should_relieve(self.now, self.names, {"w": self.table}) else "count"
        wanted = plan([self.table], self.names, loads=self.loads.rates, balance=rule)
        if not wanted:
            return
        self.view += 1
        places = list(self.table.places)
        for one in wanted:
            places[one.segment] = Replicas(self.view, [one.target], since=self.view)
            self.fresh[one.segment] = 2
            self.moved.append((self.now, one))
        self.table = replace(self.table, places=places)
        if any(one.why == "load" for one in wanted):
            self.loads.note_trade()

    @property
    def rounds(self) -> list[int]:
        """The times at which something was moved by load."""
        return list(dict.fromkeys(when for when, one in self.moved if one.why == "load"))

    def worst(self) -> float:
        """The load of the busiest server over the mean, by the true rates."""
        owned = dict.fromkeys(self.names, 0.0)
        for rate, place in zip(self.rates, self.table.places, strict=True):
            owned[place.servers[0]] += rate
        return max(owned.values()) / (sum(owned.values()) / len(owned))


@pytest.mark.parametrize("seed", range(4))
def test_an_even_load_moves_nothing(seed: int) -> None:
    town = Town(3, [1_000.0] * 3 * PARTS, 0.3, seed)
    town.live(10 * MINUTE)
    assert town.moved == []


@pytest.mark.parametrize("seed", range(4))
def test_what_is_nothing_but_chance_is_moved_a_few_times_and_then_no_more(seed: int) -> None:
    # With this noise a server often reports twice its real load.
    town = Town(3, [1_000.0] * 3 * PARTS, 0.6, seed)
    town.live(10 * MINUTE)
    assert len(town.rounds) <= 3
    assert all(later - one >= DEFAULT.load_every for one, later in pairwise(town.rounds))


def test_where_little_is_asked_nothing_is_moved_for_it() -> None:
    town = Town(2, [LOAD_LEAST / 2, *[1.0] * PARTS], 0.3, seed=1)
    town.live(5 * MINUTE)
    assert town.moved == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_server_that_joins_gets_its_share_and_then_all_stay_where_they_are(noise: float, seed: int) -> None:
    # The first keys get the most requests.
    town = Town(2, [20_000.0 / (1 + i) for i in range(2 * PARTS)], noise, seed)
    town.live(MINUTE)
    town.join("server-2")
    town.live(5 * MINUTE)
    assert town.worst() <= 1 + LOAD_ABOVE
    assert len([when for when in town.rounds if when >= MINUTE]) <= 2
    assert all(one.gain for _, one in town.moved)
    for when in town.rounds:
        # The two rules are never mixed in one plan.
        assert {one.why for at, one in town.moved if at == when} == {"load"}


def test_a_load_that_is_another_one_later_is_followed() -> None:
    town = Town(2, [20_000.0 / (1 + i) for i in range(2 * PARTS)], 0.1, seed=2)
    town.live(5 * MINUTE)
    before = len(town.moved)
    town.rates = [20_000.0 if place.servers == ["server-1"] else 100.0 for place in town.table.places]
    assert town.worst() > 1 + LOAD_ABOVE
    town.live(5 * MINUTE)
    assert len(town.moved) > before and town.worst() <= 1 + LOAD_ABOVE
