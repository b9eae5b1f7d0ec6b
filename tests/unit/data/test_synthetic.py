"""Synthetic rows are the same on every machine and have the shape of real data.

They are neither trivial nor impossible to learn.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.data.batch import Batch
from shoal.data.export import make
from shoal.data.readers import read
from shoal.data.synthetic import MAKERS, TEST_FROM, Clicks, Texts
from shoal.errors import Invalid


def same(one: Batch, other: Batch) -> bool:
    pairs = [(one.indptr, other.indptr), (one.columns, other.columns), (one.labels, other.labels)]
    if one.values is None or other.values is None:
        return one.values is other.values and all(np.array_equal(a, b) for a, b in pairs)
    return all(np.array_equal(a, b) for a, b in [*pairs, (one.values, other.values)])


@pytest.mark.parametrize("name", MAKERS)
def test_a_row_is_a_function_of_the_seed_and_its_number(name: str) -> None:
    rows, again = MAKERS[name](7, None).rows(0, 3_000), MAKERS[name](7, None)
    middle = again.rows(1_000, 500)
    first, last = rows.indptr[1_000], rows.indptr[1_500]
    assert middle.columns.tolist() == rows.columns[first:last].tolist()
    assert middle.labels.tolist() == rows.labels[1_000:1_500].tolist()
    assert middle.values is None or np.array_equal(middle.values, rows.values[first:last])  # type: ignore[index]
    assert not same(MAKERS[name](8, None).rows(0, 3_000), rows)
    assert not same(again.rows(TEST_FROM, 3_000), rows)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("features", [1_000, 20_000, 3_000_000])
def test_columns_ascend_and_stay_below_the_features(name: str, features: int) -> None:
    maker = MAKERS[name](0, features)
    rows = maker.rows(0, 500)
    assert maker.features == features
    assert rows.columns.max() < features
    for start, stop in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        assert (np.diff(rows.columns[start:stop].astype(np.int64)) > 0).all()


def test_clicks_have_39_fields_and_the_click_rate_of_a_click_log() -> None:
    for seed in range(3):
        rows = Clicks(seed).rows(0, 20_000)
        assert (np.diff(rows.indptr) == 39).all() and rows.values is None
        assert set(rows.labels.tolist()) == {0.0, 1.0}
        assert 0.18 < rows.labels.mean() < 0.22
    fields = rows.columns.reshape(-1, 39)
    # Each field has a range of its own.
    assert (fields.max(axis=0)[:-1] < fields.min(axis=0)[1:]).all()
    sizes = [len(np.unique(column)) for column in fields.T]
    assert min(sizes) < 15 and max(sizes) > 5_000


def test_texts_have_the_lengths_and_frequencies_of_rcv1() -> None:
    rows = Texts(0).rows(0, 4_096)
    assert rows.values is not None and (rows.values > 0).all()
    lengths = np.diff(rows.indptr)
    assert 73 < lengths.mean() < 80 and 58 < np.median(lengths) < 66  # RCV1: 77.6 and 62
    assert 0.36 < np.bincount(rows.columns).max() / 4_096 < 0.46  # 0.438
    assert 4_400 < len(np.unique(rows.columns[: rows.indptr[256]])) < 5_400  # 4,900
    assert 15_000 < len(np.unique(rows.columns)) < 18_000  # 17,000
    squares = np.add.reduceat(rows.values.astype(np.float64) ** 2, rows.indptr[:-1])
    assert np.allclose(squares, 1, atol=1e-4)
    assert set(rows.labels.tolist()) == {-1.0, 1.0}
    assert 0.42 < (rows.labels > 0).mean() < 0.49


@pytest.mark.parametrize(
    ("name", "rows", "alpha", "low", "high"),
    [("clicks", 100_000, 3e-5, 0.74, 0.82), ("rcv1-like", 30_000, 1e-5, 0.90, 0.97)],
)
def test_a_linear_model_does_well_and_not_perfectly(
    name: str, rows: int, alpha: float, low: float, high: float
) -> None:
    linear, metrics = pytest.importorskip("sklearn.linear_model"), pytest.importorskip("sklearn.metrics")
    maker = MAKERS[name](0, None)
    train, test = maker.rows(0, rows), maker.rows(TEST_FROM, rows // 10)
    model = linear.SGDClassifier(loss="log_loss", alpha=alpha, max_iter=5, tol=None, random_state=0)
    scores = model.fit(matrix(train, maker.features), train.labels > 0).decision_function(matrix(test, maker.features))
    assert low < metrics.roc_auc_score(test.labels > 0, scores) < high


def matrix(rows: Batch, features: int) -> object:
    from scipy.sparse import csr_matrix

    values = np.ones(rows.nonzeros, np.float32) if rows.values is None else rows.values
    return csr_matrix((values, rows.columns.astype(np.int64), rows.indptr), (len(rows), features))


def test_too_few_features_are_refused() -> None:
    for name in MAKERS:
        with pytest.raises(Invalid, match="synthetic sets have 1,000 to"):
            MAKERS[name](0, 999)


# ------------------------------------------------------------ writing files


@pytest.mark.variants(
    slow=[".xz-rcv1-like", ".gz-clicks", ".gz-rcv1-like", ".bz2-clicks", ".bz2-rcv1-like", ".xz-clicks"]
)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_a_set_that_is_written_and_read_is_the_same(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"rows.svm{suffix}"
    assert make(name, 12_000, 3, path) == path.stat().st_size
    assert same(read(path, "libsvm"), MAKERS[name](3, None).rows(0, 12_000))
    assert list(tmp_path.iterdir()) == [path]


def test_test_rows_can_be_written_too(tmp_path: Path) -> None:
    make("clicks", 100, 3, tmp_path / "test.svm", features=5_000, test=True)
    assert same(read(tmp_path / "test.svm", "libsvm"), Clicks(3, 5_000).rows(TEST_FROM, 100))


def test_the_same_rows_are_the_same_packed_file(tmp_path: Path) -> None:
    for name in ("one.gz", "other.gz"):
        make("clicks", 100, 3, tmp_path / name)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "other.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.gz").read_bytes()).startswith((b"0 ", b"1 "))


def test_what_cannot_be_made_or_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no synthetic set 'rcv1': there are clicks and rcv1-like"):
        make("rcv1", 10, 0, tmp_path / "x")
    with pytest.raises(Invalid, match="at least 1"):
        make("clicks", 0, 0, tmp_path / "x")
    with pytest.raises(Invalid, match=r"cannot write .*No such file"):
        make("clicks", 10, 0, tmp_path / "nowhere" / "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(Invalid, match="cannot write"):
        make("clicks", 10, 0, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


FULL = """
import resource, sys
from pathlib import Path
from shoal.data import synthetic_kernels as draw
from shoal.data.export import make
from shoal.errors import Invalid
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    make("clicks", 10_000, 0, Path(sys.argv[1]) / "rows.svm")
except Invalid as error:
    print(error)
"""


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, timeout=120, env=os.environ
    )
    assert "cannot write" in ran.stdout and "nothing was left there" in ran.stdout, ran.stderr
    assert list(tmp_path.iterdir()) == []
