"""The same seed is the same run, event for event, in any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
import json
from shoal.simulation.run import simulate
print(json.dumps([simulate(seed).digest for seed in range(4)]))
"""


def test_four_seeds_give_the_same_event_hash_under_different_hash_seeds() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
        )
        for seed in ("1", "4242")
    ]
    first, second = (json.loads(run.communicate(timeout=200)[0]) for run in runs)
    assert len(first) == 4
    assert len(set(first)) == 4, "different seeds are different runs"
    assert first == second
