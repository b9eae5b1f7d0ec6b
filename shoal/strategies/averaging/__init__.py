"""Averaging: ranks learn alone, then take the mean. All-reduce: they sum gradients.

    every = "end"   one mean, at the end: PSGD (Zinkevich et al., 2010)
    every = H       a mean after H steps of each rank: local SGD

The mean is weighted by the rows that were learned from since the last one, so shards may be uneven.
With ``start = "own"`` every rank begins with weights of its own: a known mistake, since the mean of
such networks is no better than chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.errors import Invalid
from shoal.strategy import Strategy, register

if TYPE_CHECKING:
    from shoal.job import Job

PUBLIC = (
    "mpi",
    "shards",
)  # for other packages; the other modules are private

Over = Literal["mpi", "gloo", "store"]


@register
class Averaging(Strategy, frozen=True, tag="averaging", kw_only=True):
    """Learn alone for a while, then take the mean of all."""

    runs: ClassVar[str] = "shoal.strategies.averaging.run"
    may_use_mpi: ClassVar[bool] = True

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot
    every: int | Literal["end"] = 16  # own steps between two means
    over: Over | None = None  # mpi under mpirun, otherwise the store
    start: Literal["same", "own"] = "same"
    state: Literal["average", "reset"] = "average"  # of the update rule, at a mean
    shares: list[float] = []  # of the rows, one number for each rank; by default equal

    def __post_init__(self) -> None:
        if self.every != "end" and (self.every is True or not 1 <= self.every <= 1 << 53):
            raise Invalid(f"strategy.every={self.every}: needs 1 to 2**53 steps, or 'end'")
        if any(not 0 < share < float("inf") for share in self.shares):
            raise Invalid(f"strategy.shares={self.shares}: needs numbers above 0")

    def has_servers(self, job: Job) -> bool:
        return over_of(job) == "store"


@register
class AllReduce(Strategy, frozen=True, tag="allreduce", kw_only=True):
    """Every rank has all weights; each step is the mean of their gradients."""

    runs: ClassVar[str] = "shoal.strategies.averaging.run"
    may_use_mpi: ClassVar[bool] = True

    combine: Literal["mean", "sum"] = "mean"
    over: Literal["mpi", "gloo"] | None = None  # mpi under mpirun, otherwise gloo
    ddp: bool = True  # of modules over gloo: use DistributedDataParallel

    @property
    def in_steps(self) -> bool:
        return True


def over_of(job: Job) -> Over:
    """How ranks sum."""
    assert isinstance(job.strategy, Averaging | AllReduce)
    if job.launch.how == "mpi":
        return "mpi"
    return job.strategy.over or ("store" if isinstance(job.strategy, Averaging) else "gloo")
