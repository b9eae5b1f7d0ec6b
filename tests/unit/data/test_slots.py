"""The rows of a slot are the same for every node that asks."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.slots import Slots
from shoal.errors import Invalid


def test_a_content_has_the_same_rows_in_every_pass_and_the_order_of_contents_changes() -> None:
    slots = Slots(1_000, 64, seed=3)
    assert slots.per_pass == 16
    orders = [tuple(slots.contents(of_pass)) for of_pass in range(20)]
    assert len(set(orders)) == 20
    assert len(slots.rows(15)) == 1_000 - 15 * 64
    assert slots.rows(3).tolist() == Slots(1_000, 64, seed=3).rows(3).tolist()


def test_the_rows_of_a_slot_lie_side_by_side() -> None:
    slots = Slots(1_000, 64, seed=0)
    assert slots.span(3) == (192, 256)
    assert slots.span(15) == (960, 1_000)
    assert slots.rows(15).tolist() == list(range(960, 1_000))


def test_another_seed_is_another_shuffle() -> None:
    first, second = Slots(10_000, 256, 0), Slots(10_000, 256, 1)
    assert first.contents(0).tolist() != second.contents(0).tolist()
    assert first.contents(0).tolist() != first.contents(1).tolist()


def test_a_handful_of_slots_is_shuffled_in_every_way() -> None:
    orders = {tuple(Slots(4, 1, seed=0).contents(of_pass)) for of_pass in range(400)}
    assert len(orders) == 24


def test_a_shuffle_of_many_keeps_no_order() -> None:
    places = np.arange(100_000)
    out = Slots(100_000, 1, seed=5).contents(0)
    assert abs(np.corrcoef(places, out)[0, 1]) < 0.02
    assert abs(np.corrcoef(out[:-1], out[1:])[0, 1]) < 0.02


@pytest.mark.parametrize(("rows", "batch"), [(0, 1), (10, 0), (-1, 5)])
def test_slots_without_rows_are_refused(rows: int, batch: int) -> None:
    with pytest.raises(Invalid, match="at least one row"):
        Slots(rows, batch, 0)


def test_a_slot_that_is_not_there_is_refused() -> None:
    slots = Slots(10, 4, 0)
    for ask in (lambda: slots.content(0, 3), lambda: slots.rows(3), lambda: slots.rows(-1)):
        with pytest.raises(Invalid, match="an epoch has 3"):
            ask()
