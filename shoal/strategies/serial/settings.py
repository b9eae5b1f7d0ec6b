"""The settings of a serial run: minibatch steps on one core, with no store under it."""

from __future__ import annotations

from typing import ClassVar, Literal

from shoal.strategy import Strategy, register


@register
class Serial(Strategy, frozen=True, tag="serial", kw_only=True):
    """One process, no server: what the others are held against."""

    runs: ClassVar[str] = "shoal.strategies.serial.run"
    has_workers: ClassVar[bool] = False

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot
