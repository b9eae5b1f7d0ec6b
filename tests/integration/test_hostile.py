"""Raw sockets send bad bytes to a real server and coordinator (F24, F25, F34-F36, F38).

Whatever arrives gets a clear answer where one is possible, changes nothing and is counted, and an
honest client beside it keeps working.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest
import zmq

import shoal
from shoal import limits
from shoal.launch.processes import ProcessCluster
from shoal.store.server.key_lists import crc_of
from shoal.wire import coding
from shoal.wire import messages as m
from tests.support import PATIENCE

ROWS = 100
_numbers = itertools.count()


@dataclass
class Scene:
    """A cluster of one server process, an honest client, and tables that are not empty."""

    cluster: ProcessCluster
    kv: shoal.KV
    sockets: zmq.Context[Any]
    opened: list[Stranger] = field(default_factory=list)

    @property
    def view(self) -> m.View:
        return self.cluster._looking.view(PATIENCE)

    @property
    def server(self) -> str:
        return next(member.address for member in self.view.members if member.role == "server")

    def residents(self) -> list[m.Member]:
        """Return the members that are present in all tests."""
        return [member for member in self.view.members if member.name in ("server-0", "honest")]

    def table(self, name: str) -> int:
        return next(placed.number for placed in self.view.tables if placed.name == name)

    def counted(self, what: str) -> int:
        """Return what the coordinator or its sockets have counted so far."""
        return self.cluster.look().counts.get(what, 0)

    def contents(self) -> list[bytes]:
        """Return everything in the tables."""
        live = self.kv.pull("sparse", slice(0, ROWS)).result(PATIENCE)
        dense = [self.kv.pull(table, slice(0, ROWS)).result(PATIENCE) for table in ("dense", "steps")]
        return [live.keys.tobytes(), live.values.tobytes(), *(rows.tobytes() for rows in dense)]

    def stranger(self, address: str, name: str | None = None) -> Stranger:
        return Stranger(self, address, name or f"stranger-{next(_numbers)}")


class Stranger:
    """A raw socket that sends any bytes."""

    def __init__(self, scene: Scene, address: str, name: str) -> None:
        self.name = name
        self.socket = scene.sockets.socket(zmq.DEALER)
        scene.opened.append(self)
        self.socket.setsockopt(zmq.IDENTITY, name.encode())
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def send(self, *frames: Any) -> None:
        self.socket.send_multipart(frames, copy=False)

    def answer(self, seconds: float = PATIENCE) -> m.Message | None:
        """Return the next message, or None if none arrives in time."""
        if not self.socket.poll(seconds * 1_000):
            return None
        header, *frames = self.socket.recv_multipart()
        return coding.decode(header, frames)[0]

    def ask(self, *frames: Any) -> m.Message | None:
        self.send(*frames)
        return self.answer()

    def refused(self, *frames: Any) -> m.Refusal:
        answer = self.ask(*frames)
        assert isinstance(answer, m.Refusal), answer
        return answer


class Member(Stranger):
    """A stranger that has joined, as any local process may, and talks to the server."""

    def __init__(self, scene: Scene, role: str = "client") -> None:
        self.greeter = scene.stranger(scene.cluster.address)
        welcome = self.greeter.ask(coding.encode(m.Hello(self.greeter.name, role, "token")))
        assert isinstance(welcome, m.Welcome)
        self.incarnation, self.view, self.scene = welcome.incarnation, welcome.view, scene
        super().__init__(scene, scene.server, self.greeter.name)
        self.requests = itertools.count(1)
        for _ in range(600):  # until the server has a view with this member
            if not isinstance(answer := self.ask(coding.encode(self.pull("dense", 0))), m.Busy):
                break
            time.sleep(answer.retry_after / limits.SECOND)
        assert isinstance(answer, m.Values), answer

    def push(self, table: str, count: int, **changes: Any) -> m.Push:
        push = m.Push(
            request=next(self.requests),
            table=self.scene.table(table),
            view=self.view.number,
            generation=0,
            incarnation=self.incarnation,
            stream=-self.incarnation,
            number=next(self.requests),
            floor=0,
            step=0,
            entered=0,
            spell=0,
            first=0,
            last=m.EVERYWHERE,
            count=count,
        )
        return msgspec.structs.replace(push, **changes)

    def pull(self, table: str, count: int, **changes: Any) -> m.Pull:
        pull = m.Pull(
            request=next(self.requests),
            table=self.scene.table(table),
            view=self.view.number,
            generation=0,
            incarnation=self.incarnation,
            clock=m.NO_CLOCK,
            entered=0,
            spell=0,
            first=0,
            last=m.EVERYWHERE,
            count=count,
        )
        return msgspec.structs.replace(pull, **changes)

    def leave(self) -> None:
        self.greeter.send(coding.encode(m.Leave(self.incarnation)))


@pytest.fixture(scope="module", params=["tcp", "ipc"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with shoal.local(servers=1, processes=True, transport=request.param) as cluster, zmq.Context() as sockets:
        assert isinstance(cluster, ProcessCluster)
        kv = cluster.client("honest")
        kv.create("sparse", shoal.Sparse(keys=ROWS))
        kv.create("dense", shoal.Dense(rows=ROWS))
        kv.create("steps", shoal.Dense(rows=ROWS, apply=shoal.Step(slots=1), max_delay=0))
        kv.create("honest", shoal.Dense(rows=1))
        kv.push("sparse", [1, 50, 99], [1.0, 2.0, 3.0]).result(PATIENCE)
        kv.push("dense", slice(0, ROWS), np.arange(ROWS)).result(PATIENCE)
        kv.push("steps", [7], [7.0], slot=(0, 0)).result(PATIENCE)
        yield Scene(cluster, kv, sockets)
        sockets.destroy(0)


@pytest.fixture(autouse=True)
def unharmed(scene: Scene) -> Iterator[None]:
    """Check after every test that nothing has changed and the honest client works.

    The server must still be the same process.
    """
    before, pids = scene.contents(), scene.cluster.pids
    count = scene.kv.pull("honest", [0]).result(PATIENCE)
    yield
    while scene.opened:
        scene.opened.pop().socket.close(linger=100)
    assert scene.contents() == before
    assert scene.kv.push_pull("honest", [0], [1.0]).result(PATIENCE) == count + 1
    with scene.cluster.client() as newcomer:
        assert newcomer.pull("honest", [0]).result(PATIENCE) == count + 1
    assert scene.cluster.pids == pids
    assert all(psutil.pid_exists(pid) for pid in pids.values())


@pytest.fixture
def member(scene: Scene) -> Iterator[Member]:
    member = Member(scene)
    yield member
    member.leave()


@pytest.fixture(params=["server", "coordinator"])
def stranger(scene: Scene, request: pytest.FixtureRequest) -> Stranger:
    return scene.stranger(scene.server if request.param == "server" else scene.cluster.address)


def keys(*which: int) -> np.ndarray:
    return np.array(which, np.uint64)


def values(*which: float) -> np.ndarray:
    return np.array(which, np.float32)


# ---------------------------------------------------------------- invalid pushes and pulls


BAD_PUSHES: dict[str, tuple[str, int, dict[str, Any], tuple[np.ndarray, ...], str]] = {
    # table, rows announced, other fields, arrays, reason
    "fewer keys than announced": ("sparse", 2, {}, (keys(1), values(1, 2)), "1 keys came, the header says 2"),
    "more keys than announced": ("sparse", 1, {}, (keys(1, 2), values(1)), "2 keys came, the header says 1"),
    "too few values": ("sparse", 2, {}, (keys(1, 2), values(1)), "1 values came, 2 rows of width 1"),
    "too many values": ("sparse", 1, {}, (keys(1), values(1, 2)), "2 values came, 1 rows of width 1"),
    "values in double precision": ("sparse", 2, {}, (keys(1, 2), np.ones(2)), "4 values came, 2 rows"),
    "huge announcement": ("sparse", 1 << 60, {}, (keys(1), values(1)), "rows of width 1 were announced"),
    "unsorted keys": ("sparse", 2, {}, (keys(50, 1), values(1, 2)), "key 1 follows 50"),
    "a key twice": ("dense", 2, {}, (keys(5, 5), values(1, 2)), "key 5 follows 5"),
    "a key past the end": ("sparse", 2, {}, (keys(1, ROWS), values(1, 2)), "key 100 is past the limit"),
    "a row past the end": ("dense", 1, {}, (keys(ROWS), values(1)), "key 100 is past the limit"),
    "the largest key": ("sparse", 1, {}, (keys(2**64 - 1), values(1)), "past the limit"),
    "not a number": ("sparse", 2, {}, (keys(1, 2), values(1, np.nan)), "row 1 are not finite"),
    "infinity": ("dense", 2, {}, (keys(1, 2), values(np.inf, 1)), "row 0 are not finite"),
    "minus infinity in a range": ("dense", 2, {"start": 0, "stop": 2}, (values(1, -np.inf),), "row 1 are not finite"),
    "not a number in a slot": ("steps", 1, {"stream": 0, "number": 1}, (keys(1), values(np.nan)), "not finite"),
    "values without keys": ("sparse", 1, {}, (values(1),), "a push with 1 arrays"),
    "nothing but an announcement": ("sparse", 1, {}, (), "a push with 0 arrays"),
    "a range and keys": ("dense", 2, {"start": 0, "stop": 2}, (keys(0, 1), values(1, 2)), "a push with 2 arrays"),
    "a range of a sparse table": ("sparse", 2, {"start": 0, "stop": 2}, (values(1, 2),), "list the keys"),
    "a range that ends before it starts": ("dense", 1, {"start": 5, "stop": 2}, (values(1),), "start <= stop"),
    "a range past 2^63": ("dense", 1, {"start": 5, "stop": (1 << 64) - 1}, (values(1),), "start <= stop"),
    "a range longer than its values": ("dense", 1, {"start": 0, "stop": 2}, (values(1),), "2 rows of width 1"),
    "a range past the end": ("dense", 2, {"start": 99, "stop": 101}, (values(1, 2),), "1 rows of width 1"),
    "segments that are not there": ("dense", 1, {"first": 900, "last": 901}, (keys(1), values(1)), "held here"),
    "a step without a slot": ("steps", 1, {}, (keys(1), values(1)), "name the slot"),
    "a second pass of one endless pass": ("steps", 1, {"stream": 1}, (keys(1), values(1)), "one endless pass"),
}  # fmt: skip


@pytest.mark.variants(slow=["ipc-*"])
@pytest.mark.parametrize("case", BAD_PUSHES)
def test_a_push_that_cannot_be_is_answered_with_the_reason(scene: Scene, member: Member, case: str) -> None:
    table, count, changes, arrays, reason = BAD_PUSHES[case]
    refused = scene.kv.stats(table).get("refused", 0)
    push = member.push(table, count, **changes)
    answer = member.refused(coding.encode(push), *arrays)
    assert answer.request == push.request
    assert answer.kind in ("keys", "values", "setting")
    assert reason in answer.reason
    assert scene.kv.stats(table)["refused"] == refused + 1


BAD_PULLS: dict[str, tuple[str, int, dict[str, Any], tuple[np.ndarray, ...], str]] = {
    "fewer keys than announced": ("sparse", 2, {}, (keys(1),), "1 keys came, the header says 2"),
    "no keys at all": ("sparse", 2, {}, (), "0 keys came, the header says 2"),
    "unsorted keys": ("sparse", 2, {}, (keys(50, 1),), "key 1 follows 50"),
    "a key past the end": ("dense", 2, {}, (keys(1, ROWS),), "past the limit"),
    "a range that ends before it starts": ("dense", 0, {"start": 5, "stop": 2}, (), "start <= stop"),
    "a range past 2^63": ("sparse", 0, {"start": 0, "stop": (1 << 64) - 1}, (), "start <= stop"),
    "segments that are not there": ("dense", 1, {"first": 900, "last": 901}, (keys(1),), "held here"),
}


@pytest.mark.parametrize("case", BAD_PULLS)
def test_a_pull_that_cannot_be_is_answered_with_the_reason(scene: Scene, member: Member, case: str) -> None:
    table, count, changes, arrays, reason = BAD_PULLS[case]
    refused = scene.kv.stats(table).get("refused", 0)
    pull = member.pull(table, count, **changes)
    answer = member.refused(coding.encode(pull), *arrays)
    assert (answer.request, answer.kind) == (pull.request, "keys")
    assert reason in answer.reason
    assert scene.kv.stats(table)["refused"] == refused + 1


def test_a_client_cannot_claim_a_clock(member: Member) -> None:
    answer = member.refused(coding.encode(member.pull("dense", 1, enter=True)), keys(1))
    assert "only a worker has a clock" in answer.reason


def test_numbers_far_ahead_are_refused_or_put_off_and_take_no_memory(member: Member) -> None:
    for changes in ({"number": 1 << 60}, {"stream": 0, "number": 1 << 60}):
        answer = member.ask(coding.encode(member.push("dense", 1, **changes)), keys(1), values(1))
        assert isinstance(answer, m.Refusal) and "ahead of the first missing" in answer.reason
    answer = member.ask(coding.encode(member.push("steps", 1, stream=0, number=1 << 40)), keys(1), values(1))
    assert isinstance(answer, m.Busy)


def test_who_is_no_member_is_fenced(scene: Scene, member: Member) -> None:
    never_joined = scene.stranger(scene.server)
    honest = next(one.incarnation for one in scene.view.members if one.name == "honest")
    for incarnation in (0, 1 << 60, honest, member.incarnation):
        push = member.push("dense", 1, incarnation=incarnation, stream=-incarnation)
        assert isinstance(never_joined.ask(coding.encode(push), keys(1), values(1)), m.Fence)
        pull = member.pull("dense", 1, incarnation=incarnation)
        assert isinstance(never_joined.ask(coding.encode(pull), keys(1)), m.Fence)


# ---------------------------------------------------------------- key lists by number


def test_a_number_that_is_anothers_is_not_known_and_changes_nothing(scene: Scene, member: Member) -> None:
    theirs = shoal.KeyList(keys(*range(10, 20)))
    for _ in range(2):
        scene.kv.pull("dense", theirs).result(PATIENCE)
    said: dict[str, Any] = {"handle": 1, "known": True, "crc": crc_of(theirs.keys)}
    assert member.ask(coding.encode(pull := member.pull("dense", 10, **said))) == m.Forgot(pull.request)
    push = member.push("dense", 10, **said)
    assert member.ask(coding.encode(push), np.ones(10, np.float32)) == m.Forgot(push.request)
    honest = next(one.incarnation for one in scene.view.members if one.name == "honest")
    answer = member.ask(coding.encode(member.pull("dense", 10, incarnation=honest, **said)))
    assert isinstance(answer, m.Fence)  # nor can it claim to be the other


@pytest.mark.parametrize("wrong", [{"handle": 8}, {"count": 2}, {"crc": 0}, {"handle": 0}], ids=str)
def test_a_list_is_found_only_by_all_that_it_was_called(member: Member, wrong: dict[str, int]) -> None:
    listed = keys(3, 4, 50)
    assert isinstance(member.ask(coding.encode(member.pull("dense", 3, handle=7)), listed), m.Values)
    known = member.pull("dense", 3, handle=7, known=True, crc=crc_of(listed))
    assert isinstance(member.ask(coding.encode(known)), m.Values)
    answer = member.ask(coding.encode(msgspec.structs.replace(known, **wrong)))
    assert isinstance(answer, m.Forgot) or "0 keys came" in getattr(answer, "reason", "")


ODD_LISTS: dict[str, tuple[dict[str, Any], tuple[np.ndarray, ...]]] = {
    "keys that are not sorted": ({"handle": 7}, (keys(4, 3, 50), values(1, 2, 3))),
    "keys past the end": ({"handle": 7}, (keys(3, 4, ROWS), values(1, 2, 3))),
    "a list that is known and comes all the same": ({"handle": 6, "known": True}, (keys(3, 4, 50), values(1, 2, 3))),
    "a number and no keys": ({"handle": 7}, (values(1, 2, 3),)),
    "a number and nothing": ({"handle": 7}, ()),
    "a number of a range": ({"handle": 6, "known": True, "start": 0, "stop": 2}, (values(1, 2, 3),)),
    "keys ahead that are not there": ({"handle": 6, "known": True, "ahead": 3, "ahead_handle": 9}, (values(1, 2, 3),)),
}


@pytest.mark.parametrize("case", ODD_LISTS)
def test_a_push_with_an_odd_list_is_refused_and_changes_nothing(member: Member, case: str) -> None:
    listed = keys(3, 4, 50)
    assert isinstance(member.ask(coding.encode(member.pull("dense", 3, handle=6)), listed), m.Values)
    changes, arrays = ODD_LISTS[case]
    for _ in range(2):  # also once the list has a number
        member.refused(coding.encode(member.push("dense", 3, crc=crc_of(listed), **changes)), *arrays)


def test_a_table_or_view_that_is_not_there_is_said_so(member: Member) -> None:
    push = msgspec.structs.replace(member.push("dense", 1), table=1 << 40)
    assert isinstance(member.ask(coding.encode(push), keys(1), values(1)), m.SegmentsMoved)
    # A view from the future: the request has to wait for it.
    push = member.push("dense", 1, view=1 << 60)
    assert isinstance(member.ask(coding.encode(push), keys(1), values(1)), m.Busy)
    push = member.push("dense", 1, generation=3)
    assert isinstance(member.ask(coding.encode(push), keys(1), values(1)), m.Rollback)


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (("x", "overlord", "t"), "none of"),
        (("", "client", "t"), "not ''"),
        (("other", "client", "t"), "your name is"),
        (("y" * 200, "client", "t"), "printable"),
        (("new\nline", "client", "t"), "printable"),
    ],
)
def test_who_cannot_join_is_told_why(scene: Scene, hello: tuple[str, str, str], reason: str) -> None:
    name = hello[0] if hello[0] not in ("", "other") else "somebody"
    answer = scene.stranger(scene.cluster.address, name).refused(coding.encode(m.Hello(*hello)))
    assert reason in answer.reason
    assert not {hello[0], name} & {member.name for member in scene.view.members}


# ---------------------------------------------------------------- bytes that are not a message


GREETING = coding.encode(m.Refresh(1))
DEEP = b"\x91" * 100_000


BAD_BYTES: dict[str, tuple[tuple[bytes, ...], str]] = {
    "nothing": ((b"",), "0 bytes that do not start like a message"),
    "two bytes": ((GREETING[:2],), "2 bytes that do not start like a message"),
    "another mark": ((b"X" + GREETING[1:],), "do not start like a message"),
    "text": ((b"GET / HTTP/1.1\r\n\r\n",), "do not start like a message"),
    "a pickle": ((b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",), "do not start like a message"),
    "no tag": ((coding.sealed(b"\x90"),), "does not decode"),
    "an unknown tag": ((coding.sealed(msgspec.msgpack.encode(["reboot", 1])),), "does not decode"),
    "a map instead of an array": ((coding.sealed(msgspec.msgpack.encode({"type": "refresh"})),), "does not decode"),
    "a missing field": ((coding.sealed(msgspec.msgpack.encode(["refresh"])),), "does not decode"),
    "a field too many": ((coding.sealed(msgspec.msgpack.encode(["refresh", 1, 2])),), "does not decode"),
    "a field of another type": ((coding.sealed(msgspec.msgpack.encode(["refresh", "1"])),), "does not decode"),
    "something behind the end": ((coding.sealed(GREETING[coding.HEAD:] + b"\x00"),), "does not decode"),
    "an extension type": ((coding.sealed(msgspec.msgpack.encode(["refresh", msgspec.msgpack.Ext(1, b"x")])),), "does not decode"),
    "text that is no text": ((coding.sealed(b"\x92\xa2\xff\xfe\x01"),), "does not decode"),
    "deep nesting": ((coding.sealed(DEEP),), "does not decode"),
    "a long array that is not there": ((coding.sealed(b"\xdd\xff\xff\xff\xff"),), "does not decode"),
    "a number out of bounds": ((coding.encode(m.Leave(1 << 62)),), "does not decode"),
    "a negative count": ((coding.encode(m.Leave(-1)),), "does not decode"),
    "a header of two megabytes": ((GREETING + bytes(2 << 20),), "at most 1,048,576"),
    "an array where none belongs": ((GREETING, bytes(8)), "comes with 0 to 0 arrays, this one has 1"),
    "five arrays": ((GREETING, *[bytes(8)] * 5), "more than 4 arrays behind one header"),
    "a thousand arrays": ((GREETING, *[b""] * 1_000), "more than 4 arrays behind one header"),
}  # fmt: skip


@pytest.mark.variants(slow=["ipc-*"])
@pytest.mark.parametrize("case", BAD_BYTES)
def test_bytes_that_are_no_message_are_answered_with_the_reason(scene: Scene, stranger: Stranger, case: str) -> None:
    frames, reason = BAD_BYTES[case]
    answer = stranger.refused(*frames)
    assert (answer.request, answer.kind) == (0, "wire")
    assert reason in answer.reason
    assert len(answer.reason) < 1_000  # the answer does not repeat our bytes


def test_keys_to_be_pulled_that_were_announced_and_did_not_come_are_refused(member: Member) -> None:
    for ahead, arrays in ((5, 2), (2, 3), (1 << 60, 3), (1, 2)):
        frames = [np.array([1, 2, 3][: 3 if arrays == 3 else 1], np.uint64)] * (arrays - 1) + [np.ones(1, np.float32)]
        answer = member.ask(coding.encode(member.push("sparse", 1, pull=True, ahead=ahead)), *frames)
        assert isinstance(answer, m.Refusal), answer


def test_arrays_that_are_not_whole_are_refused(member: Member) -> None:
    push = coding.encode(member.push("sparse", 1))
    for arrays, reason in (
        ((b"1234567", bytes(4)), "7 bytes, which is no whole number of 8-byte elements"),
        ((bytes(8), b"123"), "3 bytes, which is no whole number of 4-byte elements"),
        ((bytes(8), bytes(8), bytes(8), bytes(4)), "comes with 0 to 3 arrays, this one has 4"),
    ):
        answer = member.refused(push, *arrays)
        assert answer.kind == "wire"
        assert reason in answer.reason


def test_a_message_of_another_version_is_told_both_versions(scene: Scene, stranger: Stranger) -> None:
    for version in (0, limits.PROTOCOL + 1, 255):
        answer = stranger.refused(bytes((coding.MARK, version)) + GREETING[2:])
        assert answer.kind == "version"
        assert f"they speak protocol {version}, this side speaks {limits.PROTOCOL}" in answer.reason


@pytest.mark.variants(slow=["ipc"])
def test_every_way_to_cut_a_message_short_is_refused(scene: Scene, member: Member) -> None:
    for message in (member.push("dense", 1), member.pull("dense", 1)):
        whole = coding.encode(message)
        for length in range(len(whole)):
            assert member.refused(whole[:length], keys(1)).kind == "wire"


@pytest.mark.variants(slow=["ipc"])
def test_every_flipped_bit_of_a_header_is_noticed_and_told(scene: Scene, member: Member) -> None:
    """F24: the result may be another valid message, so nothing of it is accepted."""
    for message, arrays in (
        (member.push("dense", 1, number=77_777), (keys(1), values(0))),
        (member.pull("dense", 1), (keys(1),)),
    ):
        header = coding.encode(message)
        for bit in range(8 * len(header)):
            flipped = bytearray(header)
            flipped[bit // 8] ^= 1 << bit % 8
            answer = member.ask(bytes(flipped), *arrays)
            assert isinstance(answer, m.Refusal), f"bit {bit} of {message}: {answer}"


@pytest.mark.variants(slow=["ipc-server", "ipc-coordinator"])
def test_thousands_of_messages_of_junk_are_dropped_and_counted(scene: Scene, stranger: Stranger) -> None:
    many, noise = 4_000, random.Random(11)
    before = scene.counted("not a message") + scene.counted("other version")
    for number in range(many):
        junk = noise.randbytes(noise.randrange(200))
        stranger.send((GREETING[:2] + junk) if number % 2 else junk)
        if number % 400 == 0:  # an honest client is served in between
            scene.kv.pull("dense", [1]).result(PATIENCE)
    heard = 0
    while stranger.answer(0.5) is not None and heard < many:
        heard += 1
    assert heard > 0  # answered as often as its queue had room
    if stranger.socket.getsockopt_string(zmq.LAST_ENDPOINT) == scene.cluster.address:
        assert scene.counted("not a message") + scene.counted("other version") == before + many


def test_messages_that_only_others_may_send_are_ignored_by_the_coordinator(scene: Scene) -> None:
    stranger, view, residents = scene.stranger(scene.cluster.address), scene.view, scene.residents()
    before = scene.counted("unexpected")
    lies = [
        m.View(99, 1 << 60, 0, [], []),
        m.Welcome("t", 5, view),
        m.Alive(99, 99),
        m.Counted(1, True),
        m.Done(1),
        m.SegmentsMoved(1, 1 << 60),
        m.Park(1, 1, 1, 1),
        m.Fence(0, 1),
        m.IncarnationOver("t"),
    ]
    for lie in lies:
        stranger.send(coding.encode(lie))
    assert isinstance(stranger.ask(GREETING), m.View)  # all lies have been read
    assert scene.counted("unexpected") == before + len(lies)
    assert scene.residents() == residents
    for member in residents:  # heartbeat and leave of another member
        assert isinstance(
            scene.stranger(scene.cluster.address).ask(coding.encode(m.Heartbeat(member.incarnation, 1))), m.Fence
        )
        scene.stranger(scene.cluster.address).send(coding.encode(m.Leave(member.incarnation)))
    assert scene.residents() == residents


@pytest.mark.parametrize("name", [None, "coordinator"])
def test_a_server_listens_to_its_coordinator_alone(scene: Scene, name: str | None) -> None:
    """The coordinator is the peer that the server called, whatever name a stranger takes."""
    view, residents = scene.view, scene.residents()
    server = next(member for member in residents if member.role == "server")
    liar, witness = scene.stranger(scene.server, name), scene.stranger(scene.server)
    for lie in (
        m.Fence(0, server.incarnation),
        m.View(view.term + 1, view.number + 100, 0, [], []),
        m.View(view.term, view.number + 1, 1, view.members, []),
        m.Welcome("t", 1 << 40, m.View(99, 1 << 60, 0, [], [])),
        m.IncarnationOver("t"),
        m.Refusal(0, "setting", "go away"),
    ):
        liar.send(coding.encode(lie))
    assert isinstance(witness.ask(coding.encode(m.TableStatusRequest(1, scene.table("dense"), 0))), m.TableStatusReply)
    assert scene.residents() == residents


def test_nobody_can_push_in_the_name_of_another(scene: Scene, member: Member) -> None:
    """A number counted for another client would make the server ignore that client's push."""
    honest = next(one.incarnation for one in scene.view.members if one.name == "honest")
    push = member.push("honest", 0, stream=-honest, number=1 << 19, floor=1 << 19)
    assert "another client's stream" in member.refused(coding.encode(push)).reason


# ---------------------------------------------------------------- too large, too many


def test_an_array_just_above_the_limit_is_refused_and_the_next_message_is_served(member: Member) -> None:
    large = bytes(limits.FRAME_BYTES + 8)
    answer = member.refused(coding.encode(member.push("dense", len(large) // 4, start=0, stop=1)), large)
    assert answer.kind == "wire"
    assert f"an array of {len(large):,} bytes, at most {limits.FRAME_BYTES:,}" in answer.reason
    assert isinstance(member.ask(coding.encode(member.pull("dense", 1)), keys(1)), m.Values)


def test_a_frame_above_what_sockets_take_ends_the_connection_and_costs_no_memory(scene: Scene, member: Member) -> None:
    server = psutil.Process(scene.cluster.pids["server-0"])
    before = server.memory_info().rss
    large = bytes(limits.FRAME_BYTES + limits.HEADER_BYTES + 1)
    for _ in range(3):
        member.send(coding.encode(member.push("dense", 1, start=0, stop=1)), large)
        assert member.answer(0.3) is None
    assert server.memory_info().rss - before < limits.FRAME_BYTES
    # The socket reconnects by itself, and then its requests are answered.
    deadline = time.monotonic() + PATIENCE
    answer = None
    while answer is None and time.monotonic() < deadline:
        with contextlib.suppress(zmq.Again):
            member.socket.send_multipart([coding.encode(member.pull("dense", 1)), keys(1)], zmq.DONTWAIT)
        answer = member.answer(1.0)
    assert isinstance(answer, m.Values)


def raw(address: str) -> socket.socket:
    """Open a connection without any protocol on it."""
    if address.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.removeprefix("ipc://"))
    else:
        host, port = address.removeprefix("tcp://").split(":")
        connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.settimeout(PATIENCE)
    return connection


def closed_by_the_other_side(connection: socket.socket) -> bool:
    try:
        while connection.recv(4_096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.variants(slow=["ipc"])
def test_connections_that_are_opened_and_left_are_closed_again(scene: Scene) -> None:
    """Connections without a complete greeting are closed after HELLO_WITHIN.

    A hundred to each node are silent, or send a greeting that never ends.
    """
    server = psutil.Process(scene.cluster.pids["server-0"])
    before = server.num_fds()
    # The beginnings of ZeroMQ's greeting.
    greetings = [b"", b"\xff", b"\xff" + bytes(8) + b"\x7f", b"\xff" + bytes(8) + b"\x7f\x03"]
    with contextlib.ExitStack() as left:
        connections = [
            left.enter_context(raw(address)) for _ in range(100) for address in (scene.server, scene.cluster.address)
        ]
        for number, connection in enumerate(connections):
            connection.sendall(greetings[number // 2 % len(greetings)])
        for _ in range(20):  # an honest client is served meanwhile
            scene.kv.push("honest", [0], [0.0]).result(PATIENCE)
        assert all(closed_by_the_other_side(connection) for connection in connections)
    assert settles(lambda: server.num_fds() <= before + 5)


def test_other_protocols_get_nowhere(scene: Scene) -> None:
    """ZeroMQ takes an unknown first byte for its own first version, and keeps the connection.

    It does so until the caller hangs up.
    """
    server = psutil.Process(scene.cluster.pids["server-0"])
    before = server.num_fds()
    with contextlib.ExitStack() as left:
        for words in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", bytes(100), b"SSH-2.0-x\r\n"):
            for address in (scene.server, scene.cluster.address):
                left.enter_context(raw(address)).sendall(words)
        for _ in range(20):
            scene.kv.push("honest", [0], [0.0]).result(PATIENCE)
    assert settles(lambda: server.num_fds() <= before + 2)


def settles(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_two_hundred_sockets_that_say_nothing_hurt_nobody(scene: Scene) -> None:
    strangers = [scene.stranger(scene.server if number % 2 else scene.cluster.address) for number in range(200)]
    for _ in range(20):
        scene.kv.push("honest", [0], [0.0]).result(PATIENCE)
    assert isinstance(strangers[0].ask(GREETING), m.View)
