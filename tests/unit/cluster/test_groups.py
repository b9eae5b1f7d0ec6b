"""Groups have names, rights on tables, and quotas."""

from __future__ import annotations

import pytest

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.roster import Roster
from shoal.errors import Invalid
from shoal.nodes import membership_journal
from shoal.tables import Dense, Sparse
from shoal.wire import messages as m
from shoal.wire.messages.groups import (
    CLUSTER,
    Allow,
    Dissolve,
    GroupLimits,
    GroupProcessEnded,
    is_group,
    namespace,
    seen,
    whole,
)

SMALL = Dense(rows=1_000)


def roster_of(*names: str) -> Roster:
    roster = Roster()
    for i, name in enumerate(("server-0", *names), 1):
        role = "server" if name == "server-0" else "client"
        roster.join(0, name, role, f"{name}.0", f"memory:{name}", i, namespace(name))
    return roster


def hello(name: str, role: str = "worker", group: str | None = None) -> m.Hello:
    return m.Hello(name, role, "token.0", "memory:x", namespace(name) if group is None else group)


@pytest.mark.parametrize("table", ["b/weights", "a/weights", "weights"])
@pytest.mark.parametrize("group", ["", "b"])
def test_a_name_that_a_member_sees_means_the_same_table_when_it_says_it(table: str, group: str) -> None:
    assert whole(seen(table, group), group) == table


def test_two_groups_mean_different_tables_by_the_same_name() -> None:
    assert whole("weights", "a") != whole("weights", "b") != whole("weights", "")
    assert whole("/weights", "b") == "weights"
    assert whole("a/weights", "b") == "a/weights"


@pytest.mark.parametrize("name", ["", CLUSTER, "a/b", ".", "x" * 33, "ä b", None, 3])
def test_what_is_no_name_of_a_group(name: object) -> None:
    assert not is_group(name)


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (hello("worker-0", group="b"), "are named b/..."),
        (hello("a/worker-0", group="b"), "are named b/..."),
        (hello("b/worker-0", group=""), "name of a member of a group"),
        (hello("b/server-0", "server"), "belongs to no group"),
        (hello("scheduler", "scheduler", ""), "name the group"),
        (hello("b/other", "scheduler"), "no other node is"),
        (hello("b/scheduler", "worker"), "no other node is"),
        (hello("b b/w", group="b b"), "letters, digits"),
    ],
)
def test_who_may_not_join_is_told_why(greeting: m.Hello, why: str) -> None:
    assert why in groups.refuses(Roster(), greeting)


def test_a_group_that_is_full_takes_nobody_more_but_who_comes_back() -> None:
    roster = roster_of("b/one", "b/two", "a/one")
    groups.allow(roster, GroupLimits("b", members=2))
    assert "has 2 members, and may have 2" in groups.refuses(roster, hello("b/three"))
    assert groups.refuses(roster, hello("b/two")) == ""
    assert groups.refuses(roster, hello("a/two")) == ""


def test_a_member_changes_tables_of_its_own_group_only() -> None:
    roster = roster_of("b/ann", "operator")
    for change in (m.Create(1, "a/w", SMALL), m.Create(1, "w", SMALL), m.Drop(1, "w"), m.Delay(1, "a/w", 3)):
        with pytest.raises(Invalid, match="in group 'b'"):
            groups.check_change(roster, "b/ann", change)
        groups.check_change(roster, "operator", change)
    groups.check_change(roster, "b/ann", m.Create(1, "b/w", SMALL))
    with pytest.raises(Invalid, match="in group 'b'"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/w", SMALL, like="w"))


def test_what_a_group_may_have_is_the_operators_to_say() -> None:
    roster = roster_of("b/ann", "operator")
    with pytest.raises(Invalid, match="only the operator sets"):
        groups.check_change(roster, "b/ann", Allow(1, GroupLimits("b", mb=1_000)))
    groups.check_change(roster, "operator", Allow(1, GroupLimits("b", mb=1_000)))
    with pytest.raises(Invalid, match="names of groups"):
        groups.check_change(roster, "operator", Allow(1, GroupLimits("b", reads=["a/b"])))


def test_a_quota_counts_every_weight_a_table_may_come_to_have() -> None:
    roster = roster_of("b/ann")
    groups.allow(roster, GroupLimits("b", mb=1, tables=2))
    mega = limits.MB // 4  # floats in 1 MB
    with pytest.raises(Invalid, match=r"would have 1\.0 MB of weights, and group 'b' has 0\.0 of 1 MB"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/w", Dense(rows=mega + 1)))
    groups.check_change(roster, "b/ann", m.Create(1, "b/w", Dense(rows=mega // 2, width=2)))
    roster.create("b/w", Dense(rows=mega // 2))
    with pytest.raises(Invalid, match=r"has 0\.5 of 1 MB"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/v", Sparse(keys=mega)))
    with pytest.raises(Invalid, match="no bound on its keys"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/v", Sparse(hashed=True)))
    roster.create("b/v", SMALL)
    with pytest.raises(Invalid, match="has 2 tables, and may have 2"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/u", SMALL))


def test_a_member_pushes_to_its_own_and_pulls_what_its_group_may_read() -> None:
    named = {"b": GroupLimits("b", reads=["a", CLUSTER])}
    assert (
        groups.refused("b/ann", "b", {}, "b/w", push=True) == groups.refused("operator", "", {}, "b/w", push=True) == ""
    )
    assert "may not push" in groups.refused("b/ann", "b", named, "a/w", push=True)
    assert "may not read" in groups.refused("b/ann", "b", {}, "a/w", push=False)
    assert "--reads cluster" in groups.refused("b/ann", "b", {}, "w", push=False)
    assert (
        groups.refused("b/ann", "b", named, "a/w", push=False)
        == groups.refused("b/ann", "b", named, "w", push=False)
        == ""
    )


def test_only_its_scheduler_says_that_a_member_of_a_group_has_ended() -> None:
    roster = roster_of("b/worker-0", "operator")
    roster.join(0, "b/scheduler", "scheduler", "s.0", "memory:s", 9, "b")
    roster.join(0, "a/scheduler", "scheduler", "t.0", "memory:t", 10, "a")
    word = GroupProcessEnded(9, "b/worker-0", "b/worker-0", "killed")
    assert groups.ended(roster, "b/scheduler", word)
    assert not groups.ended(roster, "a/scheduler", GroupProcessEnded(10, "b/worker-0", "b/worker-0", "killed"))
    assert not groups.ended(roster, "operator", word)
    assert not groups.ended(roster, "b/scheduler", GroupProcessEnded(8, "b/worker-0", "b/worker-0", "killed"))
    assert not groups.ended(roster, "b/scheduler", GroupProcessEnded(9, "b/worker-0", "another life", "killed"))
    assert not groups.ended(roster, "b/scheduler", GroupProcessEnded(9, "b/worker-0", "", "killed"))
    assert not groups.ended(roster, "b/scheduler", GroupProcessEnded(9, "server-0", "server-0", "killed"))


def test_a_group_is_dissolved_by_its_own_or_when_it_is_not_at_work() -> None:
    roster = roster_of("b/ann", "a/bob", "operator")
    roster.create("b/w", SMALL)
    roster.create("w", SMALL)
    with pytest.raises(Invalid, match="only the operator"):
        groups.check_change(roster, "a/bob", Dissolve(1, "b"))
    roster.join(0, "b/scheduler", "scheduler", "s.0", "memory:s", 9, "b")
    with pytest.raises(Invalid, match="has a run"):
        groups.check_change(roster, "operator", Dissolve(1, "b"))
    groups.check_change(roster, "b/ann", Dissolve(1, "b"))
    assert groups.dissolve(roster, "b", "b/ann") == ["b/scheduler"]
    assert list(roster.tables) == ["w"]


def test_a_group_that_nobody_knows_is_not_dissolved_in_silence() -> None:
    roster = roster_of("a/bob", "operator")
    roster.create("b/w", SMALL)
    groups.allow(roster, GroupLimits("c", mb=7))
    with pytest.raises(Invalid, match=r"no group 'd' to dissolve \(groups: b, c\)"):
        groups.dissolve(roster, "d", "operator")
    assert groups.dissolve(roster, "c", "operator") == []  # it has a quota, but no tables
    assert groups.dissolve(roster, "a", "a/bob") == []  # it has a member


def test_what_groups_may_have_outlives_the_coordinator() -> None:
    roster = roster_of("b/ann")
    groups.allow(roster, GroupLimits("b", mb=7, reads=[CLUSTER]))
    after = Roster()
    record, _ = membership_journal.split([membership_journal.record_of(roster)])
    assert record is not None
    membership_journal.replay(after, record)
    assert after.groups == roster.groups
    assert after.members["b/ann"].member.group == "b"
    assert {one.name: one.mb for one in after.view().groups}["b"] == 7


def test_a_checkpoint_is_of_one_groups_tables_under_its_own_names() -> None:
    roster = roster_of()
    for name in ("w", "a/w", "b/w"):
        roster.create(name, SMALL)
    assert [table.name for table in groups.group_view(roster.view(), "b").tables] == ["w"]
    assert groups.group_view(roster.view(), "b").tables[0].number == roster.tables["b/w"].number
    assert groups.group_view(roster.view(), "").tables == [roster.tables["w"]]


@pytest.mark.parametrize("name", ["", CLUSTER, "a/b", "x" * 100])
def test_what_is_no_group_is_not_dissolved(name: str) -> None:
    roster = roster_of("operator")
    roster.create("w", SMALL)
    with pytest.raises(Invalid, match="there is no group"):
        groups.check_change(roster, "operator", Dissolve(1, name))


def test_a_member_of_a_group_lets_nobody_else_go() -> None:
    roster = roster_of("b/ann", "operator")
    assert "only the operator" in groups.may_send_away(roster, "b/ann", "server-0")
    assert "join first" in groups.may_send_away(roster, "b/no-member", "a/worker-0")
    for sender, name in (("b/ann", "b/worker-0"), ("operator", "server-0"), ("operator", "b/worker-0")):
        assert groups.may_send_away(roster, sender, name) == ""


def test_a_group_does_not_read_without_an_end() -> None:
    roster = roster_of("operator")
    with pytest.raises(Invalid, match="at most"):
        groups.check_change(
            roster, "operator", Allow(1, GroupLimits("b", reads=[f"g{i}" for i in range(limits.GROUPS + 1)]))
        )
