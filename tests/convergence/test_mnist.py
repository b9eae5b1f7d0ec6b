"""Gradient descent with clients is that of one process (S0-02, S0-03, S0-05).

It learns digits, and modules learn real MNIST. The images lie under $SHOAL_DATA. Figures are
printed (pytest -rA).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.data.datasets import VARIABLE, DataSource, load  # noqa: E402
from shoal.data.dense_file import DenseFile  # noqa: E402
from shoal.events import Evaluated  # noqa: E402
from shoal.models.learner import learner_of  # noqa: E402
from shoal.models.torch_module import Module  # noqa: E402

ROWS, ROUNDS, STEP = 6_000, 6, 0.1


@pytest.fixture(autouse=True)
def images() -> None:
    home = os.environ.get(VARIABLE)
    if not home or not (Path(home) / "mnist").is_dir():
        pytest.skip(f"{VARIABLE} is not set, or has no mnist: name the folder that has it")


def tensors(rows: DenseFile) -> tuple[Any, Any]:
    x = torch.from_numpy(np.array(rows.inputs)).float() * rows.meta.factor + rows.meta.shift
    return x, torch.from_numpy(np.array(rows.labels)).long()


@cache
def one_process() -> list[float]:
    """Trains with plain PyTorch on all the rows, and returns the mean test losses.

    There is one before the first step, and one after each.
    """
    data = load(DataSource("mnist", rows=ROWS), 0)
    assert isinstance(data.train, DenseFile) and isinstance(data.test, DenseFile)
    start, _ = learner_of(Module(net="linear"), data.train, 0).start() or (None, "")
    model = nn.Linear(784, 10)
    nn.utils.vector_to_parameters(torch.from_numpy(start.reshape(-1)[:7850]), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=STEP)
    (x, y), (x_test, y_test) = tensors(data.train), tensors(data.test)
    losses = []
    for _ in range(ROUNDS + 1):
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(model(x_test.flatten(1)), y_test).item())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.flatten(1)), y).backward()
        optimizer.step()
    return losses


@pytest.mark.variants(slow=["2-*", "3-*", "4-*", "5-mean", "1-sum", "1-mean"])
@pytest.mark.parametrize("combine", ["mean", "sum"])
@pytest.mark.parametrize("clients", [1, 2, 3, 4, 5])
def test_clients_with_parts_descend_as_one_process_with_all_the_data(clients: int, combine: str) -> None:
    run = shoal.train(
        "mnist",
        model="linear",
        strategy="sync",
        workers=clients,
        servers=1,
        epochs=ROUNDS,
        batch=ROWS // clients,  # each client's whole part: no minibatches (S0-05)
        settings={
            "data.rows": ROWS,
            "strategy.slots_per_step": clients,
            "strategy.combine": combine,
            "update.rule": "sgd",
            "update.step": STEP if combine == "mean" else STEP / ROWS,
            "launch.how": "threads",
        },
    )
    losses = [event.test_loss for event in run.events if isinstance(event, Evaluated)]
    worst = max(abs(one - other) for one, other in zip(losses, one_process(), strict=True))
    print(f"{clients} clients, {combine}: loss {losses[0]:.4f} to {losses[-1]:.4f}, at most {worst:.1e} apart")
    assert worst <= 1e-4 and losses[-1] < losses[0]


def train(net: str, strategy: str, epochs: float, rows: int | None = None, **settings: Any) -> dict[str, Any]:
    run = shoal.train(
        "mnist",
        model=net,
        strategy=strategy,
        workers=4,
        servers=2,
        epochs=epochs,
        settings={"data.rows": rows, **settings},
    )
    accuracy, seconds = run.summary["metrics"]["accuracy"], run.summary["seconds"]
    print(f"{net}, {strategy}: accuracy {accuracy:.4f} after {epochs:g} epochs in {seconds:.1f} s")
    return run.summary


@pytest.mark.slow
def test_a_linear_model_learns_most_digits_in_two_passes() -> None:
    found = train("linear", "async", 2, **{"launch.how": "threads", "data.batch": 64, "update.step": 3e-4})
    assert found["metrics"]["accuracy"] > 0.88


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", ["sync", "bounded", "async"])
@pytest.mark.parametrize(("net", "epochs", "floor"), [("linear", 12, 0.92), ("cnn", 14, 0.99), ("sheet", 8, 0.985)])
def test_modules_are_as_accurate_as_they_should_be(net: str, epochs: int, floor: float, strategy: str) -> None:
    batch = {"data.batch": 64} if strategy != "sync" else {"data.batch": 32, "strategy.slots_per_step": 4}
    step = {"update.step": 2e-4 if net == "linear" else 5e-4}
    assert train(net, strategy, epochs, **batch, **step)["metrics"]["accuracy"] >= floor
