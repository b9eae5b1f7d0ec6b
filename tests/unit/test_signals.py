"""A process keeps ignoring the signals that it was started to ignore, except SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from shoal.signals import deferred, handle, handled

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, what in before.items():
        signal.signal(number, what)


@pytest.mark.parametrize("ignored", ALL)
def test_a_handler_does_not_replace_an_ignored_signal_other_than_sigterm(ignored: signal.Signals) -> None:
    heard: list[int] = []
    signal.signal(ignored, signal.SIG_IGN)
    handle(ALL, lambda number, frame: heard.append(number))
    for number in ALL:
        signal.raise_signal(number)
    assert heard == [number for number in ALL if number != ignored or ignored == signal.SIGTERM]


def test_what_was_there_before_is_put_back() -> None:
    before = [signal.getsignal(number) for number in ALL]
    heard: list[int] = []
    with handled(ALL, lambda number, frame: heard.append(number)):
        signal.raise_signal(signal.SIGHUP)
    assert heard == [signal.SIGHUP]
    assert [signal.getsignal(number) for number in ALL] == before


def test_a_deferred_signal_is_handled_when_the_block_is_over() -> None:
    heard: list[str] = []
    signal.signal(signal.SIGHUP, lambda number, frame: heard.append("signal"))
    with deferred(ALL):
        signal.raise_signal(signal.SIGHUP)
        heard.append("block")
    assert heard == ["block", "signal"]


def test_a_second_signal_is_not_deferred() -> None:
    heard: list[str] = []
    signal.signal(signal.SIGHUP, lambda number, frame: heard.append("signal"))
    with deferred(ALL):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        heard.append("block")
    assert heard == ["signal", "block", "signal"]
