"""The same seed gives the same run, event for event, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from shoal.simulation.store_scenario import STORE
print(json.dumps([STORE.simulate(seed).digest for seed in range(int(sys.argv[1]))]))
"""


@pytest.mark.parametrize("seeds", [4, pytest.param(20, marks=pytest.mark.soak)])
def test_seeds_give_the_same_event_hash_under_different_hash_seeds(seeds: int) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(seeds)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
        )
        for seed in ("1", "4242")
    ]
    first, second = (json.loads(run.communicate(timeout=200)[0]) for run in runs)
    assert len(first) == seeds
    assert len(set(first)) == seeds, "different seeds are different runs"
    assert first == second
