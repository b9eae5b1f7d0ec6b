"""Groups of workers share servers (S1-07), with own schedulers, tables and bounds.

The end of one group does not affect another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal import limits
from shoal.cli.main import main
from shoal.data.datasets import load
from shoal.errors import Invalid
from shoal.events import Gone, Warned
from shoal.inspect.evaluate import ModelEvaluator
from shoal.inspect.status import look_at
from shoal.job import Job
from shoal.launch.processes import ProcessCluster
from shoal.settings_tree import changed
from shoal.strategies.parameter_server.group_cluster import GroupCluster, guest
from shoal.strategies.parameter_server.run import ServerRun
from shoal.timing import TimingSettings
from tests.support.sandbox import soon

WITHIN = 60.0
SETTINGS = {"data.rows": 3_000, "data.batch": 50, "strategy.name": "sync"}


@pytest.fixture(scope="module")
def cluster(cache: Path) -> Iterator[ProcessCluster]:
    with shoal.local(servers=2, processes=True) as one:
        assert isinstance(one, ProcessCluster)
        yield one


@pytest.fixture
def operator(cluster: ProcessCluster) -> Iterator[shoal.KV]:
    with cluster.client() as kv:
        yield kv


def job_of(**changes: Any) -> Job:
    settings = {name.replace("__", "."): value for name, value in changes.items()}
    return Job.of(changed({"data": "clicks"}, {"stop.epochs": 2, "workers": 2, **SETTINGS, **settings}))


def train(cluster: ProcessCluster | None, group: str | None, seed: int, **more: Any) -> shoal.Run:
    return shoal.train("clicks", seed=seed, workers=2, cluster=cluster, group=group, settings=SETTINGS, **more)


def in_group(cluster: ProcessCluster, group: str, role: Any = "client", name: str | None = None) -> shoal.KV:
    return shoal.connect(cluster.address, role, name, group=group)


@contextlib.contextmanager
def under_way(cluster: ProcessCluster, group: str, events: list[Any], **changes: Any) -> Iterator[ServerRun]:
    """Yield a run of a group, with access to its processes."""
    job, launcher = guest(job_of(**changes), cluster, group)
    with ServerRun(job, load(job.data, job.seed), events.append, launcher=launcher) as training:
        yield training


@pytest.mark.slow
def test_two_jobs_at_once_are_the_same_runs_as_each_alone(cluster: ProcessCluster, operator: shoal.KV) -> None:
    runs: dict[str, shoal.Run] = {}

    def run(group: str, seed: int) -> None:
        runs[group] = train(cluster, group, seed, epochs=2)

    threads = [threading.Thread(target=run, args=(group, seed)) for group, seed in (("a", 1), ("b", 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WITHIN)
    for group, seed in (("a", 1), ("b", 2)):
        alone = train(None, None, seed, epochs=2, servers=2)
        assert np.array_equal(runs[group].model.table, alone.model.table)  # type: ignore[union-attr]
        assert runs[group].summary["test_loss"] == alone.summary["test_loss"]
    assert soon(lambda: not operator.tables() and not [name for name in operator.members if "/" in name], WITHIN)


@pytest.mark.parametrize("strategy", ["bounded", "async"])
def test_a_group_trains_by_every_strategy(cluster: ProcessCluster, strategy: str) -> None:
    events: list[Any] = []
    with under_way(cluster, "b", events, strategy__name=strategy) as training:
        outcome = training.wait(2 * WITHIN)
    assert outcome is not None and not outcome.failed, outcome
    assert outcome.examples == 2 * 3_000


def test_nobody_waits_for_a_worker_of_another_group(cluster: ProcessCluster) -> None:
    with in_group(cluster, "a", "worker") as slow, in_group(cluster, "b", "worker") as fast:
        for kv in (slow, fast):
            kv.create("w", shoal.Dense(rows=8, max_delay=0))
            kv.pull("w", [0]).result(WITHIN)  # from now on it has a clock there
        for step in range(5):
            fast.push("w", [step], [1.0]).result(WITHIN)
            # At a clock that ``slow`` never reaches.
            assert fast.pull("w", [step]).result(WITHIN).tolist() == [1.0]
        assert slow.pull("w", slice(None)).result(WITHIN).tolist() == [0.0] * 8
        for kv, group in ((slow, "a"), (fast, "b")):
            kv.dissolve(group)


def test_a_member_of_one_group_cannot_touch_what_is_anothers(cluster: ProcessCluster, operator: shoal.KV) -> None:
    with in_group(cluster, "a") as ann, in_group(cluster, "b") as eve:
        ann.create("w", shoal.Dense(rows=8))
        ann.push("w", [1], [5.0]).result(WITHIN)
        with pytest.raises(Invalid, match="in group 'b' and may not push"):
            eve.push("a/w", [1], [1.0]).result(WITHIN)
        with pytest.raises(Invalid, match="may not read"):
            eve.pull("a/w", [1]).result(WITHIN)
        for hostile in (lambda: eve.drop("a/w"), lambda: eve.set_max_delay("a/w", 3), lambda: eve.dissolve("a")):
            with pytest.raises(Invalid, match="in group 'b'"):
                hostile()
        with pytest.raises(Invalid, match="only the operator sets"):
            eve.allow("b", mb=1_000_000)
        # A client that names tables as if it had no group is still known as one of its group.
        eve._client.session.group = ""
        with pytest.raises(Invalid, match="in group 'b'"):
            eve.create("w", shoal.Dense(rows=8))
        operator.allow("b", reads=["a"])
        assert eve.pull("a/w", [1]).result(WITHIN).tolist() == [5.0]
        with pytest.raises(Invalid, match="may not push"):
            eve.push("a/w", [1], [1.0]).result(WITHIN)
        assert operator.pull("a/w", [1]).result(WITHIN).tolist() == [5.0]
        ann.dissolve("a")


def test_a_member_cannot_join_under_anothers_name(cluster: ProcessCluster) -> None:
    with pytest.raises(shoal.ShoalError, match="name of a member of a group"):
        shoal.connect(cluster.address, name="b/worker-0").close()


def test_what_is_beyond_a_groups_bounds_is_refused_and_changes_nothing(
    cluster: ProcessCluster, operator: shoal.KV
) -> None:
    operator.allow("c", mb=1, tables=1, members=2)
    with in_group(cluster, "c") as kv:
        with pytest.raises(Invalid, match=r"group 'c' has 0\.0 of 1 MB"):
            kv.create("w", shoal.Dense(rows=1 << 20))
        kv.create("w", shoal.Dense(rows=1 << 10))
        with pytest.raises(Invalid, match="may have 1"):
            kv.create("v", shoal.Dense(rows=1))
        with in_group(cluster, "c"), pytest.raises(shoal.ShoalError, match="has 2 members, and may have 2"):
            in_group(cluster, "c")
        assert list(kv.tables()) == ["w"]
        kv.dissolve("c")
    with pytest.raises(Invalid, match=r"MB of weights, and group 'c' has 0\.0 of 1 MB"):
        train(cluster, "c", 1, epochs=1)
    operator.allow("c")


@pytest.mark.slow
def test_the_scheduler_of_a_group_may_be_killed(cluster: ProcessCluster) -> None:
    alone = train(None, None, 0, epochs=6, servers=2)
    events: list[Any] = []
    with under_way(cluster, "b", events, stop__epochs=6, emulate__per_example=2e-4) as training:
        assert soon(lambda: training.course.done > 20, WITHIN)
        training.kill("scheduler")
        outcome = training.wait(2 * WITHIN)
    assert outcome is not None and not outcome.failed, outcome
    assert any(isinstance(event, Warned) and "started again" in event.what for event in events)
    assert outcome.judged is not None
    assert np.array_equal(outcome.judged.weights, alone.model.table)  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_group_can_begin_another_run_as_soon_as_one_has_ended(
    cluster: ProcessCluster, operator: shoal.KV, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run can begin while the processes of the last one are still ending.

    None of them joins again meanwhile.
    """
    stop = GroupCluster._stop_others

    def stop_late(of: GroupCluster) -> None:
        time.sleep(2 * TimingSettings().heartbeat / limits.SECOND)
        stop(of)

    monkeypatch.setattr(GroupCluster, "_stop_others", stop_late)
    with under_way(cluster, "b", [], stop__epochs=1) as training:
        assert training.wait(2 * WITHIN) is not None
    guest(job_of(), cluster, "b")  # raises if the group is still at work
    assert soon(lambda: not [name for name in operator.members if name.startswith("b/")], WITHIN)


@pytest.mark.slow
def test_a_worker_of_a_group_may_be_killed_and_others_do_what_it_had(cluster: ProcessCluster) -> None:
    events: list[Any] = []
    with under_way(cluster, "b", events, stop__epochs=6, emulate__per_example=2e-4) as training:
        assert soon(lambda: training.course.done > 20, WITHIN)
        training.kill("worker-1")
        outcome = training.wait(2 * WITHIN)
    assert outcome is not None and not outcome.failed, outcome
    assert [event.name for event in events if isinstance(event, Gone)][:1] == ["b/worker-1"]
    assert outcome.counts["workers lost"] == 1
    assert outcome.examples == 6 * 3_000


@pytest.mark.slow
def test_a_group_that_is_killed_whole_leaves_its_tables_and_nobody_elses_run_is_harmed(
    cluster: ProcessCluster, operator: shoal.KV, tmp_path: Path
) -> None:
    script = "import sys, shoal; shoal.train('clicks', seed=1, workers=2, epochs=1_000, cluster=sys.argv[1], group='b')"
    victim = subprocess.Popen([sys.executable, "-c", script, cluster.address], stderr=subprocess.PIPE)
    events: list[Any] = []
    try:
        with under_way(cluster, "a", events, seed=2, emulate__per_example=2e-4) as training:
            assert soon(lambda: "b/weights" in operator.tables(), WITHIN), "the other run did not begin"
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            outcome = training.wait(2 * WITHIN)
    finally:
        victim.kill()
        victim.wait()
        assert victim.stderr is not None
        victim.stderr.close()
    assert outcome is not None and not outcome.failed and outcome.judged is not None
    alone = train(None, None, 2, epochs=2, servers=2)
    assert np.array_equal(outcome.judged.weights, alone.model.table)  # type: ignore[union-attr]
    assert soon(lambda: "b/scheduler" not in operator.members and bool(operator.tables()), WITHIN)
    with pytest.raises(Invalid, match="has tables from before"):
        train(cluster, "b", 1, epochs=1)
    operator.dissolve("b")
    assert not operator.tables()
    assert train(cluster, "b", 1, epochs=1).summary["stopped_because"] == "1 epoch done"


@pytest.mark.slow
def test_a_groups_run_is_taken_up_again_from_its_own_checkpoint(cluster: ProcessCluster, tmp_path: Path) -> None:
    whole = train(None, None, 3, epochs=4, servers=2)
    first = train(cluster, "b", 3, epochs=2, out=tmp_path / "run")
    assert first.summary["steps"] == whole.summary["steps"] // 2
    (tmp_path / "run" / "summary.json").unlink()  # as if it had been killed at its end
    events: list[Any] = []
    with_more = {"stop.epochs": 4}
    again = shoal.train(resume=tmp_path / "run", cluster=cluster, group="b", settings=with_more, on_event=events.append)
    assert np.array_equal(again.model.table, whole.model.table)  # type: ignore[union-attr]


def test_one_group_trains_and_another_judges_its_model_on_rows_of_its_own(
    cluster: ProcessCluster, operator: shoal.KV, tmp_path: Path
) -> None:
    events: list[Any] = []
    with under_way(cluster, "a", events, stop__epochs=1_000, emulate__per_example=2e-4) as training:
        rows = tmp_path / "rows.svm"
        rows.write_text("".join(f"{label} 1:1 7:0.5 {i + 9}:1\n" for i in range(50) for label in (-1, 1)))
        operator.allow("judges", reads=["a"])
        with ModelEvaluator(cluster.address, str(rows), training.job, "a/weights", "judges") as judging:
            first, before = judging.look(), training.course.done
            assert soon(lambda: training.course.done > before + 30, WITHIN)
            later = judging.look()
    assert (first.rows, first.live) == (100, True)
    assert first.loss != later.loss


def test_the_run_of_a_group_is_judged_by_its_folder_and_watched_while_it_goes_on(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.svm"
    rows.write_text("".join(f"{label} 1:1 7:0.5 {i + 9}:1\n" for i in range(50) for label in (-1, 1)))
    with under_way(cluster, "b", [], stop__epochs=1_000, emulate__per_example=2e-4) as training:
        run = tmp_path / "run"
        run.mkdir()
        (run / "job.toml").write_text(training.job.toml())
        (run / "address").write_text(training._cluster.address)
        with ModelEvaluator(str(run), str(rows)) as judging:
            assert judging.look().live
        with contextlib.closing(look_at(training._cluster.address)) as looking:
            assert looking.feed(0).events == []


def test_what_is_not_named_of_a_quota_stays_as_it_was(cluster: ProcessCluster, operator: shoal.KV) -> None:
    def allow(*words: str) -> None:
        done = CliRunner().invoke(main, ["groups", cluster.address, "--allow", "b", *words])
        assert done.exit_code == 0, done.output

    allow("--mb", "7", "--tables", "4")
    allow("--reads", "cluster")
    (group,) = [one for one in operator.groups() if one.name == "b"]
    assert (group.mb, group.tables, group.members, group.reads) == (7, 4, limits.GROUP_MEMBERS, ["cluster"])
    allow("--mb", "0")
    assert "no bound" in CliRunner().invoke(main, ["groups", cluster.address]).output


@pytest.mark.parametrize(
    ("changes", "group", "why"),
    [
        ({"strategy__name": "gossip"}, "b", "trains on no servers"),
        ({"launch__how": "threads"}, "b", "are processes"),
        ({}, "b/c", "needs 1 to 32"),
        ({}, None, "needs servers and a name"),
    ],
)
def test_what_cannot_be_a_groups_run_is_refused(
    cluster: ProcessCluster, changes: dict[str, Any], group: str | None, why: str
) -> None:
    with pytest.raises(Invalid, match=why):
        guest(job_of(**changes), cluster, group)
