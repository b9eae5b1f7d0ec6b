"""Under torchrun each process has a rank and a role, and only expected ranks are let in.

Settings that do not work with torchrun are refused.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

import msgspec
import pytest

from shoal.errors import Invalid, StartFailed
from shoal.job import Job
from shoal.launch import torchrun
from shoal.launch.torchrun import (
    HeadRank,
    RankClosed,
    RankForkserver,
    RankHello,
    RankRelease,
    TorchrunRank,
    rank,
    roles,
    staffed,
    take_part,
)
from tests.support import PATIENCE

VARIABLES = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "5",
    "LOCAL_WORLD_SIZE": "5",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def of(world: int = 5, hosts: int = 1, restarts: int = 0) -> TorchrunRank:
    return TorchrunRank(0, world, hosts, restarts, f"\0shoal-test-{secrets.token_hex(8)}".encode())


@contextmanager
def head_of(me: TorchrunRank) -> Iterator[HeadRank]:
    with closing(HeadRank(me)) as head, head:
        yield head


def come_in(head: HeadRank, line: bytes) -> socket.socket:
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(PATIENCE)
    one.connect(head.rank.socket_name)
    one.send(line)
    return one


# ---------------------------------------------------------------- ranks


def test_a_rank_is_known_by_torchruns_variables() -> None:
    me = rank(VARIABLES)
    assert me is not None
    assert (me.number, me.world, me.hosts, me.restarts) == (3, 5, 1, 0)


def test_without_torchrun_nobody_is_a_rank() -> None:
    assert rank({}) is None
    others = {name: value for name, value in VARIABLES.items() if "TORCHELASTIC" not in name}
    assert rank(others) is None  # Slurm and others set some of these variables, too
    assert rank(VARIABLES | {"LOCAL_RANK": "three"}) is None


@pytest.mark.parametrize(
    ("lies", "words"),
    [
        ({"LOCAL_WORLD_SIZE": "99999"}, "LOCAL_WORLD_SIZE=99999: needs at most 1,024: use fewer ranks"),
        (
            {"LOCAL_WORLD_SIZE": "99999999999"},
            "LOCAL_WORLD_SIZE=999999999... has 11 digits; torchrun sets these: start it",
        ),
        ({"LOCAL_RANK": "1" * 5_000}, "LOCAL_RANK=111111111... has 5,000 digits; torchrun sets these"),
        ({"TORCHELASTIC_RESTART_COUNT": "1" * 5_000}, "TORCHELASTIC_RESTART_COUNT=111111111... has 5,000 digits"),
        ({"LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "3"}, "LOCAL_RANK=7 and LOCAL_WORLD_SIZE=3: ranks are 0 to one less;"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_RANK=0 and LOCAL_WORLD_SIZE=0"),
    ],
)
def test_variables_that_cannot_be_are_refused_in_one_line(
    lies: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (VARIABLES | lies).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match="2"):
        take_part(lambda _: pytest.fail("it ran"))
    said = capsys.readouterr().err
    assert said.startswith(f"Error: {words}") and said.count("\n") == 1


def test_ranks_of_one_start_meet_and_those_of_another_do_not() -> None:
    def socket_name(**changes: str) -> bytes:
        me = rank(VARIABLES | changes)
        assert me is not None
        return me.socket_name

    assert socket_name() == socket_name(RANK="0", LOCAL_RANK="0")
    others = {"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "29501"}, {"TORCHELASTIC_RUN_ID": "x" * 500}
    doors = [socket_name(), *(socket_name(**changes) for changes in others)]
    assert len(set(doors)) == len(doors)
    # They are not files, and short enough.
    assert all(one.startswith(b"\0") and len(one) < 100 for one in doors)


# ---------------------------------------------------------------- roles


def test_the_first_ranks_serve_and_the_others_work() -> None:
    assert roles(2, 5) == {"server-1": 1, "worker-0": 2, "worker-1": 3, "worker-2": 4}
    assert roles(1, 2) == {"worker-0": 1}


@pytest.mark.parametrize(
    ("servers", "world", "words"),
    [
        (1, 2, "rank 0 leads, rank 0 serves, rank 1 works: 1 worker"),
        (2, 4, "rank 0 leads, ranks 0 and 1 serve, ranks 2 and 3 work: 2 workers"),
        (3, 8, "rank 0 leads, ranks 0 to 2 serve, ranks 3 to 7 work: 5 workers"),
    ],
)
def test_there_are_as_many_workers_as_ranks_for_them_and_that_is_said(servers: int, world: int, words: str) -> None:
    job, said = staffed(Job(servers=servers), of(world))
    assert (job.servers, job.workers) == (servers, world - servers)
    assert said == f"torchrun: {words}"


@pytest.mark.parametrize(
    ("settings", "me", "words"),
    [
        ({"servers": 5}, of(3), "3 ranks, and servers=5 and a worker need 6: use more (--nproc-per-node 6), or fewer"),
        ({}, of(1), "1 rank, and servers=1 and a worker need 2: use more (--nproc-per-node 2)"),
        (
            {},
            of(5, hosts=2),
            "ranks on 2 hosts, and shoal uses torchrun on a single host only: use one (--nn",
        ),
        ({"strategy": "serial"}, of(), "'serial' is one process: start it without torchrun"),
        ({"launch.how": "threads"}, of(), "launch.how='threads' is a single process"),
    ],
)
def test_what_does_not_go_with_torchrun_is_refused_with_the_next_move(
    settings: dict[str, object], me: TorchrunRank, words: str
) -> None:
    from shoal.settings_tree import changed

    with pytest.raises(Invalid) as caught:
        staffed(Job.of(changed({"data": "clicks"}, settings)), me)
    assert words in str(caught.value)


def test_a_group_that_was_started_again_hears_that_only_out_goes_on() -> None:
    with closing(HeadRank(of(restarts=1))) as head:
        head.staffed(Job(), fresh=True)
        assert head.words.endswith("torchrun has restarted it, and it begins again: with --out it would resume")
        head.staffed(Job())
        assert "anew" not in head.words


# ---------------------------------------------------------------- joining


def test_only_ranks_that_are_awaited_are_let_in() -> None:
    with head_of(of(2)) as head:
        for nonsense in (b"hello", msgspec.json.encode(RankHello(2)), msgspec.json.encode(RankHello(0)), b""):
            with come_in(head, nonsense) as one:
                assert one.recv(100) == b""  # the connection is closed
        with come_in(head, msgspec.json.encode(RankHello(1))) as one:
            assert list(head.seats()) == [1]
            assert head.seats()[1].pid == os.getpid()
            with come_in(head, msgspec.json.encode(RankHello(1))) as again:
                assert again.recv(100) == b""


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "MEET_WITHIN", 1.0)
    words = "rank 1, 3 did not connect in 1 s: look at what it printed"
    with (
        head_of(of(4)) as head,
        come_in(head, msgspec.json.encode(RankHello(2))),
        pytest.raises(StartFailed, match=re.escape(words)),
    ):
        head.seats()


@pytest.mark.parametrize(("end", "code"), [(None, 0), (SystemExit(2), 2), (SystemExit(), 0), (ValueError(), 1)])
def test_the_others_are_told_how_the_head_ended_also_those_that_come_late(end: BaseException | None, code: int) -> None:
    heard: list[bytes] = []
    head = HeadRank(of(2))

    def late() -> None:
        with come_in(head, msgspec.json.encode(RankHello(1))) as one:
            heard.append(one.recv(100))

    with closing(head), pytest.raises(type(end)) if end is not None else nullcontext(), head:
        one = threading.Thread(target=late)
        one.start()
        if end is not None:
            raise end
    one.join(PATIENCE)
    assert [msgspec.json.decode(line, type=RankRelease) for line in heard] == [RankRelease(code)]


def test_a_forkserver_of_another_rank_is_ordered_and_heard_by_pipes() -> None:
    with head_of(of(2)) as head, come_in(head, msgspec.json.encode(RankHello(1))) as one:
        away = head.seats()[1].forkserver()
        line, (orders, reports), _, _ = socket.recv_fds(one, 100, 2)
        assert msgspec.json.decode(line, type=RankForkserver) == RankForkserver()
        assert away.stdin is not None and away.stdout is not None
        with away.stdin, away.stdout:
            away.stdin.write(b"do this\n")
            os.write(reports, b"done\n")
            assert (os.read(orders, 100), away.stdout.read(100)) == (b"do this\n", b"done\n")
            assert away.poll() is None
            one.send(msgspec.json.encode(RankClosed(-9)))
            assert away.wait(PATIENCE) == away.poll() == -9
        os.close(orders)
        os.close(reports)


def test_a_rank_that_is_gone_has_no_forkserver_any_more() -> None:
    with head_of(of(2)) as head:
        with come_in(head, msgspec.json.encode(RankHello(1))):
            seat = head.seats()[1]
            away = seat.forkserver()
        for _ in range(2):
            assert away.wait(PATIENCE) < 0
            assert away.stdin is not None and away.stdout is not None
            away.stdin.close()
            away.stdout.close()
            away = seat.forkserver()
        assert away.wait(PATIENCE) < 0 and away.stdin is not None and away.stdout is not None
        away.stdin.close()
        away.stdout.close()
