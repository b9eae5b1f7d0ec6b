"""The audit finds lost and doubled pushes, and one cannot hide the other."""

from __future__ import annotations

import numpy as np

from shoal.chaos.audit import (
    PROBES,
    TABLE,
    PushAudit,
    PushProbes,
    balance,
)
from shoal.cluster.placement import segments_of
from shoal.keys import KeyRange, mixed


def account(found: dict[int, float], acknowledged: int, **more: object) -> PushAudit:
    settings = {"sent": acknowledged, "probes": PushProbes(), "versions": {}, "per_pass": 4} | more
    keys = np.array(list(found), np.uint64)
    return balance(keys, np.array(list(found.values()), np.float32), acknowledged, **settings)  # type: ignore[arg-type]


def ones(slots: int) -> dict[int, float]:
    return dict.fromkeys(range(slots), 1.0)


def test_a_run_in_which_all_is_counted_once_balances() -> None:
    done = account(ones(8), 8, sent=11, versions={"segment 0": 8})
    assert done.balanced
    assert (done.sent, done.acknowledged, done.counted, done.lost, done.doubled) == (11, 8, 8, 0, 0)


def test_a_slot_that_is_not_there_is_lost() -> None:
    found = ones(8)
    del found[5]
    done = account(found, 8)
    assert (done.lost, done.doubled) == (1, 0)
    assert "slot 5" in done.wrong[0]
    assert account(ones(8) | {5: 0.0}, 8).lost == 1


def test_a_slot_that_is_there_twice_is_doubled() -> None:
    done = account(ones(8) | {2: 3.0}, 8)
    assert (done.lost, done.doubled, done.counted) == (0, 2, 10)
    assert "slot 2 is counted 3 times" in done.wrong


def test_one_lost_and_one_doubled_do_not_make_up_for_each_other() -> None:
    done = account(ones(8) | {2: 2.0, 5: 0.0}, 8, versions={"segment 0": 8})
    assert (done.lost, done.doubled) == (1, 1)


def test_of_the_last_pass_any_slots_will_do_if_they_are_enough() -> None:
    assert account(ones(4) | {6: 1.0, 7: 1.0}, 6).balanced
    assert account(ones(4) | {7: 1.0}, 6).lost == 1


def test_while_a_run_is_not_over_what_is_not_reported_yet_is_no_fault() -> None:
    assert account(ones(9), 7, per_pass=0).balanced
    assert account(ones(6), 7, per_pass=0).lost == 1
    assert account(ones(6) | {1: 2.0}, 6, per_pass=0).doubled == 1


def test_our_own_pushes_count_between_what_was_acknowledged_and_what_was_sent() -> None:
    probes = PushProbes(np.array([PROBES, PROBES + 1], np.uint64), np.array([3, 2]), np.array([2, 2]))
    assert account(ones(4) | {PROBES: 2.0, PROBES + 1: 2.0}, 4, probes=probes).balanced
    # The third push may have been counted.
    assert account(ones(4) | {PROBES: 3.0, PROBES + 1: 2.0}, 4, probes=probes).balanced
    assert account(ones(4) | {PROBES: 1.0, PROBES + 1: 2.0}, 4, probes=probes).lost == 1
    assert account(ones(4) | {PROBES: 3.0, PROBES + 1: 3.0}, 4, probes=probes).doubled == 1
    assert account(ones(4) | {PROBES: 2.0, PROBES + 1: 2.0, PROBES + 9: 1.0}, 4, probes=probes).doubled == 1


def test_the_models_own_versions_are_held_against_it_too() -> None:
    assert account(ones(8), 8, versions={"segment 3 on server-1": 7}).lost == 1
    done = account(ones(8), 8, versions={"segment 3 on server-1": 9})
    assert done.doubled == 1
    assert done.wrong == ["segment 3 on server-1 of the model counted 9 slots of 8"]


def test_every_segment_has_a_key_of_our_own() -> None:
    cut = segments_of(TABLE, 16)
    probes = PushProbes.for_segments([keys.start for keys in cut])
    assert len(probes.keys) == len(cut)
    for key, keys in zip(mixed(probes.keys).tolist(), cut, strict=True):
        assert keys.start <= key < keys.stop, KeyRange(keys.start, keys.stop)
    assert (probes.keys >= PROBES).all()
