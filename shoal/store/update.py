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

    def settings(self, given: Mapping[str, float]) -> tuple[float, ...]:
        """The named tuple that the function takes: the defaults, with what was given in their place."""
        for name, value in given.items():
            if name not in self.defaults:
                raise Invalid(f"update {self.name!r} has no setting {name!r}{_instead(name, list(self.defaults))}")
            _check_number(f"{name}={value!r}", value)
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


def SGD(step: float = 0.1) -> Update:
    """weight - step * gradient."""
    return Constructor(_rules["sgd"])(step=step)


def AdaGrad(step: float = 0.1, epsilon: float = 1e-8) -> Update:
    """weight - step * gradient / (sqrt(sum of squares) + epsilon) (Duchi, Hazan, Singer, JMLR 2011)."""
    return Constructor(_rules["adagrad"])(step=step, epsilon=epsilon)


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


_builtin = {
    "sum": Rule("sum", _sum, 0),
    "assign": Rule("assign", _assign, 0),
    "sgd": Rule("sgd", _sgd, 0, {"step": 0.1}),
    "adagrad": Rule("adagrad", _adagrad, 1, {"step": 0.1, "epsilon": 1e-8}),
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
