"""Unanswered messages are sent again: with back-off, within a budget, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from shoal import limits
from shoal.limits import MILLISECOND, SECOND
from shoal.store.client.inflight import Inflight
from shoal.timing import DEFAULT
from shoal.wire.effects import Send
from shoal.wire.messages import Refresh

START = 1_000 * SECOND


def resends(flight: Inflight, since: int, until: int, every: int = 10 * MILLISECOND) -> list[int]:
    """Returns the times of resends, in nanoseconds since ``since``."""
    times = []
    for now in range(since, until + 1, every):
        sent, _ = flight.tick(now)
        times += [now - since] * len(sent)
    return times


def one_letter(seed: int = 0) -> Inflight:
    flight = Inflight(seed)
    assert flight.send(START, "ann", 1, Refresh(1)) == Send("ann", Refresh(1))
    return flight


def test_an_unanswered_message_is_sent_again_with_back_off() -> None:
    times = resends(one_letter(), START, START + 9 * SECOND)
    gaps = [after - before for before, after in pairwise([0, *times])]
    first = gaps[0]
    assert 0.75 * DEFAULT.resend_first <= first <= 1.25 * DEFAULT.resend_first + 10 * MILLISECOND
    for shorter, longer in pairwise(gaps):
        assert longer >= 1.7 * shorter or longer >= 0.75 * DEFAULT.resend_most
    assert len(times) == 4  # after about 0.5, 1.5, 3.5 and 7.5 seconds


def test_the_gaps_grow_no_further_than_the_most() -> None:
    flight = one_letter()
    letter = flight.requests[1]
    for _ in range(10):
        flight.tick(letter.resend_at)
        letter.last_sign = letter.resend_at  # keeps it from being given up
    assert letter.wait <= 1.25 * DEFAULT.resend_most


def test_what_is_sent_again_is_the_same_message() -> None:
    flight = one_letter()
    sent, silent = flight.tick(flight.requests[1].resend_at)
    assert (sent, silent) == ([Send("ann", Refresh(1))], [])
    assert flight.resent == 1


def test_nothing_is_sent_again_once_it_is_answered() -> None:
    flight = one_letter()
    flight.done(1)
    assert not flight.requests
    assert resends(flight, START, START + 20 * SECOND) == []


def test_many_clients_do_not_knock_at_once() -> None:
    firsts = {one_letter(seed).requests[1].resend_at for seed in range(20)}
    assert len(firsts) == 20
    # But each client always at the same time.
    assert one_letter(3).requests[1].resend_at == one_letter(3).requests[1].resend_at


def test_what_is_held_is_not_sent_again_as_long_as_it_is_told_so() -> None:
    flight = one_letter()
    assert flight.held(START, 1)
    for second in range(1, 60):
        now = START + second * SECOND
        assert flight.tick(now) == ([], [])
        assert not flight.held(now, 1)  # no change


def test_what_is_held_is_asked_again_after_three_missed_notices() -> None:
    flight = one_letter()
    flight.held(START, 1)
    times = resends(flight, START, START + 4 * SECOND)
    assert times[0] == 3 * DEFAULT.notice


def test_busy_is_sent_again_when_it_said() -> None:
    flight = one_letter()
    flight.busy(START, 1, 70 * MILLISECOND)
    assert flight.tick(START + 69 * MILLISECOND) == ([], [])
    assert flight.tick(START + 70 * MILLISECOND)[0] == [Send("ann", Refresh(1))]


def test_busy_cannot_ask_for_the_impossible() -> None:
    flight = one_letter()
    flight.busy(START, 1, -5)
    assert flight.requests[1].resend_at == START + MILLISECOND
    flight.busy(START, 1, 1 << 60)
    assert flight.requests[1].resend_at == START + DEFAULT.resend_most


def test_what_a_busy_server_asked_for_again_is_not_paid_from_the_budget() -> None:
    flight = Inflight(0)
    for request in range(1, 61):
        flight.send(START, "ann", request, Refresh(request))
    for second in range(20):  # twice as long as a silent server is waited for
        for now in range(START + second * SECOND, START + (second + 1) * SECOND, limits.BUSY_MOST):
            for request in range(1, 61):
                flight.busy(now, request, limits.BUSY_RETRY)
            sent, silent = flight.tick(now + limits.BUSY_MOST)
            assert len(sent) == 60
            assert silent == []
    assert flight.requests[1].wait <= 1.25 * DEFAULT.resend_first  # a lost response is noticed soon


def test_who_is_busy_again_and_again_is_asked_less_and_less_often() -> None:
    flight = one_letter()
    times, now = list[int](), START
    while now < START + 2 * SECOND:
        flight.busy(now, 1, 5 * MILLISECOND)
        now = flight.requests[1].resend_at
        assert len(flight.tick(now)[0]) == 1
        times.append(now)
    gaps = [after - before for before, after in pairwise([START, *times])]
    assert gaps[:4] == [5 * MILLISECOND, 10 * MILLISECOND, 20 * MILLISECOND, 40 * MILLISECOND]
    assert max(gaps) == limits.BUSY_MOST
    flight.held(now, 1)  # the server has room for it now
    flight.busy(now, 1, 5 * MILLISECOND)
    assert flight.requests[1].resend_at == now + 5 * MILLISECOND


def test_nobody_is_called_silent_who_was_asked_once_because_others_took_the_budget() -> None:
    flight = Inflight(0)
    for request in range(1, 16):
        flight.send(START, "ann", request, Refresh(request))
    said = dict.fromkeys(range(1, 16), 1)
    for now in range(START, START + DEFAULT.silence + 1, 10 * MILLISECOND):
        sent, silent = flight.tick(now)
        for effect in sent:
            assert isinstance(effect, Send) and isinstance(effect.message, Refresh)
            said[effect.message.request] += 1
        assert all(said[letter.request] > 1 for letter in silent)
    assert min(said.values()) > 1


def test_busy_after_held_is_news_again() -> None:
    flight = one_letter()
    assert flight.held(START, 1)
    flight.busy(START, 1, limits.BUSY_RETRY)
    assert flight.held(START, 1)


def test_answers_to_nothing_are_ignored() -> None:
    flight = Inflight(0)
    assert not flight.held(START, 5)
    flight.busy(START, 5, SECOND)
    assert flight.tick(START + SECOND) == ([], [])


def test_resends_are_one_in_ten_beyond_the_first_ten() -> None:
    flight = Inflight(0)
    for request in range(1, 201):
        flight.send(START, "ann", request, Refresh(request))
    sent, _ = flight.tick(START + SECOND)
    assert len(sent) == 10  # of two hundred that wait
    assert flight.tick(START + SECOND + DEFAULT.resend_first)[0] == []


def test_one_a_second_is_always_allowed() -> None:
    flight = Inflight(0)
    for request in range(1, 101):
        flight.send(START, "ann", request, Refresh(request))
    flight.tick(START + SECOND)
    times = resends(flight, START + SECOND, START + 9 * SECOND)
    assert 6 <= len(times) <= 8
    assert all(after - before >= SECOND for before, after in pairwise(times))


def test_sending_earns_resends() -> None:
    flight = Inflight(0)
    for request in range(1, 101):
        flight.send(START, "ann", request, Refresh(request))
    assert len(flight.tick(START + SECOND)[0]) == 10
    for request in range(101, 131):
        flight.send(START + SECOND, "ann", request, Refresh(request))
        flight.done(request)
    later = START + SECOND + DEFAULT.resend_first
    assert len(flight.tick(later)[0]) in (2, 3)  # a tenth of thirty first sends


def lost_at_once(flight: Inflight, count: int, answers: Callable[[int], bool]) -> tuple[int, int]:
    """Lose so many messages at once; answer those resends for which ``answers`` is true.

    Returns how many were given up as unanswered, and when none was left.
    """
    for request in range(1, count + 1):
        flight.send(START, "ann", request, Refresh(request))
    now, unanswered = START, 0
    while flight.requests and now < START + 100 * SECOND:
        now += 10 * MILLISECOND
        sent, silent = flight.tick(now)
        for letter in silent:
            flight.done(letter.request)
        unanswered += len(silent)
        for effect in sent:
            assert isinstance(effect, Send) and isinstance(effect.message, Refresh)
            if answers(request := effect.message.request):
                flight.answered(now, "ann", request)
                flight.done(request)
    return unanswered, now - START


def test_all_that_was_lost_at_once_comes_again_as_fast_as_it_is_answered() -> None:
    """A thousand pushes are lost, and the server is alive.

    Before the fix, 971 of them were given up as unanswered.
    """
    unanswered, took = lost_at_once(Inflight(0), 1_000, lambda request: True)
    assert unanswered == 0
    assert took < 5 * SECOND


def test_who_answers_others_is_not_silent_but_is_not_asked_for_ever() -> None:
    """Every other message is answered.

    Those without a response are sent four times before they are given up as unanswered.
    """
    flight = Inflight(0)
    unanswered, took = lost_at_once(flight, 40, lambda request: request % 2 == 0)
    assert unanswered == 20
    assert took <= 4 * flight.timing.silence


def test_never_more_than_ten_resends_wait_for_an_answer_beyond_one_a_second() -> None:
    flight = Inflight(0)
    for request in range(1, 501):
        flight.send(START, "ann", request, Refresh(request))
    waiting: list[int] = []
    for now in range(START, START + 5 * SECOND, 10 * MILLISECOND):
        sent, _ = flight.tick(now)
        waiting += [effect.message.request for effect in sent]  # type: ignore[union-attr]
        assert len(waiting) <= 10 + (now - START) // SECOND + 1
        if now % (100 * MILLISECOND) == 0 and waiting:  # the server is slow: ten a second
            flight.answered(now, "ann", waiting[0])
            flight.done(waiting.pop(0))


def test_an_answer_of_another_earns_nothing() -> None:
    flight = Inflight(0)
    for request in range(1, 201):
        flight.send(START, "ann", request, Refresh(request))
    sent, _ = flight.tick(START + SECOND)
    for effect in sent:
        flight.answered(START + SECOND, "bob", effect.message.request)  # type: ignore[union-attr]
    assert flight.tick(START + SECOND + 10 * MILLISECOND)[0] == []


def test_time_in_which_we_slept_is_no_silence_of_others() -> None:
    """This process was suspended: a closed laptop, Ctrl-Z, an overloaded machine.

    Open requests are sent again before any server counts as silent.
    """
    flight = one_letter()
    flight.tick(START + 10 * MILLISECOND)
    sent, silent = flight.tick(START + 60 * SECOND)
    assert (sent, silent) == ([Send("ann", Refresh(1))], [])
    woken = START + 60 * SECOND
    assert resends(flight, woken, woken + flight.timing.silence - 3 * flight.timing.notice)
    ends = [
        now for now in range(woken, woken + flight.timing.silence + SECOND, 100 * MILLISECOND) if flight.tick(now)[1]
    ]
    assert ends and ends[0] <= woken + flight.timing.silence


def test_who_looks_too_seldom_is_not_kept_waiting_for_ever() -> None:
    flight = one_letter()
    looks = [look for look in range(1, 20) if flight.tick(START + look * 5 * SECOND)[1]]
    assert looks[0] <= 7


def test_silence_is_reported_and_not_asked_again() -> None:
    flight = one_letter()
    resends(flight, START, START + DEFAULT.silence - 10 * MILLISECOND)
    sent, silent = flight.tick(START + DEFAULT.silence)
    assert sent == []
    assert [letter.request for letter in silent] == [1]


def test_any_sign_of_life_ends_the_silence() -> None:
    flight = one_letter()
    flight.busy(START + DEFAULT.silence - 1, 1, limits.BUSY_RETRY)
    assert flight.tick(START + DEFAULT.silence)[1] == []
    flight.held(START + DEFAULT.silence, 1)
    resends(flight, START + DEFAULT.silence, START + 2 * DEFAULT.silence - 10 * MILLISECOND)
    assert list(flight.requests) == [1]
    assert len(flight.tick(START + 2 * DEFAULT.silence)[1]) == 1


def test_the_time_to_look_next_is_never_too_late() -> None:
    flight = Inflight(0)
    for request in range(1, 6):
        flight.send(START + request * MILLISECOND, "ann", request, Refresh(request))
        due = min(letter.resend_at for letter in flight.requests.values())
        assert flight.next <= due
    flight.busy(START, 3, MILLISECOND)
    assert flight.next <= START + MILLISECOND
    assert len(flight.tick(flight.next)[0]) == 1


def test_a_flight_that_was_answered_has_nothing_to_send() -> None:
    flight = one_letter()
    flight.done(next(iter(flight.requests)))
    assert flight.tick(START + DEFAULT.silence) == ([], [])
