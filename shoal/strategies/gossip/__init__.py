"""Gossip: every worker has a model of its own, and takes means with its neighbours in a graph (Lian et al., 2017; S3-08 to S3-10).

    sync        round after round, all at once: X(k+1) = X(k) W - step * G(X(k)), the gradient at the weights before the mean
    async       two at a time: a worker that has taken a step meets one neighbour, and both go on from the mean of the two

W has Metropolis weights, which every worker knows from its neighbours alone. Where links go one way only, shares of the weights travel
instead, and each divides what it has by its share (push-sum). The loss that is told is that of the mean of all models, which is
nobody's; the best and the worst of them, and how far they are from it, stand beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.data.split import EVEN, By
from shoal.errors import Invalid
from shoal.strategy import Strategy, register

if TYPE_CHECKING:
    from shoal.job import Job

Topology = Literal["ring", "one-way", "torus", "star", "complete", "exponential", "random", "file"]


@register
class Gossip(Strategy, frozen=True, tag="gossip", kw_only=True):
    """Means with neighbours, no server."""

    runs: ClassVar[str] = "shoal.strategies.gossip.run"
    has_links: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot
    topology: Topology = "ring"
    degree: int = 3  # of random: links of each
    edges: str = ""  # of file: a line for each link, "0 1", or "0 -> 1" where it goes one way
    mode: Literal["sync", "async"] = "sync"
    start: Literal["same", "own"] = "same"
    split: By = "even"  # who learns from which rows
    alpha: float = 0.5  # of dirichlet
    allow_disconnected: bool = False  # to see it fail

    def __post_init__(self) -> None:
        if not 1 <= self.degree <= 1024:
            raise Invalid(f"strategy.degree={self.degree}: needs 1 to 1024 links")
        if not 0 < self.alpha <= EVEN:
            raise Invalid(f"strategy.alpha={self.alpha}: needs a number above 0, at most {EVEN:g}")
        if (self.topology == "file") != bool(self.edges):
            raise Invalid(
                "strategy.topology='file' and strategy.edges=PATH go together: give both, or take another topology"
            )

    def check_here(self, job: Job) -> None:
        from shoal.strategies.gossip.topology import Graph

        Graph.of(self, job.workers, job.seed).check(self.allow_disconnected)
