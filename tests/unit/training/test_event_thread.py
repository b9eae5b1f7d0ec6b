"""Events are passed on in order, and a slow listener delays no other thread."""

from __future__ import annotations

import threading

import pytest

from shoal.background import EventThread
from shoal.events import RolledBack, RunEvent, Warned
from shoal.launch.process_main import ProcessEvent, event_of


def event(number: int) -> Warned:
    return Warned(seconds=float(number), what="")


def test_events_come_in_order_on_another_thread_and_all_before_it_is_closed() -> None:
    told, threads = list[RunEvent](), set[str]()

    def listen(one: RunEvent) -> None:
        told.append(one)
        threads.add(threading.current_thread().name)

    telling = EventThread(listen, "test")
    for number in range(100):
        telling(event(number))
    telling.close()
    assert told == [event(number) for number in range(100)]
    assert threads == {"shoal-test-events"}


def test_a_listener_that_fails_hears_what_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    told = list[RunEvent]()

    def listen(one: RunEvent) -> None:
        told.append(one)
        raise ValueError("no")

    telling = EventThread(listen, "test")
    telling(event(1))
    telling(event(2))
    telling.close()
    assert len(told) == 2
    assert capsys.readouterr().err.count("ValueError: no") == 2


@pytest.mark.parametrize("runs", [0, 1, 5_000])
def test_an_event_however_long_travels_in_lines_that_the_kernel_keeps_whole(runs: int) -> None:
    long = RolledBack(
        seconds=float("inf"),
        checkpoint=None,
        steps_before=9,
        steps_after=1,
        slots=[(number, number + 1) for number in range(runs)],
        why='\x00\n"€' * 50,
    )
    pieces = ProcessEvent.pieces("coordinator", long)
    assert [piece.more for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert event_of("".join(piece.piece for piece in pieces)) == long
    assert (len(pieces) > 1) == (runs > 1)
