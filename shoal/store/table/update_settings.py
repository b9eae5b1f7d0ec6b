"""The update that a job asks for: its [update] table, checked and made into the rule that servers know.

    [update]
    rule = "adam"
    step = 0.003          always the name of the step size, the alpha of ftrl included
    beta2 = 0.99

What is not set is the rule's own default. A setting that the chosen rule does not have is refused, with those it has.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import msgspec

from shoal.errors import Invalid
from shoal.store.table import update
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


class UpdateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the servers do with a gradient."""

    rule: str = "adagrad"  # sgd, ftrl, momentum, nesterov, rmsprop, adam, adamw, block_proximal; or your own, from launch.modules
    step: float | None = None  # block_proximal: 1, sgd: 0.5, adagrad, ftrl: 0.1, adam, adamw: 0.001, others: 0.01
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
        """A user's, which servers import."""
        return self.rule not in _MADE_BY

    def check(self, modules: list[str], has_servers: bool) -> None:
        """Says what is wrong with it; a rule that is not shoal's must come from somewhere."""
        if self.is_own and not (modules and has_servers):
            near = get_close_matches(self.rule, _MADE_BY, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            why = "launch.modules names where your own are" if has_servers else "your own need a strategy with servers"
            raise Invalid(f"update.rule: no rule {self.rule!r}{hint} (there are {', '.join(_MADE_BY)}; {why})")
        self.update()

    @property
    def identity(self) -> dict[str, Any]:
        """Its part of what makes a run this one: settings that came later count if they are set, so older runs stay the same."""
        tree = msgspec.to_builtins(self)
        return {name: value for name, value in tree.items() if value is not None or name in ("rule", "step", *_PLAIN)}
