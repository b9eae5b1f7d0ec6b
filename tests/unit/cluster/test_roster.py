"""The roster has the members, the tables, and their placement."""

from __future__ import annotations

import pytest

from shoal import limits
from shoal.cluster.rebalance_plan import WantedMove
from shoal.cluster.roster import Roster
from shoal.errors import Invalid
from shoal.limits import SECOND
from shoal.nodes.membership_journal import record_of
from shoal.tables import Dense, Each, Sparse, Step
from shoal.timing import DEFAULT


def roster(*servers: str, copies: int = 1) -> Roster:
    made = Roster(copies=copies)
    for i, name in enumerate(servers, 1):
        made.join(0, name, "server", f"{name}.0", f"memory:{name}", i)
    return made


def holders(made: Roster, table: str) -> set[str]:
    return {server for place in made.tables[table].places for server in place.servers}


def test_who_joins_is_in_the_view() -> None:
    made = roster("ann")
    made.join(0, "bob", "worker", "t", "", 2)
    view = made.view()
    told = [(member.name, member.incarnation, member.role, member.address) for member in view.members]
    assert told == [("ann", 1, "server", "memory:ann"), ("bob", 2, "worker", "")]
    assert view.number == 2


def test_every_change_has_its_own_view_number() -> None:
    made = roster("ann")
    numbers = [made.view().number]
    made.create("w", Dense(rows=8))
    numbers.append(made.view().number)
    made.set_max_delay("w", 3)
    numbers.append(made.view().number)
    made.drop("w")
    numbers.append(made.view().number)
    made.remove("ann", "it left")
    numbers.append(made.view().number)
    assert numbers == [1, 2, 3, 4, 5]
    assert made.view() is made.view()  # it is cached while nothing changes


@pytest.mark.parametrize(
    ("name", "role", "reason"),
    [
        ("", "server", "printable"),
        ("a" * (limits.NAME_CHARS + 1), "server", "printable"),
        ("a\nb", "server", "printable"),
        ("ann", "king", "none of server, worker"),
        ("ann", "", "none of"),
    ],
)
def test_who_may_not_join_is_told_why(name: str, role: str, reason: str) -> None:
    assert reason in Roster().may_join(name, role, "t")


def test_all_roles_may_join() -> None:
    for role in ("server", "worker", "client", "evaluator"):
        assert Roster().may_join("ann", role, "t") == ""


def test_a_full_cluster_takes_nobody_but_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMBERS", 2)
    made = roster("ann", "bob")
    assert "full" in made.may_join("eve", "worker", "t")
    assert "taken" in made.may_join("bob", "server", "another life")  # the member is alive
    made.members["bob"].suspected = True
    assert made.may_join("bob", "server", "another life") == ""


def test_a_resent_hello_is_known_and_a_new_life_is_not() -> None:
    made = roster("ann")
    known = made.knows("ann", "ann.0")
    assert known is not None and known.member.incarnation == 1
    assert made.knows("ann", "ann.1") is None
    assert made.knows("bob", "ann.0") is None


def test_a_second_process_of_the_same_name_takes_over() -> None:
    made = roster("ann", "bob")
    made.create("w", Dense(rows=64))
    before = [place.servers for place in made.tables["w"].places]
    made.join(5, "ann", "server", "ann.1", "elsewhere", 3)
    assert [member.incarnation for member in made.view().members] == [2, 3]
    assert made.is_over("ann", "ann.0")
    # The new process has no data: what only the old one held is lost.
    after = [place.servers for place in made.tables["w"].places]
    assert after == [[] if old == ["ann"] else old for old in before]


def test_the_tokens_of_former_lives_are_remembered_but_not_for_ever() -> None:
    made = Roster()
    for life in range(30):
        made.join(0, "ann", "worker", f"t.{life}", "", life + 1)
    assert made.is_over("ann", "t.28")
    assert not made.is_over("ann", "t.29")  # ann is alive
    assert not made.is_over("ann", "t.0")
    assert len(made.retired["ann"]) == 16


def test_however_many_come_and_go_only_the_last_of_them_are_remembered() -> None:
    made = roster("ann")
    for number in range(2 * limits.FORMER):
        name, role = f"node-{number}", "server" if number % 2 else "client"
        made.join(0, name, role, f"{name}.0", "memory:x", number + 2)
        if role == "server":
            made.release(name)
        made.remove(name, "it left")
    last = f"node-{2 * limits.FORMER - 1}"
    assert len(made.retired) == limits.FORMER and made.is_over(last, f"{last}.0")
    assert len(made.lost) == limits.LOST and last in made.lost
    assert len(made.released) <= limits.FORMER and last in made.released
    assert len(record_of(made)) < 100_000  # the whole record is written with every change


def test_the_silent_are_suspected_and_then_removed() -> None:
    made = Roster()
    made.join(0, "ann", "worker", "t", "", 1)
    assert list(made.find_dead(DEFAULT.suspect - 1)) == []
    assert not made.members["ann"].suspected
    assert list(made.find_dead(DEFAULT.suspect)) == []
    assert made.members["ann"].suspected
    made.members["ann"].last_seen = DEFAULT.suspect
    list(made.find_dead(DEFAULT.suspect + 1))
    assert not made.members["ann"].suspected  # being suspected has no effect
    assert list(made.find_dead(DEFAULT.suspect + DEFAULT.dead)) == ["ann"]


def test_the_last_holder_of_a_segment_is_not_removed_for_silence() -> None:
    made = roster("ann", "bob")
    assert list(made.find_dead(60 * SECOND)) == ["ann", "bob"]  # they hold nothing yet
    made.create("w", Dense(rows=64))
    assert list(made.find_dead(60 * SECOND)) == []
    made.drop("w")
    assert list(made.find_dead(60 * SECOND)) == ["ann", "bob"]


def test_a_server_whose_segments_have_copies_is_removed_for_silence() -> None:
    made = roster("ann", "bob", copies=2)
    made.create("w", Dense(rows=64))
    made.members["bob"].last_seen = 60 * SECOND
    assert list(made.find_dead(60 * SECOND)) == ["ann"]
    made.remove("ann", "silent")
    assert list(made.find_dead(90 * SECOND)) == []  # bob is the last holder now


def test_of_servers_that_are_all_silent_none_is_removed_for_another_that_may_be_the_dead_one() -> None:
    made = roster("ann", "bob", "cat", copies=3)
    made.create("w", Dense(rows=64))
    # It was the last one to send a message, and is silent by now, too.
    made.members["cat"].last_seen = DEFAULT.dead - DEFAULT.suspect
    assert list(made.find_dead(DEFAULT.dead)) == []
    made.mark_alive(DEFAULT.dead, made.members["cat"])
    made.members["ann"].last_seen = made.members["bob"].last_seen = 0
    gone = []
    for name in made.find_dead(DEFAULT.dead):
        gone.append(name)
        made.remove(name, "silent")
    assert gone == ["ann", "bob"]


def test_time_in_which_nobody_was_heard_is_held_against_nobody() -> None:
    made = roster("ann", "bob", "cat", copies=3)
    for now in (DEFAULT.heartbeat, 2 * DEFAULT.heartbeat):
        made.mark_alive(now, made.members["ann"])
        made.mark_alive(now, made.members["bob"])  # cat never sent a message: one second of silence
    later = 2 * DEFAULT.heartbeat + 60 * SECOND
    made.mark_alive(later, made.members["bob"])
    assert [later - person.last_seen for person in made.members.values()] == [0, 0, 2 * DEFAULT.heartbeat]
    # No longer than the usual interval between two messages.
    made.mark_alive(later + DEFAULT.heartbeat, made.members["bob"])
    assert made.members["ann"].last_seen == later


def test_a_newcomer_that_is_heard_first_is_no_reason_to_hold_silence_against_the_others() -> None:
    made = roster("ann", "bob")
    for person in made.members.values():
        made.mark_alive(SECOND, person)
    made.join(60 * SECOND, "cat", "server", "cat.0", "memory:cat", 3)
    assert list(made.find_dead(60 * SECOND)) == [] and not made.suspects()


def test_when_a_server_goes_its_backups_move_up_and_the_epoch_changes() -> None:
    made = roster("ann", "bob", copies=2)
    placed = made.create("w", Dense(rows=64))
    assert all(sorted(place.servers) == ["ann", "bob"] for place in placed.places)
    made.remove("ann", "silent")
    after = made.tables["w"].places
    assert all(place.servers == ["bob"] for place in after)
    assert all(new.epoch > old.epoch for old, new in zip(placed.places, after, strict=True))
    assert made.lost == {"ann": "silent"}


def test_segments_of_other_servers_keep_their_epoch() -> None:
    made = roster("ann", "bob")
    placed = made.create("w", Dense(rows=64))
    made.remove("ann", "it left")
    for old, new in zip(placed.places, made.tables["w"].places, strict=True):
        assert (new == old) == (old.servers == ["bob"])


def test_a_worker_that_goes_changes_no_epoch() -> None:
    made = roster("ann")
    made.join(0, "eve", "worker", "t", "", 2)
    placed = made.create("w", Dense(rows=64))
    made.remove("eve", "it left")
    assert made.tables["w"] == placed
    assert made.lost == {}


def test_a_table_is_placed_on_the_servers_there_are() -> None:
    made = roster("ann", "bob")
    made.join(0, "eve", "worker", "t", "", 3)
    placed = made.create("w", Sparse(keys=1_000))
    assert len(placed.starts) == len(placed.places) == 16
    assert holders(made, "w") == {"ann", "bob"}
    # The number of the view that shows it.
    assert {place.epoch for place in placed.places} == {made.number}


def test_a_table_made_again_is_another_table() -> None:
    made = roster("ann")
    first = made.create("w", Dense(rows=8)).number
    made.drop("w")
    assert made.create("w", Dense(rows=8)).number > first


@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [
        ("", Dense(rows=8), "printable"),
        ("w\x00", Dense(rows=8), "printable"),
        ("w" * (limits.NAME_CHARS + 1), Dense(rows=8), "printable"),
        ("v", Dense(rows=8), "exists already"),
        ("w", Dense(rows=0), "rows=0"),
        ("w", Sparse(), "one of the two"),
        ("w", Dense(rows=8, apply=Step(slots=0)), "slots=0"),
        ("w", Dense(rows=1 << 62), "start more"),
    ],
)
def test_a_table_that_cannot_be_is_refused_and_nothing_changes(name: str, spec: Dense | Sparse, reason: str) -> None:
    made = roster("ann")
    made.create("v", Dense(rows=8))
    before = (made.view(), made.tables_made)
    with pytest.raises(Invalid, match=reason):
        made.create(name, spec)
    assert (made.view(), made.tables_made) == before


def test_without_servers_there_are_no_tables() -> None:
    with pytest.raises(Invalid, match="no server has joined yet"):
        Roster().create("w", Dense(rows=8))


def test_there_are_only_so_many_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TABLES", 1)
    made = roster("ann")
    made.create("v", Dense(rows=8))
    with pytest.raises(Invalid, match="drop one"):
        made.create("w", Dense(rows=8))


def test_the_delay_of_a_table_can_be_changed_and_nothing_else_with_it() -> None:
    made = roster("ann")
    spec = Dense(rows=8, width=3, apply=Each(), max_delay=1)
    before = made.create("w", spec)
    made.set_max_delay("w", 7)
    after = made.tables["w"]
    assert after.spec == Dense(rows=8, width=3, apply=Each(), max_delay=7)
    assert (after.number, after.starts, after.places) == (before.number, before.starts, before.places)
    made.set_max_delay("w", None)
    assert made.tables["w"].spec.max_delay is None
    with pytest.raises(Invalid, match="max_delay=-1"):
        made.set_max_delay("w", -1)


def test_what_is_not_there_cannot_be_changed() -> None:
    made = roster("ann")
    with pytest.raises(Invalid, match="no table 'w'"):
        made.drop("w")
    with pytest.raises(Invalid, match="no table 'w'"):
        made.set_max_delay("w", 1)


def test_a_set_gets_smaller_only_if_one_that_is_left_was_heard_since_the_other_was_to_go() -> None:
    """A restarted coordinator takes all members for alive.

    If one of two servers has been dead for long, the other must not leave.
    """
    made = roster("ann", "bob", copies=2)
    made.create("w", Dense(rows=8))
    made.members["ann"].view = made.members["bob"].view = made.number
    made.leave("bob")
    smaller = [WantedMove("w", segment, "bob", "", "leaving") for segment in range(len(made.tables["w"].places))]
    made.members["bob"].view = made.number
    assert made.assignment.begin(0, smaller) == [] and holders(made, "w") == {"ann", "bob"}
    made.members["ann"].view, made.members["ann"].suspected = made.number, True
    assert made.assignment.begin(0, smaller) == []
    made.members["ann"].suspected = False
    assert made.assignment.begin(0, smaller) == smaller and holders(made, "w") == {"ann"}


def test_a_new_table_has_all_its_copies_while_one_that_is_to_hold_them_is_still_leaving() -> None:
    """The only server that stays may be dead without being noticed yet.

    The table would be lost before any client could use it.
    """
    made = roster("ann", "bob", copies=2)
    made.leave("bob")
    made.create("w", Dense(rows=64))
    assert {tuple(place.servers) for place in made.tables["w"].places} == {("ann", "bob")}
    made.remove("ann", "it was killed")
    assert not made.assignment.has_lost()


def test_a_server_that_leaves_is_given_nothing_where_enough_others_stay() -> None:
    made = roster("ann", "bob", "cat", copies=2)
    made.leave("bob")
    made.create("w", Dense(rows=64))
    assert holders(made, "w") == {"ann", "cat"}


def test_nothing_changes_hands_before_every_member_of_its_set_knows_of_it() -> None:
    """A new primary must have known the table before.

    One that first learns of a table when it takes over as primary could not bring the third
    replica level.
    """
    made = roster("ann", "bob", "cat", copies=3)
    made.create("w", Dense(rows=8))
    first = made.tables["w"].places[0].servers
    swap = [WantedMove("w", 0, first[0], first[1], "count")]
    made.members[first[0]].view = made.members[first[1]].view = made.number
    assert made.assignment.begin(0, swap) == []
    made.members[first[2]].view = made.number
    assert made.assignment.begin(0, swap) == swap
    assert made.tables["w"].places[0].servers == [first[1], first[0], first[2]]


def test_half_a_trade_is_not_begun() -> None:
    """Half a trade would leave one server with too many segments.

    The rule of counts would undo it, or another segment would complete it.
    """
    made = roster("ann", "bob")
    made.create("w", Dense(rows=8))
    owners = [place.servers[0] for place in made.tables["w"].places]
    mine, other = owners.index("ann"), owners.index("bob")
    trade = [WantedMove("w", mine, "ann", "bob", "load", "", 1), WantedMove("w", other, "bob", "ann", "load", "", 1)]
    made.members["ann"].view = made.members["bob"].view = made.number
    # Servers that cannot reach each other do not try again so soon.
    made.assignment.unreachable["bob", "ann"] = 10
    before = dict(made.tables)
    assert made.assignment.begin(0, trade) == [] and made.tables == before
    assert made.assignment.begin(10, trade) == trade
    assert [made.tables["w"].places[one].filling for one in (mine, other)] == ["bob", "ann"]
