"""The door of clusters whose servers come and go all the time (see ``kinds``, ``moves_plan`` and ``elastic``)."""

from __future__ import annotations

from collections.abc import Callable

from shoal.simulation.move_mutants import MUTANTS
from shoal.simulation.moves_plan import draw
from shoal.simulation.run import StoreRun, Verdict
from shoal.simulation.store_scenario import NODES

SOMETIMES = (
    "fault: ambush",
    "fault: drain server",
    "coordinator: segments split",
    "fault: far server",
    "fault: freeze server",
    "fault: join server",
    "fault: roll",
    "fault: sluggish coordinator",
    "network: far",
    "moves: named",
    "moves: copied",
    "moves: full",
    "moves: handed",
    "moves: given up",
    "moves: rolled through all servers",
    "moves: servers that left",
    "moves: servers that came back",
    "moves: told that it was handed over",
    "servers that ended: refused",
)


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> Verdict:
    """Run one seed and check everything that can be checked."""
    return StoreRun(draw(seed), trace).verdict()


__all__ = ["MUTANTS", "NODES", "SOMETIMES", "simulate"]
