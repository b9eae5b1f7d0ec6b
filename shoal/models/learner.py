"""The interface of a model to a node, made once from the description and the training rows."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.csr_file import CsrFile
from shoal.data.dense_file import DenseFile
from shoal.errors import Invalid
from shoal.models.linear import NONE, SLICE_ROWS, Floats, Linear, RowSource
from shoal.models.torch_module import Module
from shoal.models.trained import Trained, TrainedModule

Metrics = dict[str, float | None]
Data = CsrFile | DenseFile
Model = Linear | Module


class Learner(ABC):
    """A model that computes. Its weight table has ``keys`` rows of ``width`` weights."""

    keys: int
    width: int

    @abstractmethod
    def gradient(self, local: Any, weights: Floats, mean: bool) -> tuple[float, Floats]:
        """The sum of the losses of a slot's rows, and the mean or the sum of their gradients."""

    @abstractmethod
    def evaluate(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        """The mean loss on test rows, and metrics."""

    @abstractmethod
    def keep(self, weights: Floats) -> Trained | TrainedModule:
        """The model with these weights, to predict with and to save."""

    @abstractmethod
    def read(self, path: Path) -> Floats:
        """The weights of a saved model; Invalid if it is another model or damaged."""

    def start(self) -> tuple[Floats, str] | None:
        return None

    def check(self, test: Any) -> None:  # noqa: B027
        """Raise Invalid for errors of a later stage; rows and labels have been checked."""

    def settle(self, alone: bool = False) -> None:  # noqa: B027
        """Prepare this process to compute; ``alone``: it does nothing else."""

    def release(self) -> None:  # noqa: B027
        """Undo ``settle``."""


class LinearLearner(Learner):
    width = 1

    def __init__(self, model: Linear, train: CsrFile) -> None:
        self.model, self.train, self.keys = model, train, model.keys(train.features)

    def gradient(self, local: Any, weights: Floats, mean: bool) -> tuple[float, Floats]:
        counts = None
        if self.model.l2_per_count:
            counts = np.ones(len(local.keys), np.float32)
            features = len(local.keys) - self.model.bias
            counts[:features] = self.train.counts[local.keys[:features]]
        return self.model.gradient(local, weights, mean, counts)

    def evaluate(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        return self.model.evaluate(test, weights)

    def keep(self, weights: Floats) -> Trained:
        return Trained(weights, self.model, self.train.features, self.train.hashing)

    def read(self, path: Path) -> Floats:
        model = Trained.load(path)
        if (model.linear, model.features) != (self.model, self.train.features):
            raise Invalid(f"{path} has another model ({model!r}): train this one from the start")
        return model.table


class ObjectiveLearner(LinearLearner):
    """A linear model with a penalty; evaluation includes the objective on the training rows.

    objective   sum of the rows' losses + l1 * |w| + l2 / 2 * |w|^2
    violation   the worst violation of the optimality conditions by a key, in units of l1
                (0: it is the minimum)
    nonzero     weights that are not 0
    skipped     the share of the keys of these rows that the KKT filter skips (weight -0.0)

    Every evaluation reads all training rows once: if that takes too long, evaluate less often.
    """

    def __init__(self, model: Linear, train: CsrFile, l1: float, l2: float) -> None:
        super().__init__(model, train)
        self.l1, self.l2 = l1, l2
        self._occur = int(np.count_nonzero(train.counts)) + model.bias

    def evaluate(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        loss, metrics = super().evaluate(test, weights)
        found = objective_at(self.train, self.model, weights, self.l1, self.l2)
        skipped = float(np.count_nonzero(np.signbit(weights) & (weights == 0))) / max(1, self._occur)
        return loss, {**found, "skipped": skipped, **metrics}


def objective_at(train: RowSource, model: Linear, weights: Floats, l1: float, l2: float = 0.0) -> dict[str, float]:
    """The first three figures of ``ObjectiveLearner``, exact; the bias counts as a key."""
    from shoal.models import kernels

    slopes, loss = np.zeros(len(weights)), 0.0
    for start in range(0, train.rows, SLICE_ROWS):
        rows = train.slice(start, min(start + SLICE_ROWS, train.rows))
        values = NONE if rows.values is None else rows.values
        loss += kernels.add_gradient(
            model.number, model.bias, rows.indptr, rows.columns, values, rows.labels, weights, slopes
        )
    wide = weights.astype(np.float64)
    slopes += l2 * wide
    off = np.where(wide != 0, np.abs(slopes + l1 * np.sign(wide)), np.maximum(np.abs(slopes) - l1, 0.0))
    return {
        "objective": loss + l1 * float(np.abs(wide).sum()) + l2 / 2 * float(wide @ wide),
        "violation": float(off.max(initial=0.0)) / (l1 or 1.0),
        "nonzero": float(np.count_nonzero(wide)),
    }


def learner_of(model: Model, train: Data, seed: int, number: int = 0) -> Learner:
    """The learner of a model; ``seed`` initialises modules, worker ``number`` chooses a GPU."""
    if isinstance(model, Linear):
        if not isinstance(train, CsrFile):
            raise Invalid(
                f"the examples are arrays of shape {train.shape}, and model {model.loss!r} takes sparse rows: "
                f"take a module (--model linear, cnn, sheet or your own)"
            )
        return LinearLearner(model, train)
    from shoal.models import needs_torch

    needs_torch(f"model {model.net!r}")
    # By name: that module imports this one, and PyTorch.
    learner: Learner = importlib.import_module("shoal.models.torch_learner").ModuleLearner(model, train, seed, number)
    return learner
