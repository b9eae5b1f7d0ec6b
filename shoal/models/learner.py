"""The interface of a model to a node, made once from the description and the training rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.data.csr_file import CsrFile
from shoal.data.dense_file import DenseFile
from shoal.errors import Invalid
from shoal.models.linear import Floats, Linear
from shoal.models.torch_module import Module
from shoal.models.trained import Trained

Metrics = dict[str, float | None]
Data = CsrFile | DenseFile
Model = Linear | Module


class ReportsMetrics(Protocol):
    """A trained model: ``Trained`` or ``TrainedModule``."""

    def predict(self, rows: Any) -> Any: ...

    def save(self, path: str | Path, **also: str) -> None: ...


class Learner(Protocol):
    """A model that computes."""

    @property
    def keys(self) -> int:
        """The number of rows of the weight table."""

    @property
    def width(self) -> int:
        """The number of weights in a row."""

    def check(self, test: Any) -> None:
        """Raise Invalid for errors of a later stage; rows and labels have been checked."""

    def settle(self, alone: bool = False) -> None:
        """Prepare this process to compute; ``alone``: it does nothing else."""

    def release(self) -> None:
        """Undo ``settle``."""

    def start(self) -> tuple[Floats, str] | None:
        """The initial weights and their description; None: zeros."""

    def gradient(self, local: Any, weights: Floats, mean: bool) -> tuple[float, Floats]:
        """The sum of the losses of a slot's rows, and the mean or the sum of their gradients."""

    def judge(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        """The mean loss on test rows, and metrics."""

    def keep(self, weights: Floats) -> ReportsMetrics:
        """The model with these weights, to predict with and to save."""

    def read(self, path: Path) -> Floats:
        """The weights of a saved model; Invalid if it is another model or damaged."""


class LinearLearner:
    """A linear model on sparse rows."""

    width = 1

    def __init__(self, model: Linear, train: CsrFile) -> None:
        self.model, self.train = model, train

    @property
    def keys(self) -> int:
        return self.model.keys(self.train.features)

    def check(self, test: Any) -> None:
        return

    def settle(self, alone: bool = False) -> None:
        return

    def release(self) -> None:
        return

    def start(self) -> None:
        return None

    def gradient(self, local: Any, weights: Floats, mean: bool) -> tuple[float, Floats]:
        counts = None
        if self.model.l2_per_count:
            counts = np.ones(len(local.keys), np.float32)
            features = len(local.keys) - self.model.bias
            counts[:features] = self.train.counts[local.keys[:features]]
        return self.model.gradient(local, weights, mean, counts)

    def judge(self, test: Any, weights: Floats) -> tuple[float, Metrics]:
        return self.model.judge(test, weights)

    def keep(self, weights: Floats) -> Trained:
        return Trained(weights, self.model, self.train.features, self.train.hashing)

    def read(self, path: Path) -> Floats:
        model = Trained.load(path)
        if (model.linear, model.features) != (self.model, self.train.features):
            raise Invalid(f"{path} has another model ({model!r}): train this one anew")
        return model.table


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
    from shoal.models.torch_learner import ModuleLearner

    return ModuleLearner(model, train, seed, number)


def trained(path: Path) -> Any:
    """Read a saved model of any kind."""
    from shoal.models.trained import facts_of
    from shoal.models.trained_module import FORMAT, TrainedModule

    facts: Mapping[str, str] = facts_of(path)
    return TrainedModule.load(path) if facts.get("format") == FORMAT else Trained.load(path)
