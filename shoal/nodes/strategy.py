"""What a worker offers to a strategy that runs on servers, and the tables that such a run has.

The algorithm of a strategy is a coroutine on one ``StrategyContext`` of slots. It reads like the paper, and runs on threads, on
processes and in the simulator alike.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from shoal.store.client.client import Client
from shoal.store.client.task import Task
from shoal.strategy import Strategy
from shoal.tables import Apply, Dense, Sparse, Table, Update

if TYPE_CHECKING:
    from shoal.data.slots import SlotOrder
    from shoal.job import Job
    from shoal.models.learner import Learner

_DENSE_ROWS = 1 << 24  # up to here all rows are alive from the start: no index, and a range is one piece of memory

TABLE = "weights"
TALLY = "tally"  # where there is such a table, every slot adds 1 to its own key: the account of what was counted
Slot = tuple[int, int]  # pass, number


class SlotRows(Protocol):
    """The rows of a slot, and the keys whose weights they need."""

    @property
    def listed(self) -> Any:
        """A KeyList or a KeyRange."""

    @property
    def nonzeros(self) -> int:
        """How long a gradient takes, more or less."""

    def __len__(self) -> int: ...


class StrategyContext(Protocol):
    """What a worker offers to a strategy: slots one after another, and the means to see to them."""

    @property
    def client(self) -> Client: ...

    @property
    def over(self) -> bool:
        """Nothing more will come."""

    def next(self) -> Slot | None:
        """The next slot, if one is here."""

    def put_back(self, slot: Slot | None) -> None:
        """Taken too early: it is the next one again."""

    def more(self) -> Task:
        """Done when there may be another slot, or it is over."""

    def waited(self, task: Task) -> None:
        """This was awaited, and is done: the time since the last such call, or computation, went by for it."""

    def is_void(self, slot: Slot) -> bool:
        """Nobody can compute it: push it empty."""

    def local(self, slot: Slot) -> SlotRows:
        """Its rows, in places of their own key list."""

    def gradient(self, local: SlotRows, weights: Any, mean: bool) -> Task:
        """The summed loss and the gradient."""

    def compute(self, function: Callable[[], Any], cost: int, rows: int) -> Task:
        """Anything else that takes its time: ``cost`` elements, for so many rows."""

    def early(self, local: SlotRows, weights: Any, mean: bool) -> Task | None:
        """The same, while another is computed; None where that would hold up whatever else is to be done."""

    def push(self, slot: Slot, local: SlotRows | None, loss: float, task: Task) -> None:
        """This push is under way: report the slot when it is counted."""

    def leaves(self, slot: Slot) -> bool:
        """Some of its weights are newer than its step: whether somebody else is left to see to it."""

    def admits(self) -> Task:
        """A slot is pushed all the same. Done when whoever deals has noted that: not before may the model have it."""

    def refuse(self, slot: Slot, why: str) -> None:
        """Its gradient cannot be pushed."""


class ServerStrategy(Strategy, frozen=True, kw_only=True):
    """A strategy whose model lies on servers, and whose slots a scheduler deals."""

    runs: ClassVar[str] = "shoal.strategies.parameter_server.run"
    on_servers: ClassVar[bool] = True
    can_be_watched: ClassVar[bool] = True

    def table(self, rows: int, update: Update, slots_per_pass: int) -> Table:
        """The table that holds the weights of a linear model."""
        apply, max_delay = self.consistency(slots_per_pass)
        if rows <= _DENSE_ROWS:
            return Dense(rows=rows, update=update, apply=apply, max_delay=max_delay)
        return Sparse(keys=rows, update=update, apply=apply, max_delay=max_delay)

    @abstractmethod
    def consistency(self, slots_per_pass: int) -> tuple[Apply, int | None]:
        """When a push counts, and how far workers may be apart."""

    @abstractmethod
    async def run(self, lane: StrategyContext) -> None:
        """Slot after slot, until it is over."""

    def shelf(self, job: Job, learner: Learner, slots: SlotOrder) -> Any:
        """Where a worker finds the rows of its slots, where that is not as usual; None: it is."""
        return None


def servers_strategy(job: Job) -> ServerStrategy:
    """The strategy of a run that has servers and a scheduler."""
    assert job.strategy.on_servers
    return cast("ServerStrategy", job.strategy)
