"""Filters work in whole runs, in real processes, and when a user writes them.

A run reports what they save, and what they drop is pushed later.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.report import report
from shoal.data.datasets import Dataset, load
from shoal.errors import Invalid
from shoal.events import Gone
from shoal.job import Job
from shoal.run.finished import Run
from shoal.run.run import train
from shoal.store.client import session
from shoal.strategies.parameter_server.run import ServerRun
from shoal.views import summary_figures
from tests.support import PATIENCE
from tests.support.one_thread_run import JOB, Ship

SMALL: dict[str, Any] = {
    "data.rows": 1_200,
    "data.features": 2_000,
    "data.batch": 60,
    "launch.how": "threads",
    "stop.epochs": 4,
}
ALL = ["significant", "int8", "delta", "zstd"]

MINE = '''
import numpy as np
import shoal
from shoal.filters import Sparsifier

@shoal.filter(every=2)
class turns(Sparsifier):
    """Rows by turns."""
    def choose(self, values, seed):
        return np.arange(len(values)) % int(self.settings.every) == 0
'''


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    job = Job.of(JOB)
    return load(job.data, job.seed, cache=tmp_path_factory.mktemp("data"))


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Provide a module with a user's own filter."""
    (tmp_path / "my_filters.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_filters", raising=False)
    monkeypatch.setattr("shoal.filters._known", {})  # no earlier test has registered it here either
    return "my_filters"


def small(out: Path | None = None, **changes: Any) -> Run:
    return train(
        "rcv1-like", out=out, settings={**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}
    )


# ---------------------------------------------------------------- whole runs


@pytest.mark.variants(slow=["bounded", "async"])
@pytest.mark.parametrize("strategy", ["sync", "bounded", "async"])
def test_a_run_with_all_filters_learns_as_well_and_says_what_they_saved(strategy: str, tmp_path: Path) -> None:
    plain = small(strategy=strategy)
    run = small(tmp_path / "run", strategy=strategy, filters=ALL)
    assert plain.summary["filters"] is None and summary_figures.line(plain.summary) == ""
    found = run.summary["filters"]
    assert list(found["bytes"]) == ALL
    assert found["ratio"]["to_servers"] > 6 and found["ratio"]["to_workers"] > 3
    assert found["left"] > 0 and found["lost"] == 0
    assert run.summary["test_loss"] < plain.summary["test_loss"] + 0.05
    if strategy != "async":
        return
    done = CliRunner().invoke(report, [str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "page.html").read_text()
    assert "times fewer" in page and "all together" in page
    assert Run.load(tmp_path / "run").summary["filters"] == found


def test_filters_that_lose_nothing_leave_a_sync_run_as_it_is_bit_for_bit() -> None:
    plain, pressed = (small(strategy="sync", filters=named, seed=3) for named in ([], ["delta", "lz4", "zstd"]))
    assert plain.model is not None and pressed.model is not None
    assert np.array_equal(plain.model.weights, pressed.model.weights)  # type: ignore[attr-defined]
    assert pressed.summary["filters"]["left"] == 0


def test_what_a_killed_worker_had_left_is_told_and_counted_as_lost(rows: Dataset) -> None:
    ship = Ship(rows, seed=2, strategy="async", workers=3, filters=["one_bit"])
    ship.until(lambda: ship.slots_done() > 30)
    ship.until(lambda: ship.scheduler.traffic.remainder()[0] > 0)
    ship.kill("worker-1")
    ship.home()
    (gone,) = [event for event in ship.all(Gone) if event.name == "worker-1"]
    left, lost = ship.scheduler.traffic.remainder()
    assert gone.left > 0 and left > 0 and lost == pytest.approx(gone.left)
    assert ship.slots_done() == ship.scheduler.workload.limit


def test_a_worker_that_leaves_in_order_pushes_what_it_had_left(rows: Dataset) -> None:
    ship = Ship(rows, seed=4, strategy="async", workers=2, filters=["one_bit"])
    ship.until(lambda: ship.slots_done() > 20)
    ship.trainers["worker-1"].leave()
    ship.until(lambda: ship.ends["worker-1"].done)
    assert ship.trainers["worker-1"].worker.client.session.remainder_norms() == (0.0, 0.0)
    assert ship.home().scheduler.traffic.remainder()[1] == 0


@pytest.mark.parametrize("strategy", ["sync", "async"])
def test_bytes_of_filters_survive_the_coordinator(rows: Dataset, strategy: str) -> None:
    ship = Ship(rows, seed=5, strategy=strategy, workers=2, filters=["int8", "delta"])
    ship.until(lambda: ship.slots_done() > 25)
    before = ship.scheduler.traffic.through()["all"][0]
    ship.restart_coordinator()
    ship.home()
    after = ship.scheduler.traffic.through()
    assert after["all"][0] >= before > 0 and after["int8"][1] < after["int8"][0] / 2


def test_another_set_of_filters_is_another_run(tmp_path: Path) -> None:
    """A folder keeps its filters, because a lossy filter changes what is learned."""
    small(tmp_path / "run", filters=["int8"], checkpoint__every=0.01)
    with pytest.raises(Invalid, match="filters"):
        train(resume=tmp_path / "run", settings={"filters": ["one_bit"], "stop.epochs": 8})


# ---------------------------------------------------------------- processes, and users' own filters


def test_a_filter_of_a_users_own_is_known_by_its_name_in_other_processes(mine: str) -> None:
    with shoal.local(servers=2, processes=True, modules=[mine]) as cluster, cluster.client() as kv:
        import my_filters  # type: ignore[import-not-found]

        kv.create("t", shoal.Dense(rows=10, filters=[my_filters.turns(), shoal.DeltaKeys()]))
        kv.push("t", slice(0, 10), np.ones(10)).result(PATIENCE)
        assert kv.pull("t", slice(0, 10)).result(PATIENCE).tolist() == [1.0, 0.0] * 5
        assert kv.stats("t")["filters"]["left"] == pytest.approx(5**0.5)
        kv.flush("t").result(PATIENCE)
        assert kv.pull("t", slice(0, 10)).result(PATIENCE).tolist() == [1.0] * 10


def test_a_server_that_does_not_know_a_filter_says_so_and_the_table_is_not_made(mine: str) -> None:
    with shoal.local(servers=1, processes=True) as cluster, cluster.client() as kv:
        import my_filters

        with pytest.raises(Invalid, match=r"server-0: no filter 'turns' here.*modules=\['my_module'\]"):
            kv.create("t", shoal.Dense(rows=10, filters=[my_filters.turns()]))
        assert kv.tables() == {}


def test_a_run_in_processes_uses_a_filter_of_a_users_own_in_the_current_folder(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    filters = [{"name": "turns", "every": 3}, "delta"]
    run = small(launch__how="processes", launch__modules=[mine], filters=filters, workers=2, stop__epochs=2)
    assert run.summary["filters"]["bytes"]["turns"]["to_servers"][1] > 0
    # This process imports it too: it is checked before the run begins.
    assert mine in sys.modules
    with pytest.raises(Invalid, match="no filter 'turn' here: did you mean 'turns'"):
        small(tmp_path / "run", launch__modules=[mine], filters=["turn"])
    with pytest.raises(Invalid, match=r"cannot import 'no_such'.*PYTHONPATH"):
        small(tmp_path / "run", launch__modules=["no_such"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("late", ["summary", "close"])
def test_an_error_after_the_training_does_not_cost_the_model(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = ServerRun.close

    def fails(*given: Any) -> None:
        if late == "close":
            close(given[0])
        raise ZeroDivisionError

    monkeypatch.setattr(
        "shoal.run.run.summarise" if late == "summary" else "shoal.strategies.parameter_server.run.ServerRun.close",
        fails,
    )
    with pytest.raises(ZeroDivisionError):
        small(tmp_path / "run", stop__epochs=1)
    assert shoal.query(tmp_path / "run", "nonzeros")["nonzero"] > 0


def test_threads_that_push_first_at_once_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two remainders, nobody would push one of them any more."""
    made = session.ClientFilters
    meet = threading.Barrier(2)

    def slowly(*given: Any) -> Any:
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(5)  # both threads get here, if both create one
        return made(*given)

    monkeypatch.setattr(session, "ClientFilters", slowly)
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=64, filters=[shoal.Int8()]))
        values = np.linspace(-1, 1, 64, dtype=np.float32)
        pushing = [threading.Thread(target=lambda: kv.push("w", slice(None), values).result(PATIENCE)) for _ in "ab"]
        for one in pushing:
            one.start()
        for one in pushing:
            one.join(PATIENCE)
        kv.flush("w").result(PATIENCE)
        np.testing.assert_allclose(kv.pull("w", slice(None), exact=True).result(PATIENCE), 2 * values, atol=1e-6)
