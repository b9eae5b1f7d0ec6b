"""Update rules: what is known, what is refused, and how a user adds one."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.errors import Invalid
from shoal.store import update as rules
from shoal.store.update import SGD, AdaGrad, Assign, Sum, rule_named, update
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


def test_the_builtin_rules_are_their_formulas() -> None:
    def run(given: Update, weight: float, state: tuple[float, ...], gradient: float) -> Answer:
        rule = rule_named(given.name)
        return rule.function(weight, state, gradient, rule.settings(given.settings))

    assert run(Sum(), 2.0, (), 3.0) == (5.0, ())
    assert run(Assign(), 2.0, (), 3.0) == (3.0, ())
    assert run(SGD(step=0.5), 2.0, (), 3.0) == (0.5, ())
    assert run(AdaGrad(step=0.5, epsilon=1.0), 2.0, (7.0,), 3.0) == (2.0 - 0.5 * 3.0 / (math.sqrt(16.0) + 1.0), (16.0,))


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
    with pytest.raises(Invalid, match="a finite number is needed"):
        SGD(step=value)


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match=r"no update 'adagard' here .*adagrad, assign.*sgd, sum.*modules=") as e:
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
    code = "import sys, shoal.store.update, shoal.store.table; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
