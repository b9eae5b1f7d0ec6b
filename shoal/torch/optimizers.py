"""Translates a torch.optim optimizer to an update on the servers.

Settings without an equivalent are refused by name: dropping one would train another model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.errors import Invalid
from shoal.store.table.update import SGD, AdaGrad, Adam, AdamW, Momentum, Nesterov, RMSProp
from shoal.tables import Update

Group = dict[str, Any]
_WITHOUT_MEANING = (
    "params",
    "initial_lr",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "decoupled_weight_decay",
)


def update_of(optimizer: torch.optim.Optimizer) -> Update:
    name = type(optimizer).__name__
    if type(optimizer) not in _RULES:
        known = ", ".join(kind.__name__ for kind in _RULES)
        raise Invalid(f"optimizer {name} has no equivalent on the servers: take one of {known}")
    if len(optimizer.param_groups) != 1:
        raise Invalid(
            f"{name} has {len(optimizer.param_groups)} groups of parameters, and a table has one update: "
            "put all parameters into one group"
        )
    # the initial state of Adagrad has step 0
    if any(state and float(state.get("step", 1)) > 0 for state in optimizer.state.values()):
        raise Invalid(f"{name} has taken steps, which the servers do not know: distribute it before the first")
    group = optimizer.param_groups[0]
    rule, refused = _RULES[type(optimizer)]
    for setting, needed in {"maximize": False, **refused}.items():
        if group.get(setting, needed) != needed:
            raise Invalid(f"{name}({setting}={group[setting]!r}) has no equivalent on the servers: leave {setting} out")
    return rule(group)


def settings(group: Group) -> dict[str, Any]:
    kept = {name: value for name, value in group.items() if name not in _WITHOUT_MEANING}
    return {name: float(value) if isinstance(value, torch.Tensor) else value for name, value in kept.items()}


def changed(before: dict[str, Any], group: Group) -> str:
    """The changes since then in words; empty if none."""
    for name, value in before.items():
        now = float(group[name]) if isinstance(group[name], torch.Tensor) else group[name]
        if now != value:
            return f"{name} is {_short(now)} now and was {_short(value)}"
    return ""


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _sgd(group: Group) -> Update:
    if group["nesterov"]:
        return Nesterov(_lr(group), group["momentum"], group["weight_decay"])
    if group["momentum"] or group["weight_decay"]:
        return Momentum(_lr(group), group["momentum"], group["dampening"], group["weight_decay"])
    return SGD(_lr(group))


def _lr(group: Group) -> float:
    return float(group["lr"])


def _betas(group: Group) -> tuple[float, float, float, float, float]:
    (beta1, beta2) = map(float, group["betas"])
    return _lr(group), beta1, beta2, group["eps"], group["weight_decay"]


_RULES: dict[type, tuple[Callable[[Group], Update], dict[str, Any]]] = {
    torch.optim.SGD: (_sgd, {}),
    torch.optim.Adagrad: (
        lambda group: AdaGrad(_lr(group), group["eps"]),
        {"lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0},
    ),
    torch.optim.RMSprop: (
        lambda group: RMSProp(_lr(group), group["alpha"], group["eps"], group["momentum"], group["weight_decay"]),
        {"centered": False},
    ),
    torch.optim.Adam: (lambda group: Adam(*_betas(group)), {"amsgrad": False, "decoupled_weight_decay": False}),
    torch.optim.AdamW: (lambda group: AdamW(*_betas(group)), {"amsgrad": False}),
}
