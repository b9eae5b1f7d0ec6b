"""How segments may change hands while everything goes on: what the operator can set."""

from __future__ import annotations

from typing import Literal

import msgspec

from shoal import limits
from shoal.errors import Invalid


class MoveSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which segments move by themselves, and how fast."""

    balance: Literal["load", "count", "none"] = "load"  # even counts; load: hot segments move, too
    mb_per_second: float = limits.MOVE_RATE / limits.MB  # that one server sends to those it fills

    def __post_init__(self) -> None:
        if not self.mb_per_second > 0:
            raise Invalid(f"moves.mb_per_second={self.mb_per_second}: needs a number above 0 (inf: no bound)")

    @property
    def rate(self) -> int:
        """The same in bytes a second, as a number that a message can tell."""
        return int(min(max(1.0, self.mb_per_second * limits.MB), limits.MOVE_RATE_MOST))
