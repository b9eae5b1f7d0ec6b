"""Several threads of one process may decode jobs at the same time."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
from shoal.job import Job

sys.setswitchinterval(1e-6)
gate = threading.Barrier(4)

def begin():
    gate.wait()
    Job.of({"data": "clicks", "strategy": "sync"})

threads = [threading.Thread(target=begin) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_jobs_may_be_read_by_several_threads_at_once_in_a_fresh_process() -> None:
    """Without resolve_types this ended in a segmentation fault more often than not."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
