"""Many workers compute what one would (SEEDS S0-03, S1-12).

With ``apply=Step`` and ``combine="sum"``, the slots of a step give the weights that one process
with all the rows would get, up to rounding. They also give the same weights to the last bit for
any assignment of slots to workers, any transport and any number of servers: slots are added in
slot order, in double precision, and rounded once.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from operator import add
from typing import Any

import msgspec
import numpy as np
import pytest

import shoal
from shoal.tables import Step, Table, Update
from tests.support import PATIENCE

FEATURES, PER_ROW, ROWS_PER_SLOT = 300, 6, 8
SLOTS, SLOTS_PER_PASS = 4, 10  # steps of 4, 4 and 2 slots
STEPS = 20
STEP = {"sgd": 0.1, "adagrad": 0.2}


@dataclass(frozen=True)
class Slot:
    """The rows of one slot.

    ``columns[i, j]`` is the j-th feature of row i, and ``x[i, j]`` its value.
    """

    name: tuple[int, int]
    columns: np.ndarray
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Kind:
    """The properties of the table that vary."""

    sparse: bool
    update: str
    combine: str

    def __str__(self) -> str:
        return f"{'sparse' if self.sparse else 'dense'}-{self.update}-{self.combine}"

    @property
    def spec(self) -> Table:
        apply = Step(slots=SLOTS, combine=self.combine, slots_per_pass=SLOTS_PER_PASS)  # type: ignore[arg-type]
        update = Update(self.update, {"step": STEP[self.update]})
        if self.sparse:
            return shoal.Sparse(keys=FEATURES, update=update, apply=apply, max_delay=0)
        return shoal.Dense(rows=FEATURES, update=update, apply=apply, max_delay=0)


KINDS = [Kind(*kind) for kind in product((True, False), ("sgd", "adagrad"), ("sum", "mean"))]


@cache
def steps() -> list[list[Slot]]:
    """Return a small logistic regression, divided into steps of slots."""
    random_numbers = np.random.default_rng(7)
    truth = random_numbers.normal(size=FEATURES)
    apply = Step(slots=SLOTS, slots_per_pass=SLOTS_PER_PASS)
    dealt: list[list[Slot]] = [[] for _ in range(STEPS)]
    for of_pass, number in product(range(STEPS), range(SLOTS_PER_PASS)):
        if (step := apply.step_of((of_pass, number))) < STEPS:
            columns = np.argsort(random_numbers.random((ROWS_PER_SLOT, FEATURES)))[:, :PER_ROW]
            x = random_numbers.normal(size=columns.shape).astype(np.float32)
            y = (np.einsum("ij,ij->i", x, truth[columns]) > 0).astype(np.float32)
            dealt[step].append(Slot((of_pass, number), columns, x, y))
    assert [len(slots) for slots in dealt[:4]] == [4, 4, 2, 4]
    return dealt


def gradient(slot: Slot, weights: np.ndarray) -> np.ndarray:
    """Return the gradient of the logistic loss, summed over the slot's rows.

    It has a value for every feature.
    """
    margins = np.einsum("ij,ij->i", slot.x, weights[slot.columns], dtype=np.float64)
    errors = 1 / (1 + np.exp(-margins)) - slot.y
    total = np.zeros(FEATURES)
    np.add.at(total, slot.columns, errors[:, None] * slot.x)
    return total.astype(np.float32)


def updated(weights: np.ndarray, squares: np.ndarray, total: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Apply the update rule in numpy: compute in double, store in single precision."""
    w, g, step = weights.astype(np.float64), total.astype(np.float64), STEP[kind.update]
    if kind.update == "sgd":
        return (w - step * g).astype(np.float32), squares
    squares = squares.astype(np.float64) + g * g
    return (w - step * g / (np.sqrt(squares) + 1e-8)).astype(np.float32), squares.astype(np.float32)


def alone_with_all_rows(kind: Kind) -> np.ndarray:
    """Return the weights of one process, where each step is one gradient.

    The gradient is over all the rows of all slots of the step.
    """
    weights, squares = np.zeros(FEATURES, np.float32), np.zeros(FEATURES, np.float32)
    for slots in steps():
        rows = [np.concatenate([getattr(slot, part) for slot in slots]) for part in ("columns", "x", "y")]
        total = gradient(Slot((0, 0), *rows), weights)
        if kind.combine == "mean":
            total = (total / len(slots)).astype(np.float32)
        weights, squares = updated(weights, squares, total, kind)
    return weights


@cache
def slot_by_slot(kind: Kind) -> bytes:
    """Return the same in numpy, slot after slot: exactly the bits that the store promises."""
    weights, squares = np.zeros(FEATURES, np.float32), np.zeros(FEATURES, np.float32)
    for slots in steps():
        total = np.zeros(FEATURES)
        for slot in slots:
            total += gradient(slot, weights)
        if kind.combine == "mean":
            total /= len(slots)
        weights, squares = updated(weights, squares, total.astype(np.float32), kind)
    return weights.tobytes()


def work(kv: shoal.KV, table: str, kind: Kind, mine: list[Slot]) -> None:
    """Compute these slots, in this order.

    It does not wait for a push at once: the step may need a slot of another worker.
    """
    pushes = []
    for slot in mine:
        keys: Any = np.unique(slot.columns) if kind.sparse else slice(0, FEATURES)
        weights = np.zeros(FEATURES, np.float32)
        weights[keys] = kv.pull(table, keys, slot=slot.name).result(PATIENCE)
        pushes.append(kv.push(table, keys, gradient(slot, weights)[keys], slot=slot.name))
    kv.wait(pushes, PATIENCE)


def trained(clients: list[shoal.KV], table: str, kind: Kind, seed: int) -> np.ndarray:
    """Deal every slot to a random client, let all of them work, and return the weights."""
    deal = random.Random(seed)
    mine: list[list[Slot]] = [[] for _ in clients]
    for slots in steps():
        for slot in deal.sample(slots, len(slots)):
            mine[deal.randrange(len(clients))].append(slot)
    errors: list[BaseException] = []

    def run(kv: shoal.KV, slots: list[Slot]) -> None:
        try:
            work(kv, table, kind, slots)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in zip(clients, mine, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    assert errors == []
    return clients[0].pull(table, np.arange(FEATURES)).result(PATIENCE)


@pytest.fixture(
    scope="module", params=list(product(("threads", "ipc", "tcp"), (1, 2, 4))), ids=lambda p: f"{p[0]}-{p[1]}"
)
def clients(request: pytest.FixtureRequest) -> Iterator[list[shoal.KV]]:
    place, servers = request.param
    settings = {} if place == "threads" else {"processes": True, "transport": place}
    with shoal.local(servers=servers, **settings) as cluster:
        yield [cluster.client() for _ in range(5)]


@pytest.mark.variants(
    slow=["tcp-2-*", "ipc-1-*", "threads-4-*", "threads-1-*-mean", "ipc-2-*-mean", "threads-2-*-sum"],
    soak=["tcp-1-*", "tcp-4-*", "ipc-4-*"],
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_slots_give_the_same_bits_whoever_computes_them_and_wherever(clients: list[shoal.KV], kind: Kind) -> None:
    for count in (1, 2, 3, 5):
        clients[0].create(f"{kind} by {count}", kind.spec)
        weights = trained(clients[:count], f"{kind} by {count}", kind, seed=count)
        assert weights.tobytes() == slot_by_slot(kind)
        clients[0].drop(f"{kind} by {count}")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_slots_give_what_one_process_with_all_the_rows_would_get(kind: Kind) -> None:
    with shoal.local(servers=2) as cluster:
        clients = [cluster.client() for _ in range(3)]
        clients[0].create("w", kind.spec)
        weights = trained(clients, "w", kind, seed=1)
    alone = alone_with_all_rows(kind)
    assert np.abs(alone).max() > 0.1  # it did learn something
    assert np.abs(weights - alone).max() <= 1e-5 * np.abs(alone).max()


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[-1]], ids=str)
def test_sixteen_bits_are_the_same_bits_whoever_computes_them(kind: Kind) -> None:
    found: set[bytes] = set()
    for servers in (1, 2):
        with shoal.local(servers=servers) as cluster:
            clients = [cluster.client() for _ in range(3)]
            for count in (1, 3):
                clients[0].create(f"by {count}", msgspec.structs.replace(kind.spec, wire="bfloat16"))
                found.add(trained(clients[:count], f"by {count}", kind, seed=count).tobytes())
    assert len(found) == 1
    assert found != {slot_by_slot(kind)}  # the values did travel in fewer bits
    plain, short = (np.frombuffer(one, np.float32) for one in (slot_by_slot(kind), *found))
    assert np.abs(short - plain).max() < 0.05 * np.abs(plain).max()


def test_the_order_of_arrival_changes_nothing() -> None:
    values = [float(np.float32(1e17)), 1.0, -float(np.float32(1e17)), 3.0, 2.0]
    in_order = reduce(add, values)
    # The order of additions matters even in double precision.
    assert in_order != reduce(add, sorted(values))
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        for seed in range(6):
            kv.create("w", shoal.Dense(rows=1, apply=Step(slots=len(values)), max_delay=0))
            order = random.Random(seed).sample(range(len(values)), len(values))
            kv.wait([kv.push("w", [0], [values[number]], slot=(0, number)) for number in order], PATIENCE)
            assert kv.pull("w", [0]).result() == [in_order]
            kv.drop("w")


@pytest.mark.slow
def test_each_iteration_after_the_last_repeats_a_single_thread_and_overlapping_ones_do_not() -> None:
    """Tasks can follow each other (S1-12), and the price of overlap is stale weights."""
    kind = Kind(sparse=False, update="sgd", combine="sum")
    slots = [slots[0] for slots in steps()]
    weights, squares = np.zeros(FEATURES, np.float32), np.zeros(FEATURES, np.float32)
    for slot in slots:
        weights, squares = updated(weights, squares, gradient(slot, weights), kind)

    def run(overlap: int) -> np.ndarray:
        kv.create("w", shoal.Dense(rows=FEATURES, update=shoal.SGD(step=STEP["sgd"])))
        pushes: list[shoal.Task] = []
        for start in range(0, len(slots), overlap):
            at_once = slots[start : start + overlap]
            pulls = [kv.pull("w", slice(0, FEATURES), after=pushes[-1:]) for _ in at_once]
            for slot, pull in zip(at_once, pulls, strict=True):
                read = pull.result(PATIENCE)
                pushes.append(kv.push("w", slice(0, FEATURES), gradient(slot, read), of=pull, after=pushes[-1:]))
        kv.wait(pushes, PATIENCE)
        got = kv.pull("w", slice(0, FEATURES)).result(PATIENCE)
        staleness.append(kv.stats("w")["staleness"])
        kv.drop("w")
        return got

    staleness: list[list[int]] = []
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        assert run(overlap=1).tobytes() == weights.tobytes()
        assert run(overlap=2).tobytes() != weights.tobytes()
    assert staleness == [[len(slots)], [len(slots) // 2, len(slots) // 2]]
