"""Segments and their placement: a few cases with numbers that can be checked by hand."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from shoal.cluster.placement import Holders, backup_for, place, segments_of
from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.limits import DENSE_SEGMENT_BYTES, KEY_LIMIT, SEGMENTS_PER_SERVER
from shoal.tables import Dense, Sparse


def servers(count: int) -> list[str]:
    return [f"server-{i}" for i in range(count)]


def loads(placed: list[Holders]) -> Counter[str]:
    return Counter(holders[0] for holders in placed)


def moved(before: list[Holders], after: list[Holders]) -> int:
    return sum(old[0] != new[0] for old, new in zip(before, after, strict=True))


def test_a_table_has_eight_segments_per_server() -> None:
    assert segments_of(Sparse(keys=32), servers=2) == [KeyRange(2 * i, 2 * i + 2) for i in range(16)]
    assert len(segments_of(Dense(rows=7_840), servers=3)) == 24


def test_a_hashed_table_covers_every_key_there_can_be() -> None:
    cut = segments_of(Sparse(hashed=True), servers=1)
    assert len(cut) == 8
    assert (cut[0].start, cut[-1].stop) == (0, KEY_LIMIT)


def test_a_table_with_few_keys_has_one_segment_for_each() -> None:
    assert segments_of(Dense(rows=3), servers=4) == [KeyRange(0, 1), KeyRange(1, 2), KeyRange(2, 3)]


def test_a_dense_segment_is_cut_before_it_is_too_large() -> None:
    width = 256
    rows = 9 * DENSE_SEGMENT_BYTES // (4 * width)  # nine full segments, where the default is eight
    cut = segments_of(Dense(rows=rows, width=width), servers=1)
    assert len(cut) == 9
    assert max(len(keys) for keys in cut) * width * 4 == DENSE_SEGMENT_BYTES
    # Not all rows of a sparse table exist, so it is not cut.
    assert len(segments_of(Sparse(keys=rows, width=width), servers=1)) == 8


def test_more_rows_than_the_servers_can_number_are_refused() -> None:
    with pytest.raises(Invalid, match="start more"):
        segments_of(Dense(rows=KEY_LIMIT), servers=2)


def test_no_servers_no_segments() -> None:
    with pytest.raises(Invalid, match="at least one"):
        segments_of(Dense(rows=8), servers=0)


@pytest.mark.parametrize("count", range(1, 17))
def test_every_server_is_primary_of_the_same_number_of_segments(count: int) -> None:
    placed = place(0, SEGMENTS_PER_SERVER * count, servers(count))
    assert loads(placed) == dict.fromkeys(servers(count), SEGMENTS_PER_SERVER)


def test_a_segment_is_never_twice_on_one_server() -> None:
    placed = place(7, 40, servers(5), copies=3)
    assert all(len(holders) == len(frozenset(holders)) == 3 for holders in placed)


def test_with_fewer_servers_than_copies_every_server_holds_everything() -> None:
    assert all(sorted(holders) == servers(2) for holders in place(0, 16, servers(2), copies=3))


def test_tables_are_spread_differently() -> None:
    assert place(1, 32, servers(4)) != place(2, 32, servers(4))


def test_the_placement_is_the_same_in_every_process() -> None:
    program = "from shoal.cluster.placement import place; print(place(3, 16, ['ann', 'bob', 'eve'], 2))"
    answers = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert answers == [str(place(3, 16, ["ann", "bob", "eve"], 2))] * 2


def test_a_known_placement_stays_as_it_is() -> None:
    # A change here moves the segments of every cluster that upgrades: put it into the changelog.
    assert "".join(holders[0][-1] for holders in place(0, 16, servers(3))) == "2220001200212111"


def test_even_a_placement_from_scratch_moves_little_when_a_server_joins() -> None:
    for count in range(1, 17):
        segments = SEGMENTS_PER_SERVER * count
        before, after = place(0, segments, servers(count)), place(0, segments, servers(count + 1))
        # Hashing modulo the number of servers would move nearly all.
        assert moved(before, after) <= 3 * segments / (count + 1)


@pytest.mark.parametrize(("names", "copies"), [([], 1), (["ann"], 0), (["ann", "ann"], 1)])
def test_a_placement_that_cannot_be_is_refused(names: list[str], copies: int) -> None:
    with pytest.raises(Invalid):
        place(0, 8, names, copies)


def test_a_lost_copy_is_made_again_on_the_next_server_of_the_ring() -> None:
    placed = place(3, 24, servers(4), copies=3)
    for segment, (primary, *backups) in enumerate(placed):
        found = backup_for(3, segment, servers(4), [primary])
        assert found in servers(4) and found != primary
        # The order of the servers does not matter.
        assert backup_for(3, segment, servers(4)[::-1], (primary,)) == found
        assert backup_for(3, segment, servers(4), [primary, found]) not in ("", primary, found)
        assert backups


def test_where_all_hold_a_segment_there_is_nobody_to_back_it_up() -> None:
    assert backup_for(0, 0, servers(2), servers(2)) == ""
    assert backup_for(0, 0, [], []) == ""


def test_who_holds_more_than_its_share_is_passed_by() -> None:
    first = backup_for(0, 0, servers(4), ["server-0"])
    crowded = dict.fromkeys(servers(4), 6) | {first: 7}
    second = backup_for(0, 0, servers(4), ["server-0"], crowded)
    assert second not in ("", "server-0", first)
    even_more = crowded | {name: 9 for name in servers(4) if name not in ("server-0", first)}
    # All are over their share: the one with the fewest is taken.
    assert backup_for(0, 0, servers(4), ["server-0"], even_more) == first


def test_copies_made_again_one_by_one_are_spread() -> None:
    """After a server dies, each of its segments gets a new copy.

    The copies given so far are counted.
    """
    before = place(0, 64, servers(6), copies=2)
    left = [tuple(name for name in holders if name != "server-5") for holders in before]
    held = Counter(name for holders in left for name in holders)
    for number, holders in enumerate(left):
        if len(holders) < 2:
            found = backup_for(0, number, servers(5), holders, held)
            assert found not in ("", *holders)
            held[found] += 1
    assert sum(held.values()) == 2 * 64
    assert max(held.values()) <= 1.25 * 2 * 64 / 5
