"""What can be simulated: a cluster with servers, workers that gossip, peers. Each is a module, and all have the same door.

simulate(seed, trace)   one seed, from its plan to the verdict
MUTANTS                 broken variants, by name: each gives a context in which it is in place
SOMETIMES               what must happen in some seed or other, or the faults are not reaching where they should
NODES                   the classes that ship and that run in it: a test holds this against what does run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, cast

from shoal.simulation.names import MODULES
from shoal.simulation.run import Verdict


class Scenario(Protocol):
    """The door."""

    MUTANTS: dict[str, Callable[[], Any]]
    SOMETIMES: tuple[str, ...]
    NODES: tuple[type[Any], ...]

    def simulate(self, seed: int, trace: Callable[[str], None] | None = None) -> Verdict: ...


def kind(name: str) -> Scenario:
    return cast("Scenario", import_module(f"shoal.simulation.{MODULES[name]}"))


@contextmanager
def mutated(of: str, mutant: str) -> Iterator[None]:
    """Run with this mutant in place of the real thing; an empty name changes nothing."""
    if not mutant:
        yield
        return
    with kind(of).MUTANTS[mutant]():
        yield
