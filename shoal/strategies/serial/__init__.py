"""Serial: minibatch steps on one core, without a store. The others compare with it."""

from __future__ import annotations

from typing import ClassVar, Literal

from shoal.strategy import Strategy, register


@register
class Serial(Strategy, frozen=True, tag="serial", kw_only=True):
    """One process, no server."""

    runs: ClassVar[str] = "shoal.strategies.serial.run"
    has_workers: ClassVar[bool] = False

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot
