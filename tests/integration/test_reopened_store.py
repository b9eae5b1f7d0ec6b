"""Another process opens a saved store with its tables, rows and optimizer state.

The store has no run. Where it cannot be saved, save says why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid, ShoalError

SPARSE = [3, 70, 900]

WRITE = """
import sys
import numpy as np, shoal
folder, processes = sys.argv[1], sys.argv[2] == "True"
with shoal.local(servers=2, folder=folder, processes=processes) as cluster:
    kv = cluster.client()
    kv.create("dense", shoal.Dense(rows=40, width=3, update=shoal.Adam(step=0.1)))
    kv.create("rare", shoal.Sparse(keys=1_000, width=2, update=shoal.AdaGrad(step=0.5)))
    kv.create("named", shoal.Sparse(hashed=True))
    kv.push("dense", slice(None), np.arange(120, dtype=np.float32).reshape(40, 3)).result()
    kv.push("rare", [3, 70, 900], np.ones((3, 2), np.float32)).result()
    kv.push("named", [5, 1 << 60], np.array([1.0, 2.0], np.float32)).result()
    kv.save()
    kv.push("rare", [3], np.ones((1, 2), np.float32)).result()  # after it: not in it
"""


def tables(kv: Any) -> None:
    kv.create("dense", shoal.Dense(rows=40, width=3, update=shoal.Adam(step=0.1)))
    kv.create("rare", shoal.Sparse(keys=1_000, width=2, update=shoal.AdaGrad(step=0.5)))


def again(kv: Any) -> tuple[Any, Any]:
    """Push once more to each table; the result depends on the optimizer's state."""
    kv.push("dense", slice(None), np.ones((40, 3), np.float32)).result()
    kv.push("rare", SPARSE, np.full((3, 2), 2.0, np.float32)).result()
    return kv.pull("dense", slice(None)).result(), kv.pull("rare", SPARSE).result()


@pytest.mark.variants(slow=["True"])
@pytest.mark.parametrize("processes", [False, True])
def test_a_store_that_was_saved_is_there_again_in_another_process(processes: bool, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    ended = subprocess.run([sys.executable, "-c", WRITE, str(folder), str(processes)], capture_output=True, timeout=180)
    assert ended.returncode == 0, ended.stderr.decode()
    # The same pushes, without a restart.
    with shoal.local(servers=1) as cluster, cluster.client() as kv:
        tables(kv)
        kv.push("dense", slice(None), np.arange(120, dtype=np.float32).reshape(40, 3)).result()
        kv.push("rare", SPARSE, np.ones((3, 2), np.float32)).result()
        before = kv.pull("dense", slice(None)).result(), kv.pull("rare", SPARSE).result()
        expected = again(kv)
    with shoal.local(servers=3, folder=folder, processes=processes) as cluster, cluster.client() as kv:
        assert sorted(kv.tables()) == ["dense", "named", "rare"]
        np.testing.assert_array_equal(kv.pull("dense", slice(None)).result(), before[0])
        np.testing.assert_array_equal(kv.pull("rare", SPARSE).result(), before[1])
        assert kv.pull("named", [5, 1 << 60]).result().ravel().tolist() == [1.0, 2.0]
        found = again(kv)
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        kv.save()
    # Open it again, with fewer servers.
    with shoal.local(servers=1, folder=folder) as cluster, cluster.client() as kv:
        np.testing.assert_array_equal(kv.pull("rare", SPARSE).result(), expected[1])


def test_pushes_after_a_journal_was_lost_are_counted(tmp_path: Path) -> None:
    """Ledgers know earlier clients by number, so nobody gets such a number again."""
    with shoal.local(servers=1, folder=tmp_path) as cluster:
        kv = cluster.client()
        kv.create("w", shoal.Dense(rows=4))
        for _ in range(5):
            kv.push("w", slice(None), np.ones(4, np.float32)).result()
        kv.save()
    (tmp_path / "coordinator.journal").unlink()
    with shoal.local(servers=1, folder=tmp_path) as cluster:
        kv = cluster.client()
        for _ in range(3):
            kv.push("w", slice(None), np.ones(4, np.float32)).result()
        assert kv.pull("w", slice(None)).result().ravel().tolist() == [8.0] * 4


def test_tables_that_lay_alike_lie_alike_again(tmp_path: Path) -> None:
    with shoal.local(servers=3, folder=tmp_path) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Sparse(keys=1_000))
        kv.create("v", shoal.Sparse(keys=1_000, width=2), like="w")
        kv.push("w", [1, 999], np.ones(2, np.float32)).result()
        kv.save()
    with shoal.local(servers=3, folder=tmp_path) as cluster, cluster.client() as kv:
        kv.tables()
        places = {one.name: [place.servers for place in one.places] for one in kv._client.session.view.tables}
        assert places["w"] == places["v"]


def test_a_store_without_a_folder_says_that_nothing_is_saved() -> None:
    with shoal.local(servers=1) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Dense(rows=4))
        with pytest.raises(Invalid, match=r"nothing is saved.*folder"):
            kv.save()
        kv.push("w", slice(None), np.ones(4, np.float32)).result()  # the store still works


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_the_reason_as_a_user(tmp_path: Path) -> None:
    with shoal.local(servers=1, folder=tmp_path) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Dense(rows=4))
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(ShoalError, match="no checkpoint was saved"):
                kv.save()
        finally:
            tmp_path.chmod(0o700)


@pytest.mark.parametrize("processes", [False, True])
def test_a_save_that_cannot_be_written_raises_with_the_reason(processes: bool, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way\n")
    with shoal.local(servers=1, folder=tmp_path, processes=processes) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Dense(rows=4))
        with pytest.raises(ShoalError, match=r"no checkpoint was saved: cannot write to .*checkpoints"):
            kv.save()
        (tmp_path / "checkpoints").unlink()
        kv.save()  # now it can be written


def test_a_table_with_steps_is_not_saved_without_a_run_and_that_is_said(tmp_path: Path) -> None:
    with shoal.local(servers=1, folder=tmp_path) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Dense(rows=4, apply=shoal.Step(slots=1)))
        with pytest.raises(ShoalError, match="a table knows steps"):
            kv.save()


def test_a_damaged_checkpoint_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    with shoal.local(servers=1, folder=tmp_path) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Dense(rows=4))
        kv.save()
    (file,) = (tmp_path / "checkpoints").glob("*/manifest.json")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(Invalid, match=r"no checkpoint in .* can be read"):
        shoal.local(servers=1, folder=tmp_path)


def test_an_older_checkpoint_is_taken_only_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shoal.local(servers=1, folder=tmp_path) as cluster, cluster.client() as kv:
        kv.create("w", shoal.Dense(rows=4))
        kv.save()
        kv.push("w", slice(None), np.ones(4, np.float32)).result()
        kv.save()
    newest = max((tmp_path / "checkpoints").glob("*/manifest.json"))
    newest.unlink()
    with shoal.local(servers=1, folder=tmp_path) as cluster, cluster.client() as kv:
        assert kv.pull("w", slice(None)).result().ravel().tolist() == [0.0] * 4
    assert f"skipped a checkpoint: {newest}" in capsys.readouterr().err


@pytest.mark.variants(slow=["True"])
@pytest.mark.parametrize("processes", [False, True])
def test_a_folder_has_one_store_at_a_time(processes: bool, tmp_path: Path) -> None:
    """Two stores would overwrite each other's checkpoints without noticing."""
    told = rf"has a store in it already, .*process {os.getpid()}.*choose another"
    with shoal.local(servers=1, folder=tmp_path, processes=processes), pytest.raises(Invalid, match=told):
        shoal.local(servers=1, folder=tmp_path)
    with shoal.local(servers=1, folder=tmp_path):
        pass


def test_a_store_that_cannot_be_opened_leaves_its_folder_free(tmp_path: Path) -> None:
    (tmp_path / "coordinator.journal").mkdir()
    with pytest.raises((ShoalError, OSError)):
        shoal.local(servers=1, folder=tmp_path)
    (tmp_path / "coordinator.journal").rmdir()
    with shoal.local(servers=1, folder=tmp_path):
        pass


def test_the_folder_of_a_run_is_no_store_and_stays_as_it_is(tmp_path: Path) -> None:
    shoal.train("clicks", epochs=1, workers=1, servers=1, out=tmp_path / "run", settings={"data.rows": 2_000})
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(Invalid, match=r"is the folder of a run, not of a store: choose another \(folder=\)"):
        shoal.local(servers=1, folder=tmp_path / "run")
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
