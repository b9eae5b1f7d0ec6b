"""Clients and a server run algorithm 1 of S0, which is gradient descent.

The server broadcasts, every client sums (sub)gradients over its part, and the server adds them up
and takes a step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.data.datasets import DataSource, load
from shoal.job import Job
from shoal.models.linear import Linear
from shoal.run.run import execute

ROWS, STEP, PASSES = 1_000, 0.002, 6


# The hinge has subgradients only (S0-04).
@pytest.mark.parametrize("loss", ["logistic", "hinge", "squared"])
@pytest.mark.parametrize("clients", [1, 4, 5])
def test_clients_with_a_part_each_are_gradient_descent_on_all_rows(loss: str, clients: int) -> None:
    """S0-02, S0-03: a gradient is a sum of sums, so the number of clients changes nothing.

    S0-05: the whole part of a client is one batch.
    """
    part = ROWS // clients
    job = Job.of(
        {
            "data": {"source": "rcv1-like", "rows": ROWS, "batch": part},
            "model": loss,
            "strategy": {"name": "sync", "slots_per_step": clients, "combine": "sum"},
            "update": {"rule": "sgd", "step": STEP},
            "workers": min(clients, 2),
            "servers": 2,
            "stop": {"epochs": PASSES},
            "launch": {"how": "threads"},
        }
    )
    run = execute(job)
    assert run.summary["steps"] == PASSES
    assert run.model is not None
    weights = by_hand(job)
    assert np.abs(weights).max() > 0.01  # the weights did change
    np.testing.assert_allclose(run.model.table, weights, atol=2e-5)


def by_hand(job: Job) -> np.ndarray:
    data = load(job.data, job.seed).train
    model: Linear = job.model
    batch = data.slice(0, data.rows)
    row = np.repeat(np.arange(data.rows), np.diff(batch.indptr))
    assert batch.values is not None
    weights = np.zeros(model.keys(data.features))
    for _ in range(PASSES):
        margins = np.bincount(row, weights[batch.columns] * batch.values, data.rows) + weights[-1]
        y = batch.labels.astype(np.float64)
        slope = {
            "logistic": -y / (1 + np.exp(y * margins)),
            "hinge": np.where(y * margins < 1, -y, 0.0),
            "squared": margins - y,
        }[model.loss]
        gradient = np.bincount(batch.columns, slope[row] * batch.values, len(weights))
        gradient[-1] = slope.sum()
        weights -= STEP * gradient
    return weights


def test_a_file_sorted_by_label_is_learned_all_the_same(tmp_path: Path) -> None:
    """Rows are shuffled when they are packed, so slots are fair whatever the file's order."""
    lines = [f"{label:+d} {1 if label > 0 else 2}:1 {3 + i % 50}:0.5" for label in (1, -1) for i in range(600)]
    path = tmp_path / "sorted.svm"
    path.write_text("\n".join(lines) + "\n")
    train = load(DataSource(source=str(path)), 0, tmp_path / "cache").train
    labels = np.asarray(train.slice(0, train.rows).labels)
    changes = np.count_nonzero(labels[1:] != labels[:-1])
    assert changes > train.rows // 3
    assert [(label.value, label.line) for label in train.meta.labels] == [(-1.0, 601), (1.0, 1)]
