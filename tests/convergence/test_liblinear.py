"""Delayed block proximal gradient finds on real rows what liblinear finds.

The references are those of scikit-learn 1.9: LogisticRegression(l1_ratio=1, solver="liblinear",
C=1 / l1, fit_intercept=False, tol=1e-8, max_iter=2000) on the whole training set, with the
objective added up in double precision. One thread computes exactly what servers and workers compute
(tests/conformance compares them), so one thread is enough here.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.sparse_logistic import Serial, alike
from shoal.data.datasets import Dataset, load
from shoal.data.packed import sparse
from shoal.job import Job
from shoal.models.learner import objective_at
from tests.convergence.test_real_data import need

SOAK = pytest.mark.soak
LIBLINEAR = {  # objective, nonzeros; equal columns count as one
    ("rcv1", 1.0): (4954.22936786, 685),
    ("rcv1", 10.0): (9645.50476205, 75),
    ("a9a", 10.0): (10826.16670634, 51),  # of 52
    ("criteo_tb", 10.0): (7999.68633218, 113),  # of 123
    ("a9a", 1.0): (10558.72337063, 95),  # of 96
}


def job_of(name: str, l1: float, **strategy: object) -> Job:
    return Job.of(
        {
            "data": name,
            "model": {"loss": "logistic", "bias": False},
            "strategy": {"name": "block-proximal", **strategy},
            "update": {"l1": l1},
            "stop": {"epochs": 1.0},
        }
    )


def passes_to_solve(name: str, l1: float, most: int, every: int, **strategy: object) -> int:
    """Returns how many passes it takes to find what liblinear finds.

    The objective is then within 1e-4, and the nonzeros, with equal columns as one, within 2%.
    """
    need(name)
    job = job_of(name, l1, **strategy)
    dataset: Dataset = load(job.data, job.seed)
    solver, (objective, nonzeros) = Serial(job, dataset), LIBLINEAR[name, l1]
    same = alike(sparse(dataset.train))
    for passes in range(1, most + 1):
        solver.one_pass()
        if passes % every == 0:
            found = objective_at(sparse(dataset.train), job.linear, solver.weights(), l1)
            gap = found["objective"] / objective - 1.0
            distinct = len(np.unique(same[solver.weights() != 0]))
            if gap <= 1e-4 and abs(distinct - nonzeros) <= 0.02 * nonzeros:
                print(f"{name}, l1 {l1:g}, {strategy}: {passes} passes, gap {gap:.1e}, {distinct} nonzeros")
                return passes
    pytest.fail(f"{name}, {strategy}: gap {gap:.1e} and {distinct} nonzeros after {most} passes")


@pytest.mark.parametrize(
    ("delay", "blocks"), [pytest.param(0, 16, marks=SOAK), (2, 48), pytest.param(8, 144, marks=SOAK)]
)
def test_rcv1_is_solved_with_and_without_delay(delay: int, blocks: int) -> None:
    passes_to_solve("rcv1", 1.0, 60, 3, blocks=blocks, max_delay=delay)


@pytest.mark.parametrize(("kkt", "delta"), [pytest.param("off", None, marks=SOAK), ("osdi", 0.5)])
def test_the_filter_leaves_keys_out_and_the_solution_alone(kkt: str, delta: float | None) -> None:
    given = {} if delta is None else {"kkt_delta": delta}
    passes_to_solve("rcv1", 1.0, 60, 4, kkt=kkt, **given)


@SOAK
@pytest.mark.parametrize(("delay", "blocks"), [(0, 16), (2, 48), (8, 112)])
def test_a9a_is_solved_though_its_columns_nearly_replace_one_another(delay: int, blocks: int) -> None:
    passes_to_solve("a9a", 10.0, 1_500, 10, blocks=blocks, max_delay=delay)


@SOAK
def test_a_click_log_is_solved() -> None:
    passes_to_solve("criteo_tb", 10.0, 600, 20, blocks=32)
