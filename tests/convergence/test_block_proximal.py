"""Block-proximal solves what liblinear solves, with any delay and any workers.

The objective is the same, and so is the number of weights that are not 0. The references are
scikit-learn 1.9's LogisticRegression(penalty="l1", C=1 / l1, solver="liblinear",
fit_intercept=False, tol=1e-8) on the packed training rows, with l1 = 1; their objectives are
computed by ``shoal.models.learner.objective_at``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.data.datasets import NAMED, VARIABLE
from shoal.run.finished import Run

LIBLINEAR = {"rcv1": (4954.22937, 685), "a9a": (10558.72337, 98)}
SOAK = pytest.mark.soak


def need(name: str) -> None:
    """Skips the test, with the reason, where the data set is missing."""
    home = os.environ.get(VARIABLE)
    if not home or not (Path(home) / NAMED[name].train).is_file():
        pytest.skip(f"${VARIABLE} does not name a folder that has {NAMED[name].train}")


def solve(name: str, **settings: Any) -> Run:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    usual = {"model.bias": False, "launch.how": "threads", "update.l1": 1.0, "evaluate.every": 5}
    return shoal.train(name, strategy="block-proximal", settings={**usual, **dotted})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rcv1", {}),
        pytest.param("rcv1", {"workers": 4, "strategy__max_delay": 2}, marks=SOAK),
        pytest.param("rcv1", {"workers": 1, "strategy__max_delay": 8, "stop__objective": 1e-7}, marks=SOAK),
        pytest.param("rcv1", {"strategy__kkt": "off"}, marks=SOAK),
        pytest.param("rcv1", {"strategy__by": "range", "servers": 3}, marks=SOAK),
        pytest.param("a9a", {"stop__epochs": 2_000}, marks=SOAK),
    ],
)
def test_the_objective_is_that_of_liblinear_and_so_are_the_weights_that_are_not_0(
    name: str, settings: dict[str, Any]
) -> None:
    need(name)
    found = solve(name, **settings).summary["metrics"]
    objective, nonzero = LIBLINEAR[name]
    print(f"{name} {settings}: {found}")
    assert found["objective"] == pytest.approx(objective, rel=1e-4)
    assert found["nonzero"] == pytest.approx(nonzero, rel=0.02)


def test_nearly_all_keys_of_rcv1_are_left_out_and_what_is_moved_shrinks_with_them() -> None:
    need("rcv1")
    runs = {kkt: solve("rcv1", strategy__kkt=kkt, stop__epochs=10, evaluate__every=10) for kkt in ("nips", "off")}
    skipped, moved = ([one.summary[key] for one in runs.values()] for key in ("metrics", "bytes_sent"))
    assert skipped[0]["skipped"] > 0.93 and skipped[1]["skipped"] == 0.0
    assert moved[0] < moved[1] / 3
