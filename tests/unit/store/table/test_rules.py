"""Rules that PyTorch also has move weights as torch.optim does.

They run directly on the kernels, and through a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import Invalid
from shoal.keys import KeyRange
from shoal.store.table.table import ServerTable
from shoal.store.table.update import (
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    RMSProp,
    rule_named,
)
from shoal.tables import Dense, Uniform, Update

ROWS, STEPS = 257, 50
START = Uniform(-1.0, 1.0, seed=3)
ALL = KeyRange(0, ROWS)
KEYS = np.arange(ROWS, dtype=np.uint64)

# name, our rule, the optimizer of torch.optim and its arguments
PAIRS: list[tuple[str, Update, str, dict[str, Any]]] = [
    ("momentum", Momentum(0.01), "SGD", {"lr": 0.01, "momentum": 0.9}),
    ("decay", Momentum(0.05, 0.0, decay=0.1), "SGD", {"lr": 0.05, "weight_decay": 0.1}),
    ("dampening", Momentum(0.01, 0.9, 0.3, 0.01), "SGD",
     {"lr": 0.01, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("nesterov", Nesterov(0.01, 0.9, 0.01), "SGD",
     {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("rmsprop", RMSProp(), "RMSprop", {}),
    ("rmsprop with momentum", RMSProp(0.01, 0.9, 1e-6, 0.8, 0.01), "RMSprop",
     {"lr": 0.01, "alpha": 0.9, "eps": 1e-6, "momentum": 0.8, "weight_decay": 0.01}),
    ("adam", Adam(), "Adam", {}),
    ("adam with decay", Adam(0.01, 0.8, 0.9, 1e-5, 0.1), "Adam",
     {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.1}),
    ("adamw", AdamW(0.01), "AdamW", {"lr": 0.01, "weight_decay": 0.01}),
]  # fmt: skip
NAMES = [name for name, *_ in PAIRS]


def gradients() -> Any:
    """Returns one row for each step.

    Some gradients are 0 at first, as for a dead unit or a feature that was not seen.
    """
    drawn = np.random.default_rng(0).normal(size=(STEPS, ROWS)).astype(np.float32)
    drawn[:3, :40] = 0.0
    return drawn


def by_torch(optimizer: str, settings: dict[str, Any], start: Any) -> Any:
    """Returns the weights after every step, in double: the only visible rounding is ours."""
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    made = getattr(torch.optim, optimizer)([weights], **settings)
    found = []
    for gradient in gradients():
        weights.grad = torch.tensor(gradient, dtype=torch.float64)
        made.step()
        found.append(weights.detach().numpy().copy())
    return np.array(found)


def check(found: Any, expected: Any) -> None:
    assert np.abs(expected).max() < 3  # of the order of 1, so that 1e-6 is meaningful
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("update", "optimizer", "settings"), [pair[1:] for pair in PAIRS], ids=NAMES)
def test_a_table_moves_as_torch_does_by_range_by_keys_and_by_both(
    update: Update, optimizer: str, settings: dict[str, Any]
) -> None:
    def trace(keys: Callable[[int], Any]) -> Any:
        table = ServerTable(Dense(rows=ROWS, update=update, initial=START), [ALL])
        start, found = table.pull(ALL).reshape(-1), []
        for step, gradient in enumerate(gradients()):
            table.push(keys(step), gradient)
            found.append(table.pull(ALL).reshape(-1))
        return start, np.array(found)

    start, by_range = trace(lambda step: ALL)
    check(by_range, by_torch(optimizer, settings, start))
    for keys in (lambda step: KEYS, lambda step: KEYS if step % 2 else ALL):
        assert trace(keys)[1].tobytes() == by_range.tobytes()


def test_a_cluster_moves_as_torch_does() -> None:
    with shoal.local(servers=2) as cluster, cluster.client() as kv:
        for name, update, *_ in PAIRS:
            kv.create(name, Dense(rows=ROWS, update=update, initial=START))
        kv.create("sparse", shoal.Sparse(keys=10 * ROWS, update=Adam(), initial=START))
        start = kv.pull(NAMES[0], ALL).result()
        sparse = kv.pull("sparse", KEYS).result()
        found: dict[str, list[Any]] = {name: [] for name in [*NAMES, "sparse"]}
        for step, gradient in enumerate(gradients()):
            tasks = [(name, kv.push_pull(name, KEYS if step % 2 else ALL, gradient)) for name in NAMES]
            tasks.append(("sparse", kv.push_pull("sparse", KEYS, gradient)))
            for name, task in tasks:
                found[name].append(task.result())
    for name, _, optimizer, settings in PAIRS:
        check(np.array(found[name]), by_torch(optimizer, settings, start))
    check(np.array(found["sparse"]), by_torch("Adam", {}, sparse))


def test_a_key_that_is_not_pushed_does_not_age() -> None:
    """Adam's corrections use each weight's own number of steps.

    The first gradient moves a weight by a whole step, whenever it arrives.
    """
    table = ServerTable(Dense(rows=2, update=Adam(step=0.125)), [KeyRange(0, 2)])
    for _ in range(20):
        table.push(np.array([0], np.uint64), np.array([1.0], np.float32))
    table.push(np.array([1], np.uint64), np.array([0.001], np.float32))
    assert table.pull(KeyRange(1, 2))[0, 0] == pytest.approx(-0.125, rel=1e-4)


def test_without_momentum_dampening_or_decay_it_is_the_plainer_rule() -> None:
    assert Momentum(0.5, momentum=0) == shoal.SGD(0.5) == Momentum(0.5, momentum=0, dampening=0.5)
    assert Momentum(0.5, momentum=0, decay=0.1) == Update("sgd_decay", {"step": 0.5, "decay": 0.1})
    assert Momentum().name == "sgd_momentum" and rule_named("sgd_momentum").state == 1
    assert Momentum(dampening=0.1).name == "sgd_dampened"
    assert RMSProp().name == "rmsprop" and RMSProp(momentum=0.5).name == "rmsprop_momentum"


@pytest.mark.parametrize(
    ("make", "wrong", "needed"),
    [
        (Momentum, {"momentum": 1.0}, "below 1"),
        (Momentum, {"momentum": -0.1}, "0 or more"),
        (Momentum, {"step": -0.1}, "0 or more"),
        (Momentum, {"decay": -1.0}, "0 or more"),
        (Momentum, {"dampening": math.nan}, "finite"),
        (Nesterov, {"momentum": 1.5}, "below 1"),
        (RMSProp, {"alpha": 1.0}, "below 1"),
        (RMSProp, {"epsilon": 0.0}, "above 0"),
        (RMSProp, {"momentum": True}, "finite"),
        (Adam, {"beta1": 1.0}, "below 1"),
        (Adam, {"beta2": -0.5}, "0 or more"),
        (Adam, {"epsilon": 0.0}, "above 0"),
        (AdamW, {"decay": -0.01}, "0 or more"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(make: Any, wrong: dict[str, float], needed: str) -> None:
    (name, value), *_ = wrong.items()
    with pytest.raises(Invalid, match=f"{name}={value!r}: .*{needed}"):
        make(**wrong)
