"""The update rules: what a server does with a gradient. A rule is a scalar function, and the same one runs everywhere.

    (weight, state, gradient, settings) -> (weight, state)

Weight and gradient are floats, state is a tuple of as many floats as the rule keeps per weight (zeros at first),
settings a named tuple of floats. ``generate`` inlines the function into a compiled kernel. There it computes in
float64, between float32 rows read before and written after, so a plain Python call gives the same bits. A rule must be
a function of its arguments alone: backups run it again.

Only a rule's name and settings travel, never code. A user's own rule, in a module that the servers are started with:

    @shoal.update(state=1, step=0.1, decay=0.9)
    def momentum(weight, state, gradient, settings):
        velocity = settings.decay * state[0] + gradient
        return weight - settings.step * velocity, (velocity,)

    shoal.Sparse(hashed=True, update=momentum(step=0.01))

Penalties are proximal steps: with l1 or l2, SGD and AdaGrad move along the gradient first and then to

    argmin over u of  l1 |u| + l2/2 u^2 + (u - moved)^2 / (2 step)  =  shrink(moved, step * l1) / (1 + step * l2)

with the step size that this weight moved by. They act on a key when the key is pushed, even with a gradient of 0: a
key that is rarely seen is rarely penalised. FTRL has no such lag, since its weight is a closed form of all that was
pushed, penalties included: it is the same however long the key was left alone.
"""

from __future__ import annotations

import inspect
import math
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from shoal.errors import Invalid
from shoal.tables import Update

Function = Callable[[float, tuple[float, ...], float, Any], tuple[float, tuple[float, ...]]]

_named_tuple: Any = namedtuple  # type checkers want its fields written out
STATES = 16  # floats a rule may keep per weight: more is a mistake


@dataclass(frozen=True, slots=True)
class Rule:
    """A function, how many floats it keeps per weight, and its settings with their defaults."""

    name: str
    function: Function
    state: int
    defaults: Mapping[str, float] = field(default_factory=dict)
    above_zero: tuple[str, ...] = ()  # settings that divide
    from_zero: tuple[str, ...] = ()  # settings that would turn the rule round if they were negative

    def settings(self, given: Mapping[str, float]) -> tuple[float, ...]:
        """The named tuple that the function takes: the defaults, with what was given in their place."""
        for name, value in given.items():
            if name not in self.defaults:
                raise Invalid(f"update {self.name!r} has no setting {name!r}{_instead(name, list(self.defaults))}")
            _check_number(f"{name}={value!r}", value)
            if value <= 0 and name in self.above_zero:
                raise Invalid(f"update {self.name!r}, {name}={value!r}: a number above 0 is needed")
            if value < 0 and name in self.from_zero:
                raise Invalid(f"update {self.name!r}, {name}={value!r}: a number of 0 or more is needed")
        merged = {**self.defaults, **given}
        made: tuple[float, ...] = _named_tuple("Settings", tuple(self.defaults))(*map(float, merged.values()))
        return made


@dataclass(frozen=True, slots=True)
class Constructor:
    """What the decorator leaves in place of a function: called with settings, it makes the Update for a table."""

    rule: Rule

    def __call__(self, **settings: float) -> Update:
        self.rule.settings(settings)
        return Update(self.rule.name, {name: float(value) for name, value in settings.items()})


def update(*, state: int = 0, **settings: float) -> Callable[[Function], Constructor]:
    """Register a function as an update rule under its own name."""
    if not 0 <= state <= STATES:
        raise Invalid(f"state={state}: a rule keeps 0 to {STATES} floats per weight")
    for name, value in settings.items():
        _check_number(f"{name}={value!r}", value)
        if name.startswith("_"):
            raise Invalid(f"setting {name!r}: a name that does not begin with an underscore is needed")

    def register(function: Function) -> Constructor:
        rule = Rule(_checked_name(function), function, state, {name: float(value) for name, value in settings.items()})
        _rules[rule.name] = rule
        return Constructor(rule)

    return register


def rule_named(name: str) -> Rule:
    """The rule that this process knows by that name."""
    if name not in _rules:
        raise Invalid(
            f"no update {name!r} here (known: {', '.join(sorted(_rules))}): a server knows the rules of the modules "
            f"it was started with, so name yours: shoal.local(..., modules=['my_module'])"
        )
    return _rules[name]


def Sum() -> Update:
    """Add what is pushed."""
    return Update("sum")


def Assign() -> Update:
    """What is pushed takes the place of what was there."""
    return Update("assign")


def SGD(step: float = 0.1, l1: float = 0.0, l2: float = 0.0) -> Update:
    """weight - step * gradient; with l1 or l2, then the proximal step."""
    if _is_zero(l1) and _is_zero(l2):
        return Constructor(_rules["sgd"])(step=step)
    return Constructor(_rules["proximal_sgd"])(step=step, l1=l1, l2=l2)


def AdaGrad(step: float = 0.1, epsilon: float = 1e-8, l1: float = 0.0, l2: float = 0.0) -> Update:
    """weight - step * gradient / (sqrt(sum of squares) + epsilon) (Duchi, Hazan, Singer, JMLR 2011).

    With l1 or l2, then the proximal step, of the size step / (sqrt(sum of squares) + epsilon) that the weight moved by.
    """
    if _is_zero(l1) and _is_zero(l2):
        return Constructor(_rules["adagrad"])(step=step, epsilon=epsilon)
    return Constructor(_rules["proximal_adagrad"])(step=step, epsilon=epsilon, l1=l1, l2=l2)


def FTRL(alpha: float = 0.1, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> Update:
    """Follow the regularised leader (McMahan et al., KDD 2013, algorithm 1): exact zeros wherever |z| <= l1.

    For tables that start at 0, as the closed form does. ``beta`` is on the scale of the gradients: their means over a
    batch of sparse rows are small and want it far below 1.
    """
    return Constructor(_rules["ftrl"])(alpha=alpha, beta=beta, l1=l1, l2=l2)


def _sum(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> tuple[float, tuple[float, ...]]:
    return weight + gradient, state


def _assign(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> tuple[float, tuple[float, ...]]:
    return gradient, state


def _sgd(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> tuple[float, tuple[float, ...]]:
    return weight - settings.step * gradient, state


def _adagrad(
    weight: float, state: tuple[float, ...], gradient: float, settings: Any
) -> tuple[float, tuple[float, ...]]:
    squares = state[0] + gradient * gradient
    return weight - settings.step * gradient / (math.sqrt(squares) + settings.epsilon), (squares,)


def _shrink(value: float, by: float) -> float:
    """Towards 0 by so much, and no further."""
    if value > by:
        return value - by
    if value < -by:
        return value + by
    return 0.0


def _proximal_sgd(
    weight: float, state: tuple[float, ...], gradient: float, settings: Any
) -> tuple[float, tuple[float, ...]]:
    step = settings.step
    return _shrink(weight - step * gradient, step * settings.l1) / (1.0 + step * settings.l2), state


def _proximal_adagrad(
    weight: float, state: tuple[float, ...], gradient: float, settings: Any
) -> tuple[float, tuple[float, ...]]:
    squares = state[0] + gradient * gradient
    step = settings.step / (math.sqrt(squares) + settings.epsilon)
    return _shrink(weight - step * gradient, step * settings.l1) / (1.0 + step * settings.l2), (squares,)


def _ftrl(weight: float, state: tuple[float, ...], gradient: float, settings: Any) -> tuple[float, tuple[float, ...]]:
    z, squares = state[0], state[1] + gradient * gradient
    root = math.sqrt(squares)
    z += gradient - (root - math.sqrt(state[1])) / settings.alpha * weight
    # Of -z, since 0 / x must be 0 and not -0.
    return _shrink(-z, settings.l1) / ((settings.beta + root) / settings.alpha + settings.l2), (z, squares)


_PENALTY = {"l1": 0.0, "l2": 0.0}
_ADAGRAD = {"step": 0.1, "epsilon": 1e-8}
_builtin = {
    rule.name: rule
    for rule in (
        Rule("sum", _sum, 0),
        Rule("assign", _assign, 0),
        Rule("sgd", _sgd, 0, {"step": 0.1}, (), ("step",)),
        Rule("adagrad", _adagrad, 1, _ADAGRAD, (), ("step", "epsilon")),
        Rule("proximal_sgd", _proximal_sgd, 0, {"step": 0.1, **_PENALTY}, (), ("step", "l1", "l2")),
        Rule("proximal_adagrad", _proximal_adagrad, 1, _ADAGRAD | _PENALTY, ("epsilon",), ("step", "l1", "l2")),
        Rule("ftrl", _ftrl, 2, {"alpha": 0.1, "beta": 1.0, **_PENALTY}, ("alpha", "beta"), ("l1", "l2")),
    )
}
_rules = dict(_builtin)


def _checked_name(function: Function) -> str:
    name = getattr(function, "__name__", "")
    if not name.isidentifier() or not inspect.isfunction(function):
        raise Invalid(f"{function!r} cannot be an update: a function made by `def` is needed")
    parameters = inspect.signature(function).parameters.values()
    if len(parameters) != 4 or any(p.kind is not p.POSITIONAL_OR_KEYWORD for p in parameters):
        raise Invalid(
            f"update {name!r} takes ({', '.join(map(str, parameters))}): needs (weight, state, gradient, settings)"
        )
    if name in _builtin:
        raise Invalid(f"update {name!r} is one of shoal's own: give your function another name")
    old = _rules.get(name)
    # The same function edited keeps its module (a notebook, a reload) or its file (run as a script, then imported).
    if old is not None and _module(old.function) != _module(function) and _file(old.function) != _file(function):
        raise Invalid(f"update {name!r} is already registered by {_file(old.function)}: give one of them another name")
    return name


def _module(function: Function) -> str:
    return str(function.__module__)


def _file(function: Function) -> str:
    code: Any = getattr(function, "__code__", None)
    return str(code.co_filename)


def _is_zero(penalty: object) -> bool:
    return not isinstance(penalty, bool) and penalty == 0  # False is no number: the rule with penalties refuses it


def _check_number(what: str, value: object) -> None:
    try:
        finite = not isinstance(value, bool | str) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        finite = False
    if not finite:
        raise Invalid(f"setting {what}: a finite number is needed")


def _instead(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    if near:
        return f": did you mean {near[0]!r}?"
    return f" (settings: {', '.join(known)})" if known else " (it has none)"
