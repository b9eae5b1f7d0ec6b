"""Each mutant names a method or a value that exists.

A mutant that replaces nothing would never be caught.
"""

from __future__ import annotations

import pytest

from shoal.simulation import SCENARIOS
from shoal.simulation.scenarios import scenario

ALL = [(of, name) for of in SCENARIOS for name in scenario(of).mutants]


@pytest.mark.parametrize(("of", "name"), ALL)
def test_a_mutant_replaces_what_is_there(of: str, name: str) -> None:
    with scenario(of).mutated(name):
        pass
