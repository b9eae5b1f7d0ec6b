"""A trained linear model: its weights and their meaning, to predict, save and load.

The file is safetensors: ``weights`` (one float32 per feature), ``bias`` (one), and a text that
describes them. It contains only numbers and text, no code.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from shoal.data.batch import Hashing
from shoal.data.user_rows import batch_of
from shoal.errors import Invalid
from shoal.files import replace_file
from shoal.models.linear import Linear

_FORMAT = "shoal linear 1"


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
        from safetensors.numpy import save

        tensors = {"weights": np.ascontiguousarray(self.weights)}
        if self.linear.bias:
            tensors["bias"] = np.array([self.bias], np.float32)
        facts = {
            "format": _FORMAT,
            "model": msgspec.json.encode(self.linear).decode(),
            "features": str(self.features),
            # safetensors does not detect a flipped bit
            "crc32": str(zlib.crc32(np.ascontiguousarray(self.table).data)),
            **({} if self.hashing is None else {"hashing": msgspec.json.encode(self.hashing).decode()}),
            **also,
        }
        # One key: safetensors writes several in any order, and equal models should be equal files.
        replace_file(Path(path), save(tensors, metadata={"shoal": msgspec.json.encode(facts).decode()}))

    @classmethod
    def load(cls, path: str | Path) -> Trained:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), "numpy") as file:
                facts = _facts(file.metadata() or {})
                if facts.get("format") != _FORMAT:
                    raise Invalid(
                        f"{path} is no model of shoal's (format {facts.get('format')!r}): give a model.safetensors"
                    )
                linear = msgspec.json.decode(facts["model"], type=Linear)
                parts = [file.get_tensor("weights")] + ([file.get_tensor("bias")] if linear.bias else [])
                table = np.concatenate(parts).astype(np.float32, copy=False)
                features = int(facts["features"])
                hashing = msgspec.json.decode(facts["hashing"], type=Hashing) if "hashing" in facts else None
        except FileNotFoundError:
            raise Invalid(f"no file {str(path)!r}: give the model.safetensors of a run") from None
        except Invalid:
            raise
        except (OSError, SafetensorError, msgspec.MsgspecError, KeyError, ValueError) as error:
            raise Invalid(f"{path} cannot be read as a model: {error}") from None
        if table.shape != (linear.keys(features),) or str(zlib.crc32(table.data)) != facts.get("crc32"):
            raise Invalid(f"{path} is damaged: its checksum differs; take it from a copy, or train again")
        if hashing is not None and hashing.features != features:
            raise Invalid(f"{path} is damaged: {features:,} features, and hashes of {hashing.bits} bits: train again")
        return cls(table, linear, features, hashing)


def facts_of(path: str | Path) -> dict[str, str]:
    """The metadata of a model file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "numpy") as file:
            return _facts(file.metadata() or {})
    except (OSError, SafetensorError, msgspec.MsgspecError) as error:
        raise Invalid(f"{path} cannot be read as a model: {error}") from None


def _facts(metadata: dict[str, str]) -> dict[str, str]:
    return msgspec.json.decode(metadata.get("shoal", "{}"), type=dict[str, str])
