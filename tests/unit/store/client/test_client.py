"""Drives a client by hand, as its servers would.

What it sends for a call, in which order, and what it does with the responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.errors import (
    BadKeys,
    BadValues,
    DependencyFailed,
    Fenced,
    Invalid,
    Refused,
    SegmentsLost,
    Unanswered,
    UnknownTable,
)
from shoal.keys import KeyList, KeyRange, mixed
from shoal.limits import SECOND
from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.store.table.update import SGD
from shoal.tables import Dense, Each, Sparse, Step, Table
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

ANN, BOB = "ann", "bob"  # the servers
DENSE = Dense(rows=20, apply=Each(), max_delay=1)
WIDE = Dense(rows=20, width=2)
SPARSE = Sparse(keys=20)
HASHED = Sparse(hashed=True)
STEPS = Dense(rows=20, apply=Step(slots=2), max_delay=0)
SHORT = Dense(rows=20, wire="bfloat16")
TABLES: dict[str, Table] = {
    "dense": DENSE, "wide": WIDE, "sparse": SPARSE, "hashed": HASHED, "steps": STEPS, "short": SHORT
}  # fmt: skip


def view(number: int = 1, servers: Sequence[str] = (ANN, BOB), owners: Sequence[str] = (ANN, BOB)) -> m.View:
    """Every table has two segments: by default ann holds the lower half, bob the upper half."""
    members = [m.Member(name, 90 + i, "server", f"at {name}") for i, name in enumerate(servers)]
    tables = [
        m.TablePlaces(i, name, spec, [0, spec.span // 2], [m.Replicas(1, [owner] if owner else []) for owner in owners])
        for i, (name, spec) in enumerate(TABLES.items(), 1)
    ]
    return m.View(1, number, 0, [*members, m.Member("me", 7, "client", "")], tables)


@dataclass
class Desk:
    """A client, and the messages that it sent."""

    client: Client
    now: int = SECOND
    sent: list[Send] = field(default_factory=list)

    def carry(self, effects: list[Effect]) -> list[Send]:
        news = [effect for effect in effects if isinstance(effect, Send)]
        self.sent += news
        return news

    def submit(self) -> list[Send]:
        return self.carry(self.client.submit(self.now))

    def answer(self, letter: Send, message: Any, *arrays: Any) -> list[Send]:
        return self.carry(self.client.handle(self.now, letter.to, message, [np.asarray(one) for one in arrays]))

    def values(self, letter: Send, *rows: float, versions: Sequence[int] = (0,), **more: Any) -> list[Send]:
        width = list(TABLES.values())[letter.message.table - 1].width
        answer = m.Values(letter.message.request, len(rows) // width, list(versions), **more)
        return self.answer(letter, answer, np.array(rows, np.float32))

    def counted(self, *letters: Send) -> list[Send]:
        news = []
        for letter in letters:
            news += self.answer(letter, m.Counted(letter.message.request, new=True))
        return news


def seated(role: str = "client", of: m.View | None = None) -> Desk:
    client = Client("me", role)
    client.take_view(SECOND, of or view(), 7)
    return Desk(client)


def keys_of(letter: Send) -> list[int]:
    return letter.arrays[0].tolist()


def rows_of(letter: Send) -> list[float]:
    return letter.arrays[-1].tolist()


# ---------------------------------------------------------------- repeated key lists


def test_a_list_is_sent_once_and_again_when_a_server_has_forgotten_it() -> None:
    desk, listed = seated(), KeyList(np.array([1, 2, 3, 4], np.uint64))
    desk.client.pull("sparse", listed)
    (first,) = desk.submit()
    assert (first.message.handle, first.message.known, keys_of(first)) == (1, False, [1, 2, 3, 4])
    desk.values(first, 0, 0, 0, 0)
    task = desk.client.push("sparse", listed, [1, 2, 3, 4])
    (second,) = desk.submit()
    assert (second.message.handle, second.message.known, second.message.count) == (1, True, 4)
    assert len(second.arrays) == 1 and rows_of(second) == [1, 2, 3, 4]
    (again,) = desk.answer(second, m.Forgot(second.message.request))
    assert (again.message.request, again.message.known, again.message.number) == (
        second.message.request, False, second.message.number
    )  # fmt: skip
    assert keys_of(again) == [1, 2, 3, 4] and rows_of(again) == [1, 2, 3, 4]
    assert not desk.answer(second, m.Forgot(second.message.request))  # a repeated response
    desk.now += DEFAULT.resend_most
    (resent,) = desk.carry(desk.client.tick(desk.now))
    assert keys_of(resent) == [1, 2, 3, 4]  # resends contain the keys from now on
    desk.counted(again)
    assert task.done


def test_a_list_is_sent_again_when_segments_have_changed_hands() -> None:
    desk, listed = seated(), KeyList(np.array([1, 2, 3, 4], np.uint64))
    for known in (False, True):
        desk.client.pull("sparse", listed)
        (asked,) = desk.submit()
        assert asked.message.known == known
        desk.values(asked, 0, 0, 0, 0)
    moved = view(2)
    for placed in moved.tables:
        placed.places[1] = m.Replicas(2, [BOB], since=2)
    desk.client.take_view(desk.now, moved, 7)
    desk.client.pull("sparse", listed)
    (asked,) = desk.submit()
    assert not asked.message.known and keys_of(asked) == [1, 2, 3, 4]


# ---------------------------------------------------------------- pushes


def test_keys_are_sorted_and_repeats_added_up_before_they_are_sent() -> None:
    desk = seated()
    task = desk.client.push("sparse", [15, 3, 15, 1], [1, 2, 10, 4])
    first, second = desk.submit()
    assert (first.to, keys_of(first), rows_of(first)) == (ANN, [1, 3], [4, 2])
    assert (second.to, keys_of(second), rows_of(second)) == (BOB, [15], [11])
    assert not task.done
    desk.counted(second, first)
    assert task.done and task.result() is None


def test_a_server_that_has_no_part_in_a_push_is_not_troubled() -> None:
    desk = seated()
    task = desk.client.push("sparse", [1], [1])
    (only,) = desk.submit()
    assert only.to == ANN
    desk.counted(only)
    assert task.done


@pytest.mark.parametrize("keys", [slice(8, 12), KeyRange(8, 12), range(8, 12)])
def test_a_range_is_pushed_and_pulled_as_a_range(keys: Any) -> None:
    desk = seated()
    desk.client.push("dense", keys, [1, 2, 3, 4])
    first, second = desk.submit()
    for letter, values in ((first, [1, 2]), (second, [3, 4])):
        assert (letter.message.start, letter.message.stop) == (8, 12)
        assert [array.tolist() for array in letter.arrays] == [values]
    task = desk.client.pull("dense", keys)
    first, second = desk.submit()
    assert (first.message.start, first.message.stop, first.arrays) == (8, 12, [])
    desk.values(second, 7, 8)
    desk.values(first, 5, 6)
    assert task.result().tolist() == [5, 6, 7, 8]


def test_a_slice_from_the_start_needs_no_start() -> None:
    desk = seated()
    desk.client.pull("dense", slice(None, 3))
    (letter,) = desk.submit()
    assert (letter.message.start, letter.message.stop) == (0, 3)


def test_a_range_of_a_sparse_table_is_pushed_as_a_list() -> None:
    desk = seated()
    desk.client.push("sparse", range(9, 11), [1, 2])
    assert [keys_of(letter) for letter in desk.submit()] == [[9], [10]]


def test_another_vector_with_the_same_keys_is_pushed_to_another_table() -> None:
    desk = seated()
    keys = np.array([3, 15], np.uint64)
    desk.client.push("sparse", keys, [1, 2])
    desk.client.push("dense", keys, [3, 4])
    assert [(letter.message.table, keys_of(letter)) for letter in desk.submit()] == [
        (3, [3]),
        (3, [15]),
        (1, [3]),
        (1, [15]),
    ]


def test_pushes_are_numbered_and_say_below_which_number_all_are_over() -> None:
    desk = seated()
    for _ in range(3):
        desk.client.push("sparse", [1], [1])
    letters = desk.submit()
    told = [(one.message.stream, one.message.number, one.message.floor) for one in letters]
    assert told == [(-7, 0, 0), (-7, 1, 0), (-7, 2, 0)]
    desk.counted(letters[0], letters[2])
    desk.client.push("sparse", [1], [1])
    (letter,) = desk.submit()
    assert (letter.message.number, letter.message.floor) == (3, 1)


def test_push_pull_brings_the_new_rows_in_the_callers_order() -> None:
    desk = seated()
    task = desk.client.push_pull("sparse", [15, 3, 15], [1, 2, 3])
    first, second = desk.submit()
    assert first.message.pull and second.message.pull
    desk.values(first, 33)
    desk.values(second, 55)
    assert task.result().tolist() == [55, 33, 55]


@pytest.mark.parametrize(
    ("table", "keys", "values", "error"),
    [
        ("dense", [20], [1], BadKeys),
        ("dense", [-1], [1], BadKeys),
        ("dense", [0.5], [1], BadKeys),
        ("dense", range(15, 21), [1] * 6, BadKeys),
        ("dense", slice(5), [1] * 4, BadValues),
        ("hashed", range(3), [1] * 3, BadKeys),
        ("dense", [1], [np.nan], BadValues),
        ("dense", [1], [1e39], BadValues),
        ("dense", [1, 2], [1], BadValues),
        ("wide", [1], [[1, 2, 3]], BadValues),
        ("steps", [1], [1], Invalid),
        ("nowhere", [1], [1], UnknownTable),
    ],
)
def test_nothing_bad_is_ever_sent(table: str, keys: Any, values: Any, error: type[Exception]) -> None:
    desk = seated()
    with pytest.raises(error):
        desk.client.push(table, keys, values)
    assert desk.submit() == []


# ---------------------------------------------------------------- pulls


def test_answers_come_back_in_the_callers_order() -> None:
    desk = seated()
    task = desk.client.pull("wide", [12, 3, 12, 0])
    first, second = desk.submit()
    assert (keys_of(first), keys_of(second)) == ([0, 3], [12])
    desk.values(second, 5, 6)
    desk.values(first, 1, 2, 3, 4)
    assert task.result().tolist() == [[5, 6], [3, 4], [5, 6], [1, 2]]


def test_one_key_is_pulled_as_one_row() -> None:
    desk = seated()
    task = desk.client.pull("dense", 3)
    (letter,) = desk.submit()
    desk.values(letter, 9)
    assert task.result().tolist() == [9]


def test_no_keys_are_no_rows() -> None:
    desk = seated()
    task = desk.client.pull("wide", [])
    assert desk.submit() == []
    assert task.result().shape == (0, 2)


def test_a_task_knows_which_versions_it_was_answered_from() -> None:
    desk = seated()
    task = desk.client.pull("dense", [1, 11])
    first, second = desk.submit()
    desk.values(first, 1, versions=[4])
    desk.values(second, 2, versions=[6])
    assert task.versions == {ANN: [4], BOB: [6]}
    desk.client.push("dense", [1, 11], [1, 1])  # computed from the last pull
    assert [letter.message.read for letter in desk.submit()] == [[4], [6]]
    again = desk.client.pull("dense", [1])
    desk.values(desk.submit()[0], 1, versions=[9])
    desk.client.push("dense", [1, 11], [1, 1], of=task)  # computed from the first pull
    assert [letter.message.read for letter in desk.submit()] == [[4], [6]]
    desk.client.push("dense", [1, 11], [1, 1], of=again)
    assert [letter.message.read for letter in desk.submit()] == [[9], []]


def test_the_live_keys_of_a_range_come_in_parts_and_in_order() -> None:
    desk = seated()
    task = desk.client.pull("sparse", slice(2, 18))
    first, second = desk.submit()
    live = [np.array(one, np.uint64) for one in ([2, 4], [5], [12, 17])]
    rows = [np.array(one, np.float32) for one in ([1, 2], [3], [4, 5])]
    (more,) = desk.answer(first, m.Values(first.message.request, 2, [1], resume=5), live[0], rows[0])
    assert (more.to, more.message.start, more.message.stop) == (ANN, 5, 18)
    assert desk.answer(second, m.Values(second.message.request, 2, [1]), live[2], rows[2]) == []
    assert not task.done
    desk.answer(more, m.Values(more.message.request, 1, [1]), live[1], rows[1])
    found = task.result()
    assert (found.keys.tolist(), found.values.tolist()) == ([2, 4, 5, 12, 17], [1, 2, 3, 4, 5])


def test_hashed_ids_travel_mixed_and_come_back_as_they_were() -> None:
    desk = seated()
    ids = [7, 0, 123_456_789_012, 7]
    stored = mixed(np.array(ids, np.uint64)).tolist()
    desk.client.push("hashed", ids, [1, 2, 3, 10])
    letters = desk.submit()
    pushed = {key: value for letter in letters for key, value in zip(keys_of(letter), rows_of(letter), strict=True)}
    assert pushed == {stored[0]: 11, stored[1]: 2, stored[2]: 3}
    task = desk.client.pull("hashed", ids)
    for letter in desk.submit():
        desk.values(letter, *(pushed[key] for key in keys_of(letter)))
    assert task.result().tolist() == [11, 2, 3, 11]


def test_all_of_a_hashed_table_comes_back_by_its_ids() -> None:
    desk = seated()
    task = desk.client.pull("hashed", slice(0, limits.KEY_LIMIT))
    stored = mixed(np.array([5, 3], np.uint64))
    for letter, key in zip(desk.submit(), stored, strict=True):
        answer = m.Values(letter.message.request, 1, [1])
        desk.answer(letter, answer, np.array([key]), np.array([float(key % 100)], np.float32))
    found = task.result()
    assert found.keys.tolist() == [3, 5]
    assert found.values.tolist() == [float(stored[1] % 100), float(stored[0] % 100)]


@pytest.mark.parametrize("keys", [slice(0, 5), range(3), KeyRange(1, limits.KEY_LIMIT)])
def test_a_hashed_table_has_no_ranges(keys: Any) -> None:
    with pytest.raises(BadKeys, match="hashed"):
        seated().client.pull("hashed", keys)


# ---------------------------------------------------------------- order, window


def test_a_task_follows_the_tasks_it_names() -> None:
    desk = seated()
    top = desk.client.push("sparse", [1], [1])
    left = desk.client.push("sparse", [2], [1], after=[top])
    right = desk.client.push("sparse", [3], [1], after=[top])
    end = desk.client.pull("sparse", [4], after=[left, right])
    (one,) = desk.submit()
    assert keys_of(one) == [1]
    assert end.waits_for == "the tasks it follows"
    two, three = desk.counted(one)
    assert (keys_of(two), keys_of(three)) == ([2], [3])
    assert desk.counted(three) == []
    (four,) = desk.counted(two)
    assert keys_of(four) == [4]
    assert top.done and left.done and right.done and not end.done


def test_what_follows_a_failed_task_is_not_sent() -> None:
    desk = seated()
    first = desk.client.push("sparse", [1], [1])
    second = desk.client.pull("sparse", [2], after=[first])
    third = desk.client.pull("sparse", [3], after=[second])
    other = desk.client.pull("sparse", [4])
    one, four = desk.submit()
    desk.answer(one, m.Refusal(one.message.request, "full", "no memory"))
    with pytest.raises(Refused, match="ann refused: no memory"):
        first.result()
    for task in (second, third):
        with pytest.raises(DependencyFailed, match="no memory"):
            task.result()
    desk.values(four, 1)
    assert other.done and other.error is None
    assert len(desk.sent) == 2


def test_more_than_the_window_waits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_WINDOW", 30)
    desk = seated()
    # 24 bytes each.
    tasks = [desk.client.push("sparse", [key, key + 1], [1, 1]) for key in (1, 3, 5)]
    (one,) = desk.submit()
    assert tasks[1].waits_for == "room in the window"
    (three,) = desk.counted(one)
    assert keys_of(three) == [3, 4]


def test_a_call_larger_than_the_window_is_let_through_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_WINDOW", 30)
    desk = seated()
    desk.client.push("sparse", range(9), [1] * 9)
    desk.client.push("sparse", [1], [1])
    (whole,) = desk.submit()
    assert len(keys_of(whole)) == 9
    assert len(desk.counted(whole)) == 1


def test_what_a_server_holds_leaves_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENT_WINDOW", 30)
    desk = seated()
    task = desk.client.push("sparse", [1, 2], [1, 1])
    desk.client.push("sparse", [3, 4], [1, 1])
    (one,) = desk.submit()
    held = m.RequestHeld(one.message.request, "slots 1 of step 0")
    (two,) = desk.answer(one, held)
    assert task.waits_for == "ann: slots 1 of step 0"
    assert desk.answer(one, held) == []
    desk.counted(one, two)
    desk.client.push("sparse", [5, 6], [1, 1])
    desk.client.push("sparse", [7, 8], [1, 1])
    assert len(desk.submit()) == 1  # the window is accounted correctly: one at a time again


def test_busy_is_asked_again_when_it_said() -> None:
    desk = seated()
    task = desk.client.push("sparse", [1], [1])
    (letter,) = desk.submit()
    desk.answer(letter, m.Busy(letter.message.request, limits.BUSY_RETRY))
    assert task.waits_for == "ann: busy"
    assert desk.carry(desk.client.tick(desk.now + limits.BUSY_RETRY - 1)) == []
    assert desk.carry(desk.client.tick(desk.now + limits.BUSY_RETRY)) == [letter]


def test_no_answer_for_long_is_an_error_that_names_who() -> None:
    desk = seated()
    task = desk.client.push("sparse", [1, 11], [1, 1])
    first, _ = desk.submit()
    desk.counted(first)
    desk.client.tick(desk.now + DEFAULT.silence)
    with pytest.raises(Unanswered, match="no answer from bob for 10"):
        task.result()
    assert not desk.client.dispatcher.inflight.requests


def test_a_late_answer_to_what_is_over_is_ignored() -> None:
    desk = seated()
    desk.client.push("sparse", [1], [1])
    (letter,) = desk.submit()
    desk.counted(letter, letter)
    assert desk.client.session.counts["late answers"] == 1


# ---------------------------------------------------------------- views


def test_nothing_is_sent_before_the_client_is_a_member() -> None:
    client = Client("me")
    task = client.refresh()
    assert client.submit(SECOND) == []
    with pytest.raises(UnknownTable):
        client.pull("dense", [1])
    client.take_view(SECOND, view(), 7)
    assert not task.done
    assert client.dispatcher.inflight.requests  # the request is in flight


@pytest.mark.parametrize("refreshed", [True, False])
def test_what_was_moved_is_sent_again_by_the_newer_view_under_the_same_number(refreshed: bool) -> None:
    desk = seated()
    desk.client.push("sparse", [2], [1])
    task = desk.client.push("sparse", [1, 11], [1, 1])
    early, first, second = desk.submit()
    desk.counted(second)
    newer = view(2, owners=(BOB, BOB))
    if not refreshed:  # the view arrived before the response
        desk.client.take_view(desk.now, newer, 7)
    moved = desk.answer(first, m.SegmentsMoved(first.message.request, 2))
    if refreshed:
        (refresh,) = moved
        assert (refresh.to, type(refresh.message)) == ("coordinator", m.Refresh)
        # The view is enough, whenever the response arrives.
        moved = desk.client.take_view(desk.now, newer, 7)
        assert desk.answer(refresh, m.Done(refresh.message.request)) == []
    (again,) = moved
    assert (again.to, keys_of(again), again.message.view) == (BOB, [1, 11], 2)
    for name in ("stream", "number"):
        assert getattr(again.message, name) == getattr(first.message, name)
    assert again.message.request != first.message.request
    assert desk.counted(first) == []  # a response to the first try has no effect now
    assert not task.done
    desk.counted(again, early)
    assert task.done


def test_what_is_sent_again_has_the_same_bits_though_the_caller_changed_his_array() -> None:
    desk, values = seated(), np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    desk.client.push("short", slice(8, 12), values)
    first, second = desk.submit()
    assert [(letter.arrays[0].dtype, letter.message.form) for letter in (first, second)] == [
        (np.uint16, "bfloat16")
    ] * 2
    values[:] = 7  # the shortened values are a copy
    desk.now += 2 * DEFAULT.resend_first
    again = desk.carry(desk.client.tick(desk.now))
    assert [rows_of(letter) for letter in again] == [rows_of(first), rows_of(second)]
    desk.client.take_view(desk.now, view(2, owners=(BOB, BOB)), 7)
    (moved,) = desk.answer(first, m.SegmentsMoved(first.message.request, 2))
    assert rows_of(moved) == rows_of(first) + rows_of(second) and moved.message.form == "bfloat16"


def test_an_answer_is_read_in_the_form_that_it_names() -> None:
    desk = seated()
    task = desk.client.pull("short", slice(8, 12))
    first, second = desk.submit()
    desk.answer(first, m.Values(first.message.request, 2, [0], form="bfloat16"), np.array([0x3F80, 0x4000], np.uint16))
    desk.values(second, 3e38, 3.0)  # maybe too large for the form: sent unshortened
    assert task.result().tolist() == [1.0, 2.0, np.float32(3e38), 3.0]


def test_a_moved_pull_is_put_together_from_the_second_try_alone() -> None:
    desk = seated()
    task = desk.client.pull("sparse", slice(0, 20))
    first, second = desk.submit()
    two, six = np.array([2], np.uint64), np.array([6], np.float32)
    desk.answer(second, m.Values(second.message.request, 1, [1]), two + np.uint64(10), six)
    desk.client.take_view(desk.now, view(2, owners=(BOB, BOB)), 7)
    (again,) = desk.answer(first, m.SegmentsMoved(first.message.request, 2))
    desk.answer(again, m.Values(again.message.request, 1, [1]), two, six)
    assert task.result().keys.tolist() == [2]


def test_a_server_that_is_gone_ends_what_was_asked_of_it() -> None:
    desk = seated()
    task = desk.client.push("sparse", [1, 11], [1, 1])
    other = desk.client.push("sparse", [1], [1])
    desk.submit()
    desk.client.take_view(desk.now, view(2, servers=(ANN,), owners=(ANN, "")), 7)
    with pytest.raises(SegmentsLost, match="bob"):
        task.result()
    assert not other.done
    late = desk.client.pull("sparse", [1])
    desk.submit()
    with pytest.raises(SegmentsLost):
        late.result()


def test_a_table_that_was_dropped_ends_what_was_asked_of_it() -> None:
    desk = seated()
    sent = desk.client.push("sparse", [1], [1])
    desk.submit()
    queued = desk.client.push("sparse", [1], [1])
    empty = m.View(1, 2, 0, view().members, [])
    desk.carry(desk.client.take_view(desk.now, empty, 7))
    for task in (sent, queued):
        with pytest.raises(UnknownTable):
            task.result()


def test_a_fenced_client_fails_all_and_starts_afresh() -> None:
    desk = seated()
    sent = desk.client.push("sparse", [1], [1])
    (letter,) = desk.submit()
    queued = desk.client.push("sparse", [2], [1], after=[sent])
    unsent = desk.client.push("sparse", [2], [1])
    desk.client.fenced()
    for task in (sent, queued, unsent):
        with pytest.raises(Fenced, match="incarnation 7"):
            task.result()
    assert desk.counted(letter) == []
    task = desk.client.push("sparse", [1], [1])
    assert desk.submit() == []  # not a member yet
    (again,) = desk.carry(desk.client.take_view(desk.now, view(2), 8))
    assert (again.message.stream, again.message.number) == (-8, 0)
    assert again.message.request >> 32 == 8
    desk.counted(again)
    assert task.done


def test_a_refusal_is_raised_as_what_it_is() -> None:
    desk = seated()
    for kind, error in (("keys", BadKeys), ("values", BadValues), ("table", Invalid), ("full", Refused)):
        task = desk.client.push("sparse", [1], [1])
        (letter,) = desk.submit()
        desk.answer(letter, m.Refusal(letter.message.request, kind, "because"))
        with pytest.raises(error, match="because"):
            task.result()


def test_a_rollback_ends_what_was_under_way() -> None:
    desk = seated()
    task = desk.client.push("sparse", [1], [1])
    (letter,) = desk.submit()
    desk.answer(letter, m.Rollback(letter.message.request, 1))
    with pytest.raises(Refused, match="checkpoint"):
        task.result()


def test_tables_are_made_and_dropped_by_the_coordinator() -> None:
    desk = seated()
    made = desk.client.create("new", Dense(rows=3, update=SGD()))
    dropped = desk.client.drop("dense")
    bounded = desk.client.set_max_delay("sparse", 4)
    one, two, three = desk.submit()
    assert {one.to, two.to, three.to} == {"coordinator"}
    assert (type(one.message), type(two.message), type(three.message)) == (m.Create, m.Drop, m.Delay)
    for letter in (one, two):
        desk.answer(letter, m.Done(letter.message.request))
    assert made.done and dropped.done and not bounded.done
    desk.answer(three, m.Refusal(three.message.request, "table", "no table 'sparse'"))
    with pytest.raises(Invalid, match="no table"):
        bounded.result()
    with pytest.raises(Invalid):
        desk.client.create("bad", Dense(rows=0))


def test_stats_are_added_up_over_the_servers() -> None:
    desk = seated()
    task = desk.client.stats("dense")
    first, second = desk.submit()
    desk.answer(first, m.TableStatusReply(first.message.request, {"rows": 3, "busy": 1}, [2, 1]))
    desk.answer(second, m.TableStatusReply(second.message.request, {"rows": 4}, [0, 1, 5]))
    facts = task.result()
    assert (facts["rows"], facts["busy"], facts["staleness"]) == (7, 1, [2, 2, 5])
    assert facts["servers"] == {ANN: {"rows": 3, "busy": 1}, BOB: {"rows": 4}}


# ---------------------------------------------------------------- workers


def entered(desk: Desk, at: tuple[int, int] = (0, 0), table: str = "dense") -> Task:
    """Make the worker's first pull, and answer it."""
    task = desk.client.pull(table, [1])
    first, second = desk.submit()
    desk.values(first, 0, entered=at[0])
    desk.values(second, entered=at[1])
    return task


def test_a_workers_first_pull_enters_it_at_every_server() -> None:
    desk = seated("worker")
    desk.client.pull("dense", [1])
    desk.client.pull("dense", [2])
    first, second = desk.submit()  # the second pull waits for the first
    assert (first.to, keys_of(first), second.to, keys_of(second)) == (ANN, [1], BOB, [])
    assert first.message.enter and second.message.enter
    desk.values(first, 0, entered=3)
    (third,) = desk.values(second, entered=5)
    assert not third.message.enter
    # The highest clock that a server returned.
    assert (desk.client.session.clock, desk.client.session.floor) == (5, 5)
    assert (third.message.clock, third.message.entered) == (5, 5)


def test_a_worker_that_pushes_first_enters_with_an_empty_pull() -> None:
    desk = seated("worker")
    task = desk.client.push("dense", [1], [1])
    first, second = desk.submit()
    assert isinstance(first.message, m.Pull) and first.message.enter and keys_of(first) == []
    desk.values(first, entered=0)
    pushes = desk.values(second, entered=4)
    assert [type(one.message) for one in pushes] == [m.Push, m.Push]
    assert [one.message.step for one in pushes] == [5, 5]
    desk.counted(*pushes)
    assert task.done


def test_every_push_of_a_worker_ends_a_step_and_tells_every_server() -> None:
    desk = seated("worker")
    entered(desk, (2, 2))
    for step in (3, 4):
        task = desk.client.push("dense", [1], [1])
        first, second = desk.submit()
        assert (first.message.step, second.message.step) == (step, step)
        assert (second.message.count, tuple(second.arrays)) == (0, ())
        desk.counted(first, second)
        assert task.done
    assert desk.client.session.clock == 4
    desk.client.pull("dense", [1])
    assert desk.submit()[0].message.clock == 4


def test_one_step_may_push_to_several_tables() -> None:
    desk = seated("worker")
    entered(desk)
    entered(desk, table="sparse")
    desk.client.push("dense", [1], [1], step=1)
    desk.client.push("sparse", [1], [1], step=1)
    assert [letter.message.step for letter in desk.submit()] == [1, 1, 1, 1]
    desk.client.push("dense", [1], [1])
    assert desk.submit()[0].message.step == 2


def test_a_worker_enters_its_second_table_at_the_clock_it_has() -> None:
    desk = seated("worker")
    entered(desk, (3, 3))
    desk.client.pull("sparse", [1])
    first, _ = desk.submit()
    assert first.message.enter and first.message.entered == 3


def test_tables_are_entered_one_after_another() -> None:
    desk = seated("worker")
    desk.client.pull("dense", [1])
    desk.client.pull("sparse", [1])
    first, second = desk.submit()
    assert first.message.table == second.message.table == 1
    desk.values(first, 0, entered=0)
    third, _ = desk.values(second, entered=6)
    assert (third.message.table, third.message.entered) == (3, 6)


def test_steps_at_or_below_the_floor_are_not_this_workers() -> None:
    desk = seated("worker")
    entered(desk, (4, 4))
    with pytest.raises(Invalid, match="start at 5"):
        desk.client.push("dense", [1], [1], step=4)


def test_a_prefetched_pull_names_the_clock_at_which_it_will_be_used() -> None:
    desk = seated("worker")
    entered(desk)
    desk.client.pull("dense", [1], clock=3)
    assert desk.submit()[0].message.clock == 3


def test_only_a_worker_has_a_clock() -> None:
    desk = seated("client")
    with pytest.raises(Invalid, match="only a worker"):
        desk.client.park()
    with pytest.raises(Invalid, match="only a worker"):
        desk.client.push("dense", [1], [1], step=1)
    desk.client.push("dense", [1], [1])
    (letter,) = desk.submit()
    assert letter.message.step == 0
    desk.client.pull("dense", [1])
    assert desk.submit()[0].message.clock == m.NO_CLOCK


def test_parking_follows_what_is_under_way_and_begins_a_new_spell() -> None:
    desk = seated("worker")
    entered(desk)
    desk.client.push("dense", [1], [1])
    pushes = desk.submit()
    task = desk.client.park()
    assert desk.submit() == []
    parks = desk.counted(*pushes)
    assert [(one.to, one.message.spell) for one in parks] == [(ANN, 0), (BOB, 0)]
    back = desk.client.pull("dense", [1])
    assert desk.submit() == []  # a pull after a park waits for the park
    desk.answer(parks[0], m.Done(parks[0].message.request))
    first, second = desk.answer(parks[1], m.Done(parks[1].message.request))
    assert task.done
    assert first.message.enter and (first.message.spell, first.message.entered) == (1, 0)
    desk.values(first, 0, entered=1)
    desk.values(second, entered=8)
    assert back.done and desk.client.session.clock == desk.client.session.floor == 8


def test_a_worker_that_never_entered_parks_without_a_word() -> None:
    desk = seated("worker")
    task = desk.client.park()
    assert desk.submit() == []
    assert task.done


def test_a_worker_that_could_not_enter_tries_again() -> None:
    desk = seated("worker")
    failed = desk.client.pull("dense", [1])
    first, _ = desk.submit()
    desk.answer(first, m.Refusal(first.message.request, "full", "no memory"))
    assert failed.error is not None
    desk.client.pull("dense", [1])
    assert all(letter.message.enter for letter in desk.submit())


def test_a_fenced_worker_has_no_clock_any_more() -> None:
    desk = seated("worker")
    entered(desk, (6, 6))
    desk.client.fenced()
    desk.client.take_view(desk.now, view(2), 8)
    desk.client.pull("dense", [1])
    first, _ = desk.submit()
    message = first.message
    assert isinstance(message, m.Pull)
    assert (message.enter, message.spell, message.entered, message.incarnation) == (True, 0, 0, 8)


# ---------------------------------------------------------------- slots


def test_a_slot_tells_every_server_and_names_itself() -> None:
    desk = seated("worker")
    desk.client.push("steps", [1], [1], slot=(0, 5))
    first, second = desk.submit()  # a step table has no clocks: no enter
    for letter in (first, second):
        message = letter.message
        assert isinstance(message, m.Push)
        assert (message.stream, message.number, message.step) == (0, 5, 0)
    assert second.message.count == 0


def test_a_pull_for_a_slot_waits_for_its_step() -> None:
    desk = seated("worker")
    desk.client.pull("steps", [1], slot=(0, 5))
    assert desk.submit()[0].message.clock == 2
    desk.client.push_pull("steps", [1], [1], slot=(0, 5))
    assert desk.submit()[0].message.clock == 3  # the result of its own step
    with pytest.raises(Invalid, match="name a clock"):
        desk.client.pull("dense", [1], slot=(0, 1))


def test_a_void_slot_is_pushed_empty() -> None:
    desk = seated("worker")
    desk.client.push("steps", [1], [np.nan], slot=(0, 2), void=True)
    for letter in desk.submit():
        message = letter.message
        assert isinstance(message, m.Push)
        assert (message.void, message.count, message.number, tuple(letter.arrays)) == (True, 0, 2, ())


@pytest.mark.parametrize(("slot", "reason"), [((1, 0), "endless"), ((0, -1), "needs 0 to")])
def test_a_slot_that_cannot_be_is_refused(slot: tuple[int, int], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        seated().client.push("steps", [1], [1], slot=slot)


def test_a_step_table_takes_no_step_numbers() -> None:
    with pytest.raises(Invalid, match="leave step out"):
        seated("worker").client.push("steps", [1], [1], slot=(0, 1), step=1)


def test_a_large_push_goes_in_several_messages_with_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.store.client.split.FRAME_BYTES", 80)
    desk = seated(of=view(owners=(ANN, ANN)))
    task = desk.client.push("dense", slice(0, 20), range(20))
    first, second = desk.submit()
    assert [(one.message.first, one.message.last) for one in (first, second)] == [(0, 1), (1, m.EVERYWHERE)]
    assert [(one.message.start, one.message.stop) for one in (first, second)] == [(0, 10), (10, 20)]
    assert [rows_of(one) for one in (first, second)] == [list(range(10)), list(range(10, 20))]
    assert first.message.number == second.message.number
    desk.counted(first)
    assert not task.done
    desk.counted(second)
    assert task.done


# ---------------------------------------------------------------- found by adversarial tests


def test_a_park_that_one_server_never_answered_ends_the_spell_all_the_same() -> None:
    desk = seated("worker")
    entered(desk)
    task = desk.client.park()
    parks = desk.submit()
    desk.answer(parks[0], m.Done(parks[0].message.request))
    desk.client.tick(desk.now + DEFAULT.silence)
    assert isinstance(task.error, Unanswered)
    desk.client.pull("dense", [1])
    assert [(letter.message.spell, letter.message.enter) for letter in desk.submit()] == [(1, True), (1, True)]


def test_a_park_is_sent_although_something_before_it_failed() -> None:
    desk = seated("worker")
    entered(desk)
    pull = desk.client.pull("dense", [1])
    (letter,) = desk.submit()
    park = desk.client.park()
    assert desk.submit() == []
    desk.answer(letter, m.Refusal(letter.message.request, "keys", "no"))
    assert pull.error is not None
    assert [type(one.message) for one in desk.sent[-2:]] == [m.Park, m.Park]
    assert not park.done


@pytest.mark.parametrize(
    ("answer", "arrays"),
    [
        (lambda request: m.Values(request, 1, [0]), ()),
        (lambda request: m.Values(request, 7, [0]), (np.zeros(1, np.float32),)),
        (lambda request: m.Values(request, 2, [0]), (np.zeros(2, np.float32),)),
        (lambda request: m.Counted(request, True), ()),
        (lambda request: m.Done(request), ()),
    ],
)
def test_a_strange_answer_is_dropped_and_the_question_stays_open(answer: Any, arrays: Any) -> None:
    desk = seated()
    task = desk.client.pull("dense", [1])
    (letter,) = desk.submit()
    desk.client.handle(desk.now, letter.to, answer(letter.message.request), arrays)
    assert not task.done
    assert desk.client.session.counts["strange answers"] == 1


def test_an_answer_is_taken_only_from_whom_it_was_asked() -> None:
    desk = seated()
    task = desk.client.push("dense", [1], [1.0])
    (letter,) = desk.submit()
    desk.client.handle(desk.now, "mallory", m.Counted(letter.message.request, True), ())
    assert not task.done
    desk.answer(letter, m.Counted(letter.message.request, True))
    assert task.done
