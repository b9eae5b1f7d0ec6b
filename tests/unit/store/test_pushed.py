"""Rules that take several numbers for each weight give the bits of their own function.

block_proximal follows its definition word for word.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shoal.errors import BadValues, Invalid
from shoal.keys import KeyRange, Values
from shoal.store.table.table import ServerTable
from shoal.store.table.update import (
    BlockProximal,
    UpdateRule,
    _builtin,
    _rules,
    check_pushed,
    rule_named,
    update,
)
from shoal.tables import Dense, Sparse, Update, checked

ROWS = 700  # more than one block of a kernel
EXAMPLE = Path(__file__).parents[3] / "examples" / "proximal_step.py"


@pytest.fixture(autouse=True, scope="module")
def registry() -> Any:
    before = dict(_rules)

    @update(state=2, pushed=3, step=0.5)
    def three(weight: float, state: Any, gradient: Any, settings: Any) -> Any:
        a, b, c = gradient
        return weight - settings.step * a / (1.0 + abs(b)), (state[0] + c, weight)

    yield
    _rules.clear()
    _rules.update(before)


def by_hand(rule: UpdateRule, rows: Values, gradients: Values, width: int, settings: Any) -> Values:
    """Returns the rows of weights and state that the function computes."""
    after = rows.copy()
    for row, gradient in zip(after, gradients, strict=True):
        for c in range(width):
            numbers = tuple(float(gradient[kind * width + c]) for kind in range(rule.pushed))
            state = tuple(float(row[(1 + j) * width + c]) for j in range(rule.state))
            weight, state = rule.function(float(row[c]), state, numbers, settings)
            row[c] = weight
            for j in range(rule.state):
                row[(1 + j) * width + c] = state[j]
    return after


@pytest.mark.parametrize("given", [Update("three", {"step": 0.25}), BlockProximal(step=0.9, l1=0.4, l2=0.1, kkt=0.3)])
@pytest.mark.parametrize("width", [1, 3, 8, 40])
def test_the_numbers_of_a_weight_stand_one_width_apart(given: Update, width: int) -> None:
    rule = rule_named(given.name)
    settings = rule.settings(given.settings)
    draw = np.random.default_rng(width)
    rows = ROWS if width < 8 else 20
    pushes = draw.normal(size=(3, rows, width * rule.pushed)).astype(np.float32)
    if rule.name == "block_proximal":
        pushes[:, :, width:] **= 2
    expected = np.zeros((rows, width * (1 + rule.state)), np.float32)
    keys = np.arange(rows, dtype=np.uint64)
    tables = [ServerTable(sort, [KeyRange(0, rows)]) for sort in _sorts(rows, width, given)]
    for values in pushes:
        expected = by_hand(rule, expected, values, width, settings)
        tables[0].push(KeyRange(0, rows), values)
        for table in tables[1:]:
            table.push(keys, values)
    for table in tables:
        image, _ = table.image(0)
        assert image.tobytes() == expected.tobytes()  # also the sign of zeros
        assert table.pull(keys).shape == (rows, width)


def _sorts(rows: int, width: int, given: Update) -> list[Dense | Sparse]:
    dense = Dense(rows=rows, width=width, pushed=rule_named(given.name).pushed, update=given)
    return [dense, dense, Sparse(keys=rows, width=width, pushed=dense.pushed, update=given)]


def test_a_push_of_another_width_is_refused() -> None:
    table = ServerTable(Sparse(keys=9, width=2, pushed=2, update=BlockProximal()), [KeyRange(0, 9)])
    keys = np.arange(3, dtype=np.uint64)
    assert table.check(keys, np.zeros((3, 4), np.float32)) is None
    reason = table.check(keys, np.zeros((3, 2), np.float32))
    assert reason == "values have shape (3, 2): 3 rows of width 4 are needed"
    with pytest.raises(BadValues):
        table.push(keys, np.zeros((3, 2), np.float32))
    bad = np.zeros((3, 4), np.float32)
    bad[1, 3] = np.nan
    assert "row 1" in (table.check(keys, bad) or "")


def test_a_table_and_its_rule_agree_on_how_many_numbers_come() -> None:
    for wrong in (Dense(rows=3, update=BlockProximal()), Sparse(keys=3, pushed=3)):
        with pytest.raises(Invalid, match="describe the table with pushed="):
            check_pushed(wrong)
        with pytest.raises(Invalid, match="numbers for each weight"):
            ServerTable(wrong, [KeyRange(0, 3)])
    check_pushed(Dense(rows=3, pushed=5, update=Update("known to servers only")))


@pytest.mark.parametrize("pushed", [0, 9, -1])
def test_a_weight_gets_one_to_eight_numbers(pushed: int) -> None:
    with pytest.raises(Invalid, match="1 to 8 numbers"):
        checked(Dense(rows=3, pushed=pushed))
    with pytest.raises(Invalid, match="1 to 8 numbers"):
        update(pushed=pushed)
    with pytest.raises(Invalid, match="narrow the table"):
        checked(Dense(rows=3, width=40_000, pushed=2))


def test_only_what_is_assigned_or_stepped_by_curvature_cannot_come_in_parts() -> None:
    assert {name for name, rule in _builtin.items() if not rule.additive} == {"assign", "block_proximal"}


# ---------------------------------------------------------------- block_proximal


def step(weight: float, slope: float, curvature: float, **settings: float) -> float:
    given = BlockProximal(**settings)
    rule = rule_named("block_proximal")
    return rule.function(weight, (), (slope, curvature), rule.settings(given.settings))[0]


def test_a_step_ends_where_model_and_penalty_are_least() -> None:
    """Brute force over a fine grid finds the same point.

    It minimises gradient (u - w) + curvature / (2 step) (u - w)^2 + l1 |u| (+ l2 in both).
    """
    grid = np.linspace(-8.0, 8.0, 160_001)
    draw = np.random.default_rng(0)
    for weight, slope, curvature, l1, l2 in draw.uniform([-2, -2, 0.5, 0, 0], [2, 2, 3, 2, 1], size=(50, 5)):
        size = 0.8
        of_all = slope + l2 * weight
        cost = of_all * (grid - weight) + (curvature + l2) / (2 * size) * (grid - weight) ** 2 + l1 * np.abs(grid)
        after = step(weight, slope, curvature, step=size, l1=l1, l2=l2)
        assert after == pytest.approx(grid[np.argmin(cost)], abs=2e-4)


def test_a_zero_says_by_its_sign_whether_it_can_be_left_out() -> None:
    # By the gradient it stays 0.
    assert math.copysign(1, step(0.0, 0.5, 1.0, l1=1.0, kkt=0.6)) == -1
    assert math.copysign(1, step(-0.0, 0.5, 1.0, l1=1.0, kkt=0.6)) == -1
    assert math.copysign(1, step(0.0, 0.7, 1.0, l1=1.0, kkt=0.6)) == 1  # also 0, but less certain
    assert math.copysign(1, step(0.3, 0.3, 1.0, l1=1.0, kkt=0.6)) == 1  # it has only just become 0
    assert math.copysign(1, step(0.0, 0.0, 1.0, l1=1.0)) == 1  # without kkt nothing is left out
    assert math.copysign(1, step(-1e-60, 0.0, 1.0, l1=0.0)) == 1  # float32 would round it to -0


def test_a_weight_of_which_nothing_is_known_stays() -> None:
    assert step(0.0, 0.0, 0.0) == 0.0 and step(0.0, 0.5, 0.0, l1=1.0) == 0.0


# ---------------------------------------------------------------- as a user writes it


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proximal_step_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rule_of_the_example_gives_the_bits_of_the_built_in_one(example: ModuleType) -> None:
    settings = {"step": 0.7, "l1": 0.3, "l2": 0.05, "kkt": 0.2}
    draw = np.random.default_rng(3)
    keys = np.arange(ROWS, dtype=np.uint64)
    both = [
        ServerTable(Sparse(keys=ROWS, width=2, pushed=2, update=rule), [KeyRange(0, ROWS)])
        for rule in (BlockProximal(**settings), example.proximal_step(**settings))
    ]
    for _ in range(5):
        values = draw.normal(size=(ROWS, 4)).astype(np.float32)
        values[:, 2:] = np.abs(values[:, 2:]) * 10.0 ** draw.uniform(-40, 1)  # also tiny curvatures
        for table in both:
            table.push(keys, values)
    first, second = (table.image(0)[0] for table in both)
    assert first.tobytes() == second.tobytes() and np.signbit(first[first == 0]).any() and (first != 0).any()
