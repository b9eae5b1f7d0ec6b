"""Hogwild: one model in shared memory, written without locks (Niu et al., NIPS 2011).

    example     every row is a step: read the weights of its keys, change them, no lock
    locked      the same, with one lock around every row, for comparison
    batched     the gradient of a slot at fixed weights, then one step per key, as an async server
    hot_cold    every row is a step; each worker has a copy of the ``hot`` most frequent keys, which
                is merged every ``merge`` rows

Workers share the slots of an epoch, and each slot is computed once. A module knows only
``batched``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from shoal.errors import Invalid
from shoal.strategy import Strategy, register

if TYPE_CHECKING:
    from shoal.data.batch import Ids

PUBLIC = (
    "kernels",
    "loop",
)  # for other packages; the other modules are private

Way = Literal["example", "locked", "batched", "hot_cold"]


@register
class Hogwild(Strategy, frozen=True, tag="hogwild", kw_only=True):
    """One shared model, no locks."""

    runs: ClassVar[str] = "shoal.strategies.hogwild.run"

    combine: Literal["mean", "sum"] = "mean"  # of the examples in a slot, where a slot is one step
    way: Way | None = None  # example; of a module, batched
    hot: int = 2048  # keys, of hot_cold
    merge: int = 256  # rows between two merges of them
    canary: int = 1_024  # updates between two of the cell that counts lost ones; 0: none

    def __post_init__(self) -> None:
        for name, least, most in (("hot", 1, 1 << 20), ("merge", 1, 1 << 20), ("canary", 0, 1 << 30)):
            if not least <= getattr(self, name) <= most:
                raise Invalid(f"strategy.{name}={getattr(self, name)}: needs {least} to {most:,}")


# The desk is an int64 array by which workers share slots and count. Its lines are cache lines: two
# cells on one line would be as slow as one cell for two workers.
LINE = 8  # int64 in a cache line
CURSOR, LIMIT, STOP, LOCK, CANARY = range(5)  # lines of the desk
CELLS = 8  # from this line on, one for each worker
# In a worker's line: slots and rows done, what it added to the canary, updates since.
SLOTS, ROWS, BEATS, TURNS = range(4)


def desk(workers: int) -> tuple[int, int]:
    return CELLS + workers, LINE


def lost(shared: Ids) -> tuple[int, int]:
    """Of the updates of the canary, how many were made and how many of them are not in it."""
    made = int(shared[CELLS:, BEATS].sum())
    return made, made - int(shared[CANARY, 0])
