"""``shoal status`` shows a running cluster, and says so where there is none."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.launch.processes import ProcessCluster
from shoal.run.run import execute
from shoal.strategies.parameter_server.run import ServerRun
from shoal.testing.conformance import Candidate
from tests.support.sandbox import soon


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, copies=2, processes=True) as cluster:
        assert isinstance(cluster, ProcessCluster)
        cluster.client("ann").create("w", shoal.Dense(rows=100))
        yield cluster


def test_a_cluster_is_shown_by_its_address(cluster: ProcessCluster) -> None:
    done = CliRunner().invoke(main, ["status", cluster.address, "--ring"])
    assert done.exit_code == 0, done.output
    for what in ("server-0", "server-1", "ann", "table w", "primary", "⠶"):
        assert what in done.output


def test_a_cluster_is_told_as_json_and_to_python(cluster: ProcessCluster) -> None:
    told = json.loads(CliRunner().invoke(main, ["status", cluster.address, "--json"]).output)
    assert told["coordinator"] == cluster.address
    # The observer is not a member.
    assert {one["name"] for one in told["members"]} == {"server-0", "server-1", "ann"}
    segments = cluster.status().segments()
    assert [one["number"] for one in told["segments"]] == [one.number for one in segments]
    assert all({copy.role for copy in one.copies} == {"primary", "backup"} for one in segments)
    assert {copy.lag for one in segments for copy in one.copies} == {0}


def test_a_server_that_does_not_answer_is_named(cluster: ProcessCluster) -> None:
    pid = cluster.pids["server-1"]
    os.kill(pid, signal.SIGSTOP)
    try:
        done = CliRunner().invoke(main, ["status", cluster.address])
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.exit_code == 0
    assert "server-1 does not answer" in done.output


def test_a_run_is_shown_by_its_folder_while_it_runs_and_not_afterwards(tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", list[str]()

    def started(training: ServerRun) -> None:
        # A run that is interrupted before it began leaves nothing.
        assert soon(lambda: training.course.done)
        seen.append(CliRunner().invoke(main, ["status", str(folder)]).output)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(Candidate("async", "processes").job(stop__epochs=1e6), folder, started=started)
    assert "table weights" in seen[0] and "worker-0" in seen[0]
    assert not (folder / "address").exists()
    done = CliRunner().invoke(main, ["status", str(folder)])
    assert (done.exit_code, "has ended" in done.output, "result " in done.output) == (0, True, True)


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("ipc:///nowhere/at-all", 1, "nobody answers at"),
        ("tcp://192.0.2.1:80", 2, "can be reached from other machines"),
        ("tcp://127.0.0.1:port", 2, "is none: give tcp://HOST:PORT"),
        ("ipc://", 2, ""),
        ("no-such://127.0.0.1:1", 2, "is none: give tcp://HOST:PORT"),
        ("no-such-folder", 2, "neither a run's folder nor an address"),
    ],
)
def test_where_nobody_is_that_is_said(where: str, code: int, said: str) -> None:
    done = CliRunner().invoke(main, ["status", where])
    assert (done.exit_code, said in done.output) == (code, True), done.output


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (b"", "is empty: if the run was killed, go on with it: shoal train --resume"),
        (b"\xff\xfe\x00", "has no address in it"),
        (b"ipc:///a\x00b", "has no address in it"),
        (b"ipc:///nowhere/at-all", "if it was killed, go on with it: shoal train --resume"),
    ],
)
def test_a_run_that_was_killed_may_be_taken_up(tmp_path: Path, address: bytes, said: str) -> None:
    (tmp_path / "address").write_bytes(address)
    done = CliRunner().invoke(main, ["status", str(tmp_path)])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    assert said in done.output


@pytest.mark.parametrize("strategy", ["serial", "hogwild"])
def test_a_run_without_a_coordinator_says_where_to_look_instead(tmp_path: Path, strategy: str) -> None:
    (tmp_path / "job.toml").write_text(f'data = "clicks"\nstrategy = "{strategy}"\n')
    done = CliRunner().invoke(main, ["status", str(tmp_path)])
    assert done.exit_code == 1
    assert f"a run by {strategy} has no coordinator" in done.output and f"shoal report {tmp_path}" in done.output
