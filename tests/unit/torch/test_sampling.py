"""The rows that a worker trains on."""

from __future__ import annotations

import pytest

from shoal.errors import Invalid

pytest.importorskip("torch")

from shoal.torch.loop import ShardSampler


def test_the_parts_of_a_pass_are_all_rows_and_equally_many_each() -> None:
    parts = [list(ShardSampler(range(10), rank, 4)) for rank in range(4)]
    assert [len(part) for part in parts] == [3, 3, 3, 3]
    assert {row for part in parts for row in part} == set(range(10))


def test_every_pass_has_another_order_which_all_workers_know() -> None:
    sampler, same = ShardSampler(range(100), 0, 1), ShardSampler(range(100), 0, 1)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    same.set_epoch(1)
    assert list(same) == second
    assert list(ShardSampler(range(5), 0, 1, shuffle=False)) == [0, 1, 2, 3, 4]


def test_fewer_rows_than_workers_are_refused() -> None:
    with pytest.raises(Invalid, match="3 rows for 4 workers: start fewer workers"):
        ShardSampler(range(3), 0, 4)
