"""Update rules: which exist, what is refused, and how a user adds one."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.errors import Invalid
from shoal.store.table import update as rules
from shoal.store.table.codegen import dense_kernels
from shoal.store.table.update import (
    FTRL,
    SGD,
    AdaGrad,
    Adam,
    Assign,
    Momentum,
    Sum,
    forgets,
    rule_named,
    update,
)
from shoal.tables import Update

Answer = tuple[float, tuple[float, ...]]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rules, "_rules", dict(rules._rules))
    yield


def test_a_constructor_names_the_rule_and_its_settings() -> None:
    assert Sum() == Update("sum")
    assert Assign() == Update("assign")
    assert SGD(step=0.5) == Update("sgd", {"step": 0.5})
    assert AdaGrad() == Update("adagrad", {"step": 0.1, "epsilon": 1e-8})
    assert FTRL(l1=2) == Update("ftrl", {"alpha": 0.1, "beta": 1.0, "l1": 2.0, "l2": 0.0})


def test_a_penalty_makes_it_another_rule_and_none_leaves_it_alone() -> None:
    assert SGD(step=0.5, l1=0, l2=0.0) == SGD(step=0.5)
    assert AdaGrad(l1=0) == AdaGrad()
    assert SGD(step=0.5, l1=1) == Update("proximal_sgd", {"step": 0.5, "l1": 1.0, "l2": 0.0})
    assert AdaGrad(l2=0.1) == Update("proximal_adagrad", {"step": 0.1, "epsilon": 1e-8, "l1": 0.0, "l2": 0.1})


def test_the_builtin_rules_are_their_formulas() -> None:
    assert run(Sum(), 2.0, (), 3.0) == (5.0, ())
    assert run(Assign(), 2.0, (), 3.0) == (3.0, ())
    assert run(SGD(step=0.5), 2.0, (), 3.0) == (0.5, ())
    assert run(AdaGrad(step=0.5, epsilon=1.0), 2.0, (7.0,), 3.0) == (2.0 - 0.5 * 3.0 / (math.sqrt(16.0) + 1.0), (16.0,))


PENALTIES = [(0.0, 0.3), (0.4, 0.0), (0.7, 1.5)]


@pytest.mark.parametrize(("l1", "l2"), PENALTIES)
def test_a_proximal_step_ends_where_penalty_and_distance_are_least(l1: float, l2: float) -> None:
    """Brute force: take w - step * g, then the best point of a fine grid.

    Never w + step * g, as one slide has it.
    """
    grid = np.linspace(-4.0, 4.0, 80_001)
    draw = np.random.default_rng(0)
    for weight, gradient, squares in draw.normal(size=(50, 3)):
        for given, state in ((SGD(0.6, l1=l1, l2=l2), ()), (AdaGrad(0.6, 0.1, l1=l1, l2=l2), (squares * squares,))):
            step = 0.6 if not state else 0.6 / (math.sqrt(state[0] + gradient * gradient) + 0.1)
            moved = weight - step * gradient
            cost = l1 * np.abs(grid) + l2 / 2 * grid**2 + (grid - moved) ** 2 / (2 * step)
            after, kept = run(given, weight, state, gradient)
            assert after == pytest.approx(grid[np.argmin(cost)], abs=1e-4)
            assert kept == tuple(one + gradient * gradient for one in state)


def test_a_proximal_step_without_penalty_is_the_plain_one() -> None:
    for plain in (SGD(step=0.3), AdaGrad(step=0.3)):
        proximal = Update(f"proximal_{plain.name}", plain.settings)
        state = (2.0,) if plain.name == "adagrad" else ()
        after, expected = run(proximal, 0.5, state, 0.7), run(plain, 0.5, state, 0.7)
        assert after[0] == pytest.approx(expected[0])
        assert after[1] == expected[1]


def test_a_penalty_acts_on_a_key_that_is_pushed_with_nothing() -> None:
    assert run(SGD(step=0.5, l1=1.0), 2.0, (), 0.0) == (1.5, ())
    assert run(SGD(step=0.5, l1=1.0), -0.25, (), 0.0) == (0.0, ())
    assert run(SGD(step=0.5, l2=2.0), 2.0, (), 0.0) == (1.0, ())


def ftrl_by_the_paper(gradients: list[float], alpha: float, beta: float, l1: float, l2: float) -> list[float]:
    """Returns the weight after each gradient, by Algorithm 1 of McMahan et al. (KDD 2013).

    Word for word, for one coordinate.
    """
    z = n = 0.0
    weights = []

    def weight() -> float:
        if abs(z) <= l1:
            return 0.0
        sign = 1.0 if z > 0 else -1.0
        return -(((beta + math.sqrt(n)) / alpha + l2) ** -1) * (z - sign * l1)

    for g in gradients:
        w = weight()
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / alpha
        z = z + g - sigma * w
        n = n + g * g
        weights.append(weight())
    return weights


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), *PENALTIES])
def test_ftrl_is_the_algorithm_of_the_paper(l1: float, l2: float) -> None:
    draw = np.random.default_rng(1)
    for _ in range(20):
        gradients = draw.normal(draw.normal(), 1.0, size=60).tolist()
        weight, state, weights = 0.0, (0.0, 0.0), []
        for gradient in gradients:
            weight, (z, n) = run(FTRL(0.5, 2.0, l1=l1, l2=l2), weight, state, gradient)
            state = (z, n)
            weights.append(weight)
        np.testing.assert_allclose(weights, ftrl_by_the_paper(gradients, 0.5, 2.0, l1, l2), rtol=1e-9, atol=1e-12)


def test_ftrl_with_l1_leaves_exact_zeros_where_gradients_are_noise() -> None:
    draw = np.random.default_rng(2)
    gradients = draw.normal(0.0, 0.1, size=(200, 100)).astype(np.float32)
    gradients[:, :5] -= 0.5  # only these five keys have a signal
    for l1, zeros in ((0.0, 0), (4.0, 95)):
        slab = pushed(FTRL(l1=l1), gradients)
        assert np.count_nonzero(slab[:, 0] == 0.0) == zeros
        assert (slab[:5, 0] > 0).all()
        assert not np.signbit(slab[slab[:, 0] == 0.0, 0]).any()  # 0, not -0


def test_ftrl_of_a_gradient_of_zero_changes_nothing() -> None:
    assert run(FTRL(), 0.0, (0.0, 0.0), 0.0) == (0.0, (0.0, 0.0))
    weight, state = run(FTRL(l1=0.1, l2=0.1), 0.0, (0.0, 0.0), 3.0)
    again, kept = run(FTRL(l1=0.1, l2=0.1), weight, state, 0.0)
    assert again == pytest.approx(weight)
    assert kept == state


@pytest.mark.parametrize("given", [SGD(l1=0.2, l2=0.1), AdaGrad(l1=0.02, l2=0.1), FTRL(l1=0.5, l2=0.1)])
def test_compiled_rules_have_the_bits_of_plain_python(given: Update) -> None:
    gradients = np.random.default_rng(3).normal(size=(30, 40)).astype(np.float32)
    slab = pushed(given, gradients)
    for key in range(40):
        row = [np.float32(0.0)] * slab.shape[1]
        for gradient in gradients[:, key]:
            weight, state = run(given, float(row[0]), tuple(map(float, row[1:])), float(gradient))
            row = [np.float32(one) for one in (weight, *state)]
        assert row == slab[key].tolist()


def run(given: Update, weight: float, state: tuple[float, ...], gradient: float) -> Answer:
    rule = rule_named(given.name)
    return rule.function(weight, state, gradient, rule.settings(given.settings))


def pushed(given: Update, gradients: Any) -> Any:
    """Returns the rows of a dense table after these pushes by the compiled kernel.

    A row is weights and state.
    """
    rule = rule_named(given.name)
    slab = np.zeros((gradients.shape[1], 1 + rule.state), np.float32)
    chosen = np.array(rule.settings(given.settings))
    for one in gradients:
        dense_kernels(rule).push_range(slab, 0, 0, np.ascontiguousarray(one.reshape(-1, 1)), chosen)
    return slab


def test_a_decorated_function_becomes_a_constructor() -> None:
    @update(state=1, step=0.1, decay=0.9)
    def momentum(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
        velocity = settings.decay * state[0] + gradient
        return weight - settings.step * velocity, (velocity,)

    assert momentum() == Update("momentum")
    assert momentum(step=1) == Update("momentum", {"step": 1.0})
    assert rule_named("momentum") is momentum.rule
    assert momentum.rule.state == 1
    assert momentum.rule.settings({"step": 0.5}) == (0.5, 0.9)


def test_an_unknown_setting_is_refused_and_the_nearest_one_named() -> None:
    with pytest.raises(Invalid, match=r"'adagrad' has no setting 'setp': did you mean 'step'\?"):
        rule_named("adagrad").settings({"setp": 1.0})
    with pytest.raises(Invalid, match=r"'sum' has no setting 'step' \(it has none\)"):
        rule_named("sum").settings({"step": 1.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, "0.1", True, None])
def test_a_setting_that_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="needs a finite number"):
        SGD(step=value)


@pytest.mark.parametrize(
    ("make", "wrong", "needed"),
    [
        (SGD, {"step": -0.1}, "0 or more"),
        (SGD, {"l1": -1e-9}, "0 or more"),
        (SGD, {"l2": -1}, "0 or more"),
        (AdaGrad, {"step": -0.1}, "0 or more"),
        (AdaGrad, {"epsilon": -1e-8}, "0 or more"),
        (AdaGrad, {"l1": 1.0, "epsilon": 0.0}, "above 0"),
        (FTRL, {"alpha": 0.0}, "above 0"),
        (FTRL, {"beta": 0}, "above 0"),
        (FTRL, {"l1": -1.0}, "0 or more"),
        (FTRL, {"l2": -1.0}, "0 or more"),
        (SGD, {"l1": math.nan}, "finite"),
        (SGD, {"l1": False}, "finite"),
    ],
)
def test_a_setting_that_would_turn_a_rule_round_is_refused(make: Any, wrong: dict[str, float], needed: str) -> None:
    with pytest.raises(Invalid, match=f"={list(wrong.values())[-1]!r}: .*{needed}"):
        make(**wrong)


def test_a_server_refuses_such_a_setting_too() -> None:
    with pytest.raises(Invalid, match=r"update 'sgd', step=-1\.0: a number of 0 or more is needed"):
        rule_named("sgd").settings({"step": -1.0})


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match=r"no update 'adagard' here .*adagrad, adam.*sgd, .*sum.*modules=") as e:
        rule_named("adagard")
    assert "modules it was started with" in str(e.value)


def test_a_builtin_name_cannot_be_taken() -> None:
    def sgd(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
        return weight, state

    with pytest.raises(Invalid, match="'sgd' is one of shoal's own"):
        update()(sgd)
    assert rule_named("sgd").function is not sgd


def test_an_edited_function_takes_the_place_of_the_old_one() -> None:
    def mine(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
        return weight, state

    update()(mine)

    def edited(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
        return gradient, state

    edited.__name__ = "mine"
    update(step=1.0)(edited)
    assert rule_named("mine").function is edited
    assert rule_named("mine").defaults == {"step": 1.0}


def test_two_files_cannot_register_the_same_name() -> None:
    def mine(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Answer:
        return weight, state

    update()(mine)
    other: dict[str, Any] = {"__name__": "elsewhere"}
    exec(compile("def mine(weight, state, gradient, settings): return weight, state", "/else/where.py", "exec"), other)
    with pytest.raises(Invalid, match=r"already registered by .*test_update\.py"):
        update()(other["mine"])


def test_what_cannot_be_a_rule_is_refused() -> None:
    with pytest.raises(Invalid, match="a function made by `def` is needed"):
        update()(lambda weight, state, gradient, settings: (weight, state))
    with pytest.raises(Invalid, match=r"needs \(weight, state, gradient, settings\)"):
        update()(lambda_with_three)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="keeps 0 to"):
        update(state=-1)
    with pytest.raises(Invalid, match="underscore"):
        update(_step=1.0)


def lambda_with_three(weight: float, state: tuple[float, ...], gradient: float) -> Answer:
    return weight, state


def test_importing_the_rules_does_not_import_numba() -> None:
    code = "import sys, shoal.store.table.update, shoal.store.table.table; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_a_rule_that_makes_weights_of_its_state_alone_is_known() -> None:
    @update(state=1)
    def sums_up(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> Any:
        return -state[0] - gradient, (state[0] + gradient,)

    assert forgets(FTRL()) and forgets(sums_up())
    assert not any(map(forgets, (SGD(), AdaGrad(), Adam(), Momentum())))
