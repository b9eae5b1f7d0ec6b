"""The update rules: what a server does with a gradient, as a scalar function.

    (weight, state, gradient, settings) -> (weight, state)

State is a tuple of as many floats as the rule keeps per weight (zeros at first), settings a named
tuple of floats. ``codegen`` inlines the function into a compiled kernel, which computes in float64
between float32 rows, so a plain Python call gives the same bits. A rule must be a function of its
arguments alone: backups run it again. With ``pushed`` numbers per weight gradient is a tuple, and
a row of a push is all weights' first numbers, then all second ones. ``additive=False`` says that a
push cannot be sent in two parts (assign): filters that send the rest of a value later are refused.

Penalties are proximal steps: with l1 or l2, SGD and AdaGrad move along the gradient and then to

    argmin over u of  l1 |u| + l2/2 u^2 + (u - moved)^2 / (2 step)
        =  shrink(moved, step * l1) / (1 + step * l2)

with the step size that this weight moved by. They act on a key when it is pushed, even with a
gradient of 0: a rarely seen key is rarely penalised. FTRL has no such lag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from shoal import tables
from shoal.errors import Invalid
from shoal.limits import PUSHED
from shoal.registry import check_number, check_setting, checked_name, merged_settings
from shoal.store.table import rules
from shoal.tables import Update

Function = Callable[[float, tuple[float, ...], Any, Any], tuple[float, tuple[float, ...]]]

STATES = 16  # floats a rule may keep per weight


class UpdateRule(msgspec.Struct, frozen=True):
    """A function, how many floats it keeps per weight, and its settings with their defaults."""

    name: str
    function: Function
    state: int
    defaults: Mapping[str, float] = {}
    above_zero: tuple[str, ...] = ()  # settings that divide
    from_zero: tuple[str, ...] = ()  # settings that must not be negative
    below_one: tuple[str, ...] = ()  # decay rates: 1 would never forget
    pushed: int = 1  # numbers that a push brings for each weight
    additive: bool = True  # what is pushed may come in parts, one after another

    def settings(self, given: Mapping[str, float]) -> tuple[float, ...]:
        made: tuple[float, ...] = merged_settings(f"update {self.name!r}", self.defaults, given, self._check)
        return made

    def _check(self, name: str, value: float) -> None:
        check_number(f"{name}={value!r}", value)
        for is_wrong, names, needs in (
            (value <= 0, self.above_zero, "above 0"),
            (value < 0, self.from_zero, "of 0 or more"),
            (value >= 1, self.below_one, "below 1"),
        ):
            if is_wrong and name in names:
                raise Invalid(f"update {self.name!r}, {name}={value!r}: a number {needs} is needed")


class UpdateConstructor(msgspec.Struct, frozen=True):
    """What the decorator returns: called with settings, it makes the Update for a table."""

    rule: UpdateRule

    def __call__(self, **settings: float) -> Update:
        self.rule.settings(settings)
        return Update(self.rule.name, {name: float(value) for name, value in settings.items()})


def update(
    *, state: int = 0, pushed: int = 1, additive: bool = True, **settings: float
) -> Callable[[Function], UpdateConstructor]:
    """Register a function as an update rule under its own name."""
    if not 0 <= state <= STATES:
        raise Invalid(f"state={state}: a rule keeps 0 to {STATES} floats per weight")
    if not isinstance(pushed, int) or not 1 <= pushed <= PUSHED:
        raise Invalid(f"pushed={pushed!r}: a rule is given 1 to {PUSHED} numbers for each weight")
    for name, value in settings.items():
        check_number(f"{name}={value!r}", value)
        check_setting(name)

    def register(function: Function) -> UpdateConstructor:
        name = checked_name("update", function, "weight, state, gradient, settings", _builtin, _rules)
        plain = {name: float(value) for name, value in settings.items()}
        rule = UpdateRule(name, function, state, plain, pushed=pushed, additive=bool(additive))
        _rules[rule.name] = rule
        return UpdateConstructor(rule)

    return register


def rule_named(name: str) -> UpdateRule:
    if name not in _rules:
        raise Invalid(
            f"no update {name!r} here (known: {', '.join(sorted(_rules))}): a server knows the rules of the modules "
            f"it was started with, so name yours: shoal.local(..., modules=['my_module'])"
        )
    return _rules[name]


def forgets(update: Update) -> bool:
    """Whether the rule computes the weight from its state alone, ignoring other changes to it."""
    rule = rule_named(update.name)
    if not rule.state or rule.pushed > 1:
        return False
    nothing, plain = (0.0,) * rule.state, rule.settings({})
    return rule.function(1e6, nothing, 0.0, plain)[0] == rule.function(2e6, nothing, 0.0, plain)[0]


def is_own(rule: UpdateRule) -> bool:
    return _builtin.get(rule.name) is rule


def known_rule(name: str) -> UpdateRule | None:
    return _rules.get(name)


def check_pushed(spec: tables.Table) -> None:
    """Refuse a table whose pushes do not suit its rule; servers check an unknown rule."""
    rule = _rules.get(spec.update.name)
    if rule is not None and rule.pushed != spec.pushed:
        raise Invalid(
            f"update {rule.name!r} takes {rule.pushed} numbers for each weight and the table's pushes bring {spec.pushed}: "
            f"describe the table with pushed={rule.pushed}"
        )


def _made(name: str, **settings: float) -> Update:
    return UpdateConstructor(_rules[name])(**settings)


def Sum() -> Update:
    """Add what is pushed."""
    return Update("sum")


def Assign() -> Update:
    """Replace the weight by what is pushed."""
    return Update("assign")


def SGD(step: float = 0.1, l1: float = 0.0, l2: float = 0.0) -> Update:
    """weight - step * gradient; with l1 or l2, then the proximal step."""
    if _is_zero(l1) and _is_zero(l2):
        return _made("sgd", step=step)
    return _made("proximal_sgd", step=step, l1=l1, l2=l2)


def AdaGrad(step: float = 0.1, epsilon: float = 1e-8, l1: float = 0.0, l2: float = 0.0) -> Update:
    """weight - step * gradient / (sqrt(sum of squares) + epsilon) (Duchi et al., JMLR 2011).

    With l1 or l2, then the proximal step, of the size step / (sqrt(sum of squares) + epsilon) that
    the weight moved by.
    """
    if _is_zero(l1) and _is_zero(l2):
        return _made("adagrad", step=step, epsilon=epsilon)
    return _made("proximal_adagrad", step=step, epsilon=epsilon, l1=l1, l2=l2)


def Momentum(step: float = 0.01, momentum: float = 0.9, dampening: float = 0.0, decay: float = 0.0) -> Update:
    """weight - step * velocity; velocity = momentum * velocity + (1 - dampening) * gradient.

    ``decay`` * weight is added to the gradient. As in torch.optim.SGD, the first gradient is not
    dampened, and with momentum=0 there is no velocity to dampen.
    """
    check_number(f"dampening={dampening!r}", dampening)
    if not _is_zero(momentum):
        if _is_zero(dampening):
            return _made("sgd_momentum", step=step, momentum=momentum, decay=decay)
        return _made("sgd_dampened", step=step, momentum=momentum, decay=decay, dampening=dampening)
    return SGD(step) if _is_zero(decay) else _made("sgd_decay", step=step, decay=decay)


def Nesterov(step: float = 0.01, momentum: float = 0.9, decay: float = 0.0) -> Update:
    """weight - step * (gradient + momentum * velocity), as torch.optim.SGD with nesterov."""
    return _made("sgd_nesterov", step=step, momentum=momentum, decay=decay)


def RMSProp(
    step: float = 0.01, alpha: float = 0.99, epsilon: float = 1e-8, momentum: float = 0.0, decay: float = 0.0
) -> Update:
    """weight - step * gradient / (sqrt(mean of squares) + epsilon), as torch.optim.RMSprop."""
    settings = {"step": step, "alpha": alpha, "epsilon": epsilon, "decay": decay}
    if _is_zero(momentum):
        return _made("rmsprop", **settings)
    return _made("rmsprop_momentum", **settings, momentum=momentum)


def Adam(
    step: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, decay: float = 0.0
) -> Update:
    """Running means of gradients and squares, bias-corrected (Kingma, Ba, ICLR 2015)."""
    return _made("adam", step=step, beta1=beta1, beta2=beta2, epsilon=epsilon, decay=decay)


def AdamW(
    step: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, decay: float = 0.01
) -> Update:
    """Adam with decay applied to the weight itself, by step * decay (Loshchilov, Hutter, 2019)."""
    return _made("adamw", step=step, beta1=beta1, beta2=beta2, epsilon=epsilon, decay=decay)


def FTRL(alpha: float = 0.1, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> Update:
    """Follow the regularised leader (McMahan et al., KDD 2013): exact zeros where |z| <= l1.

    For tables that start at 0, as the closed form does. ``beta`` is on the scale of the gradients:
    their means over a batch of sparse rows are small and want it far below 1.
    """
    return _made("ftrl", alpha=alpha, beta=beta, l1=l1, l2=l2)


def BlockProximal(step: float = 1.0, l1: float = 1.0, l2: float = 0.0, kkt: float = 0.0) -> Update:
    """shrink(weight - step * gradient / curvature, step * l1 / curvature).

    For tables with pushed=2: gradient and curvature. With ``kkt`` a weight of 0 whose gradient is
    at most that is written as -0, which says that it can be left out.
    """
    return _made("block_proximal", step=step, l1=l1, l2=l2, kkt=kkt)


_PENALTY = {"l1": 0.0, "l2": 0.0}
_BLOCK = {"step": 1.0, "l1": 1.0, "l2": 0.0, "kkt": 0.0}
_ADAGRAD = {"step": 0.1, "epsilon": 1e-8}
_MOMENTUM = {"step": 0.01, "momentum": 0.9, "decay": 0.0}
_RMSPROP = {"step": 0.01, "alpha": 0.99, "epsilon": 1e-8, "decay": 0.0}
_ADAM = {"step": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.0}
_BETAS: dict[str, Any] = {"from_zero": ("step", "beta1", "beta2", "decay"), "below_one": ("beta1", "beta2")}
_MOVING: dict[str, Any] = {"from_zero": ("step", "momentum", "decay"), "below_one": ("momentum",)}
_SMOOTH: dict[str, Any] = {"from_zero": ("step", "alpha", "momentum", "decay"), "below_one": ("alpha", "momentum")}
_NEEDS = ("epsilon",)
_builtin = {
    rule.name: rule
    for rule in (
        UpdateRule("sum", rules.add, 0),
        UpdateRule("assign", rules.assign, 0, additive=False),
        UpdateRule("sgd", rules.sgd, 0, {"step": 0.1}, (), ("step",)),
        UpdateRule("adagrad", rules.adagrad, 1, _ADAGRAD, (), ("step", "epsilon")),
        UpdateRule("proximal_sgd", rules.proximal_sgd, 0, {"step": 0.1, **_PENALTY}, (), ("step", "l1", "l2")),
        UpdateRule("proximal_adagrad", rules.proximal_adagrad, 1, _ADAGRAD | _PENALTY, _NEEDS, ("step", "l1", "l2")),
        UpdateRule("ftrl", rules.ftrl, 2, {"alpha": 0.1, "beta": 1.0, **_PENALTY}, ("alpha", "beta"), ("l1", "l2")),
        UpdateRule("block_proximal", rules.block_proximal, 0, _BLOCK, (), tuple(_BLOCK), pushed=2, additive=False),
        # Not "momentum": many users have a rule of that name.
        UpdateRule("sgd_decay", rules.sgd_decay, 0, {"step": 0.01, "decay": 0.0}, (), ("step", "decay")),
        UpdateRule("sgd_momentum", rules.sgd_momentum, 1, _MOMENTUM, **_MOVING),
        UpdateRule("sgd_dampened", rules.sgd_dampened, 2, _MOMENTUM | {"dampening": 0.0}, **_MOVING),
        UpdateRule("sgd_nesterov", rules.sgd_nesterov, 1, _MOMENTUM, **_MOVING),
        UpdateRule("rmsprop", rules.rmsprop, 1, _RMSPROP, _NEEDS, **_SMOOTH),
        UpdateRule("rmsprop_momentum", rules.rmsprop_momentum, 2, _RMSPROP | {"momentum": 0.9}, _NEEDS, **_SMOOTH),
        UpdateRule("adam", rules.adam, 4, _ADAM, _NEEDS, **_BETAS),
        UpdateRule("adamw", rules.adamw, 4, _ADAM | {"decay": 0.01}, _NEEDS, **_BETAS),
    )
}
_rules = dict(_builtin)


def _is_zero(penalty: object) -> bool:
    return not isinstance(penalty, bool) and penalty == 0  # False is no number: refused later


# By rule: its constructor, and the settings it has besides the step. Some defaults differ here:
# ftrl's beta of 1 is for gradients of single examples, and these are means over a slot.
_MADE_BY: dict[str, tuple[Any, tuple[str, ...]]] = {
    "adagrad": (AdaGrad, ("epsilon", "l1", "l2")),
    "sgd": (lambda step=0.5, **more: SGD(step, **more), ("l1", "l2")),
    "ftrl": (lambda step=0.1, **more: FTRL(step, 0.01, **more), ("l1", "l2")),
    "momentum": (Momentum, ("momentum", "dampening", "decay")),
    "nesterov": (Nesterov, ("momentum", "decay")),
    "rmsprop": (RMSProp, ("alpha", "epsilon", "momentum", "decay")),
    "adam": (Adam, ("beta1", "beta2", "epsilon", "decay")),
    "adamw": (AdamW, ("beta1", "beta2", "epsilon", "decay")),
    "block_proximal": (lambda step=1.0, l1=0.0, **more: BlockProximal(step, l1, **more), ("l1", "l2")),
}
_PLAIN = ("l1", "l2")  # 0 means not set


class UpdateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the servers do with a gradient."""

    # Sgd, ftrl, momentum, nesterov, rmsprop, adam, adamw, block_proximal; or your own, from
    # launch.modules.
    rule: str = "adagrad"
    # Block_proximal: 1, sgd: 0.5, adagrad, ftrl: 0.1, adam, adamw: 0.001, others: 0.01.
    step: float | None = None
    l1: float = 0.0
    l2: float = 0.0
    momentum: float | None = None  # 0.9; of rmsprop 0
    dampening: float | None = None
    alpha: float | None = None  # of rmsprop: how much of the mean of squares stays, 0.99
    beta1: float | None = None  # 0.9
    beta2: float | None = None  # 0.999
    epsilon: float | None = None  # 1e-8
    decay: float | None = None  # torch's weight_decay: 0, of adamw 0.01

    def update(self) -> Update:
        set_here = {name: getattr(self, name) for name in self.__struct_fields__[1:]}
        given = {name: value for name, value in set_here.items() if value is not None and (value or name not in _PLAIN)}
        if self.is_own:
            return Update(self.rule, given)  # servers know what settings it has
        make, has = _MADE_BY[self.rule]
        for name, value in given.items():
            if name != "step" and name not in has:
                others = [other for other, (_, its) in _MADE_BY.items() if name in its]
                raise Invalid(
                    f"update.{name}={value!r}: rule {self.rule!r} has no {name}, only {', '.join(others)}; "
                    f"it has {', '.join(('step', *has))}: leave {name} out, or choose another rule"
                )
        made: Update = make(**given)
        return made

    @property
    def is_own(self) -> bool:
        """Whether it is a user's rule, which servers import."""
        return self.rule not in _MADE_BY

    def check(self, modules: list[str], has_servers: bool) -> None:
        """Raise Invalid if it cannot be; a user's rule must come from some module."""
        if self.is_own and not (modules and has_servers):
            near = get_close_matches(self.rule, _MADE_BY, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            why = "launch.modules names where your own are" if has_servers else "your own need a strategy with servers"
            raise Invalid(f"update.rule: no rule {self.rule!r}{hint} (there are {', '.join(_MADE_BY)}; {why})")
        self.update()

    @property
    def identity(self) -> dict[str, Any]:
        """Its part of a run's identity: settings added later count only if they are set."""
        tree = msgspec.to_builtins(self)
        return {name: value for name, value in tree.items() if value is not None or name in ("rule", "step", *_PLAIN)}
