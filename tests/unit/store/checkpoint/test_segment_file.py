"""A table may take its first weights from a file."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid


def given(folder: Path, weights: np.ndarray, **facts: object) -> shoal.Given:
    path = folder / "start.f32"
    path.write_bytes(weights.astype("<f4").tobytes())
    return shoal.Given(str(path), **{"crc32": zlib.crc32(path.read_bytes()), **facts})


@pytest.mark.parametrize(("width", "copies"), [(1, 1), (3, 2)])
def test_a_dense_table_starts_with_the_weights_of_a_file(tmp_path: Path, width: int, copies: int) -> None:
    weights = np.random.default_rng(0).normal(size=(1_001, width)).astype(np.float32)
    with shoal.local(servers=2, copies=copies) as cluster:
        kv = cluster.client()
        spec = shoal.Dense(rows=1_001, width=width, update=shoal.AdaGrad(step=0.5), initial=given(tmp_path, weights))
        kv.create("w", spec)
        np.testing.assert_array_equal(kv.pull("w", slice(None)).result(), weights.squeeze())
        kv.push("w", [1_000], np.ones((1, width))).result()
        np.testing.assert_allclose(kv.pull("w", [1_000]).result().ravel(), weights[1_000] - 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [({"crc32": 5}, "another checksum"), ({"path": "/nowhere/start.f32"}, "cannot be read")],
)
def test_a_file_that_is_not_the_one_described_is_refused(tmp_path: Path, facts: dict[str, object], reason: str) -> None:
    with shoal.local(servers=1) as cluster:
        kv = cluster.client()
        one = given(tmp_path, np.ones(4))
        wrong = shoal.Given(**{"path": one.path, "crc32": one.crc32, **facts})  # type: ignore[arg-type]
        with pytest.raises(shoal.ShoalError, match=reason):
            kv.create("w", shoal.Dense(rows=4, initial=wrong))
        with pytest.raises(shoal.ShoalError, match="has 16 bytes"):
            kv.create("w", shoal.Dense(rows=5, initial=one))
        with pytest.raises(shoal.ShoalError, match="no finite"):
            kv.create("w", shoal.Dense(rows=2, initial=given(tmp_path, np.array([1.0, np.nan]))))
        kv.create("w", shoal.Dense(rows=4, initial=given(tmp_path, np.ones(4))))


def test_a_sparse_table_takes_no_file() -> None:
    with shoal.local(servers=1) as cluster, pytest.raises(Invalid, match="belong to a dense table"):
        cluster.client().create("w", shoal.Sparse(keys=4, initial=shoal.Given("x", 0)))
