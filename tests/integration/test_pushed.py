"""Pushes may have several numbers per weight, on every kind of table.

The tests use copies, threads and processes.
"""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import shoal
from shoal.errors import BadValues, Invalid
from shoal.keys import KeyList
from shoal.store.table.update import BlockProximal, rule_named
from shoal.tables import Table
from tests.support import PATIENCE

SPAN = 600
EXAMPLES = Path(__file__).parents[2] / "examples"
RULE = BlockProximal(step=0.9, l1=0.2, kkt=0.1)
_names = (f"table {number}" for number in itertools.count())


@pytest.fixture(scope="module", params=["threads", "ipc"])
def kv(request: pytest.FixtureRequest) -> Iterator[shoal.KV]:
    with shoal.local(servers=3, copies=2, processes=request.param == "ipc") as cluster:
        yield cluster.client()


def expected(pushes: list[np.ndarray], width: int) -> np.ndarray:  # type: ignore[type-arg]
    rule = rule_named(RULE.name)
    settings = rule.settings(RULE.settings)
    weights = np.zeros((SPAN, width), np.float32)
    for push in pushes:
        for row in range(SPAN):
            for c in range(width):
                numbers = (float(push[row, c]), float(push[row, width + c]))
                weights[row, c] = rule.function(float(weights[row, c]), (), numbers, settings)[0]
    return weights


@pytest.mark.parametrize(
    "spec",
    [
        shoal.Dense(rows=SPAN),
        shoal.Dense(rows=SPAN, width=3),
        shoal.Sparse(keys=SPAN, width=2),
        shoal.Sparse(hashed=True),
        shoal.Sparse(keys=SPAN, apply=shoal.Step(slots=2), max_delay=0),
        shoal.Sparse(keys=SPAN, wire="bfloat16"),
    ],
    ids=["dense", "wide", "sparse", "hashed", "steps", "short"],
)
def test_what_comes_back_is_as_wide_as_the_table(kv: shoal.KV, spec: Table) -> None:
    name, width = next(_names), spec.width
    kv.create(name, msgspec.structs.replace(spec, pushed=2, update=RULE))
    draw, keys = np.random.default_rng(1), np.arange(SPAN)
    pushes = []
    for number in range(4):
        whole = np.abs(draw.integers(-8, 8, size=(SPAN, 2 * width))).astype(np.float32)
        whole[:, :width] -= 4
        whole[:, width:] += 8
        steps = isinstance(spec.apply, shoal.Step)
        if steps:  # halves are exact, and so is their sum
            slots = [(0, 2 * number), (0, 2 * number + 1)]
            kv.wait([kv.push(name, keys, whole / 2, slot=slot) for slot in slots], PATIENCE)
        else:
            kv.push(name, keys, whole).result(PATIENCE)
        pushes.append(whole)
    found = kv.pull(name, keys, exact=True).result(PATIENCE).reshape(SPAN, width)
    assert found.tobytes() == expected(pushes, width).tobytes()
    if spec.wire == "float32" and isinstance(spec.apply, shoal.Each):
        again = kv.push_pull(name, keys, pushes[0]).result(PATIENCE).reshape(SPAN, width)
        assert again.tobytes() == expected([*pushes, pushes[0]], width).tobytes()


def test_a_push_that_looks_ahead_and_one_with_repeats(kv: shoal.KV) -> None:
    name = next(_names)
    kv.create(name, shoal.Sparse(keys=SPAN, pushed=2, update=RULE))
    keys, others = KeyList(np.arange(0, 9, dtype=np.uint64)), KeyList(np.arange(5, 20, dtype=np.uint64))
    ahead = kv.push(name, keys, np.full((9, 2), 4, np.float32), ahead=others).result(PATIENCE)
    assert ahead.shape == (15,) and (ahead[:4] != 0).all() and (ahead[4:] == 0).all()
    # The values of both keys add up to 4, 4.
    kv.push(name, [30, 31, 30], np.array([[1, 2], [4, 4], [3, 2]], np.float32)).result(PATIENCE)
    thirty, other = kv.pull(name, [30, 31]).result(PATIENCE)
    assert thirty == other != 0


def test_a_table_that_does_not_fit_its_rule_is_refused_where_it_is_made(kv: shoal.KV) -> None:
    with pytest.raises(Invalid, match="describe the table with pushed=2"):
        kv.create("wrong", shoal.Sparse(keys=SPAN, update=RULE))
    name = next(_names)
    kv.create(name, shoal.Dense(rows=SPAN, pushed=2, update=RULE))
    with pytest.raises(BadValues, match=r"these keys need \(2, 2\)"):
        kv.push(name, [1, 2], [1.0, 2.0])


def test_the_example_learns_which_weights_matter(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "proximal_step.py"), run_name="__main__")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("5 of 50 weights are not 0") and int(second.split()[0]) > 30
