"""Every role may send only its own messages; every message is checked for every role (T6)."""

from __future__ import annotations

from typing import get_args

import pytest

from shoal.security.authorize import (
    BE,
    MAY,
    objection,
    of_kind,
)
from shoal.security.keyring import ROLES, PublicKey
from shoal.wire import messages as m
from shoal.wire.messages.groups import Allow, GroupLimits, GroupProcessEnded

KINDS = get_args(m.AnyMessage)
CHANGES = (m.Create, m.Drop, m.Delay, m.Save, m.Drain)
COPIES = (m.Append, m.BackfillPiece, m.Level, m.Adopt, m.BackfillComplete, m.Shrink, m.Opened, m.Snapped)
WORDS_OF_THE_COORDINATOR = (m.View, m.Welcome, m.IncarnationOver, m.Alive, m.Release, m.StatusReply, m.Allowed, m.Deal)


def key(role: str) -> PublicKey:
    return PublicKey(role, "hostb", "a" * 52)


def says(role: str, kind: type[m.Message]) -> str:
    return of_kind(key(role), kind)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_is_for_roles_that_are_named(kind: type[m.Message]) -> None:
    assert kind in MAY, "say in wire/roles.py who may say it"
    assert says("coordinator", kind) == ""
    for role in ROLES[1:]:
        assert (says(role, kind) == "") == (role in MAY[kind])
    assert says("revoked", kind) != ""


@pytest.mark.parametrize("kind", CHANGES, ids=lambda kind: kind.__name__)
def test_a_worker_or_a_server_changes_no_table_and_sends_nobody_away(kind: type[m.Message]) -> None:
    for role in ("worker", "server"):
        assert "needs one of a client or coordinator" in says(role, kind)
    assert says("client", kind) == ""


@pytest.mark.parametrize("kind", COPIES, ids=lambda kind: kind.__name__)
def test_only_a_server_says_what_servers_say(kind: type[m.Message]) -> None:
    assert says("worker", kind) and says("client", kind)
    assert says("server", kind) == ""


@pytest.mark.parametrize("kind", WORDS_OF_THE_COORDINATOR, ids=lambda kind: kind.__name__)
def test_nobody_speaks_for_the_coordinator(kind: type[m.Message]) -> None:
    assert all(says(role, kind) for role in ROLES[1:])


@pytest.mark.parametrize("role", ["server", "worker", "client", "evaluator", "scheduler"])
def test_nobody_joins_as_what_its_key_is_not_for(role: str) -> None:
    hello = m.Hello("hostb", role, "t")
    for mine in ROLES[1:]:
        assert (objection(key(mine), hello, "hostb") == "") == (role in BE[mine])
    assert objection(key("coordinator"), hello, "hostb") == ""


def test_the_address_that_is_given_has_the_key_of_the_one_who_gives_it() -> None:
    def hello(address: str) -> m.Hello:
        return m.Hello("hostb", "server", "t", address)

    assert objection(key("server"), hello(f"tcp://{'a' * 52}@10.0.0.1:7000"), "hostb") == ""
    for address in (f"tcp://{'b' * 52}@10.0.0.1:7000", "tcp://10.0.0.1:7000"):
        assert "not one of its key's" in objection(key("server"), hello(address), "hostb")
    assert "nobody calls those" in objection(
        key("worker"), m.Hello("hostb", "worker", "t", f"tcp://{'a' * 52}@10.0.0.1:7000"), "hostb"
    )


def test_what_groups_may_have_is_said_with_the_coordinators_key_alone() -> None:
    allow = Allow(1, GroupLimits("b", mb=1))
    assert all(objection(key(role), allow, "hostb") for role in ROLES[1:])
    assert objection(key("coordinator"), allow, "operator") == ""


def test_servers_write_for_nobody_but_the_scheduler_of_a_group() -> None:
    for message in (m.Snap(1, 1, 1, "/etc", None), GroupProcessEnded(1, "hostb/worker-0", "t", "killed")):
        assert "only the scheduler of a group" in objection(key("client"), message, "hostb")
        assert "only the scheduler of a group" in objection(key("client"), message, "hostb/ann")
        assert objection(key("client"), message, "hostb/scheduler") == ""
        assert objection(key("worker"), message, "hostb/scheduler")


def test_a_key_that_is_confined_says_nothing_but_as_a_member_of_its_group() -> None:
    confined = PublicKey("client", "hostb", "a" * 52, "b")
    for message in (m.Hello("hostb.x", "client", "t"), m.Drop(1, "w"), m.Call(1, 1, 1, 0, "top", {}, 0, 8), m.Save(1)):
        for sender in ("hostb", "hostb.x", "c/hostb", "hostb/x"):
            assert "is confined to group 'b'" in objection(confined, message, sender)
        assert objection(confined, message, "b/hostb.x") == ""
    for look in (m.StatusRequest(1), m.Describe(1), m.Feed(1, 0), m.Refresh(1), m.TableStatusRequest(1, 1, 0)):
        assert objection(confined, look, "hostb.look") == ""
