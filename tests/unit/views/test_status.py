"""The status of a cluster, as people and programs see it."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from shoal.cluster.roster import ROLES
from shoal.inspect.status import ClusterStatus
from shoal.limits import SECOND
from shoal.tables import Dense
from shoal.views.status import facts, page
from shoal.wire import messages as m


def status(rows: int = 60, copies: int = 2, **changes: object) -> ClusterStatus:
    """Three servers with six segments; server-2 is silent and filling the first segment."""
    names = ["server-0", "server-1", "server-2"]
    places = [m.Replicas(4, [names[i % 2], names[(i + 1) % 2]]) for i in range(6)]
    places[0] = m.Replicas(7, ["server-1"], filling="server-2")
    table = m.TablePlaces(1, "weights", Dense(rows=rows), [i * rows // 6 for i in range(6)], places)
    members = [m.MemberStatus(name, "server", i + 1, 9, SECOND // 5, False) for i, name in enumerate(names)]
    members[2] = m.MemberStatus("server-2", "server", 3, 8, 3 * SECOND, True)
    members.append(m.MemberStatus("worker-0", "worker", 5, 9, 0, False))
    course = m.RunProgress(50, 100, 10, 50, False, 500, 12.5, 12.5, 1, 1, "", "", False, {}, {})
    view = m.View(2, 9, 0, [m.Member(one.name, one.incarnation, one.role, "") for one in members], [table])
    standing = m.StatusReply(1, 2, 9, 0, copies, members, {"server-9": "killed\n\x1b[2J"}, course, "00000003", {})
    own = {name: {i: 40 for i, place in enumerate(places) if place.servers[:1] == [name]} for name in names}
    backs = {name: {i: 38 for i, place in enumerate(places) if name in place.servers[1:]} for name in names}
    told = {
        (name, 1): m.TableStatusReply(1, {}, [], own[name], backs[name], clocks={"worker-0": 17})
        for name in names
        if name != "server-2"
    }
    return ClusterStatus(msgspec.structs.replace(standing, **changes), view, told, ["server-2"])


def shown(one: ClusterStatus, width: int = 100, **settings: bool) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(page(one, "runs/x", width, **settings))
    return capture.get()


def test_a_page_says_who_is_here_and_how_they_are() -> None:
    text = shown(status())
    assert "runs/x  2 copies of each segment · checkpoint 00000003 · coordinator started 2 times" in text
    assert "epoch 5 of 10   50 steps   12 s" in text
    (line,) = [line for line in text.splitlines() if "3.0 s ago" in line]
    assert line.split()[:5] == ["C", "server-2", "server", "3.0", "s"] and "suspected" in line
    (line,) = [line for line in text.splitlines() if "worker-0" in line]
    assert line.split()[-1] == "17"  # its clock
    assert "server-2 does not answer" in text


@pytest.mark.parametrize("role", [*ROLES, "something new"])
def test_whoever_is_a_member_is_shown(role: str) -> None:
    one = status()
    newcomer = m.MemberStatus("b/somebody", role, 9, 9, 0, False)
    text = shown(status(members=[*one.standing.members, newcomer]))
    (line,) = [line for line in text.splitlines() if "b/somebody" in line]
    assert role in line


def test_a_page_says_who_holds_what_and_how_new_it_is() -> None:
    lines = shown(status()).splitlines()
    (table,) = [line for line in lines if line.startswith("table weights")]
    assert "6 segments, version 40, 5 of 6 with all their copies" in table
    (first,) = [line for line in lines if line.split()[:2] == ["0", "0"]]
    assert "B server-1" in first and "C server-2 (filling)" in first
    (second,) = [line for line in lines if line.split()[:2] == ["1", "10"]]
    assert "B server-1       40  A server-0 -2" in second  # two versions behind
    primary, copy = (next(line for line in lines if line.strip().startswith(one)) for one in ("primary", "copy"))
    assert primary.split() == ["primary", "B", "B", "A", "B", "A", "B"]
    # A small letter means that the copy is not complete yet.
    assert copy.split() == ["copy", "c", "A", "B", "A", "B", "A"]


def test_numbers_of_the_protocol_are_for_those_who_ask_for_them() -> None:
    plain, told = shown(status()), shown(status(), 120, numbers=True)
    for one in ("incarnation", "view", "generation", "term", "fence"):
        assert one not in plain and one in told
    assert "term 2 · view 9 · generation 0" in told
    back = shown(status(generation=2, term=1))
    assert "rolled back to a checkpoint 2 times" in back and "coordinator started" not in back


def test_a_column_that_nobody_has_anything_in_is_not_shown() -> None:
    def heads(one: ClusterStatus) -> list[str]:
        return next(line for line in shown(one).splitlines() if "member" in line).split()

    one = status()
    assert heads(one) == ["member", "role", "heard", "steps", "segments"]
    members = [msgspec.structs.replace(seen, address="tcp://10.0.0.1:7000") for seen in one.standing.members]
    far = ClusterStatus(msgspec.structs.replace(one.standing, members=members), one.view, one.told)
    assert heads(far) == [*heads(one), "at"] and "10.0.0.1:7000" in shown(far)


def _on_this_host(seen: m.MemberStatus) -> m.MemberStatus:
    return msgspec.structs.replace(seen, name=seen.name[:12], address="tcp://127.0.0.2:40017", suspected=True)


def test_names_are_whole_where_there_is_little_room_and_addresses_take_two_lines() -> None:
    """Users type names and ports in again, so they are never cut off."""
    one = status()
    long = "server-of-a-host-with-a-long-name-84e9"
    address = "tcp://a-host-with-a-long-name.example:7000"
    members = [msgspec.structs.replace(seen, address=address, load=1234.0) for seen in one.standing.members]
    members[1] = msgspec.structs.replace(members[1], name=long)
    far = ClusterStatus(
        msgspec.structs.replace(one.standing, members=members, lost={"server-7": f"it left: {'others have it ' * 9}"}),
        one.view,
        one.told,
    )
    lines = shown(far, 80, brief=True).splitlines()
    assert max(map(len, lines)) <= 80
    (line,) = [line for line in lines if long in line]
    assert "1,234" in line
    here = [_on_this_host(seen) for seen in members]
    near = ClusterStatus(msgspec.structs.replace(one.standing, members=here, lost={}), one.view, one.told)
    text = shown(near, 80)
    assert "127.0.0.2:40017" in text and "suspected" in text and "…" not in text
    (line,) = [line for line in lines if line.startswith("left: server-7: others have it")]
    assert line.endswith("…")


def test_who_left_in_order_and_who_was_lost_are_told_apart() -> None:
    text = shown(status(lost={"server-8": "it left: others have what it had", "server-9": "silent for 5 s"}))
    assert "left: server-8: others have what it had" in text and "lost: server-9: silent for 5 s" in text


def test_what_nobody_holds_any_more_is_said() -> None:
    one = status()
    table = one.view.tables[0]
    places = [m.Replicas(9, [], "server-0"), *table.places[1:]]
    view = msgspec.structs.replace(one.view, tables=[msgspec.structs.replace(table, places=places)])
    text = shown(ClusterStatus(one.standing, view, one.told))
    assert "1 LOST" in text and "nobody (last: server-0)" in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("ring", [False, True])
def test_a_page_fits_wherever_it_is_shown_and_nothing_in_it_moves_the_cursor(width: int, ring: bool) -> None:
    text = shown(status(), width, show_ring=ring, everything=True)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert ("⠶" in text) == ring


def test_a_ring_names_every_server_and_its_share() -> None:
    text = shown(status(), show_ring=True)
    # It is counted, not guessed: server-0 owns two and backs up three.
    assert "A server-0  2 of 6, copies of 2" not in text
    assert "A server-0  2 of 6, copies of 3" in text
    assert "B server-1  4 of 6, copies of 2" in text


def test_the_facts_are_plain_data() -> None:
    told = msgspec.json.decode(msgspec.json.encode(facts(status())))
    assert (told["term"], told["view"], told["copies"], told["checkpoint"]) == (2, 9, 2, "00000003")
    assert told["members"][2]["suspected"] is True and told["members"][3]["clock"] == 17
    assert told["segments"][1]["copies"][1] == {
        "server": "server-0", "role": "backup", "version": 38, "lag": 2, "unacknowledged": None,
    }  # fmt: skip
    assert told["run"]["done"] == 50


def test_a_cluster_without_tables_or_a_run_has_a_page_too() -> None:
    one = status(course=None, checkpoint="")
    text = shown(ClusterStatus(one.standing, msgspec.structs.replace(one.view, tables=[])))
    assert "no tables yet" in text and "no checkpoint yet" in text
