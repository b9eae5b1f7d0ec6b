"""Which rank computes which slot of a step."""

from __future__ import annotations

import numpy as np

from shoal.data.slots import Slots
from shoal.strategies.averaging.shards import StepSlots


def take(steps: StepSlots, room: int = 100, dead: int | None = None) -> list[int]:
    planned = {rank: ids.tolist() for rank, ids in steps.plan(room).items()}
    steps.settle([rank for rank in planned if rank != dead])
    return [slot for rank, ids in planned.items() if rank != dead for slot in ids]


def test_a_pass_is_dealt_in_order_one_slot_for_each_rank_and_the_last_step_has_what_is_left() -> None:
    steps = StepSlots(Slots(35, 5, seed=0), ranks=3)  # seven slots
    assert [take(steps) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], [7, 8, 9]]
    assert steps.of_pass == 1


def test_a_step_ends_where_there_is_no_more_room() -> None:
    steps = StepSlots(Slots(35, 5, seed=0), ranks=3)
    assert take(steps, room=2) == [0, 1]
    assert take(steps) == [2, 3, 4]


def test_the_slot_of_a_rank_that_is_gone_comes_first_in_the_next_step() -> None:
    steps = StepSlots(Slots(35, 5, seed=0), ranks=3)
    assert take(steps, dead=1) == [0, 2]
    assert steps.living == [0, 2]
    assert steps.left().tolist() == [1, 3, 4, 5, 6]
    assert [take(steps) for _ in range(3)] == [[1, 3], [4, 5], [6]]


def test_what_is_left_of_a_pass_is_taken_up_by_any_number_of_ranks() -> None:
    steps = StepSlots(Slots(35, 5, seed=0), ranks=2, of_pass=3, left=np.array([22, 25, 26]))
    assert [take(steps) for _ in range(3)] == [[22, 25], [26], [28, 29]]
    assert steps.rows(np.array([21, 22])) == 10
