"""Trained models: their weights and what these mean, to predict, save and load.

A file is safetensors, with a text that describes the tensors: only numbers and text, no code. Of a
linear model ``weights`` has one float32 for each feature, and ``bias`` one. Of a module the names
are its own, so anything that loads a ``state_dict`` loads it; the text names the module.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Hashing
from shoal.data.user_rows import batch_of, dense_of, finite
from shoal.errors import Invalid
from shoal.files import replace_file
from shoal.models.inputs import ModelInputs
from shoal.models.linear import Linear
from shoal.models.torch_module import Module

_LINEAR, _MODULE = "shoal linear 1", "shoal torch 1"  # formats
_AT_ONCE = 1_000  # rows that a module predicts at once

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A linear model with its weights; the last one is the bias, if the model has one."""

    table: npt.NDArray[np.float32]
    linear: Linear
    features: int
    hashing: Hashing | None = None  # how ids were hashed; None: id k is feature k - 1

    def __repr__(self) -> str:
        return f"<{self.linear.loss} model: {self.features:,} features, {self.nonzeros:,} weights that are not zero>"

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """One weight per feature."""
        return self.table[: self.features]

    @property
    def bias(self) -> float:
        return float(self.table[self.features]) if self.linear.bias else 0.0

    @property
    def nonzeros(self) -> int:
        return int(np.count_nonzero(self.weights))

    def predict(self, rows: Any) -> npt.NDArray[np.float64]:
        """The probability of +1 (logistic) or the margin, of an array, a scipy matrix or a file.

        Columns are ids as in the training data, and are hashed if those were.
        """
        return self.linear.predict(batch_of(rows, self.features, self.hashing), self.table)

    def save(self, path: str | Path, **also: str) -> None:
        """Save it; ``also`` is added to the metadata, and ``facts_of`` reads it."""
        tensors = {"weights": np.ascontiguousarray(self.weights)}
        if self.linear.bias:
            tensors["bias"] = np.array([self.bias], np.float32)
        facts = {"format": _LINEAR, "model": _text(self.linear), "features": str(self.features)}
        facts["crc32"] = str(zlib.crc32(np.ascontiguousarray(self.table).data))
        if self.hashing is not None:
            facts["hashing"] = _text(self.hashing)
        _write(path, tensors, facts | also)

    @classmethod
    def load(cls, path: str | Path) -> Trained:
        if not Path(path).exists():
            raise Invalid(f"no file {str(path)!r}: give the model.safetensors of a run")
        with _reading(path, _LINEAR, "model") as (facts, tensors):
            linear, features = msgspec.json.decode(facts["model"], type=Linear), int(facts["features"])
            parts = [tensors["weights"]] + ([tensors["bias"]] if linear.bias else [])
            table = np.concatenate(parts).astype(np.float32, copy=False)
            hashing = msgspec.json.decode(facts["hashing"], type=Hashing) if "hashing" in facts else None
        _check_sum(path, facts, zlib.crc32(table.data) if table.shape == (linear.keys(features),) else None)
        if hashing is not None and hashing.features != features:
            raise Invalid(f"{path} is damaged: {features:,} features, and hashes of {hashing.bits} bits: train again")
        return cls(table, linear, features, hashing)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModule:
    """Arrays by the names of the module's state, and their description."""

    model: Module
    inputs: ModelInputs
    tensors: Tensors

    def __repr__(self) -> str:
        return f"<module {self.model.net}: {sum(one.size for one in self.tensors.values()):,} numbers>"

    def state_dict(self) -> dict[str, Any]:
        """The state for ``torch.nn.Module.load_state_dict``."""
        torch = self._torch()
        return {name: torch.from_numpy(one.copy()) for name, one in self.tensors.items()}

    def module(self) -> Any:
        """A ``torch.nn.Module`` with these weights, ready to predict."""
        self._torch()
        from shoal.models.torch_factory import made

        module = made(msgspec.structs.replace(self.model, start=""), self.inputs, 0)
        # extra state can be anything and is not saved
        module.load_state_dict(self.state_dict(), strict=False)
        return module.eval()

    def predict(self, rows: Any) -> npt.NDArray[np.float32]:
        """Class probabilities (cross_entropy), the probability of 1 (bce), or the module's output.

        Rows are as in the training set. If those are bytes, give bytes or floats from 0 to 1.
        """
        torch = self._torch()
        module, found, inputs = self.module(), [], self.prepare(rows)
        with torch.no_grad():
            for start in range(0, len(inputs), _AT_ONCE):
                out = module(torch.from_numpy(inputs[start : start + _AT_ONCE]))
                if self.model.loss == "cross_entropy":
                    out = torch.softmax(out, 1)
                elif self.model.loss == "bce":
                    out = torch.sigmoid(out)
                found.append(out.numpy())
        return np.concatenate(found) if found else np.empty((0,), np.float32)

    def prepare(self, rows: Any) -> npt.NDArray[np.float32]:
        """Rows as inputs of the module: in its shape, and normalised.

        For a module trained on sparse rows, also a scipy matrix or the path of a file; hashed if
        those were.
        """
        if self.inputs.sparse:
            return dense_of(rows, self.inputs.shape[0], self.inputs.hashing)
        array = np.asarray(rows)
        if array.size == math.prod(self.inputs.shape):  # one row, with or without an axis for rows
            array = array.reshape(1, -1)
        try:
            array = array.reshape(len(array), *self.inputs.shape)
        except (TypeError, ValueError):
            raise Invalid(f"rows of shape {array.shape}: rows of shape {self.inputs.shape} are needed") from None
        scaled = np.array(finite(array))
        if self.inputs.bytes and array.dtype.kind == "f" and array.size:
            low, high = float(array.min()), float(array.max())
            if low < 0 or high > 255:
                raise Invalid(
                    f"values from {low:g} to {high:g}: give bytes (0 to 255), or floats from 0 to 1, not scaled"
                )
            scaled *= np.float32(255.0 if high <= 1 else 1.0)
        return scaled * np.float32(self.inputs.factor) + np.float32(self.inputs.shift)

    def save(self, path: str | Path, **also: str) -> None:
        """Save it; ``also`` is added to the metadata."""
        facts = {"format": _MODULE, "model": _text(self.model), "inputs": _text(self.inputs)}
        # a scalar stays a scalar
        arrays = {name: np.array(one, order="C") for name, one in self.tensors.items()}
        _write(path, arrays, facts | {"crc32": str(_crc(self.tensors))} | also)

    @classmethod
    def load(cls, path: str | Path) -> TrainedModule:
        with _reading(path, _MODULE, "module") as (facts, tensors):
            model = msgspec.json.decode(facts["model"], type=Module)
            inputs = msgspec.json.decode(facts["inputs"], type=ModelInputs)
        _check_sum(path, facts, _crc(tensors))
        return cls(model, inputs, tensors)

    def _torch(self) -> Any:
        from shoal.models import needs_torch

        return needs_torch(f"module {self.model.net!r}")


def trained(path: Path) -> Trained | TrainedModule:
    return (TrainedModule if facts_of(path).get("format") == _MODULE else Trained).load(path)


def facts_of(path: str | Path) -> dict[str, str]:
    with _reading(path) as (facts, _):
        return facts


@contextmanager
def _reading(path: str | Path, form: str = "", what: str = "") -> Iterator[tuple[dict[str, str], Tensors]]:
    """The facts of a file, and its tensors if a form is needed; Invalid if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            facts = msgspec.json.decode((file.metadata() or {}).get("shoal", "{}"), type=dict[str, str])
            if form and facts.get("format") != form:
                raise Invalid(f"{path} is no shoal {what} (format {facts.get('format')!r}): give a model.safetensors")
            names = file.keys() if form else ()
            tensors = {name: file.get_tensor(name) for name in names}
        yield facts, tensors
    except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, ValueError) as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid(f"{path} cannot be read as a model: {error}") from None


def _write(path: str | Path, tensors: Tensors, facts: Mapping[str, str]) -> None:
    from safetensors.numpy import save

    # One key: safetensors writes several in any order, and equal models should be equal files.
    replace_file(Path(path), save(tensors, metadata={"shoal": _text(facts)}))


def _text(description: Any) -> str:
    return msgspec.json.encode(description).decode()


def _check_sum(path: str | Path, facts: Mapping[str, str], found: int | None) -> None:
    """safetensors does not detect a flipped bit."""
    if str(found) != facts.get("crc32"):
        raise Invalid(f"{path} is damaged: its checksum differs; take it from a copy, or train again")


def _crc(tensors: Tensors) -> int:
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(tensors[name].tobytes(), zlib.crc32(name.encode(), found))
    return found
