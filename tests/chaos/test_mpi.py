"""Ranks of mpirun are killed: the others go on as a smaller group, or all end cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mpi4py")

import shoal
from shoal.events import Gone, RunEvent, Started, Warned
from shoal.job import Job
from shoal.run.folder import EventLog
from shoal.settings_tree import changed
from shoal.strategies.averaging import mpi
from shoal.strategies.averaging.mpirun import MpirunRun
from shoal.testing.watch import kill, reach, watch
from shoal.training.tracked_run import RunHandle
from tests.support import PATIENCE
from tests.support.sandbox import is_gone, soon

pytestmark = pytest.mark.usefixtures("mpi_memory")
JOB: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": 3_000, "features": 2_000, "batch": 20},  # 150 slots
    "strategy": {"name": "averaging", "every": 4},
    "stop": {"epochs": 12},
    "workers": 3,
    "launch": {"how": "mpi"},
}
TOTALS = 30
DIES = f"""
import os, sys, zlib
import numpy as np
from shoal.strategies.averaging import mpi

here = mpi.world()
group = here.group()
dies = dict(tuple(map(int, one.split(":"))) for one in sys.argv[1:])  # rank: before which sum
found = 0
for number in range({TOTALS}):
    if dies.get(group.rank) == number:
        os.kill(os.getpid(), 9)
    vector = np.full(5_003, 0.1 * (group.rank + 1) * (number + 1), np.float32)
    found = zlib.crc32(group.total(vector).tobytes(), found)
group.finish()
print(f"{{group.rank}}: living {{group.living}}, all sums {{found:08x}}", flush=True)
here.leave(0)
"""


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


@pytest.mark.parametrize(
    "dies",
    [
        pytest.param(["1:0", "3:15", f"2:{TOTALS - 1}"], id="first, middle and last"),
        pytest.param(["1:7", "3:7"], id="two at once", marks=pytest.mark.soak),
    ],
)
def test_whenever_ranks_die_the_others_have_the_same_sums(dies: list[str], tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    start = [str(mpi.needs_mpi()), *root, "--oversubscribe", "--with-ft", "ulfm", "-n", "5"]
    done = subprocess.run(
        [*start, sys.executable, str(script), *dies], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    living = sorted({0, 1, 2, 3, 4} - {int(one[0]) for one in dies})
    said = sorted(done.stdout.splitlines())
    assert [line.partition(":")[0] for line in said] == [str(rank) for rank in living]
    assert len({line.partition(":")[2] for line in said}) == 1, said
    assert f"living {living}" in said[0]


@pytest.mark.parametrize(
    "strategy",
    [
        {"strategy__every": 4},
        *(pytest.param(one, marks=pytest.mark.soak) for one in ({"strategy__every": "end"}, {"strategy": "allreduce"})),
    ],
    ids=str,
)
def test_a_killed_rank_leaves_its_slots_to_the_others(strategy: dict[str, Any]) -> None:
    run = watch(job(**strategy), lambda training: kill(training, "worker-1", 0.3))
    assert not run.outcome.failed, run.outcome.why
    assert [(event.name, event.role, event.why) for event in run.all(Gone)] == [
        ("worker-1", "worker", "its process ended")
    ]
    assert run.summary["workers_lost"] == 1
    run.check_counted_once()


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["rank 0", "mpirun"])
def test_without_rank_0_or_mpirun_all_end_and_nothing_is_left(victim: str) -> None:
    pids: list[int] = []
    folders: list[Path] = []

    def break_it(training: RunHandle) -> None:
        assert isinstance(training, MpirunRun) and training._process is not None and training._own is not None
        folders.append(training._own)
        assert training._own.exists()
        reach(training, 0.2)
        pids.extend([*training.pids.values(), training._process.pid])
        os.kill(training.pids["worker-0"] if victim == "rank 0" else training._process.pid, signal.SIGKILL)

    run = watch(job(stop__epochs=1_000), break_it)
    assert run.outcome.failed and "--resume" in run.outcome.why
    # The best model that was evaluated.
    assert run.outcome.judged is not None and run.outcome.judged.loss == min(run.losses)
    assert ("worker-0" if victim == "rank 0" else "mpirun ended (killed by signal 9)") in run.outcome.why
    assert soon(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert not folders[0].exists()


@pytest.mark.soak
def test_a_stopped_rank_is_named_and_the_others_go_on_when_it_is_ended() -> None:
    def stop(training: RunHandle) -> None:
        assert isinstance(training, MpirunRun) and isinstance(training._listener, EventLog)
        log = training._listener
        reach(training, 0.2)
        pid = training.pids["worker-2"]
        os.kill(pid, signal.SIGSTOP)
        assert soon(lambda: any(isinstance(event, Warned) for event in log.events))
        os.kill(pid, signal.SIGKILL)

    run = watch(job(), stop)
    assert not run.outcome.failed
    (warned,) = run.all(Warned)
    assert "rank 2" in warned.what and "it is stopped; resume it (kill -CONT" in warned.what
    assert [event.name for event in run.all(Gone)] == ["worker-2"]
    run.check_counted_once()


@pytest.mark.soak
def test_an_interrupted_run_is_taken_up_again_over_something_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shoal", "train", "rcv1-like", "--strategy", "averaging", "--on", "mpi"]
    settings = ["--set", "data.rows=3000", "--set", "data.features=2000", "--epochs", "100000", "--workers", "2"]
    out = tmp_path / "run"
    with subprocess.Popen([*command, *settings, "--out", str(out)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " epoch " in line and " epoch 0 " not in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert f"go on with it: shoal train --resume {out}" in said
    events: list[RunEvent] = []
    steps = shoal.Run.load(out).summary["steps"]
    run = shoal.train(
        resume=out, workers=3, on_event=events.append, settings={"launch.how": "threads", "stop.steps": steps + 20}
    )
    assert run.summary["resumed"] == 1 and run.summary["steps"] == steps + 20
    assert [event.workers for event in events if isinstance(event, Started)] == [3]


@pytest.mark.slow
def test_ranks_end_with_the_process_that_was_called() -> None:
    endless = repr(changed(JOB, {"stop.epochs": 1e6}))
    code = f"import shoal; shoal.train(shoal.job.Job.of({endless}), on_event=lambda event: print(event, flush=True))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Progress" in line:
                break
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4  # mpirun and three ranks
        (folder,) = {word for one in below for word in one.cmdline() if Path(word).name.startswith("shoal-mpi-")}
        process.kill()
    assert soon(lambda: all(is_gone(one.pid) for one in below))
    assert soon(lambda: not Path(folder).exists())
