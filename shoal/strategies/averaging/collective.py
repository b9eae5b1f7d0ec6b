"""What ranks have in common: one call, by which each gives a vector and all get the sum.

    group.total(mine)       everybody calls it equally often, with vectors of one length

The sum is the very same bits at each. A rank that dies meanwhile is in it or is not, the same for all: whoever wants to know puts
a cell for each rank into the vector. Over gloo nobody can go on without it, and ``RankLost`` is raised.

``Collective`` is what one rank has in hand; ``RankProcesses`` is what rank 0, the process that was called, knows of the rest: how they are
started, why one is gone, and how they end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from shoal.models.linear import Floats


class Collective(Protocol):
    """One rank's."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int:
        """Ranks at the start; some may be gone."""

    @property
    def sent(self) -> int:
        """Bytes, by this rank."""

    @property
    def received(self) -> int: ...

    def total(self, vector: Floats) -> Floats:
        """The sum over all living ranks; the caller's vector may be overwritten, and may be what is returned."""

    def close(self) -> None:
        """This rank takes no part any more."""


class RankProcesses(Protocol):
    """The ranks besides the one that was called, which is rank 0."""

    @property
    def pids(self) -> dict[str, int]:
        """Their processes by name, worker-1 and so on, as far as they are known and run."""

    def start(self) -> Collective:
        """Bring them up; what rank 0 has in hand. All of them are in it, or this raises."""

    def why(self, rank: int) -> str:
        """It is gone, since it was not in a total: how it ended."""

    def finish(self) -> None:
        """They have heard that it is over, and end by themselves."""

    def close(self) -> None:
        """They end now, however far they are; whatever was made for them is removed."""


def name_of(rank: int) -> str:
    return f"worker-{rank}"
