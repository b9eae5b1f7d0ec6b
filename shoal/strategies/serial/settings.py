"""The settings of a serial run: minibatch steps on one core, with no store under it."""

from __future__ import annotations

from typing import Literal

import msgspec


class Serial(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="serial", kw_only=True):
    """One process, no server: what the others are held against."""

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot

    @property
    def name(self) -> str:
        return "serial"

    @property
    def in_steps(self) -> bool:
        return False
