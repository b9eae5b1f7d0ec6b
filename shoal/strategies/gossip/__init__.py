"""Gossip: every worker has a model, and takes means with its neighbours (Lian et al., 2017).

    sync        in rounds, all at once: X(k+1) = X(k) W - step * G(X(k)); the gradient is taken
                at the weights before the mean
    async       in pairs: a worker that has taken a step meets one neighbour, and both continue from
                the mean of the two

Where links go one way only, shares of the weights travel (push-sum). The loss is that of the mean
of all models, which no worker has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.data.split import EVEN, By
from shoal.errors import Invalid
from shoal.strategy import Strategy, register

if TYPE_CHECKING:
    from shoal.job import Job
    from shoal.strategies.gossip.topology import Graph

PUBLIC = (
    "compute_queue",
    "controller",
    "model",
    "pairwise",
    "synchronous",
    "topology",
    "worker",
)  # for other packages; the other modules are private

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
    edges: str = ""  # of file: a line for each link, "0 1", or one-way "0 -> 1"
    mode: Literal["sync", "async"] = "sync"
    start: Literal["same", "own"] = "same"
    split: By = "even"  # which worker learns from which rows
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

    def graph(self, nodes: int | None, seed: int) -> Graph:
        """The graph of so many workers; None: as many as the file names."""
        from shoal.strategies.gossip.topology import Graph

        graph = Graph.of(self.topology, nodes, seed, self.degree, self.edges)
        if graph.directed and self.mode == "async":
            raise Invalid(
                f"{self.edges or f'topology={self.topology}'} has links that go one way, and two who take their mean "
                f"must hear each other: strategy.mode=sync, or links that go both ways"
            )
        return graph

    def check_here(self, job: Job) -> None:
        self.graph(job.workers, job.seed).check(self.allow_disconnected)
