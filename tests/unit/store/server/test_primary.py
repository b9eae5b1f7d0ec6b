"""Drives a server's part of a table by messages: what is counted, held or refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from shoal import limits
from shoal.keys import KeyRange
from shoal.store.server.outcome import HandlerResult
from shoal.store.server.primary import Primary
from shoal.store.table.update import SGD, AdaGrad, Sum
from shoal.tables import Dense, Each, Sparse, Step, Table
from shoal.timing import DEFAULT
from shoal.wire import messages as m
from shoal.wire.effects import Effect, Send

ANN, BOB = 1, 2
NAMES = {ANN: "ann", BOB: "bob"}
# Another server holds segment 1.
SEGMENTS = [(0, KeyRange(0, 4)), (2, KeyRange(8, 12)), (3, KeyRange(12, 16))]
HELD = [*range(4), *range(8, 16)]


@dataclass
class House:
    """Segments, with their incoming and outgoing messages."""

    segments: Primary
    now: int = 0
    requests: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000)))

    def push(self, who: int, number: int, keys: Any = (), values: Any = (), **more: Any) -> list[m.Message]:
        """Push these rows, and return all responses."""
        arrays: tuple[np.ndarray, ...] = ()
        start = stop = -1
        rows = np.array(values, np.float32)
        if isinstance(keys, KeyRange):
            start, stop, arrays = keys.start, keys.stop, (rows.reshape(-1),)
        elif len(keys):
            arrays = (np.array(keys, np.uint64), rows.reshape(-1))
        count = more.pop("count", rows.size // self.segments.spec.width)
        push = m.Push(
            request=more.pop("request", None) or next(self.requests),
            table=1,
            view=1,
            generation=0,
            incarnation=who,
            stream=more.pop("stream", 0 if isinstance(self.segments.spec.apply, Step) else -who),
            number=number,
            floor=more.pop("floor", 0),
            step=more.pop("step", 0),
            entered=more.pop("entered", 0),
            spell=0,
            first=more.pop("first", 0),
            last=more.pop("last", m.EVERYWHERE),
            count=count,
            start=start,
            stop=stop,
            **more,
        )
        return self.answers(self.segments.push(self.now, NAMES[who], push, more.pop("arrays", arrays)))

    def pull(self, who: int, keys: Any = tuple(HELD), clock: int = m.NO_CLOCK, **more: Any) -> list[m.Message]:
        start, stop, arrays = -1, -1, (np.array(keys if not isinstance(keys, KeyRange) else (), np.uint64),)
        if isinstance(keys, KeyRange):
            start, stop, arrays = keys.start, keys.stop, ()
        pull = m.Pull(
            request=next(self.requests),
            table=1,
            view=1,
            generation=0,
            incarnation=who,
            clock=clock,
            entered=more.pop("entered", 0),
            spell=more.pop("spell", 0),
            first=more.pop("first", 0),
            last=more.pop("last", m.EVERYWHERE),
            count=more.pop("count", len(keys) if not isinstance(keys, KeyRange) else 0),
            start=start,
            stop=stop,
            **more,
        )
        return self.answers(self.segments.pull(self.now, NAMES[who], pull, arrays))

    def enter(self, who: int) -> None:
        self.pull(who, (), enter=True)

    def answers(self, outcome: HandlerResult) -> list[m.Message]:
        """Do the computations as a server would, and return all responses."""
        self.arrays = []
        said = self._said(outcome.effects)
        works = outcome.computations
        while works:
            work, *works = works
            work.function()
            more = work.then(self.now)
            said += self._said(more.effects)
            works = more.computations + works
        return said

    def _said(self, effects: list[Effect]) -> list[m.Message]:
        sends = [effect for effect in effects if isinstance(effect, Send)]
        self.arrays += [send.arrays for send in sends]
        return [send.message for send in sends]

    def contents(self) -> dict[int, list[float]]:
        """Returns every row that differs from its initial value."""
        rows = self.segments.table.pull(np.array(HELD, np.uint64))
        return {key: row for key, row in zip(HELD, rows.tolist(), strict=True) if any(row)}

    def fact(self, name: str) -> int:
        return self.segments.facts()[0].get(name, 0)


def each(max_delay: int | None = None, inline: int = limits.INLINE_ELEMENTS, **more: Any) -> House:
    spec: Table = Dense(rows=16, update=Sum(), apply=Each(), max_delay=max_delay, **more)
    return House(Primary(1, spec, SEGMENTS, inline))


def sparse(**more: Any) -> House:
    return House(Primary(1, Sparse(keys=16, update=Sum(), **more), SEGMENTS, limits.INLINE_ELEMENTS))


def steps(slots: int = 2, max_delay: int | None = 0, inline: int = limits.INLINE_ELEMENTS, **more: Any) -> House:
    spec: Table = Dense(rows=16, update=Sum(), apply=Step(slots=slots, **more), max_delay=max_delay)
    return House(Primary(1, spec, SEGMENTS, inline))


INLINE_OR_HANDED_OUT = pytest.mark.parametrize("inline", [limits.INLINE_ELEMENTS, 0], ids=["inline", "handed out"])


# ---------------------------------------------------------------- counted on arrival


@INLINE_OR_HANDED_OUT
def test_a_push_is_counted_once_however_often_it_comes(inline: int) -> None:
    house = each(inline=inline)
    assert house.push(ANN, 0, [1, 9], [1, 2]) == [m.Counted(1, new=True)]
    for _ in range(3):
        assert [type(one) for one in house.push(ANN, 0, [1, 9], [1, 2], request=1)] == [m.Counted]
        assert house.push(ANN, 0, [1, 9], [1, 2], request=1) == [m.Counted(1, new=False)]
    assert house.contents() == {1: [1], 9: [2]}
    assert (house.fact("counted"), house.fact("repeated"), house.fact("version")) == (1, 6, 1)


def test_what_was_counted_is_never_forgotten_for_its_age() -> None:
    house = each()
    house.push(ANN, 0, [1], [1])
    house.now += 3_600 * limits.SECOND
    assert house.push(ANN, 0, [1], [1]) == [m.Counted(2, new=False)]
    assert house.contents() == {1: [1]}


def test_pushes_are_counted_in_any_order() -> None:
    house = each()
    for number in (3, 0, 2, 1, 3, 0):
        house.push(ANN, number, [1], [1])
    assert house.contents() == {1: [4]}


def test_clients_have_streams_of_their_own() -> None:
    house = each()
    house.push(ANN, 0, [1], [1])
    assert house.push(BOB, 0, [1], [1]) == [m.Counted(2, new=True)]
    assert house.contents() == {1: [2]}


def test_a_slot_that_two_workers_computed_is_counted_once_and_ticks_both_clocks() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    assert house.push(ANN, 7, [1], [1], stream=0, step=1)[0] == m.Counted(3, new=True)
    assert house.push(BOB, 7, [1], [1], stream=0, step=1)[0] == m.Counted(4, new=False)
    assert house.contents() == {1: [1]}
    assert house.segments.clocks.slowest().tolist() == [1, 1, 1]


def test_what_a_client_says_is_over_is_not_counted_any_more() -> None:
    house = each()
    house.push(ANN, 4, [1], [1], floor=3)
    assert house.push(ANN, 2, [1], [1]) == [m.Counted(2, new=False)]
    assert house.push(ANN, 3, [1], [1]) == [m.Counted(3, new=True)]
    assert house.contents() == {1: [2]}


def test_an_empty_push_is_counted_and_ticks() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    assert house.push(ANN, 0, step=1) == [m.Counted(2, new=True)]
    assert house.segments.clocks.slowest().tolist() == [1, 1, 1]
    assert house.contents() == {}


def test_a_range_of_a_dense_table_means_the_part_that_is_held_here() -> None:
    house = each()
    assert house.push(ANN, 0, KeyRange(2, 10), [1, 2, 3, 4]) == [m.Counted(1, new=True)]
    assert house.contents() == {2: [1], 3: [2], 8: [3], 9: [4]}


@INLINE_OR_HANDED_OUT
def test_a_push_for_some_segments_is_counted_there_and_nowhere_else(inline: int) -> None:
    house = each(inline=inline)
    assert house.push(ANN, 0, [8], [1], first=2, last=3) == [m.Counted(1, new=True)]
    assert house.segments.version.tolist() == [0, 1, 0]
    # The same push by another split, for all segments: only the other two count it.
    assert house.push(ANN, 0, [1, 8, 12], [1, 1, 1]) == [m.Counted(2, new=True, part=True)]
    assert house.contents() == {1: [1], 8: [1], 12: [1]}
    assert house.segments.version.tolist() == [1, 1, 1]
    assert house.push(ANN, 0, KeyRange(0, 16), [1] * 12) == [m.Counted(3, new=False)]


def test_a_range_that_is_counted_in_part_is_added_where_it_is_not() -> None:
    house = each()
    house.push(ANN, 0, KeyRange(8, 12), [1] * 4, first=2, last=3)
    house.push(ANN, 0, KeyRange(0, 16), [1] * 12)
    assert house.contents() == {key: [1] for key in HELD}


def test_a_number_far_beyond_the_mark_is_told_to_come_later() -> None:
    house = each()
    (answer,) = house.push(ANN, limits.LEDGER_WINDOW, [1], [1])
    assert isinstance(answer, m.Refusal) and "ahead of the first missing" in answer.reason
    assert house.push(ANN, limits.LEDGER_WINDOW - 1, [1], [1]) == [m.Counted(2, new=True)]
    house.enter(ANN)
    far = house.push(ANN, 0, [1], [1], step=limits.LEDGER_WINDOW + 1)
    assert isinstance(far[0], m.Refusal) and "ahead of the first missing" in far[0].reason
    assert house.contents() == {1: [1]}


# ---------------------------------------------------------------- pulls wait for the slowest worker


@INLINE_OR_HANDED_OUT
def test_a_pull_waits_for_the_slowest_worker_and_is_answered_when_it_catches_up(inline: int) -> None:
    house = each(max_delay=0, inline=inline)
    house.enter(ANN)
    house.enter(BOB)
    house.push(ANN, 0, [1], [1], step=1)
    assert house.pull(ANN, [1], clock=1) == [m.RequestHeld(4, "bob at step 0")]
    assert house.push(BOB, 0, [1], [10], step=1) == [m.Counted(5, new=True), m.Values(4, 1, [2])]
    assert house.arrays[1][0].tolist() == [11]  # both steps are in it
    assert house.fact("waited") == 1
    assert house.fact("waiting") == 0


def test_a_pull_may_run_ahead_by_the_delay() -> None:
    house = each(max_delay=2)
    house.enter(ANN)
    house.enter(BOB)
    assert isinstance(house.pull(ANN, [1], clock=2)[0], m.Values)
    assert isinstance(house.pull(ANN, [1], clock=3)[0], m.RequestHeld)
    assert isinstance(house.pull(ANN, [1])[0], m.Values)  # no clock: the current values


def test_an_entering_pull_is_never_held_and_says_at_which_clock() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    for step in (1, 2):
        house.push(ANN, step, step=step)
    assert house.pull(BOB, [1], clock=50, enter=True)[0] == m.Values(4, 1, [2], entered=2)


def test_a_pull_is_released_when_the_one_it_waits_for_parks() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    house.push(ANN, 0, step=1)
    house.pull(ANN, [1], clock=1)
    assert house.answers(house.segments.park(0, BOB, 0, lambda now: HandlerResult())) == [m.Values(4, 1, [1])]
    house.pull(BOB, (), enter=True, spell=1)
    assert house.fact("returned from parking") == 1


def test_a_pull_is_released_when_the_one_it_waits_for_departs() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    house.push(ANN, 0, step=1)
    house.pull(ANN, [1], clock=1)
    assert house.answers(house.segments.set_members(NAMES, NAMES)) == []
    assert house.answers(house.segments.set_members({ANN: "ann"}, {ANN: "ann"})) == [m.Values(4, 1, [1])]


def test_a_pull_is_released_when_the_bound_is_widened() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    assert isinstance(house.pull(ANN, [1], clock=3)[0], m.RequestHeld)
    wider = Dense(rows=16, update=Sum(), max_delay=3)
    assert house.answers(house.segments.set_delay(wider)) == [m.Values(3, 1, [0])]


def test_a_pull_of_one_who_departed_is_forgotten_and_so_is_its_stream() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    house.push(BOB, 0, [1], [1], step=1)
    house.pull(BOB, [1], clock=1)
    house.answers(house.segments.set_members({ANN: "ann"}, {ANN: "ann"}))
    assert house.fact("waiting") == 0
    assert -BOB not in house.segments.ledger
    assert house.push(ANN, 0, step=1) == [m.Counted(5, new=True)]  # no other response


def test_a_pull_that_is_sent_again_while_it_waits_is_answered_once() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    house.requests = iter((9, 9, 10))
    house.pull(ANN, [1], clock=1)
    house.pull(ANN, [1], clock=1)
    assert house.fact("waited") == 1
    house.push(ANN, 0, step=1, request=20)
    assert house.push(BOB, 0, step=1, request=21) == [m.Counted(21, new=True), m.Values(9, 1, [2])]


def test_push_pull_counts_first_and_brings_back_what_came_of_it() -> None:
    house = each()
    assert house.push(ANN, 0, [1, 9], [1, 2], pull=True) == [m.Values(1, 2, [1])]
    assert house.arrays[0][0].tolist() == [1, 2]
    # Counted before, read again.
    assert house.push(ANN, 0, [1, 9], [1, 2], pull=True) == [m.Values(2, 2, [1], new=False)]
    assert house.arrays[0][0].tolist() == [1, 2]


def test_the_pull_half_of_a_push_pull_waits_like_any_pull() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    assert house.push(ANN, 0, [1], [1], step=1, pull=True, clock=1) == [m.RequestHeld(3, "bob at step 0")]
    assert house.push(BOB, 0, [1], [10], step=1) == [m.Counted(4, new=True), m.Values(3, 1, [2])]
    assert house.arrays[1][0].tolist() == [11]


@INLINE_OR_HANDED_OUT
def test_a_range_of_a_sparse_table_is_read_by_its_live_keys(inline: int) -> None:
    house = sparse()
    house.segments.inline = inline
    house.push(ANN, 0, [1, 8, 13], [1, 2, 3])
    assert house.pull(ANN, KeyRange(1, 13)) == [m.Values(2, 2, [1])]
    keys, values = house.arrays[0]
    assert (keys.tolist(), values.tolist()) == ([1, 8], [1, 2])
    assert house.fact("rows") == 3  # reading created none


def test_a_long_range_of_a_sparse_table_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    house = sparse()
    house.push(ANN, 0, [1, 2, 8, 9, 13], [1, 2, 3, 4, 5])
    monkeypatch.setattr(limits, "FRAME_BYTES", 16)
    assert house.pull(ANN, KeyRange(0, 16)) == [m.Values(2, 2, [1], resume=8)]
    assert house.pull(ANN, KeyRange(8, 16)) == [m.Values(3, 2, [1], resume=13)]
    assert house.pull(ANN, KeyRange(13, 16)) == [m.Values(4, 1, [1])]


def test_versions_are_told_one_by_one_where_segments_differ() -> None:
    house = each()
    house.push(ANN, 0, [8], [1], first=2, last=3)
    assert house.pull(ANN, [1]) == [m.Values(2, 1, [0, 1, 0])]


# ---------------------------------------------------------------- held until the step closes


@INLINE_OR_HANDED_OUT
def test_slots_are_held_and_answered_when_the_step_closes(inline: int) -> None:
    house = steps(slots=3, inline=inline)
    assert house.push(ANN, 2, [1], [4]) == [m.RequestHeld(1, "slots 0, 1 of step 0")]
    assert house.push(BOB, 0, [1], [1]) == [m.RequestHeld(2, "slots 1 of step 0")]
    assert house.contents() == {}
    assert house.fact("held") == 2
    done = house.push(ANN, 1, [9], [2])
    answers = [one for one in done if isinstance(one, m.Counted)]
    assert answers == [m.Counted(1, new=True), m.Counted(2, new=True), m.Counted(3, new=True)]
    assert house.contents() == {1: [5], 9: [2]}
    assert (house.fact("held"), house.fact("steps"), house.fact("version")) == (0, 1, 1)


def test_a_slot_that_is_sent_again_is_held_once_and_answered_once_for_each_request() -> None:
    house = steps()
    house.push(ANN, 0, [1], [1], request=5)
    house.push(ANN, 0, [1], [1], request=5)
    house.push(BOB, 0, [1], [1], request=6)  # a second worker computed the same slot
    assert house.fact("held again") == 2
    assert house.push(ANN, 1, [1], [2], request=7) == [m.Counted(n, new=n != 6) for n in (5, 6, 7)]
    assert house.contents() == {1: [3]}
    assert house.push(ANN, 0, [1], [1], request=5) == [m.Counted(5, new=False)]
    assert house.contents() == {1: [3]}


def test_steps_are_taken_in_order() -> None:
    house = steps()
    house.push(ANN, 2, [1], [100])
    assert house.push(ANN, 3, [1], [100])[-1] == m.RequestHeld(2, "step 0, of which no slot is here")
    assert house.contents() == {}
    house.push(ANN, 0, [1], [1])
    # Then the second step closes at once.
    assert house.push(ANN, 1, [1], [1]) == [m.Counted(n, new=True) for n in (3, 4, 1, 2)]
    assert house.contents() == {1: [202]}
    assert house.fact("version") == 2


def test_a_pull_for_a_step_waits_for_the_version_and_not_for_clocks() -> None:
    house = steps(slots=1)
    assert house.pull(ANN, [1], clock=1) == [m.RequestHeld(1, "version 1: step 0, of which no slot is here")]
    assert house.push(BOB, 0, [1], [1]) == [m.Counted(2, new=True), m.Values(1, 1, [1])]
    assert house.arrays[1][0].tolist() == [1]


def test_a_pull_for_a_step_may_be_behind_by_the_delay() -> None:
    house = steps(slots=1, max_delay=2)
    assert isinstance(house.pull(ANN, [1], clock=2)[0], m.Values)
    assert house.pull(ANN, [1], clock=3) == [m.RequestHeld(2, "version 1: step 0, of which no slot is here")]
    assert isinstance(steps(slots=1, max_delay=None).pull(ANN, [1], clock=50)[0], m.Values)


def test_a_pull_reads_a_step_whole_or_not_at_all() -> None:
    house = steps(slots=1)
    house.pull(ANN, [1], clock=1)
    house.push(ANN, 1, [1], [10])
    house.push(ANN, 0, [1], [1])  # closes both steps; the pull reads the state between them
    assert [arrays[0].tolist() for arrays in house.arrays if arrays] == [[1]]
    assert house.contents() == {1: [11]}


def test_push_pull_of_a_slot_brings_back_the_step_it_was_part_of() -> None:
    house = steps()
    assert house.push(ANN, 0, [1], [1], pull=True, clock=1) == [m.RequestHeld(1, "slots 1 of step 0")]
    assert house.push(BOB, 1, [1], [2], pull=True, clock=1) == [m.Values(1, 1, [1]), m.Values(2, 1, [1])]
    assert [arrays[0].tolist() for arrays in house.arrays] == [[3], [3]]


def test_a_void_slot_closes_its_step_and_takes_no_part_in_the_mean() -> None:
    house = steps(slots=3, combine="mean")
    house.push(ANN, 0, [1], [8])
    house.push(ANN, 1, void=True)
    house.push(ANN, 2, [1], [4])
    assert house.contents() == {1: [6]}
    assert house.fact("void") == 1


def test_the_last_step_of_a_pass_closes_with_fewer_slots() -> None:
    house = steps(slots=2, slots_per_pass=3)
    for number in range(3):
        house.push(ANN, number, [1], [1])
    assert house.fact("version") == 2
    # The next pass.
    assert house.push(ANN, 0, [1], [1], stream=1) == [m.RequestHeld(4, "slots 1 of step 2")]


def test_a_step_may_close_in_some_segments_before_others() -> None:
    house = steps(slots=2)
    house.push(ANN, 0, [1, 8], [1, 1])
    assert house.push(ANN, 1, [8], [2], first=2, last=3) == [m.Counted(2, new=True)]
    assert house.contents() == {8: [3]}
    assert house.segments.version.tolist() == [0, 1, 0]
    assert isinstance(house.pull(ANN, [8], clock=1, first=2, last=3)[0], m.Values)
    assert isinstance(house.pull(ANN, [1], clock=1, first=0, last=1)[0], m.RequestHeld)
    said = house.push(ANN, 1, [1, 8, 12], [5, 2, 7])
    # Slot 0, slot 1, and the pull that waited.
    assert [type(one) for one in said] == [m.Counted, m.Counted, m.Values]
    assert house.contents() == {1: [6], 8: [3], 12: [7]}
    assert house.segments.version.tolist() == [1, 1, 1]


def test_far_ahead_of_the_oldest_open_step_a_slot_is_told_to_come_later() -> None:
    house = steps(slots=1)
    why = f"step {limits.STEPS_AHEAD} is too far ahead of step 0, of which no slot is here"
    assert house.push(ANN, limits.STEPS_AHEAD, [1], [1]) == [m.Busy(1, limits.BUSY_RETRY, why)]
    assert isinstance(house.push(ANN, limits.STEPS_AHEAD - 1, [1], [1])[0], m.RequestHeld)
    assert house.fact("busy") == 1


def test_with_much_held_only_the_oldest_open_step_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HELD_BYTES", 7)
    house = steps(slots=2)
    assert isinstance(house.push(ANN, 2, [1, 2], [1, 1])[0], m.RequestHeld)
    assert isinstance(house.push(ANN, 3, [1], [1])[0], m.Busy)
    assert isinstance(house.push(ANN, 0, [1], [1])[0], m.RequestHeld)
    assert house.push(ANN, 1, [1], [1]) == [m.Counted(3, new=True), m.Counted(4, new=True)]
    assert isinstance(house.push(ANN, 3, [1], [1])[0], m.Counted)


def test_the_slot_of_one_who_departed_counts_but_nobody_is_told() -> None:
    house = steps()
    house.push(BOB, 0, [1], [1])
    house.answers(house.segments.set_members({ANN: "ann"}, {ANN: "ann"}))
    assert house.fact("held") == 0
    assert house.push(ANN, 1, [1], [2]) == [m.Counted(2, new=True)]
    assert house.contents() == {1: [3]}


def test_the_sum_is_taken_before_the_update_is_run() -> None:
    spec = Dense(rows=16, update=AdaGrad(step=1.0, epsilon=0.0), apply=Step(slots=2))
    house = House(Primary(1, spec, SEGMENTS, limits.INLINE_ELEMENTS))
    house.push(ANN, 0, [1], [3])
    house.push(ANN, 1, [1], [1])
    # One step of 4 / sqrt(16); two would be 3 / sqrt(9) + 1 / sqrt(10).
    assert house.contents() == {1: [-1]}


# ---------------------------------------------------------------- staleness, notices


def test_staleness_is_the_versions_that_passed_since_the_pull() -> None:
    house = each()
    house.push(ANN, 0, [1], [1], read=[0])
    house.push(ANN, 1, [1], [1], read=[0])
    house.push(ANN, 2, [1], [1], read=[0])
    house.push(ANN, 3, [1], [1], read=[3])
    house.push(ANN, 4, [1], [1], read=[])  # read nothing: not recorded
    house.push(ANN, 3, [1], [1], read=[0])  # counted before: not recorded again
    assert house.segments.facts()[1] == [2, 1, 1]


def test_staleness_is_taken_where_it_is_largest() -> None:
    house = each()
    house.push(ANN, 0, [8], [1], first=2, last=3)
    house.push(ANN, 1, [1], [1], read=[0, 0, 0])
    # By another placement: says nothing about these segments.
    house.push(ANN, 2, [1], [1], read=[0, 0])
    assert house.segments.facts()[1] == [0, 1]


def test_in_steps_staleness_counts_from_the_step_a_slot_belongs_to() -> None:
    house = steps(slots=1, max_delay=2)
    for number, read in enumerate([0, 0, 0, 1]):
        house.push(ANN, number, [1], [1], read=[read])
    assert house.segments.facts()[1] == [1, 1, 2]


def test_what_is_staler_than_all_buckets_goes_to_the_last() -> None:
    house = each()
    house.segments.version[:] = 10 * limits.STALENESS_BUCKETS
    house.push(ANN, 0, [1], [1], read=[0])
    assert len(house.segments.facts()[1]) == limits.STALENESS_BUCKETS


def test_who_waits_is_told_every_second_for_whom() -> None:
    house = each(max_delay=0)
    house.enter(ANN)
    house.enter(BOB)
    house.push(ANN, 0, step=1)
    house.pull(ANN, [1], clock=1)
    assert house.segments.notices(DEFAULT.notice - 1) == []
    told = [Send("ann", m.RequestHeld(4, "bob at step 0"))]
    assert house.segments.notices(DEFAULT.notice) == told
    assert house.segments.notices(2 * DEFAULT.notice - 1) == []
    assert house.segments.notices(2 * DEFAULT.notice) == told


def test_who_pushed_a_slot_is_told_every_second_which_others_are_missing() -> None:
    house = steps(slots=12)
    house.push(ANN, 3, [1], [1])
    told = "slots 0, 1, 2, 4, 5, 6, 7, 8, ... of step 0"
    assert house.segments.notices(DEFAULT.notice) == [Send("ann", m.RequestHeld(1, told))]
    assert house.segments.notices(DEFAULT.notice + 1) == []


# ---------------------------------------------------------------- refused

BAD_PUSHES: dict[str, tuple[dict[str, Any], str]] = {
    "unsorted keys": ({"keys": [9, 1], "values": [1, 1]}, "key 1 follows 9"),
    "a key twice": ({"keys": [1, 1], "values": [1, 1]}, "key 1 follows 1"),
    "a key that is not held here": ({"keys": [1, 5], "values": [1, 1]}, "key 5 is not held here"),
    "a key past the limit": ({"keys": [1, 16], "values": [1, 1]}, "key 16 is past the limit"),
    "the largest key there is": ({"keys": [2**64 - 1], "values": [1]}, "past the limit"),
    "a key of a segment that is not covered": ({"keys": [1, 8], "values": [1, 1], "last": 2}, "outside the segments"),
    "segments that are not held": ({"keys": [1], "values": [1], "first": 1, "last": 2}, "no key of the segments"),
    "fewer keys than values": ({"keys": [1], "values": [1, 1]}, "1 keys came"),
    "fewer values than rows": ({"keys": [1, 2], "values": [1], "count": 2}, "1 values came"),
    "more values than rows": ({"keys": [1], "values": [1, 2], "count": 1}, "2 values came"),
    "a range with too few values": ({"keys": KeyRange(0, 4), "values": [1, 2]}, "4 rows of width 1 are needed"),
    "a range past the limit": ({"keys": KeyRange(0, 16), "values": [1] * 16}, "12 rows of width 1 are needed"),
    "a number that is none": ({"keys": [1, 2], "values": [1, np.nan]}, "row 1 are not finite"),
    "an infinite number": ({"keys": KeyRange(0, 2), "values": [1, -np.inf]}, "row 1 are not finite"),
}


@pytest.mark.parametrize("kind", ["each", "step", "sparse"])
@pytest.mark.parametrize("name", BAD_PUSHES)
def test_a_refused_push_changes_nothing(name: str, kind: str) -> None:
    house = {"each": each, "step": steps, "sparse": sparse}[kind]()
    house.push(ANN, 0, [1, 9], [5, 6])
    house.push(ANN, 1, [1, 9], [5, 6])
    before, rows, version = house.contents(), house.fact("rows"), house.segments.version.tolist()
    assert before == {1: [10], 9: [12]}
    push, reason = BAD_PUSHES[name]
    (answer,) = house.push(ANN, 2, **push)
    assert isinstance(answer, m.Refusal)
    # A range cannot be pushed to a sparse table.
    if not (kind == "sparse" and isinstance(push["keys"], KeyRange)):
        assert reason in answer.reason
    assert house.contents() == before
    assert (house.fact("rows"), house.segments.version.tolist()) == (rows, version)
    assert (house.fact("refused"), house.fact("held")) == (1, 0)
    # Its number can still be used.
    assert isinstance(house.push(ANN, 2, [1], [1])[0], m.Counted | m.RequestHeld)


def test_values_that_are_not_announced_are_refused() -> None:
    house = each()
    keys, values = np.array([1], np.uint64), np.array([1], np.float32)
    for arrays in [(keys, values), (values,)]:
        push = m.Push(1, 1, 1, 0, ANN, -ANN, 0, 0, 0, 0, 0, 0, m.EVERYWHERE, count=0)
        (answer,) = house.answers(house.segments.push(0, "ann", push, arrays))
        assert isinstance(answer, m.Refusal)
    ranged = m.Push(1, 1, 1, 0, ANN, -ANN, 0, 0, 0, 0, 0, 0, m.EVERYWHERE, count=1, start=1, stop=2)
    for arrays in [(), (keys, values)]:
        (answer,) = house.answers(house.segments.push(0, "ann", ranged, arrays))
        assert isinstance(answer, m.Refusal)
    assert house.contents() == {}


@pytest.mark.parametrize(("start", "stop"), [(3, 2), (0, 2**63 + 1), (2**63, 2**63 - 1)])
def test_a_range_that_is_none_is_refused(start: int, stop: int) -> None:
    house = each()
    push = m.Push(1, 1, 1, 0, ANN, -ANN, 0, 0, 0, 0, 0, 0, m.EVERYWHERE, count=0, start=start, stop=stop)
    (answer,) = house.answers(house.segments.push(0, "ann", push, (np.empty(0, np.float32),)))
    assert isinstance(answer, m.Refusal)
    pull = m.Pull(2, 1, 1, 0, ANN, -1, 0, 0, 0, m.EVERYWHERE, 0, start, stop)
    (answer,) = house.answers(house.segments.pull(0, "ann", pull, ()))
    assert isinstance(answer, m.Refusal)


@pytest.mark.parametrize(
    ("number", "stream", "reason"),
    [(0, -1, "name the slot"), (0, 1, "one endless pass")],
)
def test_a_push_to_a_step_table_names_its_slot(number: int, stream: int, reason: str) -> None:
    (answer,) = steps().push(ANN, number, [1], [1], stream=stream)
    assert isinstance(answer, m.Refusal)
    assert reason in answer.reason


def test_a_slot_beyond_the_pass_is_refused() -> None:
    (answer,) = steps(slots=2, slots_per_pass=3).push(ANN, 3, [1], [1])
    assert isinstance(answer, m.Refusal)
    assert "has 3 slots" in answer.reason


@pytest.mark.parametrize(
    ("keys", "more", "reason"),
    [
        ([9, 1], {}, "key 1 follows 9"),
        ([5], {}, "not held here"),
        ([16], {}, "past the limit"),
        ([1], {"count": 2}, "the header says 2"),
        ([1, 8], {"first": 2}, "outside the segments"),
    ],
)
def test_a_refused_pull_says_why(keys: list[int], more: dict[str, int], reason: str) -> None:
    for house in (each(), steps(), sparse()):
        (answer,) = house.pull(ANN, keys, **more)
        assert isinstance(answer, m.Refusal)
        assert answer.kind == "keys"
        assert reason in answer.reason


def test_rows_of_some_width_are_laid_where_they_belong() -> None:
    house = House(Primary(1, Dense(rows=16, width=3, update=SGD(step=1.0)), SEGMENTS, limits.INLINE_ELEMENTS))
    house.push(ANN, 0, [1, 8], [[1, 2, 3], [4, 5, 6]])
    assert house.contents() == {1: [-1, -2, -3], 8: [-4, -5, -6]}
    assert house.pull(ANN, [8]) == [m.Values(2, 1, [1])]
    assert house.arrays[0][0].tolist() == [-4, -5, -6]
    assert isinstance(house.push(ANN, 1, [1], [1, 2], count=1)[0], m.Refusal)


def test_no_memory_for_new_rows_is_an_answer_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    house = sparse()
    house.push(ANN, 0, [1], [1])

    def full(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(house.segments.table, "push", full)
        (answer,) = house.push(ANN, 1, [2], [2])
        assert answer == m.Refusal(2, "full", "no memory for 1 more rows: add servers, or push fewer new keys")
    assert house.contents() == {1: [1]}
    # The ledger had not recorded it.
    assert house.push(ANN, 1, [2], [2]) == [m.Counted(3, new=True)]


# ---------------------------------------------------------------- found by adversarial tests


def test_a_push_that_covers_no_segment_is_refused() -> None:
    house = each()
    (answer,) = house.push(ANN, 0, first=0, last=0, read=[2])
    assert isinstance(answer, m.Refusal) and answer.kind == "keys"


def test_nobody_writes_into_the_stream_of_another() -> None:
    house = each()
    (answer,) = house.push(ANN, 0, stream=-BOB, floor=1 << 60)
    assert isinstance(answer, m.Refusal) and "another client's stream" in answer.reason
    assert [one.new for one in house.push(BOB, 0, [1], [5]) if isinstance(one, m.Counted)] == [True]


def test_a_step_table_has_no_clocks_to_enter_or_to_tick() -> None:
    house = steps(slots=1)
    (answer,) = house.pull(ANN, [1], enter=True)
    assert isinstance(answer, m.Refusal) and "no clocks" in answer.reason
    house.push(ANN, 0, [1], [1])
    (answer,) = house.push(ANN, 0, [1], [1], step=1 << 40)
    assert isinstance(answer, m.Refusal)


def test_a_step_far_beyond_the_window_takes_no_memory() -> None:
    house = each()
    house.enter(ANN)
    (answer,) = house.push(ANN, 0, [1], [1], step=1 << 40)
    assert isinstance(answer, m.Refusal) and "ahead of the first missing" in answer.reason


def test_a_long_pull_reads_its_own_step_although_the_next_is_ready() -> None:
    house = steps(slots=1, inline=4)
    house.pull(ANN, list(HELD), clock=1)
    house.push(ANN, 1, [1], [10])
    said = house.push(ANN, 0, [1], [1])
    assert [one.versions for one in said if isinstance(one, m.Values)] == [[1]]
    assert house.segments.version.tolist() == [2] * len(house.segments.version)
