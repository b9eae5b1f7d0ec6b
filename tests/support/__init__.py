"""Test rigs that several tests share, one in each module.

sandbox           runs programs under test and finds every process and file that they leave behind
warm_forkserver   starts the processes of a cluster from one that has its imports
counting          runs the counting model on real processes, checked by the simulator's checker
one_thread_run    runs all nodes of a run in one thread, with no faults
fake_run          plays a run's workers and evaluator by hand, for tests of the scheduler
hosts             makes network namespaces with an address each; packet_link joins them
multi_host        runs a cluster over such hosts
node_process      runs a coordinator or a server in a process of its own
disks             makes a small disk that can stall, fail or fill up
quick             the timing of tests that wait for a death
"""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 150.0  # seconds: a guard against hanging, not a measurement; a busy machine may be slow


def with_root(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment, in which Python finds ``tests.support`` too."""
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))}
