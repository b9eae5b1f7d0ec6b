"""A worker's time is divided into kinds: compute, communicate, wait, idle."""

from __future__ import annotations

from shoal.limits import SECOND
from shoal.nodes.time_accounting import (
    COMMUNICATE,
    COMPUTE,
    EVALUATE,
    IDLE,
    WAIT,
    TimeAccounting,
)

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 5 * SECOND

    def __call__(self) -> int:
        return self.now

    def pass_by(self, milliseconds: float) -> int:
        self.now += int(milliseconds * MS)
        return self.now


def spent(most: int = 100) -> tuple[TimeAccounting, Clock]:
    clock = Clock()
    return TimeAccounting(clock, most), clock


def in_ms(totals: list[int]) -> dict[int, float]:
    return {kind: total / 1_000 for kind, total in enumerate(totals) if total}


def test_all_time_is_one_of_the_kinds() -> None:
    book, clock = spent()
    clock.pass_by(1)  # rows are prepared
    book.computing()
    clock.pass_by(10)
    book.computed()
    clock.pass_by(2)  # a push is sent, a pull arrives
    book.waited()
    clock.pass_by(3)
    held = clock.now
    clock.pass_by(7)
    book.waited(held)
    clock.pass_by(4)
    book.waited(0, IDLE)
    totals, spans = book.take()
    assert in_ms(totals) == {COMPUTE: 11, COMMUNICATE: 5, WAIT: 7, IDLE: 4}
    assert spans == [
        (COMPUTE, 27_000, 11_000),
        (COMMUNICATE, 16_000, 5_000),
        (WAIT, 11_000, 7_000),
        (IDLE, 4_000, 4_000),
    ]
    assert book.take() == ([0] * len(totals), [])


def test_what_was_kept_back_while_computing_was_not_waited_for() -> None:
    book, clock = spent()
    held = clock.now
    book.computing()
    clock.pass_by(8)
    book.computed()
    clock.pass_by(2)
    book.waited(held)
    assert in_ms(book.take()[0]) == {COMPUTE: 8, WAIT: 2}


def test_while_anything_is_computed_nothing_else_is_counted() -> None:
    book, clock = spent()
    book.computing()
    clock.pass_by(5)
    book.waited()  # by another lane
    book.computing()
    clock.pass_by(5)
    book.computed()
    clock.pass_by(5)
    book.computed()
    assert in_ms(book.take()[0]) == {COMPUTE: 15}


def test_only_the_first_spans_of_a_second_are_told_and_all_time_is_summed() -> None:
    book, clock = spent(most=4)
    for _ in range(1_000):
        book.computing()
        clock.pass_by(1)
        book.computed()
        clock.pass_by(1)
        book.waited()
    totals, spans = book.take()
    assert in_ms(totals) == {COMPUTE: 1_000, COMMUNICATE: 1_000}
    assert len(spans) == 2 * 4


def test_later_on_few_seconds_are_looked_at() -> None:
    book, clock = spent(most=1)
    shown = []
    for _ in range(1_300):
        clock.pass_by(1_000)
        book.record(EVALUATE)
        clock.pass_by(0)
        book.record(IDLE)
        shown.append(len(book.take()[1]))
    assert sum(shown[:55]) >= 50 and sum(shown[100:500]) == 40 and sum(shown[700:]) == 10


def test_what_was_before_is_left_out() -> None:
    book, clock = spent()
    clock.pass_by(1_000)
    book.skip()
    clock.pass_by(1)
    book.waited()
    assert in_ms(book.take()[0]) == {COMMUNICATE: 1}


def test_a_clock_that_goes_back_leaves_no_time_below_zero() -> None:
    """The clocks of two cores may differ by milliseconds.

    The receiver of a span in the future would refuse the message, again and again.
    """
    book, clock = spent()
    clock.pass_by(10)
    book.record(EVALUATE)
    clock.pass_by(-5)
    book.record(COMMUNICATE)
    book.skip()
    totals, spans = book.take()
    assert in_ms(totals) == {EVALUATE: 10} and spans == [(EVALUATE, 10_000, 10_000)]
    clock.pass_by(7)
    book.record(IDLE)
    assert in_ms(book.take()[0]) == {IDLE: 2}
