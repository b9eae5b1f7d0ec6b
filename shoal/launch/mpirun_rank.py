"""Reads this process's MPI rank from its environment, before anything heavy is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

_VARIABLES = (
    # Open MPI; the last is its launcher's
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"),
    ("PMI_RANK", "PMI_SIZE", "PMI_RANK"),  # MPICH and its relatives
)
OURS = "SHOAL_MPI"  # set where shoal itself started mpirun
_DIGITS = 9
REFUSED = 2  # click's exit code for wrong usage


@dataclass(frozen=True, slots=True)
class MpirunRank:
    number: int
    size: int


def rank(variables: Mapping[str, str] | None = None) -> MpirunRank | None:
    """This process's rank; None if mpirun did not start it, or started only it."""
    known = os.environ if variables is None else variables
    for *names, launcher in _VARIABLES:
        number, size = (known.get(name, "") for name in names)
        if number.isdecimal() and size.isdecimal() and max(len(number), len(size)) <= _DIGITS and known.get(launcher):
            return MpirunRank(int(number), int(size)) if int(size) > 1 or known.get(OURS) else None
    return None


def refuse(why: str) -> NoReturn:
    """End a rank that cannot take part, as click ends a command with wrong usage."""
    print(f"Error: {why}", file=sys.stderr)
    sys.exit(REFUSED)
