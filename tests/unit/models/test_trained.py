"""A trained model predicts and is saved in a file; a damaged file is refused."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from shoal.data.batch import Batch
from shoal.errors import Invalid
from shoal.models.linear import Linear
from shoal.models.trained import Trained

ROWS = np.array([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, -1.0, 0.5]], np.float32)


def model(loss: Any = "squared", bias: bool = True, weights: tuple[float, ...] = (0.5, -1.0, 2.0)) -> Trained:
    table = np.array([*weights, *([0.25] if bias else [])], np.float32)
    return Trained(table, Linear(loss=loss, bias=bias), len(weights))


def test_margins_are_rows_times_weights_plus_the_bias() -> None:
    expected = ROWS @ np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(model().predict(ROWS), expected + 0.25)
    np.testing.assert_allclose(model(bias=False).predict(ROWS), expected)
    np.testing.assert_allclose(model("logistic").predict(ROWS), 1 / (1 + np.exp(-expected - 0.25)))


def test_rows_may_come_as_a_list_one_row_no_row_or_fewer_features() -> None:
    np.testing.assert_allclose(model().predict(ROWS.tolist()), model().predict(ROWS))
    np.testing.assert_allclose(model().predict(ROWS[0]), model().predict(ROWS)[:1])
    assert model().predict(np.empty((0, 3))).shape == (0,)
    np.testing.assert_allclose(model().predict(ROWS[:, :1]), [0.75, 0.25, 0.25])


def test_rows_may_come_as_a_batch() -> None:
    batch = Batch(np.array([0, 2, 2], np.int64), np.array([0, 2], np.uint32), None, np.zeros(2, np.float32))
    np.testing.assert_allclose(model().predict(batch), [2.75, 0.25])


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "lil"])
def test_rows_may_come_as_any_sparse_matrix(layout: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(ROWS).asformat(layout)
    np.testing.assert_allclose(model().predict(matrix), model().predict(ROWS))


@pytest.mark.parametrize("rows", [np.ones((2, 4)), np.ones((2, 2, 2))])
def test_rows_with_more_features_than_the_model_are_refused(rows: Any) -> None:
    with pytest.raises(Invalid, match="at most 3 features"):
        model().predict(rows)


def test_a_model_says_what_it_is() -> None:
    assert repr(model("hinge", weights=(0.0, 1.0))) == "<hinge model: 2 features, 1 weights that are not zero>"
    assert (model().bias, model(bias=False).bias, model().weights.tolist()) == (0.25, 0.0, [0.5, -1.0, 2.0])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32), max_size=20), st.booleans(), st.sampled_from(["logistic", "hinge", "squared"]))
def test_what_is_saved_is_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, weights: list[float], bias: bool, loss: Any
) -> None:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    made = model(loss, bias, tuple(weights))
    made.save(path)
    back = Trained.load(str(path))
    assert back.table.tobytes() == made.table.tobytes()
    assert (back.linear, back.features) == (made.linear, made.features)
    # No other file is left.
    assert [one.name for one in path.parent.iterdir()] == ["model.safetensors"]


def test_any_bit_that_is_flipped_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model().save(path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            back = Trained.load(path)
        except Invalid:
            continue
        # The bit was in padding, or in a name.
        assert back.table.tobytes() == model().table.tobytes()


@pytest.mark.parametrize("left", [0, 7, 60, -1])
def test_a_file_that_was_cut_short_is_refused(left: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model().save(path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(Invalid, match=r"cannot be read as a model"):
        Trained.load(path)


def test_a_file_that_is_no_model_is_refused_and_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"no file .*gone"):
        Trained.load(tmp_path / "gone")
    with pytest.raises(Invalid, match="cannot be read as a model"):
        Trained.load(tmp_path)
    other = tmp_path / "other"
    other.write_bytes(save({"weights": np.zeros(3, np.float32)}))
    with pytest.raises(Invalid, match="no shoal model"):
        Trained.load(other)


def written(facts: dict[str, str]) -> dict[str, str]:
    return {"shoal": json.dumps(facts)}


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Trained(np.arange(3, dtype=np.float32), Linear(), 2).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    ("tensors", "facts"),
    [
        ({"weights": np.zeros(2, np.float32)}, {}),  # no bias
        ({"weights": np.zeros((2, 2), np.float32), "bias": np.zeros(1, np.float32)}, {}),
        ({"weights": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}, {"features": "many"}),
        ({"weights": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}, {"features": "3"}),
        ({"weights": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}, {"model": '{"loss": "huber"}'}),
        ({"weights": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}, {"model": '{"l2_per_count": -1}'}),
        ({"weights": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}, {"crc32": "0"}),
    ],
)
def test_a_file_whose_parts_do_not_fit_is_refused(tensors: Any, facts: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "model"
    good = {"format": "shoal linear 1", "model": "{}", "features": "2", "crc32": str(zlib.crc32(bytes(12)))}
    path.write_bytes(
        save({"weights": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}, metadata=written(good))
    )
    assert Trained.load(path).features == 2  # the correct file
    path.write_bytes(save(tensors, metadata=written(good | facts)))
    with pytest.raises(Invalid):
        Trained.load(path)
