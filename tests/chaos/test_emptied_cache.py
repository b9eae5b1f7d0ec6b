"""The cache is emptied during a run, and a worker that joins later packs the rows again.

It replaces a worker that was killed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.datasets import DataSource, load, train_rows, whole_set
from shoal.errors import Invalid
from shoal.events import Gone, Joined
from shoal.job import Job
from shoal.testing.watch import watch
from tests.support.sandbox import soon

ROWS = 3_000
SOURCE = DataSource("rcv1-like", rows=ROWS, features=2_000, batch=16)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    monkeypatch.setenv("SHOAL_CACHE", str(folder))
    return folder


def job_of(strategy: Any, **changes: Any) -> Job:
    data = {"source": "rcv1-like", "rows": ROWS, "features": 2_000, "batch": 16}
    slow = {"per_example": 2e-4}  # it lasts until the new worker has joined
    base = {"data": data, "strategy": strategy, "workers": 2, "stop": {"epochs": 12}, "emulate": slow}
    return Job.of(base | changes)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["async", "hogwild", {"name": "peer-to-peer", "every": 80}])
def test_a_worker_that_comes_after_the_cache_was_emptied_takes_part(strategy: Any, own_cache: Path) -> None:
    def strike(training: Any) -> None:
        assert soon(lambda: training.course.done > 0, 60)
        shutil.rmtree(own_cache)
        training.signal("worker-1", 9)
        assert training.add_worker() == "worker-2"

    run = watch(job_of(strategy), strike, 120)
    assert not run.outcome.failed, run.outcome.why
    gone = {event.name: event.why for event in run.all(Gone)}
    assert list(gone) == ["worker-1"], gone
    assert "worker-2" in [event.name for event in run.all(Joined)]
    assert run.outcome.examples == 12 * ROWS


def test_the_rows_are_the_same_again(own_cache: Path) -> None:
    before = load(SOURCE, 3)
    rows = before.train.columns[:].copy()
    folder = before.train.folder
    shutil.rmtree(own_cache)
    again = train_rows(folder, SOURCE, 3)
    assert again.folder == folder
    np.testing.assert_array_equal(again.columns, rows)
    (folder / "meta.json").unlink()  # an rm that was interrupted
    np.testing.assert_array_equal(train_rows(folder, SOURCE, 3).columns, rows)
    shutil.rmtree(own_cache)
    np.testing.assert_array_equal(whole_set(folder.parent, SOURCE, 3).test.labels, before.test.labels)


def test_a_source_that_was_changed_meanwhile_is_not_taken_for_the_same(own_cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.svm"
    path.write_text("1 1:1\n-1 2:1\n" * 50)
    source = DataSource(str(path))
    folder = load(source, 0).train.folder
    path.write_text("1 1:1\n-1 3:1\n" * 60)
    shutil.rmtree(own_cache)
    with pytest.raises(Invalid, match="has changed since the run began"):
        train_rows(folder, source, 0)
    path.unlink()
    with pytest.raises(Invalid, match="no file"):
        train_rows(folder, source, 0)


def test_a_damaged_set_is_still_named(own_cache: Path) -> None:
    folder = load(SOURCE, 0).train.folder
    with open(folder / "columns.u32", "ab") as file:
        file.write(b"more")
    with pytest.raises(Invalid, match="is damaged"):
        train_rows(folder, SOURCE, 0)
