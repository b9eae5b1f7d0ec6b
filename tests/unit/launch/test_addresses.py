"""A node listens at one address, and is reached by another."""

from __future__ import annotations

import socket

import pytest

from shoal.errors import Invalid
from shoal.launch.addresses import (
    advertised,
    bind_of,
    check_callable,
    check_free,
    host_of,
    join_address,
    new_name,
    route_address,
)


def test_a_port_that_was_left_open_is_filled_in_and_one_that_was_given_stays() -> None:
    assert bind_of("tcp://10.0.0.1") == bind_of("10.0.0.1") == "tcp://10.0.0.1:*"
    assert bind_of("tcp://10.0.0.1", "7000") == "tcp://10.0.0.1:7000"
    assert bind_of("tcp://10.0.0.1:7001", "7000") == "tcp://10.0.0.1:7001"
    assert bind_of("tcp://10.0.0.1:7001", "*") == "tcp://10.0.0.1:*"
    assert bind_of("tcp://[::1]:7") == "tcp://[::1]:7"


@pytest.mark.parametrize(
    "address", ["tcp://", "tcp://host:0", "tcp://host:70000", "tcp://a b:1", "ipc://x", "tcp://h:1/x"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(Invalid, match="give tcp://HOST:PORT"):
        bind_of(address)


def test_an_address_that_nobody_could_call_needs_one_that_they_can() -> None:
    with pytest.raises(Invalid, match="--advertise"):
        check_callable("tcp://0.0.0.0:7000", "")
    check_callable("tcp://0.0.0.0:7000", "hosta")
    check_callable("tcp://10.0.0.1:7000", "")
    check_callable("", "")


def test_a_newcomer_listens_on_the_way_to_the_coordinator() -> None:
    assert route_address("tcp://127.0.0.1:7000") == "127.0.0.1"
    assert join_address("tcp://127.0.0.1:7000", "", "ann", "") == "tcp://127.0.0.1:*"
    assert join_address("tcp://127.0.0.1:7000", "tcp://127.0.0.2", "ann", "") == "tcp://127.0.0.2:*"
    assert join_address("ipc:///tmp/x/coordinator", "", "ann", "/tmp/y") == "ipc:///tmp/y/ann"
    key = "a" * 52
    assert join_address(f"tcp://{key}@127.0.0.1:7000", "", "ann", "") == "tcp://127.0.0.1:*"


def test_it_is_called_by_what_the_operator_says_or_what_can_be_called() -> None:
    assert advertised("tcp://0.0.0.0:*", "", "tcp://127.0.0.1:7000") == "127.0.0.1"
    assert advertised("tcp://0.0.0.0:*", "tcp://hosta", "tcp://127.0.0.1:7000") == host_of("hosta") == "hosta"
    assert advertised("tcp://127.0.0.2:*", "", "tcp://127.0.0.1:7000") == ""


def test_an_address_of_another_machine_or_one_that_somebody_has_is_told_before_anything_begins() -> None:
    check_free("tcp://127.0.0.1:*")
    check_free("tcp://0.0.0.0:*")
    with pytest.raises(Invalid, match="does not have that address"):
        check_free("tcp://192.0.2.250:7000")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(Invalid, match="another process listens there"):
            check_free(f"tcp://127.0.0.1:{taken.getsockname()[1]}")


def test_names_say_the_role_and_are_not_given_twice() -> None:
    names = {new_name("server") for _ in range(20)}
    assert len(names) > 15 and all(name.startswith("server-") for name in names)
