"""Values can travel in 16 bits on every kind of table.

The tests use copies, threads and processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import shoal
from shoal.errors import BadValues, Invalid
from shoal.keys import KeyList
from shoal.tables import Table, Wire
from tests.support import PATIENCE

SHORT: list[Wire] = ["float16", "bfloat16"]
SPAN = 600
_names = (f"table {number}" for number in itertools.count())


@pytest.fixture(scope="module", params=["threads", "ipc"])
def kv(request: pytest.FixtureRequest) -> Iterator[shoal.KV]:
    with shoal.local(servers=2, copies=2, processes=request.param == "ipc") as cluster:
        yield cluster.client()


@pytest.fixture(scope="module")
def threads() -> Iterator[shoal.KV]:
    with shoal.local(servers=2) as cluster:
        yield cluster.client()


def make(kv: shoal.KV, spec: Table, wire: Wire) -> str:
    name = next(_names)
    kv.create(name, msgspec.structs.replace(spec, wire=wire))
    return name


# ---------------------------------------------------------------- exact values


@pytest.mark.parametrize("wire", SHORT)
@pytest.mark.parametrize(
    "spec",
    [
        shoal.Dense(rows=SPAN),
        shoal.Dense(rows=SPAN, width=3),
        shoal.Sparse(keys=SPAN, width=2),
        shoal.Sparse(hashed=True),
        shoal.Dense(rows=SPAN, apply=shoal.Step(slots=2), max_delay=0),
    ],
    ids=["dense", "wide", "sparse", "hashed", "steps"],
)
def test_numbers_that_a_form_can_say_are_pushed_and_pulled_as_they_are(kv: shoal.KV, spec: Table, wire: Wire) -> None:
    """Small whole numbers fit in sixteen bits, so nothing is rounded anywhere."""
    chance = np.random.default_rng(5)
    tables = [make(kv, spec, one) for one in ("float32", wire)]
    keys = np.unique(chance.integers(0, SPAN, 200))
    listed = KeyList(keys.astype(np.uint64))
    rows = chance.integers(-8, 9, (len(keys), spec.width)).astype(np.float32)
    stepped = isinstance(spec.apply, shoal.Step)

    def run(name: str) -> list[Any]:
        slots = [{"slot": (0, number)} for number in range(4)] if stepped else [{}] * 4
        pushes = [kv.push(name, keys, rows, **slots[0]), kv.push(name, keys[::-1], rows[::-1], **slots[1])]
        kv.wait(pushes, PATIENCE)
        tasks = [kv.push_pull(name, listed, rows, **slots[2]), kv.push(name, [3, 3, 5], rows[:3], **slots[3])]
        kv.wait(tasks, PATIENCE)
        found = [tasks[0].result(), kv.pull(name, keys).result(PATIENCE), kv.pull(name, listed).result(PATIENCE)]
        if not spec.hashed and not stepped:
            found.append(kv.push(name, listed, rows, ahead=KeyList(keys[::3].astype(np.uint64))).result(PATIENCE))
        # A sparse table returns its live keys.
        everything = kv.pull(name, slice(0, None)).result(PATIENCE)
        if isinstance(everything, shoal.KeyValues):
            found += [everything.keys, everything.values]
        else:
            found.append(everything)
            if not stepped:
                found.append(kv.push_pull(name, slice(10, 90), np.ones((80, spec.width))).result(PATIENCE))
        return found

    plain, short = run(tables[0]), run(tables[1])
    assert len(plain) == len(short)
    for one, other in zip(plain, short, strict=True):
        assert np.array_equal(one, other) and one.dtype == other.dtype
    assert np.abs(plain[1]).max() > 8  # something was added up
    for name in tables:
        kv.drop(name)


# ---------------------------------------------------------------- rounding


@pytest.mark.parametrize("wire", SHORT)
def test_only_what_travels_is_rounded(threads: shoal.KV, wire: Wire) -> None:
    """A thousand small pushes add up in float32, where a sum in sixteen bits would stop."""
    name = make(threads, shoal.Dense(rows=4), wire)
    threads.wait([threads.push(name, [2], [0.0009765625]) for _ in range(1_000)], PATIENCE)
    threads.push(name, [2], [64.0]).result(PATIENCE)
    rough = threads.pull(name, [2]).result(PATIENCE)[0]
    assert rough == pytest.approx(64.9765625, rel=2.0**-8) and rough != 64.9765625
    # ``exact`` is for code that saves or evaluates a model.
    assert threads.pull(name, [2], exact=True).result(PATIENCE) == [64.9765625]
    threads.push(name, [2], [-64.0]).result(PATIENCE)
    assert threads.pull(name, [2]).result(PATIENCE) == [0.9765625]  # nothing of it was lost


def test_bytes_are_about_half(kv: shoal.KV) -> None:
    moved: dict[Wire, tuple[int, int]] = {}
    values = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    for wire in ("float32", "float16", "bfloat16"):
        name = make(kv, shoal.Dense(rows=len(values)), wire)
        for _ in range(3):
            kv.push(name, slice(0, None), values).result(PATIENCE)
            kv.pull(name, slice(0, None)).result(PATIENCE)
        facts = kv.stats(name)
        moved[wire] = facts["bytes in"], facts["bytes out"]
        kv.drop(name)
    assert moved["float32"] == (3 * values.nbytes, 3 * values.nbytes)
    assert moved["float16"] == moved["bfloat16"] == (3 * values.nbytes // 2, 3 * values.nbytes // 2)


# ---------------------------------------------------------------- values that do not fit


def test_a_value_that_a_form_cannot_hold_is_refused_before_it_is_sent(threads: shoal.KV) -> None:
    name = make(threads, shoal.Dense(rows=4), "float16")
    with pytest.raises(BadValues, match=r"value 70000 is more than float16 holds .* wire='bfloat16'"):
        threads.push(name, [0, 1], [1.0, 7e4])
    with pytest.raises(BadValues, match="wire='float32'"):
        threads.push(make(threads, shoal.Dense(rows=4), "bfloat16"), [1], [np.finfo(np.float32).max])
    assert threads.pull(name, [0, 1]).result(PATIENCE).tolist() == [0.0, 0.0]
    assert "bytes in" not in threads.stats(name)


@pytest.mark.parametrize("spec", [shoal.Dense(rows=4), shoal.Sparse(keys=4)], ids=["dense", "sparse"])
def test_a_weight_that_a_form_cannot_hold_comes_whole(threads: shoal.KV, spec: Table) -> None:
    name = make(threads, spec, "float16")
    for _ in range(3):
        found = threads.push_pull(name, [1, 2], [6e4, 0.1]).result(PATIENCE)
    assert found.tolist() == [180_000.0, pytest.approx(0.3, rel=1e-3)]
    everything = threads.pull(name, slice(0, None)).result(PATIENCE)
    assert 180_000.0 in (everything.values if isinstance(everything, shoal.KeyValues) else everything)
    assert threads.stats(name)["not shortened"] == 3  # from the second sum on


def test_a_form_that_there_is_not_is_refused(threads: shoal.KV) -> None:
    with pytest.raises(Invalid, match=r"wire='float8': needs one of 'float32', 'float16', 'bfloat16'"):
        threads.create(next(_names), shoal.Dense(rows=4, wire="float8"))  # type: ignore[arg-type]
