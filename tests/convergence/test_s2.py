"""Parallel SGD and Hogwild are as accurate as one process in the exercise of S2.

It is on real MNIST, with the network of its sheet. The mean of ranks that begin with weights of
their own is no better than chance. The images lie under $SHOAL_DATA. Figures are printed
(pytest -rA). The whole study: shoal sweep studies/s2.toml.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

import shoal
from shoal.data.datasets import VARIABLE
from shoal.sweep.study import Study

STUDY = Path(__file__).parents[2] / "studies" / "s2.toml"
POINT = 0.01  # of accuracy
SMALL = {"data.rows": 2_000, "data.batch": 16, "stop.epochs": 3.0, "evaluate.every": float("inf")}


@pytest.fixture(autouse=True)
def images() -> None:
    home = os.environ.get(VARIABLE)
    if not home or not (Path(home) / "mnist").is_dir():
        pytest.skip(f"{VARIABLE} is not set, or has no mnist: name the folder that has it")


@cache
def accuracy(method: str, workers: int, small: float | None = None) -> float:
    """Returns the accuracy of a run of the study, or of a small one with step ``small``."""
    wanted = [] if method == "serial" else [method, str(workers)]
    for run in Study.load(STUDY).runs:
        chosen = [run.point.choices[axis].label for axis in ("method", "workers") if not run.point.serial]
        if chosen == wanted:
            found = shoal.train(
                run.job, settings={"evaluate.every": 1.0} if small is None else {**SMALL, "update.step": small}
            ).summary
            told = (
                f"accuracy {found['metrics']['accuracy']:.4f}, {found['seconds']:.1f} s, {found['cpu_seconds']} CPU s"
            )
            print(f"{method}, {workers} workers: {told}")
            return float(found["metrics"]["accuracy"])
    raise AssertionError(f"the study has no {method} with {workers} workers")


def test_all_runs_of_the_study_make_as_many_epochs() -> None:
    jobs = [run.job for run in Study.load(STUDY).runs]
    assert len({msgspec.json.encode([job.data, job.model, job.update, job.stop, job.evaluate]) for job in jobs}) == 1


@pytest.mark.soak
def test_a_mean_of_ranks_with_one_start_learns_and_of_ranks_with_their_own_does_not() -> None:
    same, own = accuracy("psgd", 2, small=0.1), accuracy("own-starts", 2, small=0.1)
    assert same > 0.8 and own < same - 0.2


@pytest.mark.soak
def test_hogwild_learns_digits_in_shared_memory() -> None:
    # It is 0.78 on a busy machine, where gradients are stale.
    assert accuracy("hogwild", 2, small=0.05) > 0.5


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
@pytest.mark.parametrize("method", ["psgd", "hogwild"])
def test_both_are_within_a_point_of_one_process(method: str, workers: int) -> None:
    assert accuracy(method, workers) >= accuracy("serial", 1) - POINT


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_means_of_weights_with_starts_of_their_own_are_about_chance() -> None:
    assert accuracy("own-starts", 5) < 0.5
