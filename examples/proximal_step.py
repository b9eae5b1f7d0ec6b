"""An update rule of your own: the proximal step of sparse logistic regression (S1-28).

Workers push two numbers for each weight: the gradient of the loss, summed over their rows, and a
bound on its curvature. A server adds up what all of them pushed and moves each weight to

    argmin over u of  gradient * (u - weight)  +  curvature / (2 step) * (u - weight)^2  +  l1 |u|

which is a step along the gradient, then a pull towards 0 (soft threshold) in the norm that the
curvature gives each weight. Servers know the rule by its name, through the module it is in:

    shoal.local(servers=2, modules=["proximal_step"])

``python examples/proximal_step.py`` runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import shoal


@shoal.update(pushed=2, additive=False, step=1.0, l1=1.0, l2=0.0, kkt=0.0)
def proximal_step(
    weight: float, state: tuple[float, ...], gradient: tuple[float, float], settings: Any
) -> tuple[float, tuple[float, ...]]:
    slope, curvature = gradient
    slope += settings.l2 * weight
    if settings.kkt > 0.0 and weight == 0.0 and abs(slope) <= settings.kkt:
        return -0.0, state  # "it stays 0, leave it out": what the KKT filter reads
    by = settings.step / max(curvature + settings.l2, 1e-12)
    moved = weight - by * slope
    if moved > by * settings.l1:
        moved -= by * settings.l1
    elif moved < -by * settings.l1:
        moved += by * settings.l1
    else:
        moved = 0.0
    return (moved if abs(moved) >= 1.1754943508222875e-38 else 0.0), state


def main() -> None:
    """L1 logistic regression on synthetic rows: four shares, one step for each round."""
    draw = np.random.default_rng(0)
    rows, keys = 2_000, 50
    truth = np.where(np.arange(keys) < 5, 2.0, 0.0)
    inputs = draw.normal(size=(rows, keys))
    labels = np.where(draw.random(rows) < 1.0 / (1.0 + np.exp(-inputs @ truth)), 1.0, -1.0)
    spread = float(np.linalg.eigvalsh(inputs.T @ inputs)[-1] / (inputs * inputs).sum(axis=0).min())

    sys.path.insert(0, str(Path(__file__).parent))  # where this module is, for the servers
    with shoal.local(servers=2, modules=["proximal_step"]) as cluster:
        kv = cluster.client()
        rule = proximal_step(l1=60.0, kkt=40.0)
        kv.create("weights", shoal.Sparse(keys=keys, pushed=2, update=rule, apply=shoal.Step(slots=4)))
        for round in range(100):
            weights = kv.pull("weights", np.arange(keys)).result()
            for part in range(4):
                x, y = inputs[part::4], labels[part::4]
                slope = -(y / (1.0 + np.exp(y * (x @ weights)))) @ x
                curvature = spread / 4 * (x * x).sum(axis=0)
                kv.push("weights", np.arange(keys), np.column_stack([slope, curvature]), slot=(0, 4 * round + part))
        weights = kv.pull("weights", np.arange(keys), clock=100).result()
        print(f"{np.count_nonzero(weights)} of {keys} weights are not 0: {np.round(weights[:6], 2)} ...")
        print(f"{np.count_nonzero(np.signbit(weights) & (weights == 0))} say that they can be left out")


if __name__ == "__main__":
    main()
