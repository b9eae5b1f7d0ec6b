"""A table's keys are split over its servers."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from shoal.errors import BadValues, SegmentsLost
from shoal.keys import KeyRange, Keys
from shoal.limits import FRAME_BYTES
from shoal.store.client.split import Layout, ServerShare
from shoal.tables import Dense, Sparse, Table
from shoal.wire.messages import EVERYWHERE, Replicas, TablePlaces


def layout(owners: str, keys_each: int = 10, spec: Table | None = None) -> Layout:
    """A table whose segment i has ``keys_each`` keys, on the server named by letter i.

    A dot stands for no server.
    """
    starts = [i * keys_each for i in range(len(owners))]
    places = [Replicas(1, [] if owner == "." else [owner, "backup"]) for owner in owners]
    return Layout(TablePlaces(7, "w", spec or Dense(rows=len(owners) * keys_each), starts, places))


def listed(*keys: int) -> Keys:
    return np.array(keys, np.uint64)


def rows_of(share: ServerShare, rows: int) -> list[int]:
    return share.take(np.arange(rows)).tolist()


def by_server(shares: list[ServerShare], rows: int) -> dict[str, list[int]]:
    return {share.server: rows_of(share, rows) for share in shares}


def test_every_row_goes_to_the_server_of_its_segment() -> None:
    keys = listed(0, 9, 10, 19, 20, 35)
    assert by_server(layout("abab").shares(keys, 8, False), 6) == {"a": [0, 1, 4], "b": [2, 3, 5]}


def test_neighbouring_segments_of_one_server_are_one_slice() -> None:
    (share,) = layout("aaaa").shares(listed(1, 11, 21, 31), 8, False)
    assert (share.slices, share.rows) == ([(0, 4)], 4)
    array = np.arange(4)
    assert np.shares_memory(share.take(array), array)  # no copy


def test_segments_without_keys_make_no_slices() -> None:
    (first, second) = layout("abab").shares(listed(1, 2, 31), 8, False)
    assert (first.server, first.slices) == ("a", [(0, 2)])
    assert (second.server, second.slices) == ("b", [(2, 3)])


def test_a_server_without_keys_is_left_out_unless_all_are_wanted() -> None:
    keys = listed(1, 2)
    assert by_server(layout("abc").shares(keys, 8, False), 2) == {"a": [0, 1]}
    shares = layout("abc").shares(keys, 8, every_server=True)
    assert by_server(shares, 2) == {"a": [0, 1], "b": [], "c": []}
    assert [share.rows for share in shares] == [2, 0, 0]


def test_no_keys_are_still_a_message_for_every_server() -> None:
    assert layout("ab").shares(listed(), 8, False) == []
    assert [share.server for share in layout("ab").shares(listed(), 8, True)] == ["a", "b"]


def test_a_range_is_cut_at_the_segments() -> None:
    assert by_server(layout("aba").shares(KeyRange(5, 25), 8, False), 20) == {
        "a": [*range(5), *range(15, 20)],
        "b": list(range(5, 15)),
    }
    assert by_server(layout("aba").shares(KeyRange(12, 13), 8, False), 1) == {"b": [0]}
    assert layout("aba").shares(KeyRange(12, 12), 8, False) == []


def test_a_share_covers_all_segments_of_its_server() -> None:
    for share in layout("abab").shares(listed(1, 11), 8, False):
        assert (share.first, share.last, share.span) == (0, EVERYWHERE, (0, 40))


def test_what_is_taken_can_be_put_back() -> None:
    keys = listed(0, 12, 13, 25, 38)
    values = np.arange(10, dtype=np.float32).reshape(5, 2)
    back = np.zeros_like(values)
    for share in layout("abab").shares(keys, 8, False):
        share.put(share.take(values), back)
    assert back.tolist() == values.tolist()


def test_a_large_push_is_cut_between_segments() -> None:
    row_bytes = FRAME_BYTES // 20  # twenty rows fill a message
    shares = layout("ababaa").shares(KeyRange(0, 60), row_bytes, False)
    assert [(share.server, share.rows, share.first, share.last) for share in shares] == [
        ("a", 20, 0, 4),  # rows of segments 0 and 2; covers all segments below 4
        ("a", 20, 4, EVERYWHERE),
        ("b", 20, 0, EVERYWHERE),
    ]
    assert [share.span for share in shares] == [(0, 30), (40, 60), (0, 60)]
    assert [rows_of(share, 60) for share in shares] == [
        [*range(10), *range(20, 30)],
        list(range(40, 60)),
        [*range(10, 20), *range(30, 40)],
    ]


def test_cut_up_shares_cover_every_segment_of_the_server_once() -> None:
    row_bytes = FRAME_BYTES // 10
    shares = layout("aabaa").shares(KeyRange(0, 50), row_bytes, False)
    covered = [[s for s in (0, 1, 3, 4) if share.first <= s < share.last] for share in shares if share.server == "a"]
    assert covered == [[0], [1], [3], [4]]


def test_empty_segments_of_a_large_push_are_covered_too() -> None:
    keys = listed(*range(10), *range(30, 40))
    shares = layout("aaaa").shares(keys, FRAME_BYTES // 10, False)
    assert [share.rows for share in shares] == [10, 10]
    assert [(share.first, share.last) for share in shares] == [(0, 3), (3, EVERYWHERE)]


def test_more_rows_for_one_segment_than_a_message_holds_are_refused() -> None:
    with pytest.raises(BadValues, match="10 rows for one segment of 'w' are more than one message holds"):
        layout("ab").shares(KeyRange(0, 20), FRAME_BYTES // 9, False)


@pytest.mark.parametrize("keys", [listed(1), listed(), KeyRange(0, 20)])
def test_a_table_of_which_a_part_is_lost_says_so(keys: Keys | KeyRange) -> None:
    with pytest.raises(SegmentsLost, match="table 'w'"):
        layout("a.").shares(keys, 8, False)
    with pytest.raises(SegmentsLost):
        layout("a.").check_not_lost()


def test_the_first_of_a_segments_servers_is_asked() -> None:
    assert layout("abab").servers == ["a", "b"]


def test_a_question_about_live_keys_goes_to_every_server_whole() -> None:
    spec = Sparse(hashed=True)
    placed = TablePlaces(
        1, "w", spec, [0, 1 << 61, 1 << 62], [Replicas(1, ["a"]), Replicas(1, ["b"]), Replicas(1, ["a"])]
    )
    assert [(share.server, share.span) for share in Layout(placed).whole()] == [
        ("a", (0, 1 << 63)),
        ("b", (0, 1 << 63)),
    ]


def test_the_highest_keys_find_their_segment() -> None:
    spec = Sparse(hashed=True)
    placed = TablePlaces(1, "w", spec, [0, 1 << 62], [Replicas(1, ["a"]), Replicas(1, ["b"])])
    keys = listed(0, (1 << 62) - 1, 1 << 62, (1 << 63) - 1)
    assert by_server(Layout(placed).shares(keys, 8, False), 4) == {"a": [0, 1], "b": [2, 3]}


def test_a_layout_knows_the_placement_it_was_made_of() -> None:
    made = layout("ab")
    assert made.placed == TablePlaces(
        7, "w", Dense(rows=20), [0, 10], [Replicas(1, ["a", "backup"]), Replicas(1, ["b", "backup"])]
    )
    assert made.placed != TablePlaces(
        7, "w", Dense(rows=20), [0, 10], [Replicas(1, ["a", "backup"]), Replicas(2, ["a"])]
    )


def test_who_holds_the_same_has_stayed_and_nobody_else() -> None:
    before, after = layout("abca"), layout("abba")
    assert after.change_since(before).unchanged == ("a",)
    assert layout("abcab").change_since(before).unchanged == ()  # the segments differ


def test_layouts_that_nobody_has_any_more_are_not_kept_by_those_that_came_after_them() -> None:
    newest = layout("abca")
    former = []
    for owners in ("abba", "abca", "aaca", "abca"):
        former.append(weakref.ref(newest))
        before, newest = newest, layout(owners)
        newest.change_since(before)
    del before
    gc.collect()
    assert sum(one() is not None for one in former) <= 1
