"""Peer to peer: every worker has the whole model and sends its changes to all others.

    all         the changes of ``every`` rows go to every peer, which adds them to its own weights
    owned       they go to the owners of their keys; each owner adds up what arrives, and sends sums
                to all

No peer waits for an answer. A newcomer asks any peer who is here, is entered by all, and copies a
model with its version. A peer that is lost is left out; what it had published reaches all of the
others or none. So when all has been heard, all peers have the same weights, up to the order of
additions.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from shoal.errors import Invalid
from shoal.strategy import Strategy, register

PUBLIC = ("compute", "join", "leader", "mesh", "peer", "run_log")


@register
class PeerToPeer(Strategy, frozen=True, tag="peer-to-peer", kw_only=True):
    """The settings of a peer-to-peer run."""

    runs: ClassVar[str] = "shoal.strategies.peers.run"
    observer: ClassVar[str] = "shoal.strategies.peers.observer"
    has_links: ClassVar[bool] = True
    mixes: ClassVar[bool] = True
    can_be_watched: ClassVar[bool] = True

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot
    every: int = 200  # own rows between two times that a peer publishes its changes
    send: Literal["all", "owned"] = "all"

    def __post_init__(self) -> None:
        if self.every is True or not 1 <= self.every <= 1 << 30:
            raise Invalid(f"strategy.every={self.every}: needs 1 to {1 << 30:,} rows")
