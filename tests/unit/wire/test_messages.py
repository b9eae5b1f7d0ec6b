"""Every message is encoded and decoded; everything else is refused."""

from __future__ import annotations

import typing

import msgspec
import numpy as np
import pytest

from shoal.errors import OtherVersion, WireError
from shoal.events import Joined
from shoal.limits import FRAME_BYTES, FRAMES, HEADER_BYTES, PROTOCOL
from shoal.tables import Constant, Dense, Each, Normal, Sparse, Step, Uniform, Update, Wire
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.messages import gossip, peers
from shoal.wire.messages import groups as groups_page

KINDS = typing.get_args(m.AnyMessage)
SPECS = [
    Dense(rows=8),
    Dense(rows=1 << 62, width=3, update=Update("sgd", {"step": 0.5}), initial=Uniform(seed=4), max_delay=0),
    Sparse(keys=9, initial=Normal(), apply=Step(slots=2, combine="mean", slots_per_pass=7)),
    Sparse(hashed=True, initial=Constant(1.5), apply=Each(), max_delay=3, wire="float16"),
]
VIEW = m.View(
    2,
    9,
    1,
    [m.Member("ann", 1, "server", "tcp://here"), m.Member("bob", 2, "worker", "")],
    [
        m.TablePlaces(i, f"t{i}", spec, [0, 4], [m.Replicas(3, ["ann", "bob"]), m.Replicas(4, [])])
        for i, spec in enumerate(SPECS)
    ],
)
PUSH = m.Push(1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 0, m.EVERYWHERE, 12)
PULL = m.Pull(1, 2, 3, 4, 5, -1, 7, 8, 9, 10, 11)
BOOKS = m.SegmentBooks(
    9, {0: m.Counts.of(4, [6]), -3: m.Counts(2)}, {5: m.ClockedWorker("ann", 1, False, 3, m.Counts(4))}
)
CHANGES = [
    m.ReplicatedChange(
        7, "push", 3, stream=-5, number=2, floor=1, incarnation=5, step=4, spell=1, entered=2, name="ann"
    ),
    m.ReplicatedChange(8, "step", 2, 0, 8, [1, 3]),
]
PEER = peers.Peer("worker-1.3f9c", "worker-1", 1, "tcp://here")
LINK = gossip.GossipLink("worker-2", "ipc://there", 0.25)
WORDS: list[peers.Word] = [
    peers.Learned([(0, 3)], 96, 2.5, [1, 2, 3], (4, 5)),
    peers.SlotsDealt([("worker-1.3f9c", [(3, 9)])], 2),
    peers.EvaluationDone(
        1, 0.5, 0.75, 3, 96, None, {"accuracy": 0.5, "auc": None}, 0.25, 2, False, [None, 0.5, 1, None]
    ),
    peers.Halt("5 epochs done"),
    peers.Rested(),
    peers.PeersEnded("5 epochs done", False, 1.5),
    peers.PeerLeaving("no memory", [(3, 9)]),
    peers.OwnersChanged(2, ["worker-1.3f9c"]),
    peers.Yielded(2),
    peers.Owned([(0, {"worker-1.3f9c": 4})]),
]
EXAMPLES: list[m.Message] = [
    *(peers.Relay("worker-1.3f9c", 7, word, {"worker-2.aa": 5}) for word in WORDS),
    peers.Beat(PEER, {"worker-1.3f9c": 7}, [PEER], {"worker-0.1": "killed"}, False),
    peers.Greet(1),
    peers.PeerGreeting(1, "seed = 1", 10, 20, [PEER], {}),
    peers.Fetch(1, "worker-1.3f9c", 2),
    peers.ModelPiece(1, 0, 2, {"worker-1.3f9c": 7}, b"state"),
    peers.PeerStatus(
        1, "worker-1.3f9c", [PEER], {}, 3, 9, 9, 96, (2.5, 96), 0.5, [1], (4, 5), [WORDS[2]], [3, 1], {"lost": 1}
    ),
    peers.Watch(1, 2),
    peers.Weigh(1, 2, 3),
    peers.StopPeers(1, "interrupted", True, "worker-1.3f9c"),
    peers.OwnedShare("worker-1.3f9c", 4, 2, [0, 5]),
    gossip.Leg(1, 8, 0.5, [LINK], [LINK], 1),
    gossip.Without(1, "worker-2"),
    gossip.Offer(1, 7, 0.5),
    gossip.Reached(1, 7, True),
    gossip.Meet(7),
    gossip.MeetReply(7),
    gossip.GossipProgressReport(1, 7, 96, 2.5, [1, 2, 3], 4, 5, ["worker-2"]),
    gossip.LegDone(1, [8.0, 96.0, 2.5, 4.0, 5.0], 0.5, 3, 0.25, "no memory"),
    gossip.Show(1),
    gossip.LegReceived(1, True),
    VIEW,
    m.Hello("ann", "server", "token.0", "tcp://here"),
    m.Hello("ann", "server", "token.0"),
    m.Welcome("token.0", 5, VIEW),
    m.IncarnationOver("token.0"),
    m.Heartbeat(5, 9),
    m.Heartbeat(5, 9, {3: "no memory"}),
    m.Heartbeat(5, 9, {}, {3: {0: 120.5, 7: 0.0}}, {3: {0: 4_096}}),
    m.Alive(2, 9),
    m.Leave(5),
    groups_page.Allow(1, groups_page.GroupLimits("b", 100, 4, 8, ["cluster"])),
    groups_page.Dissolve(1, "b"),
    groups_page.GroupProcessEnded(5, "b/worker-0", "token", "killed by signal 9"),
    *(m.Create(1, "näme", spec) for spec in SPECS),
    m.Create(1, "w", SPECS[-1], [0, (1 << 63) - 1], "/checkpoints/00000001"),
    m.Drop(1, "w"),
    m.Delay(1, "w", None),
    m.Delay(1, "w", 4),
    m.Refresh(7 << 32 | 1),
    m.StatusRequest(3),
    m.StatusReply(
        3,
        2,
        9,
        0,
        1,
        [m.MemberStatus("ann", "server", 3, 9, 10**9, False)],
        {"bob": "killed"},
        m.RunProgress(
            1, 1 << 60, 8, 1, True, 32, 0.5, 0.25, 7, 8, "", "", False, {3: "not finite"}, {"workers lost": 1}
        ),
        "00000003",
        {"fenced": 1},
    ),
    m.Save(1),
    m.Done(1),
    m.Drain(9, "server-2"),
    m.Release(4),
    m.Opened(4, 1, 17, [0, 3]),
    m.Describe(3),
    m.Described(3, 'data = "clicks"', "clicks", 900, 100, 1 << 20, "9f8e", ["mine"], True),
    m.Unfit("worker-hal-3f", "the data differ"),
    m.Feed(3, 17),
    m.Fed(3, 18, [Joined(seconds=1.5, name="worker-hal-3f", role="worker")]),
    m.Dismissed("it is over"),
    m.Allowed([("worker", "hostb", "a" * 52, "b", 7), ("revoked", "old", "b" * 52, "", 0)]),
    m.Want(1, 5, 8),
    m.Want(1, 5, 0, [(0, 4), (6, 7)], [(9, 12)], {8: "not finite"}, 1_024, 3.5, 1 << 40, 7, True),
    m.Deal(1, [(0, 4)]),
    m.Deal(1, [], [(3, 4)], [(7, 9)], [3], "5 epochs done"),
    m.EvaluationReady(1, 5),
    m.EvaluationReady(1, 5, 3, 3, 0.25, {"accuracy": 0.5, "auc": None}, "why not"),
    m.EvaluateNow(1),
    m.EvaluateNow(1, 3, 98, True),
    m.Append(1, 2, 3, 9, [0, 4], 0, 6, CHANGES),
    m.Appended(1, 3, 8),
    m.BackfillPiece(1, 2, 3, 9, 4, 5, 8, 0, 2, 6, 1, BOOKS),
    m.BackfillReceived(1, 3, 4, 5, 8, 0),
    m.Level(1, 2, 3, 9, [4], [8]),
    m.Levels(1, 2, 3, [4], [8], CHANGES),
    m.Adopt(1, 2, 3, 9, [4], 8, CHANGES),
    m.Adopted(1, 2, 3, [4]),
    m.Shrink(3, "bob", 4),
    m.BackfillComplete(3, 1, [4, 5], [7, 7], "bob", 4),
    m.Snap(1, 2, 3, "checkpoints/1", 40),
    m.Snapped(1, 3, [m.Written(1, 0, "1-0.safetensors", 64, "ab", BOOKS)], "disk full"),
    PUSH,
    m.Push(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 3, 12, 0, 1 << 63, [1, 2], True, True, 1 << 61),
    PULL,
    m.Pull(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1 << 63, True),
    m.Park(1, 2, 3, 4),
    m.TableStatusRequest(1, 2, 3),
    m.Values(1, 2, [3, 4]),
    m.Values(1, 2, [], 5, (1 << 63) - 1),
    m.Counted(1, True),
    m.Forgot(1),
    m.Call(1, 2, 3, 4, "nonzeros", {"above": 0.5}, 0, 10),
    m.Called(1, [0.5, 2.0]),
    m.RequestHeld(1, "bob at step 3"),
    m.TableStatusReply(1, {"rows": 1 << 40}, [0, 1]),
    m.Fence(0, 1),
    m.SegmentsMoved(1, 2),
    m.Rollback(1, 2),
    m.Busy(1, 50_000_000),
    m.Refusal(1, "keys", "because"),
]


def frame(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array)).cast("B")


def packed(*values: object) -> bytes:
    return bytes((coding.MARK, PROTOCOL)) + msgspec.msgpack.encode(list(values))


@pytest.mark.parametrize("message", EXAMPLES, ids=coding.name_of)
def test_every_message_comes_back_as_it_was(message: m.Message) -> None:
    back, arrays = coding.decode(coding.encode(message))
    assert back == message
    assert type(back) is type(message)
    assert not arrays
    assert coding.decode(memoryview(coding.encode(message)))[0] == message


@pytest.mark.parametrize(
    ("message", "readable"),
    [
        (m.Refusal(1, "question", "no file \udc80 here"), m.Refusal(1, "question", "no file ? here")),
        (
            m.TableStatusReply(1, {"rows": 1, "\ud800": 2}, [0], {3: 4}),
            m.TableStatusReply(1, {"rows": 1, "?": 2}, [0], {3: 4}),
        ),
    ],
)
def test_a_text_that_utf_8_cannot_say_is_sent_as_well_as_it_can_be(message: m.Message, readable: m.Message) -> None:
    assert coding.decode(coding.encode(message))[0] == readable


def test_no_kind_of_message_is_left_out_above() -> None:
    assert {type(message) for message in EXAMPLES} == set(KINDS)
    pages = [kind for page in (m, groups_page, gossip, peers) for kind in vars(page).values()]
    said = {kind for kind in pages if isinstance(kind, type) and issubclass(kind, m.Message)}
    assert {kind for kind in said if kind.__struct_config__.tag} == set(KINDS)


def test_every_kind_says_one_sentence() -> None:
    for kind in KINDS:
        assert kind.__doc__ and '"' in kind.__doc__, kind


def test_arrays_travel_as_they_are() -> None:
    keys, values = np.array([1, 2**63 - 1], np.uint64), np.array([1.5, -2], np.float32)
    push = coding.encode(PUSH)
    _, arrays = coding.decode(push, [frame(keys), frame(values)])
    assert [(array.dtype.str, array.tolist()) for array in arrays] == [
        ("<u8", keys.tolist()),
        ("<f4", values.tolist()),
    ]
    _, (alone,) = coding.decode(push, [frame(values)])
    assert alone.dtype.str == "<f4"  # one array where two are possible: the values
    _, (pulled,) = coding.decode(coding.encode(PULL), [frame(keys)])
    assert pulled.dtype.str == "<u8"


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
def test_values_are_as_long_as_the_header_says(form: Wire) -> None:
    keys, short = np.array([1, 2], np.uint64), np.array([7, 1 << 15], np.uint16)
    for message in (msgspec.structs.replace(PUSH, form=form), m.Values(1, 2, [3], form=form)):
        _, arrays = coding.decode(coding.encode(message), [keys.tobytes(), short.tobytes()])
        assert [(array.dtype, array.tolist()) for array in arrays] == [
            (np.uint64, keys.tolist()),
            (np.uint16, short.tolist()),
        ]
        with pytest.raises(WireError, match="no whole number of 2-byte elements"):
            coding.decode(coding.encode(message), [short.tobytes()[:3]])
    with pytest.raises(WireError, match="does not decode"):
        coding.decode(coding.encode(m.Values(1, 2, [3], form="float8")))  # type: ignore[arg-type]


def test_arrays_are_not_copied_and_empty_ones_are_fine() -> None:
    values = np.array([1, 2, 3], np.float32)
    _, (back,) = coding.decode(coding.encode(m.Values(1, 3, [])), [frame(values)])
    assert np.shares_memory(back, values)
    _, (keys, none) = coding.decode(coding.encode(m.Values(1, 0, [])), [b"", b""])
    assert (len(keys), len(none)) == (0, 0)


def test_an_array_that_begins_anywhere_is_aligned() -> None:
    odd = memoryview(bytearray(17))[1:]
    _, (array,) = coding.decode(coding.encode(PULL), [odd])
    assert array.flags.aligned


def test_another_protocol_version_is_told_from_junk() -> None:
    header = bytearray(coding.encode(m.Done(1)))
    header[1] = PROTOCOL + 1
    with pytest.raises(OtherVersion, match=f"they speak protocol {PROTOCOL + 1}"):
        coding.decode(bytes(header))
    with pytest.raises(OtherVersion):  # even if the rest cannot be decoded
        coding.decode(bytes((coding.MARK, 200)) + b"\xc1\xc1\xc1")


@pytest.mark.parametrize("message", EXAMPLES, ids=coding.name_of)
def test_a_header_that_is_cut_off_is_no_message(message: m.Message) -> None:
    whole = coding.encode(message)
    for length in range(len(whole)):
        with pytest.raises(WireError):
            coding.decode(whole[:length])
    with pytest.raises(WireError):
        coding.decode(whole + b"\x00")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"S",
        b"S\x01",
        b"HTTP/1.1 200 OK\r\n",
        packed(),
        packed("gone", 1),
        packed(1, 2, 3),
        packed("done"),
        packed("done", 1, 2),
        packed("done", "one"),
        packed("done", 1.5),
        packed("done", None),
        packed("counted", 1, 1),
        packed("leave", -1),
        packed("leave", (1 << 61) + 1),
        packed("create", 1, "w", {"type": "ring"}),
        packed("create", 1, "w", {"type": "dense", "rows": 8, "more": 1}),
        bytes((coding.MARK, PROTOCOL)) + b"\x92\xa4drop\xa2\xff\xfe",
        bytes((coding.MARK, PROTOCOL)) + b"\xdd\xff\xff\xff\xff\xa4told",
        bytes((coding.MARK, PROTOCOL)) + b"\x94\xa4told\x01\x80\xdd\xff\xff\xff\xff",
        bytes((coding.MARK, PROTOCOL)) + b"\x94\xa4told\x01\xdf\xff\xff\xff\xff",
        bytes((coding.MARK, PROTOCOL)) + b"\xc1",
    ],
)
def test_junk_is_no_message(header: bytes) -> None:
    with pytest.raises(WireError):
        coding.decode(header)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01", b"\x92\xa4told\x91", b"\x93\xa9heartbeat\x01\x91"])
def test_deep_nesting_is_no_message(opening: bytes) -> None:
    with pytest.raises(WireError):
        coding.decode(bytes((coding.MARK, PROTOCOL)) + opening * (200_000 // len(opening)))


def test_a_header_that_is_too_long_is_not_even_looked_at() -> None:
    fits = coding.encode(m.RequestHeld(1, "x" * (HEADER_BYTES - 100)))
    assert coding.decode(fits)
    with pytest.raises(WireError, match="a header of"):
        coding.decode(coding.encode(m.RequestHeld(1, "x" * HEADER_BYTES)))


def test_too_many_arrays_are_refused() -> None:
    with pytest.raises(WireError, match="more than 4"):
        coding.decode(coding.encode(m.Values(1, 0, [])), [b""] * (FRAMES + 1))


@pytest.mark.parametrize("message", EXAMPLES, ids=coding.name_of)
def test_a_message_has_no_more_arrays_than_its_kind(message: m.Message) -> None:
    most = len(type(message).frames)
    coding.decode(coding.encode(message), [b""] * most)
    with pytest.raises(WireError, match="arrays"):
        coding.decode(coding.encode(message), [b""] * (most + 1))


@pytest.mark.parametrize("size", [1, 3, 5, 7, 9, 4_095])
def test_an_array_of_odd_length_is_refused(size: int) -> None:
    push = coding.encode(PUSH)
    with pytest.raises(WireError, match="no whole number"):
        coding.decode(push, [bytes(size)])
    with pytest.raises(WireError, match="no whole number"):
        coding.decode(push, [bytes(size * 4), b""])  # four bytes are half a key


def test_an_array_that_is_too_long_is_refused() -> None:
    values = coding.encode(m.Values(1, 0, []))
    zeros = np.zeros(FRAME_BYTES // 4 + 1, np.float32)  # never written to, so it costs no memory
    coding.decode(values, [frame(zeros[:-1])])
    with pytest.raises(WireError, match="at most"):
        coding.decode(values, [frame(zeros)])


def test_a_message_is_known_by_its_class_in_lower_case() -> None:
    assert coding.name_of(PUSH) == "push"
    assert msgspec.msgpack.decode(coding.encode(m.Done(3))[coding.HEAD :]) == ["done", 3]
