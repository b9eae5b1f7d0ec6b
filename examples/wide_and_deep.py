"""A small wide-and-deep model (Cheng et al., 2016) on a sample of Criteo's click log:

    shoal launch --workers 2 --servers 2 examples/wide_and_deep.py

The wide part is one weight for each category, the deep part a row of numbers for each and a small
network on their sum. Both tables live on the servers, where a row is created when its category is
first seen; a worker pulls the rows of its batch and pushes their gradients. The network is
distributed as any other model.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import shoal
import shoal.torch
from shoal.data.batch import Batch
from shoal.data.datasets import DataSource, load

DIM, BATCH, EPOCHS = 16, 256, 2


class WideAndDeep(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        step = shoal.AdaGrad(step=0.005)
        self.wide = shoal.torch.EmbeddingBag(features, 1, "sum", name="wide", update=step, initial=shoal.Constant(0.0))
        self.deep = shoal.torch.EmbeddingBag(
            features, DIM, "sum", name="deep", update=step, initial=shoal.Normal(deviation=0.02)
        )
        self.network = nn.Sequential(nn.Linear(DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, rows: Batch) -> torch.Tensor:
        """How likely a click is, as a logit for each row."""
        categories, begins = torch.from_numpy(rows.columns.astype(np.int64)), torch.from_numpy(rows.indptr[:-1].copy())
        return (self.wide(categories, begins) + self.network(self.deep(categories, begins))).squeeze(1)


def clicks(rows: Batch) -> torch.Tensor:
    return torch.from_numpy((rows.labels > 0).astype(np.float32))


def area_under_curve(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The share of pairs (a click, none) in which the click has the higher score."""
    places = scores.argsort().argsort() + 1.0
    yes = clicked.sum()
    return float((places[clicked > 0].sum() - yes * (yes + 1) / 2) / (yes * (len(clicked) - yes)))


def main(most: int | None = None, epochs: int = EPOCHS) -> tuple[float, float, float]:
    """Train on at most ``most`` rows; returns test loss, loss of the constant model, and AUC."""
    torch.manual_seed(0)
    data = load(DataSource("criteo_tb"), 0)
    train, test = data.train, data.test
    model = WideAndDeep(data.features)
    optimizer = shoal.torch.distribute(model, torch.optim.Adam(model.parameters(), lr=1e-3))
    rows = range(train.rows)[:most]
    part = optimizer.sampler(rows)
    loader = DataLoader(rows, batch_size=BATCH, sampler=part, collate_fn=lambda rows: train.take(np.array(rows)))
    began = time.perf_counter()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for rows in loader:
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model(rows), clicks(rows))
            loss.backward()
            optimizer.step()
            total += loss.item()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: loss {total / len(loader):.4f} on its own part, {seconds:.1f} s", flush=True)
    optimizer.finish()
    model.eval()
    held_out = test.slice(0, test.rows)
    with torch.no_grad():
        scores = model(held_out)
    clicked, share = clicks(held_out), float(clicks(train.slice(0, train.rows)).mean())
    loss = functional.binary_cross_entropy_with_logits(scores, clicked).item()
    base = functional.binary_cross_entropy(torch.full_like(clicked, share), clicked).item()
    area = area_under_curve(scores.numpy(), clicked.numpy())
    if optimizer.rank == 0:
        print(f"held out: loss {loss:.4f} (always {share:.4f}: {base:.4f}), AUC {area:.4f}, {test.rows:,} rows")
    return loss, base, area


if __name__ == "__main__":
    main()
