"""A data set is loaded by name or path, packed once, cached and shared.

If it cannot be loaded, the error says what to do next.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.data import mnist
from shoal.data.datasets import NAMED, Dataset, DataSource, load, names
from shoal.data.synthetic import TEST_FROM, Clicks
from shoal.errors import Invalid

needs_data = pytest.mark.skipif("SHOAL_DATA" not in os.environ, reason="SHOAL_DATA is not set")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.svm"
    path.write_text("".join(f"{(-1) ** n} {n % 50 + 1}:1 {n % 7 + 60}:0.5\n" for n in range(1, 1_001)))
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_a_file_is_cut_into_rows_to_train_on_and_rows_to_test_on(rows: Path, cache: Path) -> None:
    told: list[str] = []
    dataset = load(DataSource(str(rows), held_out=0.2), seed=0, cache=cache, progress=told.append)
    assert dataset.name == "rows.svm" and dataset.notes == [] and dataset.classes
    assert dataset.train.rows + dataset.test.rows == 1_000
    assert 150 < dataset.test.rows < 250
    assert dataset.features == dataset.train.features == dataset.test.features == 66
    assert told[0] == "packing rows.svm" and told[-1] == "packing rows.svm: 1,000 rows"


def test_the_rows_that_are_held_out_do_not_depend_on_the_seed(rows: Path, cache: Path) -> None:
    first, second = (load(DataSource(str(rows)), seed, cache) for seed in (0, 1))
    assert first.folder == second.folder
    fewer = load(DataSource(str(rows), rows=500), 0, cache)
    assert fewer.test.columns.tolist() == first.test.columns[: fewer.test.nonzeros].tolist()


@pytest.mark.parametrize("name", ["rows.svm", "rows.npz"])
def test_a_pipe_a_socket_and_a_device_are_refused_before_they_are_opened(
    tmp_path: Path, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    pipe, listening, device = (tmp_path / f"{kind}-{name}" for kind in ("pipe", "socket", "device"))
    os.mkfifo(pipe)
    device.symlink_to(os.devnull)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(listening.name)
        for path in (pipe, listening, device):
            with pytest.raises(Invalid, match=f"{path.name}' is no plain file: write the rows to one first"):
                load(DataSource(str(path)), 0, cache)
    np.savez(tmp_path / "good.npz", x=np.eye(9), y=np.arange(9))
    with pytest.raises(Invalid, match=f"{pipe.name}' is no plain file"):
        load(DataSource(str(tmp_path / "good.npz"), test=str(pipe)), 0, cache)


def test_three_rows_are_enough_to_try(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "tiny.svm").write_text("1 1:1\n-1 2:1\n1 3:1\n")
    dataset = load(DataSource(str(tmp_path / "tiny.svm")), 0, cache)
    assert (dataset.train.rows, dataset.test.rows) == (2, 1)
    assert dataset.test.meta.labels[0].line == 2
    (tmp_path / "tiny.svm").write_text("1 1:1\n")
    with pytest.raises(Invalid, match="none is held out to test on: give a test set"):
        load(DataSource(str(tmp_path / "tiny.svm")), 0, cache)
    # No unfinished files are left.
    assert [path.name for path in cache.iterdir()] == [dataset.folder.name]


def test_a_test_file_is_tested_on_and_may_have_more_features(rows: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "test.svm").write_text("1 90:1\n")
    dataset = load(DataSource(str(rows), test=str(tmp_path / "test.svm")), 0, cache)
    assert (dataset.train.rows, dataset.test.rows, dataset.features) == (1_000, 1, 90)
    assert len(dataset.train.counts) == 90


def test_a_set_is_packed_once_and_opened_by_other_processes(rows: Path, cache: Path) -> None:
    dataset = load(DataSource(str(rows)), 0, cache)
    stamp = (dataset.folder / "train" / "columns.u32").stat().st_mtime_ns
    told: list[str] = []
    again = load(DataSource(str(rows)), 0, cache, told.append)
    assert told == [] and (again.folder / "train" / "columns.u32").stat().st_mtime_ns == stamp
    assert Dataset.open(dataset.folder).train.columns.tolist() == dataset.train.columns.tolist()


@pytest.mark.parametrize(
    "change", [{"held_out": 0.3}, {"rows": 10}, {"features": 70}, {"hash_bits": 8}, {"bad_lines": 1}]
)
def test_another_setting_is_another_entry(rows: Path, cache: Path, change: dict[str, object]) -> None:
    assert load(DataSource(str(rows)), 0, cache).folder != load(DataSource(str(rows), **change), 0, cache).folder  # type: ignore[arg-type]


def test_a_file_that_changed_is_packed_again(rows: Path, cache: Path) -> None:
    before = load(DataSource(str(rows)), 0, cache)
    rows.write_text("1 1:1\n-1 5:1\n1 2:1\n")
    assert load(DataSource(str(rows)), 0, cache).train.rows == 2
    assert before.train.rows > 800  # a dataset that is open stays open


def test_a_file_that_changes_while_it_is_read_is_not_kept(rows: Path, cache: Path) -> None:
    def meddle(line: str) -> None:
        if "rows" in line.removeprefix("packing rows.svm"):
            rows.write_text("1 1:1\n")

    with pytest.raises(Invalid, match="was changed while it was read: load it again"):
        load(DataSource(str(rows)), 0, cache, meddle)
    assert list(cache.iterdir()) == []


def test_skipped_lines_are_noted_and_kept_with_the_set(rows: Path, cache: Path) -> None:
    with rows.open("a") as file:
        file.write("oops\n")
    for _ in range(2):  # the second time it comes from the cache
        (note,) = load(DataSource(str(rows), bad_lines=2), 0, cache).notes
        assert note.startswith("1 bad lines skipped: line 1001: label 'oops'")


def test_hashing_makes_as_many_features_as_it_says(rows: Path, cache: Path) -> None:
    assert load(DataSource(str(rows), hash_bits=5), 0, cache).features == 32


def test_a_made_up_set_is_made_of_its_own_rows(cache: Path) -> None:
    dataset = load(DataSource("clicks", rows=1_000, features=5_000), seed=4, cache=cache)
    maker = Clicks(4, 5_000)
    assert dataset.train.columns.tolist() == maker.rows(0, 1_000).columns.tolist()
    assert dataset.test.columns.tolist() == maker.rows(TEST_FROM, 100).columns.tolist()
    assert dataset.features == 5_000 and dataset.name == "clicks"
    assert load(DataSource("clicks", rows=1_000, features=5_000), seed=5, cache=cache).folder != dataset.folder


def test_a_click_log_is_known_by_its_tabs(tmp_path: Path, cache: Path) -> None:
    lines = "\n".join("\t".join([str(n % 2), str(n), *[""] * 12, *["0a"] * 26]) for n in range(50))
    (tmp_path / "log").write_text(lines)
    dataset = load(DataSource(str(tmp_path / "log")), 0, cache)
    assert dataset.features == 1 << 20
    assert dataset.train.rows + dataset.test.rows == 50
    with pytest.raises(Invalid, match="say hash_bits instead of features"):
        load(DataSource(str(tmp_path / "log"), features=10), 0, cache)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (DataSource("rcv2"), "no file 'rcv2': did you mean rcv1?"),
        (DataSource("Criteo-TB"), "did you mean criteo_tb?"),
        (DataSource("nowhere.svm"), "names are clicks, rcv1-like, rcv1"),
        (DataSource("clicks", rows=0), "rows = 0"),
        (DataSource("clicks", batch=0), "batch = 0"),
        (DataSource("clicks", batch=1 << 63), "1 to 2^63 - 1 rows"),
        (DataSource("clicks", held_out=1.0), "held_out = 1.0"),
        (DataSource("clicks", bad_lines=-1), "bad_lines = -1"),
        (DataSource("clicks", features=0), "features = 0"),
        (DataSource("clicks", features=10), "synthetic sets have"),
        (DataSource("clicks", hash_bits=3), "clicks is synthetic"),
        (DataSource("x", hash_bits=32), "hash_bits = 32: 1 to 31"),
        (DataSource("x", hash_bits=3, features=3), "leave one out"),
        (DataSource("rcv1", format="criteo"), "rcv1 is libsvm text: leave the format out"),
    ],
)
def test_what_cannot_be_loaded_says_what_to_do(source: DataSource, what: str, cache: Path) -> None:
    with pytest.raises(Invalid) as caught:
        load(source, 0, cache)
    assert what in str(caught.value)


def test_a_named_set_says_where_its_files_belong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "nothing"))
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    with pytest.raises(Invalid, match=r"put a9a/a9a\.xz into a folder and name it in SHOAL_DATA"):
        load(DataSource("a9a"), 0, tmp_path)
    assert {known.name: known.available for known in names()} == {
        "clicks": True, "rcv1-like": True, "rcv1": False, "a9a": False, "criteo_tb": False, "criteo_kaggle": False,
        "mnist": False, "digits": mnist.digits_installed(),
    }  # fmt: skip
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    with pytest.raises(Invalid, match=rf"a9a needs {tmp_path}/a9a/a9a\.xz, which is not there"):
        load(DataSource("a9a"), 0, tmp_path)
    for file in (NAMED["a9a"].train, NAMED["a9a"].test):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("1 1:1\n")
    (found,) = (known for known in names() if known.name == "a9a")
    assert found.available and found.where == str(tmp_path / "a9a/a9a.xz")


@needs_data
@pytest.mark.parametrize(
    ("name", "train", "test", "features", "positive"),
    [
        ("a9a", 32_561, 16_281, 123, 7_841),
        ("rcv1", 20_000, 2_490, 47_236, 9_029),
        ("criteo_kaggle", 7_200, 800, 1 << 20, 1_549),
        ("criteo_tb", 60_000, 10_000, 1 << 20, 1_897),
    ],
)
def test_the_named_sets_have_the_rows_they_are_known_for(
    cache: Path, name: str, train: int, test: int, features: int, positive: int
) -> None:
    dataset = load(DataSource(name), 0, cache)
    assert (dataset.train.rows, dataset.test.rows, dataset.features) == (train, test, features)
    assert (dataset.train.labels > 0).sum() == positive
    assert int(dataset.train.counts.sum(dtype=np.int64)) == dataset.train.nonzeros
    assert dataset.classes


# ------------------------------------------------------------ other processes, and disk errors

TOGETHER = """
import sys
from pathlib import Path
from shoal.data import kernels
from shoal.data import synthetic_kernels as draw
from shoal.data.datasets import DataSource, load
print("ready", flush=True)
sys.stdin.readline()
print(load(DataSource("clicks", rows=300_000), 0, Path(sys.argv[1])).train.rows)
"""


@pytest.mark.slow
def test_processes_that_pack_the_same_set_at_once_all_end_well(cache: Path) -> None:
    command = [sys.executable, "-c", TOGETHER, str(cache)]
    both = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=120)[0] for process in both] == ["300000\n", "300000\n"]
    assert len(list(cache.iterdir())) == 1


FULL = """
import resource, sys
sys.dont_write_bytecode = True
from pathlib import Path
from shoal.data import kernels
from shoal.data import synthetic_kernels as draw
from shoal.data.datasets import DataSource, load
from shoal.errors import Invalid
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    load(DataSource("clicks", rows=50_000), 0, Path(sys.argv[1]))
except Invalid as error:
    print(error)
"""


def test_a_full_disk_is_told_and_nothing_half_is_left(cache: Path) -> None:
    ran = run(FULL, str(cache))
    assert f"cannot pack clicks into {cache}" in ran and "point SHOAL_CACHE elsewhere" in ran
    assert list(cache.iterdir()) == []


TEMPORARY = """
import os
from shoal.data.datasets import DataSource, load
folder = load(DataSource("clicks", rows=100), 0).folder
assert folder.is_dir()
if os.fork() == 0:
    raise SystemExit  # a child that ends takes nothing with it
os.wait()
assert load(DataSource("clicks", rows=100), 0).folder == folder and folder.is_dir()
print(folder)
"""


@pytest.mark.slow
def test_without_a_cache_folder_a_temporary_one_goes_with_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    # The cache folder is a file, so it cannot be used.
    where = {"SHOAL_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    folder = Path(run(TEMPORARY, **where).strip())
    assert folder.parent.parent == tmp_path
    assert not folder.parent.exists()


def run(code: str, *arguments: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_relative_path_is_the_same_set_from_anywhere(
    rows: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absolute = load(DataSource(str(rows)), 0, cache)
    monkeypatch.chdir(tmp_path)
    assert load(DataSource("rows.svm"), 0, cache).folder == absolute.folder


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("{")])
def test_a_spoilt_entry_says_to_delete_it(rows: Path, cache: Path, spoil: Callable[[Path], object]) -> None:
    dataset = load(DataSource(str(rows)), 0, cache)
    spoil(dataset.folder / "facts.json")
    with pytest.raises(Invalid, match="delete it and load again"):
        load(DataSource(str(rows)), 0, cache)
