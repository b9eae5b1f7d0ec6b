"""Every row goes to exactly one client, and no client is without a row.

The same command gives the same files.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.data.csr_file import CsrFile
from shoal.data.datasets import Dataset, DataSource, load
from shoal.data.dense_file import DenseFile
from shoal.data.split import SplitInfo, assign, check_split, split
from shoal.errors import Invalid
from shoal.strategies.gossip import Gossip

WAYS = ["even", "shuffled", "label", "dirichlet"]


@pytest.fixture
def images(tmp_path: Path) -> Dataset:
    x = np.arange(300, dtype=np.uint8)[:, None, None] + np.zeros((1, 2, 2), np.uint8)
    x[256:] ^= np.uint8([[0, 1], [2, 3]])  # makes all rows different
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=np.arange(300) % 3, x_test=x[:9], y_test=np.arange(9) % 3)
    return load(DataSource(str(tmp_path / "rows.npz")), 0, tmp_path / "cache")


@pytest.fixture
def text(tmp_path: Path) -> Dataset:
    lines = (f"{n % 3 - 1} {n + 1}:{0.1 + n / 7:.9g} 900:{-n}\n" for n in range(1, 301))
    (tmp_path / "rows.svm").write_text("".join(lines) + "0.5\n0.5 7:1e-9 8:3e9\n")
    return load(DataSource(str(tmp_path / "rows.svm")), 0, tmp_path / "cache")


@settings(max_examples=100, deadline=None)
@given(
    labels=st.lists(st.integers(-1, 9), min_size=1, max_size=60),
    share=st.floats(0, 1),
    by=st.sampled_from(WAYS),
    alpha=st.sampled_from([1e-300, 1e-9, 1e-2, 0.5, 1e3, 1e300]),
    seed=st.integers(-5, 1 << 70),
)
@example(labels=[0] * 7, share=1.0, by="dirichlet", alpha=1e-300, seed=0)
def test_every_row_has_one_client_and_every_client_a_row(
    labels: list[int], share: float, by: Any, alpha: float, seed: int
) -> None:
    clients = max(1, math.ceil(share * len(labels)))
    given = np.array(labels, np.float32)
    owner, notes = assign(given, clients, by, alpha, seed)
    assert owner.shape == (len(labels),) and set(owner.tolist()) == set(range(clients))
    assert (assign(given, clients, by, alpha, seed)[0] == owner).all()
    assert not notes or by == "dirichlet"
    if by != "dirichlet":
        assert np.ptp(np.bincount(owner)) <= 1
    if by == "label":
        assert (np.diff(owner[np.argsort(given, kind="stable")]) >= 0).all()


def test_alpha_says_how_uneven_it_is() -> None:
    labels = (np.arange(10_000) % 10).astype(np.float32)

    def labels_of_a_client(alpha: float) -> float:
        owner, _ = assign(labels, 5, "dirichlet", alpha, 0)
        table = np.bincount(owner * 10 + labels.astype(np.int64), minlength=50).reshape(5, 10)
        return float((table > 0.02 * 1_000).mean() * 10)

    assert labels_of_a_client(0.05) < 5 < labels_of_a_client(0.5) < 9.9 < labels_of_a_client(100)


def test_who_got_nothing_is_given_a_row_and_it_is_told() -> None:
    owner, notes = assign(np.zeros(20, np.float32), 10, "dirichlet", 1e-9, 0)
    assert sorted(np.bincount(owner).tolist()) == [1] * 9 + [11]
    assert assign(np.zeros(2, np.float32), 2, "dirichlet", 1e-9, 0, "worker")[1][0].startswith("worker-")
    assert notes[0].endswith("... got no row by chance, and were given one each, of the client that had most")


def test_another_seed_is_another_split_where_there_is_chance() -> None:
    labels = (np.arange(1_000) % 10).astype(np.float32)
    for by in WAYS:
        one, other = (assign(labels, 4, by, 0.5, seed)[0] for seed in (0, 1))
        assert (one == other).all() == (by in ("even", "label")), by


@pytest.mark.parametrize("by", WAYS)
def test_the_files_have_all_rows_once_and_are_sets_themselves(tmp_path: Path, images: Dataset, by: Any) -> None:
    folder = tmp_path / "parts"
    said = split(images, 4, folder, by)
    assert msgspec.json.decode((folder / "split.json").read_bytes(), type=SplitInfo) == said
    assert said.labels == [0, 1, 2] and np.sum(said.counts, axis=0).tolist() == [100, 100, 100]
    assert np.sum(said.counts, axis=1).tolist() == said.sizes and said.test_rows == 9
    parts = []
    for client, name in enumerate(said.files):
        part = load(DataSource(str(folder / name), test=str(folder / said.test)), 0, tmp_path / "cache")
        assert isinstance(part.train, DenseFile) and part.test.rows == 9 and part.train.rows == said.sizes[client]
        meta = part.train.meta
        assert (meta.classes, meta.factor, meta.shift) == (3, images.train.meta.factor, images.train.meta.shift)
        parts.append(part.train)
    assert isinstance(images.train, DenseFile)
    rows = [(bytes(x), y) for part in parts for x, y in zip(part.inputs, part.labels, strict=True)]
    assert sorted(rows) == sorted((bytes(x), y) for x, y in zip(images.train.inputs, images.train.labels, strict=True))


def test_the_same_split_is_the_same_bytes(tmp_path: Path, images: Dataset) -> None:
    for name in ("one", "two"):
        split(images, 3, tmp_path / name, "dirichlet", 0.3, seed=5)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names[:5] == ["client-0.npz", "client-1.npz", "client-2.npz", "split.json", "test.npz"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_sparse_rows_become_text_that_is_read_back_bit_by_bit(tmp_path: Path, text: Dataset) -> None:
    said = split(text, 2, tmp_path / "parts", "shuffled")
    assert said.files == ["client-0.svm", "client-1.svm"] and said.shape == [900]

    def rows(packed: Any) -> list[tuple[float, list[int], list[float]]]:
        assert isinstance(packed, CsrFile) and packed.values is not None
        cuts = packed.indptr.tolist()
        columns, values = packed.columns.tolist(), packed.values.tolist()
        labels = packed.labels.tolist()
        return [(labels[row], columns[a:b], values[a:b]) for row, (a, b) in enumerate(pairwise(cuts))]

    found = []
    for name in said.files:
        source = DataSource(str(tmp_path / "parts" / name), test=str(tmp_path / "parts" / said.test), features=900)
        part = load(source, 0, tmp_path / "cache")
        found += rows(part.train)
        assert rows(part.test) == rows(text.test) and part.features == 900
    assert sorted(found) == sorted(rows(text.train))


def test_labels_that_are_numbers_can_be_cut_but_not_dealt_by_chance(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(1_500, 2))
    np.savez(tmp_path / "numbers.npz", x=x, y=x[:, 0])
    dataset = load(DataSource(str(tmp_path / "numbers.npz")), 0, tmp_path / "cache")
    said = split(dataset, 2, tmp_path / "parts", "label")
    assert said.labels == [] and said.counts == []
    with pytest.raises(Invalid, match="different labels are numbers, not classes: split by even"):
        split(dataset, 2, tmp_path / "other", "dirichlet")


@pytest.mark.parametrize(
    ("clients", "by", "alpha", "said"),
    [
        (0, "even", None, "0 clients: 1 to 10,000"),
        (10_001, "even", None, "10,001 clients"),
        (5, "label", 0.5, "leave it out, or split with --by dirichlet"),
        (5, "dirichlet", 0.0, "alpha = 0: more than 0"),
        (5, "dirichlet", -1.0, "alpha = -1"),
        (5, "dirichlet", math.nan, "alpha = nan"),
        (5, "dirichlet", math.inf, "alpha = inf"),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_is_read(
    clients: int, by: Any, alpha: float | None, said: str
) -> None:
    with pytest.raises(Invalid, match=said):
        check_split(clients, by, alpha)


def test_a_folder_that_is_there_too_many_clients_and_a_disk_that_refuses_leave_nothing(
    tmp_path: Path, images: Dataset
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(Invalid, match="301 clients and 300 rows: no client may be without a row"):
        split(images, 301, tmp_path / "parts")
    with pytest.raises(Invalid, match="cache is there already: take another folder"):
        split(images, 2, tmp_path / "cache")
    with pytest.raises(Invalid, match=r"cannot write .*nothing was left there"):
        split(images, 2, tmp_path / "rows.npz" / "parts")
    assert sorted(tmp_path.iterdir()) == before


def test_an_alpha_without_measure_is_refused() -> None:
    """Draws would overflow, and one client would get all rows instead of an even share."""
    check_split(4, "dirichlet", 1e9)
    with pytest.raises(Invalid, match="at most 1e"):
        check_split(4, "dirichlet", 1e308)
    with pytest.raises(Invalid, match=r"strategy.alpha=1e.308: needs a number above 0, at most"):
        Gossip(split="dirichlet", alpha=1e308)
    owner, _ = assign(np.zeros(400, np.float32), 4, "dirichlet", 1e9, 0)
    assert np.bincount(owner).tolist() == [100] * 4
