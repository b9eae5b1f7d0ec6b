"""A segment that moves is sent at the set rate; a replacement of a lost copy is not limited."""

from __future__ import annotations

from shoal import limits
from shoal.limits import MB, MILLISECOND, SECOND
from shoal.store.server.backfill import RateLimit


def sent_in(pace: RateLimit, seconds: float, piece: int, every: int = 50 * MILLISECOND) -> int:
    total, now = 0, 7 * SECOND
    while now < 7 * SECOND + int(seconds * SECOND):
        while pace.allows(now):
            pace.sent(piece)
            total += piece
        now += every
    return total


def test_no_more_is_sent_than_the_rate_allows_and_not_much_less() -> None:
    for rate in (20 * MB, 200 * MB):
        sent = sent_in(RateLimit(rate), 10.0, limits.FILL_BYTES)
        assert 9 * rate <= sent <= 10 * rate + 2 * limits.FILL_BYTES + rate // 5


def test_a_piece_larger_than_a_second_of_it_gets_through_and_is_paid_for_afterwards() -> None:
    pace = RateLimit(1 * MB)
    assert pace.allows(0)
    pace.sent(20 * MB)
    assert not pace.allows(15 * SECOND)
    assert pace.allows(17 * SECOND)


def test_nothing_is_saved_up_for_longer_than_a_moment() -> None:
    pace = RateLimit(200 * MB)
    assert pace.allows(0)
    assert pace.allows(3_600 * SECOND)
    pace.sent(21 * MB)
    assert not pace.allows(3_600 * SECOND)


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    pace = RateLimit(1 * MB)
    assert pace.allows(10 * SECOND)
    pace.sent(5 * MB)
    assert not pace.allows(9 * SECOND)
    assert pace.allows(14 * SECOND)
