"""Blocks take turns, and parts of the rows stay with their workers."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Invalid
from shoal.schedule.slot_queue import SlotQueue
from shoal.strategies.block_proximal.order import BlockOrder
from shoal.tables import Step


@pytest.mark.parametrize(("blocks", "gap"), [(1, 1), (5, 1), (16, 3), (16, 9), (7, 7), (10, 9)])
def test_every_block_has_one_turn_in_a_pass_and_none_too_soon_after_its_last(blocks: int, gap: int) -> None:
    turns = BlockOrder(100, 4, blocks, seed=3, gap=gap)
    order = [turns.block(t) for t in range(20 * blocks)]
    for of_pass in range(20):
        assert sorted(order[of_pass * blocks : (of_pass + 1) * blocks]) == list(range(blocks))
    for block in range(blocks):
        at = np.flatnonzero(np.array(order) == block)
        assert (np.diff(at) >= gap).all()


def test_the_order_is_a_function_of_the_seed_and_the_iteration() -> None:
    one, same, other = (BlockOrder(100, 4, 16, seed) for seed in (1, 1, 2))
    times = [200, 3, 77, 3]
    assert [one.block(t) for t in times] == [same.block(t) for t in reversed(times)][::-1]
    assert [one.block(t) for t in range(64)] != [other.block(t) for t in range(64)]
    assert [one.block(t) for t in range(16)] != [one.block(t) for t in range(16, 32)]


def test_a_pass_counts_every_row_once() -> None:
    turns = BlockOrder(103, 4, 7, seed=0)
    spans = [turns.span(content) for content in turns.contents(0)]
    assert sorted(row for start, stop in spans for row in range(start, stop)) == list(range(103))
    assert turns.rows_in(turns.contents(5)) == 103
    assert turns.rows_in(np.array([3, 10])) == sum(stop - start for start, stop in (spans[3], spans[10]))


def test_a_slot_names_its_iteration_and_its_part() -> None:
    turns = BlockOrder(100, parts=4, blocks=3, seed=0)
    assert (turns.iteration((2, 11)), turns.part((2, 11))) == (2 * 3 + 2, 3)
    assert [turns.part_rows(part) for part in range(4)] == [(0, 25), (25, 50), (50, 75), (75, 100)]


@pytest.mark.parametrize(("rows", "parts", "blocks", "gap"), [(3, 4, 8, 1), (9, 0, 8, 1), (9, 2, 8, 9), (9, 2, 0, 1)])
def test_what_cannot_be_is_refused(rows: int, parts: int, blocks: int, gap: int) -> None:
    with pytest.raises(Invalid, match=r"take (fewer|more)"):
        BlockOrder(rows, parts, blocks, 0, gap)


def test_a_part_stays_with_its_worker_and_moves_whole_when_that_is_gone() -> None:
    turns = BlockOrder(100, parts=4, blocks=5, seed=0)
    work = SlotQueue(turns, 40, Step(slots=4, slots_per_pass=turns.per_pass))
    for worker in (1, 2, 3):
        work.enter(worker, f"worker-{worker}")
    had = {worker: work.deal(worker, 40)[1] for worker in (1, 2, 3)}
    assert [sorted({slot % 4 for slot in had[worker]}) for worker in (1, 2, 3)] == [[0, 3], [1], [2]]
    work.leave(2, died=True)
    again = {worker: work.deal(worker, 40)[0] for worker in (1, 3)}
    # All of part 1 goes to one worker, whose turn it is now.
    assert (again[1], sorted(again[3])) == ([], sorted(had[2]))
