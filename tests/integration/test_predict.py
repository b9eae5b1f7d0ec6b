"""A model predicts what it was evaluated by, and invalid rows are refused.

This holds for hashed ids, click logs, modules and archives.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import shoal
from shoal.cli.main import main
from shoal.data.user_rows import batch_of
from shoal.errors import Invalid
from shoal.models.trained import Trained

IDS, ROWS = 300, 600
THREADS = {"launch.how": "threads", "data.batch": 20}


def examples() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return rows and labels; the labels follow from a few of the ids.

    A model that reads other weights is no better than a coin.
    """
    draw = np.random.default_rng(7)
    rows = (draw.random((ROWS, IDS)) < 0.05) * draw.uniform(0.5, 1.5, (ROWS, IDS))
    truth = draw.normal(size=IDS)
    return rows.astype(np.float32), np.where(rows @ truth > 0, 1, -1)


@pytest.fixture(scope="module")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows, labels = examples()
    path = tmp_path_factory.mktemp("rows") / "rows.svm"
    lines = [
        f"{label} " + " ".join(f"{i + 1}:{float(row[i])!r}" for i in np.flatnonzero(row))
        for row, label in zip(rows.astype(float), labels, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def accuracy(chances: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    return float(((chances > 0.5) == (labels > 0)).mean())


def judged(run: Path, data: Path) -> float:
    ended = CliRunner().invoke(main, ["evaluate", str(run), str(data), "--json"])
    assert ended.exit_code == 0, ended.output
    return float(json.loads(ended.stdout)["metrics"]["accuracy"])


@pytest.fixture(scope="module")
def hashed_run(rows_file: Path, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "hashed"
    shoal.train(rows_file, epochs=20, out=out, settings=THREADS | {"data.hash_bits": 9, "update.step": 0.5})
    return out


def test_a_model_of_hashed_ids_predicts_what_evaluate_judges(hashed_run: Path, rows_file: Path) -> None:
    rows, labels = examples()
    model = shoal.Run.load(hashed_run).model
    assert model is not None
    chances = model.predict(rows)
    assert accuracy(chances, labels) == judged(hashed_run, rows_file) > 0.9
    np.testing.assert_array_equal(model.predict(rows_file), chances)
    assert accuracy(model.predict(rows[0]), labels[:1]) == accuracy(chances[:1], labels[:1])
    assert model.predict([]).shape == model.predict(rows[:0]).shape == (0,)


def test_a_sparse_matrix_of_plain_ids_is_hashed_whatever_its_width(hashed_run: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rows, _ = examples()
    model = shoal.Run.load(hashed_run).model
    assert model is not None
    wide = sparse.csr_matrix(rows)
    wide.resize((ROWS, 1 << 40))
    np.testing.assert_array_equal(model.predict(wide), model.predict(rows))


def test_the_model_of_an_archive_hashes_too(hashed_run: Path, tmp_path: Path) -> None:
    archive = tmp_path / "out.tar.gz"
    ended = CliRunner().invoke(main, ["export", str(hashed_run), "--out", str(archive)])
    assert ended.exit_code == 0, ended.output
    with tarfile.open(archive) as tar:
        # There is no data_filter before Python 3.11.4.
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(tmp_path, **safely)
    (found,) = tmp_path.glob("*/model.safetensors")
    rows, _ = examples()
    whole = shoal.Run.load(hashed_run).model
    assert whole is not None
    np.testing.assert_array_equal(Trained.load(found).predict(rows), whole.predict(rows))


@pytest.mark.slow
def test_a_module_of_hashed_ids_predicts_what_evaluate_judges(rows_file: Path, tmp_path: Path, cache: Path) -> None:
    pytest.importorskip("torch")
    rows, labels = examples()
    settings = THREADS | {"data.hash_bits": 9, "update.step": 0.5}
    shoal.train(rows_file, model="linear", epochs=10, out=tmp_path / "run", settings=settings)
    model = shoal.Run.load(tmp_path / "run").model
    assert model is not None
    chances = model.predict(rows)
    found = chances.argmax(1) if chances.ndim == 2 else chances > 0.5
    right = float((found == (labels > 0)).mean())
    assert right == pytest.approx(judged(tmp_path / "run", rows_file)) and right > 0.8
    np.testing.assert_allclose(model.predict(rows_file), chances, rtol=1e-5)


def click_line(label: int, site: int) -> str:
    return "\t".join([str(label), *["3"] * 13, *[f"{site:08x}"] * 26])


def test_a_model_of_a_click_log_refuses_arrays_and_reads_lines(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join(click_line(n % 2, 7 + n % 2) for n in range(400)) + "\n")
    shoal.train(path, epochs=3, out=tmp_path / "run", settings=THREADS)
    model = shoal.Run.load(tmp_path / "run").model
    assert model is not None
    with pytest.raises(Invalid, match=r"trained on a click log.*path of a file"):
        model.predict(np.ones((1, 5)))
    chances = model.predict(path)
    assert accuracy(chances, np.arange(400) % 2) == judged(tmp_path / "run", path) == 1.0
    (tmp_path / "rows.svm").write_text("1 1:1\n")
    with pytest.raises(Invalid, match="libsvm text, and the model was trained on criteo"):
        model.predict(tmp_path / "rows.svm")


def plain() -> Trained:
    from shoal.models.linear import Linear

    return Trained(np.array([1.0, 2.0, 4.0, 0.5], np.float32), Linear(loss="squared"), 3)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[0.0, 1.0, np.nan]], "row 0 has a value that is not finite"),
        ([[0.0, 1.0], [np.inf, 0.0]], "row 1 has a value that is not finite"),
        ([[1e300]], "too large for float32"),
        ([[1 + 2j]], "rows of type complex128"),
        ([["a", "b"]], "real numbers are needed"),
        ([[1.0], [1.0, 2.0]], "rows that are no array"),
        (np.ones((1, 4)), "at most 3 features"),
        ("gone.svm", "no file 'gone.svm'"),
    ],
)
def test_rows_that_are_none_are_refused_and_not_guessed_at(rows: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        plain().predict(rows)


def test_columns_that_do_not_fit_32_bits_are_no_other_columns() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rows = sparse.csr_matrix((np.ones(1), np.array([1 << 32], np.int64), np.array([0, 1])), shape=(1, 1 << 40))
    with pytest.raises(Invalid, match="columns up to 4,294,967,296, and the model has 3 features"):
        plain().predict(rows)
    with pytest.raises(Invalid, match="columns up to 3"):
        plain().predict(sparse.csr_matrix(np.eye(4)))
    wide = sparse.csr_matrix(([2.0], [1], [0, 1]), shape=(1, 9))
    assert plain().predict(wide).tolist() == [4.5]


def test_a_file_with_other_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.svm").write_text("1 2:1 9:1\n")
    with pytest.raises(Invalid, match="ids up to 9, and the model has 3 features"):
        plain().predict(tmp_path / "rows.svm")
    (tmp_path / "rows.svm").write_text("1 2:1 3:0.5\n")
    assert plain().predict(tmp_path / "rows.svm").tolist() == [4.5]


def test_a_batch_is_taken_as_it_is() -> None:
    batch = batch_of([[0.0, 3.0, 0.0]], 3)
    assert plain().predict(batch).tolist() == [6.5]


def test_a_run_is_evaluated_on_the_made_up_set_that_it_was_trained_on(tmp_path: Path, cache: Path) -> None:
    settings = THREADS | {"data.rows": 2_000, "data.features": 1_000}
    run = shoal.train("clicks", epochs=2, out=tmp_path / "run", settings=settings)
    ended = CliRunner().invoke(main, ["evaluate", str(tmp_path / "run"), "clicks", "--json"])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["loss"] == pytest.approx(run.summary["test_loss"], rel=1e-12)
