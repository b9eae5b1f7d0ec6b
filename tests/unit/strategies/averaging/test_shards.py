"""Slots are divided among ranks: each once, the same on all ranks, whichever rank is lost."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.slots import Slots
from shoal.errors import Invalid
from shoal.strategies.averaging.shards import Shards, StepSlots, unseen

SLOTS = Slots(rows=1_000, batch=10, seed=3)  # a hundred slots


def walk(parts: Shards, room: int) -> list[int]:
    """Take all planned slots until there is no more room; no rank is lost."""
    seen = []
    while room:
        planned = parts.plan(room)
        ids = np.concatenate(list(planned.values()))
        seen += ids.tolist()
        room -= len(ids)
        parts.settle(parts.living)
        parts.commit()
    return seen


def test_one_rank_takes_the_slots_of_a_pass_in_their_own_order() -> None:
    assert walk(Shards(SLOTS, 1, every=7), 200) == list(range(200))


@pytest.mark.parametrize("shares", [(), (1.0, 2.0, 5.0)])
def test_every_slot_of_every_pass_is_taken_once(shares: tuple[float, ...]) -> None:
    assert sorted(walk(Shards(SLOTS, 3, shares, every=4), 300)) == list(range(300))


def test_each_rank_has_its_own_part_of_the_rows_in_every_pass() -> None:
    parts = Shards(SLOTS, 4)
    contents: dict[int, set[int]] = {}
    for _ in range(3):
        for rank, ids in parts.plan(1 << 40).items():
            contents.setdefault(rank, set()).update(*(found.tolist() for _, _, found in parts.pieces(ids)))
        parts.settle(parts.living)
    assert [len(contents[rank]) for rank in range(4)] == [25] * 4
    assert sorted(one for part in contents.values() for one in part) == list(range(100))
    assert contents[1] == set(range(*parts.reach(1)))


def test_a_period_ends_where_the_model_is_to_be_judged() -> None:
    parts = Shards(SLOTS, 3, every=16)
    assert [len(ids) for ids in parts.plan(7).values()] in ([2, 3, 2], [3, 2, 2])


def test_the_mean_is_weighted_by_rows() -> None:
    # Ten slots, one of them half full.
    parts = Shards(Slots(rows=95, batch=10, seed=0), 2, shares=[1.0, 4.0])
    parts.plan(10)
    assert parts.weights() == {0: 20 / 95, 1: 75 / 95}


def test_what_a_rank_had_begun_when_it_went_is_done_by_the_others() -> None:
    parts, seen = Shards(SLOTS, 3, every=8), []
    parts.plan(1_000)
    (lost,) = parts.settle([0, 2])
    assert (lost.rank, lost.again, lost.back, lost.rows) == (1, 8, 0, 0)
    seen += walk(parts, 100 - 16)
    assert len(set(seen)) == 84
    assert sorted(walk(parts, 100)) == list(range(100, 200)), "the next pass is cut among those who are left"


def test_what_was_counted_and_never_averaged_is_taken_back() -> None:
    parts = Shards(SLOTS, 2)
    parts.plan(1_000, most=10)
    parts.settle([0, 1])
    parts.plan(1_000, most=10)
    (lost,) = parts.settle([0])
    assert (lost.again, lost.back, lost.rows) == (20, 10, 100)
    assert len(parts.left()) == 80
    assert parts.weights() == {0: 1.0}


def test_a_run_is_taken_up_with_any_number_of_ranks() -> None:
    before = Shards(SLOTS, 3, every=4)
    seen = walk(before, 148)
    before.plan(12)  # the run is interrupted here
    after = Shards(SLOTS, 5, every=4, of_pass=before.of_pass, left=before.left())
    assert sorted(seen + walk(after, 152)) == list(range(300))


def test_as_many_shares_as_ranks_are_asked_for() -> None:
    with pytest.raises(Invalid, match="2 numbers for 3 ranks: give one for each"):
        Shards(SLOTS, 3, [1.0, 2.0])


def test_a_step_does_not_know_of_what_others_did_since_the_last_mean() -> None:
    # By rank: 0 2 3 | 0 2 3 | 0.
    assert unseen([0, 0, 0], [3, 3, 1], most=9).tolist() == [3, 0, 2, 2, 0, 0, 0, 0, 0, 0]
    assert unseen([4, 4], [1, 1], most=3).tolist() == [0, 0, 0, 2]
    assert unseen([0], [5], most=3).tolist() == [5, 0, 0, 0]


def test_the_largest_shares_that_can_be_said_are_shares_as_any_others() -> None:
    huge, plain = (
        [rank.tolist() for rank in Shards(SLOTS, 3, shares).plan(300).values()]
        for shares in ((1.0, 1e308, 1e308), (1e-308, 1.0, 1.0))
    )
    assert huge == plain and len(huge[0]) == 0


def test_what_a_lost_rank_has_told_stays_done_and_the_rest_is_the_others() -> None:
    """As in gossip, where a leg may have several passes and no mean of all models is taken."""
    parts = Shards(SLOTS, 3)
    done: dict[int, list[int]] = {0: [], 1: [], 2: []}
    room = 150
    while room:
        for rank, ids in parts.plan(room).items():
            done[rank] += ids.tolist()
            room -= len(ids)
        parts.settle(parts.living)
    kept, lost = done[1][:20], done.pop(1)[20:]
    assert parts.lose(1, 20) == len(lost)
    parts.commit()
    assert sorted(kept + done[0] + done[2] + walk(parts, 100 - 50 + len(lost))) == list(range(200))


def test_when_the_last_rank_is_lost_nobody_gets_its_slots() -> None:
    parts = Shards(SLOTS, 1)
    parts.plan(10)
    assert parts.lose(0, 4) == 6 and parts.living == []


def test_shares_may_change_in_the_middle_of_a_pass() -> None:
    parts = Shards(SLOTS, 2)
    seen = np.concatenate(list(parts.plan(20).values())).tolist()
    parts.settle(parts.living)
    parts.share([3.0, 1.0])
    planned = parts.plan(40)
    assert len(planned[0]) > 2 * len(planned[1]) > 0
    seen += np.concatenate(list(planned.values())).tolist()
    parts.settle(parts.living)
    assert sorted(seen + walk(parts, 140)) == list(range(200))


# ---------------------------------------------------------------- slots of a step, by rank


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
