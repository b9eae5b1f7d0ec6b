"""The ledger agrees with its twin: a set of counted numbers for each segment, and a floor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.store.server.ledger import PushStream

LAWS = settings(max_examples=150, deadline=None)
NUMBERS = st.one_of(st.integers(0, 12), st.integers(0, 150), st.integers(0, 1_000))


@dataclass
class Twin:
    """One segment of a stream in plain Python."""

    floor: int = 0
    counted: set[int] = field(default_factory=set)

    def has(self, number: int) -> bool:
        return number < self.floor or number in self.counted

    def mark(self) -> int:
        mark = self.floor
        while mark in self.counted:
            mark += 1
        return mark


@st.composite
def stories(draw: st.DrawFn) -> tuple[int, list[tuple[str, int | list[int], list[bool]]]]:
    segments = draw(st.integers(1, 4))
    masks = st.one_of(st.just([True] * segments), st.lists(st.booleans(), min_size=segments, max_size=segments))
    floors = st.one_of(NUMBERS, st.lists(NUMBERS, min_size=segments, max_size=segments))
    events = st.one_of(
        st.tuples(st.just("add"), NUMBERS, masks),
        st.tuples(st.just("next"), st.just(0), masks),
        st.tuples(st.just("raise"), floors, st.just([True] * segments)),
    )
    return segments, draw(st.lists(events, max_size=40))


@LAWS
@given(stories(), st.lists(NUMBERS, min_size=1, max_size=8))
def test_a_stream_is_its_twin(
    story: tuple[int, list[tuple[str, int | list[int], list[bool]]]], asked: list[int]
) -> None:
    segments, events = story
    stream, twins = PushStream(segments), [Twin() for _ in range(segments)]
    for what, number, chosen in events:
        if what == "raise":
            floors = number if isinstance(number, list) else [number] * segments
            moved = stream.raise_to(np.array(floors) if isinstance(number, list) else number)
            assert moved == any(floor > twin.mark() for floor, twin in zip(floors, twins, strict=True))
            for floor, twin in zip(floors, twins, strict=True):
                twin.floor = max(twin.floor, floor)
        else:
            one = twins[0].mark() if what == "next" else number
            assert isinstance(one, int)
            stream.add(one, np.array(chosen))
            for twin, mine in zip(twins, chosen, strict=True):
                if mine:
                    twin.counted.add(one)
        assert stream.mark.tolist() == [twin.mark() for twin in twins]
        for one in (*asked, *(twin.mark() for twin in twins)):
            assert stream.has(one).tolist() == [twin.has(one) for twin in twins]
    everything = range(1_100)
    assert [stream.has(n).tolist() for n in everything] == [[twin.has(n) for twin in twins] for n in everything]


@LAWS
@given(st.permutations(range(100)), st.integers(1, 4))
def test_numbers_in_any_order_end_at_the_same_mark(order: list[int], segments: int) -> None:
    stream = PushStream(segments)
    everywhere = np.ones(segments, np.bool_)
    news = 0
    for number in (*order, *order):
        news += not stream.has(number).any()
        stream.add(number, everywhere)
    assert news == 100
    assert stream.mark.tolist() == [100] * segments
    assert not stream.bits.any()
