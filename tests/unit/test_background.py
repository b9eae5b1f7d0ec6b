"""A background queue passes items to a function on a thread of its own."""

from __future__ import annotations

import threading

from shoal.background import BackgroundQueue


def test_one_that_has_nothing_to_do_is_gone_when_it_is_closed() -> None:
    for _ in range(200):
        heard: list[int] = []
        aside = BackgroundQueue(heard.append, "told")
        aside.put(1)
        assert aside.close(10.0) == 0 and heard == [1]
        assert "shoal-told" not in [one.name for one in threading.enumerate()]


def test_one_whose_call_hangs_is_not_waited_for() -> None:
    go = threading.Event()

    def hang(_: int) -> None:
        go.wait()

    aside = BackgroundQueue(hang, "hung")
    aside.put(1)
    assert aside.close(0.1) == 1
    assert "shoal-hung" in [one.name for one in threading.enumerate()], "it hangs still, and we went on"
    go.set()


def test_it_may_be_closed_by_what_it_calls() -> None:
    closed = threading.Event()

    def close(_: int) -> None:
        aside.close(0.0)
        closed.set()

    aside = BackgroundQueue(close, "self")
    aside.put(1)
    assert closed.wait(60)
