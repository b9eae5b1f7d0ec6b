"""The kernel kills a server that reached its memory limit (F33, F5).

It is replaced like any killed server, and the reason is reported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal import limits
from shoal.launch.process_pool import ExitReasons
from shoal.launch.processes import ProcessCluster
from tests.support import PATIENCE
from tests.support.sandbox import soon

_OLD, _NEW = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")  # cgroups v1 and v2
LIMIT = 64 * limits.MB


class Cage:
    """Limits the memory that a group of processes may take together from now on."""

    def __init__(self, most: int) -> None:
        new = (_NEW / "cgroup.controllers").exists()
        self._folder = (_NEW if new else _OLD) / f"shoal-{os.getpid()}"
        self._folder.mkdir()
        (self._folder / ("memory.max" if new else "memory.limit_in_bytes")).write_text(str(most))
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):  # where swap is counted
            with contextlib.suppress(OSError):
                (self._folder / swap).write_text("0" if new else str(most))

    def add(self, pid: int) -> None:
        (self._folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        def gone() -> bool:
            with contextlib.suppress(OSError):  # a killed process is in it until it is reaped
                self._folder.rmdir()
            return not self._folder.exists()

        assert soon(gone)


@pytest.fixture
def cage() -> Iterator[Cage]:
    if os.geteuid() != 0:
        pytest.skip("a memory cgroup needs root")
    try:
        cage = Cage(LIMIT)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield cage
    cage.remove()


@pytest.mark.soak
def test_a_server_whose_memory_ran_out_is_made_up_for_and_the_reason_is_said(cage: Cage) -> None:
    """F33: backups on other servers take over, with every acknowledged push."""
    endings: dict[str, str] = {}
    with shoal.local(servers=3, copies=2, processes=True) as cluster, cluster.client() as kv:
        assert isinstance(cluster, ProcessCluster)
        cluster.on_ended = endings.__setitem__
        kv.create("w", shoal.Sparse(keys=1_000_000, width=256))
        before = cluster.pids["server-0"]
        cage.add(before)
        rows, pushed = 20_000, 0  # 20 MB at a time, two thirds of it for each server
        while "server-0" not in endings and pushed < 40:
            keys = np.arange(pushed * rows, (pushed + 1) * rows)
            kv.push("w", keys, np.ones((rows, 256), np.float32)).result(PATIENCE)
            pushed += 1
        assert soon(lambda: "server-0" in endings)
        print(f"after {pushed} pushes: {endings['server-0']}")
        assert endings["server-0"].startswith("its process ended (killed by signal 9; the kernel killed a process")
        assert soon(lambda: cluster.pids.get("server-0", before) != before)  # it was restarted
        first = kv.pull("w", np.arange(0, pushed * rows, rows)).result(PATIENCE)
        assert (first == 1.0).all()


def test_a_kill_is_put_down_to_want_of_memory_only_when_the_kernel_has_counted_one(tmp_path: Path) -> None:
    counts = tmp_path / "vmstat"
    counts.write_text("oom_kill_other 9\noom_kill 3\n")
    endings = ExitReasons(counts)
    assert endings.how(-9) == "killed by signal 9"
    counts.write_text("oom_kill_other 9\noom_kill 4\n")
    assert endings.how(-15) == "killed by signal 15"
    assert "for lack of memory" in endings.how(-9)
    assert endings.how(-9) == "killed by signal 9"  # reported once
    assert endings.how(3) == "exit code 3"
    assert ExitReasons(tmp_path / "none").how(-9) == "killed by signal 9"
