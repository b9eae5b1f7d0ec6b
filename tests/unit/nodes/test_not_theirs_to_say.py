"""The coordinator refuses requests that their sender has no right to make (T6).

The sender is a member of a group, a worker, a stranger, or a node that sends too much.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import limits
from shoal.cluster import groups
from shoal.cluster.membership_client import MembershipClient
from shoal.cluster.roster import Roster
from shoal.errors import Invalid, ShoalError
from shoal.files import Disk
from shoal.nodes.checkpointing import CheckpointManager, CheckpointWriter
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.server_checkpoint import ServerCheckpoints
from shoal.store.server.table_server import TableServer
from shoal.tables import Dense, Given, Table
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Durable, Effect, Persist, Received, Send
from shoal.wire.messages.groups import (
    CLUSTER,
    Allow,
    Dissolve,
    GroupLimits,
    namespace,
)


class Office:
    """A coordinator with a disk that writes at once."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.now = 100 * limits.SECOND
        self.numbers: dict[str, int] = {}

    def say(self, sender: str, message: m.Message) -> list[m.Message]:
        """Returns the answers to the sender, without views."""
        events: list[Received | Durable] = [Received(sender, message)]
        answers: list[m.Message] = []
        while events:
            for effect in self.coordinator.handle(self.now, events.pop(0)):
                if isinstance(effect, Persist):
                    events.append(Durable(effect.token))
                elif isinstance(effect, Send) and effect.to == sender:
                    assert len(coding.encode(effect.message)) < limits.HEADER_BYTES
                    answers.append(effect.message)
        return [one for one in answers if not isinstance(one, m.View | m.Alive)]

    def join(self, name: str, of: str = "client", **facts: str) -> list[m.Message]:
        hello = m.Hello(
            name, facts.get("role", of), facts.get("token", f"{name}.0"), facts.get("address", ""), namespace(name)
        )
        answers = self.say(name, hello)
        for one in answers:
            if isinstance(one, m.Welcome):
                self.numbers[name] = one.incarnation
        return answers

    def beat(self, name: str, failed: dict[int, str] | None = None) -> None:
        self.say(name, m.Heartbeat(self.numbers[name], self.coordinator.roster.number, failed or {}))

    @property
    def roster(self) -> Roster:
        return self.coordinator.roster


@pytest.fixture
def office() -> Office:
    office = Office()
    for name in ("server-0", "server-1"):
        office.join(name, "server", address=f"memory:{name}")
    for name in ("operator", "b/ann", "a/bob"):
        office.join(name)
    for name in ("worker-0", "b/worker-0", "a/worker-0"):
        office.join(name, "worker")
    office.say("operator", m.Create(1, "w", Dense(rows=8)))
    for name in ("server-0", "server-1"):
        office.beat(name)
    assert "w" in office.roster.tables
    return office


def why(answers: list[m.Message]) -> str:
    (answer,) = answers
    assert isinstance(answer, m.Refusal)
    return answer.reason


# ---------------------------------------------------------------- groups, tables


@pytest.mark.parametrize("name", ["", CLUSTER, "b/", "x" * 500_000])
def test_nobody_dissolves_what_is_no_group(office: Office, name: str) -> None:
    for who in ("operator", "b/ann"):
        assert "there is no group" in why(office.say(who, Dissolve(7, name)))
    assert "w" in office.roster.tables and "server-0" in office.roster.members


@pytest.mark.parametrize("who", ["worker-0", "b/ann", "operator"])
def test_only_a_server_says_that_a_table_could_not_be_set_up(office: Office, who: str) -> None:
    office.say("operator", m.Create(2, "new", Dense(rows=8)))
    office.beat(who, dict.fromkeys(range(1, 200), "I say so"))
    assert {"w", "new"} <= set(office.roster.tables)
    office.beat("server-0", {office.roster.tables["new"].number: "no room"})
    assert "new" not in office.roster.tables


@pytest.mark.parametrize("path", ["/srv/secret", "/srv/keys/id", "/srv/start.f32/../x"])
def test_servers_open_no_file_that_a_group_names_but_weights(path: str) -> None:
    roster = Roster()
    roster.join(0, "b/ann", "client", "t.0", "", 1, "b")
    roster.join(0, "operator", "client", "t.0", "", 2)
    table: Table = Dense(rows=8, initial=Given(path, 1))
    with pytest.raises(Invalid, match=r"\.f32"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/w", table))
    groups.check_change(roster, "operator", m.Create(1, "w", table))
    groups.check_change(roster, "b/ann", m.Create(1, "b/w", Dense(rows=8, initial=Given("/runs/b/start.f32", 1))))


NOT_PLAIN = [
    "../checkpoints/00000001",
    "/a\0b/checkpoints/00000001",
    "/checkpoints/0000000\u0661",
    f"/{'x' * 9_000}/checkpoints/00000001",
]


@pytest.mark.parametrize(
    "folder", ["/srv", "/runs/b/checkpoints", "/runs/checkpoints/00000001/..", "/checkpoints/1\n", *NOT_PLAIN]
)
def test_servers_look_into_no_folder_that_a_group_names_but_checkpoints(folder: str) -> None:
    roster = Roster()
    roster.join(0, "b/ann", "client", "t.0", "", 1, "b")
    roster.join(0, "operator", "client", "t.0", "", 2)
    with pytest.raises(Invalid, match="the folder of a checkpoint"):
        groups.check_change(roster, "b/ann", m.Create(1, "b/w", Dense(rows=8), origin=folder))
    groups.check_change(roster, "operator", m.Create(1, "w", Dense(rows=8), origin=folder))
    groups.check_change(roster, "b/ann", m.Create(1, "b/w", Dense(rows=8), origin="/runs/b/checkpoints/00000001"))


def test_a_group_is_told_the_same_whatever_is_wrong_with_what_it_names(tmp_path: Path) -> None:
    """Otherwise a group could find out which files and folders exist, and their lengths."""
    (tmp_path / "other.f32").write_bytes(b"x" * 7)
    (tmp_path / "same.f32").write_bytes(bytes(32))
    (tmp_path / "folder.f32").mkdir()
    (tmp_path / "checkpoints" / "00000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "00000001" / "manifest.json").write_text("{}")
    files = [Given(str(tmp_path / f"{name}.f32"), 1) for name in ("other", "same", "folder", "none")]
    folders = [str(tmp_path / "checkpoints" / f"0000000{number}") for number in (1, 2)]
    named = [*((Dense(rows=8, initial=one), "", one.path) for one in files)]
    named += [(Dense(rows=8), folder, folder) for folder in folders]
    keeping = ServerCheckpoints(Disk(), MembershipClient("server-0", "server", "token"))

    def said(table: str, spec: Table, origin: str) -> str:
        placed = m.TablePlaces(1, table, spec, [0], [m.Replicas(1, ["server-0"])], origin)
        load = keeping.loader(placed)
        assert load is not None
        with pytest.raises(ShoalError) as caught:
            load(placed, [0])
        return str(caught.value)

    assert len({said("b/w", spec, origin).replace(place, "PLACE") for spec, origin, place in named}) == 1
    assert len({said("w", spec, origin).replace(place, "PLACE") for spec, origin, place in named}) > 3


def test_a_group_has_no_checkpoints_made_but_its_own(office: Office) -> None:
    assert "ask b/scheduler for its" in why(office.say("b/ann", m.Save(7)))
    assert "there is no checkpoint folder" in why(office.say("operator", m.Save(7)))


def test_only_a_scheduler_that_is_here_has_servers_write() -> None:
    member = MembershipClient("server-0", "server", "token")
    placed = m.TablePlaces(1, "b/w", Dense(rows=8), [0], [m.Replicas(1, ["server-0"])])
    keeping, table_server = ServerCheckpoints(Disk(), member), TableServer("server-0", 1, placed, 0)
    snap = m.Snap(1, 1, 1, "/runs/b/checkpoints/00000001")
    for role, may in (("client", False), ("scheduler", True)):
        member.view = m.View(1, 1, 0, [m.Member("b/scheduler", 3, role, "memory:x", group="b")], [placed])
        assert keeping.allows("b/scheduler", snap, table_server) is may
        assert not keeping.allows("b/ann", snap, table_server) and not keeping.allows("a/scheduler", snap, table_server)


def test_a_group_is_not_told_where_the_clusters_checkpoints_lie(office: Office) -> None:
    checkpoints = office.coordinator.checkpoints = CheckpointManager(CheckpointWriter(Path("/run/checkpoints")))
    assert checkpoints.writer is not None
    checkpoints.writer.saved = 3
    for who, told in (("operator", "/run/checkpoints/00000003"), ("b/ann", "")):
        (standing,) = office.say(who, m.StatusRequest(5))
        assert isinstance(standing, m.StatusReply) and standing.checkpoint == told


# ---------------------------------------------------------------- who may release whom


@pytest.mark.parametrize("node", ["server-1", "worker-0", "a/worker-0", "nobody", "x" * 500_000])
def test_a_member_of_a_group_lets_nobody_go_but_its_own_workers(office: Office, node: str) -> None:
    assert "only the operator" in why(office.say("b/ann", m.Drain(7, node)))
    assert not any(one.member.leaving for one in office.roster.members.values())


def test_a_groups_own_workers_go_and_the_operator_lets_anybody_go(office: Office) -> None:
    assert office.say("b/ann", m.Drain(7, "b/worker-0")) == [m.Done(7)]
    assert office.say("operator", m.Drain(8, "a/worker-0")) == [m.Done(8)]
    office.say("operator", m.Drain(9, "server-1"))
    assert "server-1" in office.roster.released or office.roster.members["server-1"].member.leaving


def test_who_is_no_member_lets_nobody_go(office: Office) -> None:
    assert "join first" in why(office.say("nobody", m.Drain(1, "server-1")))
    assert not office.roster.members["server-1"].member.leaving


# ---------------------------------------------------------------- texts of unlimited length


@pytest.mark.parametrize(
    "facts",
    [
        {"token": "x" * 129},
        {"address": "tcp://127." + "x" * 450_000},
        {"address": "tcp://127.0.0.1:" + "1" * 450_000},
        {"address": "ipc://" + "x" * 450_000},
        {"address": "memory:" + "x" * 450_000},
        {"role": "\0" * 200_000},
    ],
)
def test_a_hello_whose_texts_have_no_end_changes_nothing(office: Office, facts: dict[str, str]) -> None:
    before = office.roster.number
    assert len(why(office.join("evil", **facts))) < 1_000
    assert office.roster.number == before and "evil" not in office.roster.members


def test_a_hello_under_another_name_is_answered_in_few_words(office: Office) -> None:
    assert len(why(office.say("evil", m.Hello("\0" * 200_000, "client", "t.0")))) < 1_000


@pytest.mark.parametrize("reads", [["a" * 30] * 15_000, ["a", "a"], [f"g{i}" for i in range(66)], ["/" * 500_000]])
def test_a_group_reads_from_so_many_others_at_most(office: Office, reads: list[str]) -> None:
    assert len(why(office.say("operator", Allow(7, GroupLimits("b", reads=reads))))) < 1_000
    assert not office.roster.groups


def test_a_view_never_gets_too_long_to_be_told(office: Office) -> None:
    """What does not fit in a view is refused, and everything else goes on.

    That holds in any order: tables, groups or members.
    """
    office.say("operator", m.Create(2, "big", Dense(rows=8, initial=Given("/x.f32", 1, "a" * 65_000))))
    for number in range(3, 9):
        office.say(
            "operator", m.Create(number, f"big{number}", Dense(rows=8, initial=Given("/x.f32", 1, "a" * 65_000)))
        )
    reads = [f"{i:032d}" for i in range(limits.GROUPS)]
    said = [office.say("operator", Allow(100 + i, GroupLimits(f"g{i}", reads=reads))) for i in range(limits.GROUPS)]
    assert any(
        isinstance(one, m.Refusal) and "do not fit in a view" in one.reason for answers in said for one in answers
    )
    room = 200
    last: list[m.Message] = []
    for i in range(limits.MEMBERS):
        last = office.join(f"{i:0128d}", token=f"{i}.0", address="memory:" + "x" * room)
        if isinstance(last[-1], m.Refusal):
            break
    assert "full" in why(last)
    assert len(coding.encode(office.roster.view())) < limits.HEADER_BYTES


def test_who_asks_again_and_again_while_the_disk_is_slow_is_answered_once(office: Office) -> None:
    coordinator, asked = office.coordinator, range(2 * limits.MEMBERS)
    first = coordinator.handle(office.now, Received("operator", m.Drain(7, "server-1")))
    (slow,) = (one for one in first if isinstance(one, Persist))
    for request in (7, 7, *asked):
        assert not answers(coordinator.handle(office.now, Received("operator", m.Drain(request, "server-1"))))
    done = answers(coordinator.handle(office.now, Durable(slow.token)))
    assert done.count(m.Done(7)) == 1 and len(done) <= limits.MEMBERS
    # A repeated request.
    assert office.say("operator", m.Drain(asked[-1], "server-1")) == [m.Done(asked[-1])]


def answers(effects: list[Effect]) -> list[m.Message]:
    """Returns the answers to the operator, without views."""
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, m.Done | m.Refusal)]
