"""Admission and eviction agree with a dictionary, and all replicas agree with each other.

This holds whatever happens to the servers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import tables
from shoal.keys import KeyRange
from shoal.limits import COORDINATOR
from shoal.store.server import primary
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.table_server import FromServer, TableServer
from shoal.store.table.table import ServerTable
from shoal.store.table.update import (
    FTRL,
    SGD,
    Assign,
    Momentum,
    Sum,
    rule_named,
)
from shoal.tables import Each, Sparse, Step
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

ANN, SPAN, SLOTS, PER_PASS = 9, 24, 2, 10
SERVERS = {"server-0": 1, "server-1": 2, "server-2": 3}
LAWS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PUSH = st.dictionaries(st.integers(0, SPAN - 1), st.sampled_from([-1.0, 0.0, -0.0, 1.0]), min_size=1, max_size=8)
UPDATES = st.sampled_from([Sum(), Assign(), SGD(step=1.0, l1=0.5), Momentum(step=1.0), FTRL(l1=1.5)])


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary, "EVICT_ROWS", 2)


@dataclass
class Town:
    """Servers with a table of three segments; the first of ``servers`` is primary of all."""

    spec: Sparse
    servers: Sequence[str]
    inline: int
    view: int = 1
    since: int = 1  # the view in which the primary last changed
    filling: str = ""
    requests: int = 0
    holdings: dict[str, TableServer] = field(default_factory=dict)
    post: deque[tuple[str, Send]] = field(default_factory=deque)
    answers: list[m.Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in SERVERS:
            table_server = self.holdings[name] = TableServer(name, SERVERS[name], self._placed(), self.inline)
            table_server.set_up(SERVERS, None)
            self.carry_out(name, table_server.apply_placement(0, self._placed(), SERVERS, 1))
            table_server.set_members({}, {ANN: "ann"})

    def _placed(self) -> m.TablePlaces:
        places = [m.Replicas(self.view, list(self.servers), filling=self.filling, since=self.since) for _ in range(3)]
        return m.TablePlaces(1, "w", self.spec, [0, 5, 16], places)

    def push(self, number: int, values: dict[int, float]) -> None:
        own = self.holdings[self.servers[0]].primary
        assert own is not None
        stream = number // PER_PASS if isinstance(self.spec.apply, Step) else -ANN
        self.requests += 1
        number = number % PER_PASS if isinstance(self.spec.apply, Step) else number
        facts: dict[str, Any] = {"request": self.requests, "table": 1, "view": self.view, "generation": 0}
        facts |= {"incarnation": ANN, "stream": stream, "number": number, "floor": 0, "step": 0, "entered": 0}
        push = m.Push(**facts, count=len(values), spell=0, first=0, last=m.EVERYWHERE)
        keys = np.array(sorted(values), np.uint64)
        rows = np.array([values[key] for key in sorted(values)], np.float32)
        self.carry_out(self.servers[0], own.push(0, "ann", push, (keys, rows)))

    def carry_out(self, sender: str, outcome: HandlerResult | list[Effect]) -> None:
        if isinstance(outcome, HandlerResult):
            works = deque(outcome.computations)
            while works:
                work = works.popleft()
                work.function()
                more = work.then(0)
                outcome.effects += more.effects
                works.extendleft(reversed(more.computations))
            outcome = outcome.effects
        for effect in outcome:
            assert isinstance(effect, Send)
            if effect.to == "ann":
                self.answers.append(effect.message)
            elif effect.to != COORDINATOR:
                self.post.append((sender, effect))
            elif isinstance(effect.message, m.BackfillComplete) and self.filling:
                self.become([*self.servers, self.filling])

    def deliver(self, most: int = 1 << 30) -> None:
        while self.post and most > 0:
            most -= 1
            sender, send = self.post.popleft()
            assert isinstance(send.message, FromServer)
            alive = (*self.servers, self.filling)
            if send.to in alive and sender in alive:
                outcome = self.holdings[send.to].handle(0, sender, send.message, tuple(send.arrays))
                self.carry_out(send.to, outcome)

    def become(self, servers: Sequence[str], filling: str = "") -> None:
        """The next view: these servers hold all segments, the first as primary; one is filling."""
        self.view += 1
        self.since = self.view if servers[0] != self.servers[0] else self.since
        self.servers, self.filling = servers, filling
        members = {name: SERVERS[name] for name in ("server-0", "server-1", "server-2") if name >= servers[0]}
        for name in members:
            self.carry_out(name, self.holdings[name].apply_placement(0, self._placed(), members, self.view))

    def lose_the_first(self) -> None:
        self.become(self.servers[1:])
        self.deliver()

    def digests(self) -> list[dict[int, str]]:
        return [
            self.holdings[name].status(m.TableStatusRequest(1, 1, self.view, digests=True)).digests
            for name in self.servers
        ]

    def own(self) -> Any:
        own = self.holdings[self.servers[0]].primary
        assert own is not None
        return own

    def values(self) -> list[float]:
        found: list[float] = self.own().table.pull(np.arange(SPAN, dtype=np.uint64)).reshape(-1).tolist()
        return found


@dataclass
class Twin:
    """The same table as a dictionary of (weight, state), and pushes of each key without a row."""

    spec: Sparse
    rows: dict[int, tuple[float, tuple[float, ...]]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    left_out: int = 0

    def take(self, values: dict[int, float]) -> None:
        rule = rule_named(self.spec.update.name)
        chosen = rule.settings(self.spec.update.settings)
        for key, value in values.items():
            if key not in self.rows:
                self.counts[key] = self.counts.get(key, 0) + 1
                if self.counts[key] < self.spec.admit:
                    self.left_out += 1
                    continue
            weight, state = self.rows.get(key, (0.0, (0.0,) * rule.state))
            weight, state = rule.function(weight, state, float(np.float32(value)), chosen)
            self.rows[key] = float(np.float32(weight)), tuple(float(np.float32(one)) for one in state)

    def sweep(self) -> None:
        self.rows = {key: row for key, row in self.rows.items() if row[0] != 0}

    def values(self) -> list[float]:
        return [self.rows.get(key, (0.0, ()))[0] for key in range(SPAN)]


@LAWS
@given(st.lists(PUSH, max_size=40), UPDATES, st.integers(0, 4), st.booleans(), st.sampled_from([1, 1 << 20]))
def test_steps_let_keys_in_and_go_as_a_dictionary_does(
    pushes: list[dict[int, float]], update: tables.Update, admit: int, evict: bool, inline: int
) -> None:
    """Evicted rows lose their state: at the end of a pass and at steps 1, 2, 4, 8, ..."""
    apply = Step(slots=SLOTS, slots_per_pass=PER_PASS)
    spec = Sparse(keys=SPAN, update=update, apply=apply, max_delay=0, admit=admit, evict=evict)
    town, twin = Town(spec, ["server-0"], inline), Twin(spec)
    for number, values in enumerate(pushes):
        town.push(number, values)
    for step in range(len(pushes) // SLOTS):
        total: dict[int, float] = {}
        for values in pushes[step * SLOTS : (step + 1) * SLOTS]:
            for key, value in values.items():
                total[key] = total.get(key, 0.0) + value
        twin.take(total)
        if evict and ((step + 1) & step == 0 or (step + 1) % (PER_PASS // SLOTS) == 0):
            twin.sweep()
    assert town.values() == twin.values() and town.own().table.rows == len(twin.rows)
    assert town.own().facts()[0].get("not admitted", 0) == twin.left_out


@LAWS
@given(st.lists(PUSH, max_size=40), st.integers(0, 4), st.booleans(), st.sampled_from([1, 1 << 20]))
def test_pushes_let_keys_in_as_a_dictionary_does_and_no_row_of_weight_is_let_go(
    pushes: list[dict[int, float]], admit: int, evict: bool, inline: int
) -> None:
    spec = Sparse(keys=SPAN, apply=Each(), admit=admit, evict=evict)
    town, twin, most = Town(spec, ["server-0"], inline), Twin(spec), 0
    for number, values in enumerate(pushes):
        town.push(number, values)
        twin.take(values)
        rows = town.own().table.rows
        twin.rows = {key: row for key, row in twin.rows.items() if row[0] != 0 or _has_row(town, key)}
        assert town.values() == twin.values() and rows == len(twin.rows)
        most = max(most, rows)
    if not evict:
        assert town.own().table.rows == most and town.own().table.layout == 0
    assert town.own().facts()[0].get("not admitted", 0) == twin.left_out


def _has_row(town: Town, key: int) -> bool:
    return key in town.own().table.pull_live(KeyRange(key, key + 1), 1)[0]


@LAWS
@given(
    st.lists(st.tuples(PUSH, st.sampled_from([0, 0, 0, 0, 1, 30])), min_size=1, max_size=60),
    UPDATES,
    st.sampled_from([Each(), Step(slots=SLOTS, slots_per_pass=PER_PASS)]),
    st.integers(0, 3),
    st.sampled_from([1, 1 << 20]),
    st.integers(0, 40),
    st.integers(-1, 30),
)
def test_copies_agree_whoever_dies_and_whoever_is_filled(
    pushes: list[tuple[dict[int, float], int]],
    update: tables.Update,
    apply: Each | Step,
    admit: int,
    inline: int,
    dies: int,
    filled: int,
) -> None:
    """Resent pushes are counted once after the primary dies at some push.

    Messages between servers are late, and a third replica is being filled or there from the start.
    """
    spec = Sparse(keys=SPAN, update=update, apply=apply, max_delay=0 if apply != Each() else None)
    servers = list(SERVERS)[: 3 if filled < 0 else 2]
    town = Town(tables.checked(_with(spec, admit)), servers, inline)  # type: ignore[arg-type]
    for number, (values, delivered) in enumerate(pushes):
        town.push(number, values)
        town.deliver(delivered)
        if number == filled:
            town.become(town.servers, filling="server-2")
        if number == dies:
            town.lose_the_first()
            for earlier, (again, _) in enumerate(pushes[: number + 1]):
                town.push(earlier, again)
    town.deliver()
    first, *others = town.digests()
    assert len(first) == 3 and all(other == first for other in others)
    if update == Sum() and admit < 2:
        total = np.zeros(SPAN)
        for values, _ in pushes[: len(pushes) // SLOTS * SLOTS] if apply != Each() else pushes:
            for key, value in values.items():
                total[key] += value
        assert town.values() == total.tolist()


def _with(spec: Sparse, admit: int) -> Sparse:
    return Sparse(
        keys=spec.keys, update=spec.update, apply=spec.apply, max_delay=spec.max_delay, admit=admit, evict=True
    )


@LAWS
@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([0.0, -0.0, 1.0])), max_size=200),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from([1, 2, 5]),
)
def test_only_rows_of_the_named_segments_whose_weights_are_all_zero_go(
    rows: list[tuple[int, float]], wanted: list[bool], width: int
) -> None:
    segments = [KeyRange(0, 20), KeyRange(20, 35), KeyRange(40, 61)]
    table = ServerTable(Sparse(keys=61, width=width, update=Assign(), evict=True), segments)
    twin: dict[int, list[float]] = {}
    for at, (key, value) in enumerate(rows):
        if not 35 <= key < 40:
            weights = [0.0] * width
            weights[at % width] = value
            table.push(np.array([key], np.uint64), np.array([weights], np.float32))
            twin[key] = weights
    gone = {
        key
        for key, w in twin.items()
        for seg, on in zip(segments, wanted, strict=True)
        if on and seg.start <= key < seg.stop and not any(w)
    }
    before = table.layout
    assert table.evict(np.array(wanted)) == len(gone)
    assert table.rows == len(twin) - len(gone) and (table.layout > before) == bool(gone)
    for key in twin:
        expected = [0.0] * width if key in gone else twin[key]
        assert table.pull(np.array([key], np.uint64)).reshape(-1).tolist() == expected
    # Evicted rows can be created again.
    table.push(np.arange(35, dtype=np.uint64), np.ones((35, width), np.float32))
    assert (table.pull(np.arange(35, dtype=np.uint64)) == 1).all()
