"""Key lists are known by a number: on a server, on a client, and on both together.

No network is involved.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from shoal import limits
from shoal.errors import BadKeys
from shoal.keys import KeyList, KeyRange, Keys
from shoal.store.client.key_cache import NO_HANDLE, KeyCache
from shoal.store.client.split import ServerShare
from shoal.store.server.key_lists import KeyLists, crc_of
from shoal.store.table.table import ServerTable
from shoal.tables import Dense, Sparse
from shoal.wire import messages as m

SPAN = 1_000


def keys_of(*numbers: int) -> Keys:
    return np.array(numbers, np.uint64)


def pull(keys: Keys, handle: int, known: bool, who: int = 7, **other: Any) -> m.Pull:
    message = m.Pull(
        request=1, table=1, view=1, generation=0, incarnation=who, clock=-1, entered=0, spell=0, first=0,
        last=m.EVERYWHERE, count=len(keys), handle=handle, known=known, crc=crc_of(keys),
    )  # fmt: skip
    return msgspec.structs.replace(message, **other)


def push(keys: Keys, ahead: Keys | None = None, **other: Any) -> m.Push:
    message = m.Push(
        request=1, table=1, view=1, generation=0, incarnation=7, stream=-7, number=0, floor=0, step=0, entered=0, spell=0,
        first=0, last=m.EVERYWHERE, count=len(keys), crc=crc_of(keys),
    )  # fmt: skip
    if ahead is not None:
        message = msgspec.structs.replace(message, pull=True, ahead=len(ahead), ahead_crc=crc_of(ahead))
    return msgspec.structs.replace(message, **other)


def a_table(sort: type[Dense] | type[Sparse] = Dense) -> ServerTable:
    spec = Dense(rows=SPAN) if sort is Dense else Sparse(keys=SPAN)
    return ServerTable(spec, [KeyRange(0, 400), KeyRange(400, SPAN)])


SOME, OTHERS = keys_of(1, 5, 300, 700), keys_of(2, 5, 301, 999)


# ------------------------------------------------------------ a server's side


def test_a_list_that_was_sent_is_known_by_its_number_from_then_on() -> None:
    handles, table = KeyLists(), a_table()
    assert handles.resolve(pull(SOME, 3, False), [SOME], table) is not None
    found = handles.resolve(pull(SOME, 3, True), [], table)
    assert found is not None and np.array_equal(found[0], SOME)
    assert found[0] is not SOME  # the array may be reused by its owner: a copy is kept


def test_a_message_without_a_number_is_left_alone() -> None:
    handles, arrays = KeyLists(), [SOME]
    assert handles.resolve(pull(SOME, 0, False), arrays, a_table()) is arrays
    assert len(handles) == 0


@pytest.mark.parametrize(
    "wrong",
    [{"handle": 4}, {"count": 3}, {"crc": 1}, {"incarnation": 8}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_does_not_fit_is_forgotten_and_changes_nothing(wrong: dict[str, int]) -> None:
    handles, table = KeyLists(), a_table()
    handles.resolve(pull(SOME, 3, False), [SOME], table)
    asked = msgspec.structs.replace(pull(SOME, 3, True), **wrong)
    assert handles.resolve(asked, [], table) is None
    assert handles.counts["forgotten"] == 1
    found = handles.resolve(pull(SOME, 3, True), [], table)
    assert found is not None and np.array_equal(found[0], SOME)


def test_a_pull_that_names_a_list_and_brings_keys_is_refused() -> None:
    handles, table = KeyLists(), a_table()
    handles.resolve(pull(SOME, 3, False), [SOME], table)
    with pytest.raises(BadKeys, match="one of the two is needed"):
        handles.resolve(pull(SOME, 3, True), [OTHERS], table)


def test_a_number_that_is_given_again_names_the_new_list() -> None:
    handles, table = KeyLists(), a_table()
    handles.resolve(pull(SOME, 3, False), [SOME], table)
    handles.resolve(pull(OTHERS, 3, False), [OTHERS], table)
    assert handles.resolve(pull(SOME, 3, True), [], table) is None
    found = handles.resolve(pull(OTHERS, 3, True), [], table)
    assert found is not None and np.array_equal(found[0], OTHERS)
    assert len(handles) == len(table.row_cache) == 1


def test_a_list_that_is_sent_twice_stays_the_one_it_was() -> None:
    handles, table = KeyLists(), a_table()
    first = handles.resolve(pull(SOME, 3, False), [SOME], table)
    again = handles.resolve(pull(SOME, 3, False), [SOME.copy()], table)
    assert first is not None and again is not None and first[0] is again[0]


def test_a_list_of_one_client_is_unknown_under_anothers_incarnation() -> None:
    handles, table = KeyLists(), a_table()
    handles.resolve(pull(SOME, 1, False, who=7), [SOME], table)
    handles.resolve(pull(OTHERS, 1, False, who=8), [OTHERS], table)
    mine, theirs = (handles.resolve(pull(k, 1, True, who=w), [], table) for k, w in ((SOME, 7), (OTHERS, 8)))
    assert mine is not None and np.array_equal(mine[0], SOME)
    assert theirs is not None and np.array_equal(theirs[0], OTHERS)


def test_lists_of_those_who_left_are_let_go() -> None:
    handles, table = KeyLists(), a_table()
    handles.resolve(pull(SOME, 1, False, who=7), [SOME], table)
    handles.resolve(pull(SOME, 1, False, who=8), [SOME], table)
    handles.drop_departed({8: "ann"})
    assert len(handles) == len(table.row_cache) == 1
    assert handles.resolve(pull(SOME, 1, True, who=7), [], table) is None


def test_the_least_recently_used_go_first_and_memory_is_bounded() -> None:
    size = 512 + 2 * SOME.nbytes
    handles, table = KeyLists(3 * size), a_table()
    for number in (1, 2, 3):
        handles.resolve(pull(SOME, number, False), [SOME], table)
    handles.resolve(pull(SOME, 1, True), [], table)
    handles.resolve(pull(SOME, 4, False), [SOME], table)
    assert handles.bytes == 3 * size and len(table.row_cache) == 3
    assert handles.resolve(pull(SOME, 2, True), [], table) is None
    assert all(handles.resolve(pull(SOME, number, True), [], table) is not None for number in (1, 3, 4))


def test_a_list_that_is_too_long_to_keep_is_used_and_not_kept() -> None:
    handles = KeyLists(600)
    arrays = handles.resolve(pull(SOME, 1, False), [SOME], a_table())
    assert arrays is not None and arrays[0] is SOME and len(handles) == 0


def test_both_lists_of_a_push_that_looks_ahead_may_be_known() -> None:
    handles, table, values = KeyLists(), a_table(), np.ones(4, np.float32)
    handles.resolve(push(SOME, OTHERS, handle=1, ahead_handle=2), [OTHERS, SOME, values], table)
    for known, ahead_known, sent in ((True, True, []), (True, False, [OTHERS]), (False, True, [SOME])):
        asked = push(SOME, OTHERS, handle=1, known=known, ahead_handle=2, ahead_known=ahead_known)
        arrays = handles.resolve(asked, [*sent, values], table)
        assert arrays is not None and arrays[2] is values
        assert np.array_equal(arrays[0], OTHERS) and np.array_equal(arrays[1], SOME)


def test_a_push_of_nothing_that_looks_ahead_has_its_arrays_in_order() -> None:
    handles, table = KeyLists(), a_table()
    none, nothing = np.empty(0, np.uint64), np.empty(0, np.float32)
    handles.resolve(push(none, OTHERS, ahead_handle=2), [OTHERS, none, nothing], table)
    arrays = handles.resolve(push(none, OTHERS, ahead_handle=2, ahead_known=True), [none, nothing], table)
    assert arrays is not None and [len(array) for array in arrays] == [4, 0, 0]


def test_keys_are_kept_once_for_tables_that_share_them() -> None:
    handles, weights, counts = KeyLists(), a_table(), a_table()
    handles.resolve(pull(SOME, 1, False), [SOME], weights)
    found = handles.resolve(pull(SOME, 1, True), [], counts)
    assert found is not None and len(handles) == 1
    assert handles.bytes == 512 + 3 * SOME.nbytes  # the keys, and rows in two tables


def test_a_table_that_is_gone_is_not_kept_alive_by_its_lists() -> None:
    handles, table = KeyLists(), a_table()
    handles.resolve(pull(SOME, 1, False), [SOME], table)
    del table
    again = a_table()
    assert handles.resolve(pull(SOME, 1, True), [], again) is not None
    assert handles.bytes == 512 + 2 * SOME.nbytes


# ------------------------------------------------------------ rows


@pytest.mark.parametrize("sort", [Dense, Sparse])
def test_a_known_list_goes_to_the_rows_that_its_keys_have(sort: type[Dense] | type[Sparse]) -> None:
    table, twin, ones = a_table(sort), a_table(sort), np.ones((4, 1), np.float32)
    table.row_cache.register(SOME)
    for _ in range(5):
        assert table.check_keys(SOME) is None
        table.push(SOME, ones)
        twin.push(SOME.copy(), ones)
        assert np.array_equal(table.pull(SOME), twin.pull(SOME.copy()))
    assert (table.row_cache.rows(SOME) is not None) == (sort is Sparse) and twin.row_cache.rows(SOME) is None


def test_rows_are_searched_for_again_when_they_have_moved() -> None:
    table, one = a_table(Sparse), np.ones((4, 1), np.float32)
    table.row_cache.register(SOME)
    assert table.check_keys(SOME) is None
    for _ in range(3):
        table.push(SOME, one)
    before = table.row_cache.rows(SOME)
    table.storage.layout += 1
    after = table.row_cache.rows(SOME)
    assert before is not None and after is not None and after is not before


def test_keys_without_rows_are_looked_for_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    table, looked = a_table(Sparse), []
    table.row_cache.register(SOME)
    assert table.check_keys(SOME) is None
    find = table.storage.find
    monkeypatch.setattr(table.storage, "find", lambda keys: looked.append(1) or find(keys))  # type: ignore[func-returns-value]
    for _ in range(100):
        assert (table.pull(SOME) == 0).all()
    assert len(looked) == 6  # at the 2nd, 4th, 8th, ... use
    table.push(SOME, np.ones((4, 1), np.float32))
    for _ in range(100):
        assert (table.pull(SOME) == 1).all()
    assert len(looked) == 7


def test_keys_that_are_not_held_here_are_refused_however_often_they_are_named() -> None:
    handles, table = KeyLists(), ServerTable(Dense(rows=SPAN), [KeyRange(0, 400)])
    for known in (False, True, True):
        arrays = handles.resolve(pull(SOME, 1, known), [] if known else [SOME], table)
        assert arrays is not None
        assert "not held here" in (table.check_keys(arrays[0]) or "")


def test_the_hash_of_a_list_depends_on_its_order_and_length() -> None:
    lists = [SOME, OTHERS, SOME[:3], SOME[::-1].copy(), keys_of(), keys_of(0), keys_of(0, 0)]
    assert len({crc_of(keys) for keys in lists}) == len(lists)
    assert all(0 <= crc_of(keys) < 1 << 61 for keys in lists)


# ------------------------------------------------------------ a client's side


def share(rows: int, server: str = "s") -> ServerShare:
    return ServerShare(server, 0, m.EVERYWHERE, [(0, rows)], rows, (0, SPAN))


def answered(names: KeyCache, request: int, listed: KeyList, server: str = "s") -> bool:
    """Send a list and get its response; return whether the server knew it."""
    name, sent = names.handle_for(request, listed, share(len(listed), server), listed.keys)
    known = name.known
    assert bool(sent) != known
    names.answered(request)
    names.closed(request)
    return known


def test_a_list_has_a_number_at_once_and_is_known_when_that_was_answered() -> None:
    names, listed = KeyCache(), KeyList(SOME)
    first, sent = names.handle_for(1, listed, share(4), listed.keys)
    # The first is still in flight.
    second, also = names.handle_for(2, listed, share(4), listed.keys)
    assert first is second and first.number == 1 and sent and also
    names.answered(1)
    assert names.handle_for(3, listed, share(4), listed.keys) == (first, [])
    assert list(names.stats().values()) == [1, 2, 0, 8 * 4]


def test_each_server_and_each_split_has_a_number_of_its_own() -> None:
    names, listed = KeyCache(), KeyList(SOME)
    assert not answered(names, 1, listed, "s") and not answered(names, 2, listed, "t")
    half = ServerShare("s", 0, m.EVERYWHERE, [(0, 1), (1, 4)], 4, (0, SPAN))
    name, sent = names.handle_for(3, listed, half, listed.keys)
    assert name.number == 2 and sent and not name.known


def test_keys_that_do_not_come_again_have_no_number() -> None:
    names = KeyCache()
    assert names.handle_for(1, None, share(4), SOME)[0] is NO_HANDLE
    # A filter chose other keys.
    assert names.handle_for(2, KeyList(SOME.copy()), share(4), SOME)[0] is NO_HANDLE
    few = KeyList(SOME[:3])
    assert names.handle_for(3, few, share(3), few.keys)[0] is NO_HANDLE
    assert list(names.stats().values()) == [0, 0, 0, 0]


def test_lists_beyond_what_a_client_may_name_are_sent_and_the_others_stay_known() -> None:
    names = KeyCache()
    names.max_keys = 9
    lists = [KeyList(SOME + np.uint64(n)) for n in range(4)]
    hits = [answered(names, 10 * turn + n, one) for turn in range(3) for n, one in enumerate(lists)]
    assert hits == [False] * 4 + [True, True, False, False] * 2


def test_a_list_that_nobody_has_any_more_makes_room_and_its_number_is_given_again() -> None:
    names, listed = KeyCache(), KeyList(SOME)
    names.max_keys = 4
    assert not answered(names, 1, listed) and answered(names, 2, listed)
    del listed
    other = KeyList(OTHERS)
    name, sent = names.handle_for(3, other, share(4), other.keys)
    assert name.number == 1 and not name.known and sent


def test_no_list_is_named_where_the_limit_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HANDLE_KEYS", 0)
    names, listed = KeyCache(), KeyList(SOME)
    assert not any(answered(names, request, listed) for request in range(3))


def test_what_was_forgotten_is_sent_whole_once_and_named_no_more() -> None:
    names, listed = KeyCache(), KeyList(SOME)
    answered(names, 1, listed)
    name, sent = names.handle_for(2, listed, share(4), listed.keys)
    asked = pull(SOME, name.number, True, request=2)
    whole = names.with_keys(asked, sent, list)
    assert whole is not None and isinstance(whole[0], m.Pull)
    assert whole[0] == msgspec.structs.replace(asked, handle=0, known=False, crc=0)
    assert np.array_equal(whole[1][0], SOME)
    assert names.with_keys(whole[0], whole[1], list) is None  # a repeated Forgot
    assert list(names.stats().values()) == [1, 1, 1, 0]
    # That server has no room.
    assert not answered(names, 3, listed) and not answered(names, 4, listed)


def test_a_push_whose_keys_were_forgotten_brings_all_of_them_in_order() -> None:
    names, mine, ahead, values = KeyCache(), KeyList(SOME), KeyList(OTHERS), np.ones(4, np.float32)
    answered(names, 1, mine)
    also, first = names.handle_for(2, ahead, share(4), ahead.keys)
    name, second = names.handle_for(2, mine, share(4), mine.keys)
    assert first and not second
    asked = push(SOME, OTHERS, request=2, handle=name.number, known=True, ahead_handle=also.number)
    whole = names.with_keys(asked, [*first, values], list)
    assert whole is not None and isinstance(whole[0], m.Push)
    assert not whole[0].known and not whole[0].handle and not whole[0].ahead_handle
    assert [array.tolist() for array in whole[1]] == [OTHERS.tolist(), SOME.tolist(), values.tolist()]


def test_segments_that_changed_hands_are_named_anew() -> None:
    names, listed = KeyCache(), KeyList(SOME)
    assert not answered(names, 1, listed) and answered(names, 2, listed)
    names.clear()
    assert not answered(names, 3, listed) and answered(names, 4, listed)
