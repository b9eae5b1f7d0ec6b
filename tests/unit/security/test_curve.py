"""Only callers with a valid key are let in, and refusals are logged.

Each refusal is logged once, then less and less often, with the number of lines left out.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import zmq

from shoal import limits
from shoal.security import keyring
from shoal.security.curve import CallerList, CurveAuthenticator, RefusalLog
from shoal.security.keyring import PublicKey


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
    log = RefusalLog("coordinator", clock)
    for _ in range(600):  # one minute of calls
        log("a caller at 10.0.0.9 was refused")
        clock.now += 0.1
    lines = capsys.readouterr().err.splitlines()
    assert 3 <= len(lines) <= 5
    assert lines[0] == "shoal: coordinator: a caller at 10.0.0.9 was refused"
    assert lines[1].endswith("(50 times more since this was said)")


def test_others_are_told_meanwhile_so_many_a_second_at_most(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    log = RefusalLog("coordinator", clock)
    for caller in range(10 * limits.LOG_LINES):
        log(f"a caller at 10.0.{caller} was refused")
    assert len(capsys.readouterr().err.splitlines()) == limits.LOG_LINES
    clock.now += 1
    log("another")
    assert capsys.readouterr().err.endswith(f"another (and {9 * limits.LOG_LINES} such lines before)\n")


@pytest.fixture
def coordinator(tmp_path: Path) -> PublicKey:
    return keyring.make(tmp_path, "coordinator", "coordinator")


def expiring(clock: Clock, coordinator: PublicKey, folder: Path, until: int) -> tuple[PublicKey, CallerList]:
    """A key of another host that is valid until then, and the coordinator's list with it."""
    made = keyring.make(folder / "there", "hostb", "worker")
    keyring.allow(folder, made, until=until)
    return made, CallerList(folder, coordinator, lambda: int(clock.now))


def test_a_key_is_refused_from_the_moment_that_it_expires_and_that_is_news_once(
    clock: Clock, coordinator: PublicKey, tmp_path: Path
) -> None:
    made, guests = expiring(clock, coordinator, tmp_path, until=200)
    assert guests.refusal(made.public) is None and not guests.look()
    clock.now, version = 200.0, guests.version
    refusal = guests.refusal(made.public)
    assert refusal is not None and refusal.counter == "expired key"
    assert "was good until 1970-01-01T00:03:20Z" in refusal.why and "--until LATER" in refusal.why
    assert guests.look() and guests.version > version  # the listening nodes get the new list
    assert not guests.look()
    keyring.allow(tmp_path, made, until=300)
    assert guests.look() and guests.refusal(made.public) is None


def test_a_clock_that_is_set_back_lets_a_key_in_again_and_a_revoked_one_never(
    clock: Clock, coordinator: PublicKey, tmp_path: Path
) -> None:
    made, guests = expiring(clock, coordinator, tmp_path, until=50)
    assert guests.refusal(made.public) is not None
    clock.now = 10.0
    assert guests.look() and guests.refusal(made.public) is None
    keyring.revoke(tmp_path, "hostb")
    assert guests.look()
    refusal = guests.refusal(made.public)
    assert refusal is not None and refusal.counter == "revoked key"


def test_how_a_key_is_bound_is_the_coordinators_word_and_either_side_revokes(
    coordinator: PublicKey, tmp_path: Path
) -> None:
    made = keyring.make(tmp_path / "there", "hostb", "worker")
    keyring.allow(tmp_path, made)  # without bounds in this host's list
    guests = CallerList(tmp_path, coordinator)
    guests.tell([PublicKey("worker", "hostb", made.public, "b", 7)])
    found = guests.find(made.public)
    assert found is not None and (found.group, found.until) == ("b", 7)
    keyring.revoke(tmp_path, "hostb")
    guests.look()
    refusal = guests.refusal(made.public)
    assert refusal is not None and refusal.counter == "revoked key"


class Frame:
    """A frame of a message that was sent with this key."""

    def __init__(self, public: str) -> None:
        self._public = public

    def get(self, name: str) -> str:
        assert name == "User-Id"
        return self._public


def test_who_makes_names_up_makes_nobody_elses_forgotten(coordinator: PublicKey, tmp_path: Path) -> None:
    honest, other = (keyring.make(tmp_path / name, name, "worker") for name in ("honest", "other"))
    for key in (honest, other):
        keyring.allow(tmp_path, key)
    with zmq.Context() as context:
        door = CurveAuthenticator(
            context, "coordinator", CallerList(tmp_path, coordinator), Counter(), RefusalLog("coordinator")
        )
        try:
            for name in ("honest.1", "honest.2"):
                assert door.sender(name, b"here", Frame(honest.public)) == (
                    PublicKey("worker", "honest", honest.public),
                    "",
                )  # type: ignore[arg-type]
            for number in range(3 * limits.MEMBERS):
                door.sender(f"other.{number}", b"there", Frame(other.public))  # type: ignore[arg-type]
            assert len(door.names) == 2 * limits.MEMBERS
            assert door.may_hear("honest.1") and door.may_hear("honest.2")
            assert door.sender("b/honest", b"there", Frame(other.public))[1]  # type: ignore[arg-type]
            # The other key's call does not take its reason away.
            assert door.sender("b/honest", b"here", Frame(honest.public))[1]  # type: ignore[arg-type]
            # It got the reason already.
            assert not door.sender("b/honest", b"here", Frame(honest.public))[1]  # type: ignore[arg-type]
            assert not door.may_hear("other.0") and door.may_hear(f"other.{3 * limits.MEMBERS - 1}")
        finally:
            door.socket.close(0)
