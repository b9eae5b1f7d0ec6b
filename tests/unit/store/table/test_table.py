"""A table checks pushes and reads ranges, and its rows grow within their memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from shoal import tables
from shoal.errors import BadKeys, BadValues, Invalid
from shoal.keys import KeyRange, Keys, Values
from shoal.store.table import arena
from shoal.store.table.table import ServerTable
from shoal.store.table.update import (
    SGD,
    AdaGrad,
    Assign,
    Sum,
)

EVERYTHING = KeyRange(0, 1 << 63)


def listed(*keys: int) -> Keys:
    return np.array(keys, np.uint64)


def column(*values: float) -> Values:
    return np.array(values, np.float32).reshape(-1, 1)


def sparse(**settings: Any) -> ServerTable:
    return ServerTable(tables.Sparse(hashed=True, **settings), [EVERYTHING])


def dense(rows: int, *segments: tuple[int, int], **settings: Any) -> ServerTable:
    return ServerTable(tables.Dense(rows=rows, **settings), [KeyRange(*s) for s in segments or [(0, rows)]])


def test_a_pushed_key_reads_as_its_update_and_others_as_their_initial_value() -> None:
    table = sparse(update=SGD(step=0.5), initial=tables.Constant(1.0))
    table.push(listed(3, 1 << 62), column(2.0, -2.0))
    assert table.pull(listed(3, 4, 1 << 62)).tolist() == [[0.0], [1.0], [2.0]]
    assert table.rows == 2  # the pull created none


def test_key_zero_and_the_last_key_are_keys_like_others() -> None:
    table = sparse()
    table.push(listed(0, (1 << 63) - 1), column(1.0, 2.0))
    table.push(listed(0, (1 << 63) - 1), column(1.0, 2.0))
    assert table.pull(listed(0, 1, (1 << 63) - 1)).tolist() == [[2.0], [0.0], [4.0]]


def test_state_stays_with_its_row() -> None:
    table = sparse(width=2, update=AdaGrad(step=1.0, epsilon=0.0))
    table.push(listed(5), np.array([[3.0, 1.0]], np.float32))
    table.push(listed(5), np.array([[4.0, 0.0]], np.float32))
    assert table.pull(listed(5))[0].tolist() == [np.float32(np.float32(-1.0) - 4.0 / 5.0), -1.0]


def test_a_dense_range_is_one_interval_across_the_gaps() -> None:
    table = dense(100, (10, 13), (50, 52), (90, 100), update=Assign())
    table.push(KeyRange(11, 91), column(1, 2, 3, 4, 5))  # 11, 12, 50, 51, 90
    assert table.pull(KeyRange(0, 100))[:6].reshape(-1).tolist() == [0, 1, 2, 3, 4, 5]
    assert table.pull(listed(12, 50, 99)).reshape(-1).tolist() == [2, 3, 0]
    assert table.pull(KeyRange(13, 50)).shape == (0, 1)
    assert table.keys_held(KeyRange(11, 91)).tolist() == [11, 12, 50, 51, 90]
    assert table.rows == 15


def test_a_segment_at_the_end_of_all_keys_can_be_held() -> None:
    table = ServerTable(tables.Sparse(hashed=True), [KeyRange((1 << 63) - 3, 1 << 63)])
    assert table.keys_held(EVERYTHING).tolist() == [(1 << 63) - 3, (1 << 63) - 2, (1 << 63) - 1]


@pytest.mark.parametrize(
    ("keys", "values", "why"),
    [
        (listed(2, 1), column(1, 1), "key 1 follows 2: keys are sorted, each once"),
        (listed(1, 1), column(1, 1), "key 1 follows 1"),
        (listed(1, 5), column(1, 1), "key 5 is not held here"),
        (listed(1, 20), column(1, 1), "key 20 is past the limit: keys of this table are below 20"),
        (listed(1, 2).astype(np.int64), column(1, 1), "keys are int64"),
        (listed(1, 2).reshape(1, 2), column(1, 1), r"keys are uint64 of shape \(1, 2\)"),
        (listed(1, 2), column(1), r"values have shape \(1, 1\): 2 rows of width 1 are needed"),
        (listed(1, 2), np.ones((1, 2), np.float32), r"values have shape \(1, 2\)"),
        (listed(1, 2), column(1, 1).astype(np.float64), "values are float64: float32 is needed"),
        (listed(1, 2), column(1, np.nan), "values of row 1 are not finite"),
        (listed(1, 2), column(-np.inf, 1), "values of row 0 are not finite"),
    ],
)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_push_that_cannot_be_taken_is_told_why_and_changes_nothing(
    kind: str, keys: Any, values: Any, why: str
) -> None:
    segments = [KeyRange(0, 5), KeyRange(6, 20)]
    spec = tables.Dense(rows=20) if kind == "dense" else tables.Sparse(keys=20)
    table = ServerTable(spec, segments)
    table.push(listed(1, 2), column(5, 6))
    reason = table.check(keys, values)
    assert reason is not None
    assert re.search(why, reason)
    assert table.pull(listed(1, 2)).tolist() == [[5], [6]]
    assert table.check(listed(1, 2), column(1, 1)) is None
    # Flat, as it arrives from the network.
    assert table.check(listed(1, 2), np.ones(2, np.float32)) is None
    assert table.check(listed(), column()) is None


def test_the_extremes_of_float32_are_finite() -> None:
    most = float(np.finfo(np.float32).max)
    assert sparse().check(listed(1, 2, 3), column(most, -most, 1e-45)) is None


def test_a_range_is_pushed_with_as_many_rows_as_are_held() -> None:
    table = dense(20, (0, 5), (6, 20))
    assert table.check(KeyRange(4, 8), column(1, 1, 1)) is None
    assert "3 rows" in str(table.check(KeyRange(4, 8), column(1, 1, 1, 1)))
    with pytest.raises(BadValues):
        table.push(KeyRange(4, 8), column(1, 1, 1, 1))


def test_a_range_is_not_pushed_to_a_sparse_table() -> None:
    table = sparse()
    assert "list the keys" in str(table.check(KeyRange(0, 2), column(1, 1)))
    with pytest.raises(BadKeys):
        table.push(KeyRange(0, 2), column(1, 1))


def test_what_a_careless_caller_asks_for_never_leaves_the_slab() -> None:
    table = dense(20, (0, 5), (6, 20))
    for keys in (listed(5), listed(1 << 62), listed(2, 1)):
        with pytest.raises(BadKeys):
            table.pull(keys)
        with pytest.raises(BadKeys):
            table.push(keys, np.ones(len(keys), np.float32))
    with pytest.raises(BadValues):
        table.push(listed(1, 2), column(1))


def test_arrays_off_the_wire_may_be_read_only_and_unaligned() -> None:
    buffer = bytes(1) + listed(7, 9).tobytes() + column(1.5, 2.5).tobytes()
    keys = np.frombuffer(buffer, np.uint64, 2, 1)
    values = np.frombuffer(buffer, np.float32, 2, 17)
    assert not keys.flags.aligned
    assert not keys.flags.writeable
    for table in (sparse(), dense(10)):
        assert table.check(keys, values) is None
        table.push(keys, values)
        assert table.pull(keys).tolist() == [[1.5], [2.5]]


def test_rows_keep_their_values_while_the_table_grows() -> None:
    table = sparse(width=3, update=AdaGrad())
    random = np.random.default_rng(1)
    keys = np.unique(random.integers(0, 1 << 63, 40_000, dtype=np.uint64))
    values = random.standard_normal((len(keys), 3)).astype(np.float32)
    assert table.layout == 0
    for part in np.array_split(random.permutation(len(keys)), 37):
        part.sort()
        table.push(keys[part], values[part])
    one_by_one = sparse(width=3, update=AdaGrad())
    one_by_one.push(keys, values)
    assert table.rows == one_by_one.rows == len(keys)
    assert np.array_equal(table.pull(keys), one_by_one.pull(keys))
    assert table.layout > 1


def test_a_push_of_known_keys_does_not_grow_a_full_table() -> None:
    table = sparse()
    keys = np.arange(1_024, dtype=np.uint64)
    table.push(keys, np.ones(1_024, np.float32))
    table.push(keys, np.ones(1_024, np.float32))
    assert table.layout == 0
    table.push(listed(5_000), column(1))
    assert table.layout == 1


@pytest.mark.parametrize("which", ["new_slab", "new_index"])
def test_a_table_that_cannot_grow_stays_as_it_was(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = sparse()
    before = np.arange(1_500, dtype=np.uint64)
    table.push(before, np.ones(1_500, np.float32))
    layout, memory = table.layout, table.memory

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(arena, which, fail)
        with pytest.raises(MemoryError):
            table.push(np.arange(100_000, dtype=np.uint64), np.ones(100_000, np.float32))
    assert (table.rows, table.layout, table.memory) == (1_500, layout, memory)
    assert table.pull(np.arange(2_000, dtype=np.uint64)).sum() == 1_500
    table.push(np.arange(100_000, dtype=np.uint64), np.ones(100_000, np.float32))
    assert table.pull(before).sum() == 3_000
    assert table.rows == 100_000


@pytest.mark.parametrize("rows", [1 << 60, 1 << 63])
def test_a_dense_table_that_no_machine_can_hold_is_a_memory_error(rows: int) -> None:
    with pytest.raises(MemoryError):
        dense(rows)


def test_live_keys_are_listed_in_order_and_page_by_page() -> None:
    table = sparse(update=Assign())
    random = np.random.default_rng(2)
    keys = np.unique(random.integers(0, 1 << 63, 5_000, dtype=np.uint64))
    for part in np.array_split(random.permutation(len(keys)), 9):
        part.sort()
        table.push(keys[part], part.astype(np.float32))
    for most in (1_000, 1_250, 4_999, 5_000, 10_000):
        low, found, values = 0, [], []
        while True:
            page, weights, resume = table.pull_live(KeyRange(low, 1 << 63), most)
            assert len(page) <= most
            found.append(page)
            values.append(weights)
            if resume is None:
                break
            low = resume
        assert np.array_equal(np.concatenate(found), keys)
        assert np.array_equal(np.concatenate(values).reshape(-1), np.arange(len(keys)))


def test_a_page_ends_where_the_range_ends() -> None:
    table = sparse(update=Assign())
    table.push(listed(5, 10, 15, 20), column(5, 10, 15, 20))
    keys, values, resume = table.pull_live(KeyRange(6, 20), 1)
    assert (keys.tolist(), values.tolist(), resume) == ([10], [[10]], 15)
    keys, values, resume = table.pull_live(KeyRange(15, 20), 1)
    assert (keys.tolist(), values.tolist(), resume) == ([15], [[15]], None)
    keys, values, resume = table.pull_live(KeyRange(21, 30), 1)
    assert (keys.tolist(), values.shape, resume) == ([], (0, 1), None)
    assert sparse().pull_live(EVERYTHING, 10)[2] is None


def test_ranges_are_read_in_the_way_of_the_table() -> None:
    with pytest.raises(BadKeys):
        sparse().pull(KeyRange(0, 5))
    with pytest.raises(BadKeys):
        dense(5).pull_live(KeyRange(0, 5), 5)


def test_a_pull_is_a_copy() -> None:
    table = dense(4, update=Sum())
    answer = table.pull(KeyRange(0, 4))
    table.push(KeyRange(0, 4), column(1, 1, 1, 1))
    assert answer.tolist() == [[0], [0], [0], [0]]


def test_the_cost_counts_elements() -> None:
    table = dense(100, (10, 20), (50, 60), width=3)
    assert table.cost(KeyRange(15, 55)) == 30
    assert table.cost(listed(10, 11)) == 6
    grown = sparse(width=2)
    grown.push(listed(1, 2, 3), np.ones((3, 2), np.float32))
    assert grown.cost(EVERYTHING) == 6
    assert grown.cost(listed(1)) == 2


@pytest.mark.parametrize(
    "initial", [tables.Constant(-0.0), tables.Constant(2.5), tables.Uniform(-2.0, 3.0, 7), tables.Normal(0.5, -1)]
)
def test_dense_and_sparse_tables_start_from_the_same_weights(initial: tables.Initial) -> None:
    keys = np.arange(50, 80, dtype=np.uint64)
    many = dense(100, (50, 60), (60, 80), width=3, update=AdaGrad(), initial=initial)
    few = ServerTable(tables.Sparse(keys=100, width=3, update=AdaGrad(), initial=initial), [KeyRange(0, 100)])
    assert many.pull(KeyRange(0, 100)).tobytes() == few.pull(keys).tobytes() == many.pull(keys).tobytes()


def test_initial_draws_have_the_distribution_they_are_named_for() -> None:
    keys = np.arange(50_000, dtype=np.uint64)
    even = sparse(width=2, initial=tables.Uniform(-1.0, 3.0)).pull(keys)
    assert (even >= -1).all() and (even < 3).all()
    assert abs(even.mean() - 1) < 0.02
    assert abs(even.std() - 4 / 12**0.5) < 0.02
    bell = sparse(width=2, initial=tables.Normal(2.0)).pull(keys) / 2
    assert abs(bell.mean()) < 0.02
    assert abs(bell.std() - 1) < 0.02
    assert abs((bell**4).mean() - 3) < 0.1
    assert abs(float(np.corrcoef(bell[:, 0], bell[:, 1])[0, 1])) < 0.02
    other = sparse(width=2, initial=tables.Normal(2.0, seed=1)).pull(keys) / 2
    assert abs(float(np.corrcoef(bell[:, 0], other[:, 0])[0, 1])) < 0.02


def test_segments_are_sorted_disjoint_and_inside_the_table() -> None:
    with pytest.raises(BadKeys, match="no key in common"):
        dense(10, (0, 5), (4, 10))
    with pytest.raises(BadKeys, match="past the limit"):
        dense(10, (0, 11))
    nothing = ServerTable(tables.Dense(rows=10), [])
    assert nothing.rows == 0
    assert nothing.pull(KeyRange(0, 10)).shape == (0, 1)
    assert "not held here" in str(nothing.check(listed(1), column(1)))


def test_initial_values_must_be_finite() -> None:
    with pytest.raises(Invalid):
        sparse(initial=tables.Constant(1e300))


MEMORY = """
import json
import numpy as np, psutil
from shoal import tables
from shoal.keys import KeyRange
from shoal.store.table.table import ServerTable
from shoal.store.table.update import AdaGrad

def most_ever():  # of this process; what getrusage says may be the parent's
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

def filled(rows, batch):
    table = ServerTable(tables.Sparse(hashed=True, update=AdaGrad()), [KeyRange(0, 1 << 63)])
    gradients = np.ones(batch, np.float32)
    steps = np.arange(batch, dtype=np.uint64) * np.uint64((1 << 63) // batch)
    worst = 0.0
    for turn in range(rows // batch):
        table.push(steps + np.uint64(turn), gradients)
        peak = most_ever()
        if table.memory > 32e6:  # below that the batch itself and the allocator's pools weigh more
            worst = max(worst, (peak - baseline) / table.memory)
    return table, worst

baseline = 0
filled(10_000, 1_000)
baseline = psutil.Process().memory_info().rss
table, worst = filled(10_000_000, 100_000)
peak = most_ever()
print(json.dumps([table.rows, peak - baseline, psutil.Process().memory_info().rss - baseline, table.memory, worst]))
"""


@pytest.mark.slow
def test_ten_million_adagrad_rows_need_less_than_400_megabytes_even_while_growing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env={"PYTHONPATH": ":".join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    rows, peak, after, counted, worst = json.loads(done.stdout)
    print(f"peak {peak / 1e6:.0f} MB, then {after / 1e6:.0f} MB, counted {counted / 1e6:.0f} MB, growth {worst:.2f}x")
    assert rows == 10_000_000
    assert peak < 400e6
    assert 0.9 < counted / after < 1.1
    assert worst < 2.2  # peak memory, relative to the memory of the live rows at that moment
