"""Any bytes decode to a message or raise WireError.

Any request that decodes gets a response, and the rows stay finite.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shoal.errors import WireError
from shoal.keys import KeyRange
from shoal.limits import PROTOCOL, SECOND
from shoal.nodes.server import Server, max_wait
from shoal.store.table.update import Assign
from shoal.tables import Dense, Sparse, Step, Table
from shoal.timing import DEFAULT
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Compute, Computed, Effect, Event, Received, Send, Tick

LAWS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OPENING = bytes((coding.MARK, PROTOCOL))
ME = 2
SPAN = 12
SPECS: list[Table] = [
    Dense(rows=SPAN, update=Assign(), max_delay=1),
    Dense(rows=SPAN, width=3, update=Assign()),
    Sparse(keys=SPAN, update=Assign(), max_delay=0),
    Dense(rows=SPAN, update=Assign(), apply=Step(slots=2, slots_per_pass=3), max_delay=0),
    Sparse(keys=SPAN, width=2, update=Assign(), apply=Step(slots=1, combine="mean")),
    Dense(rows=SPAN, update=Assign(), wire="float16"),
    Sparse(keys=SPAN, width=2, update=Assign(), wire="bfloat16"),
]

# ---------------------------------------------------------------- valid messages

EDGES = [0, 1, 2, 3, 63, 64, 1 << 20, (1 << 61) - 1, 1 << 61]
COUNTS = st.one_of(st.integers(0, 3), st.sampled_from(EDGES))
SIGNED = st.one_of(st.integers(-3, 3), st.sampled_from([*EDGES, -(1 << 61)]))
PLACES = st.one_of(st.integers(-1, SPAN + 1), st.sampled_from([1 << 62, 1 << 63, (1 << 63) + 1, (1 << 64) - 1]))
# The fields of a request that the server accepts.
HERE = {"request": 1, "table": 1, "view": 1, "generation": 0, "incarnation": ME}


def requests(kind: type[m.Message], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[m.Message]:
    known = {name: st.one_of(st.just(value), st.just(value), COUNTS) for name, value in HERE.items()}
    return st.builds(kind, **known, **fields)


SEGMENTS = {
    "first": st.one_of(st.just(0), COUNTS),
    "last": st.one_of(st.just(m.EVERYWHERE), COUNTS),
    "start": st.one_of(st.just(-1), PLACES),
    "stop": st.one_of(st.just(-1), PLACES),
    "entered": COUNTS,
    "spell": COUNTS,
    "count": COUNTS,
    "clock": SIGNED,
}
PUSHES = requests(
    m.Push,
    stream=st.one_of(st.just(-ME), SIGNED),
    number=COUNTS,
    floor=COUNTS,
    step=COUNTS,
    read=st.lists(COUNTS, max_size=4),
    void=st.booleans(),
    pull=st.booleans(),
    form=st.sampled_from(["float32", "float32", "float16", "bfloat16"]),
    **SEGMENTS,
)
PULLS = requests(m.Pull, enter=st.booleans(), **SEGMENTS)
PARKS = st.builds(m.Park, COUNTS, COUNTS, st.integers(0, 2), COUNTS)
CALLS = st.builds(
    m.Call,
    request=COUNTS,
    table=st.sampled_from([1, 1, 1, 2]),
    view=st.integers(0, 2),
    generation=st.integers(0, 1),
    name=st.sampled_from(["overview", "top", "count", "no such", "\0"]),
    settings=st.dictionaries(st.sampled_from(["k", "x"]), st.floats(), max_size=2),
    start=PLACES,
    stop=PLACES,
)
OTHERS = st.sampled_from(
    [
        m.Hello("ann", "server", "token", "tcp://here"),
        m.View(
            1,
            2,
            0,
            [m.Member("ann", 1, "server", "")],
            [m.TablePlaces(1, "w", SPECS[3], [0], [m.Replicas(1, ["ann"])])],
        ),
        m.Create(1, "w", SPECS[2]),
        m.Heartbeat(1, 2, {3: "no memory"}),
        m.Values(1, 2, [3, 4], 5, 6),
        m.TableStatusReply(1, {"rows": 3}, [1, 2]),
        m.Refusal(1, "keys", "because"),
    ]
)
MESSAGES = st.one_of(PUSHES, PULLS, CALLS, PARKS, OTHERS)

KEYS = st.one_of(
    st.lists(st.integers(0, SPAN), max_size=6, unique=True).map(sorted),
    st.lists(st.sampled_from([0, 1, 5, SPAN, 1 << 63, (1 << 64) - 1]), max_size=4),
)
FLOATS = st.one_of(st.floats(width=32), st.floats(-4, 4, width=32))
FRAMES = st.one_of(
    KEYS.map(lambda keys: np.array(keys, np.uint64).tobytes()),
    st.lists(FLOATS, max_size=2 * SPAN).map(lambda values: np.array(values, np.float32).tobytes()),
    st.binary(max_size=40),
)


# ---------------------------------------------------------------- damage


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, other: bytes) -> bytes:
    """These bytes after one to three random errors."""
    for _ in range(draw(st.integers(1, 3))):
        if not whole:
            return whole
        at = draw(st.integers(0, len(whole) - 1))
        match draw(st.sampled_from(["flip", "cut", "splice", "insert", "repeat", "byte"])):
            case "flip":
                whole = whole[:at] + bytes([whole[at] ^ 1 << draw(st.integers(0, 7))]) + whole[at + 1 :]
            case "cut":
                whole = whole[:at]
            case "splice":
                whole = whole[:at] + other[draw(st.integers(0, len(other))) :]
            case "insert":
                whole = whole[:at] + draw(st.binary(max_size=6)) + whole[at:]
            case "repeat":
                whole = whole[:at] + whole[at // 2 :]
            case "byte":
                odd = draw(st.sampled_from([0x00, 0x7F, 0x80, 0x90, 0xC1, 0xCF, 0xD3, 0xDD, 0xDF, 0xFF]))
                whole = whole[:at] + bytes([odd]) + whole[at + 1 :]
    return whole


def decoded(header: bytes | memoryview, frames: list[bytes]) -> tuple[m.Message, m.Arrays] | None:
    """The decoded message, or None; any error except WireError fails the test."""
    try:
        message, arrays = coding.decode(header, frames)
    except WireError as error:
        assert str(error)
        return None
    assert isinstance(message, m.Message)
    return message, arrays


@LAWS
@given(st.binary(max_size=200), st.lists(st.binary(max_size=40), max_size=6))
@example(b"\xdd\xff\xff\xff\xff", [])
@example(b"\x94\xa4told\x01\x80\xdd\xff\xff\xff\xff", [])
@example(b"\xc7" + b"\xff" * 20, [])
def test_arbitrary_bytes_are_a_message_or_a_wire_error(junk: bytes, frames: list[bytes]) -> None:
    for header in (junk, OPENING + junk, memoryview(OPENING + junk)):
        decoded(header, frames)


@LAWS
@given(st.data(), MESSAGES, MESSAGES, st.lists(FRAMES, max_size=3))
def test_damaged_messages_are_a_message_or_a_wire_error(
    data: st.DataObject, message: m.Message, other: m.Message, frames: list[bytes]
) -> None:
    header = data.draw(damaged(coding.encode(message), coding.encode(other)))
    decoded(header, frames)


@LAWS
@given(st.recursive(st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=4),
                    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                    max_leaves=20),
       st.sampled_from(["push", "pull", "view", "create", "told", "welcome", "heartbeat", "values"]))  # fmt: skip
def test_well_formed_nonsense_is_a_message_or_a_wire_error(nonsense: Any, tag: str) -> None:
    body = [tag, *nonsense] if isinstance(nonsense, list) else [tag, nonsense]
    decoded(coding.sealed(msgspec.msgpack.encode(body)), [])


# ---------------------------------------------------------------- a server


class House:
    """A server with one table, which holds two of its three segments."""

    def __init__(self, spec: Table, inline: int) -> None:
        self.server, self.now = Server("ann", "token", inline=inline), SECOND
        members = [m.Member("ann", 1, "server", ""), m.Member("me", ME, "worker", ""), m.Member("you", 3, "worker", "")]
        places = [m.Replicas(1, [owner]) for owner in ("ann", "bob", "ann")]
        view = m.View(1, 1, 0, members, [m.TablePlaces(1, "w", spec, [0, 4, 8], places)])
        self.feed(Tick())
        self.feed(Received("coordinator", m.Welcome("token.0", 1, view)))
        self.segments = self.server.tables[1].primary
        for name, who in (("me", ME), ("you", 3)):
            self.feed(Received(name, m.Pull(9, 1, 1, 0, who, -1, 0, 0, 0, m.EVERYWHERE, 0, enter=True)))

    def feed(self, event: Event) -> list[m.Message]:
        """Passes an event to the server and runs its computations; returns the messages it sent."""
        said: list[m.Message] = []
        effects: list[Effect] = self.server.handle(self.now, event)
        while effects:
            jobs = [effect for effect in effects if isinstance(effect, Compute)]
            said += [effect.message for effect in effects if isinstance(effect, Send)]
            effects = []
            for job in jobs:
                job.function()
                effects += self.server.handle(self.now, Computed(job.token))
        return said

    def later(self) -> list[m.Message]:
        """The responses to requests that came too early, after the longest wait."""
        self.now += max_wait(DEFAULT)
        return self.feed(Tick())

    def contents(self) -> tuple[int, bytes]:
        rows = self.segments.table.pull(self.segments.table.keys_held(KeyRange(0, SPAN)))
        assert np.isfinite(rows).all()
        return self.segments.table.rows, rows.tobytes()


def treat(house: House, message: m.Message, arrays: m.Arrays) -> None:
    """Any request gets a response, and rows change only if the request was accepted."""
    if not isinstance(message, m.Push | m.Pull | m.Call | m.Park | m.TableStatusRequest):
        return
    before = house.contents()
    said = [*house.feed(Received("me", message, arrays)), *house.later()]
    said = [one for one in said if not isinstance(one, m.Heartbeat)]
    # Every request gets a response.
    assert any(getattr(one, "request", None) == message.request for one in said)
    if house.contents() != before:
        assert isinstance(message, m.Push)
        assert any(isinstance(one, m.Counted | m.Values | m.RequestHeld) for one in said)
    for one in said:
        coding.decode(coding.encode(one))  # every response can be encoded


@LAWS
@given(st.sampled_from(SPECS), st.sampled_from([0, 1 << 18]), st.lists(st.tuples(st.one_of(PUSHES, PULLS, CALLS, PARKS), KEYS,
       st.lists(FLOATS, max_size=SPAN), st.integers(0, 3), st.booleans()), min_size=1, max_size=5))  # fmt: skip
def test_a_server_survives_every_request_that_can_be_written(
    spec: Table, inline: int, letters: list[tuple[Any, list[int], list[float], int, bool]]
) -> None:
    house = House(spec, inline)
    for message, keys, values, frames, fitting in letters:
        rows = np.resize(np.array(values or [1], np.float32), len(keys) * spec.width) if fitting else values
        # More requests are accepted if their counts are right.
        if fitting and isinstance(message, m.Push | m.Pull):
            fields = {name: getattr(message, name) for name in message.__struct_fields__}
            message = type(message)(**{**fields, "count": len(keys)})
        sent = np.asarray(rows, np.float32)
        # Any bits, so also infinities and NaN.
        if isinstance(message, m.Push) and message.form != "float32":
            sent = sent.view(np.uint16)[1::2].copy()
        packed = [np.array(keys, np.uint64).tobytes(), sent.tobytes()]
        if isinstance(message, m.Pull):
            packed = packed[:1]
        elif isinstance(message, m.Call):
            packed = []
        taken = packed if fitting and frames else packed[-frames:] if frames else []
        found = decoded(coding.encode(message), taken)
        if found is not None:
            treat(house, *found)


@LAWS
@given(st.data(), st.sampled_from(SPECS), st.booleans())
def test_a_server_survives_every_request_that_was_damaged_on_the_way(
    data: st.DataObject, spec: Table, pulls: bool
) -> None:
    house = House(spec, 1 << 18)
    stream, number = (0, 0) if isinstance(spec.apply, Step) else (-ME, 0)
    keys, rows = np.array([0, 3, 9], np.uint64), np.ones(3 * spec.width, np.float32)
    push = m.Push(5, 1, 1, 0, ME, stream, number, 0, 1, 0, 0, 0, m.EVERYWHERE, 3, read=[0], pull=pulls)
    pull = m.Pull(6, 1, 1, 0, ME, 0, 0, 0, 0, m.EVERYWHERE, 3)
    for message, frames in ((push, [keys.tobytes(), rows.tobytes()]), (pull, [keys.tobytes()])):
        parts = [coding.encode(message), *frames]
        for i in data.draw(st.sets(st.integers(0, len(parts) - 1), max_size=2)):
            parts[i] = data.draw(damaged(parts[i], coding.encode(pull)))
        found = decoded(parts[0], parts[1:])
        if found is not None:
            treat(house, *found)
