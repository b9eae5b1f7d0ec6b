"""Nothing that was pushed is forgotten: counted + remainder + lost = pushed.

This holds if messages are lost or repeated, servers die with pushes in flight, segments move, or
two workers push the same slot. All nodes run in one thread, in a random order.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.errors import BadValues
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.worker import Worker
from shoal.store.client.filtering import ErrorFeedback
from shoal.store.client.task import Task
from shoal.tables import Filter, Table
from shoal.wire import messages as m
from shoal.wire.effects import Tick
from tests.support.one_thread_run import CalmWorld

SPAN = 60
CLIENTS = 2
LOSSY: list[list[Filter]] = [
    [shoal.Int8(), shoal.DeltaKeys()],
    [shoal.OneBit()],
    [shoal.Significant(0.7)],
    [shoal.TopK(share=0.3), shoal.Float16()],
    [shoal.Skip(0.5), shoal.OneBit(), shoal.DeltaKeys()],
]


class Harbour(CalmWorld):
    """A coordinator, servers and clients on a network that loses and repeats messages.

    Every segment has two copies.
    """

    def __init__(self, seed: int, spec: Table, lost: float, twice: float) -> None:
        super().__init__(seed)
        self.board(Coordinator(copies=2))
        for i in range(3):
            self.serve(f"server-{i}")
        self.clients = [Worker(f"client-{i}", "client", "token") for i in range(CLIENTS)]
        for one in self.clients:
            one.client.dispatcher.patient = True  # as workers of a run are
            self.board(one)
        self.until(lambda: all(one.joined.done and len(one.member.view.members) == 5 for one in self.clients))
        self.do(0, lambda client: client.create("t", spec))
        self.until(lambda: all("t" in one.client.session.layouts for one in self.clients))
        self.drop = lambda sender, to, message: self._is_ours(sender, to) and self.draw.random() < lost
        self.world.weather.repeat = twice

    def _is_ours(self, sender: str, to: str) -> bool:
        return "coordinator" not in (sender, to) and "client" in sender + to

    @property
    def repeated(self) -> int:
        return self.world.counts["network: repeated"]

    def start(self, which: int, call: Any) -> Task:
        task: Task = call(self.clients[which].client)
        self.feed(self.clients[which].name, Tick())
        return task

    def do(self, which: int, call: Any) -> Any:
        task = self.start(which, call)
        self.until(lambda: task.done)
        return task._outcome()

    def left(self) -> tuple[Any, float]:
        """The remainders of all clients, and the norm of what was lost."""
        total, lost = np.zeros(SPAN), 0.0
        for one in self.clients:
            for filtering in one.client.session.filters.values():
                assert filtering.feedback is not None
                lost += filtering.feedback.lost
                rest = filtering.feedback.take_all()
                total[rest.keys.astype(np.intp)] += rest.values[:, 0]
        return total, lost


def spec_of(dense: bool, named: list[Filter], apply: Any = None, max_delay: int | None = None) -> Table:
    more: dict[str, Any] = {"filters": named, "apply": apply or shoal.Each(), "max_delay": max_delay}
    return shoal.Dense(rows=SPAN, **more) if dense else shoal.Sparse(keys=SPAN, **more)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    named=st.sampled_from(LOSSY),
    dense=st.booleans(),
    faults=st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.0, 0.3), (0.1, 0.2)]),
    kill=st.booleans(),
)
def test_pushes_of_clients_are_conserved_whatever_happens_on_the_way(
    seed: int, named: list[Filter], dense: bool, faults: tuple[float, float], kill: bool
) -> None:
    harbour = Harbour(seed, spec_of(dense, named), *faults)
    draw, total = np.random.default_rng(seed), np.zeros(SPAN)
    under_way: deque[Task] = deque()
    for number in range(16):
        keys = np.unique(draw.integers(0, SPAN, draw.integers(1, 30)))
        rows = draw.normal(size=len(keys)).astype(np.float32)
        total[keys] += rows
        under_way.append(harbour.start(number % CLIENTS, lambda client, k=keys, r=rows: client.push("t", k, r)))
        for _ in range(draw.integers(0, 12)):
            harbour.turn()
        if kill and number == 8:
            harbour.kill(f"server-{draw.integers(0, 3)}")
    harbour.until(lambda: all(task.done for task in under_way))
    assert [task.error for task in under_way if task.error] == []
    counted = harbour.do(0, lambda client: client.pull("t", np.arange(SPAN), exact=True))
    left, lost = harbour.left()
    assert lost == 0
    assert np.allclose(counted + left, total, atol=1e-4)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    named=st.sampled_from(LOSSY),
    # No transport repeats a message that was sent once.
    faults=st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.2, 0.0)]),
    kill=st.booleans(),
    steps=st.booleans(),
)
def test_slots_that_two_workers_push_are_conserved_but_for_what_is_called_lost(
    seed: int, named: list[Filter], faults: tuple[float, float], kill: bool, steps: bool
) -> None:
    apply = shoal.Step(slots=2) if steps else shoal.Each()
    harbour = Harbour(seed, spec_of(True, named, apply, 4 if steps else None), *faults)
    draw, total = np.random.default_rng(seed), np.zeros(SPAN)
    under_way: deque[Task] = deque()
    for number in range(12):
        keys = np.unique(draw.integers(0, SPAN, draw.integers(1, 30)))
        rows = draw.normal(size=len(keys)).astype(np.float32)
        total[keys] += rows
        both = draw.random() < 0.4
        for which in (0, 1) if both else (number % CLIENTS,):
            push = lambda client, k=keys, r=rows, n=number: client.push("t", k, r, slot=(0, n))  # noqa: E731
            under_way.append(harbour.start(which, push))
        for _ in range(draw.integers(0, 12)):
            harbour.turn()
        if kill and number == 6:
            harbour.kill(f"server-{draw.integers(0, 3)}")
    harbour.until(lambda: all(task.done for task in under_way))
    assert [task.error for task in under_way if task.error] == []
    counted = harbour.do(0, lambda client: client.pull("t", np.arange(SPAN), exact=True))
    left, lost = harbour.left()
    assert np.linalg.norm(counted + left - total) <= 2 * lost + 1e-3
    if faults == (0.0, 0.0) and not kill:
        assert lost == 0  # nothing was resent, so the owner of each push is always known


def test_a_push_that_is_refused_for_good_gives_back_what_it_took() -> None:
    harbour = Harbour(1, spec_of(True, [shoal.Significant(10.0)]), 0.0, 0.0)
    harbour.do(0, lambda client: client.push("t", [1, 2], [3.0, 4.0]))
    client = harbour.clients[0].client
    assert client.session.remainder_norms() == (5.0, 0.0)
    harbour.drop = lambda sender, to, message: True
    task = harbour.start(0, lambda client: client.push("t", [1, 2], [20.0, 0.0]))
    assert client.session.remainder_norms()[0] < 5.0  # taken out: it is in flight
    request = next(iter(client.dispatcher.inflight.requests))
    to = client.dispatcher.inflight.requests[request].to
    client.handle(harbour.now, to, m.Refusal(request, "full", "no memory"), ())
    assert task.error is not None and client.session.remainder_norms() == (5.0, 0.0)


def test_what_a_life_left_is_gone_with_it() -> None:
    harbour = Harbour(1, spec_of(True, [shoal.Significant(10.0)]), 0.0, 0.0)
    harbour.do(0, lambda client: client.push("t", [1, 2], [3.0, 4.0]))
    harbour.clients[0].client.fenced()
    assert (
        harbour.clients[0].client.session.remainder_norms() == (0.0, 0.0)
        and harbour.clients[0].client.session.filter_bytes() == {}
    )


def test_a_value_that_sixteen_bits_cannot_hold_comes_in_parts_or_is_refused() -> None:
    added, assigned = (
        Harbour(1, shoal.Dense(rows=SPAN, update=update, filters=[shoal.Float16()]), 0.0, 0.0)
        for update in (shoal.Sum(), shoal.Assign())
    )
    added.do(0, lambda client: client.push("t", [1], [100_000.0]))
    assert added.do(0, lambda client: client.pull("t", [1], exact=True)) == [65_504.0]
    added.do(0, lambda client: client.push("t", [1], [0.0]))
    assert added.do(0, lambda client: client.pull("t", [1], exact=True)) == pytest.approx(100_000.0)
    with pytest.raises(BadValues, match="float16"):
        assigned.clients[0].client.push("t", [1], [100_000.0])


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, SPAN - 1), unique=True, max_size=20), st.integers(-64, 64), st.booleans()),
        max_size=30,
    )
)
@settings(max_examples=50, deadline=None)
def test_what_is_left_is_an_account(moves: list[tuple[list[int], int, bool]]) -> None:
    """After any puts and takes the norm is that of a plain array."""
    feedback, model = ErrorFeedback(spec_of(False, [])), np.zeros(SPAN)
    for listed, amount, takes in moves:
        keys = np.array(sorted(listed), np.uint64)
        if takes:
            found = feedback.take(keys)
            assert np.array_equal(found[:, 0], model[keys.astype(np.intp)])
            model[keys.astype(np.intp)] = 0
        else:
            feedback.put(keys, np.full((len(keys), 1), amount / 8, np.float32))
            model[keys.astype(np.intp)] += amount / 8
        assert feedback.norm == pytest.approx(np.linalg.norm(model), abs=1e-6)
    rest = feedback.take_all()
    assert np.array_equal(np.flatnonzero(model), rest.keys) and feedback.norm == 0
    assert np.array_equal(model[rest.keys.astype(np.intp)], rest.values[:, 0])


def test_harbours_lose_and_repeat_messages() -> None:
    """The faults that these laws are tested against do happen."""
    harbour, seen = Harbour(3, spec_of(True, LOSSY[0]), 0.3, 0.3), {"lost": 0}
    inner = harbour.drop

    def drop(sender: str, to: str, message: m.Message) -> bool:
        lost = inner(sender, to, message)
        seen["lost"] += lost
        return lost

    harbour.drop = drop
    for number in range(20):
        harbour.do(number % CLIENTS, lambda client: client.push("t", [1, 40], [1.0, 0.3]))
    assert (
        seen["lost"] > 3
        and harbour.repeated > 3
        and any(one.client.dispatcher.inflight.resent for one in harbour.clients)
    )
