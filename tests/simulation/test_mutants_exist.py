"""A mutant that replaces nothing would be caught by nobody: each names a method or a value that is there."""

from __future__ import annotations

import pytest

from shoal.simulation import names, scenarios
from shoal.simulation.disk import CHECKPOINT_MUTANTS

ALL = [(of, name) for of in names.MODULES for name in scenarios.kind(of).MUTANTS]


@pytest.mark.parametrize(("of", "name"), ALL)
def test_a_mutant_replaces_what_is_there(of: str, name: str) -> None:
    with scenarios.kind(of).MUTANTS[name]():
        pass


@pytest.mark.parametrize("name", CHECKPOINT_MUTANTS)
def test_a_mutant_of_checkpoints_replaces_what_is_there(name: str) -> None:
    with CHECKPOINT_MUTANTS[name]():
        pass
