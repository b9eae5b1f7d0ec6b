"""Training on real data reaches floors fixed beforehand, and matches the serial run.

The sets lie under $SHOAL_DATA (`shoal data list` says where each belongs). Figures are means over
seeds, because an async run is not the same twice. They are printed (pytest -rA), so that a run of
these tests is a measurement, too.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.data.datasets import NAMED, VARIABLE, load
from shoal.simulation.reference import serial

THREADS: Mapping[str, Any] = {"launch.how": "threads"}


def need(name: str) -> None:
    """Skips the test, with the reason, where the data set is missing."""
    home = os.environ.get(VARIABLE)
    if not home:
        pytest.skip(f"{VARIABLE} is not set: name the folder that has {NAMED[name].train}")
    if not (Path(home) / NAMED[name].train).is_file():
        pytest.skip(f"{VARIABLE} has no {NAMED[name].train}")


def runs(name: str, seeds: int, strategy: str = "async", **settings: Any) -> Iterator[dict[str, Any]]:
    """Yields the summaries of so many runs with four workers and two servers.

    In names of settings, two underscores stand for a dot.
    """
    for seed in range(seeds):
        run = shoal.train(
            name,
            strategy=strategy,
            workers=4,
            servers=2,
            seed=seed,
            settings={**THREADS, **{key.replace("__", "."): value for key, value in settings.items()}},
        )
        yield run.summary


def mean(name: str, metric: str, seeds: int, **settings: Any) -> float:
    found: list[float] = [summary["metrics"][metric] for summary in runs(name, seeds, **settings)]
    told = ", ".join(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    print(f"{name} ({told}): {metric} {statistics.mean(found):.4f}, of {', '.join(f'{one:.4f}' for one in found)}")
    return statistics.mean(found)


RCV1: dict[str, dict[str, Any]] = {
    "logistic": {"data__batch": 64, "update__step": 0.2, "model__l2_per_count": 0.5, "stop__epochs": 10},
    "hinge": {"data__batch": 32, "stop__epochs": 5},
}


@pytest.mark.variants(soak=["hinge"])
@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", "hinge"])
def test_news_are_told_apart(model: str) -> None:
    need("rcv1")
    assert mean("rcv1", "accuracy", seeds=3, model=model, **RCV1[model]) >= 0.943


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "bounded"])
def test_news_are_told_apart_by_the_other_strategies_as_well(strategy: str) -> None:
    need("rcv1")
    assert mean("rcv1", "accuracy", seeds=1, strategy=strategy, **RCV1["logistic"]) >= 0.943


@pytest.mark.slow
def test_processes_learn_what_threads_learn() -> None:
    need("rcv1")
    assert mean("rcv1", "accuracy", seeds=1, launch__how="processes", **RCV1["logistic"]) >= 0.943


def test_incomes_are_told_apart() -> None:
    need("a9a")
    assert mean("a9a", "accuracy", seeds=3, stop__epochs=5) >= 0.847


@pytest.mark.slow
def test_clicks_are_foreseen() -> None:
    """The sample has 60,000 rows with three clicks in a hundred.

    So the step is shorter than usual, and there are five seeds.
    """
    need("criteo_tb")
    assert mean("criteo_tb", "auc", seeds=5, update__step=0.02, stop__epochs=3) >= 0.69


@cache
def serial_auc(seed: int) -> float:
    job = shoal.Job.of({"data": "clicks", "stop": {"epochs": 3}, "seed": seed})
    dataset = load(job.data, job.seed)
    auc = job.model.evaluate(dataset.test, serial(job, dataset))[1]["auc"]
    assert auc is not None
    return auc


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["bounded", "async"])
def test_made_up_clicks_are_foreseen_as_well_as_by_the_serial_run(strategy: str) -> None:
    """Stale gradients of four workers cost 0.001 of AUC, and 0.002 on a busy machine."""
    (summary,) = runs("clicks", 1, strategy=strategy, stop__epochs=3)
    auc = summary["metrics"]["auc"]
    print(f"clicks, {strategy}: auc {auc:.4f}, serial {serial_auc(0):.4f}")
    assert abs(auc - serial_auc(0)) <= 0.005
