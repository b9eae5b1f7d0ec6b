"""A table agrees with its twin: a dictionary, updated in plain Python, weight by weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal import tables
from shoal.keys import KeyRange, Keys, Values
from shoal.store.table import kernels
from shoal.store.table.table import ServerTable
from shoal.store.table.update import (
    SGD,
    AdaGrad,
    Assign,
    Sum,
    rule_named,
)

SPAN = 400
LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
UPDATES = st.sampled_from([Sum(), Assign(), SGD(step=0.3), AdaGrad(), AdaGrad(step=0.7, epsilon=1e-3)])
INITIAL = st.sampled_from(
    [tables.Constant(), tables.Constant(-1.5), tables.Uniform(seed=3), tables.Normal(seed=2**64 - 1)]
)
FLOATS = st.floats(-1e4, 1e4, width=32, allow_subnormal=True)


@st.composite
def segments(draw: st.DrawFn) -> list[KeyRange]:
    """Sorted, disjoint ranges; some touch, some have gaps between them."""
    cuts = draw(st.lists(st.integers(0, SPAN), min_size=2, max_size=10, unique=True).map(sorted))
    kept = [KeyRange(low, high) for low, high in pairwise(cuts) if draw(st.booleans())]
    return kept or [KeyRange(cuts[0], cuts[-1])]


def bits(*, key: int, seed: int, column: int, draw: int) -> int:
    """The random bits of an initial value, computed with Python's integers."""
    whole, golden = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(n: int) -> int:
        n ^= n >> 33
        n = n * 0xFF51AFD7ED558CCD & whole
        n ^= n >> 33
        n = n * 0xC4CEB9FE1A85EC53 & whole
        return n ^ n >> 33

    start = mix(mix(key ^ mix(seed + golden & whole)) + column * golden & whole)
    return mix(start + draw * golden & whole)


def born(initial: tables.Initial, key: int, column: int) -> np.float32:
    match initial:
        case tables.Constant(value):
            return np.float32(value)
        case tables.Uniform(low, high, seed):
            part = (bits(key=key, seed=seed, column=column, draw=1) >> 11) / (1 << 53)
            return np.float32(low + (high - low) * part)
        case tables.Normal(deviation, seed):
            draws = [bits(key=key, seed=seed, column=column, draw=draw) for draw in range(1, 7)]
            r = (sum((n & 0xFFFFFFFF) + (n >> 32) for n in draws) / (1 << 32) - 6) / 4
            q = r * r
            odd = ((0.029899776 * q + 0.008355968) * q + 0.076542912) * q + 0.252408784
            return np.float32(deviation * ((odd * q + 3.949846138) * r))


@dataclass
class Twin:
    """A table in plain Python."""

    spec: tables.Table
    rows: dict[int, tuple[list[np.float32], list[tuple[np.float32, ...]]]] = field(default_factory=dict)

    def row(self, key: int) -> tuple[list[np.float32], list[tuple[np.float32, ...]]]:
        zero = (np.float32(0),) * rule_named(self.spec.update.name).state
        columns = range(self.spec.width)
        return self.rows.get(key) or ([born(self.spec.initial, key, c) for c in columns], [zero for _ in columns])

    def push(self, keys: list[int], values: Values) -> None:
        rule = rule_named(self.spec.update.name)
        chosen = rule.settings(self.spec.update.settings)
        for key, gradients in zip(keys, values, strict=True):
            weights, states = self.row(key)
            for c, gradient in enumerate(gradients):
                state = tuple(float(one) for one in states[c])
                weight, state = rule.function(float(weights[c]), state, float(gradient), chosen)
                weights[c], states[c] = np.float32(weight), tuple(np.float32(one) for one in state)
            self.rows[key] = weights, states

    def pull(self, keys: list[int], width: int) -> Values:
        return np.array([self.row(key)[0] for key in keys], np.float32).reshape(-1, width)


def gradients(data: st.DataObject, rows: int, width: int) -> Values:
    few = data.draw(st.lists(FLOATS, min_size=1, max_size=12))
    return np.resize(np.array(few, np.float32), (rows, width))


def some_keys(data: st.DataObject, held: Keys) -> Keys:
    return np.array(sorted(data.draw(st.sets(st.sampled_from(held.tolist()), max_size=40))), np.uint64)


def same(ours: Values, theirs: Values) -> bool:
    return ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@LAWS
@given(st.data(), segments(), UPDATES, INITIAL, st.integers(1, 5), st.booleans())
def test_a_table_is_its_twin_bit_by_bit(
    data: st.DataObject, parts: list[KeyRange], update: tables.Update, initial: tables.Initial, width: int, full: bool
) -> None:
    spec: tables.Table
    if full:
        spec = tables.Dense(rows=SPAN, width=width, update=update, initial=initial)
    else:
        spec = tables.Sparse(keys=SPAN, width=width, update=update, initial=initial)
    table, twin = ServerTable(spec, parts), Twin(spec)
    held = table.keys_held(KeyRange(0, SPAN))
    for _ in range(data.draw(st.integers(1, 5))):
        keys: Keys | KeyRange
        if full and data.draw(st.booleans()):
            low, high = sorted(data.draw(st.tuples(st.integers(0, SPAN), st.integers(0, SPAN))))
            keys = KeyRange(low, high)
            one_by_one = table.keys_held(keys)
        else:
            keys = one_by_one = some_keys(data, held)
        values = gradients(data, len(one_by_one), width)
        assert table.check(keys, values) is None
        table.push(keys, values)
        twin.push(one_by_one.tolist(), values)
        assert same(table.pull(keys), twin.pull(one_by_one.tolist(), width))
    assert same(table.pull(held), twin.pull(held.tolist(), width))
    if full:
        assert same(table.pull(KeyRange(0, SPAN)), twin.pull(held.tolist(), width))
    else:
        live, weights, resume = table.pull_live(KeyRange(0, SPAN), SPAN)
        assert live.tolist() == sorted(twin.rows)
        assert same(weights, twin.pull(sorted(twin.rows), width))
        assert resume is None
        assert table.rows == len(twin.rows)


@LAWS
@given(st.data(), INITIAL, st.integers(1, 5))
def test_a_weight_is_born_the_same_in_any_order_and_on_any_server(
    data: st.DataObject, initial: tables.Initial, width: int
) -> None:
    keys = sorted(data.draw(st.sets(st.integers(0, (1 << 63) - 1), min_size=1, max_size=20)))
    cut = data.draw(st.sampled_from(keys))
    spec = tables.Sparse(hashed=True, width=width, initial=initial)
    expected = Twin(spec).pull(keys, width)
    whole = ServerTable(spec, [KeyRange(0, 1 << 63)])
    assert same(whole.pull(np.array(keys, np.uint64)), expected)  # the rows do not exist yet
    for key in data.draw(st.permutations(keys)):
        whole.push(np.array([key], np.uint64), np.zeros((1, width), np.float32))
    assert same(whole.pull(np.array(keys, np.uint64)), expected + np.float32(0))
    servers = ServerTable(spec, [KeyRange(0, cut)]), ServerTable(spec, [KeyRange(cut, 1 << 63)])
    parts = [key for key in keys if key < cut], [key for key in keys if key >= cut]
    for server, part in zip(servers, parts, strict=True):
        server.push(np.array(part, np.uint64), np.zeros((len(part), width), np.float32))
    pulled = [server.pull(np.array(part, np.uint64)) for server, part in zip(servers, parts, strict=True)]
    assert same(np.concatenate(pulled), expected + np.float32(0))


@LAWS
@given(st.lists(st.integers(0, 60), max_size=12), segments())
def test_keys_are_fine_if_they_ascend_and_are_held(keys: list[int], parts: list[KeyRange]) -> None:
    listed = np.array(keys, np.uint64)
    table = ServerTable(tables.Sparse(keys=SPAN), parts)
    ascending = all(a < b for a, b in pairwise(keys))
    held = all(any(part.start <= key < part.stop for part in parts) for key in keys)
    assert (table.check_keys(listed) is None) == (ascending and held)


@LAWS
@given(st.data(), st.integers(0, 9_000))
def test_one_value_that_is_not_finite_is_found_wherever_it_is(data: st.DataObject, place: int) -> None:
    values = np.full(9_001, 3e38, np.float32)
    assert kernels.first_not_finite(values.view(np.uint32)) == -1
    values[place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    assert kernels.first_not_finite(values.view(np.uint32)) == place


@LAWS
@given(st.data())
def test_keys_whose_tags_and_places_collide_are_still_told_apart(data: st.DataObject) -> None:
    """Keys are computed backwards from their hashes, so that many have the same tag and line.

    So every slow path is taken.
    """
    inverse_1, inverse_2 = pow(0xFF51AFD7ED558CCD, -1, 1 << 64), pow(0xC4CEB9FE1A85EC53, -1, 1 << 64)

    def unmix(n: int) -> int:
        n ^= n >> 33
        n = n * inverse_2 & ((1 << 64) - 1)
        n ^= n >> 33
        n = n * inverse_1 & ((1 << 64) - 1)
        return n ^ n >> 33

    # Places repeat every 2048, the length of a new index. The keys differ in the middle bits of
    # the hash.
    hashes = [tag << 32 | middle << 11 | 2040 for tag in range(3) for middle in range(300)]
    keys = sorted(key for key in map(unmix, hashes) if key < 1 << 63)
    assert all(int(kernels.mix(np.uint64(key))) & 2047 == 2040 for key in keys[:5])
    table = ServerTable(tables.Sparse(hashed=True, update=Assign()), [KeyRange(0, 1 << 63)])
    first = sorted(data.draw(st.sets(st.sampled_from(keys), min_size=1)))
    for part in (first, keys):
        table.push(np.array(part, np.uint64), np.arange(len(part), dtype=np.float32))
    assert table.rows == len(keys)
    assert table.pull(np.array(keys, np.uint64)).reshape(-1).tolist() == list(range(len(keys)))
    absent = np.array([key + 1 for key in keys if key + 1 not in keys], np.uint64)
    assert not table.pull(absent).any()
