"""A trained module: its ``state_dict``, and how to make and use it.

The file is safetensors with the module's own names, so anything that loads a ``state_dict`` loads
it; its metadata names the module. It contains only numbers and text, no code.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.user_rows import dense_of, finite
from shoal.errors import Invalid
from shoal.files import replace_file
from shoal.models.inputs import ModelInputs
from shoal.models.torch_module import Module

FORMAT = "shoal torch 1"
_AT_ONCE = 1_000  # rows predicted at once


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModule:
    """Arrays by the names of the module's state, and their description."""

    model: Module
    inputs: ModelInputs
    tensors: dict[str, npt.NDArray[Any]]

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
                    f"values from {low:g} to {high:g}: give bytes (0 to 255), or floats from 0 to 1, as they are before scaling"
                )
            scaled *= np.float32(255.0 if high <= 1 else 1.0)
        return scaled * np.float32(self.inputs.factor) + np.float32(self.inputs.shift)

    def save(self, path: str | Path, **also: str) -> None:
        """Save it; ``also`` is added to the metadata."""
        from safetensors.numpy import save

        facts = {
            "format": FORMAT,
            "model": msgspec.json.encode(self.model).decode(),
            "inputs": msgspec.json.encode(self.inputs).decode(),
            "crc32": str(_crc(self.tensors)),  # safetensors does not detect a flipped bit
            **also,
        }
        # a scalar stays a scalar
        arrays = {name: np.array(one, order="C") for name, one in self.tensors.items()}
        replace_file(Path(path), save(arrays, metadata={"shoal": msgspec.json.encode(facts).decode()}))

    @classmethod
    def load(cls, path: str | Path) -> TrainedModule:
        from safetensors import SafetensorError, safe_open

        from shoal.models.trained import facts_of

        facts = facts_of(path)
        if facts.get("format") != FORMAT:
            raise Invalid(f"{path} is no module of shoal's (format {facts.get('format')!r}): give a model.safetensors")
        try:
            with safe_open(str(path), "numpy") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            model = msgspec.json.decode(facts["model"], type=Module)
            inputs = msgspec.json.decode(facts["inputs"], type=ModelInputs)
        except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, ValueError) as error:
            raise Invalid(f"{path} cannot be read as a model: {error}") from None
        if str(_crc(tensors)) != facts.get("crc32"):
            raise Invalid(f"{path} is damaged: its checksum differs; take it from a copy, or train again")
        return cls(model, inputs, tensors)

    def _torch(self) -> Any:
        from shoal.models import needs_torch

        return needs_torch(f"module {self.model.net!r}")


def _crc(tensors: dict[str, npt.NDArray[Any]]) -> int:
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(tensors[name].tobytes(), zlib.crc32(name.encode(), found))
    return found
