"""All registered filters, ours and users' own, pass one suite, alone and together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shoal
from shoal import filters
from shoal.errors import BadValues
from shoal.filters import Bytes, Compressor, Mask, Quantizer, Sparsifier
from shoal.filters.chain import Chain, Flow
from shoal.keys import KeyRange, KeyValues, Values
from shoal.tables import Filter
from shoal.wire.messages.base import Array
from tests.support import PATIENCE

SPAN = 500


@filters.filter(least=0.5)
class loud(Sparsifier):
    """A user's own filter: keeps rows with a value of at least ``least``."""

    def choose(self, values: Values, seed: int) -> Mask:
        chosen: Mask = np.abs(values).max(axis=1) >= self.settings.least
        return chosen


@filters.filter(step=0.25)
class rounded(Quantizer):
    """A user's own filter: rounds to whole steps, in sixteen bits."""

    item = 2

    def shorten(self, values: Values, seed: int | None) -> tuple[Array, Bytes] | None:
        codes = np.rint(values / self.settings.step)
        return (codes.astype(np.int16), np.empty(0, np.uint8)) if np.abs(codes).max(initial=0) < 2**15 else None

    def size(self, rows: int, width: int) -> int:
        return 2 * rows * width

    def restore(self, packed: Bytes, rows: int, width: int) -> Values:
        return (packed.view(np.int16).reshape(rows, width) * self.settings.step).astype(np.float32)


@filters.filter()
class halved(Compressor):
    """A user's own filter: drops every second byte where all of these are zero."""

    def press(self, data: Bytes, item: int) -> Bytes | None:
        return None if len(data) % 2 or data[1::2].any() else np.ascontiguousarray(data[::2])

    def release(self, data: Bytes, item: int, most: int) -> Bytes:
        if 2 * len(data) > most:
            raise ValueError("too many")
        out = np.zeros(2 * len(data), np.uint8)
        out[::2] = data
        return out


OURS = [
    shoal.Significant(0.5), shoal.Skip(0.3), shoal.TopK(share=0.4), shoal.TopK(k=7), shoal.Float16(), shoal.BFloat16(),
    shoal.Int8(), shoal.OneBit(), shoal.DeltaKeys(), shoal.LZ4(), shoal.Zstd(3),
]  # fmt: skip
EACH: list[list[Filter]] = [[one] for one in [*OURS, loud(), rounded(step=0.125), halved()]]
TOGETHER = [
    # Listed in another order than they are applied in.
    [shoal.Zstd(), shoal.DeltaKeys(), shoal.Int8(), shoal.Significant(0.5)],
    [shoal.Significant(0.1), shoal.Skip(0.2), shoal.TopK(share=0.5), shoal.OneBit(), shoal.DeltaKeys(), shoal.LZ4()],
    [shoal.OneBit(), shoal.Float16(pushes=False), shoal.DeltaKeys(), shoal.Zstd(19)],
    [shoal.OneBit(chance=False), shoal.Int8(pushes=False, steps=31), shoal.LZ4()],
    [loud(), rounded(), shoal.DeltaKeys(), halved(), shoal.LZ4(), shoal.Zstd()],
]
ALL = [*EACH, *TOGETHER]
OF_ALL = pytest.mark.parametrize("named", ALL, ids=["+".join(one.name for one in named) for named in ALL])


@pytest.fixture(scope="module")
def kv() -> Iterator[shoal.KV]:
    with shoal.local(servers=2, copies=2, processes=False) as cluster:
        yield cluster.client()


def some_keys(rows: int, seed: int = 3) -> Any:
    return np.sort(np.random.default_rng(seed).choice(1 << 40, rows, replace=False)).astype(np.uint64)


def test_every_filter_that_is_registered_is_in_this_suite() -> None:
    # Other tests register filters of their own.
    assert {one[0].name for one in EACH} >= set(filters._own())


# ---------------------------------------------------------------- there and back


@pytest.mark.variants(slow=["0-1-*", "0-256-*", "1-3-*", "1-256-*", "130-1-*"])
@OF_ALL
@pytest.mark.parametrize("width", [1, 3, 256])
@pytest.mark.parametrize("rows", [0, 1, 130])
def test_what_a_push_says_is_the_same_where_it_arrives(named: list[Filter], rows: int, width: int) -> None:
    chain = Chain(named)
    keys, values = some_keys(rows), np.random.default_rng(1).normal(size=(rows, width)).astype(np.float32)
    codes, head = chain.shortened(values, 7)
    for cut in (slice(0, rows), slice(0, rows // 3), slice(rows // 3, rows)):  # whatever the split
        arrays = chain.pushed([keys[cut], codes[cut]], head, width)
        assert all(array.dtype == np.uint8 for array in arrays)
        found, restored = chain.opened_push(arrays, len(keys[cut]), -1, width, "float32")
        assert np.array_equal(found, keys[cut])
        assert restored.tobytes() == np.ascontiguousarray(chain.arrives(codes, head, width)[cut]).tobytes()


@OF_ALL
@pytest.mark.parametrize("width", [1, 3])
def test_the_same_push_makes_the_same_bytes(named: list[Filter], width: int) -> None:
    values = np.random.default_rng(2).normal(size=(90, width)).astype(np.float32)
    first, again = (Chain(named).shortened(values, 11) for _ in range(2))
    assert first[0].tobytes() == again[0].tobytes()
    masks = [Chain(named).chosen(values, 11, listed=True) for _ in range(2)]
    assert (masks[0] is None and masks[1] is None) or np.array_equal(*masks)  # type: ignore[arg-type]


@OF_ALL
@pytest.mark.parametrize("live", [False, True], ids=["rows", "live rows"])
def test_an_answer_keeps_a_zero_below_zero_and_is_close(named: list[Filter], live: bool) -> None:
    """-0 marks a weight that may be left out (block-proximal), so pulls must keep it."""
    chain = Chain(named)
    weights = np.random.default_rng(4).normal(size=(80, 2)).astype(np.float32)
    weights[::5] = -0.0
    weights[1::5] = 0.0
    arrays = chain.answer([some_keys(80), weights.reshape(-1)] if live else [weights.reshape(-1)], 2)
    found = chain.opened_answer(arrays, 80, 2, "float32")
    rows = found[-1].reshape(80, 2)
    assert np.array_equal(found[0], some_keys(80)) or not live
    if "rounded" not in [one.name for one in named]:  # that one has no -0
        assert np.signbit(rows[::5]).all() and not np.signbit(rows[1::5]).any()
    assert (rows[::5] == 0).all() and (rows[1::5] == 0).all()
    assert np.abs(rows - weights).max() <= 0.13


@OF_ALL
def test_bytes_into_and_out_of_each_filter_are_counted(named: list[Filter]) -> None:
    flow = Flow()
    chain = Chain(named, flow=flow)
    keys, values = np.arange(0, 4_000, 2, dtype=np.uint64), np.full((2_000, 1), 0.25, np.float32)
    mask = chain.chosen(values, 1, listed=True)
    codes, head = chain.shortened(values, 1)
    arrays = chain.pushed([keys, codes], head, 1)
    for name, (into, out, *_) in flow.by.items():
        assert 0 <= out <= into, name
    assert mask is None or np.count_nonzero(mask) < len(keys)
    assert sum(array.nbytes for array in arrays) <= keys.nbytes + values.nbytes + 2 + 8


# ---------------------------------------------------------------- invalid input


@OF_ALL
def test_what_was_cut_or_changed_on_its_way_is_refused_or_of_the_announced_size(named: list[Filter]) -> None:
    chain, draw = Chain(named), np.random.default_rng(9)
    values = draw.normal(size=(60, 2)).astype(np.float32)
    codes, head = chain.shortened(values, 1)
    whole = chain.pushed([some_keys(60), codes], head, 2)
    refused = 0
    for _ in range(300):
        arrays = [array.copy() for array in whole]
        which = arrays[draw.integers(0, 2)]
        which[draw.integers(0, len(which))] ^= np.uint8(1 << draw.integers(0, 8))
        if draw.random() < 0.5:
            arrays[1] = arrays[1][: draw.integers(0, len(arrays[1]))]
        try:
            keys, found = chain.opened_push(arrays, 60, -1, 2, "float32")
        except BadValues as error:
            assert str(error)
            refused += 1
        else:
            assert len(keys) <= 60 and found.shape == (120,) and found.dtype == np.float32
    assert refused > 50


@pytest.mark.parametrize("named", [[shoal.LZ4()], [shoal.Zstd()], [shoal.DeltaKeys(), shoal.Zstd()]])
def test_a_bomb_is_refused_before_it_goes_off(named: list[Filter]) -> None:
    """A few bytes would become millions, but the header's sizes bound every size."""
    big = Chain(named).pushed([np.zeros(0, np.uint64), np.zeros((1_000_000, 1), np.float32)], None, 1)
    assert big[1].nbytes < 30_000
    with pytest.raises(BadValues, match=r"undo|made"):
        Chain(named).opened_push(big, 10, -1, 1, "float32")


def test_differences_that_run_over_break_off_or_go_backwards_are_refused() -> None:
    chain = Chain([shoal.DeltaKeys()])
    for data in ([0x80], [0xFF] * 9 + [0x7F], [0x01] + [0xFF] * 9 + [0x01], [0x00] * 9, [0xFF] * 20):
        with pytest.raises(BadValues, match="delta"):
            chain.opened_pull([np.array([*data, 1], np.uint8)], 8)


def test_an_array_that_says_nothing_or_names_filters_that_are_not_there_is_refused() -> None:
    chain = Chain([shoal.DeltaKeys()])
    for data in ([], [0, 0x40], [0, 0x81]):
        with pytest.raises(BadValues):
            chain.opened_push([np.array(data, np.uint8)], 1, -1, 1, "float32")


# ---------------------------------------------------------------- in a cluster


@pytest.mark.variants(slow=["wide-*", "hashed-*"])
@OF_ALL
@pytest.mark.parametrize("kind", ["dense", "wide", "sparse", "hashed"])
def test_what_was_counted_and_what_is_left_make_what_was_pushed(kv: shoal.KV, named: list[Filter], kind: str) -> None:
    name = f"{kind} {'+'.join(one.name for one in named)}"
    width = 3 if kind == "wide" else 1
    spec: Any = {
        "dense": shoal.Dense(rows=SPAN, filters=named),
        "wide": shoal.Dense(rows=SPAN, width=3, filters=named),
        "sparse": shoal.Sparse(keys=SPAN, filters=named),
        "hashed": shoal.Sparse(hashed=True, filters=named),
    }[kind]
    kv.create(name, spec)
    draw, total = np.random.default_rng(6), np.zeros((SPAN, width))
    for number in range(8):
        keys = np.unique(draw.integers(0, SPAN, 120))
        rows = draw.normal(size=(len(keys), width)).astype(np.float32)
        total[keys] += rows
        match number % 4:
            case 0:
                kv.push(name, keys, rows).result(PATIENCE)
            case 1:
                assert len(kv.push_pull(name, keys[::-1], rows[::-1]).result(PATIENCE)) == len(keys)
            case 2 if kind in ("dense", "wide"):
                whole = draw.normal(size=(SPAN, width)).astype(np.float32)
                total += whole
                total[keys] -= rows
                assert len(kv.push_pull(name, slice(0, SPAN), whole).result(PATIENCE)) == SPAN
            case _:
                listed = shoal.KeyList(keys.astype(np.uint64))
                ahead = shoal.KeyList(keys[::2].astype(np.uint64)) if kind != "hashed" else None
                found = kv.push(name, listed, rows, ahead=ahead).result(PATIENCE)
                assert ahead is None or len(found) == len(ahead)
    counted = kv.pull(name, np.arange(SPAN), exact=True).result(PATIENCE).reshape(SPAN, width)
    left, lost = kv._client.session.remainder_norms()
    if not any(one.name in ("float16", "bfloat16", "int8", "one_bit", "rounded") for one in named):
        assert len(kv.pull(name, np.arange(SPAN)).result(PATIENCE)) == SPAN
    kv.flush(name).result(PATIENCE)
    whole = kv.pull(name, np.arange(SPAN), exact=True).result(PATIENCE).reshape(SPAN, width)
    assert np.allclose(whole, total, atol=2e-5)
    missing = np.linalg.norm(total - counted)
    assert missing <= left + 1e-4 and lost == 0
    kv.drop(name)


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_steps_add_up_what_came_through_filters_and_the_rest_goes_with_later_slots(kv: shoal.KV, combine: Any) -> None:
    name, slots = f"steps {combine}", 2
    apply = shoal.Step(slots=slots, combine=combine)
    kv.create(name, shoal.Dense(rows=40, apply=apply, max_delay=0, filters=[shoal.TopK(k=5), shoal.Int8()]))
    draw, total = np.random.default_rng(8), np.zeros(40)
    for step in range(12):
        rows = draw.normal(size=(slots, 40)).astype(np.float32)
        total += rows.sum(axis=0)
        kv.wait([kv.push(name, slice(0, 40), rows[i], slot=(0, slots * step + i)) for i in range(slots)], PATIENCE)
    for step in range(12, 60):  # nothing new is pushed: what was left out follows
        kv.wait([kv.push(name, slice(0, 40), np.zeros(40), slot=(0, slots * step + i)) for i in range(slots)], PATIENCE)
    found = kv.pull(name, slice(0, 40), exact=True).result(PATIENCE)
    assert np.allclose(found * (slots if combine == "mean" else 1), total, atol=0.02)
    with pytest.raises(shoal.ShoalError, match="updated in steps"):
        kv.flush(name)


def test_an_exact_pull_is_not_filtered_and_another_is(kv: shoal.KV) -> None:
    kv.create("weights", shoal.Dense(rows=100, filters=[shoal.Int8(pushes=False)]))
    values = np.linspace(-1, 1, 100, dtype=np.float32)
    kv.push("weights", slice(0, 100), values).result(PATIENCE)
    assert np.array_equal(kv.pull("weights", slice(0, 100), exact=True).result(PATIENCE), values)
    shorter = kv.pull("weights", slice(0, 100)).result(PATIENCE)
    assert 0 < np.abs(shorter - values).max() <= 0.5 / 127 + 1e-7
    facts = kv.stats("weights")["filters"]
    assert facts["int8"][2:] == [400, 108]  # from two servers, each with its scale
    assert facts["all"][2:] == [400, 110] and facts["left"] == 0


def test_ranges_and_rows_of_a_sparse_table_come_through_filters(kv: shoal.KV) -> None:
    kv.create("rows", shoal.Sparse(keys=10_000, filters=[shoal.Float16(pushes=False), shoal.DeltaKeys(), shoal.Zstd()]))
    keys = np.arange(0, 9_000, 3)
    kv.push("rows", keys, np.ones(len(keys))).result(PATIENCE)
    found = kv.pull("rows", KeyRange(0, 10_000)).result(PATIENCE)
    assert isinstance(found, KeyValues)
    assert np.array_equal(found.keys, keys) and (found.values == 1).all()
