"""What is said about those who are refused: once each, then ever more seldom, with how often it was left out."""

from __future__ import annotations

import pytest

from shoal import limits
from shoal.wire.door import Log


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_caller_that_tries_again_and_again_is_one_line_and_then_a_count(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log("coordinator", clock)
    for _ in range(600):  # a minute of them
        log("a caller at 10.0.0.9 was refused")
        clock.now += 0.1
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 5
    assert lines[0] == "shoal: coordinator: a caller at 10.0.0.9 was refused"
    assert lines[1].endswith("(50 times more since this was said)")


def test_others_are_told_meanwhile_so_many_a_second_at_most(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log("coordinator", clock)
    for caller in range(10 * limits.LOG_LINES):
        log(f"a caller at 10.0.{caller} was refused")
    assert len(capsys.readouterr().err.splitlines()) == limits.LOG_LINES
    clock.now += 1
    log("another")
    assert capsys.readouterr().err.endswith(f"another (and {9 * limits.LOG_LINES} such lines before)\n")
