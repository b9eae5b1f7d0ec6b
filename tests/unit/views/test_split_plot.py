"""The split of a data set is drawn for any number of clients and labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.data.split import SplitInfo
from shoal.views.split_plot import draw_split, title

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("clients", "labels"), [(1, 1), (3, 2), (5_000, 30), (2, 50)])
def test_the_picture_is_drawn_whatever_the_number_of_clients_and_labels(
    tmp_path: Path, clients: int, labels: int
) -> None:
    counts = [[7] * labels] * clients
    said = SplitInfo(
        "a $set$", 7 * labels * clients, 1, [2], "dirichlet", 0.5, 3,
        [f"client-{n}.npz" for n in range(clients)], "test.npz",
        [7 * labels] * clients, [float(n) for n in range(labels)], counts, [],
    )  # fmt: skip
    draw_split(said, tmp_path / "split.png")
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")
    assert title(said).endswith("clients (dirichlet, alpha 0.5, seed 3)")
