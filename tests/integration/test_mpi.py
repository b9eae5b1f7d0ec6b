"""Ranks of mpirun need only the wheels, and shoal or a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mpi4py")

import shoal
from shoal.errors import Invalid
from shoal.events import Evaluated, RunEvent
from shoal.job import Job
from shoal.launch import mpirun_rank
from shoal.settings_tree import changed
from shoal.simulation.reference import serial
from shoal.strategies.averaging import mpi
from shoal.strategies.averaging.mpirun import main as rank_main
from shoal.testing.watch import Watched, watch
from tests.support import PATIENCE

JOB: dict[str, Any] = {
    "data": {"source": "rcv1-like", "rows": 1_000, "features": 1_000, "batch": 20},
    "strategy": {"name": "averaging", "every": 4},
    "stop": {"epochs": 2},
    "launch": {"how": "mpi"},
}
pytestmark = pytest.mark.usefixtures("mpi_memory")
SETTINGS = ("--set", "data.rows=1000", "--set", "data.features=1000", "--epochs", "2")


def job(**changes: Any) -> Job:
    return Job.of(changed(JOB, {name.replace("__", "."): value for name, value in changes.items()}))


@cache
def over_the_store(workers: int) -> Watched:
    return watch(job(workers=workers, launch__how="threads"))


def over_gloo(workers: int) -> Watched:
    pytest.importorskip("torch")
    return watch(job(workers=workers, launch__how="processes", strategy__over="gloo"))


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE)


def mpirun(ranks: int, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    start = [str(mpi.needs_mpi()), *root, "--oversubscribe", "-n", str(ranks)]
    return run(*start, sys.executable, "-m", "shoal", "train", *words, cwd=cwd)


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.soak) for ranks in (3, 4, 5))])
def test_a_mean_over_mpi_is_the_mean_over_the_store_and_over_gloo_to_rounding(ranks: int) -> None:
    found = watch(job(workers=ranks))
    found.check_counted_once()
    for expected in (over_the_store(ranks), over_gloo(ranks)):
        np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    assert found.summary["bytes_sent"] > 0


@pytest.mark.soak
def test_all_reduce_over_mpi_takes_the_steps_of_a_sync_run() -> None:
    found = watch(job(strategy="allreduce", workers=3))
    found.check_counted_once()
    assert found.workload.steps == 2 * 17  # fifty slots, three at a time
    np.testing.assert_allclose(found.weights, serial(found.job, found.dataset), rtol=2e-4, atol=2e-6)


def test_a_run_that_shoal_starts_with_mpirun_is_a_run_as_any_other(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path_factory.mktemp("mpi")  # a short name, because a socket is created there
    monkeypatch.setattr("shoal.strategies.averaging.mpirun.SHARED", shared)
    events: list[RunEvent] = []
    done = shoal.train(Job.of(JOB), workers=2, out=tmp_path / "run", on_event=events.append)
    again = shoal.Run.load(tmp_path / "run")
    assert [event for event in events if isinstance(event, Evaluated)] == [
        event for event in again.events if isinstance(event, Evaluated)
    ]
    assert done.summary["workers"] == 2 and done.summary["examples"] == 2_000
    assert done.summary["test_loss"] == again.summary["test_loss"]
    assert done.summary["cpu_seconds"] > 0
    assert not list(shared.iterdir())


@pytest.mark.slow
def test_of_ranks_that_mpirun_started_the_first_runs_the_command_and_the_others_are_silent(tmp_path: Path) -> None:
    done = mpirun(2, "rcv1-like", "--strategy", "averaging", "--workers", "7", *SETTINGS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 ranks, so workers=2, whatever the job says" in done.stderr
    assert done.stdout.count("result  ") == 1
    (folder,) = (tmp_path / "runs").iterdir()
    assert shoal.Run.load(folder).summary["workers"] == 2


@pytest.mark.slow
def test_what_is_wrong_under_mpirun_is_said_once_and_ends_all_ranks(tmp_path: Path) -> None:
    done = mpirun(2, "rcv1-like", "--strategy", "async", *SETTINGS, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("Error") == 1 and "does not run over MPI" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "async"}, "'async' does not run over MPI"),
        ({"strategy.over": "gloo"}, "strategy.over='gloo' does not run over MPI"),
    ],
)
def test_what_cannot_run_over_mpi_is_refused_before_anything_starts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        shoal.train(Job.of(changed(JOB, changes)))


def test_without_mpi_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Invalid, match=r"MPI needs mpi4py, not installed here: pip install 'shoal\[mpi\]'"):
        shoal.train(Job.of(JOB))


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "5", "PMIX_NAMESPACE": "one"},
            mpirun_rank.MpirunRank(3, 5),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, mpirun_rank.MpirunRank(0, 2)),
        # Left over from an mpirun that has ended.
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "5"}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),  # a Slurm step of one process
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "SHOAL_MPI": "1"}, mpirun_rank.MpirunRank(0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": "5", "PMIX_NAMESPACE": "one"}, None),
        ({"OMPI_COMM_WORLD_RANK": "9" * 99, "OMPI_COMM_WORLD_SIZE": "5", "PMIX_NAMESPACE": "one"}, None),
    ],
    ids=str,
)
def test_a_process_knows_by_its_variables_whether_mpirun_started_it(variables: dict[str, str], found: object) -> None:
    assert mpirun_rank.rank(variables) == found


def test_what_a_killed_rank_leaves_lies_in_a_folder_of_the_test(mpi_memory: Path) -> None:
    done = run(sys.executable, "-c", "import os; from mpi4py import MPI; os.kill(os.getpid(), 9)", cwd=mpi_memory)
    assert done.returncode == -9
    assert [path.name.partition(".")[0] for path in mpi_memory.iterdir()] == ["sm_segment"]


def test_variables_that_an_mpirun_has_left_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "3")
    done = run(sys.executable, "-m", "shoal", "train", "rcv1-like", "--strategy", "averaging", *SETTINGS, cwd=tmp_path)
    assert done.returncode == 2
    assert "say that this is rank 1 of 3, and MPI that it is rank 0 of 1: they are left from another one" in done.stderr


@pytest.mark.slow
def test_in_a_script_that_mpirun_starts_many_times_train_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    with pytest.raises(Invalid, match=r"each would train a run of its own: let the command do it .mpirun -n 3"):
        shoal.train(Job.of(JOB))


def test_a_rank_whose_caller_has_ended_leaves_nothing_and_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    own = tmp_path / "own"
    own.mkdir()
    assert rank_main(own, None, "") == 1
    assert not own.exists()


@pytest.mark.parametrize("over", ["mpi", "gloo"])
def test_threads_that_would_be_processes_are_refused(over: str) -> None:
    of = changed(JOB, {"strategy": "allreduce", "strategy.over": over, "launch.how": "threads"})
    with pytest.raises(Invalid, match="every rank is a process") as refused:
        shoal.train(Job.of(of))
    assert "store" not in str(refused.value)
