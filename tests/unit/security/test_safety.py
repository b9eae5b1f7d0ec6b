"""Which addresses are safe, and which key is used to call them (T1-T3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import Invalid
from shoal.security import keyring
from shoal.security.address import (
    check_address,
    is_local,
    parsed,
    with_key,
)
from shoal.security.safety import Safety

KEY = "a" * 52
FAR = "tcp://10.0.0.1:7000"
NEAR = ("tcp://127.0.0.1:7000", "tcp://127.0.0.2:*", "tcp://localhost:1", "tcp://[::1]:9", "ipc:///tmp/x", "memory:1")


@pytest.fixture(autouse=True)
def nobodys_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_KEYS", str(tmp_path / "usual"))


@pytest.fixture
def worker(tmp_path: Path) -> Safety:
    keyring.make(tmp_path / "worker", "hostb", "worker")
    return Safety.with_keys(tmp_path / "worker")


@pytest.mark.parametrize("address", NEAR)
def test_this_machine_needs_no_keys(address: str, worker: Safety) -> None:
    assert is_local(address)
    check_address(address)
    for safety in (Safety.local(), Safety.insecure(), worker):
        safety.check(address)


@pytest.mark.parametrize(
    "address",
    [
        FAR,
        "tcp://127.0.0.1.example.org:7000",
        "tcp://127.example:1",
        "tcp://localhost.example:1",
        "tcp://0.0.0.0:7000",
        "tcp://*:7000",
        "tcp://host.example:1",
        f"tcp://{KEY}@10.0.0.1:7000",
    ],
)
def test_any_other_machine_needs_keys_or_somebody_who_says_that_it_does_not(address: str, worker: Safety) -> None:
    assert not is_local(address)
    for check in (check_address, Safety.local().check):
        with pytest.raises(Invalid, match=r"shoal key new.*--insecure"):
            check(address)
    worker.check(address)
    Safety.insecure().check(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:1 x",
        "tcp://127." + "x" * 5_000 + ":1",
        "memory:" + "x" * 5_000,
        "10.0.0.1:7000",
        "http://10.0.0.1:7000",
        "tcp://10.0.0.1",
        "tcp://a b:1",
        "tcp://x:y",
        7,
    ],
)
def test_what_is_no_address_is_refused_however_safe_it_is(address: str) -> None:
    with pytest.raises(Invalid):
        Safety.insecure().check(address)


def test_a_key_rides_in_the_address() -> None:
    assert parsed(with_key(FAR, KEY)) == (FAR, KEY)
    assert parsed(with_key("ipc:///tmp/x", KEY)) == ("ipc:///tmp/x", KEY)
    assert parsed(FAR) == (FAR, "")
    # Not a key but a part of the path.
    assert parsed("ipc:///tmp/me@home") == ("ipc:///tmp/me@home", "")


def test_safety_is_what_was_said_else_what_the_address_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Safety.chosen().plain == "local"
    assert Safety.chosen(insecure=True).plain == "insecure"
    # There are no keys yet: the address is refused, with what to do next.
    assert Safety.chosen(at=FAR).plain == "local"
    with pytest.raises(Invalid, match="there is no key in"):
        Safety.chosen(at=with_key(FAR, KEY))
    keyring.make(tmp_path / "usual", "hostb", "worker")
    assert Safety.chosen().plain == "local"
    assert Safety.chosen(at=NEAR[0]).plain == "local"
    for at in (FAR, with_key(FAR, KEY), with_key(NEAR[0], KEY)):
        assert Safety.chosen(at=at).plain == f"keys:{tmp_path / 'usual'}"
    with pytest.raises(Invalid, match="exclude each other"):
        Safety.chosen("somewhere", True)


def test_safety_travels_to_another_process_without_a_secret(worker: Safety) -> None:
    again = Safety.of_plain(worker.plain)
    assert again.own("hostb") == worker.own("hostb")
    assert str(worker.own("hostb").secret) not in worker.plain
    assert Safety.of_plain("local").plain == "local" and Safety.of_plain("insecure").is_insecure


def test_a_folder_without_a_key_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="shoal key new"):
        Safety.with_keys(tmp_path)


def test_a_node_is_called_as_its_key_is(worker: Safety, tmp_path: Path) -> None:
    assert worker.named("look-1") == "hostb.look-1"
    assert worker.named("hostb.x") == "hostb.x"
    assert worker.own("hostb.look-1").name == "hostb"
    with pytest.raises(Invalid, match="call it hostb or hostb"):
        worker.own("server-0")
    keyring.make(tmp_path / "home", "coordinator", "coordinator")
    home = Safety.with_keys(tmp_path / "home")
    assert home.named("server-0") == "server-0"
    assert home.own("server-0").role == "coordinator"
    assert Safety.local().named("server-0") == "server-0"


def test_whoever_is_called_elsewhere_must_be_known(worker: Safety, tmp_path: Path) -> None:
    assert worker.key_at("coordinator", parsed(NEAR[0])) == ""
    assert worker.key_at("server-0", parsed(with_key(FAR, KEY))) == KEY
    with pytest.raises(Invalid, match="not known here"):
        worker.key_at("coordinator", parsed(FAR))
    home = keyring.make(tmp_path / "home", "coordinator", "coordinator")
    keyring.allow(tmp_path / "worker", home)
    assert worker.key_at("coordinator", parsed(FAR)) == home.public
    with pytest.raises(Invalid, match="not known here"):
        worker.key_at("server-0", parsed(FAR))
    assert Safety.insecure().key_at("coordinator", parsed(FAR)) == ""
    for safety in (Safety.local(), Safety.insecure()):
        with pytest.raises(Invalid, match="this side has none"):
            safety.key_at("coordinator", parsed(with_key(NEAR[0], KEY)))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1.example.org:7000", "tcp://127.x:1", "tcp://localhost.evil:1"])
def test_what_only_begins_like_this_machine_is_another(address: str) -> None:
    assert not is_local(address)
    with pytest.raises(Invalid, match="other machines"):
        check_address(address)


def test_an_address_has_an_end() -> None:
    for address in ("tcp://127." + "1" * 5_000, "memory:" + "x" * 5_000):
        with pytest.raises(Invalid, match="too long"):
            Safety.insecure().check(address)


def test_on_the_coordinators_own_host_its_key_is_known(tmp_path: Path) -> None:
    made = keyring.make(tmp_path / "home", "coordinator", "coordinator")
    safety = Safety.with_keys(tmp_path / "home")
    assert safety.key_at("coordinator", parsed(FAR)) == made.public


def test_a_node_of_a_group_is_called_as_a_key_that_is_confined_to_it(worker: Safety, tmp_path: Path) -> None:
    assert worker.named("client-1", group="b") == "b/hostb.client-1"
    assert worker.named("client-1", group="hostb") == "hostb/client-1"
    assert worker.own("b/hostb.client-1").name == "hostb"
    with pytest.raises(Invalid, match="call it hostb"):
        worker.own("b/scheduler")
    keyring.make(tmp_path / "worker", "b", "client")
    both = Safety.with_keys(tmp_path / "worker")
    assert both.named("client-1", group="b") == "b/client-1"
    assert both.own("b/scheduler").name == "b"
