"""Peer to peer: every worker has the whole model, learns at its own pace, and sends what it changed to all others (S4-04 to S4-11).

    all         what was changed in ``every`` rows goes to every peer, which adds it to its own weights
    owned       it goes to the owners of its keys; each of them adds up what comes, and sends that to all

Nobody waits for an answer. Who comes asks any one peer who is here, is entered by all, and copies a model with its version; who is
lost is left out, and what it had said reaches all of the others or none. So when everything that was said is heard, all have the
same weights, up to the order in which numbers were added.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from shoal.errors import Invalid
from shoal.strategy import Strategy, register


@register
class PeerToPeer(Strategy, frozen=True, tag="peer-to-peer", kw_only=True):
    """Everybody learns, and tells all others."""

    runs: ClassVar[str] = "shoal.strategies.peers.run"
    has_links: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    can_be_watched: ClassVar[bool] = True

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot
    every: int = 200  # own rows between two times that it tells
    send: Literal["all", "owned"] = "all"

    def __post_init__(self) -> None:
        if self.every is True or not 1 <= self.every <= 1 << 30:
            raise Invalid(f"strategy.every={self.every}: needs 1 to {1 << 30:,} rows")
