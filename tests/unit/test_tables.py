"""Table specifications and their checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import shoal
from shoal.errors import Invalid
from shoal.limits import GIVEN_ABOUT, GIVEN_PATH, KEY_LIMIT, SLOTS_PER_STEP, WIDTH
from shoal.tables import Dense, Each, Given, Normal, Sparse, Step, Table, Uniform, Update, checked


@pytest.mark.parametrize(
    "spec",
    [
        Dense(rows=1),
        Dense(rows=KEY_LIMIT, width=WIDTH, max_delay=0),
        Sparse(keys=1),
        Sparse(keys=KEY_LIMIT),
        Sparse(hashed=True, max_delay=7),
        Sparse(hashed=True, wire="bfloat16"),
        Dense(rows=8, apply=Step(slots=SLOTS_PER_STEP, slots_per_pass=1)),
        Dense(rows=8, initial=Given("/" * GIVEN_PATH, 0, "a" * GIVEN_ABOUT)),
    ],
)
def test_a_table_that_can_be_is_the_same_table(spec: Table) -> None:
    assert checked(spec) == spec


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Dense(rows=0), "rows=0"),
        (Dense(rows=-3), "rows=-3"),
        (Dense(rows=KEY_LIMIT + 1), "rows="),
        (Sparse(), "one of the two"),
        (Sparse(keys=5, hashed=True), "one of the two"),
        (Sparse(keys=0), "keys=0"),
        (Sparse(keys=KEY_LIMIT + 1), "keys="),
        (Dense(rows=8, width=0), "width=0"),
        (Dense(rows=8, width=WIDTH + 1), "width="),
        (Dense(rows=8, max_delay=-1), "max_delay=-1"),
        (Dense(rows=8, apply=Step(slots=0)), "slots=0"),
        (Dense(rows=8, apply=Step(slots=SLOTS_PER_STEP + 1)), "slots="),
        (Sparse(keys=8, apply=Step(slots_per_pass=0)), "slots_per_pass=0"),
        (Sparse(keys=8, wire="float64"), "wire='float64': needs one of 'float32', "),  # type: ignore[arg-type]
        (Dense(rows=8, initial=Given("start.f32", 0)), "given in 'start.f32'.*: give the whole path"),
        (Dense(rows=8, initial=Given("", 0)), "give the whole path"),
        (Dense(rows=8, initial=Given("/a\0b", 0)), "has a zero byte in it"),
        (Dense(rows=8, initial=Given("/a\udcff", 0)), r"'/a\\udcff' is not UTF-8: take another"),
        (Dense(rows=8, initial=Given("/" * 4_097, 0)), "has 4,097 bytes: at most 4,096, put the file elsewhere"),
        (
            Dense(rows=8, initial=Given("/a", 0, "é" * 40_000)),
            "about of given weights has 80,000 bytes: at most 65,536",
        ),
        (Dense(rows=8, wire=None), "wire=None: needs one of"),  # type: ignore[arg-type]
    ],
)
def test_a_table_that_cannot_be_is_refused_with_the_reason(spec: Table, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        checked(spec)


def test_keys_end_where_the_table_says() -> None:
    assert Dense(rows=7).span == 7
    assert Sparse(keys=9).span == 9
    assert Sparse(hashed=True).span == KEY_LIMIT
    assert not Dense(rows=7).hashed


def test_slots_of_an_endless_pass_are_counted_through() -> None:
    step = Step(slots=3)
    assert [step.step_of((0, number)) for number in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert step.steps_per_pass() is None
    assert step.slots_in(1_000_000) == 3


def test_the_last_step_of_a_pass_has_the_slots_that_are_left() -> None:
    step = Step(slots=3, slots_per_pass=7)
    assert step.steps_per_pass() == 3
    assert [step.step_of((0, number)) for number in range(7)] == [0, 0, 0, 1, 1, 1, 2]
    assert [step.step_of((2, number)) for number in range(7)] == [6, 6, 6, 7, 7, 7, 8]
    assert [step.slots_in(t) for t in range(7)] == [3, 3, 1, 3, 3, 1, 3]


@pytest.mark.parametrize(("slots", "per_pass"), [(1, 1), (4, 8), (8, 3), (5, 12), (3, 10)])
def test_every_slot_is_in_one_step_and_every_step_is_full(slots: int, per_pass: int) -> None:
    step = Step(slots=slots, slots_per_pass=per_pass)
    seen: dict[int, int] = {}
    for slot in ((p, number) for p in range(3) for number in range(per_pass)):
        seen[step.step_of(slot)] = seen.get(step.step_of(slot), 0) + 1
    assert list(seen) == list(range(len(seen)))  # in order, without gaps
    assert all(step.slots_in(t) == count for t, count in seen.items())


@pytest.mark.parametrize(
    ("step", "slot", "reason"),
    [
        (Step(), (0, -1), "not negative"),
        (Step(), (-1, 0), "not negative"),
        (Step(), (1, 0), "one endless pass"),
        (Step(slots_per_pass=4), (0, 4), "has 4 slots"),
    ],
)
def test_a_slot_that_cannot_be_is_refused(step: Step, slot: tuple[int, int], reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        step.step_of(slot)


@pytest.mark.parametrize(
    "spec",
    [
        Dense(
            rows=8, width=2, update=Update("sgd", {"step": 0.5}), initial=Uniform(-1, 1, 3), apply=Each(), max_delay=2
        ),
        Sparse(
            hashed=True, initial=Normal(0.1, 2), apply=Step(slots=4, combine="mean", slots_per_pass=10), max_delay=0
        ),
    ],
)
def test_a_description_travels(spec: Table) -> None:
    assert msgspec.json.decode(msgspec.json.encode(spec), type=Table) == spec
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=Table) == spec


def test_a_description_with_an_unknown_setting_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.json.decode(b'{"type": "dense", "rows": 8, "colour": "red"}', type=Table)


@pytest.mark.parametrize(
    "filters", [["int8"], [shoal.Int8], "int8", shoal.Int8()], ids=["name", "class", "text", "one"]
)
def test_filters_of_a_table_are_named_with_their_parentheses(filters: Any) -> None:
    with pytest.raises(Invalid, match=r"each with its parentheses: \[shoal.Int8\(\), shoal.DeltaKeys\(\)\]"):
        checked(shoal.Sparse(keys=9, filters=filters))
