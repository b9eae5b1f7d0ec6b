"""MNIST as two TensorDatasets, for the examples; scikit-learn's digits if it cannot be had."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import TensorDataset

from shoal.data.datasets import DataSource, load
from shoal.errors import Invalid


def images(rows: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Images of 1 x 28 x 28 and their digits: to train on (at most ``rows``) and to test on."""
    try:
        data = load(DataSource("mnist"), 0)
    except Invalid as error:
        print(f"not MNIST, but the small stand-in of scikit-learn: {error}", file=sys.stderr)
        data = load(DataSource("digits"), 0)
    parts = []
    for part, most in ((data.train, rows), (data.test, None)):
        pixels = torch.tensor(part.inputs[:most]).reshape(-1, 1, 28, 28) * part.meta.factor + part.meta.shift
        parts.append(TensorDataset(pixels, torch.tensor(part.labels[:most]).long()))
    return parts[0], parts[1]
