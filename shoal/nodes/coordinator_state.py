"""What the parts of a coordinator see of it, and of each other."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from shoal.cluster.roster import Roster
from shoal.nodes.scheduler import Scheduler
from shoal.wire.effects import Effect
from shoal.wire.messages import View


class CoordinatorState(Protocol):
    """A coordinator, as its rebalancer, its checkpoints and its tables know it."""

    roster: Roster
    view: View  # the newest that is in the journal
    scheduler: Scheduler | None
    counts: Counter[str]

    @property
    def is_durable(self) -> bool: ...
    @property
    def is_checkpointing(self) -> bool: ...
    def let_go(self, now: int, name: str) -> list[Effect]: ...
    def expel(self, name: str, why: str) -> list[Effect]: ...
