"""What a strategy on servers provides: its tables, its batches, and its algorithm.

The algorithm is a coroutine over one ``SlotStream`` of a worker. It reads like the paper, and runs
on threads, on processes and in the simulator.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, cast

from shoal.strategy import Strategy
from shoal.tables import Apply, Dense, Sparse, Table, Update

if TYPE_CHECKING:
    from shoal.data.slots import SlotOrder
    from shoal.job import Job
    from shoal.models.learner import Learner
    from shoal.nodes.trainer import SlotStream

_DENSE_ROWS = 1 << 24  # up to here a table is dense: no index, and a range is one array


class ServerStrategy(Strategy, frozen=True, kw_only=True):
    """A strategy whose model lies on servers, and whose slots a scheduler deals."""

    runs: ClassVar[str] = "shoal.strategies.parameter_server.run"
    on_servers: ClassVar[bool] = True
    can_be_watched: ClassVar[bool] = True

    def table(self, rows: int, update: Update, slots_per_pass: int) -> Table:
        apply, max_delay = self.consistency(slots_per_pass)
        if rows <= _DENSE_ROWS:
            return Dense(rows=rows, update=update, apply=apply, max_delay=max_delay)
        return Sparse(keys=rows, update=update, apply=apply, max_delay=max_delay)

    @abstractmethod
    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        """When a push counts, and how many steps workers may be apart."""

    @abstractmethod
    async def run(self, stream: SlotStream) -> None:
        """Train on slot after slot, until it is over."""

    def batches(self, job: Job, learner: Learner, slots: SlotOrder) -> Any:
        """A source of batches of its own (``BatchSource``); None: the usual one."""
        return None


def servers_strategy(job: Job) -> ServerStrategy:
    assert job.strategy.on_servers
    return cast("ServerStrategy", job.strategy)
