"""Arrays of users are read as they are, or refused with the problem and its solution."""

from __future__ import annotations

import builtins
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data import npz
from shoal.data.datasets import Dataset, DataSource, load
from shoal.data.dense_file import DenseFile
from shoal.errors import Invalid

X = np.arange(200 * 4 * 3, dtype=np.uint8).reshape(200, 4, 3)
Y = np.arange(200) % 3


def saved(tmp_path: Path, name: str = "rows.npz", **arrays: Any) -> Path:
    np.savez(tmp_path / name, **arrays)
    return tmp_path / name


def loaded(tmp_path: Path, path: Path, **settings: Any) -> tuple[Dataset, DenseFile, DenseFile]:
    dataset = load(DataSource(str(path), **settings), 0, tmp_path / "cache")
    assert isinstance(dataset.train, DenseFile) and isinstance(dataset.test, DenseFile)
    return dataset, dataset.train, dataset.test


@pytest.mark.parametrize(("x", "y"), [("x", "y"), ("inputs", "labels"), ("x_train", "y_train")])
def test_some_rows_are_held_out_if_there_are_none_to_test_on(tmp_path: Path, x: str, y: str) -> None:
    dataset, train, test = loaded(tmp_path, saved(tmp_path, **{x: X, y: Y}), held_out=0.2)
    assert dataset.name == "rows.npz" and dataset.shape == (4, 3) and dataset.dense
    assert train.rows + test.rows == 200 and 20 < test.rows < 60
    assert sorted(map(bytes, [*train.inputs, *test.inputs])) == sorted(map(bytes, X))
    assert train.meta.classes == test.meta.classes == 3 and train.inputs.dtype == np.uint8


def test_a_label_stays_with_its_row(tmp_path: Path) -> None:
    x = np.arange(500, dtype=np.float32)[:, None]
    _, train, test = loaded(tmp_path, saved(tmp_path, x=x, y=x[:, 0] * 2))
    assert (train.labels == train.inputs[:, 0] * 2).all() and (test.labels == test.inputs[:, 0] * 2).all()
    assert (np.diff(test.inputs[:, 0]) > 0).all() and not (np.diff(train.inputs[:, 0]) > 0).all()
    assert train.meta.more_labels and train.meta.labels[0].line == 1


def test_rows_to_test_on_may_be_in_the_file_or_in_another(tmp_path: Path) -> None:
    for x, y in npz.TRAIN:
        both = saved(tmp_path, f"{x}.npz", **{x: X, y: Y, "x_test": X[:7], "y_test": Y[:7]})
        _, train, test = loaded(tmp_path, both)
        assert (train.rows, test.rows) == (200, 7) and test.inputs.tolist() == X[:7].tolist()
    other = saved(tmp_path, "other.npz", x=X[:5].astype(np.float64), y=Y[:5, None])
    _, train, test = loaded(tmp_path, both, test=str(other))
    assert (train.rows, test.rows) == (200, 5)
    assert train.inputs.dtype == test.inputs.dtype == np.float32  # the wider type of the two


def test_bytes_get_mean_0_and_deviation_1_and_numbers_stay(tmp_path: Path) -> None:
    _, train, _ = loaded(tmp_path, saved(tmp_path, x_train=X, y_train=Y, x_test=X, y_test=Y))
    numbers = train.inputs * train.meta.factor + train.meta.shift
    assert abs(numbers.mean()) < 1e-9 and abs(numbers.std() - 1) < 1e-9
    _, train, _ = loaded(tmp_path, saved(tmp_path, "held.npz", x=X, y=Y))
    # Test rows do not count.
    assert abs((train.inputs * train.meta.factor + train.meta.shift).mean()) < 1e-9
    _, train, _ = loaded(tmp_path, saved(tmp_path, "b.npz", x=X / 255, y=Y - 1))
    assert (train.meta.factor, train.meta.shift, train.meta.classes) == (1, 0, 0)
    _, train, _ = loaded(tmp_path, saved(tmp_path, "c.npz", x=X, y=Y, factor=2.0, shift=-1.0, classes=7))
    assert (train.meta.factor, train.meta.shift, train.meta.classes) == (2, -1, 7)
    _, train, _ = loaded(tmp_path, saved(tmp_path, "d.npz", x=X * 0, y=Y))
    # All values are equal: nothing to divide by.
    assert (train.meta.factor, train.meta.shift) == (1, 0)


def test_classes_are_counted_from_0_and_a_set_without_0_says_so(tmp_path: Path) -> None:
    dataset, train, _ = loaded(tmp_path, saved(tmp_path, x=X, y=Y + 1))
    assert train.meta.classes == 4 and dataset.notes == ["label 0 is not there: 4 classes, counted from 0"]
    dataset, train, _ = loaded(tmp_path, saved(tmp_path, "told.npz", x=X, y=Y + 1, classes=10))
    # The file says how many classes there are.
    assert train.meta.classes == 10 and dataset.notes == []
    dataset, train, _ = loaded(tmp_path, saved(tmp_path, "numbers.npz", x=X, y=Y - 0.5, classes=0))
    assert train.meta.classes == 0 and dataset.notes == []


def test_any_order_of_bytes_and_axes_and_any_plain_numbers_will_do(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(60, dtype=">i4").reshape(20, 3))
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, x_train=x, y_train=np.ones(20, bool), x_test=x > 30, y_test=np.zeros(20, np.float16))
    _, train, test = loaded(tmp_path, path)
    assert sorted(train.inputs.tolist()) == x.tolist() and set(train.labels) == {1.0}
    assert test.inputs.tolist() == (x > 30).tolist()
    _, train, _ = loaded(tmp_path, saved(tmp_path, "flat.npz", x=np.arange(50), y=np.arange(50)))
    assert train.shape == (1,)


def test_at_most_so_many_rows_are_taken(tmp_path: Path) -> None:
    _, train, test = loaded(tmp_path, saved(tmp_path, x=X, y=Y), rows=50)
    assert train.rows + test.rows == 50
    _, train, test = loaded(tmp_path, saved(tmp_path, "b.npz", x_train=X, y_train=Y, x_test=X, y_test=Y), rows=50)
    assert (train.rows, test.rows) == (50, 200)


class Trap:
    """Leaves a file if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return builtins.open, (str(self.path), "w")


def member(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("y.npy", content)
    return out.getvalue()


def header(text: str, version: bytes = b"\x01\x00", length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"\x93NUMPY" + version + size.to_bytes(2 if version == b"\x01\x00" else 4, "little") + text.encode()


ONES = "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty: write it with numpy.savez"),
        (b"label,x\n1,2\n", "is no .npz file"),
        (member(b"")[:40], "is no .npz file"),
        (member(b""), "x is damaged"),
        (member(b"hello"), "x is damaged"),
        (member(header(ONES % "(3,)")), "x says 12 bytes and has 0"),
        (member(header(ONES % "(10**9, 10**9)")), "x is damaged"),
        (member(header(ONES % "(1000000000000,)") + b"1234"), "x says 4,000,000,000,000 bytes and has 4"),
        (member(header(ONES % "(-1,)") + b"1234"), "x is damaged"),
        (member(header(ONES % "(-2, -1)") + b"12345678"), "x is damaged"),
        (member(header(ONES % "()") + b"1234"), r"x has shape \(\)"),
        (member(header(ONES % "(0, 3)")), r"x has shape \(0, 3\)"),
        (member(header(ONES % f"(0, {10**30})")), "x is damaged"),
        (member(header(ONES % ("(" + "1, " * 100 + ")")) + b"1234"), "x is damaged"),
        (member(header("[[[[[")), "x is damaged"),
        (member(header("{[]: 1}")), "x is damaged"),
        (member(header("{'descr': (), 'fortran_order': False, 'shape': (1,), }\n")), "x is damaged"),
        (member(header(" " * 12_000 + "\n")), "x is damaged"),
        (member(header("{", b"\x02\x00", 1 << 31) + b" " * 2_000_000), "x is damaged"),
        (member(header("{", b"\x03\x00")), "x is damaged"),
        (member(header("__import__('os').getcwd()")), "x is damaged"),
        (
            member(header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n") + b"12345678"),
            "no plain numbers",
        ),
        (member(header(ONES % "(20000000,)") + bytes(80_000_000)), "would grow to 76 MB, more than 300-fold"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(Invalid, match=said):
        loaded(tmp_path, path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": X, "b": Y}, "has 'a, b' in it, and arrays x_train, y_train or x, y or inputs, labels are needed"),
        ({"x": X, "y": Y[:-1]}, "x has 200 rows and y 199: give one label for each row"),
        ({"x": X, "y": np.eye(200)}, r"y has shape \(200, 200\): one number a row"),
        ({"x": np.where(X == 5, np.nan, X), "y": Y}, "row 0 of x is not finite"),
        ({"x": X, "y": np.where(Y == 2, np.inf, Y)}, "row 2 of y is not finite"),
        ({"x": np.full((3, 2), 1e300), "y": Y[:3]}, "too large for float32"),
        ({"x": X + 1j, "y": Y}, "x holds complex128, no plain numbers"),
        ({"x": X, "y": np.array(["cat"] * 200)}, "y holds <U3"),
        ({"x": X, "y": Y, "classes": [1, 2]}, "classes is no single number"),
        ({"x": X, "y": Y, "classes": -5}, "classes is -5: give 1 to 65,536, 0 for numbers"),
        ({"x": X, "y": Y, "classes": 3.7}, "classes is 3.7: give 1 to 65,536"),
        ({"x": X, "y": Y, "classes": 10**9}, "classes is 1e.09: give 1 to 65,536"),
        (
            {"x": X, "y": Y, "classes": 1},
            "classes is 1, and there is a label 1: they are 0 to 0; write the right",
        ),
        ({"x": X, "y": Y - 1, "classes": 3}, "classes is 3, and there is a label -1: they are 0 to 2"),
        ({"x": X, "y": Y / 2, "classes": 3}, "classes is 3, and there is a label 0.5"),
        (
            {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 7, "classes": 3},
            "classes is 3, and there is a label 7",
        ),
        ({"x_train": X, "y_train": Y, "x_test": X}, "has x_test and no y_test: give both, or neither"),
        ({"x": X, "y": Y, "y_test": Y}, "has y_test and no x_test: give both, or neither"),
        ({"x_train": X, "y_train": Y, "x_test": X[:, :2], "y_test": Y}, "rows to test on have shape"),
        ({"x": X[:1], "y": Y[:1]}, "has 1 rows, and with held_out = 0.1 none is held out"),
        ({"x": X.reshape((200, *[1] * 9, 12)), "y": Y}, "x has shape"),
    ],
)
def test_arrays_that_make_no_set_are_refused(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        loaded(tmp_path, saved(tmp_path, **arrays))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    objects = np.array([Trap(trace), None], dtype=object)
    with pytest.raises(Invalid, match="x holds object, no plain numbers"):
        loaded(tmp_path, saved(tmp_path, x=objects, y=Y[:2]))
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps(Trap(trace)))
    with pytest.raises(Invalid, match=r"is no \.npz file"):
        loaded(tmp_path, tmp_path / "pickled.npz")
    assert not trace.exists()


def test_bytes_that_were_changed_are_found(tmp_path: Path) -> None:
    path = saved(tmp_path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[1_000] ^= 1
    path.write_bytes(content)
    with pytest.raises(Invalid, match=r"x is damaged \(Bad CRC-32"):
        loaded(tmp_path, path)


def test_a_folder_an_unreadable_file_and_text_beside_arrays_are_told(tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(Invalid, match=r"folder\.npz cannot be read: Is a directory"):
        loaded(tmp_path, tmp_path / "folder.npz")
    (tmp_path / "rows.svm").write_text("1 1:1\n")
    with pytest.raises(Invalid, match=r"rows\.svm is no \.npz file"):
        loaded(tmp_path, saved(tmp_path, x=X, y=Y), test=str(tmp_path / "rows.svm"))
    with pytest.raises(Invalid, match="has dense rows: leave features, hash_bits"):
        loaded(tmp_path, saved(tmp_path, x=X, y=Y), format="libsvm")
    os.rename(saved(tmp_path, x=X, y=Y), tmp_path / "rows.zip")
    with pytest.raises(Invalid, match=r"is a zip archive and not called \.npz: give plain text"):
        loaded(tmp_path, tmp_path / "rows.zip")


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    first, _, _ = loaded(tmp_path, saved(tmp_path, x=X, y=Y))
    again, _, _ = loaded(tmp_path, tmp_path / "rows.npz")
    changed, _, _ = loaded(tmp_path, saved(tmp_path, x=X[:100], y=Y[:100]))
    assert first.folder == again.folder != changed.folder


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    path = saved(tmp_path, x=X, y=Y)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("", (), {"available": 3_000}))
    with pytest.raises(Invalid, match="x has 0 MB, and with 0 MB free it cannot be read: give fewer rows"):
        npz.read(path)


def test_digits_are_a_stand_in_of_28_by_28(tmp_path: Path) -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    dataset = load(DataSource("digits"), 0, tmp_path)
    train, test = dataset.train, dataset.test
    assert isinstance(train, DenseFile) and isinstance(test, DenseFile)
    assert dataset.name == "digits" and dataset.shape == (28, 28) and train.rows + test.rows == 1_797
    assert train.meta.classes == 10 and 100 < test.rows < 260
    first = sklearn.load_digits().images
    small = {bytes(image) for image in first.astype(np.uint8)}
    assert all(bytes(np.ascontiguousarray(image)) in small for image in test.inputs[:, 2:26:3, 2:26:3])
    assert not test.inputs[:, :2].any() and not test.inputs[:, :, 26:].any()
    fewer = load(DataSource("digits", rows=100, held_out=0.5), 0, tmp_path)
    assert fewer.train.rows + fewer.test.rows == 100 and fewer.test.rows > 30


def test_without_scikit_learn_digits_say_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(Invalid, match=r"scikit-learn, which is not installed: pip install 'shoal\[sklearn\]'"):
        load(DataSource("digits"), 0, tmp_path)
