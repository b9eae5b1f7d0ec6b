"""The rank of this worker process, and its connection to the servers.

``shoal launch`` sets it in the environment; workers that are threads pass ``Place(cluster, rank,
world)``. In a launched process an error of shoal is printed as one line instead of a traceback.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from shoal.client import KV
from shoal.errors import Invalid, ShoalError
from shoal.launch.cluster import Cluster
from shoal.launch.local import connect
from shoal.launch.script import ADDRESS, RANK, SAYS, WORLD
from shoal.limits import SLOTS_PER_STEP
from shoal.tables import Table


@dataclass(frozen=True, slots=True)
class Place:
    """Worker ``rank`` of ``world``, and its cluster or the cluster's address."""

    cluster: Cluster | str
    rank: int
    world: int

    def __post_init__(self) -> None:
        if not 1 <= self.world <= SLOTS_PER_STEP:
            raise Invalid(f"world={self.world}: needs 1 to {SLOTS_PER_STEP} workers")
        if not 0 <= self.rank < self.world:
            raise Invalid(f"rank={self.rank} of {self.world} workers: ranks are 0 to {self.world - 1}")

    @classmethod
    def here(cls) -> Place | None:
        """The place that the launcher set; None without a launcher."""
        if not (address := os.environ.get(ADDRESS)):
            return None
        try:
            return cls(address, int(os.environ[RANK]), int(os.environ[WORLD]))
        except (KeyError, ValueError) as error:
            what = error if isinstance(error, Invalid) else f"{RANK} and {WORLD} are no numbers"
            raise Invalid(f"{ADDRESS} is set, but {what}: start the script with `shoal launch`") from None

    @property
    def name(self) -> str:
        return f"worker-{self.rank}"

    def join(self, role: Literal["client", "worker"], name: str) -> KV:
        if isinstance(self.cluster, str):
            return connect(self.cluster, role, name)
        return self.cluster.worker(name) if role == "worker" else self.cluster.client(name)


def ensure(kv: KV, name: str, spec: Table, create: Callable[[], None] | None = None) -> Table:
    """The table of that name, created now unless another worker has created it."""
    if (there := kv.tables().get(name)) is not None:
        return there
    try:
        kv.create(name, spec) if create is None else create()
    except Invalid:
        if (there := kv.tables().get(name)) is None:
            raise
        return there
    return kv.tables()[name]


def call_at_exit(method: Callable[[], None]) -> None:
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (there := reference()) is not None:
            there()

    atexit.register(call)


def say_errors_in_a_line() -> None:
    """Print shoal's errors in a launched process as one line: script line, fact, next move."""
    if not os.environ.get(ADDRESS) or getattr(sys.excepthook, "__module__", "") == __name__:
        return
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ShoalError):
            usual(kind, error, trace)
            return
        lines = [line for frame, line in traceback.walk_tb(trace) if frame.f_globals.get("__name__") == "__main__"]
        where = f"{os.path.basename(sys.argv[0])}, line {lines[-1]}: " if lines else ""
        print(f"{SAYS}{where}{' '.join(str(error).split())}", file=sys.stderr)

    sys.excepthook = hook
