"""The coordinator's process is killed, stopped and restarted under load (F14, F15, F43).

Push and pull go on without it. When it is back it has the same members and the same tables under
the next term, no node has joined again, and a run ends with every slot counted once.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.data.datasets import load
from shoal.errors import Closed, RunFailed, Unanswered
from shoal.events import Gone, Joined, RunEvent, Started, Stopped
from shoal.job import Job, LaunchSettings
from shoal.launch import processes
from shoal.launch.processes import ProcessCluster
from shoal.nodes.journal import JournalFile
from shoal.run.finished import Run
from shoal.run.run import execute
from shoal.strategies.parameter_server.run import ServerRun
from shoal.testing.conformance import Candidate
from shoal.testing.watch import Watched, reach, watch
from tests.support import PATIENCE
from tests.support.sandbox import Den, soon

STRATEGIES = ["sync", "bounded", "async"]


def job_of(strategy: str, **changes: Any) -> Job:
    """Returns a job that lasts a second or two."""
    return Candidate(strategy, "processes").job(**{"stop__epochs": 15, "evaluate__every": 3.0, **changes})


def term_of(training: ServerRun | ProcessCluster) -> int:
    """Returns the term of the coordinator, or 0 while it does not answer."""
    try:
        return training.look(1.0).term
    except Unanswered:
        return 0


def wait_for_term(training: ServerRun | ProcessCluster, term: int) -> None:
    assert soon(lambda: term_of(training) == term), f"no coordinator of term {term}"


def incarnations(training: ServerRun) -> dict[str, int]:
    return {member.name: member.incarnation for member in training.look().members}


def check_all_is_well(run: Watched) -> None:
    assert not run.outcome.failed, run.outcome.why
    assert len(run.all(Started)) == len(run.all(Stopped)) == 1
    run.check_counted_once()


# ---------------------------------------------------------------- a cluster


@pytest.fixture(params=["ipc", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, processes=True, transport=request.param) as cluster:
        assert isinstance(cluster, ProcessCluster)
        yield cluster


@pytest.mark.variants(slow=["tcp"])
def test_push_and_pull_go_on_while_the_coordinator_is_down_and_it_comes_back_as_it_was(cluster: ProcessCluster) -> None:
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=100))
    before, address = cluster._looking.view(PATIENCE), cluster.address
    cluster.supervisor.delay = 1.0
    os.kill(cluster.pids["coordinator"], signal.SIGKILL)
    assert soon(lambda: "coordinator" not in cluster.pids)
    for number in range(1, 11):
        assert (kv.push_pull("w", slice(0, 100), np.ones(100)).result(PATIENCE) == number).all()
    wait_for_term(cluster, 2)
    after = cluster._looking.view(PATIENCE)
    assert cluster.address == address
    assert (after.members, after.tables, after.number) == (before.members, before.tables, before.number + 1)
    kv.create("v", shoal.Dense(rows=10))  # the client is not fenced, and the coordinator answers it
    assert kv.pull("w", [0]).result(PATIENCE) == [10.0]


@pytest.mark.variants(slow=["tcp"])
def test_who_joins_while_there_is_no_coordinator_waits_for_it(cluster: ProcessCluster) -> None:
    cluster.supervisor.delay = 1.0
    os.kill(cluster.pids["coordinator"], signal.SIGKILL)
    kv = cluster.client()
    kv.create("w", shoal.Dense(rows=10))
    assert kv.push_pull("w", [0], [1.0]).result(PATIENCE) == [1.0]
    assert term_of(cluster) == 2


@pytest.mark.variants(slow=["tcp"])
def test_a_server_that_ended_while_there_was_no_coordinator_is_gone_when_it_is_back(cluster: ProcessCluster) -> None:
    cluster.supervisor.delay = 1.0
    os.kill(cluster.pids["coordinator"], signal.SIGKILL)
    os.kill(cluster.pids["server-1"], signal.SIGKILL)
    wait_for_term(cluster, 2)
    standing = cluster.look()
    assert [member.name for member in standing.members] == ["server-0"]
    assert standing.lost == {"server-1": "its process ended (killed by signal 9)"}


def test_a_server_that_is_to_run_again_joins_as_a_new_one() -> None:
    cluster = ProcessCluster(2, LaunchSettings(), JournalFile(), restart=True)
    with cluster:
        cluster.start()
        kv = cluster.client()
        first, before = cluster.pids["server-0"], {one.name: one.incarnation for one in cluster.look().members}
        os.kill(first, signal.SIGKILL)
        assert soon(lambda: cluster.pids.get("server-0", first) != first)

        def is_back() -> bool:
            now = {one.name: one.incarnation for one in cluster.look().members}
            return now.get("server-0", 0) > before["server-0"] and now["server-1"] == before["server-1"]

        assert soon(is_back)
        kv.create("w", shoal.Dense(rows=100))
        assert set(kv.stats("w")["servers"]) == {"server-0", "server-1"}
        assert cluster.supervisor.restarts == {"server-0": 1}


@pytest.mark.variants(slow=["tcp"])
def test_a_coordinator_that_cannot_come_back_ends_the_cluster_which_says_why(
    cluster: ProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MOST", 2)
    kv = cluster.client()
    Path(cluster._folder, "coordinator.journal").write_bytes(b"somebody's thesis")
    os.kill(cluster.pids["coordinator"], signal.SIGKILL)
    assert soon(lambda: cluster.ended)
    with pytest.raises(Closed, match=r"coordinator was restarted 2 times in 60 s, .*no journal of shoal"):
        kv.tables()


# ---------------------------------------------------------------- a run


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_whose_coordinator_is_killed_twice_counts_every_slot_once(strategy: str) -> None:
    draw = random.Random(f"coordinator {strategy}")
    moments = sorted(draw.uniform(0.05, 0.8) for _ in range(2))
    print(f"{strategy}: killed when {moments} is counted")
    seen: list[dict[str, int]] = []

    def strike(training: ServerRun) -> None:
        for term, at in enumerate(moments, start=1):
            reach(training, at)
            seen.append(incarnations(training))
            training.kill("coordinator")
            wait_for_term(training, term + 1)
        seen.append(incarnations(training))

    run = watch(job_of(strategy), strike)
    check_all_is_well(run)
    assert seen[0] == seen[1]
    # At the very end some may have left; no node has joined again.
    assert seen[2].items() <= seen[0].items()
    assert not [event for event in run.all(Gone) if event.why != "it left"]
    assert len(run.all(Joined)) == 5


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_whose_coordinator_is_killed_often_counts_every_slot_once(strategy: str, seed: int) -> None:
    draw = random.Random(f"often {strategy} {seed}")
    moments = sorted(draw.uniform(0.0, 0.95) for _ in range(5))

    def strike(training: ServerRun) -> None:
        for term, at in enumerate(moments, start=1):
            reach(training, at)
            training.kill("coordinator")
            wait_for_term(training, term + 1)

    check_all_is_well(watch(job_of(strategy), strike))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_loses_its_coordinator_and_a_worker_at_once(strategy: str) -> None:
    def strike(training: ServerRun) -> None:
        reach(training, 0.2)
        training.processes.supervisor.delay = 0.5
        training.kill("coordinator")
        training.kill("worker-1")
        wait_for_term(training, 2)

    run = watch(job_of(strategy), strike)
    assert [(event.name, event.why) for event in run.all(Gone)] == [
        ("worker-1", "its process ended (killed by signal 9)")
    ]
    check_all_is_well(run)


@pytest.mark.variants(soak=["killed-async", "stopped-sync"])
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "async"])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_run_whose_coordinator_is_away_for_long_goes_on_as_far_as_the_deals_reach(strategy: str, how: str) -> None:
    """The coordinator is away for longer than a member may be silent.

    Members that it could not receive messages from meanwhile are not declared dead.
    """
    away = 8.0 if how == "stopped" else 5.5

    def strike(training: ServerRun) -> None:
        reach(training, 0.2)
        before, pids = incarnations(training), training.pids
        training.processes.supervisor.delay = away
        if how == "stopped":
            training.pause("coordinator")
            time.sleep(away)
            training.resume("coordinator")
        else:
            training.kill("coordinator")
        wait_for_term(training, 1 if how == "stopped" else 2)
        training.processes.supervisor.delay = 0.0
        assert incarnations(training).items() <= before.items()
        same = {name for name, pid in training.pids.items() if pids.get(name) == pid}
        assert same >= {"server-0", "server-1"}

    run = watch(job_of(strategy), strike)
    assert not run.all(Gone)
    check_all_is_well(run)


@pytest.mark.slow
def test_a_listener_that_takes_its_time_holds_up_nobody() -> None:
    job = job_of("async")
    slow, told = threading.Event(), list[RunEvent]()

    def listen(event: RunEvent) -> None:
        slow.wait(PATIENCE)
        told.append(event)

    with ServerRun(job, load(job.data, job.seed), listen) as training:
        # All is computed and evaluated, and the listener has not taken a single event.
        assert soon(lambda: training.course.ended)
        assert told == []
        slow.set()
        outcome = training.wait(PATIENCE)
    assert outcome is not None and not outcome.failed
    assert isinstance(told[-1], Stopped)


@pytest.mark.slow
def test_a_coordinator_that_keeps_dying_ends_the_run_which_says_so_and_keeps_what_was_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MOST", 2)

    def strike(training: ServerRun) -> None:
        reach(training, 0.3)
        (tmp_path / "run" / "coordinator.journal").write_bytes(b"somebody's thesis")
        training.kill("coordinator")

    def started(training: ServerRun) -> None:
        threading.Thread(target=strike, args=(training,), daemon=True).start()

    with pytest.raises(RunFailed, match="coordinator was restarted 2 times") as raised:
        execute(job_of("async"), tmp_path / "run", started=started)
    assert str(tmp_path / "run") in str(raised.value)
    assert Run.load(tmp_path / "run").summary["failed"] is True


# ---------------------------------------------------------------- the end of the parent


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_nothing_is_left_of_a_run_that_is_interrupted_while_its_coordinator_is_stopped(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    settings = ["data.rows=3000", "data.features=2000", "data.batch=32", "stop.seconds=60", "evaluate.every=2"]
    changes = [word for setting in settings for word in ("--set", setting)]
    with Den() as den:
        child = den.start("-m", "shoal", "train", "rcv1-like", "--servers", "2", "--out", str(folder), *changes)
        assert soon((folder / "address").exists)
        assert (folder / "address").stat().st_mode & 0o777 == 0o600
        assert soon(
            lambda: (folder / "events.jsonl").exists() and b'"evaluated"' in (folder / "events.jsonl").read_bytes()
        )
        os.kill(den.node("coordinator"), signal.SIGSTOP)
        os.killpg(child.pid, number)
        _, errors = child.communicate(timeout=PATIENCE)
        assert child.returncode == 128 + number, errors
        assert "Traceback" not in errors
        assert den.is_empty(), den.left()
    assert not (folder / "address").exists()
    assert Run.load(folder).summary["stopped_because"] == "interrupted"
