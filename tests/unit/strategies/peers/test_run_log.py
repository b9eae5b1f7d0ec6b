"""All peers know the same of a run, in any order of messages, with every slot counted once."""

from __future__ import annotations

import random

import pytest

from shoal.strategies.peers.run_log import (
    AGAIN,
    PARTLY,
    TWICE,
    RunLog,
)
from shoal.wire.messages import peers as p


def learned(first: int, stop: int, part: int = 0, stale: int = 0) -> p.Learned:
    rows = stop - first
    return p.Learned([(first, stop)], rows, 0.5 * rows, [1_000 * rows, 5, 6], (10, 20), part, stale)


def nobody(life: str) -> bool:
    return False


def test_a_slot_may_be_counted_before_it_is_heard_that_it_was_dealt() -> None:
    log = RunLog()
    log.apply("b", learned(0, 10))
    log.apply("a", p.SlotsDealt([("b", [(0, 15)])]))
    assert log.done == 10 and log.out["b"].runs == [(10, 15)] and log.next == 15
    assert not log.free(nobody)


def test_it_is_the_same_in_whatever_order_several_are_heard() -> None:
    said = {
        "a": [
            p.SlotsDealt([("a", [(0, 10)]), ("b", [(10, 20)])]),
            learned(0, 5),
            p.SlotsDealt([("b", [(20, 30)])]),
            learned(5, 10),
        ],
        "b": [learned(10, 15, stale=2), learned(15, 20), p.PeerLeaving("", [(20, 25)])],
    }
    logs = []
    for seed in range(20):
        chance, left, log = random.Random(seed), {life: list(words) for life, words in said.items()}, RunLog()
        while open_ := [life for life, words in left.items() if words]:
            life = chance.choice(open_)
            log.apply(life, left[life].pop(0))
        logs.append(log)
    for one in logs:
        assert (one.counted.runs, one.rows, one.loss, one.spent) == ([(0, 20)], 20, (10.0, 20), [20_000, 20, 24])
        assert (one.staleness, one.moved) == ([15, 0, 5], {"a": (10, 20), "b": (10, 20)})


def test_slots_of_one_that_is_gone_are_free_only_when_nothing_more_can_be_heard_of_it() -> None:
    log = RunLog()
    log.apply("a", p.SlotsDealt([("a", [(0, 10)]), ("b", [(10, 20)])]))
    log.apply("b", learned(10, 12))
    assert not log.free(nobody)
    assert log.free(lambda life: life == "b").runs == [(12, 20)]
    log.apply("a", p.SlotsDealt([("a", [(12, 16)])], again=4))
    assert log.free(lambda life: life == "b").runs == [(16, 20)]
    assert log.counts[AGAIN] == 4


def test_a_slot_that_two_have_learned_is_counted_once_and_reported() -> None:
    log = RunLog()
    log.apply("a", learned(0, 10))
    log.apply("b", learned(5, 15))
    assert (log.done, log.rows, log.loss) == (15, 15, (7.5, 15))
    assert log.counts[TWICE] == 5


def test_what_is_given_back_is_free() -> None:
    log = RunLog()
    log.apply("a", p.SlotsDealt([("b", [(0, 10)])]))
    log.apply("b", learned(0, 4))
    before = log.returned
    log.apply("b", p.PeerLeaving("", [(4, 10)]))
    assert log.returned > before and log.free(nobody).runs == [(4, 10)]


def test_where_weights_are_owned_a_slot_counts_when_its_change_is_in_every_part() -> None:
    log = RunLog(included=[{}, {}])
    log.apply("a", p.SlotsDealt([("a", [(0, 10)])]))
    log.apply("a", learned(0, 5, part=1))
    log.apply("a", learned(5, 10, part=2))
    assert log.done == 0 and log.left("a") == 0 and log.out["a"].size == 10
    log.apply("x", p.Owned([(0, {"a": 2})]))
    assert log.done == 0
    log.apply("y", p.Owned([(1, {"a": 1})]))
    assert log.counted.runs == [(0, 5)]
    assert log.partly(lambda life: life == "a") == 5, "the second is in one part and not in the other"
    log.apply("y", p.Owned([(1, {"a": 2})]))
    assert log.counted.runs == [(0, 10)] and log.partly(lambda life: True) == 0
    late = RunLog(included=[{}, {}])  # in the opposite order
    late.apply("x", p.Owned([(0, {"a": 1}), (1, {"a": 1})]))
    late.apply("a", learned(0, 5, part=1))
    assert late.done == 5
    assert PARTLY not in late.counts


@pytest.mark.parametrize("parts", [0, 2])
def test_whoever_gets_its_state_goes_on_as_it_would(parts: int) -> None:
    words = [
        ("a", p.OwnersChanged(1, ["a"] * parts, ["b"])),
        ("a", p.SlotsDealt([("a", [(0, 10)]), ("b", [(10, 20)])])),
        ("b", learned(10, 15, part=min(parts, 1))),
        ("a", p.EvaluationDone(0, 0.0, 0.1, 0, 0, 0.7, {"auc": 0.5}, None, 2, True, [0.7, 0.7, 0.0, None], "a")),
        ("a", p.Owned([(part, {"b": 1}) for part in range(parts)])),
        ("a", learned(0, 10, part=2 * min(parts, 1))),
        ("a", p.Halt("over")),
        ("b", p.Rested()),
    ]
    for cut in range(len(words)):
        whole, first = (RunLog(included=[{} for _ in range(parts)]) for _ in range(2))
        for life, word in words:
            whole.apply(life, word)
        for life, word in words[:cut]:
            first.apply(life, word)
        second = RunLog.unpack(first.pack(2.5))
        for life, word in words[cut:]:
            second.apply(life, word)
        assert second.pack(3.0) == whole.pack(3.0)
