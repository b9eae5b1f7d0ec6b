"""The update that a job asks for: its [update] table, checked and made into the rule that servers know.

    [update]
    rule = "adam"
    step = 0.003          always the name of the step size, the alpha of ftrl included
    beta2 = 0.99

What is not set is the rule's own default. A setting that the chosen rule does not have is refused, with those it has.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from shoal.errors import Invalid
from shoal.store import update
from shoal.tables import Update

# By rule: what makes it, and the settings it has besides the step. sgd and ftrl start elsewhere than where they are made by
# hand; the beta of ftrl's paper, 1, is for gradients of single examples, and ours are means over a slot.
_MADE_BY: dict[str, tuple[Any, tuple[str, ...]]] = {
    "adagrad": (update.AdaGrad, ("epsilon", "l1", "l2")),
    "sgd": (lambda step=0.5, **more: update.SGD(step, **more), ("l1", "l2")),
    "ftrl": (lambda step=0.1, **more: update.FTRL(step, 0.01, **more), ("l1", "l2")),
    "momentum": (update.Momentum, ("momentum", "dampening", "decay")),
    "nesterov": (update.Nesterov, ("momentum", "decay")),
    "rmsprop": (update.RMSProp, ("alpha", "epsilon", "momentum", "decay")),
    "adam": (update.Adam, ("beta1", "beta2", "epsilon", "decay")),
    "adamw": (update.AdamW, ("beta1", "beta2", "epsilon", "decay")),
    "block_proximal": (lambda step=1.0, l1=0.0, **more: update.BlockProximal(step, l1, **more), ("l1", "l2")),
}
_PLAIN = ("l1", "l2")  # 0 is as good as not set


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the servers do with a gradient."""

    rule: Literal["adagrad", "sgd", "ftrl", "momentum", "nesterov", "rmsprop", "adam", "adamw", "block_proximal"] = (
        "adagrad"
    )
    step: float | None = (
        None  # adagrad, ftrl: 0.1, sgd: 0.5, momentum, nesterov, rmsprop: 0.01, adam, adamw: 0.001, block_proximal: 1
    )
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
        make, has = _MADE_BY[self.rule]
        set_here = {name: getattr(self, name) for name in self.__struct_fields__[1:]}
        given = {name: value for name, value in set_here.items() if value is not None and (value or name not in _PLAIN)}
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
    def identity(self) -> dict[str, Any]:
        """Its part of what makes a run this one: settings that came later count if they are set, so older runs stay the same."""
        tree = msgspec.to_builtins(self)
        return {name: value for name, value in tree.items() if value is not None or name in ("rule", "step", *_PLAIN)}
